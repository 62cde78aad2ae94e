"""Figures, tables and JSON of all reports, and the folder that a result is written to."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from sharecoord.errors import InvalidConfigError

NONE: Final = "-"
"""Stands where a figure was not measured."""
RESULTS: Final = Path("bench-results")
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

    Each has the format `form`; `unit` stands directly after the median.
    """
    if spread is None:
        return NONE
    median, low, high = (format(value, form) for value in spread)
    return f"{median}{unit}" if low == high else f"{median}{unit} ({low}-{high})"


def figure_text(value: float | None, form: str) -> str:
    """The text of a figure; `-` when it was not measured."""
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


class PageMarks(NamedTuple):
    """The two lines of a page between which a command writes what it measured."""

    begin: str
    end: str

    def check(self, path: Path) -> str:
        """The text of a page with both marks; InvalidConfigError when they are not there once."""
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidConfigError(f"update: {path} can not be read: {error}") from error
        counts = text.count(self.begin), text.count(self.end)
        if counts != (1, 1) or text.index(self.begin) > text.index(self.end):
            raise InvalidConfigError(
                f"update: {path} has no place for the figures; put these two lines there once:\n"
                f"{self.begin}\n{self.end}"
            )
        return text

    def update(self, path: Path, tables: str) -> None:
        """Replaces the text between the marks; InvalidConfigError as of `check`."""
        text = self.check(path)
        before, after = text[: text.index(self.begin)], text[text.index(self.end) :]
        path.write_text(f"{before}{self.begin}\n\n{tables}\n{after}", encoding="utf-8")


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


def read_names(text: str | None, known: Iterable[str]) -> list[str]:
    """Names with commas between them; all that are known for None, else InvalidConfigError."""
    names = list(known)
    given = names if text is None else [part.strip() for part in text.split(",")]
    for name in given:
        if name not in names:
            raise InvalidConfigError(
                f"only: {name!r} is not measured; give some of {', '.join(names)}"
            )
    return given


def write_json(path: Path, values: Any) -> None:
    """Writes one JSON file of a result folder."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def write_result(directory: Path, summary: Any, machine: Any, report: str) -> None:
    """Writes `summary.json`, `machine.json` and `report.md` of a result."""
    write_json(directory / "summary.json", summary)
    write_json(directory / "machine.json", named_values(machine))
    (directory / "report.md").write_text(report, encoding="utf-8")


def output_directory(output: Path | None) -> Path:
    """Makes the folder of a result, so that a wrong path is refused before minutes of work.

    It is new or empty; without a name it is `bench-results/<time>`. InvalidConfigError: it can not
    be made, or has files in it.
    """
    directory = output or RESULTS / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    if directory.exists() and not directory.is_dir():
        raise InvalidConfigError(f"output: {directory} is a file; name a directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise InvalidConfigError(f"output: {directory} is not empty; name a new directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(f"output: {directory} can not be made: {error}") from error
    return directory
