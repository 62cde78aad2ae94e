"""Listings as a table, JSON or YAML, with the same stable keys in the last two."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import click

FORMATS: Final = ("table", "json", "yaml")
HEX: Final = "hex:"
"""Begins a key, value or header that is no text and is written in hexadecimal digits."""
MISSING: Final = "-"
"""Kafka's tools print this for a value that is not there."""

Row = Mapping[str, Any]

COLUMN_WIDTH_MAX: Final = 60
"""Widest column. No cell is cut, because a cut name can not be copied; a longer cell moves the rest
of its own line to the right, and leaves all other lines as they are."""

_STEERS: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that steer a terminal and that JSON does not escape."""


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a listing."""

    title: str
    """Its name in tables."""
    key: str
    """Its name in JSON and YAML."""
    value: str | Callable[[Any], Any] = ""
    """Gives the value of an item: a function, or the name of the item's attribute or entry; "" =
    `key` is that name."""

    def of(self, item: Any) -> Any:
        """The value of an item."""
        if callable(self.value):
            return self.value(item)
        name = self.value or self.key
        return item.get(name) if isinstance(item, Mapping) else getattr(item, name)


def columns(*parts: str | Column, separator: str = "-") -> tuple[Column, ...]:
    """Columns by their keys, from which the titles are made: `first_offset` is FIRST-OFFSET.

    Args:
        parts: Texts with keys between spaces, `key=name` where the item's attribute has another
            name; and columns.
        separator: Stands for `_` in titles.
    """
    found: list[Column] = []
    for part in parts:
        if isinstance(part, Column):
            found.append(part)
            continue
        for word in part.split():
            key, _, name = word.partition("=")
            found.append(Column(key.upper().replace("_", separator), key, name))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Output:
    """How a listing is printed."""

    format: str = "table"
    color: bool = True

    def show(self, columns: Sequence[Column], items: Iterable[Any]) -> None:
        """Prints items on stdout; an empty table prints nothing, empty JSON and YAML `[]`."""
        plain = [{column.key: column.of(item) for column in columns} for item in items]
        if self.format == "json":
            click.echo(_STEERS.sub(_escaped, json.dumps(plain, indent=2, ensure_ascii=False)))
        elif self.format == "yaml":
            import yaml

            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
            if _STEERS.search(text):
                text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)
            click.echo(text, nl=False)
        elif plain:
            self._table(columns, plain)

    def _table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        from rich.cells import cell_len

        texts = [[cell(row[column.key]) for column in columns] for row in rows]
        widths = [
            max(cell_len(title), *(n for n in map(cell_len, below) if n <= COLUMN_WIDTH_MAX), 0)
            for title, *below in zip([column.title for column in columns], *texts, strict=True)
        ]

        def line_of(cells: Sequence[str]) -> str:
            padded = zip(cells, widths, strict=True)
            return "  ".join(text + " " * (width - cell_len(text)) for text, width in padded)

        color = None if self.color else False
        title = line_of([column.title for column in columns]).rstrip()
        click.echo(click.style(title, bold=True), color=color)
        for line in texts:
            click.echo(line_of(line).rstrip(), color=color)


def cell(value: object) -> str:
    """A value as the text of a cell."""
    if value is None or value == "":
        return MISSING
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, Mapping):
        parts = (f"{name}:{','.join(map(str, numbers))}" for name, numbers in value.items())
        return ";".join(parts) or MISSING
    return printable(str(value))


def printable(text: str) -> str:
    """The text without characters that would steer the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def iso_time(at_ms: int) -> str | None:
    """A time in ISO 8601, UTC; None for 0 or less, which is not known."""
    if at_ms <= 0:
        return None
    try:
        return datetime.fromtimestamp(at_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):
        return f"{at_ms} ms"


def note(text: str) -> None:
    """Prints a text for people on stderr, so that stdout has data only."""
    click.echo(text, err=True)


def shown(content: bytes | None) -> str | None:
    """A key, value or header as text; in hexadecimal if it is no text or steers the terminal."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return HEX + content.hex()
    if text.startswith(HEX) or not all(c.isprintable() or c in "\t\n\r" for c in text):
        return HEX + content.hex()
    return text


def parse_content(option: str, text: str) -> bytes:
    """Reads the text of `shown`; refuses `hex:` without pairs of hexadecimal digits."""
    if not text.startswith(HEX):
        return text.encode()
    try:
        return bytes.fromhex(text.removeprefix(HEX))
    except ValueError:
        raise click.UsageError(
            f"{option} {text}: behind {HEX} stand pairs of hexadecimal digits, such as {HEX}00ff."
        ) from None
