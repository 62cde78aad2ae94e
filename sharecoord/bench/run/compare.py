"""Comparison of two results: `sharecoord bench compare A B`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sharecoord.bench.engine.cell import Cell, Dimension, label, varied
from sharecoord.bench.engine.figures import METRICS
from sharecoord.bench.run.folder import ReadSummary
from sharecoord.bench.text import Spread, spread_text
from sharecoord.errors import InvalidConfigError

_COMPARED: Final = (
    "records_per_s",
    "max_rate_per_s",
    "drain_s",
    "p50_ms",
    "p99_ms",
    "busy_percent",
    "jain_ratio",
    "starved_consumers",
    "first_record_s",
    "cpu_total_s_per_million",
    "commits_per_1000",
    "store_bytes_per_record",
    "coordinator_rss_mb",
    "coordinator_peak_mb",
)


class Difference(NamedTuple):
    """A metric of a cell in two results."""

    cell: Cell
    metric: str
    first: Spread
    second: Spread

    @property
    def ratio(self) -> float | None:
        """The second median over the first; None when the first is 0."""
        return self.second[0] / self.first[0] if self.first[0] else None

    @property
    def overlap(self) -> bool:
        """Whether the ranges from least to greatest touch: then the two may well be equal."""
        return self.first[1] <= self.second[2] and self.second[1] <= self.first[2]

    @property
    def verdict(self) -> str:
        """`better`, `worse`, `differs`, or `overlaps` when nothing can be said."""
        if self.overlap:
            return "overlaps"
        better = METRICS[self.metric].better
        if better == 0:
            return "differs"
        return "better" if (self.second[0] - self.first[0]) * better > 0 else "worse"


def differences(first: ReadSummary, second: ReadSummary) -> list[Difference]:
    """All figures of the cells that both have; InvalidConfigError when they can not be compared."""
    if first.mode is not second.mode:
        raise InvalidConfigError(
            f"{second.name}: is of mode {second.mode}, and {first.name} of {first.mode}; "
            "compare results of one mode"
        )
    others = {summary.cell: summary.figures for summary in second.cells}
    found = [
        Difference(summary.cell, name, summary.figures[name], others[summary.cell][name])
        for summary in first.cells
        if summary.cell in others
        for name in _COMPARED
        if name in summary.figures and name in others[summary.cell]
    ]
    if not found:
        raise InvalidConfigError(f"{second.name}: has no cell that {first.name} has too")
    return found


def comparison(first: ReadSummary, second: ReadSummary) -> str:
    """A table for people, with what only one of them has below it; raises as `differences`."""
    found = differences(first, second)
    names = varied(each.cell for each in [*first.cells, *second.cells])
    lines = [f"A: {first.name} ({first.commit})", f"B: {second.name} ({second.commit})", ""]
    if first.cpu_model != second.cpu_model:
        lines[2:] = [f"Measured on different machines: {first.cpu_model}, {second.cpu_model}", ""]
    rows = [["cell", "figure", "A", "B", "B/A", "ranges"]]
    rows += [_row(each, names) for each in found]
    lines += _aligned(rows)
    for mine, theirs, name in ((first, second, "A"), (second, first, "B")):
        common = {summary.cell for summary in theirs.cells}
        alone = [each.cell for each in mine.cells if each.cell not in common]
        lines += [f"only in {name}: {label(cell, names)}" for cell in alone]
    return "\n".join(lines)


def _row(each: Difference, names: Sequence[Dimension]) -> list[str]:
    form = METRICS[each.metric].form
    ratio = "-" if each.ratio is None else f"{each.ratio:.2f}"
    first, second = (spread_text(spread, form) for spread in (each.first, each.second))
    return [
        label(each.cell, names),
        METRICS[each.metric].title,
        first,
        second,
        ratio,
        each.verdict,
    ]


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
