"""Skips, finishes and releases records, in one transaction of the store.

Any coordinator may do this: it reads the share-partition, lets the core decide as for the owner,
and writes the result under a higher state epoch, so that the owner loads the share-partition anew,
as after a reset. Locks on other records live on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import structlog

from sharecoord.core.changes import (
    DeadLetter,
    InFlight,
    InFlightRow,
    LoadedPartition,
    PartitionCommit,
    PartitionKey,
)
from sharecoord.core.dispatch.pauses import OPERATOR
from sharecoord.core.partition import passed_over
from sharecoord.core.partition.share_partition import Decision, SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.spans import Spans, covers, split, uncovered, within
from sharecoord.core.states import ForceAction, RecordState
from sharecoord.core.window.window import RangeState
from sharecoord.errors import (
    InvalidRequestError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.eventlog.ranges import RangeChange, changes_of
from sharecoord.eventlog.schema import RangeEvent
from sharecoord.ports import LATEST, OffsetQuery
from sharecoord.runtime.admin.group_access import GroupAccess, no_share_partition
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.group.events import tell_forced
from sharecoord.runtime.group.settings import reads_committed, settings_of
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.partition.checkpoints import ended_by, for_letter
from sharecoord.runtime.partition.new_letters import letters_of
from sharecoord.runtime.partition.parking import delayed_max
from sharecoord.runtime.partition.recovery import commit_of, ranges_of

log = structlog.get_logger(__name__)

FORCE_RECORDS_MAX = 100_000
"""Most records of one call: all may get a dead letter, in one transaction."""

EVENTS = {
    ForceAction.RELEASE: RangeEvent.RELEASED_BY_ADMIN,
    ForceAction.SKIP: RangeEvent.ARCHIVED_BY_ADMIN,
    ForceAction.FINISH: RangeEvent.FINISHED_BY_ADMIN,
}

FINISHED, UNREAD, PASSED_OVER = "finished", "unread", "passed_over"
"""States beside those of ranges: ACKNOWLEDGED, not read yet, settled before it was read."""

DELAYED = "delayed"

_Piece = tuple[int, int, str, RangeState | None]
"""First offset, last offset, state in words, and the state in the window."""


@dataclass(frozen=True, slots=True)
class ForcedRange:
    """Records before and after an operator's skip, finish or release.

    admin_service.proto explains the fields, at `ForcedRange`.
    """

    first_offset: int
    last_offset: int
    before: str
    after: str
    member_id: str = ""
    delivery_count: int = 0

    @property
    def changed(self) -> bool:
        """Whether the command changed the records."""
        return self.before != self.after


class ForceCommands(GroupAccess):
    """The command that forces records into another state."""

    async def force_records(
        self,
        group_id: str,
        partition: PartitionName,
        first_offset: int,
        last_offset: int,
        action: ForceAction,
        *,
        dry_run: bool = False,
        by: str = OPERATOR,
    ) -> list[ForcedRange]:
        """Skips, finishes or releases these offsets, whoever holds them and whoever owns them.

        Returns the ranges before and after, in order of offset.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
            InvalidRequestError: The range is not in the log, or too long.
            KafkaUnavailableError: Where the log ends is not known.
            LimitExceededError: Too much is to be passed over.
            StoreUnavailableError: The log was cut just now.
        """
        _check_range(first_offset, last_offset)
        group, _ = await self._existing(group_id)
        key = await self._key_of(group_id, partition.place)
        config = self._config(group)
        query = OffsetQuery(key.topic, key.partition, LATEST)
        log_end = await self._context.calls.offset(query, committed=reads_committed(config))
        if last_offset >= log_end:
            raise InvalidRequestError(
                f"offset {last_offset} of {key.topic}[{key.partition}] does not exist yet: the log "
                f"ends at {log_end}"
            )
        settings = settings_of(config)
        change = ForcedChange(
            first_offset,
            last_offset,
            action,
            settings,
            self._context.clock,
            delayed_max(self._context, settings),
            dry_run=dry_run,
        )
        await self._to_the_end(self._force(key, change, by))
        return change.results

    async def _force(self, key: PartitionKey, change: ForcedChange, by: str) -> None:
        store, caller = self._context.store, self._context.caller
        self._check_log(key)
        try:
            if not await caller.call(store.change_partition, key, change):
                raise no_share_partition(key.group_id, key.topic, key.partition)
            if change.dry_run or not change.change_sequence:
                return
            tell_forced(self._context, key, change.changes, change.change_sequence, by)
        except StoreOutcomeUnknownError:
            await self._reload(key.group_id, [key])
            raise
        await self._reload(key.group_id, [key])
        changed = [(e.first_offset, e.last_offset) for e in change.results if e.changed]
        said = change.action.value
        log.info("records forced", partition=key, action=said, offsets=changed, by=by)

    def _check_log(self, key: PartitionKey) -> None:
        """Refuses a share-partition whose log was cut just now.

        What is stored would be void with the former records, though it was said of the new ones.

        Raises:
            StoreUnavailableError: It was; the next load stores that.
        """
        group = self._coordinator.groups.get(key.group_id)
        actor = None if group is None else group.actor_of(key)
        if actor is not None and actor.log.diverged is not None:
            raise StoreUnavailableError(
                f"the log of {key.topic}[{key.partition}] was cut just now, and its state is being "
                "loaded anew; look at the records again, then repeat the command",
                retry_after_ms=500,
            )

    async def _key_of(self, group_id: str, place: tuple[str, int]) -> PartitionKey:
        for row in await self._log_rows(group_id):
            if (row.key.topic, row.key.partition) == place:
                return row.key
        raise no_share_partition(group_id, *place)


@dataclass(slots=True)
class ForcedChange:
    """The change that is decided inside the store's transaction (`changes.PartitionChange`)."""

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
    """The sequence that all these changes share."""

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
            RangeChange(each.first_offset, each.last_offset, event, None, None)
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
        """The share-partition in memory, with the ranges of [first, last] unparked."""
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
        """Dead letters of what was released for the last time; the owner reads their payloads."""
        kept = {offset: data for offset, data, _ in loaded.checkpoints}
        letters = letters_of(
            decision.edits,
            partition.window,
            self.clock,
            settings=self.settings,
            state_epoch=loaded.row.state_epoch,
            checkpoint_of=lambda offset: for_letter(kept.get(offset)),
        )
        return [replace(letter, payload_known=False) for letter in letters]

    def _pieces(self, partition: SharePartition, ahead: Spans) -> list[_Piece]:
        """The pieces of [first, last] by state, in order."""
        window, asked = partition.window, (self.first, self.last)
        known = [*window.ranges.within(*asked)]
        found: list[_Piece] = [
            (*span, FINISHED, None)
            for read in within([(0, window.end_offset - 1)], *asked)
            for span in uncovered((each[:2] for each in known), *read)
        ]
        for first, last, value in known:
            is_delayed = value.state is RecordState.AVAILABLE and window.is_delayed(value)
            name = DELAYED if is_delayed else value.state.name.lower()
            found.append((first, last, name, value))
        found.sort(key=lambda piece: piece[0])
        begin = max(self.first, window.end_offset)
        found += [
            (start, end, PASSED_OVER if inside else UNREAD, None)
            for start, end, inside in split(ahead, begin, self.last)
        ]
        return found

    def _compare(self, before: Sequence[_Piece], after: Sequence[_Piece]) -> None:
        """Notes the state before and after of each piece; both lists cover the same offsets."""
        self.results = []
        for first, last, was, old in before:
            for start, end, now, _ in after:
                left, right = max(first, start), min(last, end)
                if left <= right:
                    name = now
                    if now == FINISHED != was and self.action is ForceAction.SKIP:
                        # The window has moved over the archived record.
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
        return [each for each in offsets if covers(ended, each)]

    checkpoints = among(offset for offset, _, _ in loaded.checkpoints)
    return checkpoints, [each for each in among(loaded.kept) if each not in lacking]


def _check_range(first: int, last: int) -> None:
    if not 0 <= first <= last:
        raise InvalidRequestError(f"offsets {first} to {last} are no range; 0 <= first <= last")
    if last - first >= FORCE_RECORDS_MAX:
        raise InvalidRequestError(
            f"{last - first + 1} records at once; {FORCE_RECORDS_MAX} is the most: call again, "
            "or reset the group's offset"
        )
