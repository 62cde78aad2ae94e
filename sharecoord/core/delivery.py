"""Records (by reference) and answers on their way from share-partitions to a member."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core.changes import PartitionKey
from sharecoord.core.partition.share_partition import AcquiredRange, HeldRange, RangeOutcome
from sharecoord.core.records import RawBatch, RecordChunk
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
    checkpoints: Sequence[tuple[int, bytes]] = ()
    """(offset, data) of records that have one, in order of offset."""
    replay_epoch: int = 0
    """Grows with each reset of these offsets (`PartitionRow.replay_epoch`)."""
    whole: Sequence[RawBatch] = ()
    """The raw batches that go to the member in the place of columns; none = columns go."""


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
    """The topics that a member may receive from."""

    topics: dict[str, tuple[str, tuple[int, ...]]]
    """topic -> (topic id, partitions)"""
    unknown_topics: tuple[str, ...]
    starts_at_end: tuple[str, ...] = ()
    """Topics that are new to the group, which starts at their end."""
    ordering: str = ""
    """The group's `share.ordering`."""
    refused_topics: Mapping[str, str] = field(default_factory=dict)
    """Topics that Kafka refuses to the coordinator, and what to allow."""
