"""Ranges in flight of many share-partitions, read at once (a claim after a restart).

A full store has millions of rows, and as many Python objects would take minutes. But most of them
were cut from few batches and differ in their offsets alone. PostgreSQL groups them by all that is
equal, and gives lists of offsets. SQLite, which would have to sort for that, makes one row of a
whole share-partition: lists of first and last offsets, and a list of texts, each of which has all
other columns of one range; equal texts are decoded once. PyMySQL, itself in Python, gains nothing
from either: it reads rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import Connection, select

from sharecoord.core.changes import InFlight, InFlightRow
from sharecoord.store.tables import IN_FLIGHT

State = tuple[Any, ...]
"""All fields of an `InFlightRow` behind its two offsets."""

_STATE_NAMES = InFlightRow._fields[2:]
_BYTES = "key_hashes"


def read_ranges(connection: Connection, ids: Sequence[int]) -> dict[int, InFlight]:
    """The ranges of share-partitions, by id; one without ranges may be missing.

    Args:
        connection: In a transaction.
        ids: Share-partitions.
    """
    if not ids:
        return {}
    readers = {"sqlite": _read_sqlite, "postgresql": _read_postgres}
    return readers.get(connection.dialect.name, _read_rows)(connection, ids)


def _read_rows(connection: Connection, ids: Sequence[int]) -> dict[int, InFlight]:
    columns = IN_FLIGHT.c
    query = (
        select(IN_FLIGHT)
        .where(columns.partition_id.in_(ids))
        .order_by(columns.partition_id, columns.first_offset)
    )
    by_partition = groupby(connection.execute(query), itemgetter(0))
    return {id_: InFlight.of(row[1:] for row in rows) for id_, rows in by_partition}


# -- SQLite ---------------------------------------------------------------------------------------

_SQLITE_STATE = ", ".join(
    f"CASE WHEN {name} IS NULL THEN NULL ELSE hex({name}) END" if name == _BYTES else name
    for name in _STATE_NAMES
)
# JSON has no line break inside a text: they part the ranges.
_SQLITE = (
    "SELECT json_group_array(first_offset), json_group_array(last_offset), "
    f"group_concat(json_array({_SQLITE_STATE}), char(10)) FROM "
    "(SELECT * FROM in_flight WHERE partition_id = ? ORDER BY first_offset)"
)


def _read_sqlite(connection: Connection, ids: Sequence[int]) -> dict[int, InFlight]:
    driver: Any = connection.connection.driver_connection
    found: dict[int, InFlight] = {}
    for id_ in ids:
        firsts, lasts, states = driver.execute(_SQLITE, (id_,)).fetchone()
        if states is not None:
            texts = states.split("\n")
            decoded = {text: _of_json(text) for text in set(texts)}
            listed = list(map(decoded.__getitem__, texts))
            found[id_] = InFlight(json.loads(firsts), json.loads(lasts), listed)
    return found


def _of_json(text: str) -> State:
    *fields, hashes = json.loads(text)
    return (*fields, None if hashes is None else bytes.fromhex(hashes))


# -- PostgreSQL -----------------------------------------------------------------------------------

_STATES = ", ".join(_STATE_NAMES)
_POSTGRES = (
    "SELECT v.id, f.* FROM unnest(%s::bigint[]) AS v(id) CROSS JOIN LATERAL (SELECT "
    f"array_agg(first_offset), array_agg(last_offset), {_STATES} FROM in_flight "
    f"WHERE partition_id = v.id GROUP BY {_STATES}) f"
)


def _read_postgres(connection: Connection, ids: Sequence[int]) -> dict[int, InFlight]:
    driver: Any = connection.connection.driver_connection
    found: dict[int, tuple[list[int], list[int], list[State]]] = {}
    for id_, firsts, lasts, *state in driver.cursor().execute(_POSTGRES, (list(ids),)):
        columns = found.setdefault(id_, ([], [], []))
        columns[0].extend(firsts)
        columns[1].extend(lasts)
        columns[2].extend([tuple(state)] * len(firsts))
    return {id_: _in_order(*columns) for id_, columns in found.items()}


def _in_order(firsts: list[int], lasts: list[int], states: list[State]) -> InFlight:
    """One share-partition, whose ranges came state by state."""
    order = sorted(range(len(firsts)), key=firsts.__getitem__)
    return InFlight(
        list(map(firsts.__getitem__, order)),
        list(map(lasts.__getitem__, order)),
        list(map(states.__getitem__, order)),
    )
