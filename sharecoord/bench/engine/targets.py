"""Targets of a plan: promises about figures of its cells, read from its file and judged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sharecoord.bench.engine.cell import (
    BY_NAME,
    Cell,
    Consumer,
    Mode,
    canonical,
    values_text,
    varied,
)
from sharecoord.bench.engine.figures import (
    BROKER,
    METRICS,
    Trial,
    cell_figures,
    cell_ratios,
    cpu_figure,
)
from sharecoord.bench.text import Spread, markdown_table, spread_text
from sharecoord.errors import InvalidConfigError

MAX_TARGETS: Final = 100
_BROKER_CPU: Final = cpu_figure(BROKER)
_AT_LEAST: Final = "at_least"
_AT_MOST: Final = "at_most"
_FORM: Final = "{figure: records_per_s, at-least: 1.3, against: {consumer: kafka-share}}"

Values = Mapping[str, Sequence[Any]]
"""Values by name of dimension."""


@dataclass(frozen=True, slots=True)
class Target:
    """A promise about the median of a figure.

    Attributes:
        figure: A name of `METRICS`.
        bound: The promise.
        at_least: Whether `bound` is the least good value; else it is the greatest.
        cells: Which cells are judged: those with one of these values in each dimension. Without a
            consumer they are this project's.
        against: The one value of each dimension in which the cell differs whose figure of the same
            repeat the judged one is divided by. Empty: the figure itself is judged.
    """

    figure: str
    bound: float
    at_least: bool
    cells: Values
    against: Values

    def means(self, cell: Cell) -> bool:
        """Whether a cell is judged."""
        wanted = {"consumer": (Consumer.SHARECOORD,), **self.cells}
        return all(getattr(cell, name) in values for name, values in wanted.items())

    def other(self, cell: Cell, mode: Mode) -> Cell | None:
        """The cell whose figure is the measure of a judged one; None when there is none."""
        changed = replace(cell, **{name: value for name, (value,) in self.against.items()})
        return canonical(changed, mode) if self.against else None

    def to_json(self) -> dict[str, Any]:
        """The target as a plan's file has it."""
        written: dict[str, Any] = {"figure": self.figure}
        written["at-least" if self.at_least else "at-most"] = self.bound
        for name, values in (("cells", self.cells), ("against", self.against)):
            if values:
                written[name] = {
                    BY_NAME[each].flag: [BY_NAME[each].text(value) for value in of]
                    for each, of in values.items()
                }
        return written


def read_targets(given: object) -> tuple[Target, ...]:
    """Reads the `targets` of a plan; InvalidConfigError for what can not be judged."""
    if not isinstance(given, list) or not all(isinstance(each, Mapping) for each in given):
        raise InvalidConfigError(f"targets: must be a list of promises, as in [{_FORM}]")
    if len(given) > MAX_TARGETS:
        raise InvalidConfigError(f"targets: {len(given)} are given, and {MAX_TARGETS} is the limit")
    return tuple(_target(each) for each in given)


def _target(given: Mapping[str, Any]) -> Target:
    fields = {str(name).replace("-", "_"): value for name, value in given.items()}
    known = ("figure", _AT_LEAST, _AT_MOST, "cells", "against")
    if unknown := sorted(set(fields) - set(known)):
        raise InvalidConfigError(f"targets: {unknown[0]!r} is not known; use {', '.join(known)}")
    figure = fields.get("figure")
    if figure not in METRICS:
        raise InvalidConfigError(
            f"targets: figure {figure!r} is not measured; give one of {', '.join(METRICS)}"
        )
    if (_AT_LEAST in fields) == (_AT_MOST in fields):
        raise InvalidConfigError(f"targets: {figure} needs one of at-least and at-most")
    at_least = _AT_LEAST in fields
    bound = fields[_AT_LEAST if at_least else _AT_MOST]
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
        raise InvalidConfigError(f"targets: the bound {bound!r} of {figure} is not a number")
    against = _values(fields.get("against", {}), "against")
    for name, values in against.items():
        if len(values) > 1:
            raise InvalidConfigError(
                f"targets: against has several values of {BY_NAME[name].flag}; give one"
            )
    cells = _values(fields.get("cells", {}), "cells")
    return Target(str(figure), float(bound), at_least, cells, against)


