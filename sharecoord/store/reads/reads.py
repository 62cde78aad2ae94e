"""Reads for people: what share-partitions hold."""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

from sqlalchemy import Connection, case, func, select

from sharecoord.core.changes import DeadLetter, InFlightRow, PartitionRow
from sharecoord.core.states import RecordState
from sharecoord.ports import DELAYED
from sharecoord.store.book_entries import CHECKPOINT, DEAD_LETTER
from sharecoord.store.hot.calls import SqlCalls, reading
from sharecoord.store.hot.load import find_ranges
from sharecoord.store.hot.partitions import entries_of, find_partitions
from sharecoord.store.row_codec import decode_entry
from sharecoord.store.tables import BOOK_ENTRY, IN_FLIGHT, SHARE_PARTITION

_C = SHARE_PARTITION.c
_E = BOOK_ENTRY.c
_F = IN_FLIGHT.c


class ReadCalls(SqlCalls):
    """Calls that show the committed state of share-partitions."""

    @reading
    def list_outboxes(self, connection: Connection) -> list[PartitionRow]:
        is_waiting = _E.kept.is_(False) | (_E.sequence > 0)
        waiting = select(_E.partition_id).where(_E.kind == DEAD_LETTER, is_waiting)
        rows = find_partitions(connection, _C.id.in_(waiting))
        return sorted(rows, key=lambda row: row.partition_id)

    @reading
    def read_dead_letters(
        self, connection: Connection, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[DeadLetter]:
        query = entries_of((DEAD_LETTER,), [partition_id]).where(_E.record_offset >= from_offset)
        return [decode_entry(row) for row in connection.execute(query.limit(max_rows))]

    @reading
    def list_partitions(self, connection: Connection, group_id: str) -> list[PartitionRow]:
        rows = find_partitions(connection, _C.group_id == group_id)
        # Sorted here, because collations of databases differ.
        return sorted(rows, key=lambda row: (*row.key.place, row.partition_id))

    @reading
    def read_in_flight(
        self, connection: Connection, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[InFlightRow]:
        ends_behind = _F.last_offset >= from_offset
        return find_ranges(connection, partition_id, ends_behind, max_rows=max_rows)

    @reading
    def checkpoint_sizes(
        self, connection: Connection, partition_id: int, first: int, last: int
    ) -> dict[int, int]:
        sizes = _E.record_offset, func.length(_E.checkpoint)
        query = entries_of((CHECKPOINT,), [partition_id], sizes)
        rows = connection.execute(query.where(_E.record_offset.between(first, last)))
        return dict(map(tuple, rows))

    @reading
    def count_in_flight(self, connection: Connection, partition_id: int) -> dict[int, int]:
        now_ms = self._dialect.now_ms(connection)
        is_delayed = (_F.state == int(RecordState.AVAILABLE)) & (_F.available_at_ms > now_ms)
        # A column of a subquery: some databases do not accept an expression with parameters twice.
        counted = (
            select(
                case((is_delayed, DELAYED), else_=_F.state).label("state"),
                (_F.last_offset - _F.first_offset + 1).label("records"),
            )
            .where(_F.partition_id == partition_id)
            .subquery()
        )
        rows = connection.execute(
            select(counted.c.state, func.sum(counted.c.records)).group_by(counted.c.state)
        )
        return {int(state): int(records) for state, records in rows}
