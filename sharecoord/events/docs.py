"""Writes the tables of docs/events.md from the event log's schema.

`python -m sharecoord.events.docs` writes the part between the two marks, `--check` says whether it
is current.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

from sharecoord.config.docs import between, table, write_or_check
from sharecoord.eventlog import schema as events
from sharecoord.eventlog.schema import COLUMNS, SCHEMA_VERSION, EventKind, GroupEvent, RangeEvent

DEFAULT_OUTPUT: Final = Path(__file__).resolve().parents[2] / "docs" / "events.md"
BEGIN: Final = "<!-- from sharecoord/eventlog/schema.py by `python -m sharecoord.events.docs` -->"
END: Final = "<!-- end -->"

_ALL: Final = tuple(EventKind)


def render() -> str:
    """The tables, without the marks."""
    parts = [f"Schema version {SCHEMA_VERSION}.\n"]
    parts.append(table("Column | Type | Rows | Meaning", map(_column_row, COLUMNS)))
    for title, kind in (
        ("`kind`", EventKind),
        ("`event` of a range", RangeEvent),
        ("`event` of a group", GroupEvent),
    ):
        parts.append(f"{title}:\n")
        parts.append(table("Value | Meaning", (list(pair) for pair in _meanings(kind))))
    return "\n".join(parts)


def _column_row(column: events.Column) -> list[str]:
    kinds = "all" if column.kinds == _ALL else ", ".join(column.kinds)
    return [f"`{column.name}`", column.type.value, kinds, column.meaning]


def _meanings(kind: type[StrEnum]) -> Iterator[tuple[str, str]]:
    """Values, and the texts that stand below them in the source."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    for node, below in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.Assign):
            text = ""
            if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                text = str(below.value.value)
            yield f"`{ast.literal_eval(node.value)}`", " ".join(text.split())


def filled(text: str) -> str:
    """The document with current tables.

    Raises:
        ValueError: The marks are not in it.
    """
    return between(text, BEGIN, END, render())


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the tables of docs/events.md; see `write_or_check`."""
    return write_or_check("sharecoord.events.docs", DEFAULT_OUTPUT, filled, arguments)


if __name__ == "__main__":
    sys.exit(main())
