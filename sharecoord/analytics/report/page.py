"""The page of the report: sentences, then plots, then tables, in one file; no Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from sharecoord.analytics.report.model import GroupPart, Report, Row
from sharecoord.analytics.report.verdict import verdicts
from sharecoord.pages.html import document, table
from sharecoord.pages.svg import Bar, Line, bars, heat, lines

NONE: Final = "-"
MINUTES_FROM_S: Final = 600
"""From this length on the time axis is in minutes, below in seconds."""
TIME_LABELS: Final = 6
"""Number of columns of the heat map that have their time below them."""
AHEAD: Final = 0.25
"""A forecast that does not reach zero is drawn for this part of the range."""
PLACES_LISTED: Final = 50
OTHERS_LISTED: Final = 1_000

TERMS: Final = {
    "Jain's index": (
        "how even the parts were that members got of what they wanted at the same time: 1 = "
        "everybody got its fair part, 1/n = one of n members got all. From 0.95 on this page calls "
        "it fair, below 0.80 unfair. Worst Jain is that of the worst window."
    ),
    "Gini coefficient": (
        "how unequally records were spread over all members of the range, whenever they were "
        "there: 0 = all got as many, near 1 = one got nearly all. Members that were there for a "
        "shorter time get fewer, which is not unfair."
    ),
    "starved": (
        "a member that wanted records for 5 s or longer and got none, while others did and at "
        "least one would have been its part."
    ),
    "fair part": (
        "what a member got against what an equal sharing would have given it, at the times at "
        "which it wanted something: 1 = just as much."
    ),
    "behind": (
        "a share-partition where what waits needs longer than 10 s at its usual speed, or nothing "
        "is finished any more, and the oldest record is older than that."
    ),
    "poison": (
        "a key of which a record was given up, or failed three times: it will most likely fail "
        "again."
    ),
    "log complete": (
        "changes in this event log against changes that there were, by their numbers: with less "
        "than 100 % the figures are those of a part of what happened."
    ),
}
"""Explanations for a reader who opens the page for the first time."""

Form = Callable[[Any], str]


def page(report: Report) -> str:
    """The whole page."""
    body = [
        "<h1>sharecoord report</h1>",
        f'<p class="note">{escape(report.events)}{_period(report)}</p>',
        *(f'<p><strong class="warn">{escape(text)}</strong></p>' for text in report.warnings),
        _summary(report),
    ]
    for number, part in enumerate(report.groups):
        body += _group(part, number, report.window_ms)
    body += [*_others(report.left_out), *_explained(report.groups)]
    return document("sharecoord report", body)


def _period(report: Report) -> str:
    """The time range of the page, and the time at which it was made."""
    made = f"made at {report.made_at}"
    if report.period is None:
        return f"; no events; {made}"
    first, last = report.period
    windows = f"in windows of {report.window_ms / 1_000:g} s"
    return f"; events from {first} to {last} (UTC), {windows}; {made}"


def _summary(report: Report) -> str:
    """A few sentences per group, the most important first."""
    if not report.groups:
        return "<p>There are no share groups in this range.</p>"
    rows = [
        f'<li><a href="#g{number}">group {escape(part.group_id)}</a>: '
        f"{_sentences(verdicts(part))}</li>"
        for number, part in enumerate(report.groups)
    ]
    note = '<p class="note"><a href="#words">What the words mean</a></p>'
    return f'<ul class="verdicts">{"".join(rows)}</ul>{note}'


def _sentences(sentences: Sequence[str]) -> str:
    rest = "".join(f"<li>{escape(text)}</li>" for text in sentences[1:])
    return f"<strong>{escape(sentences[0])}</strong>" + (f"<ul>{rest}</ul>" if rest else "")


def _explained(groups: Sequence[GroupPart]) -> Iterator[str]:
    if groups:
        terms = "".join(
            f"<dt>{escape(word)}</dt><dd>{escape(text)}</dd>" for word, text in TERMS.items()
        )
        yield f'<h2 id="words">What the words mean</h2><dl>{terms}</dl>'


def _group(part: GroupPart, number: int, window_ms: int) -> list[str]:
    return [
        f'<h2 id="g{number}">Group {escape(part.group_id)}</h2>',
        *_figures(part),
        *_heat(part, window_ms),
        *_lorenz(part),
        *_dwells(part),
        *_waiting(part),
        *_use(part),
        *_deliveries(part),
        *_members(part),
        *_places(part),
    ]


# -- plots ----------------------------------------------------------------------------------------


def _heat(part: GroupPart, window_ms: int) -> Iterator[str]:
    if not part.heat or len(part.heat_labels) < 2:
        return
    members = sum(row["members"] for row in part.heat_labels)
    totals: dict[int, int] = {}
    begins: dict[int, int] = {}
    for cell in part.heat:
        at = cell["bin"]
        totals[at] = totals.get(at, 0) + cell["records"]
        begins[at] = min(begins.get(at, cell["first_window"]), cell["first_window"])
    got = {(cell["row"], cell["bin"]): cell["records"] for cell in part.heat}
    cells = {}
    for row in part.heat_labels:
        for at, total in totals.items():
            equal, records = total * row["members"] / members, got.get((row["row"], at), 0)
            there = _was_there(row, begins[at] * window_ms, window_ms)
            # Without records where an equal part is less than one it was not the row's turn.
            if records or (there and equal >= 1):
                cells[row["row"], at] = records / equal
    columns = [""] * (max(totals) + 1)
    step = max(1, len(columns) // TIME_LABELS)
    for at in sorted(begins):
        if at % step == 0:
            columns[at] = _clock(begins[at] * window_ms)
    labels = [
        row["name"] if row["members"] == 1 else f"{row['members']} members"
        for row in part.heat_labels
    ]
    title = "What each member got over time, against an equal part"
    yield f"<h3>{title}</h3>"
    yield heat(title, "UTC; who got the most is on top", labels, cells, columns)


def _was_there(row: Row, at_ms: int, window_ms: int) -> bool:
    """Whether a member of a row wanted records at a time, or may have."""
    if row["first_ms"] is None or row["last_ms"] is None:
        return True
    return bool(row["first_ms"] - window_ms <= at_ms <= row["last_ms"])


def _lorenz(part: GroupPart) -> Iterator[str]:
    if len(part.lorenz) < 2 or not part.lorenz[-1]["records_share"]:
        return
    curve = [(100 * r["members_share"], 100 * r["records_share"]) for r in part.lorenz]
    title = "Share of the records that the least served members got (Lorenz curve)"
    curves = [
        Line("measured", [(0.0, 0.0), *curve], 0),
        Line("an equal part each", [(0.0, 0.0), (100.0, 100.0)], 3, 1),
    ]
    yield f"<h3>{title}</h3>{lines(title, '% of the members', '% of the records', curves)}"


def _dwells(part: GroupPart) -> Iterator[str]:
    if len(part.dwells) < 2 or not any(row["dwell_p99_ms"] for row in part.dwells):
        return
    title = "How long records waited for a member that could take them"
    p99 = [(100 * row["members_share"], row["dwell_p99_ms"]) for row in part.dwells]
    p50 = [(100 * row["members_share"], row["dwell_p50_ms"]) for row in part.dwells]
    curves = [Line("p99 of a member", p99, 1), Line("half of its records", p50, 0, 1)]
    yield f"<h3>{title}</h3>{lines(title, '% of the members, by p99', 'ms', curves)}"


def _waiting(part: GroupPart) -> Iterator[str]:
    rows = part.waiting
    if len(rows) < 2 or not any(row["waiting"] for row in rows):
        return
    axis = _Axis(rows)
    points = [(axis.at(row["at_ms"]), float(row["waiting"])) for row in rows]
    curves = [Line("records that wait", points, 0), *_forecast(part, points, axis)]
    title = "Lag: records that wait, and how it goes on"
    yield f"<h3>{title}</h3>{lines(title, axis.title, 'records', curves, whole_y=True)}"


def _forecast(
    part: GroupPart, points: Sequence[tuple[float, float]], axis: _Axis
) -> Iterator[Line]:
    """A line from the last point on, by the slopes of the lag job, if there are any."""
    slopes = [place["slope"] for place in part.behind if place["slope"] is not None]
    last_x, last = points[-1]
    if not slopes or not last:
        return
    slope = sum(slopes) * axis.unit_s
    span = AHEAD * (last_x - points[0][0])
    if slope < 0:
        span = min(-last / slope, 4 * span)
    end = max(0.0, last + slope * span)
    yield Line("forecast", [(last_x, last), (last_x + span, end)], 1, 1)


def _use(part: GroupPart) -> Iterator[str]:
    rows = [row for row in part.use if row["use"] is not None]
    if len(rows) < 2 or not any(row["use_max"] for row in rows):
        return
    axis = _Axis(rows)
    title = "How full the windows were: records under locks of those that may be"
    mean = [(axis.at(row["at_ms"]), 100 * row["use"]) for row in rows]
    fullest = [(axis.at(row["at_ms"]), 100 * row["use_max"]) for row in rows]
    curves = [
        Line("all its share-partitions", mean, 0),
        Line("the fullest at one moment", fullest, 1, 1),
    ]
    yield f"<h3>{title}</h3>{lines(title, axis.title, '%', curves)}"


def _deliveries(part: GroupPart) -> Iterator[str]:
    counts: dict[int, list[int]] = {}
    for row in part.deliveries:
        both = counts.setdefault(row["delivery_count"], [0, 0])
        both[0] += row["accepted"]
        both[1] += row["archived"]
    if not counts or (list(counts) == [1] and not counts[1][1]):
        return
    drawn = []
    for count, (accepted, archived) in sorted(counts.items()):
        for name, records, color in (("accepted", accepted, 2), ("given up", archived, 1)):
            if records:
                label = f"{name} after {count} {'delivery' if count == 1 else 'deliveries'}"
                drawn.append(Bar(label, records, records, records, f"{records:,}", color))
    yield f"<h3>How often records were delivered</h3>{bars(drawn)}"


class _Axis:
    """Time axis of a plot: minutes or seconds since its first row."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._start_ms = rows[0]["at_ms"]
        length_s = (rows[-1]["at_ms"] - self._start_ms) / 1_000
        self.unit_s = 60.0 if length_s >= MINUTES_FROM_S else 1.0
        unit = "minutes" if length_s >= MINUTES_FROM_S else "seconds"
        at = datetime.fromtimestamp(self._start_ms / 1_000, UTC)
        self.title = f"{unit} since {at:%Y-%m-%d %H:%M:%S} UTC"

    def at(self, at_ms: float) -> float:
        """The place of a time on the axis."""
        return float(at_ms - self._start_ms) / 1_000 / self.unit_s


