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
"""Until memory was looked at for the first time nothing stands in the way."""


@dataclass(frozen=True, slots=True)
class MemoryLimits:
    """The limit of everything together, and at which parts of it something is stopped.

    Attributes:
        limit_bytes: `memory.limit`.
        read_stop_ratio: `memory.read.stop.ratio`.
        acquire_stop_ratio: `memory.acquire.stop.ratio`.
        stream_unsent_max_bytes: `limits.stream.unsent.max.bytes`.
    """

    limit_bytes: int = 512 << 20
    read_stop_ratio: float = 0.80
    acquire_stop_ratio: float = 0.95
    stream_unsent_max_bytes: int = 16 << 20


class MemoryBudget:
    """Bytes of all caches of a coordinator against their limit, and what else grows in bursts."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        """`memory.cache.max.bytes`."""
        self.used_bytes = 0
        self.sent_bytes = 0
        """Deliveries acquired since the last look: they become send buffers."""
        self.alarm_bytes = NO_MARK
        """When both together are more, memory is looked at again at once."""
        self.read_bytes = NO_MARK
        """Up to here, by both together, all groups read; beyond, those below their part."""
        self.acquire_bytes = NO_MARK
        """The same for acquiring."""
        self.on_alarm: Callable[[], None] = _nobody

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
    """What one group has of it.

    Args:
        whole: Of its coordinator.
    """

    def __init__(self, whole: MemoryBudget) -> None:
        self._whole = whole
        self.used_bytes = 0
        """Its caches."""
        self.sent_bytes = 0
        """As in `MemoryBudget`."""
        self.read_bytes = NO_MARK
        """Up to here, by both together, it reads whatever others have: its part."""
        self.acquire_bytes = NO_MARK
        """The same for acquiring."""
        self.cache_bytes = 0
        """What its caches may keep when those of all groups together take too much."""
        self.acquiring_stopped = False
        """The last look found it above its part."""
        self.refused = False
        """It was refused since then and must be asked again."""
        self.read_refused = False
        """The same for reading."""
        self.outbox_bytes = self.outbox_records = 0
        """Its dead letters that wait for Kafka; they are among `used_bytes`, too."""
        self.checkpoint_bytes = 0
        """What members stored with unfinished records; among `used_bytes`, too."""
        self.kept_bytes = 0
        """Payloads of delayed records in the store."""
        self.on_outbox_room: Callable[[], None] = _nobody
        """Hears that dead letters have gone while the outbox was full."""

    def grew(self, size_bytes: int) -> None:
        """A cache took something in."""
        self.used_bytes += size_bytes
        self._whole.grew(size_bytes)

    def shrank(self, size_bytes: int) -> None:
        """A cache gave something up."""
        self.used_bytes -= size_bytes
        self._whole.used_bytes -= size_bytes

    def outbox_grew(self, size_bytes: int) -> None:
        """A dead letter waits."""
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
        """Payloads came to the store, or went (both negative); memory knows of them."""
        self.kept_bytes += size_bytes
        self.grew(KEPT_MEMORY_BYTES * records)

    def delivers(self, size_bytes: int) -> None:
        """Something was acquired for a member."""
        self.sent_bytes += size_bytes
        self._whole.delivers(size_bytes)

    def looked(
        self, used_bytes: int, read_part: float, acquire_part: float, *, is_short: bool
    ) -> None:
        """A look has counted everything.

        Args:
            used_bytes: What the group has of it, its caches included.
            read_part: Bytes up to which it reads when all together have too much.
            acquire_part: The same for acquiring.
            is_short: Whether all together have too much for acquiring.
        """
        self.sent_bytes = 0
        self.read_bytes = self.used_bytes + int(read_part) - used_bytes
        self.acquire_bytes = self.used_bytes + int(acquire_part) - used_bytes
        self.acquiring_stopped = is_short and used_bytes >= acquire_part

    def may_read(self) -> bool:
        """Whether there is memory for another read; who is refused is asked again later."""
        whole = self._whole
        if whole.used_bytes + whole.sent_bytes <= whole.read_bytes:
            return True
        if self.used_bytes + self.sent_bytes < self.read_bytes:
            return True
        self.read_refused = True
        return False

    def may_acquire(self) -> bool:
        """Whether there is memory for another acquisition; who is refused is asked again later."""
        whole = self._whole
        if whole.used_bytes + whole.sent_bytes <= whole.acquire_bytes:
            return True
        if self.used_bytes + self.sent_bytes < self.acquire_bytes:
            return True
        self.refused = True
        return False

    @property
    def excess_bytes(self) -> int:
        """How much the group's caches must give up; 0 = nothing."""
        whole = self._whole
        over = min(whole.used_bytes - whole.limit_bytes, self.used_bytes - self.cache_bytes)
        return max(over, 0)


def _nobody() -> None:
    """Nobody watches."""
