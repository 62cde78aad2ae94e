"""The store in memory: the reference of what `sharecoord.ports.Store` means, and `--store memory:`.

Several handles on one `MemoryDatabase` are several coordinators on one database. Tests make the
next transaction fail with `fail_next`, and end a handle as kill -9 would with `crash`.
"""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sharecoord.core.changes import (
    CommitBatch,
    CommitResult,
    CoordinatorRow,
    DeadLetter,
    DelayedPlace,
    FleetView,
    GroupRow,
    InFlight,
    InFlightRow,
    JoinRefusal,
    KeptPayload,
    LoadedPartition,
    MemberRow,
    PartitionChange,
    PartitionClaim,
    PartitionCommit,
    PartitionHead,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
    PartitionStart,
    PausesChanged,
    payload_parts,
)
from sharecoord.core.dispatch.pauses import Pause, PauseScope, changed
from sharecoord.core.letters.lanes import Mark, Marking, Replayed, Selection, SelectionResult
from sharecoord.core.order.blocked_keys import merged
from sharecoord.core.states import RecordState
from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreClusterMismatchError,
    StoreInUseError,
)
from sharecoord.ports import DELAYED, FIRST_LEASE_MS
from sharecoord.store.book_entries import CHECKPOINT, DEAD_LETTER, KEPT_PAYLOAD, changes_of
from sharecoord.store.memory import delayed, lanes
from sharecoord.store.memory.database import (
    MemoryDatabase,
    MemoryPartition,
    by_offset,
    change_group,
    copied,
    ensure,
    open_all,
    raise_group_epochs,
)

_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class _Fault:
    error: SharecoordError
    after_commit: bool
    method: str