def _values(given: object, place: str) -> Values:
    if not isinstance(given, Mapping):
        raise InvalidConfigError(f"targets: {place} must be dimensions with values, as in {_FORM}")
    read: dict[str, Sequence[Any]] = {}
    for flag, value in given.items():
        name = str(flag).replace("-", "_")
        if name not in BY_NAME:
            raise InvalidConfigError(
                f"targets: {flag!r} of {place} is not a dimension; use "
                f"{', '.join(each.flag for each in BY_NAME.values())}"
            )
        read[name] = tuple(BY_NAME[name].read(value))
    return read


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured; the median is judged."""

    title: str
    at_least: bool
    bound: float
    measured: Spread
    passed: bool
    unit: str

    @classmethod
    def of(
        cls, title: str, measured: Spread, bound: float, *, at_least: bool, unit: str
    ) -> Verdict:
        """Judges the median."""
        passed = measured.median >= bound if at_least else measured.median <= bound
        return cls(title, at_least, bound, measured, passed, unit)

    @property
    def wanted(self) -> str:
        """The promise in words, such as `>= 5 x`."""
        return f"{'>=' if self.at_least else '<='} {self.bound:g} {self.unit}"

    @property
    def mark(self) -> str:
        """One word that can be looked for."""
        return "PASS" if self.passed else "**MISS**"


@dataclass(frozen=True, slots=True)
class CellVerdict:
    """The verdict on a cell by its number; `peer` is the number of the one it is measured by."""

    cell: int
    peer: int | None
    figure: str
    verdict: Verdict


def judge(
    targets: Sequence[Target], cells: Sequence[Cell], trials: Sequence[Trial], mode: Mode
) -> list[CellVerdict]:
    """The verdicts on all cells that targets mean; those without a figure are left out."""
    return [each for target in targets for each in _verdicts(target, cells, trials, mode)]


def _verdicts(
    target: Target, cells: Sequence[Cell], trials: Sequence[Trial], mode: Mode
) -> Iterator[CellVerdict]:
    numbers = {cell: number for number, cell in enumerate(cells)}
    names = varied(cells)
    metric = METRICS[target.figure]
    for number, cell in enumerate(cells):
        if not target.means(cell):
            continue
        if target.figure == cpu_figure("total") and not cell_figures(trials, number, _BROKER_CPU):
            # Of a cluster that the user named the broker's part is unknown: no sum is whole.
            continue
        other = target.other(cell, mode)
        peer = None if other is None else numbers.get(other)
        if other is None:
            values = list(cell_figures(trials, number, target.figure).values())
            unit = metric.title.rpartition(", ")[2] if ", " in metric.title else ""
        elif peer is None or peer == number:
            continue
        else:
            values, unit = cell_ratios(trials, number, peer, target.figure), "x"
        if values:
            against = ", ".join(
                str(value)
                if name == "consumer"
                else f"{BY_NAME[name].flag} {BY_NAME[name].text(value)}"
                for name, (value,) in target.against.items()
            )
            place = values_text(cell, names)
            title = f"{metric.title}{against and f' against {against}'}{place and f': {place}'}"
            yield CellVerdict(
                number,
                peer,
                target.figure,
                Verdict.of(
                    *(title, Spread.of(values), target.bound), at_least=target.at_least, unit=unit
                ),
            )


def verdict_rows(verdicts: Sequence[Verdict]) -> list[list[str]]:
    """A row for each verdict, under `VERDICT_HEAD`."""
    return [
        [
            verdict.title,
            verdict.wanted,
            spread_text(verdict.measured, ".2f", f" {verdict.unit}".rstrip()),
            verdict.mark,
        ]
        for verdict in verdicts
    ]


VERDICT_HEAD: Final = ("target", "wanted", "measured", "")


def verdict_table(verdicts: Sequence[Verdict]) -> str:
    """The verdicts as Markdown."""
    if not verdicts:
        return "None of them was measured."
    return markdown_table(VERDICT_HEAD, verdict_rows(verdicts))
