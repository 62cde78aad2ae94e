"""What dead letters need of the share-partition that they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from sharecoord.core.changes import PartitionCommit, PartitionKey
from sharecoord.core.parked import ParkedOffsets
from sharecoord.core.records import RecordChunk
from sharecoord.errors import SharecoordError
from sharecoord.runtime.memory_budget import GroupBudget
from sharecoord.runtime.record_cache import RecordCache


class Life(Protocol):
    """What knows whether a topic is still the same."""

    def confirm(self, use: Callable[[], None]) -> None:
        """Calls `use` once what was read until now is known to be of this life."""


async def confirmed(life: Life | None) -> None:
    """Waits until what was read until now is known to be of this life; not at all where None."""
    if life is not None:
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        life.confirm(lambda: None if known.done() else known.set_result(None))
        await known


class Kept(Protocol):
    """Payloads in the store."""

    @property
    def offsets(self) -> ParkedOffsets:
        """Whose they are."""

    async def read(self, offsets: Sequence[int]) -> list[RecordChunk]:
        """Some of them, at least the first; all of `offsets` are kept."""

    def drop(self, first: int, last: int) -> None:
        """Nobody needs them any more."""


class Stored(Protocol):
    """What members stored with records."""

    def for_letter(self, offset: int) -> bytes | None:
        """What goes with a record's dead letter."""


class LetterOwner(Protocol):
    """A share-partition, or what is left of it."""

    key: PartitionKey
    state_epoch: int
    partition_id: int
    generation: int
    dead_letters: int
    """Sent since this process started."""

    @property
    def partition(self) -> object | None:
        """None = this incarnation is over."""

    @property
    def budget(self) -> GroupBudget:
        """What letters that wait are counted into."""

    @property
    def cache(self) -> RecordCache:
        """Payloads in memory."""

    @property
    def checkpoints(self) -> Stored:
        """What members stored."""

    @property
    def kept(self) -> Kept:
        """Payloads in the store."""

    @property
    def life(self) -> Life | None:
        """Lets pass what was read again."""

    @property
    def pending_ranges(self) -> int:
        """See `Committable`."""

    def take_commit(self) -> PartitionCommit | None:
        """See `Committable`."""

    def drop(self, error: SharecoordError) -> None:
        """See `Committable`."""

    def dead_letters_safe(self, first: int, last: int) -> None:
        """Kafka has the dead letters of [first, last]."""
