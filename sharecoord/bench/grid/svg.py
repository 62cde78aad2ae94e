"""Plots as inline SVG: text in, text out, no library and nothing to load."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 900
_LABEL_LEAST: Final = 120
_LABEL_MOST: Final = 520
_CHARACTER: Final = 6.6
_VALUE: Final = 150
_ROW: Final = 24
_TOP: Final = 8
_AXIS: Final = 26
_LINES_HEIGHT: Final = 260
_LEFT: Final = 60
COLORS: Final = 5
"""Classes c0 to c4 of the page's style sheet."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row of a bar plot.

    Attributes:
        label: Left of the bar.
        median: Length of the bar.
        low: Begin of the whisker.
        high: End of the whisker.
        text: Right of the bar.
        color: From 0 on.
    """

    label: str
    median: float
    low: float
    high: float
    text: str
    color: int


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars from zero, with whiskers from least to greatest."""
    most = max((row.high for row in rows), default=0.0) or 1.0
    longest = max((len(row.label) for row in rows), default=0)
    left = min(_LABEL_MOST, max(_LABEL_LEAST, round(longest * _CHARACTER) + 16))
    span = WIDTH - left - _VALUE
    height = _TOP * 2 + _ROW * len(rows)
    parts = [_open(title, height)]
    for place, row in enumerate(rows):
        top = _TOP + place * _ROW
        middle = top + _ROW / 2
        length = span * row.median / most
        low, high = (left + span * value / most for value in (row.low, row.high))
        parts.append(
            f'<text x="{left - 8}" y="{middle + 4:.1f}" class="end">{escape(row.label)}</text>'
            f'<rect x="{left}" y="{top + 4}" width="{length:.1f}" height="{_ROW - 8}" '
            f'class="c{row.color % COLORS}"/>'
            f'<path d="M{low:.1f} {middle:.1f}H{high:.1f}M{low:.1f} {middle - 4:.1f}v8'
            f'M{high:.1f} {middle - 4:.1f}v8" class="whisker"/>'
            f'<text x="{high + 6:.1f}" y="{middle + 4:.1f}">{escape(row.text)}</text>'
        )
    return "".join(parts) + "</svg>"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot.

    Attributes:
        label: In the legend.
        points: x and y, ascending in x.
        color: From 0 on.
    """

    label: str
    points: Sequence[tuple[float, float]]
    color: int


def lines(title: str, x_title: str, y_title: str, given: Sequence[Line], *, log_x: bool) -> str:
    """Lines over a common axis, with a legend.

    Args:
        title: For those who can not see it.
        x_title: Below the axis.
        y_title: Left of it.
        given: With at least one point in all.
        log_x: Whether x is logarithmic; then points at or below 0 stand at the least above it.
    """
    xs = [x for line in given for x, _ in line.points if x > 0 or not log_x] or [1.0]
    top = max((y for line in given for _, y in line.points), default=0.0) or 1.0
    scale = _Scale(min(xs), max(xs), log=log_x)
    height = _LINES_HEIGHT + _AXIS + 18 * len(given)
    parts = [_open(title, height), _grid(scale, top, x_title, y_title)]
    for place, line in enumerate(given):
        path = " ".join(f"{scale.at(x):.1f},{_y(y, top):.1f}" for x, y in line.points)
        legend = _LINES_HEIGHT + _AXIS + 18 * place + 12
        parts.append(
            f'<polyline points="{path}" class="l{line.color % COLORS}"/>'
            f'<path d="M{_LEFT} {legend - 4}h24" class="l{line.color % COLORS}"/>'
            f'<text x="{_LEFT + 32}" y="{legend}">{escape(line.label)}</text>'
        )
    return "".join(parts) + "</svg>"


class _Scale:
    """From values to places on the x axis."""

    def __init__(self, low: float, high: float, *, log: bool) -> None:
        self._log = log
        self.low, self.high = low, high if high > low else low + 1
        self._from, self._to = self._value(self.low), self._value(self.high)

    def _value(self, x: float) -> float:
        return math.log10(x) if self._log else x

    def at(self, x: float) -> float:
        """The place of a value, within the plot."""
        share = (self._value(max(x, self.low)) - self._from) / (self._to - self._from)
        return _LEFT + share * (WIDTH - _LEFT - 20)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self._log:
            decades = range(math.floor(self._from), math.ceil(self._to) + 1)
            found = [factor * 10.0**decade for decade in decades for factor in (1, 2, 5)]
            return [each for each in found if self.low <= each <= self.high]
        return [self.low + (self.high - self.low) * part / 5 for part in range(6)]


def _grid(scale: _Scale, top: float, x_title: str, y_title: str) -> str:
    parts = []
    for part in range(5):
        y = _y(top * part / 4, top)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{WIDTH - 20}" class="grid"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{top * part / 4:.4g}</text>'
        )
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(
            f'<path d="M{x:.1f} {_TOP}V{_LINES_HEIGHT - 20}" class="grid"/>'
            f'<text x="{x:.1f}" y="{_LINES_HEIGHT - 5}" class="middle">{tick:.4g}</text>'
        )
    parts.append(
        f'<text x="{WIDTH - 20}" y="{_LINES_HEIGHT + 12}" class="end">{escape(x_title)}</text>'
        f'<text x="{_LEFT}" y="{_LINES_HEIGHT + 12}">{escape(y_title)}</text>'
    )
    return "".join(parts)


def _y(value: float, top: float) -> float:
    return _LINES_HEIGHT - 20 - (value / top) * (_LINES_HEIGHT - 20 - _TOP)


def _open(title: str, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>"
    )
