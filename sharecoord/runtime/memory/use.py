"""The use of memory that counts against the limit (design 12).

The parts know their sizes, or their number of entries; nothing is counted per record.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharecoord.core.changes import PartitionKey
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.window.window import Window
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.actor import PartitionActor

if TYPE_CHECKING:
    from sharecoord.runtime.group.actor import GroupActor

RANGE_BYTES = 550
"""Memory of a range: its state, its place in the map, its lock, its entries in the heaps. Measured
with tracemalloc: 520 to 531 when each range has a lock of its own, 427 to 449 when due, 90 when cut
from a shared batch; the largest counts."""

CHANGED_RANGE_BYTES = 110
"""Memory of a change in the window's own list of changes; measured: 86 to 108."""

KEY_QUEUE_BYTES = 1_850
"""Memory of a key with unfinished records, in order by key; measured with one record: 1,905."""

KEYED_RECORD_BYTES = 56
"""Memory of an unfinished record in order by key: offset, place, key hash; measured: 50-54."""


class MemoryLevel(enum.Enum):
    """The measures in force at the limit, for groups that have more than their part."""

    OPEN = "open"
    READS_STOPPED = "reads_stopped"
    ACQUIRING_STOPPED = "acquiring_stopped"


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory at the last look, in bytes."""

    level: MemoryLevel
    limit_bytes: int
    caches: int = 0
    """Payloads read ahead or kept for redelivery."""
    ranges: int = 0
    """Ranges in flight."""
    key_tables: int = 0
    """Keys of groups that keep order."""
    pending: int = 0
    """Changes that wait for their commit."""
    send_buffers: int = 0
    """Deliveries that wait for their commit or for their stream."""
    largest: PartitionKey | None = None
    """The share-partition with the most bytes."""
    largest_bytes: int = 0
    largest_group: str = ""
    """The group with the most bytes; "" when no group has any."""
    largest_group_bytes: int = 0
    held_back: int = 0
    """Number of share-partitions that do not read."""

    @property
    def used_bytes(self) -> int:
        """The sum of the parts."""
        return self.caches + self.ranges + self.key_tables + self.pending + self.send_buffers


def range_bytes(window: Window) -> int:
    """Bytes of the ranges of a window, and of changes that are not in a commit yet."""
    ranges = len(window.ranges) + window.parked.segments
    return RANGE_BYTES * ranges + CHANGED_RANGE_BYTES * len(window.dirty)


def key_bytes(partition: SharePartition) -> int:
    """Bytes of the keys of a share-partition; 0 in groups without order."""
    if partition.order is None:
        return 0
    records = partition.window.unfinished
    return KEY_QUEUE_BYTES * len(partition.order.queues) + KEYED_RECORD_BYTES * records


def partition_bytes(actor: PartitionActor) -> int:
    """Bytes of one share-partition: payloads, ranges, keys."""
    if actor.partition is None:
        return actor.cache.size_bytes
    ranges = range_bytes(actor.partition.window)
    return actor.cache.size_bytes + ranges + key_bytes(actor.partition)


def sending_bytes(actor: PartitionActor) -> int:
    """Bytes of deliveries that wait for their commit, and of the chunks that they alone have now.

    A chunk that the cache has given up stays as long as a delivery refers to it.
    """
    size = 0
    given_up: dict[int, int] = {}
    for effect in actor.sending:
        size += effect.delivery.size_bytes
        for chunk, _, _ in effect.delivery.slices:
            if actor.cache.find(chunk.first) is not chunk:
                given_up[id(chunk)] = chunk.size_bytes
    return size + sum(given_up.values())


@dataclass(slots=True, eq=False)
class GroupUse:
    """Memory of one group, in bytes; the parts are those of `MemoryFigures`."""

    group: GroupActor
    ranges: int = 0
    key_tables: int = 0
    send_buffers: int = 0
    largest: PartitionActor | None = None
    """The share-partition with the most bytes."""
    largest_bytes: int = 0
    unread: list[Session] = field(default_factory=list)
    """Members with messages that wait to be sent."""
    used_bytes: int = 0
    """The sum, with the caches as they were at the last `recount`."""
    _sizes: list[tuple[int, PartitionActor]] | None = None

    def recount(self) -> None:
        """Takes the present size of the caches."""
        caches = self.group.budget.used_bytes
        self.used_bytes = caches + self.ranges + self.key_tables + self.send_buffers

    def sizes(self) -> list[tuple[int, PartitionActor]]:
        """(bytes, share-partition) as of the first call, the largest first."""
        if self._sizes is None:
            found = [(partition_bytes(actor), actor) for actor in self.group.partitions.values()]
            self._sizes = sorted(found, key=lambda each: (-each[0], each[1].partition_id))
        return self._sizes


def use_of(group: GroupActor) -> GroupUse:
    """Counts the memory of a group, in one pass: every look counts all groups."""
    use = GroupUse(group)
    for actor in group.partitions.values():
        size = actor.cache.size_bytes
        if actor.partition is not None:
            ranges, keys = range_bytes(actor.partition.window), key_bytes(actor.partition)
            use.ranges += ranges
            use.key_tables += keys
            size += ranges + keys
        if actor.sending:
            use.send_buffers += sending_bytes(actor)
        if use.largest is None or size > use.largest_bytes:
            use.largest, use.largest_bytes = actor, size
    for session in group.sessions.values():
        channel = session.channel
        if channel is not None and (unsent_bytes := channel.unsent_bytes):
            use.send_buffers += unsent_bytes
            use.unread.append(session)
    use.recount()
    return use
