"""Lanes and replays."""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, bindparam, delete, select, update

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
from sharecoord.store.groups.groups import change_group, ensure_group, raise_group_epochs
from sharecoord.store.groups.operations import open_and_lock
from sharecoord.store.hot.calls import SqlCalls, reading, writing
from sharecoord.store.hot.load import find_ranges
from sharecoord.store.hot.partitions import find_partitions
from sharecoord.store.row_codec import encode_config, encode_entries, head_values
from sharecoord.store.tables import BOOK_ENTRY, IN_FLIGHT, LETTER_MARK, SHARE_PARTITION

_P = SHARE_PARTITION.c
_F = IN_FLIGHT.c
_M = LETTER_MARK.c
_MARKS = select(*(_M[name] for name in Mark._fields))
_E = BOOK_ENTRY.c


class LaneCalls(SqlCalls):
    """Calls that deliver dead letters, or old records, again."""

    @reading
    def list_lanes(self, connection: Connection) -> list[PartitionRow]:
        is_open = _P.closed.is_(False), _P.start_offset < _P.stops_at
        return find_partitions(connection, _P.lane != "", *is_open)

    @reading
    def read_marks(
        self, connection: Connection, group_id: str, topic: str, topic_id: str, partition: int
    ) -> list[Mark]:
        query = (
            _MARKS.join(SHARE_PARTITION, _P.id == _M.partition_id)
            .where(_P.group_id == group_id, _P.topic == topic, _P.topic_id == topic_id)
            .where(_P.partition_index == partition, _P.lane != "")
        )
        return sorted(map(Mark._make, connection.execute(query)))

    @writing
    def take_in(
        self, connection: Connection, selections: Sequence[Selection], marking: Marking
    ) -> list[SelectionResult]:
        wanted = {selection.key: selection for selection in selections}
        assert len(wanted) == len(selections), "a lane stands twice in one transaction"
        now_ms = self._dialect.now_ms(connection)
        found: dict[PartitionKey, SelectionResult] = {}
        ids, locked = open_and_lock(connection, self._dialect, list(wanted))
        for old in locked:
            id_, key = old["id"], ids[old["id"]]
            state, selection = _state(connection, id_), wanted[key]
            change = lanes.take_in(state, selection, marking, old["change_sequence"])
            _write(connection, id_, change, selection.rate_limit if change.upserted else None)
            if change.upserted and (kept := selection.kept_of(change.taken)):
                _forget_kept(connection, id_, change.taken)
                names = COLUMNS_OF_KIND[KEPT_PAYLOAD]
                rows = encode_entries(KEPT_PAYLOAD, id_, kept)
                _insert(connection, BOOK_ENTRY, [dict(zip(names, r, strict=True)) for r in rows])
            kind, run_id = str(marking.kind), marking.run_id
            _mark(connection, id_, [Mark(*run, kind, run_id, now_ms) for run in change.taken])
            found[key] = SelectionResult(key, change.taken, change.marked, change.under_way)
        raise_group_epochs(connection, self._dialect, found)
        return [found[selection.key] for selection in selections]

    @writing
    def withdraw(
        self, connection: Connection, keys: Sequence[PartitionKey]
    ) -> list[SelectionResult]:
        back: dict[PartitionKey, tuple[Span, ...]] = {}
        ids, locked = open_and_lock(connection, self._dialect, keys)
        for old in locked:
            id_, state = old["id"], _state(connection, old["id"])
            if state.head is not None:
                change = lanes.withdraw(state, old["change_sequence"])
                back[ids[id_]] = change.taken
                _write(connection, id_, change)
                _forget_kept(connection, id_, change.taken)
                connection.execute(delete(LETTER_MARK).where(_M.partition_id == id_))
                _mark(connection, id_, lanes.unmarked(state.marks, change.taken))
        raise_group_epochs(connection, self._dialect, keys)
        return [SelectionResult(key, back.get(key, ()), 0, 0) for key in keys]

    @writing
    def make_replay(
        self,
        connection: Connection,
        parts: Sequence[Replayed],
        *,
        config: Mapping[str, str] | None = None,
    ) -> bool:
        by_key = {part.key: part for part in parts}
        (group_id,) = {part.key.group_id for part in parts}
        ids, locked = open_and_lock(connection, self._dialect, list(by_key))
        if any(map(lanes.hinders_replay, find_partitions(connection, _P.group_id == group_id))):
            return False
        for old in locked:
            id_, part = old["id"], by_key[ids[old["id"]]]
            connection.execute(delete(IN_FLIGHT).where(_F.partition_id == id_))
            _write(connection, id_, lanes.replay(part, old["change_sequence"]), part.rate_limit)
        ensure_group(connection, self._dialect, group_id)
        values = {} if config is None else {"config": encode_config(config)}
        change_group(connection, group_id, values)
        return True


def _state(connection: Connection, id_: int) -> LaneState:
    (row,) = find_partitions(connection, _P.id == id_)
    marks = connection.execute(_MARKS.where(_M.partition_id == id_))
    return LaneState(row.head, find_ranges(connection, id_), sorted(map(Mark._make, marks)))


def _write(
    connection: Connection, id_: int, change: LaneChange, rate_limit: int | None = None
) -> None:
    """Writes a changed lane. Its state epoch rises, so the owner loads it anew."""
    gone = [*change.deleted, *(row.first_offset for row in change.upserted)]
    if gone:
        this = (_F.partition_id == id_, _F.first_offset == bindparam("the_first"))
        connection.execute(delete(IN_FLIGHT).where(*this), [{"the_first": at} for at in gone])
    ranges = [{"partition_id": id_, **row._asdict()} for row in change.upserted]
    _insert(connection, IN_FLIGHT, ranges)
    values: dict[str, Any] = head_values(change.head) | {"stops_at": change.stops_at}
    values |= {"closed": False, "stopped_reason": ""}
    if rate_limit is not None:
        values["rate_limit"] = rate_limit
    epoch = _P.state_epoch + 1
    # In this order: MySQL computes the second from what the first has just become.
    epochs = [(_P.replay_epoch, epoch)] * change.anew + [(_P.state_epoch, epoch)]
    connection.execute(
        update(SHARE_PARTITION).where(_P.id == id_).ordered_values(*epochs, *values.items())
    )


def _forget_kept(connection: Connection, id_: int, spans: Sequence[Span]) -> None:
    """Deletes kept payloads in these spans."""
    of_lane = (_E.kind == KEPT_PAYLOAD, _E.partition_id == id_)
    known = connection.execute(select(_E.record_offset).where(*of_lane)).scalars()
    gone = [at for at in known if covers(spans, at)]
    if gone:
        this = (*of_lane, _E.record_offset == bindparam("the_offset"))
        connection.execute(delete(BOOK_ENTRY).where(*this), [{"the_offset": at} for at in gone])


def _mark(connection: Connection, id_: int, marks: Sequence[Mark]) -> None:
    _insert(connection, LETTER_MARK, [{"partition_id": id_, **mark._asdict()} for mark in marks])


def _insert(connection: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        connection.execute(table.insert(), rows)
