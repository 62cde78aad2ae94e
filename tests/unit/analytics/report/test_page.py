"""The page of the report: words first, everything drawn, bounded, and safe to open."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

from sharecoord.analytics.report.model import GroupPart
from sharecoord.analytics.report.page import page
from tests.unit.analytics.report.support import (
    START_MS,
    WINDOW_MS,
    fairness_row,
    report_of,
    whole_part,
    whole_report,
)

MEBIBYTE = 1 << 20


class Reader(HTMLParser):
    """Text by the element that it stands in, and addresses of anything outside."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.outside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "path", "polyline"):
            self.open.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and not (value or "").startswith("#"):
                self.outside.append(f"{tag} {value}")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1], data.strip()))

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]


def test_words_come_first_then_plots_then_tables() -> None:
    text = page(whole_report())
    read = Reader(text)
    assert read.outside == []
    words = text.index("23 of 50 members starved since 2026-01-05 00:00:10Z")
    cure = text.index("records waited meanwhile", words)
    assert words < cure < text.index("<h2") < text.index("<svg") < text.index("Members")
    assert read.of("h1") == ["sharecoord report"]
    assert read.of("h2") == [
        *("Group orders", "Group idle", "30 more groups", "What the words mean"),
    ]
    assert read.of("h3") == [
        "What each member got over time, against an equal part",
        "Share of the records that the least served members got (Lorenz curve)",
        "How long records waited for a member that could take them",
        "Lag: records that wait, and how it goes on",
        "How full the windows were: records under locks of those that may be",
        "How often records were delivered",
        "Members: who starved the longest first",
        "Share-partitions: who is behind first",
    ]
    assert "nothing happened in this range" in text
    assert "1 file: &lt;x&gt;" in text


def test_a_group_of_ten_thousand_members_is_a_page_of_the_same_size() -> None:
    small, large = page(whole_report(50)), page(whole_report(10_000, 4_000))
    assert len(large) < 2 * len(small) < MEBIBYTE
    assert "4000 of 10000 members starved" in large
    assert "166 members" in large
    assert "Members (50 of 10000)" in large


def test_names_are_shown_as_they_are() -> None:
    evil = '<script>alert("x")</script>'
    part = replace(
        whole_part(evil, 3, 1), members=[{**whole_part("g", 3, 1).members[0], "client_id": evil}]
    )
    text = page(report_of(part, events=evil))
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 4


def drawn_heat(part: GroupPart) -> str:
    text = page(report_of(part))
    return text[text.index("against an equal part</h3>") : text.index('<ul class="legend">')]


def test_who_got_nothing_while_others_did_is_drawn_as_nothing() -> None:
    window = START_MS // WINDOW_MS
    there = {"first_ms": START_MS, "last_ms": START_MS + 2 * WINDOW_MS}
    labels = [{"row": n, "members": 1, "name": f"w{n}", **there} for n in range(2)]
    heat = [
        {"row": 0, "bin": 0, "first_window": window, "records": 10},
        {"row": 0, "bin": 2, "first_window": window + 2, "records": 5},
        {"row": 1, "bin": 2, "first_window": window + 2, "records": 5},
    ]
    part = GroupPart("g", fairness_row("g", 2, 0), heat_labels=labels, heat=heat)
    plot = drawn_heat(part)
    found = {k: d.count("M") for k, d in re.findall(r'<path class="(h\d)" d="([^"]*)"', plot)}
    # w0 got twice its part, w1 nothing; in the second window nobody got anything; then both alike.
    assert found == {"h0": 1, "h4": 2, "h6": 1}
    assert "00:00:00" in plot
    # Who had not come yet, or had gone, is not drawn; nor is nothing where there was too little.
    late = [labels[0], {**labels[1], "first_ms": START_MS + 2 * WINDOW_MS}]
    assert 'class="h0"' not in drawn_heat(replace(part, heat_labels=late))
    few = [{**heat[0], "records": 1}, *heat[1:]]
    assert 'class="h0"' not in drawn_heat(replace(part, heat=few))


def test_the_page_says_of_what_time_it_tells_and_what_its_words_mean() -> None:
    text = page(whole_report())
    period = "events from 2026-01-05 00:00:00Z to 2026-01-05 00:10:00Z (UTC), in windows of 10 s"
    assert f"./events; {period}; made at 2026-01-06 08:00:00Z" in text
    for word in ("Jain&#x27;s index", "Gini coefficient", "poison", "log complete", "starved"):
        assert f"<dt>{word}</dt><dd>" in text
    nothing = replace(report_of(), period=None)
    assert "e; no events; made at" in page(nothing)


def test_what_is_nothing_but_zero_is_not_drawn() -> None:
    part = whole_part("g", 5, 0)
    calm = replace(
        part,
        waiting=[{**row, "waiting": 0} for row in part.waiting],
        use=[{**row, "use": 0.0, "use_max": 0.0} for row in part.use],
        dwells=[{**row, "dwell_p50_ms": 0.0, "dwell_p99_ms": 0.0} for row in part.dwells],
    )
    titles = ("How long records waited", "Lag: records that wait", "How full the windows were")
    assert [title in page(report_of(part)) for title in titles] == [True] * 3
    assert [title in page(report_of(calm)) for title in titles] == [False] * 3


def test_without_groups_the_page_says_so() -> None:
    assert "There are no share groups in this range." in page(report_of())


def test_a_forecast_ends_at_zero_or_goes_on() -> None:
    part = whole_part("g", 5, 0)
    growing = page(report_of(part))
    assert "forecast" in growing
    drains = [{**part.places[0], "trend": "drains", "slope": -10.0, "drain_s": 354.0}]
    assert "forecast" in page(report_of(replace(part, places=drains)))
    calm = [place for place in part.places if not place["behind"]]
    assert "forecast</li>" not in page(report_of(replace(part, places=calm)))
