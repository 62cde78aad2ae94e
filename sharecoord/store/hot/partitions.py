"""Share-partitions: open, claim, initialise, give up, read. Each runs inside one transaction."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Select,
    bindparam,
    case,
    delete,
    func,
    select,
    update,
)

from sharecoord.core.changes import (
    DeadLetter,
    InFlight,
    InFlightRow,
    KeptPayload,
    LoadedPartition,
    Parked,
    PartitionClaim,
    PartitionHead,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
    PartitionStart,
)
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.states import RecordState
from sharecoord.ports import DELAYED
from sharecoord.store.book_entries import CHECKPOINT, DEAD_LETTER, KEPT_PAYLOAD
from sharecoord.store.dialects import Dialect
from sharecoord.store.dialects.errors_servers import StoreConflictError
from sharecoord.store.hot.load import find_cuts, find_ranges, read_parked, read_ranges
from sharecoord.store.row_codec import (
    decode_entry,
    decode_partition,
    encode_passed_over,
)
from sharecoord.store.tables import (
    BOOK_ENTRY,
    COORDINATOR,
    IN_FLIGHT,
    SHARE_PARTITION,
    STORE_META,
)

ROUNDS = 10
"""Most attempts to make a row that other transactions delete before it is locked."""

EPOCH_FLOOR = "epoch_floor"
"""Name in store_meta: no row made from now on may start below this epoch (see `raise_floor`)."""

MEMBER_EPOCH_FLOOR = "member_epoch_floor"
"""The same for members in a fleet: their epochs begin at the store's clock, which may go back."""

_C = SHARE_PARTITION.c
_E = BOOK_ENTRY.c
_EPOCHS = (_C.owner_epoch, _C.state_epoch, _C.replay_epoch)


def find_partitions(connection: Connection, *which: ColumnElement[bool]) -> list[PartitionRow]:
    """The rows of some share-partitions, in any order."""
    return list(map(decode_partition, connection.execute(select(SHARE_PARTITION).where(*which))))


def open_partitions(
    connection: Connection, dialect: Dialect, keys: Sequence[PartitionKey]
) -> list[PartitionRow]:
    """The rows of `keys`, made where they are missing."""
    found = _rows_of(connection, keys)
    for _ in range(ROUNDS):
        missing = [key for key in dict.fromkeys(keys) if key not in found]
        if not missing:
            return [found[key] for key in keys]
        _make_rows(connection, dialect, missing)
        # Another transaction may have deleted one meanwhile.
        found |= _rows_of(connection, missing)
    raise StoreConflictError("share-partitions come and go")


def _make_rows(connection: Connection, dialect: Dialect, keys: Sequence[PartitionKey]) -> None:
    used = {topic: _is_used(connection, *topic) for topic in {_topic_of(k) for k in keys}}
    floor = read_floor(connection)
    fresh = {
        "change_sequence": 0,
        "owner_epoch": floor,
        "incarnation": 0,
        "state_epoch": floor,
        "replay_epoch": floor,
        "closed": False,
        "stopped_reason": "",
        "rate_limit": 0,
        "passed_over": encode_passed_over(()),
    }
    rows = [
        _key_values(key) | fresh | _beginning(bounded=None if key.lane else used[_topic_of(key)])
        for key in keys
    ]
    connection.execute(dialect.insert_or_ignore(SHARE_PARTITION), rows)
    # Only now nobody else can make and delete rows of these names.
    risen = read_floor(connection)
    if risen > floor:
        for key in keys:
            same = [_C[name] == value for name, value in _key_values(key).items()]
            connection.execute(
                update(SHARE_PARTITION)
                # Never claimed, so nobody has seen its owner epoch. It may be another's row, which
                # was reset meanwhile: no epoch may fall.
                .where(*same, _C.incarnation == 0)
                .values({c: case((c < risen, risen), else_=c) for c in _EPOCHS})
            )


