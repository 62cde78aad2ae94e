"""What the runtime hands to a protocol front, and what a front is (no protocol known here)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sharecoord.core.changes import PartitionKey
from sharecoord.core.records import RecordChunk
from sharecoord.core.share_partition import AcquiredRange, HeldRange, RangeOutcome
from sharecoord.errors import SharecoordError


class Slice(NamedTuple):
    """Records [start, stop) of a chunk, by index."""

    chunk: RecordChunk
    start: int
    stop: int


@dataclass(slots=True)
class Delivery:
    """Records of one partition that were acquired for one member in one call."""

    key: PartitionKey
    slices: list[Slice]
    ranges: list[AcquiredRange]
    records: int
    size_bytes: int


@dataclass(slots=True)
class PartitionResult:
    """The answer to the acknowledgements for one partition."""

    key: PartitionKey
    exceptions: Sequence[RangeOutcome] = ()
    error: SharecoordError | None = None
    lock_remaining_ms: int = 0


@dataclass(slots=True)
class LostRange:
    """A lock-book entry that is no longer the member's."""

    key: PartitionKey
    held: HeldRange


@dataclass(slots=True)
class Assignment:
    """What a member may receive."""

    topics: dict[str, tuple[str, tuple[int, ...]]]
    """topic -> (topic id, partitions)"""
    unknown_topics: tuple[str, ...]


class MemberChannel(Protocol):
    """The way to one member; its calls do not wait.

    What the member can not take in time shows in `unsent_bytes`, at which the dispatcher looks.
    """

    unsent_bytes: int

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Sends records whose acquisition is durable."""

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Sends the outcome of acknowledgements."""

    def assigned(self, assignment: Assignment) -> None:
        """Tells a change of what the member may receive."""

    def drain(self) -> None:
        """Asks the member to go elsewhere."""

    def end(self, error: SharecoordError | None) -> None:
        """Ends the connection; with an error, says why."""
