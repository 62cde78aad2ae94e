"""How figures and tables are written, once for all reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

NONE: Final = "-"
"""In the place of a figure that there is not."""


def spread_text(spread: tuple[float, float, float] | None, form: str, unit: str = "") -> str:
    """Median with least and greatest, such as `2.50x (2.40-2.60)`; the median alone if all equal.

    Args:
        spread: Median, least and greatest; None when nothing was measured.
        form: Format of each of them.
        unit: Behind the median, with a blank of its own where there is to be one.
    """
    if spread is None:
        return NONE
    median, low, high = (format(value, form) for value in spread)
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}-{high})"


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
