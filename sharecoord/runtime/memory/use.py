"""What is counted against the memory limit (design 12), and how much it is.

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
"""One range: its state, its place in the map, its lock, its entries in the heaps. Measured with
tracemalloc: 520 to 531 when each range has a lock of its own, 427 to 449 when due, 90 when cut from
a shared batch; the largest counts."""

CHANGED_RANGE_BYTES = 110
"""A changed range while it waits to be stored, in the window's own list; measured: 86 to 108."""

KEY_QUEUE_BYTES = 1_850
"""One key with unfinished records in a group that keeps order; measured with one record: 1,905."""

KEYED_RECORD_BYTES = 56
"""One unfinished record in such a group: offset, place in its lane, key hash; measured: 50-54."""


class MemoryLevel(enum.Enum):
    """What is in force because of the limit, for groups that have more than their part."""

    OPEN = "open"
    READS_STOPPED = "reads_stopped"
    ACQUIRING_STOPPED = "acquiring_stopped"


@dataclass(frozen=True, slots=True)
class MemoryFigures:
    """Memory at the last look, in bytes.

    Attributes:
        caches: Payloads read ahead or kept for redelivery.
        ranges: Ranges in flight.
        key_tables: Keys of groups that keep order.
        pending: Changes that wait for their commit.
        send_buffers: Deliveries that wait for their commit or for their stream.
        largest: The share-partition with the most, None = there is none.
        largest_group: The group with the most, "" = none has anything.
        held_back: How many share-partitions do not read.
    """

    level: MemoryLevel
    limit_bytes: int
    caches: int = 0
    ranges: int = 0
    key_tables: int = 0
    pending: int = 0
    send_buffers: int = 0
    largest: PartitionKey | None = None
    largest_bytes: int = 0
    largest_group: str = ""
    largest_group_bytes: int = 0
    held_back: int = 0

    @property
    def used_bytes(self) -> int:
        """The sum of the parts."""
        return self.caches + self.ranges + self.key_tables + self.pending + self.send_buffers


def range_bytes(window: Window) -> int:
    """What the ranges of a window take, with those changes that are not taken for a commit yet."""
    ranges = len(window.ranges) + window.parked.segments
    return RANGE_BYTES * ranges + CHANGED_RANGE_BYTES * len(window.dirty)


def key_bytes(partition: SharePartition) -> int:
    """What the keys of a share-partition take; 0 in groups without order."""
    if partition.order is None:
        return 0
    records = partition.window.unfinished
    return KEY_QUEUE_BYTES * len(partition.order.queues) + KEYED_RECORD_BYTES * records


def partition_bytes(actor: PartitionActor) -> int:
    """What one share-partition takes: payloads, ranges, keys."""
    if actor.partition is None:
        return actor.cache.size_bytes
    ranges = range_bytes(actor.partition.window)
    return actor.cache.size_bytes + ranges + key_bytes(actor.partition)


@dataclass(slots=True, eq=False)
class GroupUse:
    """What one group takes, in bytes.

    Attributes:
        ranges: As in `MemoryFigures`; so are the next two.
        largest: Its share-partition with the most.
        unread: Members for whom something waits to be sent.
        used_bytes: Everything, with the caches as they were at the last `recount`.
    """

    group: GroupActor
    ranges: int = 0
    key_tables: int = 0
    send_buffers: int = 0
    largest: PartitionActor | None = None
    largest_bytes: int = 0
    unread: list[Session] = field(default_factory=list)
    used_bytes: int = 0
    _sizes: list[tuple[int, PartitionActor]] | None = None

    def recount(self) -> None:
        """The caches gave something up."""
        caches = self.group.budget.used_bytes
        self.used_bytes = caches + self.ranges + self.key_tables + self.send_buffers

    def sizes(self) -> list[tuple[int, PartitionActor]]:
        """Its share-partitions with their sizes at the first call, the largest first."""
        if self._sizes is None:
            found = [(partition_bytes(actor), actor) for actor in self.group.partitions.values()]
            self._sizes = sorted(found, key=lambda each: (-each[0], each[1].partition_id))
        return self._sizes


def use_of(group: GroupActor) -> GroupUse:
    """Counts what a group has; one pass, for it is done for all groups at every look."""
    use = GroupUse(group)
    for actor in group.partitions.values():
        size = actor.cache.size_bytes
        if actor.partition is not None:
            ranges, keys = range_bytes(actor.partition.window), key_bytes(actor.partition)
            use.ranges += ranges
            use.key_tables += keys
            size += ranges + keys
        if actor.sending:
            use.send_buffers += sum(effect.delivery.size_bytes for effect in actor.sending)
        if use.largest is None or size > use.largest_bytes:
            use.largest, use.largest_bytes = actor, size
    for session in group.sessions.values():
        channel = session.channel
        if channel is not None and (unsent_bytes := channel.unsent_bytes):
            use.send_buffers += unsent_bytes
            use.unread.append(session)
    use.recount()
    return use