def _clock(at_ms: float) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1_000, UTC):%H:%M:%S}"


# -- tables ---------------------------------------------------------------------------------------


def _number(form: str, factor: float = 1.0, unit: str = "") -> Form:
    return lambda value: NONE if value is None else f"{format(value * factor, form)}{unit}"


_COUNT: Final = _number(",.0f")
_RATIO: Final = _number(".3f")
_PERCENT: Final = _number(".1f", 100.0, " %")
_MS: Final = _number(",.0f", 1.0, " ms")
_SECONDS: Final = _number(",.1f", 0.001, " s")


def _text(value: Any) -> str:
    return NONE if value is None else str(value)


Columns = tuple[tuple[str, str, Form], ...]
"""Title, column of the row, and form of the columns of a table."""

_FIGURES: Final[Columns] = (
    ("members", "members", _COUNT),
    ("starved", "starved", _COUNT),
    ("Jain", "jain", _RATIO),
    ("worst Jain", "worst_jain", _RATIO),
    ("Gini", "gini", _RATIO),
    ("top member", "top_share", _PERCENT),
    ("top 10 %", "top_decile_share", _PERCENT),
    ("records", "records", _COUNT),
    ("waited p50", "dwell_p50_ms", _MS),
    ("waited p99", "dwell_p99_ms", _MS),
    ("log complete", "complete", _PERCENT),
)
_MEMBER: Final[Columns] = (
    ("member", "member_id", _text),
    ("client", "client_id", _text),
    ("records", "records", _COUNT),
    ("share", "share", _PERCENT),
    ("fair part", "fair_part", _RATIO),
    ("starved", "starved", lambda value: "yes" if value else ""),
    ("since", "starved_since", _text),
    ("longest starvation", "starvation_ms", _SECONDS),
    ("waited p99", "dwell_p99_ms", _MS),
    ("held", "held_ms", _MS),
    ("held too much", "over_share_ms", _SECONDS),
)
_PLACE: Final[Columns] = (
    ("topic", "topic", _text),
    ("partition", "partition", _text),
    ("lag", "lag", _COUNT),
    ("waiting", "waiting", _COUNT),
    ("behind", "behind_ms", _SECONDS),
    ("arrivals/s", "arrival_rate", _number(",.1f")),
    ("finished/s", "service_rate", _number(",.1f")),
    ("trend", "trend", _text),
    ("drained in", "drain_s", _number(",.0f", 1.0, " s")),
    ("forecast off by", "forecast_error", _COUNT),
)
_TEXTUAL: Final = dict.fromkeys(("member", "client", "since", "topic", "trend", "starved"), "text")


