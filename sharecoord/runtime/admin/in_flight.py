"""Lists what is in flight in a share-partition."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sharecoord.core.changes import LANE_MARK, InFlightRow, PartitionRow
from sharecoord.core.states import RecordState
from sharecoord.errors import InvalidRequestError
from sharecoord.runtime.admin.group_access import GroupAccess, no_share_partition

RANGES_MAX = 10_000
"""The most ranges of one answer."""

RANGES_DEFAULT = 1_000
"""Ranges of one answer when the caller names no number."""


class PartitionName(NamedTuple):
    """The name that an operator gives for a share-partition."""

    topic: str
    """The topic; for a lane also `DEAD-LETTER-TOPIC/TOPIC`, or `.../TOPIC/PARTITION`."""
    partition: int
    topic_id: str = ""
    """32 hex digits, "" = any."""
    lane: str = ""
    """The part behind the first `/` of a lane's name; "" where `topic` has it."""

    @property
    def place(self) -> tuple[str, int]:
        """The topic's or lane's whole name, and the partition."""
        return f"{self.topic}{LANE_MARK}{self.lane}" if self.lane else self.topic, self.partition


@dataclass(frozen=True, slots=True)
class InFlightRange:
    """Records in flight that are in the same state.

    admin_service.proto explains the fields, at `InFlightRange`.
    """

    first_offset: int
    last_offset: int
    state: RecordState
    delivery_count: int
    member_id: str
    lock_token: int
    lock_remaining_ms: int | None
    available_at_ms: int
    reason: str
    checkpoints: int
    checkpoint_bytes: int


class InFlightCommands(GroupAccess):
    """The command that lists records in flight."""

    async def list_in_flight(
        self, group_id: str, partition: PartitionName, *, from_offset: int = 0, max_ranges: int = 0
    ) -> list[InFlightRange]:
        """Ranges in flight by offset, from the one that holds `from_offset` on.

        `max_ranges` is 1 to 10000; 0 = 1000.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
            InvalidRequestError: A number is out of bounds.
        """
        if not partition.topic:
            raise InvalidRequestError("partition.topic is empty; name the topic")
        if from_offset < 0:
            raise InvalidRequestError(f"from_offset is {from_offset}; it must be 0 or more")
        if not 0 <= max_ranges <= RANGES_MAX:
            raise InvalidRequestError(
                f"max_ranges is {max_ranges}; 1 to {RANGES_MAX}, or 0 for {RANGES_DEFAULT}"
            )
        await self._existing(group_id)
        found = await self._named_row(group_id, partition)
        rows = await self._reads.call(
            self._context.store.read_in_flight,
            found.partition_id,
            from_offset=from_offset,
            max_rows=max_ranges or RANGES_DEFAULT,
        )
        checkpoints = await self._checkpoints_of(found.partition_id, rows) if rows else ()
        store_now_ms = self._context.clock.store_now_ms()
        return [
            _range_of(row, store_now_ms, *of_range)
            for row, of_range in zip(rows, checkpoints, strict=True)
        ]

    async def _named_row(self, group_id: str, name: PartitionName) -> PartitionRow:
        for row in await self._rows(group_id):
            if row.key.place == name.place and name.topic_id in ("", row.key.topic_id):
                return row
        raise no_share_partition(group_id, *name.place)

    async def _checkpoints_of(
        self, partition_id: int, ranges: Sequence[InFlightRow]
    ) -> list[tuple[int, int]]:
        """(records with a checkpoint, bytes of these checkpoints) of each range."""
        sizes = await self._reads.call(
            self._context.store.checkpoint_sizes,
            partition_id,
            ranges[0].first_offset,
            ranges[-1].last_offset,
        )
        offsets, bytes_before = list(sizes), list(itertools.accumulate(sizes.values(), initial=0))
        places = [
            (bisect_left(offsets, row.first_offset), bisect_right(offsets, row.last_offset))
            for row in ranges
        ]
        return [(stop - start, bytes_before[stop] - bytes_before[start]) for start, stop in places]


def _range_of(
    row: InFlightRow, store_now_ms: int, checkpoints: int, checkpoint_bytes: int
) -> InFlightRange:
    return InFlightRange(
        first_offset=row.first_offset,
        last_offset=row.last_offset,
        state=RecordState(row.state),
        delivery_count=row.delivery_count,
        member_id=row.member_id or "",
        lock_token=row.lock_token,
        lock_remaining_ms=max(0, row.deadline_ms - store_now_ms) if row.deadline_ms else None,
        available_at_ms=row.available_at_ms,
        reason=row.reason or "",
        checkpoints=checkpoints,
        checkpoint_bytes=checkpoint_bytes,
    )
