"""An operator ends the waits and locks of some records, in one transaction of the store.

Whoever owns the share-partition: it is read, decided on by the core as its owner would, and written
under a higher state epoch, so the owner loads it anew, as after a reset. Other locks live on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sharecoord.core import passed_over
from sharecoord.core.changes import (
    DeadLetter,
    InFlight,
    InFlightRow,
    LoadedPartition,
    PartitionCommit,
)
from sharecoord.core.events import RangeEvent
from sharecoord.core.range_events import RangeChange, changes_of
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.share_partition import Decision, SharePartition
from sharecoord.core.states import ForceAction, RecordState
from sharecoord.core.window import RangeState
from sharecoord.errors import InvalidRequestError
from sharecoord.runtime.admin_types import ForcedRange
from sharecoord.runtime.checkpoints import ended_by, for_letter
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.new_letters import letters_of
from sharecoord.runtime.recovery import commit_of, ranges_of

EVENTS = {
    ForceAction.RELEASE: RangeEvent.RELEASED_BY_ADMIN,
    ForceAction.ARCHIVE: RangeEvent.ARCHIVED_BY_ADMIN,
    ForceAction.FINISH: RangeEvent.FINISHED_BY_ADMIN,
}

FINISHED, UNREAD, PASSED_OVER = "finished", "unread", "passed_over"
"""States that no range of a window has: ACKNOWLEDGED, not read yet, and settled before it is."""

DELAYED = "delayed"

_Piece = tuple[int, int, str, RangeState | None]
"""First, last, state in words, and what the window has."""


@dataclass(slots=True)
class Forcing:
    """Implements `changes.PartitionChange`."""

    first: int
    last: int
    action: ForceAction
    settings: PartitionSettings
    clock: RuntimeClock
    delayed_max: int | None
    dry_run: bool = False
    results: list[ForcedRange] = field(default_factory=list)
    changes: list[RangeChange] = field(default_factory=list)
    change_sequence: int = 0
    """Of all the changes."""

    def decide(
        self, loaded: LoadedPartition, named: Sequence[InFlightRow]
    ) -> PartitionCommit | None:
        """See the port; `results`, `changes` and `change_sequence` are those of the last call.

        Raises:
            InvalidRequestError: The share-partition has no start offset yet.
            LimitExceededError: Too much is to be passed over.
        """
        partition = self._loaded(loaded, named)
        window, now_ms = partition.window, self.clock.now_ms()
        window.advance(now_ms)
        before = self._pieces(partition, loaded.row.passed_over)
        decision = partition.decide_force(now_ms, self.first, self.last, self.action)
        self.changes = changes_of(window, decision, EVENTS[self.action])
        letters = self._letters(partition, decision, loaded)
        ended = _ended(loaded, decision, letters)
        partition.apply(decision)
        ahead = loaded.row.passed_over
        begin = max(self.first, window.end_offset)
        if begin <= self.last and self.action is not ForceAction.RELEASE:
            ahead = passed_over.added(ahead, begin, self.last, end_offset=window.end_offset)
        self._compare(before, self._pieces(partition, ahead))
        event = EVENTS[self.action]
        self.changes += [
            RangeChange(each.first, each.last, event, None, None)
            for each in self.results
            if each.after == PASSED_OVER and each.changed
        ]
        if self.dry_run or not any(each.changed for each in self.results):
            return None
        if not decision.changes_anything:
            partition.change_sequence += 1
        commit = commit_of(partition, loaded.row.partition_id, loaded.row.state_epoch, self.clock)
        commit.dead_letters = letters
        commit.checkpoints_done, commit.kept_done = ended
        commit.passed_over = ahead
        self.change_sequence = partition.change_sequence
        return commit

    def _loaded(self, loaded: LoadedPartition, named: Sequence[InFlightRow]) -> SharePartition:
        """The share-partition in memory, with all that the change is about."""
        row = loaded.row
        if row.head is None:
            raise InvalidRequestError(
                f"{row.key.topic}[{row.key.partition}] has no start offset in group "
                f"{row.key.group_id!r} yet; it gets one when a member joins, or by a reset"
            )
        partition = SharePartition(row.head, owner_epoch=row.owner_epoch, settings=self.settings)
        rows = ranges_of(loaded.in_flight, self.clock, lock_grace_ms=0)
        partition.load(*rows, loaded.parked.offsets)
        asked = ranges_of(InFlight.of(named), self.clock, lock_grace_ms=0)
        partition.window.unpark(*asked, partition.window.parked_from_ms)
        return partition

    def _letters(
        self, partition: SharePartition, decision: Decision, loaded: LoadedPartition
    ) -> list[DeadLetter]:
        """Outbox rows of what was released for the last time; the owner reads their payloads."""
        kept = {offset: data for offset, data, _ in loaded.checkpoints}
        letters = letters_of(
            decision.edits,
            partition.window,
            self.clock,
            self.clock.now_ms(),
            settings=self.settings,
            state_epoch=loaded.row.state_epoch,
            checkpoint_of=lambda offset: for_letter(kept.get(offset)),
        )
        return [replace(letter, payload_known=False) for letter in letters]

    def _pieces(self, partition: SharePartition, ahead: passed_over.Ranges) -> list[_Piece]:
        """What [first, last] is, in order."""
        window, found = partition.window, list[_Piece]()
        if self.first < window.start_offset:
            found.append((self.first, min(self.last, window.start_offset - 1), FINISHED, None))
        position, end = max(self.first, window.start_offset), min(self.last, window.end_offset - 1)
        for start, stop, value in window.ranges.overlapping(position, end):
            if start > position:
                found.append((position, start - 1, FINISHED, None))
            name = value.state.name.lower()
            if value.state is RecordState.AVAILABLE and window.is_delayed(value):
                name = DELAYED
            found.append((max(start, position), min(stop, end), name, value))
            position = min(stop, end) + 1
        if position <= end:
            found.append((position, end, FINISHED, None))
        position = max(self.first, window.end_offset)
        for start, stop in ahead:
            left, right = max(start, position), min(stop, self.last)
            if left <= right:
                if left > position:
                    found.append((position, left - 1, UNREAD, None))
                found.append((left, right, PASSED_OVER, None))
                position = right + 1
        if position <= self.last:
            found.append((position, self.last, UNREAD, None))
        return found

    def _compare(self, before: Sequence[_Piece], after: Sequence[_Piece]) -> None:
        """What became of each piece: both lists cover the same offsets."""
        self.results = []
        for first, last, was, old in before:
            for start, end, now, _ in after:
                left, right = max(first, start), min(last, end)
                if left <= right:
                    name = now
                    if now == FINISHED != was and self.action is ForceAction.ARCHIVE:
                        # The window has moved over it.
                        name = RecordState.ARCHIVED.name.lower()
                    holder = "" if old is None else old.member_id or ""
                    count = 0 if old is None else old.delivery_count
                    self.results.append(ForcedRange(left, right, was, name, holder, count))


def _ended(
    loaded: LoadedPartition, decision: Decision, letters: Sequence[DeadLetter]
) -> tuple[list[int], list[int]]:
    """Checkpoints and kept payloads of what is finished; letters without payload take theirs."""
    ended, lacking = ended_by(decision), {letter.offset for letter in letters}

    def among(offsets: Iterable[int]) -> list[int]:
        return [each for each in offsets if any(first <= each <= last for first, last in ended)]

    checkpoints = among(offset for offset, _, _ in loaded.checkpoints)
    return checkpoints, [each for each in among(loaded.kept) if each not in lacking]
