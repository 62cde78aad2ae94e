"""The share-partition state machine: every decision about the records of one share-partition.

`decide_*` reads and returns a `Decision`; `apply` alone changes memory. The runtime applies a
decision at once, stores its changes with the next group commit, and only then lets anybody see it
(design 4). Rules are KIP-932's where design 5 says nothing else. `now_ms` is monotonic.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.core import limits, log_start, outcomes
from sharecoord.core.acquire import Run, Take, plan_acquire
from sharecoord.core.chains import take_back_chains
from sharecoord.core.changes import PartitionHead
from sharecoord.core.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    Decision,
    HeldRange,
    RangeOutcome,
    TakenBack,
)
from sharecoord.core.ordering import KeyOrder
from sharecoord.core.parked import ParkedOffsets
from sharecoord.core.range_map import uncovered
from sharecoord.core.room import full_at, room_of
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.shared_keys import SharedKeys
from sharecoord.core.states import (
    AcknowledgeOutcome,
    AcknowledgeType,
    AcquireMode,
    ArchiveReason,
    ForceAction,
    Ordering,
    RecordState,
)
from sharecoord.core.window import NEVER_MS, Edit, RangeState, Window

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW, RETURN = AcknowledgeType.REJECT, AcknowledgeType.RENEW, AcknowledgeType.RETURN
DELIVERY_LIMIT = ArchiveReason.DELIVERY_LIMIT

__all__ = [
    "ACCEPT",
    "REJECT",
    "RELEASE",
    "RENEW",
    "RETURN",
    "AcknowledgedRange",
    "AcquiredRange",
    "Decision",
    "HeldRange",
    "RangeOutcome",
    "Run",
    "SharePartition",
    "TakenBack",
]


class SharePartition:
    """One share-partition in memory: its window, its epoch, its settings."""

    def __init__(
        self, head: PartitionHead, *, owner_epoch: int, settings: PartitionSettings
    ) -> None:
        self.window = Window(head.start_offset, head.end_offset)
        self.end_leader_epoch = head.end_leader_epoch
        self.change_sequence = head.change_sequence
        self.owner_epoch = owner_epoch
        self._settings = settings
        self._shared_keys: SharedKeys | None = None
        self._follow_order()
        self.log_start_offset = 0
        self.kept = ParkedOffsets()
        """Unfinished records whose payload is stored: they do not need the log."""
        self.isolating: str | None = None
        self._isolating_until_ms = 0
        self._token_sequence = 0

    def load(
        self,
        firsts: Sequence[int],
        lasts: Sequence[int],
        values: Sequence[RangeState],
        parked: ParkedOffsets | None = None,
        parked_from_ms: int = NEVER_MS,
    ) -> None:
        """Takes over stored ranges after a claim, as columns (times already monotonic)."""
        self.window.load(firsts, lasts, values, parked, parked_from_ms)
        self._follow_order()

    @property
    def settings(self) -> PartitionSettings:
        """The settings in force; a new value acts on the next command."""
        return self._settings

    @settings.setter
    def settings(self, settings: PartitionSettings) -> None:
        before, self._settings = self._settings, settings
        if settings.ordering != before.ordering:
            self._follow_order()
        elif self.window.order is not None and settings.blocked_keys != before.blocked_keys:
            self.window.order.block(settings.blocked_keys)

    def _follow_order(self) -> None:
        """Starts (or stops) to follow the keys of the window, as the group's order wants."""
        ordering, former = self._settings.ordering, self.window.order
        if former is not None:
            former.count(-1)
            if former.shared is not None:
                former.shared.leave(former)
        if ordering == Ordering.UNORDERED:
            self.window.order = None
        else:
            whole = ordering == Ordering.PARTITION
            shared = None if whole else self._shared_keys
            self.window.order = KeyOrder(
                self.window,
                whole_partition=whole,
                chain_max=self._settings.chain_max,
                shared=shared,
                blocked=self._settings.blocked_keys,
            )

    def share_keys(self, shared: SharedKeys | None) -> None:
        """Keeps order together with other share-partitions from now on, or alone (None)."""
        if shared is not self._shared_keys:
            self._shared_keys = shared
            self._follow_order()

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
        return room_of(self.window, self._settings)

    @property
    def full_at(self) -> int | None:
        """The offset that must be finished before anything new is read, if the window is full."""
        return full_at(self.window, self._settings)

    def apply(self, decision: Decision) -> None:
        """Carries out a decision of this partition that was made on its present state."""
        if not decision.changes_anything:
            return
        if decision.truncate_to is not None:
            self.window.truncate(decision.truncate_to)
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

        In groups with order, new records that must wait enter the window as AVAILABLE (design 5.6),
        so `end_offset` may pass records that nobody has got yet.

        Args:
            now_ms: Monotonic time.
            member_id: Who gets them.
            max_records: Strict, except with BATCH_OPTIMIZED, where a whole run may exceed it.
            mode: How records are taken.
            due: Ranges (or parts of them) of `window.due_ranges` whose payload is at hand, in
                order.
            fresh: Runs of existing offsets from `window.end_offset` on, in `key` order with their
                key hashes; what lies between them is a proven gap.
        """
        settings = self._settings
        plan = plan_acquire(
            self.window,
            settings,
            member_id=member_id,
            max_records=max_records,
            mode=mode,
            due=due,
            fresh=fresh,
            room=self.room,
            may_isolate=self.isolating is None or self._may_isolate(now_ms, member_id),
        )
        if self._token_sequence + len(plan.takes) > limits.TOKEN_SEQUENCE_MAX:
            return Decision()
        if plan.isolate:
            if self.isolating != member_id:
                self.isolating = member_id
                self._isolating_until_ms = now_ms + settings.lock_duration_ms
        elif self.isolating == member_id and plan.takes:
            self.isolating = None
        decision = Decision(end_offset=plan.end_offset, isolate=plan.isolate)
        for first, last, value in plan.worn_out:
            gone = outcomes.archived(value, settings, DELIVERY_LIMIT, None)
            decision.edits.append(Edit(first, last, gone))
        deadline_ms = now_ms + settings.lock_duration_ms
        for take in plan.takes:
            self._grant(decision, take, member_id, deadline_ms)
        decision.edits += [Edit(*blocked) for blocked in plan.blocked]
        if plan.worn_out or plan.blocked:
            decision.edits.sort(key=_first_of)
        return decision

    def _may_isolate(self, now_ms: int, member_id: str) -> bool:
        """Whether a last-attempt record may wait for this member to hold nothing.

        One member at a time, so that not all of them drain; but not one that holds nothing and
        asks for nothing, and none for longer than a lock lasts, so that the record never starves.
        """
        other = self.isolating
        return (
            other == member_id
            or other not in self.window.held
            or now_ms >= self._isolating_until_ms
        )

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
            self._settings.lock_duration_ms,
            0,
            old.batch_base,
            old.batch_size,
            None,
            old.keys,
            old.history,
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
        edits, make_edit, settings = decision.edits, Edit, self._settings
        for item in ranges:
            first, last, kind, token, delay_ms, reason, _ = item
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
                memo_new = outcomes.settled(old, settings, now_ms, kind, delay_ms, reason)
                memo_old, memo_key = old, key
            edits.append(make_edit(first, last, memo_new))
        if self.window.order is None and self.log_start_offset <= self.window.start_offset:
            return decision
        return self._completed(decision, now_ms)

    def _settles(
        self, value: RangeState, member_id: str, token: int, kind: AcknowledgeType
    ) -> bool:
        """Whether this acknowledgement changes a range in this state."""
        return (
            value.lock_token == token
            and value.state is RecordState.ACQUIRED
            and value.member_id == member_id
            and (kind is not RENEW or self._settings.renew_enabled)
        )

    def _acknowledge_piecewise(
        self, decision: Decision, now_ms: int, member_id: str, item: AcknowledgedRange
    ) -> None:
        """An acknowledgement that does not lie in one range that the member holds."""
        first, last, kind, token, delay_ms, reason, _ = item
        outcome, window = AcknowledgeOutcome, self.window
        if first < window.start_offset:
            below = min(last, window.start_offset - 1)
            decision.exceptions.append(RangeOutcome(first, below, outcome.UNKNOWN_OUTCOME))
        beyond = max(first, window.end_offset)
        position, end = max(first, window.start_offset), min(last, window.end_offset - 1)
        for range_first, range_last, value in window.ranges.overlapping(position, end):
            left, right = max(range_first, position), min(range_last, end)
            if left > position:
                decision.exceptions += self._uncovered(position, left - 1, kind)
            if self._settles(value, member_id, token, kind):
                new = outcomes.settled(value, self._settings, now_ms, kind, delay_ms, reason)
                decision.edits.append(Edit(left, right, new))
            else:
                refusal = self._refusal(value, member_id, token, kind, left, right)
                if refusal is not None:
                    decision.exceptions.append(refusal)
            position = right + 1
        if position <= end:
            decision.exceptions += self._uncovered(position, end, kind)
        if beyond <= last:
            decision.exceptions.append(RangeOutcome(beyond, last, outcome.INVALID_REQUEST))

    def _uncovered(self, first: int, last: int, kind: AcknowledgeType) -> list[RangeOutcome]:
        """Answers where no range is: what is not parked is finished, what is has no lock.

        A RELEASE that comes again may find its records parked: they are as it asks for.
        """
        outcome = AcknowledgeOutcome
        found: list[RangeOutcome] = []
        for start, end in [*self.window.parked.runs(first, last), (last + 1, last)]:
            if start > first:
                finished = RecordState.ACKNOWLEDGED
                found.append(RangeOutcome(first, start - 1, outcome.ALREADY_FINISHED, finished))
            if start <= end and kind not in (RELEASE, RETURN):
                found.append(RangeOutcome(start, end, outcome.LOCK_LOST))
            first = end + 1
        return found

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

    # -- locks that end -------------------------------------------------------------------------

    def decide_expire(self, now_ms: int) -> Decision:
        """Ends the locks whose time is over (KIP-932, T9 and T10). The decision must be applied."""
        ended = self.window.expired(now_ms)
        decision = self._give_up(ended, now_ms)
        decision.timed_out = {
            each.value.member_id for each in ended if each.value and each.value.member_id
        }
        return decision

    def decide_release_member(self, now_ms: int, member_id: str) -> Decision:
        """Releases all that a departed member holds; the deliveries count (KIP-932, T11)."""
        if self.isolating == member_id:
            self.isolating = None
        held = [Edit(*found) for found in self.window.held_by(member_id)]
        held.sort()
        return self._give_up(held, now_ms)

    def _give_up(self, held: Sequence[Edit], now_ms: int) -> Decision:
        decision = Decision()
        memo_old: RangeState | None = None
        memo_new: RangeState | None = None
        for first, last, value in held:
            assert value is not None, "only an acquired range can be given up"
            if value is not memo_old:
                memo_old, memo_new = value, outcomes.released(value, self._settings, now_ms)
            decision.edits.append(Edit(first, last, memo_new))
        return self._completed(decision, now_ms)

    def _completed(self, decision: Decision, now_ms: int) -> Decision:
        """Adds what follows from the end of locks.

        The rest of broken chains goes back (design 5.6); what would be due below the log start is
        archived, unless its payload is kept.
        """
        window = self.window
        if window.order is not None and decision.edits:
            take_back_chains(window, window.order, self._settings, decision, now_ms)
        decision.edits = log_start.cut_off(decision.edits, self.log_start_offset, self.kept)
        return decision

    def decide_lock_book(
        self,
        now_ms: int,
        member_id: str,
        book: Sequence[HeldRange],
        forgets_after_ms: int | None = None,
    ) -> Decision:
        """Compares what a re-joined member holds with what it is known to hold (design 5).

        Locks that are not in its book were never received: handed back unseen. Entries of the
        book that are not its locks are reported as lost.

        Args:
            now_ms: Monotonic time.
            member_id: The member.
            book: What it is said to hold.
            forgets_after_ms: So long after its end a lock may be missing though it was received:
                it counts. None = the book forgets nothing.
        """
        decision = Decision()
        shown: dict[int, list[HeldRange]] = {}
        for entry in book:
            if entry.first <= entry.last:
                shown.setdefault(entry.lock_token, []).append(entry)
        for first, last, value in self.window.held_by(member_id):
            if forgets_after_ms is not None and value.deadline_ms + forgets_after_ms <= now_ms:
                continue
            back = outcomes.returned(value, self._settings, now_ms)
            known = [entry[:2] for entry in sorted(shown.get(value.lock_token, ()))]
            for start, end in uncovered(known, first, last):
                decision.edits.append(Edit(start, end, back))
                decision.unseen.append(HeldRange(start, end, value.lock_token))
        decision.edits.sort()
        for entry in book:
            decision.lost.extend(self._lost_parts(member_id, entry))
        self._completed(decision, now_ms)
        for taken in decision.taken_back:
            for entry in shown.get(taken.lock_token, ()):
                left, right = max(taken.first, entry.first), min(taken.last, entry.last)
                if left <= right:
                    decision.lost.append(HeldRange(left, right, entry.lock_token))
        return decision

    def _lost_parts(self, member_id: str, entry: HeldRange) -> list[HeldRange]:
        """The parts of a lock-book entry that the member does not hold under its token."""
        if entry.first > entry.last:
            return [entry]
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
        """The log start moved: what is due below it is archived and counted (design 5.12).

        What has its payload in the store goes on, and so does what is acquired; when it fails, it
        is archived too. Records that were never acquired are archived as one range, so that no
        loss is silent.
        """
        self.log_start_offset = log_start_offset
        window = self.window
        decision = Decision(edits=log_start.gone(window, log_start_offset, self.kept))
        if window.end_offset < log_start_offset:
            missed = RangeState(RecordState.ARCHIVED, reason=str(ArchiveReason.LOG_START))
            decision.edits.append(Edit(window.end_offset, log_start_offset - 1, missed))
            decision.end_offset = log_start_offset
        return decision

    def decide_gap(self, first: int, last: int) -> Decision:
        """A re-read proved that due records in [first, last] are no longer in the log."""
        found = log_start.available_in(self.window, first, last, self.kept)
        return Decision(edits=[Edit(start, end, None) for start, end, _ in found])

    def decide_skip(self, end_offset: int) -> Decision:
        """Nothing but a proven gap lies in [window end, `end_offset`): the window moves over it."""
        return Decision(end_offset=end_offset if end_offset > self.window.end_offset else None)

    def decide_truncate(self, offset: int) -> Decision:
        """The log was truncated: what the window knows from `offset` on is void (design 5.12).

        Locks on it are dead. `truncated` lists what is dropped; the state epoch must be raised,
        for offsets will be used again.
        """
        window = self.window
        if offset >= window.end_offset:
            return Decision()
        self.log_start_offset = min(self.log_start_offset, offset)
        dropped = window.ranges.overlapping(offset, window.end_offset)
        return Decision(
            truncate_to=offset,
            truncated=[(max(first, offset), last, value) for first, last, value in dropped],
        )

    # -- dead letters and operators -------------------------------------------------------------

    def decide_dead_letter_done(self, first: int, last: int) -> Decision:
        """The dead letters of [first, last] are safe: what is ARCHIVING there is ARCHIVED (T18)."""
        return Decision(
            edits=[
                Edit(
                    max(start, first),
                    min(end, last),
                    value._replace(state=RecordState.ARCHIVED),
                )
                for start, end, value in self.window.ranges.overlapping(first, last)
                if value.state is RecordState.ARCHIVING
            ]
        )

    def decide_force(self, now_ms: int, first: int, last: int, action: ForceAction) -> Decision:
        """An operator ends locks and waits in [first, last] (design 7, force release/archive).

        RELEASE makes what is acquired or delayed due at once; a record at its delivery limit is
        archived as by any release. ARCHIVE archives what is acquired, delayed or due, without a
        dead letter; FINISH takes it for accepted. Locks that end so are dead.
        """
        decision = Decision()
        acquired = RecordState.ACQUIRED
        for start, end, value in self.window.ranges.overlapping(first, last):
            left, right = max(start, first), min(end, last)
            if value.state not in (RecordState.AVAILABLE, acquired):
                continue
            new: RangeState | None
            if action is ForceAction.FINISH:
                new = None
            elif action is ForceAction.ARCHIVE:
                new = outcomes.forced(value, ArchiveReason.ADMIN)
            elif value.state is acquired:
                failed = outcomes.failed(value, now_ms, None)
                if value.delivery_count >= self._settings.delivery_limit:
                    new = outcomes.archived(failed, self._settings, DELIVERY_LIMIT, None)
                else:
                    new = outcomes.due(failed)
            elif value.available_at_ms:
                new = outcomes.due(value)
            else:
                continue
            decision.edits.append(Edit(left, right, new))
        return self._completed(decision, now_ms)


def _first_of(edit: Edit) -> int:
    return edit.first