class MemoryStore:
    """Implements `sharecoord.ports.Store`; see there for what each method promises."""

    def __init__(
        self,
        database: MemoryDatabase | None = None,
        *,
        fleet: bool = False,
        check_ranges: bool = False,
    ) -> None:
        """Touches nothing; `open` does.

        Args:
            database: Shared with other handles; by default one of its own.
            fleet: Whether other coordinators may use the database at the same time.
            check_ranges: Whether each commit asserts that ranges do not overlap (tests).
        """
        self.database = database or MemoryDatabase()
        self._fleet = fleet
        self._check_ranges = check_ranges
        self.payload_max_bytes: int | None = None
        """For tests: a row with more is refused, as by MySQL; None = as much as there is."""
        self._coordinator_id: str | None = None
        self._faults: deque[_Fault] = deque()

    # -- faults for tests -----------------------------------------------------------------------

    def fail_next(
        self, error: SharecoordError, *, after_commit: bool = False, method: str = ""
    ) -> None:
        """Makes one coming transaction raise `error`; calls queue up.

        Args:
            error: What is raised.
            after_commit: Whether the transaction happens all the same (unknown outcome).
            method: Name of the method that is to fail; "" = whichever comes next.
        """
        self._faults.append(_Fault(error=error, after_commit=after_commit, method=method))

    def crash(self) -> None:
        """Ends this handle as kill -9 does: its lease stays until it runs out."""
        with self.database.lock:
            if self.database.holder == self._coordinator_id:
                self.database.holder = None
            self._coordinator_id = None

    @contextlib.contextmanager
    def _transaction(self, method: str) -> Iterator[MemoryDatabase]:
        with self.database.lock:
            if self._coordinator_id is None:
                raise InternalError("the memory store is not open")
            fault = None
            if self._faults and self._faults[0].method in ("", method):
                fault = self._faults.popleft()
            if fault is not None and not fault.after_commit:
                raise fault.error
            yield self.database
            if fault is not None:
                raise fault.error

    # -- life -----------------------------------------------------------------------------------

    def open(
        self,
        *,
        coordinator_id: str,
        cluster_id: str,
        address: str,
        version: str,
        secret: bytes = b"",
    ) -> None:
        database = self.database
        with database.lock:
            if self._coordinator_id is not None:
                raise InternalError("the memory store is open already")
            if not self._fleet and database.holder is not None:
                raise StoreInUseError(
                    f"the memory store is in use by coordinator {database.holder}. Close it first"
                )
            if cluster_id and database.cluster_id not in ("", cluster_id):
                raise StoreClusterMismatchError(
                    f"the memory store holds the share groups of Kafka cluster "
                    f"{database.cluster_id}, but the brokers are cluster {cluster_id}. Connect "
                    "to the first cluster, or give this one another --store"
                )
            database.cluster_id = database.cluster_id or cluster_id
            if not self._fleet:
                database.holder = coordinator_id
                database.leases.clear()
            database.leases[coordinator_id] = database.clock_ms() + FIRST_LEASE_MS
            database.coordinators[coordinator_id] = CoordinatorRow(
                coordinator_id, address, peer_address="", draining=False, secret=secret
            )
            self._coordinator_id = coordinator_id

    def close(self) -> None:
        with self.database.lock:
            if self._coordinator_id is not None:
                self.database.leases.pop(self._coordinator_id, None)
                self.crash()

    def renew_lease(self, *, duration_ms: int) -> int:
        with self._transaction("renew_lease") as database:
            me = self._leased(database)
            now_ms = database.clock_ms()
            database.leases[me] = now_ms + duration_ms
            return now_ms

    def announce(self, *, address: str, peer_address: str, draining: bool = False) -> None:
        with self._transaction("announce") as database:
            me = self._leased(database)
            database.coordinators[me] = replace(
                database.coordinators[me],
                address=address,
                peer_address=peer_address,
                draining=draining,
            )

    def _leased(self, database: MemoryDatabase) -> str:
        """This coordinator's id, while its lease is its own."""
        me = self._me()
        if me not in database.leases:
            raise StoreInUseError(
                f"the lease of coordinator {me} is gone: another coordinator took the store. "
                "Run one of them, or both in fleet mode"
            )
        return me

    def read_fleet(self) -> FleetView:
        with self._transaction("read_fleet") as database:
            return FleetView(
                coordinators=tuple(
                    row
                    for name, row in sorted(database.coordinators.items())
                    if database.lives(name)
                ),
                group_epochs={name: group.group_epoch for name, group in database.groups.items()},
            )

    def now_ms(self) -> int:
        with self._transaction("now_ms") as database:
            return database.clock_ms()

    def _me(self) -> str:
        assert self._coordinator_id is not None
        return self._coordinator_id

    # -- the hot path ---------------------------------------------------------------------------

    def fits(self, payload: Sequence[bytes | None]) -> bool:
        most = self.payload_max_bytes
        return most is None or sum(len(part) for part in payload if part) <= most

    def _check_fits(self, part: PartitionCommit) -> None:
        rows: list[DeadLetter | KeptPayload] = [*part.dead_letters, *part.kept]
        for each in rows:
            if not self.fits(payload_parts(each)):
                raise InternalError(f"the row of {each.offset} is too large; nothing was changed")

    def commit(self, batch: CommitBatch) -> CommitResult:
        for part in batch.partitions:
            self._check_fits(part)
        with self._transaction("commit") as database:
            ids = [part.partition_id for part in batch.partitions]
            assert len(set(ids)) == len(ids), "a partition stands twice in one commit"
            for part in batch.partitions:
                _check_commit(part)
            fenced = set()
            for part in batch.partitions:
                partition = database.partitions.get(part.partition_id)
                if partition is None or not _holds(partition.row, part):
                    fenced.add(part.partition_id)
                else:
                    self._apply(partition, part)
            for group_id, member_id, epoch in batch.members_removed:
                database.raise_member_floor(epoch)
                member_row = database.members.get((group_id, member_id))
                if member_row is None or member_row.member_epoch > epoch:
                    continue
                if member_row.gateway == self._me() or not database.lives(member_row.gateway):
                    del database.members[group_id, member_id]
            return CommitResult(fenced=frozenset(fenced))

    def _apply(self, partition: MemoryPartition, part: PartitionCommit) -> None:
        if part.head is not None:
            partition.set_head(part.head)
        _raise_epochs(partition, part)
        if part.truncated_at is not None:
            delayed.truncate(partition.in_flight, part.truncated_at)
        for first_offset in part.deleted:
            partition.in_flight.pop(first_offset, None)
        for row in part.upserted:
            partition.in_flight[row.first_offset] = row
        for kind, gone, written in changes_of(part):
            entries = partition.entries[kind]
            for offset in gone:
                entries.pop(offset, None)
            entries.update((entry.offset, entry) for entry in written)
        if self._check_ranges:
            rows = by_offset(partition.in_flight)
            for before, after in itertools.pairwise(rows):
                assert before.last_offset < after.first_offset, f"overlap: {before} {after}"

    # -- partitions -----------------------------------------------------------------------------

    def open_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionRow]:
        with self._transaction("open_partitions") as database:
            return [partition.row for partition in open_all(database, keys)]

    def claim_partitions(self, claims: Sequence[PartitionClaim]) -> list[LoadedPartition | None]:
        with self._transaction("claim_partitions") as database:
            return [self._claim(database, claim) for claim in claims]

    def _claim(self, database: MemoryDatabase, claim: PartitionClaim) -> LoadedPartition | None:
        partition = database.partitions.get(claim.partition_id)
        now_ms = database.clock_ms()
        if partition is None:
            return None
        row = partition.row
        if claim.previous_incarnation is None:
            allowed = row.owner in (None, self._me()) or not database.lives(row.owner)
        else:
            # Its own new number too: the same claim again, its outcome was not known.
            allowed = row.owner == self._me() and row.incarnation in (
                claim.previous_incarnation,
                claim.incarnation,
            )
        if not allowed:
            return None
        partition.row = replace(
            row, owner=self._me(), owner_epoch=row.owner_epoch + 1, incarnation=claim.incarnation
        )
        return _loaded(partition, claim.delayed_max, now_ms)

    def read_delayed(self, partition_id: int, *, after: DelayedPlace, max_rows: int) -> InFlight:
        with self._transaction("read_delayed") as database:
            return delayed.read(database.ranges(partition_id), after, max_rows)

    def read_kept(self, partition_id: int, offsets: Sequence[int]) -> list[KeptPayload]:
        with self._transaction("read_kept") as database:
            kept = database.entries(partition_id, KEPT_PAYLOAD)
            return [kept[offset] for offset in sorted(offsets) if offset in kept]

    def initialize_partitions(self, starts: Sequence[PartitionStart]) -> list[bool]:
        with self._transaction("initialize_partitions") as database:
            owned = [database.owned(start.partition_id, start.owner_epoch) for start in starts]
            for start, partition in zip(starts, owned, strict=True):
                if partition is not None and partition.row.head is None:
                    partition.set_head(start.head)
            return [partition is not None for partition in owned]

    def release_partitions(self, releases: Sequence[PartitionRelease]) -> None:
        with self._transaction("release_partitions") as database:
            for partition_id, owner_epoch in releases:
                partition = database.owned(partition_id, owner_epoch)
                if partition is not None:
                    partition.row = replace(partition.row, owner=None)

    def close_partition(self, partition_id: int, *, owner_epoch: int) -> None:
        with self._transaction("close_partition") as database:
            partition = database.owned(partition_id, owner_epoch)
            if partition is not None:
                partition.row = replace(partition.row, closed=True)
                partition.entries[KEPT_PAYLOAD].clear()

    def stop_partition(self, partition_id: int, *, owner_epoch: int, reason: str) -> None:
        with self._transaction("stop_partition") as database:
            partition = database.owned(partition_id, owner_epoch)
            if partition is not None:
                partition.row = replace(partition.row, stopped_reason=reason)

    # -- groups and members ---------------------------------------------------------------------

    def load_groups(self) -> list[GroupRow]:
        with self._transaction("load_groups") as database:
            return [copied(database.groups[name]) for name in sorted(database.groups)]

    def save_group_config(
        self, group_id: str, *, set_values: Mapping[str, str], deleted: Sequence[str]
    ) -> GroupRow:
        with self._transaction("save_group_config") as database:
            old = ensure(database, group_id)
            config = {name: value for name, value in old.config.items() if name not in deleted}
            config.update(set_values)
            return change_group(database, replace(old, config=config))

    def change_pauses(
        self, group_id: str, *, pause: Sequence[Pause] = (), resume: Sequence[PauseScope] = ()
    ) -> PausesChanged | None:
        with self._transaction("change_pauses") as database:
            old = database.groups.get(group_id)
            if old is None:
                return None
            after = changed(old.pauses, pause, resume)
            if after == old.pauses:
                return PausesChanged(after, copied(old))
            return PausesChanged(old.pauses, change_group(database, replace(old, pauses=after)))

    def save_blocked_keys(
        self, group_id: str, *, blocked: Mapping[bytes, str], unblocked: Sequence[bytes]
    ) -> GroupRow:
        with self._transaction("save_blocked_keys") as database:
            group = ensure(database, group_id)
            kept = merged(group, blocked, unblocked, database.clock_ms())
            return change_group(database, replace(group, blocked_keys=kept))

    def ensure_group(self, group_id: str, *, made_by: str = "") -> GroupRow:
        with self._transaction("ensure_group") as database:
            return copied(ensure(database, group_id, made_by))

    def join_members(self, members: Sequence[MemberRow]) -> list[int | JoinRefusal]:
        with self._transaction("join_members") as database:
            # In a fleet it must not repeat: see the port.
            first_epoch = 1
            if self._fleet:
                first_epoch = max(database.clock_ms(), database.member_epoch_floor + 1)
            epochs: dict[tuple[str, str], int | JoinRefusal] = {}
            for member in members:
                key = (member.group_id, member.member_id)
                assert key not in epochs, "a member stands twice in one transaction"
                old = database.members.get(key)
                if old is not None and not member.may_join_as(old):
                    epochs[key] = JoinRefusal.ANOTHERS
                    continue
                if old is not None and old.join_number > member.join_number:
                    epochs[key] = JoinRefusal.OVERTAKEN
                    continue
                epoch = epochs[key] = first_epoch if old is None else old.member_epoch + 1
                database.members[key] = replace(member, member_epoch=epoch)
            return list(epochs.values())

    def load_members(self) -> list[MemberRow]:
        with self._transaction("load_members") as database:
            return [database.members[key] for key in sorted(database.members)]

    # -- operations under traffic ---------------------------------------------------------------

    def reset_partitions(
        self, heads: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, PartitionRow]:
        with self._transaction("reset_partitions") as database:
            rows: dict[PartitionKey, PartitionRow] = {}
            opened = open_all(database, list(heads))
            for (key, start), partition in zip(heads.items(), opened, strict=True):
                head = PartitionHead(
                    start_offset=start,
                    end_offset=start,
                    end_leader_epoch=-1,
                    finished_count=0,
                    change_sequence=partition.change_sequence + 1,
                )
                partition.clear(head)
                partition.row = replace(partition.row, closed=False, stopped_reason="")
                rows[key] = partition.row
            raise_group_epochs(database, heads)
            return rows

    def change_partition(self, key: PartitionKey, change: PartitionChange) -> bool:
        with self._transaction("change_partition") as database:
            partition = database.partitions.get(database.ids.get(key, -1))
            if partition is None:
                return False
            named = [
                row
                for row in by_offset(partition.in_flight)
                if row.first_offset <= change.last and row.last_offset >= change.first
            ]
            loaded = _loaded(partition, change.delayed_max, database.clock_ms())
            commit = change.decide(loaded, named)
            if commit is not None:
                _check_commit(commit)
                self._apply(partition, commit)
                raise_group_epochs(database, [key])
            return True

    def delete_topics(self, group_id: str, topics: Sequence[str]) -> int:
        with self._transaction("delete_topics") as database:
            ids = [
                partition_id
                for key, partition_id in database.ids.items()
                if key.group_id == group_id and key.served in topics
            ]
            if ids:  # as in SQL: first the group, then the floor that the deleted rows raise
                change_group(database, ensure(database, group_id))
            database.delete_all_but_outboxes(ids)
            return len(ids)

    def delete_group(self, group_id: str) -> bool:
        with self._transaction("delete_group") as database:
            ids = [number for key, number in database.ids.items() if key.group_id == group_id]
            deleted = database.delete_all_but_outboxes(ids)
            group = database.groups.pop(group_id, None)
            if group is not None:
                database.epoch_floor = max(database.epoch_floor, group.group_epoch)
            members = [key for key in database.members if key[0] == group_id]
            for key in members:
                database.raise_member_floor(database.members.pop(key).member_epoch)
            return deleted > 0 or group is not None or bool(members)

    def take_in(self, selections: Sequence[Selection], marking: Marking) -> list[SelectionResult]:
        with self._transaction("take_in") as database:
            return lanes.take_in(database, selections, marking)

    def withdraw(self, keys: Sequence[PartitionKey]) -> list[SelectionResult]:
        with self._transaction("withdraw") as database:
            return lanes.withdraw(database, keys)

    def make_replay(
        self, parts: Sequence[Replayed], *, config: Mapping[str, str] | None = None
    ) -> bool:
        with self._transaction("make_replay") as database:
            return lanes.make_replay(database, parts, config)

    # -- reads for people -----------------------------------------------------------------------

    def list_outboxes(self) -> list[PartitionRow]:
        with self._transaction("list_outboxes") as database:
            return [
                part.row
                for part in database.partitions.values()
                if not all(letter.is_done for letter in part.entries[DEAD_LETTER].values())
            ]

    def list_lanes(self) -> list[PartitionRow]:
        with self._transaction("list_lanes") as database:
            rows = [part.row for part in database.partitions.values()]
            return [row for row in rows if row.key.lane and row.head and row.is_open]

    def read_marks(self, group_id: str, topic: str, topic_id: str, partition: int) -> list[Mark]:
        with self._transaction("read_marks") as database:
            return lanes.read_marks(database, (group_id, topic, topic_id, partition))

    def read_dead_letters(
        self, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[DeadLetter]:
        with self._transaction("read_dead_letters") as database:
            letters = by_offset(database.entries(partition_id, DEAD_LETTER))
            return [each for each in letters if each.offset >= from_offset][:max_rows]

    def list_partitions(self, group_id: str) -> list[PartitionRow]:
        with self._transaction("list_partitions") as database:
            rows = [part.row for part in database.partitions.values()]
            return sorted(
                (row for row in rows if row.key.group_id == group_id),
                key=lambda row: (*row.key.place, row.partition_id),
            )

    def read_in_flight(
        self, partition_id: int, *, from_offset: int, max_rows: int
    ) -> list[InFlightRow]:
        with self._transaction("read_in_flight") as database:
            rows = by_offset(database.ranges(partition_id))
            return [row for row in rows if row.last_offset >= from_offset][:max_rows]

    def checkpoint_sizes(self, partition_id: int, first: int, last: int) -> dict[int, int]:
        with self._transaction("checkpoint_sizes") as database:
            found = by_offset(database.entries(partition_id, CHECKPOINT))
            return {each.offset: len(each.data) for each in found if first <= each.offset <= last}

    def count_in_flight(self, partition_id: int) -> dict[int, int]:
        with self._transaction("count_in_flight") as database:
            counts: dict[int, int] = {}
            now_ms = database.clock_ms()
            for row in database.ranges(partition_id).values():
                delayed = row.state == RecordState.AVAILABLE and row.available_at_ms > now_ms
                state = DELAYED if delayed else int(row.state)
                counts[state] = counts.get(state, 0) + row.last_offset - row.first_offset + 1
            return counts


def _raise_epochs(partition: MemoryPartition, part: PartitionCommit) -> None:
    if part.raises_state_epoch:
        partition.raise_epochs()
        stops_at = partition.row.stops_at
        if stops_at is not None and part.head is not None:
            stops_at = min(stops_at, part.head.end_offset)
            partition.row = replace(partition.row, stops_at=stops_at)
    if part.passed_over is not None:
        epoch = part.state_epoch + 1
        partition.row = replace(partition.row, state_epoch=epoch, passed_over=part.passed_over)


def _loaded(partition: MemoryPartition, delayed_max: int | None, now_ms: int) -> LoadedPartition:
    rows, parked = delayed.cut(partition.in_flight, delayed_max)
    return LoadedPartition(
        row=partition.row,
        in_flight=InFlight.of(rows),
        parked=parked,
        dead_letters=tuple(by_offset(partition.entries[DEAD_LETTER])),
        store_now_ms=now_ms,
        checkpoints=tuple(by_offset(partition.entries[CHECKPOINT])),
        kept={each.offset: each.size_bytes for each in by_offset(partition.entries[KEPT_PAYLOAD])},
    )


def _holds(row: PartitionRow, part: PartitionCommit) -> bool:
    return (row.owner_epoch, row.state_epoch) == (part.owner_epoch, part.state_epoch)


def _check_commit(part: PartitionCommit) -> None:
    """Refuses what a database would refuse, before anything is changed."""
    overlap = set(part.deleted).intersection(row.first_offset for row in part.upserted)
    assert not overlap, f"offsets both deleted and upserted: {sorted(overlap)}"
    for row in part.upserted:
        for name, value in zip(row._fields, row, strict=True):
            if isinstance(value, int) and not -_INT64_MAX - 1 <= value <= _INT64_MAX:
                raise InternalError(
                    f"the memory store refused {name}={value} of partition {part.partition_id}: "
                    "more than 64 bits; nothing was changed"
                )
