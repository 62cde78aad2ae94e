"""Listings as a table, JSON or YAML, with the same stable keys in the last two."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

FORMATS: Final = ("table", "json", "yaml")
MISSING: Final = "-"
"""What Kafka's tools print for a value that is not there."""

Row = Mapping[str, Any]

_STEERS: Final = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""What JSON leaves as it is, and terminals do not."""


def _escaped(found: re.Match[str]) -> str:
    return f"\\u{ord(found.group()):04x}"


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its title in tables, its key in rows, JSON and YAML."""

    title: str
    key: str


@dataclass(frozen=True, slots=True)
class Output:
    """How a listing is printed."""

    format: str = "table"
    color: bool = True

    def show(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        """Prints rows on stdout; an empty table prints nothing, empty JSON and YAML `[]`."""
        plain = [{column.key: row.get(column.key) for column in columns} for row in rows]
        if self.format == "json":
            click.echo(_STEERS.sub(_escaped, json.dumps(plain, indent=2, ensure_ascii=False)))
        elif self.format == "yaml":
            import yaml

            text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
            if _STEERS.search(text):
                text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=False)
            click.echo(text, nl=False)
        elif rows:
            self._table(columns, plain)

    def _table(self, columns: Sequence[Column], rows: Sequence[Row]) -> None:
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        texts = [[cell(row[column.key]) for column in columns] for row in rows]
        width = 0
        for position, column in enumerate(columns):
            table.add_column(Text(column.title), no_wrap=True, overflow="ignore")
            width += max(map(cell_len, [column.title, *(line[position] for line in texts)])) + 2
        for line in texts:
            table.add_row(*map(Text, line))
        # As wide as it needs to be: a cut name can not be copied.
        console = Console(file=sys.stdout, width=width, no_color=not self.color)
        with console.capture() as capture:
            console.print(table)
        for line_text in capture.get().splitlines():
            click.echo(line_text.rstrip(), color=None if self.color else False)


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


def note(text: str) -> None:
    """Tells people something, on stderr, so that stdout stays data."""
    click.echo(text, err=True)
