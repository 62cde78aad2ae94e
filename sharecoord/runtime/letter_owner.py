"""What dead letters need of the share-partition that they come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sharecoord.core.changes import PartitionCommit, PartitionKey
from sharecoord.errors import SharecoordError
from sharecoord.runtime.memory_budget import GroupBudget
from sharecoord.runtime.record_cache import RecordCache


class Life(Protocol):
    """What knows whether a topic is still the same."""

    def confirm(self, use: Callable[[], None]) -> None:
        """Calls `use` once what was read until now is known to be of this life."""


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
    letters_made: int
    """Records that became dead letters since this process started."""
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
