"""Memory that is taken between two looks of `runtime.memory.watch`: by all groups, and by each.

A look sets the marks; until the next one these counters alone keep the limit, without a look at
anything else.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from sharecoord.core.limits import KEPT_MEMORY_BYTES

NO_MARK = sys.maxsize
"""The marks before the first look at memory: they stop nothing."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The memory limit, and the parts of it at which reads and acquiring stop."""

    limit_bytes: int = 512 << 20
    """`memory.limit`"""
    read_stop_ratio: float = 0.80
    """`memory.read.stop.ratio`"""
    acquire_stop_ratio: float = 0.95
    """`memory.acquire.stop.ratio`"""
    stream_unsent_max_bytes: int = 16 << 20
    """`limits.stream.unsent.max.bytes`"""


class MemoryBudget:
    """Bytes of all caches of a coordinator, and of deliveries, which grow in bursts."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """`memory.cache.max.bytes`."""
        self.used_bytes = 0
        """Bytes of all caches."""
        self.sent_bytes = 0
        """Bytes of deliveries acquired since the last look: they become send buffers."""
        self.alarm_bytes = NO_MARK
        """When `used_bytes` and `sent_bytes` together exceed this, memory is looked at again."""
        self.read_bytes = NO_MARK
        """Up to this sum of both all groups read; beyond it only groups below their part."""
        self.acquire_bytes = NO_MARK
        """As `read_bytes`, for acquiring."""
        self.on_alarm: Callable[[], None] = lambda: None

    def grew(self, size_bytes: int) -> None:
        """A cache took something in."""
        self.used_bytes += size_bytes
        self._check()

    def delivers(self, size_bytes: int) -> None:
        """Something was acquired for a member."""
        self.sent_bytes += size_bytes
        self._check()

    def _check(self) -> None:
        if self.used_bytes + self.sent_bytes > self.alarm_bytes:
            self.alarm_bytes = NO_MARK
            self.on_alarm()


class GroupBudget:
    """The part of one group in the `MemoryBudget` of its coordinator."""

    def __init__(self, whole: MemoryBudget) -> None:
        self._whole = whole
        self.used_bytes = 0
        """Bytes of the group's caches."""
        self.sent_bytes = 0
        """As in `MemoryBudget`."""
        self.read_bytes = NO_MARK
        """Up to this sum of both the group reads, whatever the others have: its part."""
        self.acquire_bytes = NO_MARK
        """As `read_bytes`, for acquiring."""
        self.cache_bytes = 0
        """Bytes that the caches may keep when those of all groups together take too much."""
        self.acquiring_stopped = False
        """Whether the last look found the group above its part."""
        self.refused = False
        """Whether an acquisition was refused since the last look: dispatch must start again."""
        self.read_refused = False
        """Whether a read was refused since the last look."""
        self.outbox_bytes = self.outbox_records = 0
        """Dead letters that wait for Kafka; they are among `used_bytes`, too."""
        self.checkpoint_bytes = 0
        """Checkpoints of unfinished records; among `used_bytes`, too."""
        self.kept_bytes = 0
        """Payloads of delayed records in the store."""
        self.on_outbox_room: Callable[[], None] = lambda: None
        """Called when a full outbox has room again."""

    def grew(self, size_bytes: int) -> None:
        """A cache took something in."""
        self.used_bytes += size_bytes
        self._whole.grew(size_bytes)

    def shrank(self, size_bytes: int) -> None:
        """A cache gave something up."""
        self.used_bytes -= size_bytes
        self._whole.used_bytes -= size_bytes

    def outbox_grew(self, size_bytes: int) -> None:
        """A dead letter waits from now on."""
        self.outbox_bytes += size_bytes
        self.outbox_records += 1
        self.grew(size_bytes)

    def outbox_shrank(self, size_bytes: int, max_bytes: int) -> None:
        """A dead letter waits no more."""
        was_full = self.outbox_bytes >= max_bytes
        self.outbox_bytes -= size_bytes
        self.outbox_records -= 1
        self.shrank(size_bytes)
        if was_full and self.outbox_bytes < max_bytes:
            self.on_outbox_room()

    def checkpoints_grew(self, size_bytes: int) -> None:
        """A checkpoint was stored, or loaded."""
        self.checkpoint_bytes += size_bytes
        self.grew(size_bytes)

    def checkpoints_shrank(self, size_bytes: int) -> None:
        """A checkpoint went."""
        self.checkpoint_bytes -= size_bytes
        self.shrank(size_bytes)

    def keeps(self, size_bytes: int, records: int) -> None:
        """Payloads came to the store, or went (both negative); memory has offsets and sizes."""
        self.kept_bytes += size_bytes
        self.grew(KEPT_MEMORY_BYTES * records)

    def delivers(self, size_bytes: int) -> None:
        """Something was acquired for a member."""
        self.sent_bytes += size_bytes
        self._whole.delivers(size_bytes)

    def looked(
        self, used_bytes: int, read_part: float, acquire_part: float, *, is_short: bool
    ) -> None:
        """A look has counted that the group takes `used_bytes`, its caches included.

        When all groups together have too much, this one reads up to `read_part` bytes, and acquires
        up to `acquire_part`; `is_short` tells that they have too much for acquiring.
        """
        self.sent_bytes = 0
        self.read_bytes = self.used_bytes + int(read_part) - used_bytes
        self.acquire_bytes = self.used_bytes + int(acquire_part) - used_bytes
        self.acquiring_stopped = is_short and used_bytes >= acquire_part

    def may_read(self) -> bool:
        """Whether there is memory for another read; a refusal is noted, and ends at a look."""
        whole = self._whole
        if whole.used_bytes + whole.sent_bytes <= whole.read_bytes:
            return True
        if self.used_bytes + self.sent_bytes < self.read_bytes:
            return True
        self.read_refused = True
        return False

    def may_acquire(self) -> bool:
        """Whether there is memory to acquire more; a refusal is noted, and ends at a look."""
        whole = self._whole
        if whole.used_bytes + whole.sent_bytes <= whole.acquire_bytes:
            return True
        if self.used_bytes + self.sent_bytes < self.acquire_bytes:
            return True
        self.refused = True
        return False

    @property
    def excess_bytes(self) -> int:
        """Bytes that the group's caches must give up."""
        whole = self._whole
        over = min(whole.used_bytes - whole.limit_bytes, self.used_bytes - self.cache_bytes)
        return max(over, 0)
