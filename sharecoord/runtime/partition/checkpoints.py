"""Checkpoints that members stored with unfinished records of one share-partition.

A checkpoint is stored in the commit that renews its record's lock, is delivered with the record,
and is deleted in the commit that finishes the record. All are in memory, by offset: a
share-partition without any pays for a look at an empty list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from sharecoord.core.changes import Checkpoint, LoadedPartition, PartitionCommit
from sharecoord.core.limits import CHECKPOINT_HEADER_BYTES_MAX, CHECKPOINT_OVERHEAD_BYTES
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    Decision,
    RangeOutcome,
)
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.spans import Span
from sharecoord.core.states import RecordState
from sharecoord.errors import InvalidRequestError, LimitExceededError, SharecoordError
from sharecoord.runtime.kernel.budget import GroupBudget
from sharecoord.runtime.partition.claimed import Book

_ENDED = (RecordState.ARCHIVING, RecordState.ARCHIVED)


class Checkpoints(Book):
    """The checkpoints of one share-partition; the budget of its group counts them."""

    def __init__(self, budget: GroupBudget) -> None:
        self._budget = budget
        self._offsets: list[int] = []
        """Ascending; the keys of `_data`."""
        self._data: dict[int, bytes] = {}
        self._new: dict[int, Checkpoint] = {}
        """Rows for the next commit."""
        self._gone: set[int] = set()
        """Offsets whose rows go with the next commit."""

    def __len__(self) -> int:
        return len(self._offsets)

    def begin(self, loaded: LoadedPartition) -> None:
        """Takes over the stored checkpoints."""
        for offset, data, _ in loaded.checkpoints:
            self._put(offset, data)

    def end(self) -> None:
        """See `Book`."""
        for offset in list(self._offsets):
            self._drop(offset)
        self._new.clear()
        self._gone.clear()

    # -- storing --------------------------------------------------------------------------------

    def refusal(
        self, ranges: Iterable[AcknowledgedRange], settings: PartitionSettings
    ) -> SharecoordError | None:
        """The error about checkpoints that can not be stored; None = all can."""
        more = 0
        for each in ranges:
            if each.checkpoint is None:
                continue
            size, most = len(each.checkpoint), settings.checkpoint_max_bytes
            if not most:
                return InvalidRequestError(
                    "checkpoints are off in this group: share.checkpoint.max.bytes is 0"
                )
            if size > most:
                return InvalidRequestError(
                    f"the checkpoint of offset {each.first} has {size} bytes; "
                    f"share.checkpoint.max.bytes of this group is {most}"
                )
            more += _size_of(each.checkpoint)
            if each.first in self._data:
                more -= _size_of(self._data[each.first])
        most = settings.checkpoints_max_bytes
        if more > 0 and self._budget.checkpoint_bytes + more > most:
            return LimitExceededError(
                "the checkpoints of this group's unfinished records take "
                f"{self._budget.checkpoint_bytes} bytes; share.checkpoint.total.max.bytes is "
                f"{most}. Try again when records have finished, or raise it"
            )
        return None

    def keep(
        self,
        ranges: Iterable[AcknowledgedRange],
        exceptions: Sequence[RangeOutcome],
        at_ms: int,
    ) -> None:
        """Stores the checkpoints of acknowledged ranges, but those with exceptions.

        `at_ms` is by the store's clock.
        """
        for each in ranges:
            offset, data = each.first, each.checkpoint
            if data is None or any(e.first <= offset <= e.last for e in exceptions):
                continue
            self._drop(offset)
            self._put(offset, data)
            self._new[offset] = Checkpoint(offset, data, at_ms)

    def _put(self, offset: int, data: bytes) -> None:
        insort(self._offsets, offset)
        self._data[offset] = data
        self._budget.checkpoints_grew(_size_of(data))

    # -- until the record is finished -----------------------------------------------------------

    def note(self, decision: Decision) -> None:
        """Deletes the checkpoints of records that a decision finishes or drops."""
        if not self._offsets:
            return
        for first, last in ended_by(decision):
            self._end(first, last)
        if decision.truncate_to is not None:
            self._end(decision.truncate_to, self._offsets[-1])

    def _end(self, first: int, last: int) -> None:
        for offset in self._among(first, last):
            self._drop(offset)
            self._new.pop(offset, None)
            self._gone.add(offset)

    def _drop(self, offset: int) -> None:
        data = self._data.pop(offset, None)
        if data is not None:
            del self._offsets[bisect_left(self._offsets, offset)]
            self._budget.checkpoints_shrank(_size_of(data))

    def _among(self, first: int, last: int) -> list[int]:
        offsets = self._offsets
        return offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]

    def into(self, commit: PartitionCommit) -> None:
        """See `Book`."""
        if self._new or self._gone:
            commit.checkpoints, self._new = list(self._new.values()), {}
            commit.checkpoints_done, self._gone = sorted(self._gone), set()

    # -- reading --------------------------------------------------------------------------------

    def of(self, acquired: Iterable[AcquiredRange]) -> list[tuple[int, bytes]]:
        """(offset, data) of acquired records with a checkpoint, in order."""
        return [
            (offset, self._data[offset])
            for each in acquired
            for offset in self._among(each.first, each.last)
        ]

    def for_letter(self, offset: int) -> bytes | None:
        """The checkpoint for a record's dead letter; None when it is too large."""
        return for_letter(self._data.get(offset))


def ended_by(decision: Decision) -> list[Span]:
    """The offsets that a decision finishes, in order."""
    return [
        (first, last)
        for first, last, value in decision.edits
        if value is None or value.state in _ENDED
    ]


def for_letter(checkpoint: bytes | None) -> bytes | None:
    """A checkpoint for the dead letter of its record; None when it is too large."""
    is_small = checkpoint is not None and len(checkpoint) <= CHECKPOINT_HEADER_BYTES_MAX
    return checkpoint if is_small else None


def _size_of(data: bytes) -> int:
    return len(data) + CHECKPOINT_OVERHEAD_BYTES