def _beginning(*, bounded: bool | None) -> dict[str, int | bool | None]:
    """Head and bound of a new row. In a bounded topic, that of a replay, it has no records.

    `bounded` is None when the group does not use the topic yet.
    """
    head = PartitionHead(0, 0, -1, 0, 0) if bounded else None
    values = head_values(head)
    values.pop("change_sequence", None)
    return values | {"stops_at": 0 if bounded else None, "starts_at_zero": bounded is False}


def _topic_of(key: PartitionKey) -> tuple[str, str]:
    return key.group_id, key.topic


def _is_used(connection: Connection, group_id: str, topic: str) -> bool | None:
    """Whether the group's share-partitions of a topic of this name, of any id, are bounded.

    None = the group has no start offset there (design 5.7). The row is locked against deletion
    until this transaction ends: whoever deletes the offsets of the topic then finds the rows that
    are being made; or this transaction waits for the deletion, and finds nothing.
    """
    of_topic = (_C.group_id == group_id, _C.topic == topic, _C.lane == "")
    query = select(_C.stops_at).where(*of_topic, _C.start_offset.is_not(None)).limit(1)
    locked = query.with_for_update(read=True, key_share=True)
    found = connection.execute(locked).first()
    return None if found is None else found[0] is not None


def _key_values(key: PartitionKey) -> dict[str, str | int]:
    return {
        "group_id": key.group_id,
        "topic": key.topic,
        "topic_id": key.topic_id,
        "partition_index": key.partition,
        "lane": key.lane,
    }


def _rows_of(
    connection: Connection, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, PartitionRow]:
    found: dict[PartitionKey, PartitionRow] = {}
    for group_id, topic, topic_id in {(k.group_id, k.topic, k.topic_id) for k in keys}:
        of_topic = _C.group_id == group_id, _C.topic == topic, _C.topic_id == topic_id
        found.update((row.key, row) for row in find_partitions(connection, *of_topic))
    return found


def claim(
    connection: Connection,
    dialect: Dialect,
    *,
    coordinator_id: str,
    claims: Sequence[PartitionClaim],
) -> tuple[set[int], int]:
    """Raises owner epochs where the claim is allowed; returns the claimed ids, and the clock.

    A reload also matches its own new incarnation: the same claim, made again because its outcome
    was not known, succeeds although the first one had been committed.
    """
    query = (
        select(_C.id, _C.owner, _C.incarnation)
        .where(_C.id.in_([claim.partition_id for claim in claims]))
        .order_by(_C.id)
        .with_for_update()
    )
    locked = {id_: (owner, number) for id_, owner, number in connection.execute(query)}
    # Only now, after the locks, which may have waited: who lives, and what time it is.
    now_ms = dialect.now_ms(connection)
    leases = select(COORDINATOR.c.id).where(COORDINATOR.c.lease_until_ms >= now_ms)
    alive = set(connection.execute(leases).scalars())
    granted = [
        c
        for c in sorted(claims)
        if c.partition_id in locked
        and _may_claim(c, *locked[c.partition_id], me=coordinator_id, alive=alive)
    ]
    if granted:
        connection.execute(
            update(SHARE_PARTITION)
            .where(_C.id == bindparam("the_id"))
            .values(
                owner=coordinator_id,
                owner_epoch=_C.owner_epoch + 1,
                incarnation=bindparam("number"),
            ),
            [{"the_id": c.partition_id, "number": c.incarnation} for c in granted],
        )
    return {c.partition_id for c in granted}, now_ms


def _may_claim(
    claim: PartitionClaim, owner: str | None, incarnation: int, *, me: str, alive: Collection[str]
) -> bool:
    if claim.previous_incarnation is None:
        return owner is None or owner == me or owner not in alive
    # Incarnations are numbers of one process: the owner must be this one, too.
    return owner == me and incarnation in (claim.previous_incarnation, claim.incarnation)


