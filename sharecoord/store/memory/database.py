"""Database of the store in memory: the rows that all handles share, and how rows are made."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from sharecoord.core.changes import (
    CoordinatorRow,
    GroupRow,
    InFlightRow,
    MemberRow,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.core.letters.lanes import Mark
from sharecoord.store.book_entries import DEAD_LETTER, KINDS, WINDOW_KINDS
from sharecoord.store.clock import wall_clock_ms

T = TypeVar("T")


@dataclass(slots=True)
class MemoryPartition:
    """A share-partition with its ranges, entries of books and marks."""

    row: PartitionRow
    change_sequence: int = 0
    """Outlives the head of a partition that is uninitialised again."""
    in_flight: dict[int, InFlightRow] = field(default_factory=dict)
    entries: dict[str, dict[int, Any]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    """The books: by kind, then by offset."""
    marks: list[Mark] = field(default_factory=list)

    def set_head(self, head: PartitionHead | None) -> None:
        """Writes the head; the change sequence stays when there is none."""
        self.row = replace(self.row, head=head)
        if head is not None:
            self.change_sequence = head.change_sequence

    def clear(self, head: PartitionHead | None) -> None:
        """Ends everything in flight; the outbox stays."""
        self.in_flight.clear()
        for kind in WINDOW_KINDS:
            self.entries[kind].clear()
        self.raise_epochs()
        self.row = replace(self.row, passed_over=())
        self.set_head(head)

    def raise_epochs(self) -> None:
        """Raises state and replay epoch: offsets may be used again for other records."""
        epoch = self.row.state_epoch + 1
        self.row = replace(self.row, state_epoch=epoch, replay_epoch=epoch)


class MemoryDatabase:
    """Rows that all handles share, guarded by `lock`."""

    def __init__(self, *, clock_ms: Callable[[], int] = wall_clock_ms) -> None:
        self.clock_ms = clock_ms
        self.lock = threading.RLock()
        self.cluster_id = ""
        self.holder: str | None = None
        """Coordinator that has the database for itself (standalone mode)."""
        self.leases: dict[str, int] = {}
        """End of the lease by coordinator id."""
        self.coordinators: dict[str, CoordinatorRow] = {}
        """Announced coordinators; those without a lease are dead."""
        self.partitions: dict[int, MemoryPartition] = {}
        self.ids: dict[PartitionKey, int] = {}
        self.last_id = 0
        self.member_epoch_floor = self.epoch_floor = 0
        """Highest epoch of deleted rows: rows that are made again must not repeat lock tokens."""
        self.groups: dict[str, GroupRow] = {}
        self.members: dict[tuple[str, str], MemberRow] = {}

    def lives(self, coordinator_id: str) -> bool:
        """Whether its lease has not ended."""
        lease_until_ms = self.leases.get(coordinator_id)
        return lease_until_ms is not None and lease_until_ms >= self.clock_ms()

    def raise_member_floor(self, epoch: int) -> None:
        """Notes the epoch of a removed member: no later member may begin at it or below."""
        self.member_epoch_floor = max(self.member_epoch_floor, epoch)

    def ranges(self, partition_id: int) -> dict[int, InFlightRow]:
        """Ranges of a share-partition by first offset; none where it does not exist."""
        partition = self.partitions.get(partition_id)
        return partition.in_flight if partition is not None else {}

    def entries(self, partition_id: int, kind: str) -> dict[int, Any]:
        """Entries of a share-partition by offset; none where it does not exist."""
        partition = self.partitions.get(partition_id)
        return partition.entries[kind] if partition is not None else {}

    def locked(self, ids: Sequence[int]) -> list[MemoryPartition]:
        """The partitions in order of id, those that exist."""
        return [self.partitions[key] for key in sorted(ids) if key in self.partitions]

    def owned(self, partition_id: int, owner_epoch: int) -> MemoryPartition | None:
        """A partition, unless a newer owner has it."""
        partition = self.partitions.get(partition_id)
        if partition is None or partition.row.owner_epoch != owner_epoch:
            return None
        return partition

    def delete(self, partition: MemoryPartition) -> None:
        """Deletes a partition with everything under it."""
        row = partition.row
        self.epoch_floor = max(self.epoch_floor, row.owner_epoch, row.state_epoch)
        del self.ids[row.key]
        del self.partitions[row.partition_id]

    def delete_all_but_outboxes(self, ids: Sequence[int]) -> int:
        """Deletes partitions, empties those with an outbox; returns how many it deleted."""
        doomed = [partition for partition in self.locked(ids) if not partition.entries[DEAD_LETTER]]
        for partition in self.locked(ids):
            if partition.entries[DEAD_LETTER]:
                partition.clear(None)
                partition.marks.clear()
                partition.row = replace(partition.row, starts_at_zero=False)
        for partition in doomed:
            self.delete(partition)
        return len(doomed)


def by_offset(rows: Mapping[int, T]) -> list[T]:
    """The rows in order of their offsets, which are the keys."""
    return [rows[offset] for offset in sorted(rows)]


def open_all(database: MemoryDatabase, keys: Sequence[PartitionKey]) -> list[MemoryPartition]:
    """The share-partitions of these keys, made where they are missing."""
    missing = [key for key in dict.fromkeys(keys) if key not in database.ids]
    if missing:
        rows = [partition.row for partition in database.partitions.values()]
        used = {
            (row.key.group_id, row.key.topic): row.stops_at is not None
            for row in rows
            if row.head is not None and not row.key.lane
        }
        for key in missing:
            bounded = None if key.lane else used.get((key.group_id, key.topic))
            _make(database, key, bounded=bounded)
    return [database.partitions[database.ids[key]] for key in keys]


def _make(database: MemoryDatabase, key: PartitionKey, *, bounded: bool | None) -> None:
    database.last_id += 1
    database.ids[key] = database.last_id
    row = PartitionRow(
        partition_id=database.last_id,
        key=key,
        # What is added to the topic of a replay has nothing of it.
        head=PartitionHead(0, 0, -1, 0, 0) if bounded else None,
        owner=None,
        owner_epoch=database.epoch_floor,
        incarnation=0,
        state_epoch=database.epoch_floor,
        replay_epoch=database.epoch_floor,
        starts_at_zero=bounded is False,
        stops_at=0 if bounded else None,
    )
    database.partitions[row.partition_id] = MemoryPartition(row)


def ensure(database: MemoryDatabase, group_id: str, made_by: str = "") -> GroupRow:
    """The row of a group, made where it is missing."""
    fresh = GroupRow(group_id, config={}, group_epoch=database.epoch_floor, made_by=made_by)
    group = database.groups.setdefault(group_id, fresh)
    if made_by and not group.made_by:
        group = database.groups[group_id] = replace(group, made_by=made_by)
    return group


def change_group(database: MemoryDatabase, group: GroupRow) -> GroupRow:
    """Writes a group with the next epoch; returns a copy."""
    changed = replace(group, group_epoch=group.group_epoch + 1)
    database.groups[group.group_id] = changed
    return copied(changed)


def raise_group_epochs(database: MemoryDatabase, keys: Iterable[PartitionKey]) -> None:
    """Tells coordinators of a change of share-partitions; makes groups that are missing."""
    for group_id in sorted({key.group_id for key in keys}):
        change_group(database, ensure(database, group_id))


def copied(group: GroupRow) -> GroupRow:
    """A copy that the caller may change."""
    return replace(group, config=dict(group.config))
