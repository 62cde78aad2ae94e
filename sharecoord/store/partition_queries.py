"""Share-partitions: open, claim, initialise, give up, read. Each runs inside one transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, case, exists, func, or_, select, update

from sharecoord.core.changes import (
    InFlightRow,
    LoadedPartition,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.states import RecordState
from sharecoord.store.dialects import Dialect
from sharecoord.store.row_codec import (
    PARTITION_COLUMNS,
    decode_dead_letter,
    decode_in_flight,
    decode_partition,
)
from sharecoord.store.statements import Statements
from sharecoord.store.tables import COORDINATOR, DEAD_LETTER, IN_FLIGHT, SHARE_PARTITION, STORE_META

DELAYED = -1
"""Where `count_in_flight` counts AVAILABLE records that are not due."""

EPOCH_FLOOR = "epoch_floor"
"""Name in store_meta: no row made from now on may start below this epoch (see `raise_floor`)."""

_PARTITION = select(*(SHARE_PARTITION.c[name] for name in PARTITION_COLUMNS))
_C = SHARE_PARTITION.c


def _is_key(key: PartitionKey) -> ColumnElement[bool]:
    return (
        (_C.group_id == key.group_id)
        & (_C.topic == key.topic)
        & (_C.topic_id == key.topic_id)
        & (_C.partition_index == key.partition)
    )


def open_partition(connection: Connection, dialect: Dialect, key: PartitionKey) -> PartitionRow:
    """The row of `key`, made when it is missing."""
    query = _PARTITION.where(_is_key(key))
    row = connection.execute(query).one_or_none()
    if row is None:
        # Read after the look-up: who deleted the row before has raised the floor by then.
        floor = read_floor(connection)
        values = {
            "group_id": key.group_id,
            "topic": key.topic,
            "topic_id": key.topic_id,
            "partition_index": key.partition,
            "change_sequence": 0,
            "owner_epoch": floor,
            "incarnation": 0,
            "state_epoch": floor,
            "closed": False,
            "stopped_reason": "",
        }
        connection.execute(dialect.insert_or_ignore(SHARE_PARTITION), values)
        row = connection.execute(query).one()
    return decode_partition(row)


def claim(
    connection: Connection,
    dialect: Dialect,
    *,
    partition_id: int,
    coordinator_id: str,
    incarnation: int,
    previous_incarnation: int | None,
) -> int | None:
    """Raises the owner epoch when the claim is allowed; returns the store's clock, None = fenced.

    A reload also matches its own new incarnation: the same claim, made again because its outcome
    was not known, succeeds although the first one had been committed.
    """
    allowed: ColumnElement[bool]
    if previous_incarnation is None:
        now_ms = dialect.now_ms(connection)
        lives = exists().where(COORDINATOR.c.id == _C.owner, COORDINATOR.c.lease_until_ms >= now_ms)
        allowed = or_(_C.owner.is_(None), _C.owner == coordinator_id, ~lives)
    else:
        # Incarnations are numbers of one process: the owner must be this one, too.
        allowed = (_C.owner == coordinator_id) & _C.incarnation.in_(
            (previous_incarnation, incarnation)
        )
    done = connection.execute(
        update(SHARE_PARTITION)
        .where(_C.id == partition_id, allowed)
        .values(owner=coordinator_id, owner_epoch=_C.owner_epoch + 1, incarnation=incarnation)
    )
    # After the UPDATE, which may have waited.
    return dialect.now_ms(connection) if done.rowcount else None


def load_partition(
    connection: Connection, statements: Statements, *, partition_id: int, now_ms: int
) -> LoadedPartition:
    """Reads everything that an owner needs; the row must exist."""
    row = connection.execute(_PARTITION.where(_C.id == partition_id)).one()
    in_flight = connection.exec_driver_sql(statements.select_in_flight, (partition_id,))
    letters = connection.execute(
        select(*list(DEAD_LETTER.columns)[1:])
        .where(DEAD_LETTER.c.partition_id == partition_id)
        .order_by(DEAD_LETTER.c.record_offset)
    )
    return LoadedPartition(
        row=decode_partition(row),
        in_flight=tuple(decode_in_flight(in_flight.all())),
        dead_letters=tuple(decode_dead_letter(letter) for letter in letters),
        store_now_ms=now_ms,
    )


def initialize_partition(
    connection: Connection, *, partition_id: int, owner_epoch: int, head: PartitionHead
) -> bool:
    """Writes the head of an uninitialised partition; False = fenced."""
    stored = connection.execute(
        select(_C.owner_epoch, _C.start_offset).where(_C.id == partition_id).with_for_update()
    ).one_or_none()
    if stored is None or stored[0] != owner_epoch:
        return False
    if stored[1] is None:
        connection.execute(
            update(SHARE_PARTITION).where(_C.id == partition_id).values(**head_values(head))
        )
    return True


def head_values(head: PartitionHead | None) -> dict[str, int | None]:
    """Column values of a head; None = not initialised, whose change sequence stays."""
    if head is None:
        names = ("start_offset", "end_offset", "end_leader_epoch", "finished_count")
        return dict.fromkeys(names)
    return {
        "start_offset": head.start_offset,
        "end_offset": head.end_offset,
        "end_leader_epoch": head.end_leader_epoch,
        "finished_count": head.finished_count,
        "change_sequence": head.change_sequence,
    }


def change_as_owner(
    connection: Connection, *, partition_id: int, owner_epoch: int, values: dict[str, Any]
) -> None:
    """Changes columns of a partition unless a newer owner has it."""
    connection.execute(
        update(SHARE_PARTITION)
        .where(_C.id == partition_id, _C.owner_epoch == owner_epoch)
        .values(**values)
    )


def list_partitions(connection: Connection, group_id: str) -> list[PartitionRow]:
    """By topic, partition and age; sorted here, because collations of databases differ."""
    rows = connection.execute(_PARTITION.where(_C.group_id == group_id))
    return sorted(
        map(decode_partition, rows),
        key=lambda row: (row.key.topic, row.key.partition, row.partition_id),
    )


def read_in_flight(
    connection: Connection, *, partition_id: int, from_offset: int, max_rows: int
) -> list[InFlightRow]:
    """Ranges that end at `from_offset` or later, in order."""
    flight = IN_FLIGHT.c
    rows = connection.execute(
        select(*list(IN_FLIGHT.columns)[1:])
        .where(flight.partition_id == partition_id, flight.last_offset >= from_offset)
        .order_by(flight.first_offset)
        .limit(max_rows)
    )
    return decode_in_flight(rows.all())


def count_in_flight(
    connection: Connection, dialect: Dialect, *, partition_id: int
) -> dict[int, int]:
    """Records per state; those that are not due under `DELAYED`."""
    flight = IN_FLIGHT.c
    is_delayed = (flight.state == int(RecordState.AVAILABLE)) & (
        flight.available_at_ms > dialect.now_ms(connection)
    )
    # A column of a subquery: some databases do not accept an expression with parameters twice.
    counted = (
        select(
            case((is_delayed, DELAYED), else_=flight.state).label("state"),
            (flight.last_offset - flight.first_offset + 1).label("records"),
        )
        .where(flight.partition_id == partition_id)
        .subquery()
    )
    rows = connection.execute(
        select(counted.c.state, func.sum(counted.c.records)).group_by(counted.c.state)
    )
    return {int(state): int(records) for state, records in rows}


def read_floor(connection: Connection) -> int:
    """The epoch below which no new share-partition and no new group may start."""
    value = connection.execute(
        select(STORE_META.c.value).where(STORE_META.c.name == EPOCH_FLOOR)
    ).scalar_one_or_none()
    return int(value or 0)


def raise_floor(connection: Connection, dialect: Dialect, epoch: int) -> None:
    """Notes the highest epoch of rows that go.

    A share-partition that is deleted and made again must not repeat lock tokens (owner epoch) or
    ids of dead letters (state epoch) that are still out there.
    """
    if epoch > read_floor(connection):
        connection.execute(
            dialect.upsert(STORE_META, keys=["name"]), {"name": EPOCH_FLOOR, "value": str(epoch)}
        )
