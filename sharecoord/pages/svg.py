"""Plots as inline HTML and SVG: text in, text out, no library and nothing to load.

Bars are HTML, so that their text keeps its size and its place on a narrow screen; lines are SVG.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 640
_HEIGHT: Final = 270
_LEFT: Final = 56
_RIGHT: Final = 16
_TOP: Final = 26
_BOTTOM: Final = 44
_TICKS: Final = 5
COLORS: Final = 5
"""Classes c0 to c4, and l0 to l4 for lines, of the page's style sheet."""
DASHES: Final = ("", "7 3", "2 3", "9 3 2 3", "14 4", "1 5")
"""Patterns of dashes that tell lines of one color apart."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A row of a bar plot: the bar ends at the median, its whisker reaches from low to high."""

    label: str
    """Left of the bar, or above it."""
    median: float
    low: float
    high: float
    text: str
    """Right of the bar."""
    color: int
    """From 0 on."""


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars from zero, with whiskers from least to greatest."""
    most = max((row.high for row in rows), default=0.0) or 1.0
    parts = []
    for row in rows:
        length, low, high = (100 * value / most for value in (row.median, row.low, row.high))
        parts.append(
            f'<div class="bar"><span class="name">{escape(row.label)}</span>'
            f'<span class="track"><span class="fill c{row.color % COLORS}" '
            f'style="width:{length:.2f}%"></span><span class="whisker" '
            f'style="left:{low:.2f}%;width:{high - low:.2f}%"></span></span>'
            f'<span class="value">{escape(row.text)}</span></div>'
        )
    return f'<div class="bars">{"".join(parts)}</div>'


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a plot."""

    label: str
    points: Sequence[tuple[float, float]]
    """x and y, ascending in x."""
    color: int
    """From 0 on."""
    dash: int = 0
    """Index in `DASHES`."""

    @property
    def look(self) -> str:
        """Attributes of its path."""
        dash = DASHES[self.dash % len(DASHES)]
        return f'class="l{self.color % COLORS}"' + (f' stroke-dasharray="{dash}"' if dash else "")


