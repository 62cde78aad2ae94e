"""Keeps records that an operator has settled before they were read from ever being handed out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharecoord.core import passed_over
from sharecoord.core.changes import PartitionCommit
from sharecoord.core.records import RecordChunk

if TYPE_CHECKING:
    from sharecoord.runtime.context import Context
    from sharecoord.runtime.partition_actor import PartitionActor


class PassedOver:
    """What is to be passed over in one incarnation of a share-partition."""

    def __init__(self, ranges: passed_over.Ranges = ()) -> None:
        self.ranges = ranges
        """As `PartitionRow.passed_over`."""
        self._has_changed = False

    def cut(self, offset: int) -> bool:
        """The log was truncated at `offset`; returns whether that changes anything."""
        kept = passed_over.cut(self.ranges, offset)
        is_changed = kept != self.ranges
        self._has_changed |= is_changed
        self.ranges = kept
        return is_changed

    def into(self, commit: PartitionCommit) -> None:
        """What the next commit stores."""
        if self._has_changed:
            self._has_changed, commit.passed_over = False, self.ranges


def forget_beyond(context: Context, actor: PartitionActor, log_end: int) -> None:
    """The log ends before what is to be passed over: it was truncated, other records come there.

    It existed when it was settled.
    """
    if actor.passed_over.cut(log_end):
        context.committer.add(actor)


class PassingOver:
    """A sink that lets all else through to a share-partition."""

    def __init__(self, context: Context, actor: PartitionActor) -> None:
        self._context = context
        self._actor = actor
        self.on_out_of_range = actor.on_out_of_range
        self.on_gone = actor.on_gone

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Records arrived."""
        actor = self._actor
        kept = passed_over.without(chunk, actor.passed_over.ranges)
        if kept is chunk:
            actor.on_chunk(chunk)
            return
        if kept is not None:
            actor.on_chunk(kept)
        actor.nothing_before(chunk.last + 1)

    def on_end(self, end_offset: int) -> None:
        """The end of the log was reached."""
        forget_beyond(self._context, self._actor, end_offset)
        self._actor.on_end(end_offset)
