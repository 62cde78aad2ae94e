"""Share-partitions: open, claim, initialise, give up."""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, case, delete, select, update

from sharecoord.core.changes import (
    DelayedPlace,
    InFlight,
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
from sharecoord.store.book_entries import CHECKPOINT, DEAD_LETTER, KEPT_PAYLOAD
from sharecoord.store.dialects import Dialect
from sharecoord.store.dialects.errors import StoreConflictError
from sharecoord.store.hot import load
from sharecoord.store.hot.calls import SqlCalls, reading, writing
from sharecoord.store.row_codec import (
    HEAD_COLUMNS,
    decode_entry,
    decode_partition,
    encode_passed_over,
    head_values,
    key_values,
)
from sharecoord.store.tables import BOOK_ENTRY, COORDINATOR, SHARE_PARTITION, STORE_META

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
        key_values(key) | fresh | _beginning(bounded=None if key.lane else used[_topic_of(key)])
        for key in keys
    ]
    connection.execute(dialect.insert_or_ignore(SHARE_PARTITION), rows)
    # Only now nobody else can make and delete rows of these names.
    risen = read_floor(connection)
    if risen > floor:
        for key in keys:
            same = [_C[name] == value for name, value in key_values(key).items()]
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
    head = head_values(PartitionHead(0, 0, -1, 0, 0) if bounded else None)
    return head | {"stops_at": 0 if bounded else None, "starts_at_zero": bounded is False}


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


def _rows_of(
    connection: Connection, keys: Sequence[PartitionKey]
) -> dict[PartitionKey, PartitionRow]:
    found: dict[PartitionKey, PartitionRow] = {}
    for group_id, topic, topic_id in {(k.group_id, k.topic, k.topic_id) for k in keys}:
        of_topic = _C.group_id == group_id, _C.topic == topic, _C.topic_id == topic_id
        found.update((row.key, row) for row in find_partitions(connection, *of_topic))
    return found


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
    cuts = load.find_cuts(connection, limits)
    ranges = load.read_ranges(connection, ids, cuts)
    parked = {id_: load.read_parked(connection, id_, cut) for id_, cut in cuts.items()}
    nothing = InFlight.of(())
    entries: dict[tuple[str, int], list[Any]] = {}
    for entry in connection.execute(entries_of((DEAD_LETTER, CHECKPOINT), ids)):
        entries.setdefault((entry[0], entry[1]), []).append(decode_entry(entry))
    kept: dict[int, dict[int, int]] = {}
    sizes = entries_of((KEPT_PAYLOAD,), ids, (_E.partition_id, _E.record_offset, _E.size_bytes))
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


def entries_of(
    kinds: Sequence[str], ids: Sequence[int], columns: Sequence[ColumnElement[Any]] = tuple(_E)
) -> Select[Any]:
    """Entries of share-partitions, in order of offset."""
    which = _E.kind.in_(kinds), _E.partition_id.in_(ids)
    return select(*columns).where(*which).order_by(_E.record_offset)


def delete_entries(connection: Connection, kinds: Sequence[str], partition_id: int) -> None:
    """Deletes all entries of these kinds of a share-partition."""
    which = _E.kind.in_(kinds), _E.partition_id == partition_id
    connection.execute(delete(BOOK_ENTRY).where(*which))


