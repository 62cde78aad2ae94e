"""Raw rows: values as the driver gives them, checked against their table, and as JSON.

Nothing here trusts what it reads: a column may hold what no coordinator wrote.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, Table, select, type_coerce
from sqlalchemy.types import NullType

from sharecoord.store.tables import BOOK_ENTRY

Row = tuple[Any, ...]
"""The values of a row in the order of its table's columns."""

_KINDS: dict[type, str] = {int: "an integer", str: "text", bytes: "bytes", bool: "0 or 1"}


def rows_at_once(table: Table) -> int:
    """How many rows of a table may be in memory together: few, when they may hold payloads."""
    has_bytes = any(column.type.python_type is bytes for column in table.columns)
    return 50 if has_bytes else 1_000


@contextlib.contextmanager
def stored_rows(connection: Connection, table: Table) -> Iterator[Iterator[Row]]:
    """All rows in order of their primary key, as the driver gives them.

    Rows are fetched while they are read. A caller that stops before the end has to leave the
    block: until then some servers answer nothing else.
    """
    # Without a type nothing is converted, so that a damaged value can be named.
    columns = [type_coerce(column, NullType()).label(column.name) for column in table.columns]
    query = select(*columns).order_by(*table.primary_key.columns)
    with connection.execute(query, execution_options={"yield_per": rows_at_once(table)}) as found:
        yield map(tuple, found)


def name_of(table: Table, row: Sequence[Any]) -> str:
    """The primary key of a row, for people: `partition_id=7 first_offset=120`."""
    values = zip(table.columns, row, strict=True)
    return " ".join(f"{column.name}={value}" for column, value in values if column.primary_key)


class _Rule(NamedTuple):
    """Values that a column may hold."""

    name: str
    kind: type
    nullable: bool
    integer_max: int
    length_max: int | None


@functools.lru_cache(maxsize=64)
def _rules(table: Table, kind: str = "") -> tuple[_Rule, ...]:
    """The rule of each column, in `book_entry` for entries of a kind."""
    return tuple(
        _Rule(
            str(column.name),
            column.type.python_type,
            bool(column.nullable) and kind not in column.info.get("kinds", ()),
            (1 << (63 if isinstance(column.type, BigInteger) else 31)) - 1,
            getattr(column.type, "length", None),
        )
        for column in table.columns
    )


def problems_of(table: Table, row: Sequence[Any]) -> list[str]:
    """Problems with the types of a row's values; [] = none."""
    kind = str(row[0]) if table is BOOK_ENTRY else ""
    found = []
    for rule, value in zip(_rules(table, kind), row, strict=True):
        problem = _problem_of(rule, value)
        if problem:
            found.append(f"{rule.name} {problem}")
    return found


def _problem_of(rule: _Rule, value: Any) -> str:
    if value is None:
        return "" if rule.nullable else "is missing"
    kind = rule.kind
    # Databases without booleans have 0 and 1.
    fits = type(value) is kind or (kind is bool and type(value) is int and value in (0, 1))
    if not fits:
        return f"is {type(value).__name__} {_short(value)}, not {_KINDS[kind]}"
    if kind is int and not -rule.integer_max - 1 <= value <= rule.integer_max:
        return f"is {value}, too large for its column"
    if kind is str and rule.length_max is not None and len(value) > rule.length_max:
        return f"has {len(value)} characters; {rule.length_max} is the most"
    return ""


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


# -- JSON -----------------------------------------------------------------------------------------


def to_json(table: Table, row: Sequence[Any]) -> str:
    """A JSON array; bytes as {"base64": ...}, booleans as such."""
    values = zip(_rules(table), row, strict=True)
    return _ENCODER.encode([bool(v) if r.kind is bool and v is not None else v for r, v in values])


def _encoded(value: object) -> object:
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode("ascii")}
    raise TypeError(f"{type(value).__name__} is in no row")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=_encoded)


def from_json(table: Table, parsed: object, added: Sequence[object] = ()) -> Row:
    """The inverse of `to_json`.

    Args:
        table: The table that the row is of.
        parsed: What the JSON says.
        added: Values of the last columns, where an older schema did not have these.

    Raises:
        ValueError: Not a row of this table; the text says why.
    """
    length = len(table.columns) - len(added)
    if not isinstance(parsed, list) or len(parsed) != length:
        raise ValueError(f"not a list of {length} values")
    row = (*map(_decoded, parsed), *added)
    problems = problems_of(table, row)
    if problems:
        raise ValueError(", ".join(problems))
    return row


def _decoded(value: object) -> object:
    if isinstance(value, Mapping):
        text = value.get("base64")
        if len(value) != 1 or not isinstance(text, str):
            raise ValueError("an object that is not base64")
        return base64.b64decode(text, validate=True)
    return value
