"""Queries of lanes and replays. Each runs inside one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, delete, select, update

from sharecoord.core.changes import PartitionKey, PartitionRow
from sharecoord.core.letters import lanes
from sharecoord.core.letters.lanes import (
    LaneChange,
    LaneState,
    Mark,
    Marking,
    Replayed,
    Selection,
    SelectionResult,
)
from sharecoord.core.spans import Span, covers
from sharecoord.store.book_entries import COLUMNS_OF_KIND, KEPT_PAYLOAD
from sharecoord.store.dialects import Dialect
from sharecoord.store.groups.groups import (
    change_group,
    ensure_group,
    open_and_lock,
    raise_group_epochs,
)
from sharecoord.store.hot.load import find_ranges
from sharecoord.store.hot.partitions import find_partitions, head_values
from sharecoord.store.row_codec import encode_config, encode_entries
from sharecoord.store.tables import BOOK_ENTRY, IN_FLIGHT, LETTER_MARK, SHARE_PARTITION

_P = SHARE_PARTITION.c
_F = IN_FLIGHT.c
_M = LETTER_MARK.c
_MARKS = select(*(_M[name] for name in Mark._fields))
_E = BOOK_ENTRY.c


def list_lanes(connection: Connection) -> list[PartitionRow]:
    """Lanes that have records to hand out."""
    is_open = _P.closed.is_(False), _P.start_offset < _P.stops_at
    return find_partitions(connection, _P.lane != "", *is_open)


def read_marks(
    connection: Connection, group_id: str, topic: str, topic_id: str, partition: int
) -> list[Mark]:
    """The marks of a dead-letter topic's partition, of all its lanes, in order."""
    query = (
        _MARKS.join(SHARE_PARTITION, _P.id == _M.partition_id)
        .where(_P.group_id == group_id, _P.topic == topic, _P.topic_id == topic_id)
        .where(_P.partition_index == partition, _P.lane != "")
    )
    return sorted(map(Mark._make, connection.execute(query)))


def take_in(
    connection: Connection, dialect: Dialect, selections: Sequence[Selection], marking: Marking
) -> list[SelectionResult]:
    """Marks selected letters, and for a redrive adds them to their lanes."""
    now_ms = dialect.now_ms(connection)
    found: dict[PartitionKey, SelectionResult] = {}
    for key, id_, change in _changes(connection, dialect, selections, marking):
        selection = next(each for each in selections if each.key == key)
        rate_limit = selection.rate_limit if change.upserted else None
        _write(connection, id_, change, rate_limit=rate_limit)
        if change.upserted and (kept := selection.kept_of(change.taken)):
            _forget_kept(connection, id_, change.taken)
            names = COLUMNS_OF_KIND[KEPT_PAYLOAD]
            values = encode_entries(KEPT_PAYLOAD, id_, kept)
            rows = [dict(zip(names, row, strict=True)) for row in values]
            connection.execute(BOOK_ENTRY.insert(), rows)
        marks = [
            {"partition_id": id_, **Mark(*run, str(marking.kind), marking.run_id, now_ms)._asdict()}
            for run in change.taken
        ]
        if marks:
            connection.execute(LETTER_MARK.insert(), marks)
        found[key] = SelectionResult(key, change.taken, change.marked, change.under_way)
    raise_group_epochs(connection, dialect, found)
    return [found[selection.key] for selection in selections]


def _changes(
    connection: Connection, dialect: Dialect, selections: Sequence[Selection], marking: Marking
) -> Iterable[tuple[PartitionKey, int, LaneChange]]:
    wanted = {selection.key: selection for selection in selections}
    assert len(wanted) == len(selections), "a lane stands twice in one transaction"
    ids, locked = open_and_lock(connection, dialect, list(wanted))
    for old in locked:
        key, id_ = ids[old["id"]], old["id"]
        state = _state(connection, id_)
        yield key, id_, lanes.take_in(state, wanted[key], marking, old["change_sequence"])


def _state(connection: Connection, id_: int) -> LaneState:
    (row,) = find_partitions(connection, _P.id == id_)
    marks = connection.execute(_MARKS.where(_M.partition_id == id_))
    return LaneState(row.head, find_ranges(connection, id_), sorted(map(Mark._make, marks)))