def lines(
    title: str,
    x_title: str,
    y_title: str,
    given: Sequence[Line],
    *,
    log_x: bool = False,
    whole_x: bool = False,
    whole_y: bool = False,
) -> str:
    """Lines over a common axis, with a legend.

    Args:
        title: For readers who can not see the plot.
        x_title: Below the x axis.
        y_title: Above the y axis.
        given: Lines with at least one point in all.
        log_x: Whether x is logarithmic; then points at or below 0 stand at the least x above 0.
        whole_x: Whether x counts something, so that the axis has no tick between 1 and 2.
        whole_y: As `whole_x`, for y.
    """
    xs = [x for line in given for x, _ in line.points if x > 0 or not log_x] or [1.0]
    top = max((y for line in given for _, y in line.points), default=0.0) or 1.0
    step = nice_step(top, whole=whole_y)
    top = step * math.ceil(top / step - 1e-9)
    scale = _Scale(min(xs), max(xs), log=log_x, whole=whole_x)
    parts = [_open(title), _grid(scale, top, step, x_title, y_title)]
    for line in given:
        path = " ".join(f"{scale.at(x):.1f},{_y(y, top):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" {line.look}/>')
    legend = _legend((f'd="M0 4H36" {line.look}', line.label) for line in given)
    return f'<div class="wide">{"".join(parts)}</svg></div>{legend}'


def _legend(entries: Iterable[tuple[str, str]]) -> str:
    """A legend: for each entry the attributes of its path, and its words."""
    rows = [
        f'<li><svg viewBox="0 0 36 8" class="key" aria-hidden="true"><path {look}/></svg>'
        f"{escape(words)}</li>"
        for look, words in entries
    ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


def nice_step(span: float, *, whole: bool = False) -> float:
    """A step of 1, 2 or 5 times a power of ten, so that at most five cover the span (above 0).

    With `whole` the step is at least 1.
    """
    least = max(span / _TICKS, float(whole))
    decade: float = 10.0 ** math.floor(math.log10(least))
    return next(
        (factor * decade for factor in (1, 2, 5) if factor * decade >= least * (1 - 1e-9)),
        10 * decade,
    )


# -- heat maps ------------------------------------------------------------------------------------

HEAT_BOUNDS: Final = (0.25, 0.5, 0.8, 1.25, 2.0)
"""Shares of the fair part at which a cell's class changes: h1 to h6; h0 is nothing at all."""
HEAT_WORDS: Final = (
    "nothing",
    "less than a quarter of its part",
    "a quarter to a half",
    "a half to 80 %",
    "its part",
    "a quarter more, up to twice",
    "twice its part and more",
)
_HEAT_HEIGHT: Final = 300
_ROW_MAX: Final = 16
_LABELED_ROW: Final = 9
_LABEL_WIDTH: Final = 130
_LABEL_LETTERS: Final = 14


def heat_class(value: float) -> int:
    """The class, 0 to 6, of a share of the fair part."""
    if value <= 0:
        return 0
    return 1 + sum(1 for bound in HEAT_BOUNDS if value >= bound)


def heat(
    title: str,
    x_title: str,
    labels: Sequence[str],
    cells: Mapping[tuple[int, int], float],
    columns: Sequence[str],
) -> str:
    """A heat map of parts by row (member) and column (time); a missing cell stays empty.

    Args:
        title: For readers who can not see the map.
        x_title: Below the axis.
        labels: Of the rows, from the top.
        cells: By row and column, the part that was got divided by the fair part.
        columns: Labels of the columns; "" = none.
    """
    row_height = max(3.0, min(_ROW_MAX, _HEAT_HEIGHT / max(1, len(labels))))
    width = (WIDTH - _LABEL_WIDTH - _RIGHT) / max(1, len(columns))
    height = _TOP + row_height * len(labels) + _BOTTOM
    parts = [_open(title, height)]
    for number, path in sorted(_heat_paths(cells, len(labels), len(columns)).items()):
        drawn = "".join(
            f"M{_LABEL_WIDTH + first * width:.1f} {_TOP + row * row_height:.1f}"
            f"h{count * width:.1f}v{row_height:.1f}h-{count * width:.1f}z"
            for row, first, count in path
        )
        parts.append(f'<path class="h{number}" d="{drawn}"/>')
    every = max(1, math.ceil(_LABELED_ROW / row_height))
    for row in range(0, len(labels), every):
        y = _TOP + (row + 0.5) * row_height + 4
        parts.append(_text(_LABEL_WIDTH - 6, y, _shortened(labels[row]), "end"))
    floor = _TOP + row_height * len(labels)
    for column, text in enumerate(columns):
        if text:
            parts.append(_text(_LABEL_WIDTH + (column + 0.5) * width, floor + 16, text, "middle"))
    parts.append(_text(WIDTH - _RIGHT, floor + 34, x_title, "end"))
    looks = (f'class="h{number}" d="M0 0h36v8h-36z"' for number in range(len(HEAT_WORDS)))
    legend = _legend(zip(looks, HEAT_WORDS, strict=True))
    return f'<div class="wide">{"".join(parts)}</svg></div>{legend}'


def _heat_paths(
    cells: Mapping[tuple[int, int], float], rows: int, columns: int
) -> dict[int, list[tuple[int, int, int]]]:
    """Neighbours of one class, by class: row, first column and number of columns."""
    found: dict[int, list[tuple[int, int, int]]] = {}
    for row in range(rows):
        here = [(c, heat_class(cells[row, c])) for c in range(columns) if (row, c) in cells]
        start = 0
        for at in range(1, len(here) + 1):
            joined = at < len(here) and here[at] == (here[at - 1][0] + 1, here[start][1])
            if not joined:
                found.setdefault(here[start][1], []).append((row, here[start][0], at - start))
                start = at
    return found


def _shortened(label: str) -> str:
    """The end of a long label: it tells members apart more often than the beginning."""
    return label if len(label) <= _LABEL_LETTERS else f"…{label[1 - _LABEL_LETTERS :]}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{anchor}">{escape(text)}</text>'


# -- axes -----------------------------------------------------------------------------------------


class _Scale:
    """From values to places on the x axis."""

    def __init__(self, low: float, high: float, *, log: bool, whole: bool) -> None:
        self._log, self._whole = log, whole
        self.low, self.high = low, high if high > low else low + 1
        self._from, self._to = self._value(self.low), self._value(self.high)

    def _value(self, x: float) -> float:
        return math.log10(x) if self._log else x

    def at(self, x: float) -> float:
        """The place of a value, within the plot."""
        share = (self._value(max(x, self.low)) - self._from) / (self._to - self._from)
        return _LEFT + share * (WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[float]:
        """Round values along the axis."""
        if self._log:
            decades = range(math.floor(self._from), math.ceil(self._to) + 1)
            # Every decade alone when there are many: labels must not touch.
            factors = (1, 2, 5) if len(decades) <= 4 else (1,)
            found = [factor * 10.0**decade for decade in decades for factor in factors]
        else:
            step = nice_step(self.high - self.low, whole=self._whole)
            first = math.ceil(self.low / step)
            found = [step * number for number in range(first, first + _TICKS + 2)]
        return [each for each in found if self.low <= each <= self.high]


def _grid(scale: _Scale, top: float, step: float, x_title: str, y_title: str) -> str:
    parts = []
    for number in range(round(top / step) + 1):
        value = number * step
        y = _y(value, top)
        parts.append(
            f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" class="grid"/>'
            f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" class="end">{_number(value)}</text>'
        )
    floor = _HEIGHT - _BOTTOM
    for tick in scale.ticks():
        x = scale.at(tick)
        parts.append(
            f'<path d="M{x:.1f} {_TOP}V{floor}" class="grid"/>'
            f'<text x="{x:.1f}" y="{floor + 16}" class="middle">{_number(tick)}</text>'
        )
    parts.append(
        f'<text x="{WIDTH - _RIGHT}" y="{floor + 34}" class="end">{escape(x_title)}</text>'
        f'<text x="2" y="{_TOP - 12}">{escape(y_title)}</text>'
    )
    return "".join(parts)


def _number(value: float) -> str:
    """A figure of an axis, in few letters."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.6g}{unit}"
    return f"{value:.6g}"


def _y(value: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - (value / top) * (_HEIGHT - _BOTTOM - _TOP)


def _open(title: str, height: float = _HEIGHT) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" class="plot" '
        f'aria-label="{escape(title)}"><title>{escape(title)}</title>'
    )
