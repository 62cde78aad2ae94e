"""The share-partition state machine: every decision about the records of one share-partition.

`decide_*` reads and returns a `Decision`; `apply` alone changes memory. The runtime applies a
decision at once, stores its changes with the next group commit, and only then lets anybody see it
(design 4). Rules are KIP-932's where design 5 says nothing else. `now_ms` is monotonic.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.core import limits
from sharecoord.core.changes import PartitionHead
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.order.key_order import KeyOrder
from sharecoord.core.order.shared_keys import SharedKeys
from sharecoord.core.partition import log_start, outcomes
from sharecoord.core.partition.acquire import Run, Take, plan_acquire
from sharecoord.core.partition.chains import take_back_chains
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    Decision,
    HeldRange,
    Isolation,
    RangeOutcome,
    TakenBack,
    taken_back_of,
)
from sharecoord.core.partition.leader_epochs import LeaderEpochs
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.spans import split, uncovered, within
from sharecoord.core.states import (
    AcknowledgeOutcome,
    AcknowledgeType,
    AcquireMode,
    ArchiveReason,
    ForceAction,
    Ordering,
    RecordState,
    TakenBackReason,
)
from sharecoord.core.window.window import NEVER_MS, Edit, Range, RangeState, Window

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
    """A share-partition in memory: its window, its order, its epoch, its settings.

    Commands change it through `apply` alone. Without a command it changes when it is loaded, when
    its settings change, when time moves on (`Window.advance`), when delayed ranges go to the store
    and come back (`Window.park`, `unpark`), and when the runtime shares counts and keys with others
    (`count_into`, `share_keys`). Notes of the window for the next commit and for the dispatcher are
    taken with `take_truncation` and `take_freed`.
    """

    def __init__(
        self, head: PartitionHead, *, owner_epoch: int, settings: PartitionSettings
    ) -> None:
        self.window = Window(head.start_offset, head.end_offset)
        self.order: KeyOrder | None = None
        """The keys of the unfinished records; None in groups without order."""
        self.epochs = LeaderEpochs(head.end_offset, head.end_leader_epoch)
        """Of what was read; the log's follower fills it."""
        self.change_sequence = head.change_sequence
        self.owner_epoch = owner_epoch
        self.log_start_offset = 0
        self.kept = OffsetSet()
        """Unfinished records whose payload is stored: they do not need the log."""
        self.isolation = Isolation()
        self._settings = settings
        self._chained: dict[str, int] = {}
        self._shared_keys: SharedKeys | None = None
        self._token_sequence = 0
        self._follow_order()

    # -- wiring ---------------------------------------------------------------------------------

    def load(
        self,
        firsts: Sequence[int],
        lasts: Sequence[int],
        values: Sequence[RangeState],
        parked: OffsetSet | None = None,
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
        elif self.order is not None and settings.blocked_keys != before.blocked_keys:
            self.order.block(settings.blocked_keys)

    def share_keys(self, shared: SharedKeys | None) -> None:
        """Keeps order together with other share-partitions from now on, or alone (None)."""
        if shared is not self._shared_keys:
            self._shared_keys = shared
            self._follow_order()

    def count_into(
        self, totals: dict[str, int] | None, chained: dict[str, int] | None = None
    ) -> None:
        """Counts into dicts that share-partitions have in common; None = alone.

        `totals` counts records that members hold, `chained` those of them that wait for earlier
        records of their keys.
        """
        self.window.count_into(totals)
        self._chained = {} if chained is None else chained
        if self.order is not None:
            self.order.count_into(self._chained)

    def _follow_order(self) -> None:
        """Starts or stops to follow the keys of the window, by the group's order."""
        settings = self._settings
        if self.order is not None:
            self.order.leave()
        if settings.ordering == Ordering.UNORDERED:
            self.order = None
        else:
            whole = settings.ordering == Ordering.PARTITION
            self.order = KeyOrder(
                self.window,
                whole_partition=whole,
                chain_max=settings.chain_max,
                chained=self._chained,
                shared=None if whole else self._shared_keys,
                blocked_keys=settings.blocked_keys,
            )
        self.window.follower = self.order

    # -- reading --------------------------------------------------------------------------------

    @property
    def head(self) -> PartitionHead:
        """The part of the row that every commit writes."""
        window = self.window
        return PartitionHead(
            start_offset=window.start_offset,
            end_offset=window.end_offset,
            end_leader_epoch=self.end_leader_epoch,
            finished_count=window.finished,
            change_sequence=self.change_sequence,
        )

    @property
    def end_leader_epoch(self) -> int:
        """The leader epoch of the last record before the window's end; -1 = not known."""
        return self.epochs.before(self.window.end_offset)

    def may_have(self, leader_epoch: int) -> bool:
        """Whether records below the window's end can be of this epoch.

        Epochs grow along a log: a record of a higher one that is found there was written after the
        log had been cut, and is not the one that was read.
        """
        return self.end_leader_epoch < 0 or leader_epoch <= self.end_leader_epoch

    @property
    def tokens_left(self) -> int:
        """Lock tokens of this owner epoch; at 0 a new claim must raise the epoch."""
        return limits.TOKEN_SEQUENCE_MAX - self._token_sequence

    @property
    def ready(self) -> int:
        """Due records that a member without locks could have; with order it may be too high."""
        return self.window.due if self.order is None else self.order.ready

    @property
    def room(self) -> int:
        """How many new records may enter the window (design 5.4)."""
        window, order, most = self.window, self.order, self._settings.record_locks_max
        if self._is_full:
            return 0
        if order is None:
            return max(0, most - window.acquired - window.due)
        # What a blocked key holds back is bounded by ranges alone, as are delayed records.
        unfinished = window.acquired + window.due + window.delayed - order.blocked_records
        free = most - window.acquired - order.ready
        return max(0, min(free, limits.WINDOW_RECORDS_MAX - unfinished))

    @property
    def full_at(self) -> int | None:
        """The offset that must be finished before anything new is read, if the window is full."""
        if not self._is_full:
            return None
        blocked = None if self.order is None else self.order.first_blocked()
        return self.window.start_offset if blocked is None else blocked

    @property
    def _is_full(self) -> bool:
        ranges = len(self.window.ranges) + self.window.parked.segments
        return ranges >= self._settings.window_ranges_max

    def due_ranges(self, records_max: int, member_id: str | None = None) -> list[Range]:
        """Ranges that a member may have again, lowest offset first, until `records_max` is reached.

        Without order the last range is given whole, so the sum may exceed `records_max`. With order
        these are parts of ranges, and a member may go on with the keys that it holds; without a
        member, they are what a member without locks may have.
        """
        if self.order is None:
            return self.window.due_ranges(records_max)
        return self.order.ready_ranges(records_max, member_id)

    # -- changing -------------------------------------------------------------------------------

    def apply(self, decision: Decision) -> None:
        """Carries out a decision of this partition that was made on its present state."""
        if decision.log_start_offset is not None:
            self.log_start_offset = decision.log_start_offset
        if decision.isolation is not None:
            self.isolation = decision.isolation
        if not decision.changes_anything:
            return
        if decision.truncate_to is not None:
            self.log_start_offset = min(self.log_start_offset, decision.truncate_to)
            self.window.truncate(decision.truncate_to)
            self.epochs.cut(decision.truncate_to)
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
        due: Sequence[Range],
        fresh: Sequence[Run],
    ) -> Decision:
        """Hands records to a member: due ones first, then new ones (KIP-932, 2.5-2.8).

        In groups with order, new records that must wait enter the window as AVAILABLE (design 5.6),
        so `end_offset` may pass records that nobody has got yet.

        `max_records` is strict, except with BATCH_OPTIMIZED, where a whole run may exceed it. `due`
        has ranges of `due_ranges` (or parts) whose payload is at hand, in order. `fresh` has runs
        of existing offsets from `window.end_offset` on, in `key` order with their key hashes; all
        offsets between them are proven gaps.
        """
        settings = self._settings
        plan = plan_acquire(
            self.window,
            self.order,
            settings,
            member_id=member_id,
            max_records=max_records,
            mode=mode,
            due=due,
            fresh=fresh,
            room=self.room,
            may_isolate=self.isolation.allows(member_id, self.window.held, now_ms),
        )
        if self._token_sequence + len(plan.takes) > limits.TOKEN_SEQUENCE_MAX:
            return Decision()
        decision = Decision(end_offset=plan.end_offset, isolate=plan.isolate)
        isolated = self.isolation.member_id == member_id
        if plan.isolate and not isolated:
            decision.isolation = Isolation(member_id, now_ms + settings.lock_duration_ms)
        elif isolated and plan.takes and not plan.isolate:
            decision.isolation = Isolation()
        for first, last, value in plan.worn_out:
            gone = outcomes.archived(value, settings, DELIVERY_LIMIT, None)
            decision.edits.append(Edit(first, last, gone))
        deadline_ms = now_ms + settings.lock_duration_ms
        for take in plan.takes:
            self._grant(decision, take, member_id, deadline_ms)
        decision.edits += [Edit(*take) for take in plan.waiting]
        if plan.worn_out or plan.waiting:
            decision.edits.sort(key=_first_of)
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
        self,
        now_ms: int,
        member_id: str,
        ranges: Sequence[AcknowledgedRange],
        *,
        is_atomic: bool = False,
    ) -> Decision:
        """Settles ranges that a member holds (design 5.2; KIP-932, 3.2). Answers per range.

        Ranges must ascend and not overlap; one that does not gets INVALID_REQUEST and changes
        nothing. If this `is_atomic`, one range that can not be settled keeps all others from it,
        but for offsets below the start offset (KIP-932, 3.4).
        """
        decision = Decision()
        previous_last = -1
        cached: Range | None = None
        memo_old: RangeState | None = None
        memo_said: tuple[AcknowledgeType, tuple[object, ...]] | None = None
        memo_new: RangeState | None = None
        edits, make_edit, settings = decision.edits, Edit, self._settings
        for item in ranges:
            first, last, kind, token = item[:4]
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
            said = (kind, item[4:])
            if old is not memo_old or said != memo_said:
                memo_new = outcomes.settled(old, settings, now_ms, item)
                memo_old, memo_said = old, said
            edits.append(make_edit(first, last, memo_new))
        below_start = AcknowledgeOutcome.UNKNOWN_OUTCOME
        if is_atomic and any(each.outcome is not below_start for each in decision.exceptions):
            return Decision(exceptions=decision.exceptions)
        if self.order is None and self.log_start_offset <= self.window.start_offset:
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
        first, last, kind, token = item[:4]
        outcome, window = AcknowledgeOutcome, self.window
        if first < window.start_offset:
            below = min(last, window.start_offset - 1)
            decision.exceptions.append(RangeOutcome(first, below, outcome.UNKNOWN_OUTCOME))
        beyond = max(first, window.end_offset)
        position, end = max(first, window.start_offset), min(last, window.end_offset - 1)
        for left, right, value in window.ranges.within(position, end):
            if left > position:
                decision.exceptions += self._uncovered(position, left - 1, kind)
            if self._settles(value, member_id, token, kind):
                new = outcomes.settled(value, self._settings, now_ms, item)
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
        """Answers for offsets without a range: a parked record has no lock, others are finished.

        A RELEASE that is repeated may find its records parked: they are as it asks for.
        """
        outcome = AcknowledgeOutcome
        found: list[RangeOutcome] = []
        for start, end, parked in split(self.window.parked.spans(first, last), first, last):
            if not parked:
                finished = RecordState.ACKNOWLEDGED
                found.append(RangeOutcome(start, end, outcome.ALREADY_FINISHED, finished))
            elif kind not in (RELEASE, RETURN):
                found.append(RangeOutcome(start, end, outcome.LOCK_LOST))
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
        decision = self._give_up(ended, now_ms, TakenBackReason.LOCK_ENDED)
        decision.timed_out = {
            each.value.member_id for each in ended if each.value and each.value.member_id
        }
        return decision

    def decide_release_member(self, now_ms: int, member_id: str) -> Decision:
        """Releases all records of a departed member; the deliveries count (KIP-932, T11)."""
        held = [Edit(*found) for found in self.window.held_by(member_id)]
        held.sort()
        decision = self._give_up(held, now_ms)
        if self.isolation.member_id == member_id:
            decision.isolation = Isolation()
        return decision

    def _give_up(
        self, held: Sequence[Edit], now_ms: int, told: TakenBackReason | None = None
    ) -> Decision:
        """Ends locks; `told` is the reason that their holders hear, None = they are gone."""
        decision = Decision()
        if told is not None:
            decision.taken_back = taken_back_of(held, told)
        memo_old: RangeState | None = None
        memo_new: RangeState | None = None
        for first, last, value in held:
            assert value is not None, "only an acquired range can be given up"
            if value is not memo_old:
                memo_old, memo_new = value, outcomes.released(value, self._settings, now_ms)
            decision.edits.append(Edit(first, last, memo_new))
        return self._completed(decision, now_ms)

    def _completed(self, decision: Decision, now_ms: int) -> Decision:
        """Adds the consequences of locks that end.

        The rest of broken chains goes back (design 5.6); records below the log start are archived
        instead of being due, unless their payload is kept.
        """
        if self.order is not None and decision.edits:
            take_back_chains(self.window, self.order, self._settings, decision, now_ms)
        decision.edits = log_start.cut_off(decision.edits, self.log_start_offset, self.kept)
        return decision

    def decide_lock_book(
        self,
        now_ms: int,
        member_id: str,
        book: Sequence[HeldRange],
        forgets_after_ms: int | None = None,
        *,
        counts: bool = False,
    ) -> Decision:
        """Compares the lock book of a re-joined member with its locks (design 5).

        Locks that are not in the book were never received: their records go back unseen. Entries of
        the book that are not locks of the member are reported as lost. A lock that ended
        `forgets_after_ms` ago may be missing though it was received, so its delivery counts; None =
        the book forgets nothing. Of members that show no book at a join every delivery `counts`.
        """
        decision = Decision()
        shown: dict[int, list[HeldRange]] = {}
        for entry in book:
            if entry.first <= entry.last:
                shown.setdefault(entry.lock_token, []).append(entry)
        for first, last, value in self.window.held_by(member_id):
            if forgets_after_ms is not None and value.deadline_ms + forgets_after_ms <= now_ms:
                continue
            ended = outcomes.released if counts else outcomes.returned
            back = ended(value, self._settings, now_ms)
            known = [entry[:2] for entry in sorted(shown.get(value.lock_token, ()))]
            for start, end in uncovered(known, first, last):
                decision.edits.append(Edit(start, end, back))
                if not counts:
                    decision.unseen.append(HeldRange(start, end, value.lock_token))
        decision.edits.sort()
        for entry in book:
            decision.lost.extend(self._lost_parts(member_id, entry))
        self._completed(decision, now_ms)
        for taken in decision.taken_back:
            entries = sorted(entry[:2] for entry in shown.get(taken.lock_token, ()))
            decision.lost += [
                HeldRange(*span, taken.lock_token)
                for span in within(entries, taken.first, taken.last)
            ]
        # The answer to the book tells the member.
        decision.taken_back = ()
        return decision

    def lost_of(self, held: Sequence[TakenBack]) -> list[TakenBack]:
        """The locks among `held` that their members do not have any more."""
        return [
            taken._replace(first=lost.first, last=lost.last)
            for taken in held
            for lost in self._lost_parts(taken.member_id, HeldRange(*taken[1:4]))
        ]

    def _lost_parts(self, member_id: str, entry: HeldRange) -> list[HeldRange]:
        """The parts of a lock-book entry that the member does not hold under its token."""
        if entry.first > entry.last:
            return [entry]
        held = (
            (first, last)
            for first, last, value in self.window.ranges.overlapping(entry.first, entry.last)
            if value.lock_token == entry.lock_token and value.member_id == member_id
        )
        lost = uncovered(held, entry.first, entry.last)
        return [HeldRange(*span, entry.lock_token) for span in lost]

    # -- the log --------------------------------------------------------------------------------

    def decide_log_start(self, log_start_offset: int) -> Decision:
        """The log start moved: due records below it are archived, and counted (design 5.12).

        Records whose payload is kept go on, and so do acquired ones, which are archived when they
        fail. Records that were never acquired are archived as one range: no loss is silent.
        """
        window = self.window
        gone = log_start.gone(window, log_start_offset, self.kept)
        decision = Decision(edits=gone, log_start_offset=log_start_offset)
        if window.end_offset < log_start_offset:
            missed = RangeState(RecordState.ARCHIVED, reason=str(ArchiveReason.LOG_START))
            decision.edits.append(Edit(window.end_offset, log_start_offset - 1, missed))
            decision.end_offset = log_start_offset
        return decision

    def decide_gap(self, first: int, last: int) -> Decision:
        """A re-read proved that due records in [first, last] are no longer in the log."""
        found = log_start.available_in(self.window, first, last, self.kept)
        return Decision(edits=[Edit(start, end, None) for start, end, _ in found])

    def decide_gap_ahead(self, end_offset: int) -> Decision:
        """[window end, `end_offset`) is a proven gap: the window moves over it."""
        return Decision(end_offset=end_offset if end_offset > self.window.end_offset else None)

    def decide_truncate(self, offset: int) -> Decision:
        """The log was truncated: ranges and locks from `offset` on are void (design 5.12).

        The state epoch must be raised, for offsets will be used again.
        """
        window = self.window
        if offset >= window.end_offset:
            return Decision()
        held = [Edit(*dropped) for dropped in window.ranges.within(offset, window.end_offset)]
        taken_back = taken_back_of(held, TakenBackReason.TRUNCATED)
        return Decision(truncate_to=offset, taken_back=taken_back)

    # -- dead letters and operators -------------------------------------------------------------

    def decide_dead_letter_done(self, first: int, last: int) -> Decision:
        """The dead letters of [first, last] are safe: what is ARCHIVING there is ARCHIVED (T18)."""
        return Decision(
            edits=[
                Edit(start, end, value._replace(state=RecordState.ARCHIVED))
                for start, end, value in self.window.ranges.within(first, last)
                if value.state is RecordState.ARCHIVING
            ]
        )

    def decide_force(self, now_ms: int, first: int, last: int, action: ForceAction) -> Decision:
        """An operator ends locks and waits in [first, last] (design 7).

        RELEASE makes acquired and delayed records due at once; a record at its delivery limit is
        archived as by any release. SKIP archives acquired, delayed and due records without dead
        letters; FINISH takes them for accepted.
        """
        decision = Decision()
        acquired = RecordState.ACQUIRED
        for start, end, value in self.window.ranges.within(first, last):
            if value.state not in (RecordState.AVAILABLE, acquired):
                continue
            new: RangeState | None
            if action is ForceAction.FINISH:
                new = None
            elif action is ForceAction.SKIP:
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
            decision.edits.append(Edit(start, end, new))
        return self._completed(decision, now_ms)


def _first_of(edit: Edit) -> int:
    return edit.first