def _listed(columns: Columns, rows: Iterable[Row]) -> str:
    texts = [[form(row[name]) for _, name, form in columns] for row in rows]
    return table([title for title, _, _ in columns], texts, _TEXTUAL)


def _figures(part: GroupPart) -> Iterator[str]:
    if part.fairness is not None:
        yield _listed(_FIGURES, [part.fairness])


def _members(part: GroupPart) -> Iterator[str]:
    if part.members:
        count = int(part.fairness["members"]) if part.fairness else len(part.members)
        shown = "" if count <= len(part.members) else f" ({len(part.members)} of {count})"
        yield f"<h3>Members{shown}: who starved the longest first</h3>"
        yield _listed(_MEMBER, part.members)


def _places(part: GroupPart) -> Iterator[str]:
    if part.places:
        count = len(part.places)
        shown = "" if count <= PLACES_LISTED else f" ({PLACES_LISTED} of {count})"
        yield f"<h3>Share-partitions{shown}: who is behind first</h3>"
        yield _listed(_PLACE, part.places[:PLACES_LISTED])


def _others(rows: Sequence[Row]) -> Iterator[str]:
    """A table of the groups that are not drawn."""
    if rows:
        yield f"<h2>{len(rows)} more groups</h2>"
        columns = (("group", "group_id", _text), *_FIGURES)
        yield _listed(columns, rows[:OTHERS_LISTED])