class PartitionCalls(SqlCalls):
    """Calls of owners of share-partitions, and of those that become owners."""

    @writing
    def open_partitions(
        self, connection: Connection, keys: Sequence[PartitionKey]
    ) -> list[PartitionRow]:
        return open_partitions(connection, self._dialect, keys)

    def claim_partitions(self, claims: Sequence[PartitionClaim]) -> list[LoadedPartition | None]:
        # A connection takes milliseconds to make; only a reload needs a new one (design 4).
        reload = any(claim.previous_incarnation is not None for claim in claims)
        transactions = self._opened()
        begin = transactions.write_apart if reload else transactions.write
        return self._change_in(begin, lambda connection: self._claim(connection, claims))

    def _claim(
        self, connection: Connection, claims: Sequence[PartitionClaim]
    ) -> list[LoadedPartition | None]:
        """Raises owner epochs where the claim is allowed, then loads.

        A reload also matches its own new incarnation: the same claim, made again because its
        outcome was not known, succeeds although the first one had been committed.
        """
        me = self._coordinator_id
        stored = _locked(connection, claims, _C.owner, _C.incarnation)
        # Only now, after the locks, which may have waited: who lives, and what time it is.
        now_ms = self._dialect.now_ms(connection)
        leases = select(COORDINATOR.c.id).where(COORDINATOR.c.lease_until_ms >= now_ms)
        alive = set(connection.execute(leases).scalars())
        granted = [
            c
            for c in claims
            if (row := stored.get(c.partition_id)) and _may_claim(c, *row, me=me, alive=alive)
        ]
        if granted:
            connection.execute(
                update(SHARE_PARTITION)
                .where(_C.id == bindparam("the_id"))
                .values(owner=me, owner_epoch=_C.owner_epoch + 1, incarnation=bindparam("number")),
                [{"the_id": c.partition_id, "number": c.incarnation} for c in sorted(granted)],
            )
        loaded = load_partitions(connection, claims=granted, now_ms=now_ms)
        return [loaded.get(claim.partition_id) for claim in claims]

    @reading
    def read_delayed(
        self, connection: Connection, partition_id: int, *, after: DelayedPlace, max_rows: int
    ) -> InFlight:
        return load.read_delayed(connection, partition_id, after, max_rows)

    @reading
    def read_kept(
        self, connection: Connection, partition_id: int, offsets: Sequence[int]
    ) -> list[KeptPayload]:
        query = entries_of((KEPT_PAYLOAD,), [partition_id]).where(_E.record_offset.in_(offsets))
        return [decode_entry(row) for row in connection.execute(query)]

    @writing
    def initialize_partitions(
        self, connection: Connection, starts: Sequence[PartitionStart]
    ) -> list[bool]:
        stored = _locked(connection, starts, _C.owner_epoch, _C.start_offset)
        fresh = [s for s in starts if stored.get(s.partition_id) == (s.owner_epoch, None)]
        if fresh:
            connection.execute(
                update(SHARE_PARTITION)
                .where(_C.id == bindparam("the_id"))
                .values({name: bindparam(name) for name in HEAD_COLUMNS}),
                [{"the_id": s.partition_id, **head_values(s.head)} for s in fresh],
            )
        epochs = {id_: epoch for id_, (epoch, _) in stored.items()}
        return [epochs.get(s.partition_id) == s.owner_epoch for s in starts]

    def release_partitions(self, releases: Sequence[PartitionRelease]) -> None:
        if releases:
            self._release(releases)

    @writing
    def _release(self, connection: Connection, releases: Sequence[PartitionRelease]) -> None:
        stored = _locked(connection, releases, _C.owner_epoch)
        mine = [id_ for id_, epoch in releases if stored.get(id_) == (epoch,)]
        if mine:
            connection.execute(update(SHARE_PARTITION).where(_C.id.in_(mine)).values(owner=None))

    @writing
    def close_partition(
        self, connection: Connection, partition_id: int, *, owner_epoch: int
    ) -> None:
        if _change_as_owner(connection, partition_id, owner_epoch, closed=True):
            # Nobody delivers them again.
            delete_entries(connection, (KEPT_PAYLOAD,), partition_id)

    @writing
    def stop_partition(
        self, connection: Connection, partition_id: int, *, owner_epoch: int, reason: str
    ) -> None:
        _change_as_owner(connection, partition_id, owner_epoch, stopped_reason=reason)


def _locked(
    connection: Connection,
    wanted: Sequence[PartitionClaim | PartitionStart | PartitionRelease],
    *columns: ColumnElement[Any],
) -> dict[int, tuple[Any, ...]]:
    """Locks rows in order of id; some columns of each, by id."""
    ids = [each.partition_id for each in wanted]
    query = select(_C.id, *columns).where(_C.id.in_(ids)).order_by(_C.id).with_for_update()
    return {id_: tuple(values) for id_, *values in connection.execute(query)}


def _change_as_owner(
    connection: Connection, partition_id: int, owner_epoch: int, **values: str | bool
) -> bool:
    """Changes columns of a partition; False = a newer owner has it, nothing was changed."""
    mine = _C.id == partition_id, _C.owner_epoch == owner_epoch
    return connection.execute(update(SHARE_PARTITION).where(*mine).values(**values)).rowcount > 0


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
