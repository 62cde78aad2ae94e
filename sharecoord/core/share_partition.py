"""The share-partition state machine: every decision about the records of one share-partition.

`decide_*` reads and returns a `Decision`; `apply` alone changes memory. The runtime applies a
decision at once, stores its changes with the next group commit, and only then lets anybody see it
(design 4). Rules are KIP-932's where design 5 says nothing else. `now_ms` is monotonic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core import limits
from sharecoord.core.acquire import Run, Take, plan_acquire
from sharecoord.core.changes import PartitionHead
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import (
    AcknowledgeOutcome,
    AcknowledgeType,
    AcquireMode,
    ArchiveReason,
    RecordState,
)
from sharecoord.core.window import Edit, RangeState, Window

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW, RETURN = AcknowledgeType.REJECT, AcknowledgeType.RENEW, AcknowledgeType.RETURN


class AcquiredRange(NamedTuple):
    """A run of offsets that went to a member under one token."""

    first: int
    last: int
    delivery_count: int
    lock_token: int
    deadline_ms: int


class AcknowledgedRange(NamedTuple):
    """What a member says of [first, last]."""

    first: int
    last: int
    type: AcknowledgeType
    lock_token: int
    delay_ms: int = 0
    reason: str | None = None


class RangeOutcome(NamedTuple):
    """An answer other than OK for [first, last]."""

    first: int
    last: int
    outcome: AcknowledgeOutcome
    final_state: RecordState | None = None


class HeldRange(NamedTuple):
    """An entry of a member's lock book."""

    first: int
    last: int
    lock_token: int


@dataclass(slots=True)
class Decision:
    """What a command changes, and what its caller is told once that is durable."""

    edits: list[Edit] = field(default_factory=list)
    end_offset: int | None = None
    tokens_used: int = 0
    acquired: list[AcquiredRange] = field(default_factory=list)
    exceptions: list[RangeOutcome] = field(default_factory=list)
    """Outcomes other than OK, in order; empty = everything asked is OK."""
    lost: list[HeldRange] = field(default_factory=list)
    """Lock-book entries that are no longer the member's."""
    isolate: bool = False
    """The member must hold nothing before it gets the last-attempt record that waits for it."""

    @property
    def changes_anything(self) -> bool:
        """Whether there is something to apply and to store."""
        return bool(self.edits) or self.end_offset is not None


