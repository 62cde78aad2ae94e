"""A pool of readers with one position per partition: who reads which partition for whom.

Share-partitions of several groups on one partition take different readers; everything else shares
one. A reader that reads nothing any more is closed, the first one excepted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Protocol, TypeVar

import structlog

from sharecoord.core.changes import Place

log = structlog.get_logger(__name__)

OPEN_AGAIN_S: Final = 1.0
"""How often partitions are tried again that wait for open files."""


class Pooled(Protocol):
    """A partition that is read by one of the pool."""

    place: Place


R = TypeVar("R", bound=Pooled)


class Slot(Protocol[R]):
    """A reader of the pool."""

    committed: bool
    readings: dict[Place, R]

    async def close(self) -> None:
        """Ends the reader."""


S = TypeVar("S", bound=Slot[Any])


class Waiting(Generic[R]):
    """Partitions without a reader: one more would take files that are kept for others."""

    drained_s = -math.inf

    def __init__(self) -> None:
        self.readings: dict[R, bool] = {}
        """Each partition, and whether only committed records are read of it."""

    def remove(self, reading: R) -> None:
        """Forgets a partition that is not to be read any more."""
        del self.readings[reading]

    def appetite_changed(self) -> None:
        """Does nothing: no partition is read here."""


class Pool(Generic[S, R]):
    """The readers, and the partitions that wait for one more."""

    def __init__(
        self,
        make: Callable[[int, bool], S],
        begin: Callable[[R, S], None],
        *,
        may_open: Callable[[], bool],
    ) -> None:
        """Has no reader yet.

        Args:
            make: Makes the n-th reader (from 1 on); the second argument is whether it reads
                committed records alone.
            begin: Lets a reader read a partition.
            may_open: Whether another reader may be opened; else its partitions wait.
        """
        self._make = make
        self._begin = begin
        self._may_open = may_open
        self.waiting: Waiting[R] = Waiting()
        self.slots: list[S] = []
        self._closing: set[asyncio.Task[None]] = set()

    def add(self, reading: R, *, committed: bool) -> None:
        """Reads a partition, or lets it wait for a reader."""
        slot = self._slot_for(reading.place, committed=committed)
        if slot is not None:
            self._begin(reading, slot)
            return
        if not self.waiting.readings:
            log.error("partitions are not read: too many open files; see the limit (ulimit -n)")
            asyncio.get_running_loop().call_later(OPEN_AGAIN_S, self._open_again)
        self.waiting.readings[reading] = committed

    def _open_again(self) -> None:
        """Gives readers to the partitions that wait, as far as readers may be opened."""
        for reading, committed in list(self.waiting.readings.items()):
            slot = self._slot_for(reading.place, committed=committed)
            if slot is not None:
                self.waiting.remove(reading)
                self._begin(reading, slot)
        if self.waiting.readings:
            asyncio.get_running_loop().call_later(OPEN_AGAIN_S, self._open_again)

    def _slot_for(self, place: Place, *, committed: bool) -> S | None:
        """A reader that does not read this partition yet; None when no other may be opened."""
        for slot in self.slots:
            if slot.committed == committed and place not in slot.readings:
                return slot
        # The first reader needs no permission: without it nothing is read at all.
        if self.slots and not self._may_open():
            return None
        slot = self._make(len(self.slots) + 1, committed)
        self.slots.append(slot)
        return slot

    def retire(self, slot: S, close: Coroutine[Any, Any, None]) -> None:
        """Closes a reader that reads nothing: it costs memory, connections, threads."""
        if slot not in self.slots[1:]:
            close.close()
            return
        self.slots.remove(slot)
        task = asyncio.create_task(close, name="sharecoord-reader-close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self, close: Callable[[S], Coroutine[Any, Any, None]]) -> None:
        """Ends all readers."""
        self.waiting.readings.clear()
        slots, self.slots = self.slots, []
        for slot in slots:
            await close(slot)
        if self._closing:
            await asyncio.wait(self._closing)
