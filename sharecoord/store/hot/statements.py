"""Statements of the commit path, compiled once per database.

Built in SQLAlchemy Core, so that one text serves every dialect, and run by `exec_driver_sql`:
compiling or even looking up a compiled statement would cost more than SQLite's own work. The order
of their parameters is checked when they are compiled. Over a network what counts is the number of
round trips: `server_statements` replaces some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Table,
    Update,
    bindparam,
    case,
    delete,
    exists,
    literal_column,
    select,
    update,
)
from sqlalchemy.engine import Dialect as CoreDialect
from sqlalchemy.sql import Executable

from sharecoord.core.changes import InFlightRow
from sharecoord.store.book_entries import COLUMNS_OF_KIND, ENTRY_KEYS
from sharecoord.store.dialects import Dialect
from sharecoord.store.row_codec import HEAD_COLUMNS
from sharecoord.store.tables import BOOK_ENTRY, COORDINATOR, IN_FLIGHT, MEMBER, SHARE_PARTITION

IDS_PER_SELECT_MAX = 512
"""Most share-partitions whose epochs one statement reads."""


Rows = Sequence[tuple[Any, ...]]
"""Rows of parameters; a method takes no empty ones unless it says so."""

FLIGHT_KEYS = ("partition_id", "first_offset")


class Statements:
    """SQL text in the driver's own parameter style, all parameters by position."""

    def __init__(self, dialect: Dialect, core: CoreDialect) -> None:
        self._core = core
        self._lock_epochs: dict[int, str] = {}
        part, flight, entry, member = SHARE_PARTITION, IN_FLIGHT, BOOK_ENTRY, MEMBER
        self._update_head = self._compile(
            update(part)
            .where(part.c.id == bindparam("the_id"))
            .values({name: bindparam(name) for name in HEAD_COLUMNS}),
            (*HEAD_COLUMNS, "the_id"),
        )
        self._raise_state_epoch = self._compile(_raise_state_epoch(part), ("the_id",))
        self._pass_over = self._compile(
            update(part)
            .where(part.c.id == bindparam("the_id"))
            .values(state_epoch=bindparam("epoch"), passed_over=bindparam("ranges")),
            ("epoch", "ranges", "the_id"),
        )
        self._delete_in_flight = self._compile(
            delete(flight).where(*(flight.c[key] == bindparam(key) for key in FLIGHT_KEYS)),
            FLIGHT_KEYS,
        )
        assert flight.columns.keys() == ["partition_id", *InFlightRow._fields]
        self._upsert_in_flight = self._compile(
            dialect.upsert(flight, keys=FLIGHT_KEYS), flight.columns.keys()
        )
        begins_at = flight.c.first_offset >= bindparam("offset")
        of_one = flight.c.partition_id == bindparam("the_id")
        self._delete_from = self._compile(
            delete(flight).where(of_one, begins_at), ("the_id", "offset")
        )
        self._shorten = self._compile(
            update(flight)
            .where(of_one, flight.c.last_offset > bindparam("last"))
            .values(last_offset=bindparam("new_last")),
            ("new_last", "the_id", "last"),
        )
        self._delete_entry = self._compile(
            delete(entry).where(*(entry.c[key] == bindparam(key) for key in ENTRY_KEYS)), ENTRY_KEYS
        )
        self._upsert_entry = {
            kind: self._compile(dialect.upsert(entry, keys=ENTRY_KEYS, columns=names), names, names)
            for kind, names in COLUMNS_OF_KIND.items()
        }
        member_keys = ("group_id", "member_id")
        alive = exists().where(
            COORDINATOR.c.id == member.c.gateway,
            COORDINATOR.c.id != bindparam("me"),
            COORDINATOR.c.lease_until_ms >= bindparam("now_ms"),
        )
        self._delete_member = self._compile(
            delete(member).where(
                *(member.c[key] == bindparam(key) for key in member_keys),
                member.c.member_epoch <= bindparam("member_epoch"),
                ~alive,
            ),
            (*member_keys, "member_epoch", "me", "now_ms"),
        )

    def _run(self, connection: Connection, sql: str, rows: Rows) -> None:
        """Runs a statement once for each row of parameters; nothing of it is read."""
        connection.exec_driver_sql(sql, rows)

    def write_ranges(
        self, connection: Connection, heads: Rows, deleted: Rows, upserted: Rows
    ) -> None:
        """Heads of partitions, then ranges that go, then ranges that are new or replaced.

        Args:
            connection: In a transaction that has locked the partitions.
            heads: `HEAD_COLUMNS`, partition id; may be empty.
            deleted: `FLIGHT_KEYS`; may be empty.
            upserted: All columns, no key twice, none of `deleted`; may be empty.
        """
        if heads:
            connection.exec_driver_sql(self._update_head, heads)
        if deleted:
            connection.exec_driver_sql(self._delete_in_flight, deleted)
        if upserted:
            connection.exec_driver_sql(self._upsert_in_flight, upserted)

    def truncate_ranges(self, connection: Connection, partition_id: int, offset: int) -> None:
        """Takes [offset, …) out of all ranges of a share-partition."""
        self._run(connection, self._delete_from, [(partition_id, offset)])
        self._run(connection, self._shorten, [(offset - 1, partition_id, offset - 1)])

    def raise_state_epochs(self, connection: Connection, rows: Rows) -> None:
        """Rows: partition id."""
        self._run(connection, self._raise_state_epoch, rows)

    def pass_over(self, connection: Connection, rows: Rows) -> None:
        """Rows: state epoch, ranges that are passed over, partition id."""
        self._run(connection, self._pass_over, rows)

    def delete_entries(self, connection: Connection, rows: Rows) -> None:
        """Rows: `ENTRY_KEYS`."""
        self._run(connection, self._delete_entry, rows)

    def upsert_entries(self, connection: Connection, kind: str, rows: Rows) -> None:
        """Rows: the columns of the kind, in the order of `COLUMNS_OF_KIND`."""
        self._run(connection, self._upsert_entry[kind], rows)

    def delete_members(self, connection: Connection, rows: Rows) -> None:
        """A row with a newer epoch stays, and one whose gateway is another coordinator that lives.

        Rows: group id, member id, member epoch, this coordinator's id, the store's clock.
        """
        self._run(connection, self._delete_member, rows)

    def read_epochs(self, connection: Connection, ids: Sequence[int]) -> list[Sequence[Any]]:
        """Locks the rows in order of id and reads (id, owner epoch, state epoch) of each."""
        ids = sorted(ids)
        rows: list[Sequence[Any]] = []
        for start in range(0, len(ids), IDS_PER_SELECT_MAX):
            some = ids[start : start + IDS_PER_SELECT_MAX]
            # Few lengths, so few statements: filled up with the last id.
            length = 1 << (len(some) - 1).bit_length()
            some.extend(some[-1:] * (length - len(some)))
            rows.extend(connection.exec_driver_sql(self._lock_epochs_of(length), tuple(some)))
        return rows

    def _lock_epochs_of(self, length: int) -> str:
        text = self._lock_epochs.get(length)
        if text is None:
            names = [f"id_{index}" for index in range(length)]
            part = SHARE_PARTITION
            text = self._lock_epochs[length] = self._compile(
                select(part.c.id, part.c.owner_epoch, part.c.state_epoch)
                .where(part.c.id.in_([bindparam(name) for name in names]))
                .order_by(part.c.id)
                .with_for_update(),
                names,
            )
        return text

    def _compile(
        self,
        statement: Executable,
        parameters: Sequence[str],
        columns: Sequence[str] | None = None,
    ) -> str:
        """Text of a statement; `columns` are those of an INSERT that does not have all."""
        compiled: Any = statement.compile(  # type: ignore[attr-defined]
            dialect=self._core, column_keys=columns
        )
        assert list(compiled.positiontup) == list(parameters), compiled.positiontup
        return str(compiled)


def _raise_state_epoch(part: Table) -> Update:
    """UPDATE that raises the state epoch: records behind a truncation are part of no replay."""
    raised = part.c.state_epoch + literal_column("1")
    end = case((part.c.stops_at > part.c.end_offset, part.c.end_offset), else_=part.c.stops_at)
    return (
        update(part)
        .where(part.c.id == bindparam("the_id"))
        # In this order: MySQL computes the second from what the first has just become.
        .ordered_values(
            (part.c.replay_epoch, raised), (part.c.state_epoch, raised), (part.c.stops_at, end)
        )
    )