class SharePartition:
    """One share-partition in memory: its window, its epoch, its settings."""

    def __init__(
        self, head: PartitionHead, *, owner_epoch: int, settings: PartitionSettings
    ) -> None:
        self.window = Window(head.start_offset, head.end_offset)
        self.end_leader_epoch = head.end_leader_epoch
        self.change_sequence = head.change_sequence
        self.owner_epoch = owner_epoch
        self.settings = settings
        self.log_start_offset = 0
        self.isolating: str | None = None
        self._token_sequence = 0

    def load(self, ranges: Iterable[tuple[int, int, RangeState]]) -> None:
        """Takes over stored ranges after a claim (times already monotonic)."""
        self.window.load(ranges)

    @property
    def head(self) -> PartitionHead:
        """What every commit writes of this share-partition."""
        window = self.window
        return PartitionHead(
            start_offset=window.start_offset,
            end_offset=window.end_offset,
            end_leader_epoch=self.end_leader_epoch,
            finished_count=window.finished,
            change_sequence=self.change_sequence,
        )

    @property
    def tokens_left(self) -> int:
        """Lock tokens of this owner epoch; at 0 a new claim must raise the epoch."""
        return limits.TOKEN_SEQUENCE_MAX - self._token_sequence

    @property
    def room(self) -> int:
        """How many new records may enter the window (design 5.4)."""
        window, settings = self.window, self.settings
        if len(window.ranges) >= settings.window_ranges_max:
            return 0
        return max(0, settings.record_locks_max - window.acquired - window.due)

    def apply(self, decision: Decision) -> None:
        """Carries out a decision of this partition that was made on its present state."""
        if not decision.changes_anything:
            return
        self.window.apply(decision.edits, decision.end_offset)
        self._token_sequence += decision.tokens_used
        self.change_sequence += 1

    # -- acquire --------------------------------------------------------------------------------

    def decide_acquire(
        self,
        now_ms: int,
        member_id: str,
        *,
        max_records: int,
        mode: AcquireMode,
        due: Sequence[tuple[int, int, RangeState]],
        fresh: Sequence[Run],
    ) -> Decision:
        """Hands records to a member: what is due again first, then new data (KIP-932, 2.5-2.8).

        Args:
            now_ms: Monotonic time.
            member_id: Who gets them.
            max_records: Strict, except with BATCH_OPTIMIZED, where a whole run may exceed it.
            mode: How records are taken.
            due: Ranges of `window.due_ranges` whose payload is at hand, in order.
            fresh: Runs of existing offsets from `window.end_offset` on; what lies between them
                is a proven gap.
        """
        plan = plan_acquire(
            self.window,
            self.settings,
            member_id=member_id,
            max_records=max_records,
            mode=mode,
            due=due,
            fresh=fresh,
            room=self.room,
            isolating=self.isolating,
        )
        decision = Decision(end_offset=plan.end_offset, isolate=plan.isolate)
        if plan.isolate:
            self.isolating = member_id
        elif self.isolating == member_id and plan.takes:
            self.isolating = None
        for first, last, value in plan.worn_out:
            decision.edits.append(Edit(first, last, self._archived(value, DELIVERY_LIMIT, None)))
        deadline_ms = now_ms + self.settings.lock_duration_ms
        for take in plan.takes:
            self._grant(decision, take, member_id, deadline_ms)
        if plan.worn_out:
            decision.edits.sort()
        return decision

    def _grant(self, decision: Decision, take: Take, member_id: str, deadline_ms: int) -> None:
        """Adds one acquired range with its token to a decision."""
        first, last, old = take
        decision.tokens_used += 1
        token = (self.owner_epoch << 32) | (self._token_sequence + decision.tokens_used)
        value = RangeState(
            RecordState.ACQUIRED,
            old.delivery_count + 1,
            old.hand_outs + 1,
            member_id,
            token,
            deadline_ms,
            self.settings.lock_duration_ms,
            0,
            old.batch_base,
            old.batch_size,
            None,
            old.keys,
        )
        decision.edits.append(Edit(first, last, value))
        decision.acquired.append(
            AcquiredRange(first, last, old.delivery_count + 1, token, deadline_ms)
        )

    # -- acknowledge ----------------------------------------------------------------------------

    def decide_acknowledge(
        self, now_ms: int, member_id: str, ranges: Sequence[AcknowledgedRange]
    ) -> Decision:
        """Settles ranges that a member holds (design 5.2; KIP-932, 3.2). Answers per range.

        Ranges must ascend and not overlap; one that does not gets INVALID_REQUEST and changes
        nothing.
        """
        decision = Decision()
        previous_last = -1
        cached: tuple[int, int, RangeState] | None = None
        memo_old: RangeState | None = None
        memo_key: tuple[AcknowledgeType, int, str | None] | None = None
        memo_new: RangeState | None = None
        edits, make_edit = decision.edits, Edit
        for item in ranges:
            first, last, kind, token, delay_ms, reason = item
            if first > last or first <= previous_last:
                decision.exceptions.append(
                    RangeOutcome(first, last, AcknowledgeOutcome.INVALID_REQUEST)
                )
                continue
            previous_last = last
            if cached is None or first > cached[1]:
                cached = self.window.ranges.get(first)
            if (
                cached is None
                or last > cached[1]
                or first < cached[0]
                or not self._settles(cached[2], member_id, token, kind)
            ):
                self._acknowledge_piecewise(decision, now_ms, member_id, item)
                continue
            old = cached[2]
            key = (kind, delay_ms, reason)
            if old is not memo_old or key != memo_key:
                memo_new = self._settled(old, now_ms, kind, delay_ms, reason)
                memo_old, memo_key = old, key
            edits.append(make_edit(first, last, memo_new))
        return decision

    def _settles(
        self, value: RangeState, member_id: str, token: int, kind: AcknowledgeType
    ) -> bool:
        """Whether this acknowledgement changes a range in this state."""
        return (
            value.lock_token == token
            and value.state is RecordState.ACQUIRED
            and value.member_id == member_id
            and (kind is not RENEW or self.settings.renew_enabled)
        )

    def _acknowledge_piecewise(
        self, decision: Decision, now_ms: int, member_id: str, item: AcknowledgedRange
    ) -> None:
        """An acknowledgement that does not lie in one range that the member holds."""
        first, last, kind, token, delay_ms, reason = item
        outcome, window = AcknowledgeOutcome, self.window
        if first < window.start_offset:
            below = min(last, window.start_offset - 1)
            decision.exceptions.append(RangeOutcome(first, below, outcome.UNKNOWN_OUTCOME))
        beyond = max(first, window.end_offset)
        position, end = max(first, window.start_offset), min(last, window.end_offset - 1)
        finished = RecordState.ACKNOWLEDGED
        for range_first, range_last, value in window.ranges.overlapping(position, end):
            left, right = max(range_first, position), min(range_last, end)
            if left > position:
                decision.exceptions.append(
                    RangeOutcome(position, left - 1, outcome.ALREADY_FINISHED, finished)
                )
            if self._settles(value, member_id, token, kind):
                new = self._settled(value, now_ms, kind, delay_ms, reason)
                decision.edits.append(Edit(left, right, new))
            else:
                refusal = self._refusal(value, member_id, token, kind, left, right)
                if refusal is not None:
                    decision.exceptions.append(refusal)
            position = right + 1
        if position <= end:
            decision.exceptions.append(
                RangeOutcome(position, end, outcome.ALREADY_FINISHED, finished)
            )
        if beyond <= last:
            decision.exceptions.append(RangeOutcome(beyond, last, outcome.INVALID_REQUEST))

    def _refusal(
        self,
        value: RangeState,
        member_id: str,
        token: int,
        kind: AcknowledgeType,
        first: int,
        last: int,
    ) -> RangeOutcome | None:
        """Why an acknowledgement does not change a range; None = it is as asked already."""
        outcome = AcknowledgeOutcome
        if value.state in (RecordState.ARCHIVED, RecordState.ARCHIVING):
            return RangeOutcome(first, last, outcome.ALREADY_FINISHED, RecordState.ARCHIVED)
        if value.state is RecordState.AVAILABLE:
            if kind in (RELEASE, RETURN) and value.lock_token == token and token:
                return None
            return RangeOutcome(first, last, outcome.LOCK_LOST)
        if kind is RENEW and value.lock_token == token and value.member_id == member_id:
            return RangeOutcome(first, last, outcome.RENEW_DISABLED)
        return RangeOutcome(first, last, outcome.LOCK_LOST)

    def _settled(
        self,
        old: RangeState,
        now_ms: int,
        kind: AcknowledgeType,
        delay_ms: int,
        reason: str | None,
    ) -> RangeState | None:
        """What an ACQUIRED range becomes."""
        if kind is ACCEPT:
            return None
        if kind is RELEASE:
            return self._released(old, now_ms, delay_ms, reason)
        if kind is RETURN:
            return self._returned(old, now_ms)
        if kind is REJECT:
            return self._archived(old, ArchiveReason.REJECTED, reason)
        duration_ms = self.settings.lock_duration_ms
        return old._replace(deadline_ms=now_ms + duration_ms, granted_ms=duration_ms)

    def _released(
        self, old: RangeState, now_ms: int, delay_ms: int, reason: str | None
    ) -> RangeState:
        """A failed attempt: due again (later), or worn out (KIP-932, T4 and T5)."""
        if old.delivery_count >= self.settings.delivery_limit:
            return self._archived(old, DELIVERY_LIMIT, reason)
        wait_ms = delay_ms or self.settings.backoff_ms(old.delivery_count)
        return self._available(old, old.delivery_count, now_ms + wait_ms if wait_ms else 0, reason)

    def _returned(self, old: RangeState, now_ms: int) -> RangeState:
        """Handed back unseen: the delivery is taken back, the hand-out counted (design 5.3)."""
        over = old.hand_outs - limits.HAND_OUTS_FREE_FACTOR * self.settings.delivery_limit
        wait_ms = 0
        if over > 0:
            shift = min(over - 1, 16)
            wait_ms = min(limits.HAND_OUT_DELAY_MS << shift, limits.HAND_OUT_DELAY_MAX_MS)
        return self._available(
            old, old.delivery_count - 1, now_ms + wait_ms if wait_ms else 0, old.reason
        )

    @staticmethod
    def _available(
        old: RangeState, delivery_count: int, available_at_ms: int, reason: str | None
    ) -> RangeState:
        return RangeState(
            RecordState.AVAILABLE,
            delivery_count,
            old.hand_outs,
            None,
            old.lock_token,
            0,
            0,
            available_at_ms,
            old.batch_base,
            old.batch_size,
            reason,
            old.keys,
        )

    def _archived(self, old: RangeState, cause: ArchiveReason, message: str | None) -> RangeState:
        """Never delivered again; by way of the dead-letter outbox where that is on."""
        state = RecordState.ARCHIVING if self.settings.dead_letters else RecordState.ARCHIVED
        reason = f"{cause}: {message}" if message else str(cause)
        return RangeState(
            state,
            old.delivery_count,
            old.hand_outs,
            reason=reason,
            batch_base=old.batch_base,
            batch_size=old.batch_size,
        )

    # -- locks that end -------------------------------------------------------------------------

    def decide_expire(self, now_ms: int) -> Decision:
        """Ends the locks whose time is over (KIP-932, T9 and T10)."""
        return Decision(edits=self._give_up(self.window.expired(now_ms), now_ms))

    def decide_release_member(self, now_ms: int, member_id: str) -> Decision:
        """Releases all that a departed member holds; the deliveries count (KIP-932, T11)."""
        held = [Edit(*found) for found in self.window.held_by(member_id)]
        return Decision(edits=self._give_up(sorted(held), now_ms))

    def _give_up(self, held: Sequence[Edit], now_ms: int) -> list[Edit]:
        edits: list[Edit] = []
        for first, last, value in held:
            assert value is not None, "only an acquired range can be given up"
            if first < self.log_start_offset:
                cut = min(last, self.log_start_offset - 1)
                gone = RangeState(
                    RecordState.ARCHIVED,
                    value.delivery_count,
                    value.hand_outs,
                    reason=ArchiveReason.LOG_START,
                )
                edits.append(Edit(first, cut, gone))
                first = cut + 1
            if first <= last:
                edits.append(Edit(first, last, self._released(value, now_ms, 0, None)))
        return edits

    def decide_lock_book(self, now_ms: int, member_id: str, book: Sequence[HeldRange]) -> Decision:
        """Compares what a re-joined member holds with what it is known to hold (design 5).

        Locks that are not in its book were never received: handed back unseen. Entries of the
        book that are not its locks are reported as lost.
        """
        decision = Decision()
        shown: dict[int, list[HeldRange]] = {}
        for entry in book:
            shown.setdefault(entry.lock_token, []).append(entry)
        for first, last, value in self.window.held_by(member_id):
            position = first
            for entry in sorted(shown.get(value.lock_token, ())):
                if entry.last < position or entry.first > last:
                    continue
                if entry.first > position:
                    back = self._returned(value, now_ms)
                    decision.edits.append(Edit(position, entry.first - 1, back))
                position = entry.last + 1
            if position <= last:
                decision.edits.append(Edit(position, last, self._returned(value, now_ms)))
        decision.edits.sort(key=lambda edit: edit.first)
        for entry in book:
            decision.lost.extend(self._lost_parts(member_id, entry))
        return decision

    def _lost_parts(self, member_id: str, entry: HeldRange) -> list[HeldRange]:
        """The parts of a lock-book entry that the member does not hold under its token."""
        lost: list[HeldRange] = []
        position = entry.first
        for first, last, value in self.window.ranges.overlapping(entry.first, entry.last):
            if value.lock_token != entry.lock_token or value.member_id != member_id:
                continue
            left, right = max(first, entry.first), min(last, entry.last)
            if left > position:
                lost.append(HeldRange(position, left - 1, entry.lock_token))
            position = right + 1
        if position <= entry.last:
            lost.append(HeldRange(position, entry.last, entry.lock_token))
        return lost

    # -- the log --------------------------------------------------------------------------------

    def decide_log_start(self, log_start_offset: int) -> Decision:
        """The log start moved: what is due below it is archived and counted (design 5.12)."""
        gone = ArchiveReason.LOG_START
        edits = self._forced(self.window.start_offset, log_start_offset - 1, gone)
        decision = Decision(edits=edits)
        if self.window.end_offset < log_start_offset:
            decision.end_offset = log_start_offset
        return decision

    def decide_gap(self, first: int, last: int) -> Decision:
        """A re-read proved that due records in [first, last] are no longer in the log."""
        found = self.window.ranges.overlapping(first, last)
        return Decision(
            edits=[
                Edit(max(start, first), min(end, last), None)
                for start, end, value in found
                if value.state is RecordState.AVAILABLE
            ]
        )

    def decide_skip(self, end_offset: int) -> Decision:
        """Nothing but a proven gap lies in [window end, `end_offset`): the window moves over it."""
        return Decision(end_offset=end_offset)

    def _forced(self, first: int, last: int, reason: ArchiveReason) -> list[Edit]:
        """Archives what is AVAILABLE in [first, last], whatever its count; no dead letter."""
        return [
            Edit(
                max(start, first),
                min(end, last),
                RangeState(
                    RecordState.ARCHIVED, value.delivery_count, value.hand_outs, reason=reason
                ),
            )
            for start, end, value in self.window.ranges.overlapping(first, last)
            if value.state is RecordState.AVAILABLE
        ]


DELIVERY_LIMIT = ArchiveReason.DELIVERY_LIMIT