def _write(
    connection: Connection, id_: int, change: LaneChange, *, rate_limit: int | None = None
) -> None:
    """Writes a changed lane. Its state epoch rises, so the owner loads it anew."""
    gone = [*change.deleted, *(row.first_offset for row in change.upserted)]
    if gone:
        this = (_F.partition_id == id_, _F.first_offset == bindparam("the_first"))
        connection.execute(delete(IN_FLIGHT).where(*this), [{"the_first": at} for at in gone])
    if change.upserted:
        rows = [{"partition_id": id_, **row._asdict()} for row in change.upserted]
        connection.execute(IN_FLIGHT.insert(), rows)
    values: dict[str, Any] = head_values(change.head) | {"stops_at": change.stops_at}
    if rate_limit is not None:
        values["rate_limit"] = rate_limit
    epoch = _P.state_epoch + 1
    values |= {"closed": False, "stopped_reason": ""}
    # In this order: MySQL computes the second from what the first has just become.
    epochs = [(_P.replay_epoch, epoch)] * change.anew + [(_P.state_epoch, epoch)]
    connection.execute(
        update(SHARE_PARTITION).where(_P.id == id_).ordered_values(*epochs, *values.items())
    )


def withdraw(
    connection: Connection, dialect: Dialect, keys: Sequence[PartitionKey]
) -> list[SelectionResult]:
    """Takes letters that were never handed out back, with their marks."""
    ids, locked = open_and_lock(connection, dialect, keys)
    found: dict[PartitionKey, SelectionResult] = {}
    for old in locked:
        id_ = old["id"]
        state = _state(connection, id_)
        if state.head is None:
            found[ids[id_]] = SelectionResult(ids[id_], (), 0, 0)
            continue
        change = lanes.withdraw(state, old["change_sequence"])
        _write(connection, id_, change)
        _forget_kept(connection, id_, change.taken)
        _unmark(connection, id_, state.marks, change.taken)
        found[ids[id_]] = SelectionResult(ids[id_], change.taken, 0, 0)
    raise_group_epochs(connection, dialect, keys)
    return [found[key] for key in keys]


def _forget_kept(connection: Connection, id_: int, spans: Sequence[Span]) -> None:
    """Deletes kept payloads in these spans."""
    of_lane = (_E.kind == KEPT_PAYLOAD, _E.partition_id == id_)
    known = connection.execute(select(_E.record_offset).where(*of_lane)).scalars()
    gone = [at for at in known if covers(spans, at)]
    if gone:
        this = (*of_lane, _E.record_offset == bindparam("the_offset"))
        connection.execute(delete(BOOK_ENTRY).where(*this), [{"the_offset": at} for at in gone])


def _unmark(connection: Connection, id_: int, marks: Sequence[Mark], back: Sequence[Span]) -> None:
    connection.execute(delete(LETTER_MARK).where(_M.partition_id == id_))
    left = lanes.unmarked(marks, back)
    if left:
        values = [{"partition_id": id_, **mark._asdict()} for mark in left]
        connection.execute(LETTER_MARK.insert(), values)


def make_replay(
    connection: Connection,
    dialect: Dialect,
    parts: Sequence[Replayed],
    config: Mapping[str, str] | None,
) -> bool:
    """Makes the share-partitions of a replay; False = the group has others."""
    by_key = {part.key: part for part in parts}
    (group_id,) = {part.key.group_id for part in parts}
    ids, locked = open_and_lock(connection, dialect, list(by_key))
    if any(map(lanes.hinders_replay, find_partitions(connection, _P.group_id == group_id))):
        return False
    for old in locked:
        id_, part = old["id"], by_key[ids[old["id"]]]
        connection.execute(delete(IN_FLIGHT).where(_F.partition_id == id_))
        change = lanes.replay(part, old["change_sequence"])
        _write(connection, id_, change, rate_limit=part.rate_limit)
    ensure_group(connection, dialect, group_id)
    values = {} if config is None else {"config": encode_config(config)}
    change_group(connection, group_id, values)
    return True
