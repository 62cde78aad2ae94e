"""How figures, tables and JSON are written, once for all reports."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

NONE: Final = "-"
"""Stands where a figure was not measured."""
_KILO: Final = 1000


class Spread(NamedTuple):
    """Median, least and greatest of several figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """The spread of at least one value."""
        listed = list(values)
        return cls(statistics.median(listed), min(listed), max(listed))


def spread_of(values: Iterable[float | None]) -> Spread | None:
    """The spread of the values that are not None; None when there is no such value."""
    known = [value for value in values if value is not None]
    return Spread.of(known) if known else None


def spread_text(spread: Sequence[float] | None, form: str, unit: str = "") -> str:
    """Median with least and greatest, such as `2.50x (2.40-2.60)`; the median alone if all equal.

    Args:
        spread: Median, least and greatest; None when nothing was measured.
        form: Format of each of them.
        unit: Stands directly after the median.
    """
    if spread is None:
        return NONE
    median, low, high = (format(value, form) for value in spread)
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}-{high})"


def figure_text(value: float | None, form: str) -> str:
    """One figure; `-` when it was not measured."""
    return NONE if value is None else format(value, form)


def size_text(size_bytes: int) -> str:
    """A length of values, such as `100 B` or `1 kB`."""
    return f"{size_bytes} B" if size_bytes % _KILO else f"{size_bytes // _KILO} kB"


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose columns line up as plain text too."""
    widths = [max(3, *(len(row[at]) for row in [head, *rows])) for at in range(len(head))]
    lines = [head, ["-" * width for width in widths], *rows]
    return "\n".join(
        "| "
        + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        + " |"
        for line in lines
    )


def named_values(value: Any) -> Any:
    """Dataclasses and spreads as mappings of names to values, however deep they lie."""
    if isinstance(value, Spread):
        return value._asdict()
    if is_dataclass(value):
        return {each.name: named_values(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        return {key: named_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [named_values(each) for each in value]
    return value


def write_json(path: Path, values: Any) -> None:
    """Writes one JSON file of a result folder."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
