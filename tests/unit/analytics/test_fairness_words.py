"""Settings and verdicts of the fairness job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.fairness.job import JSON_KEYS
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.fairness.verdict import verdict
from sharecoord.analytics.frames import Findings
from sharecoord.analytics.jobs import JobResult, check_out
from sharecoord.analytics.times import parse_duration_ms

GROUP: dict[str, Any] = {
    "group_id": "g",
    "members": 4,
    "starved": 0,
    "starved_members": [],
    "jain": 0.99,
    "worst_jain": 0.97,
    "worst_window": "2026-01-05 00:00:00Z",
    "gini": 0.1,
    "top_share": 0.5,
    "dwell_p99_ms": 12.0,
    "complete": 1.0,
    "changes_seen": 10,
    "changes_expected": 10,
    "lost": 0,
    "over_share": 0,
}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "fair"),
        ({"members": 0, "jain": None}, "no members"),
        ({"starved": 2}, "unfair: 2 of 4 members starved"),
        ({"jain": None}, "not measured: no samples of members"),
        ({"members": 1, "jain": 1.0}, "one member: nothing to share"),
        (
            {"jain": 0.9},
            "uneven: members that wanted at the same time got unlike parts (Jain 0.90)",
        ),
        (
            {"jain": 0.5},
            "unfair: members that wanted at the same time got unlike parts (Jain 0.50)",
        ),
        (
            {"worst_jain": 0.4},
            "fair in all, unfair at times: Jain 0.40 at 2026-01-05 00:00:00Z",
        ),
        (
            {"complete": 0.9, "changes_seen": 9, "lost": 3},
            "fair; the log lacks 1 of 10 changes; its writer lost 3 rows",
        ),
        ({"over_share": 1}, "fair; 1 members held more than their share of the window"),
    ],
)
def test_verdicts(given: dict[str, Any], says: str) -> None:
    assert verdict({**GROUP, **given}) == says


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("10s", 10_000), ("5m", 300_000), ("1h", 3_600_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "10", "s", "1.5s", "-1s", "10 d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="500ms, 10s, 5m or 1h"):
        parse_duration_ms(text)


@pytest.mark.parametrize("window_ms", [0, 999, 1_500])
def test_windows_are_whole_seconds(window_ms: int) -> None:
    with pytest.raises(AnalyticsError, match="--window"):
        FairnessSettings(window_ms=window_ms)
    with pytest.raises(AnalyticsError, match="--starved-after"):
        FairnessSettings(starved_after_ms=0)


def test_a_line_per_group() -> None:
    (line,) = JobResult([GROUP], JSON_KEYS).lines()
    assert json.loads(line) == {
        "group": "g",
        "members": 4,
        "starved": 0,
        "starved_members": [],
        "jain": 0.99,
        "gini": 0.1,
        "top_share": 0.5,
        "dwell_p99_ms": 12.0,
        "complete": 1.0,
    }


def test_warnings_of_a_result() -> None:
    assert JobResult([]).warnings() == []
    lines = JobResult([], findings=Findings(["/e/a"]), lost=7, schema_version=99).warnings()
    assert [word in line for word, line in zip(("/e/a", "99", "7"), lines, strict=True)] == [
        True
    ] * 3


@pytest.mark.parametrize(
    ("events", "out", "inside"),
    [
        ("e", "e", True),
        ("e", "e/out", True),
        ("e", "out", False),
        ("e", "e2", False),
        ("hdfs://h/e", "hdfs://h/e/out", True),
        ("hdfs://h/e", "hdfs://h/e2", False),
    ],
)
def test_tables_do_not_lie_among_the_events(events: str, out: str, *, inside: bool) -> None:
    if not inside:
        check_out(events, out)
        return
    with pytest.raises(AnalyticsError, match="lies inside of --events"):
        check_out(events, out)