def load_partitions(
    connection: Connection, *, claims: Sequence[PartitionClaim], now_ms: int
) -> dict[int, LoadedPartition]:
    """Reads the state that owners need after their claims, by id; the rows must exist."""
    ids = [claim.partition_id for claim in claims]
    limits = {c.partition_id: c.delayed_max for c in claims if c.delayed_max is not None}
    cuts = find_cuts(connection, limits)
    ranges = read_ranges(connection, ids, cuts)
    parked = {id_: read_parked(connection, id_, cut) for id_, cut in cuts.items()}
    nothing = InFlight.of(())
    entries: dict[tuple[str, int], list[Any]] = {}
    for entry in connection.execute(_entries((DEAD_LETTER, CHECKPOINT), ids)):
        entries.setdefault((entry[0], entry[1]), []).append(decode_entry(entry))
    kept: dict[int, dict[int, int]] = {}
    sizes = _entries((KEPT_PAYLOAD,), ids, (_E.partition_id, _E.record_offset, _E.size_bytes))
    for id_, offset, size_bytes in connection.execute(sizes):
        kept.setdefault(id_, {})[offset] = size_bytes
    return {
        row.partition_id: LoadedPartition(
            row=row,
            in_flight=ranges.get(row.partition_id, nothing),
            dead_letters=tuple(entries.get((DEAD_LETTER, row.partition_id), ())),
            store_now_ms=now_ms,
            parked=parked.get(row.partition_id) or Parked(OffsetSet()),
            checkpoints=tuple(entries.get((CHECKPOINT, row.partition_id), ())),
            kept=kept.get(row.partition_id, {}),
        )
        for row in find_partitions(connection, _C.id.in_(ids))
    }


def _entries(
    kinds: Sequence[str], ids: Sequence[int], columns: Sequence[ColumnElement[Any]] = tuple(_E)
) -> Select[Any]:
    """Entries of share-partitions, in order of offset."""
    which = _E.kind.in_(kinds), _E.partition_id.in_(ids)
    return select(*columns).where(*which).order_by(_E.record_offset)


def initialize_partitions(connection: Connection, starts: Sequence[PartitionStart]) -> list[bool]:
    """Writes the heads of uninitialised partitions; False = fenced."""
    query = (
        select(_C.id, _C.owner_epoch, _C.start_offset)
        .where(_C.id.in_([start.partition_id for start in starts]))
        .order_by(_C.id)
        .with_for_update()
    )
    stored = {id_: (epoch, offset) for id_, epoch, offset in connection.execute(query)}
    fresh = [s for s in starts if stored.get(s.partition_id) == (s.owner_epoch, None)]
    if fresh:
        names = head_values(None) | {"change_sequence": None}
        connection.execute(
            update(SHARE_PARTITION)
            .where(_C.id == bindparam("the_id"))
            .values({name: bindparam(name) for name in names}),
            [{"the_id": s.partition_id, **head_values(s.head)} for s in fresh],
        )
    return [s.partition_id in stored and stored[s.partition_id][0] == s.owner_epoch for s in starts]


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


def release_partitions(connection: Connection, releases: Sequence[PartitionRelease]) -> None:
    """Takes the owner away from share-partitions whose owner epoch is still the same."""
    query = (
        select(_C.id, _C.owner_epoch)
        .where(_C.id.in_([release.partition_id for release in releases]))
        .order_by(_C.id)
        .with_for_update()
    )
    stored = {PartitionRelease(id_, epoch) for id_, epoch in connection.execute(query)}
    mine = [release.partition_id for release in releases if release in stored]
    if mine:
        connection.execute(update(SHARE_PARTITION).where(_C.id.in_(mine)).values(owner=None))


def change_as_owner(
    connection: Connection, partition_id: int, owner_epoch: int, **values: str | bool
) -> bool:
    """Changes columns of a partition; False = a newer owner has it, nothing was changed."""
    changed = connection.execute(
        update(SHARE_PARTITION)
        .where(_C.id == partition_id, _C.owner_epoch == owner_epoch)
        .values(**values)
    )
    return changed.rowcount > 0


def close_partition(connection: Connection, partition_id: int, owner_epoch: int) -> None:
    """Marks a partition as closed, and deletes its kept payloads: nobody delivers them again."""
    if change_as_owner(connection, partition_id, owner_epoch, closed=True):
        delete_entries(connection, (KEPT_PAYLOAD,), partition_id)


