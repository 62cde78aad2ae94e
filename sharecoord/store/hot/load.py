"""Ranges in flight of many share-partitions, read at once (a claim after a restart).

A full store has millions of rows, and as many Python objects would take minutes. But most of them
were cut from few batches and differ in their offsets alone. PostgreSQL groups them by all that is
equal, and gives lists of offsets. SQLite, which would have to sort for that, makes one row of a
whole share-partition: lists of first and last offsets, and a list of texts, each of which has all
other columns of one range; equal texts are decoded once. PyMySQL, itself in Python, gains nothing
from either: it reads rows.

Of many delayed ranges only those that are due first are read: a cut is the place of the last one.
Of the others only the offsets are read (`core.offset_set`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, or_, select

from sharecoord.core.changes import DelayedPlace, InFlight, InFlightRow, Parked
from sharecoord.core.offset_set import OffsetSet
from sharecoord.store.tables import IN_FLIGHT

State = tuple[Any, ...]
"""All fields of an `InFlightRow` behind its two offsets."""

_STATE_NAMES = InFlightRow._fields[2:]
_BYTES = "key_hashes"
_BYTES_AT = _STATE_NAMES.index(_BYTES)


_NO_CUT = DelayedPlace(2**63 - 1, 2**63 - 1)
_C = IN_FLIGHT.c

RANGES = select(*(_C[name] for name in InFlightRow._fields))
"""SELECT of ranges with the columns of `InFlightRow`."""


def find_ranges(
    connection: Connection, id_: int, *which: ColumnElement[bool], max_rows: int | None = None
) -> list[InFlightRow]:
    """Some ranges of a share-partition, in order of offset."""
    query = RANGES.where(_C.partition_id == id_, *which).order_by(_C.first_offset).limit(max_rows)
    return list(map(InFlightRow._make, connection.execute(query)))


def read_ranges(
    connection: Connection, ids: Sequence[int], cuts: Mapping[int, DelayedPlace]
) -> dict[int, InFlight]:
    """The ranges of share-partitions, by id; one without ranges may be missing.

    Args:
        connection: In a transaction.
        ids: Share-partitions.
        cuts: From `find_cuts`.
    """
    if not ids:
        return {}
    places = [(id_, cuts.get(id_, _NO_CUT)) for id_ in ids]
    readers = {"sqlite": _read_sqlite, "postgresql": _read_postgres}
    return readers.get(connection.dialect.name, _read_rows)(connection, places)


_Places = Sequence[tuple[int, DelayedPlace]]
"""Share-partitions, and up to where their delayed ranges are read."""


def _read_rows(connection: Connection, places: _Places) -> dict[int, InFlight]:
    whole = [id_ for id_, cut in places if cut is _NO_CUT]
    query = select(IN_FLIGHT).order_by(_C.partition_id, _C.first_offset)
    by_partition = groupby(
        connection.execute(query.where(_C.partition_id.in_(whole))), itemgetter(0)
    )
    found = {id_: InFlight.of(row[1:] for row in rows) for id_, rows in by_partition}
    for id_, cut in places:
        if cut is not _NO_CUT:
            some = query.where(_C.partition_id == id_, ~_is_behind(cut))
            found[id_] = InFlight.of(row[1:] for row in connection.execute(some))
    return found


# -- delayed ranges that are not read -------------------------------------------------------------


def find_cuts(connection: Connection, delayed_max: Mapping[int, int]) -> dict[int, DelayedPlace]:
    """Places of the last delayed ranges that are read, for share-partitions that have more.

    Args:
        connection: In a transaction.
        delayed_max: Most delayed ranges to read, by share-partition; absent = all of them.
    """
    if not delayed_max:
        return {}
    delayed = _C.available_at_ms > 0
    count = (
        select(_C.partition_id, func.count())
        .where(_C.partition_id.in_(delayed_max), delayed)
        .group_by(_C.partition_id)
    )
    cuts: dict[int, DelayedPlace] = {}
    for id_, ranges in connection.execute(count).all():
        if ranges > (wanted := delayed_max[id_]):
            place = select(_C.available_at_ms, _C.first_offset).where(
                _C.partition_id == id_, delayed
            )
            last = place.order_by(_C.available_at_ms, _C.first_offset).offset(wanted - 1).limit(1)
            cuts[id_] = DelayedPlace(*connection.execute(last).one())
    return cuts


def read_parked(connection: Connection, id_: int, cut: DelayedPlace) -> Parked:
    """The offsets of the delayed ranges behind a cut."""
    offsets = OffsetSet()
    query = select(_C.first_offset, _C.last_offset).where(
        _C.partition_id == id_, _C.available_at_ms > 0, _is_behind(cut)
    )
    for first, last in connection.execute(query):
        offsets.add(first, last)
    return Parked(offsets, cut)


def read_delayed(connection: Connection, id_: int, after: DelayedPlace, max_rows: int) -> InFlight:
    """See `ports.Store.read_delayed`."""
    query = (
        RANGES.where(_C.partition_id == id_, _C.available_at_ms > 0, _is_behind(after))
        .order_by(_C.available_at_ms, _C.first_offset)
        .limit(max_rows)
    )
    return InFlight.of(connection.execute(query).all())


def _is_behind(place: DelayedPlace) -> ColumnElement[bool]:
    at_ms, first = place
    # The first term is what an index is used for; databases do not take it from the second.
    return (_C.available_at_ms >= at_ms) & or_(_C.available_at_ms > at_ms, _C.first_offset > first)


# -- SQLite ---------------------------------------------------------------------------------------

_SQLITE_STATE = ", ".join(
    f"CASE WHEN {name} IS NULL THEN NULL ELSE hex({name}) END" if name == _BYTES else name
    for name in _STATE_NAMES
)
# JSON has no line break inside a text: they part the ranges.
_SQLITE = (
    "SELECT json_group_array(first_offset), json_group_array(last_offset), "
    f"group_concat(json_array({_SQLITE_STATE}), char(10)) FROM "
    "(SELECT * FROM in_flight WHERE partition_id = ? "
    "AND (available_at_ms, first_offset) <= (?, ?) ORDER BY first_offset)"
)


def _read_sqlite(connection: Connection, places: _Places) -> dict[int, InFlight]:
    driver: Any = connection.connection.driver_connection
    found: dict[int, InFlight] = {}
    for id_, cut in places:
        firsts, lasts, states = driver.execute(_SQLITE, (id_, *cut)).fetchone()
        if states is not None:
            texts = states.split("\n")
            decoded = {text: _of_json(text) for text in set(texts)}
            listed = list(map(decoded.__getitem__, texts))
            found[id_] = InFlight(json.loads(firsts), json.loads(lasts), listed)
    return found


def _of_json(text: str) -> State:
    fields = json.loads(text)
    if fields[_BYTES_AT] is not None:
        fields[_BYTES_AT] = bytes.fromhex(fields[_BYTES_AT])
    return tuple(fields)


# -- PostgreSQL -----------------------------------------------------------------------------------

_STATES = ", ".join(_STATE_NAMES)
_POSTGRES = (
    "SELECT v.id, f.* FROM unnest(%s::bigint[], %s::bigint[], %s::bigint[]) AS v(id, at, first) "
    f"CROSS JOIN LATERAL (SELECT array_agg(first_offset), array_agg(last_offset), {_STATES} "
    "FROM in_flight WHERE partition_id = v.id AND (available_at_ms, first_offset) <= "
    f"(v.at, v.first) GROUP BY {_STATES}) f"
)


def _read_postgres(connection: Connection, places: _Places) -> dict[int, InFlight]:
    driver: Any = connection.connection.driver_connection
    found: dict[int, tuple[list[int], list[int], list[State]]] = {}
    ids, times, offsets = zip(*((id_, *cut) for id_, cut in places), strict=True)
    values = [list(ids), list(times), list(offsets)]
    for id_, firsts, lasts, *state in driver.cursor().execute(_POSTGRES, values):
        columns = found.setdefault(id_, ([], [], []))
        columns[0].extend(firsts)
        columns[1].extend(lasts)
        columns[2].extend([tuple(state)] * len(firsts))
    return {id_: _in_order(*columns) for id_, columns in found.items()}


def _in_order(firsts: list[int], lasts: list[int], states: list[State]) -> InFlight:
    """Sorts the ranges of a share-partition, which came state by state, by offset."""
    order = sorted(range(len(firsts)), key=firsts.__getitem__)
    return InFlight(
        list(map(firsts.__getitem__, order)),
        list(map(lasts.__getitem__, order)),
        list(map(states.__getitem__, order)),
    )