def delete_entries(connection: Connection, kinds: Sequence[str], partition_id: int) -> None:
    """Deletes all entries of these kinds of a share-partition."""
    which = _E.kind.in_(kinds), _E.partition_id == partition_id
    connection.execute(delete(BOOK_ENTRY).where(*which))


def list_outboxes(connection: Connection) -> list[PartitionRow]:
    """Share-partitions with dead letters that wait."""
    is_waiting = _E.kept.is_(False) | (_E.sequence > 0)
    waiting = select(_E.partition_id).where(_E.kind == DEAD_LETTER, is_waiting)
    rows = find_partitions(connection, _C.id.in_(waiting))
    return sorted(rows, key=lambda row: row.partition_id)


def read_dead_letters(
    connection: Connection, partition_id: int, from_offset: int, max_rows: int
) -> list[DeadLetter]:
    """The outbox of a share-partition from an offset on, in order."""
    query = _entries((DEAD_LETTER,), [partition_id]).where(_E.record_offset >= from_offset)
    return [decode_entry(row) for row in connection.execute(query.limit(max_rows))]


def read_kept(
    connection: Connection, partition_id: int, offsets: Sequence[int]
) -> list[KeptPayload]:
    """Payloads of these records that are stored, by offset."""
    query = _entries((KEPT_PAYLOAD,), [partition_id]).where(_E.record_offset.in_(offsets))
    return [decode_entry(row) for row in connection.execute(query)]


def list_partitions(connection: Connection, group_id: str) -> list[PartitionRow]:
    """By topic, partition and age; sorted here, because collations of databases differ."""
    rows = find_partitions(connection, _C.group_id == group_id)
    return sorted(rows, key=lambda row: (*row.key.place, row.partition_id))


def read_in_flight(
    connection: Connection, partition_id: int, from_offset: int, max_rows: int
) -> list[InFlightRow]:
    """Ranges that end at `from_offset` or later, in order."""
    ends_behind = IN_FLIGHT.c.last_offset >= from_offset
    return find_ranges(connection, partition_id, ends_behind, max_rows=max_rows)


def checkpoint_sizes(
    connection: Connection, partition_id: int, first: int, last: int
) -> dict[int, int]:
    """Bytes of the checkpoints in [first, last], by offset, in order."""
    sizes = _E.record_offset, func.length(_E.checkpoint)
    query = _entries((CHECKPOINT,), [partition_id], sizes)
    rows = connection.execute(query.where(_E.record_offset.between(first, last)))
    return dict(map(tuple, rows))


def count_in_flight(connection: Connection, dialect: Dialect, partition_id: int) -> dict[int, int]:
    """Number of records per state; delayed ones are under `DELAYED`."""
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


def read_floor(connection: Connection, name: str = EPOCH_FLOOR) -> int:
    """The epoch below which no new share-partition and no new group, or no member, may start."""
    value = connection.execute(
        select(STORE_META.c.value).where(STORE_META.c.name == name)
    ).scalar_one_or_none()
    return int(value or 0)


def raise_floor(
    connection: Connection, dialect: Dialect, epoch: int, name: str = EPOCH_FLOOR
) -> None:
    """Raises the floor to the highest epoch of deleted rows. Locks the floor: call it last.

    A share-partition that is deleted and made again must not repeat lock tokens (owner epoch) or
    ids of dead letters (state epoch) that are still out there.
    """
    if epoch <= read_floor(connection, name):
        return
    row = {"name": name, "value": "0"}
    connection.execute(dialect.insert_or_ignore(STORE_META), row)
    floor = STORE_META.c.name == name
    query = select(STORE_META.c.value).where(floor).with_for_update()
    # Another transaction may have raised it further while this one waited.
    if epoch > int(connection.execute(query).scalar_one()):
        connection.execute(update(STORE_META).where(floor).values(value=str(epoch)))
