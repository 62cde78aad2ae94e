"""The second implementation of a share-partition: one entry per record, no ranges, no indexes.

Deliberately slow and simple. It knows the rules of KIP-932 and of design 5 as sentences about one
record; the property tests drive it beside the real core and compare everything.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.share_partition import AcknowledgedRange, HeldRange
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import (
    AcknowledgeOutcome,
    AcknowledgeType,
    ArchiveReason,
    ForceAction,
    Ordering,
    RecordState,
)

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED
UNFINISHED = (AVAILABLE, ACQUIRED)
NO_KEY, UNKNOWN_KEY = 0, None
SPACE = 100_000

Outcome = tuple[AcknowledgeOutcome, RecordState | None]


@dataclass(frozen=True)
class Record:
    """One record inside the window that is neither ACKNOWLEDGED nor a gap."""

    state: RecordState = AVAILABLE
    count: int = 0
    hand_outs: int = 0
    member: str | None = None
    token: int = 0
    deadline: int = 0
    granted: int = 0
    available_at: int = 0
    base: int = 0
    size: int = 0
    reason: str | None = None
    key: int | None = UNKNOWN_KEY
    failed: tuple[int, tuple[str, ...], str | None] | None = None
    """First time, members, last words of the deliveries that failed."""


@dataclass
class Plan:
    """What an acquire does: offsets in order."""

    taken: list[int] = field(default_factory=list)
    worn_out: list[int] = field(default_factory=list)
    entered: dict[int, int | None] = field(default_factory=dict)
    """New records by offset, with their keys; those that are not in `taken` wait."""
    isolate: bool = False
    closed: bool = False


class Oracle:
    """One share-partition, record by record."""

    def __init__(self, start: int, end: int, settings: PartitionSettings) -> None:
        self.start, self.end = start, end
        self.settings = settings
        self.records: dict[int, Record] = {}
        self.due_until = 0
        self.log_start = 0
        self.isolating: str | None = None
        self.isolating_until = 0

    # -- reading --------------------------------------------------------------------------------

    def is_due(self, offset: int) -> bool:
        record = self.records[offset]
        return record.state is AVAILABLE and record.available_at <= self.due_until

    def held(self, member: str) -> list[int]:
        return [
            o for o, r in sorted(self.records.items()) if r.state is ACQUIRED and r.member == member
        ]

    def count(self, state: RecordState) -> int:
        return sum(r.state is state for r in self.records.values())

    def key(self, record: Record) -> int | None:
        """The key that order goes by."""
        return 1 if self.settings.ordering is Ordering.PARTITION else record.key

    def admissible(self, offset: int, record: Record, member: str, plan: Plan) -> bool:
        """Whether order lets this member have the record, after what `plan` does (design 5.6)."""
        if self.settings.ordering is Ordering.UNORDERED or self.key(record) == NO_KEY:
            return True
        mine = self.key(record)
        if mine in self.settings.blocked_keys:
            return False
        if self.settings.ordering is Ordering.KEY and mine is not UNKNOWN_KEY:
            out = [o for o, r in self.records.items() if r.state is ACQUIRED and r.key == mine]
            keys = {o: r.key for o, r in self.records.items()} | plan.entered
            if len(out) + sum(keys[o] == mine for o in plan.taken) >= self.settings.chain_max:
                return False
        known = {**self.records, **{o: Record(key=k) for o, k in plan.entered.items()}}
        for other, its in known.items():
            if its.state not in UNFINISHED or other == offset:
                continue
            key = self.key(its)
            if key == NO_KEY:
                continue
            taken = other in plan.taken
            if other < offset and (mine is UNKNOWN_KEY or key is UNKNOWN_KEY):
                return False
            if key != mine or key is UNKNOWN_KEY or other in plan.worn_out:
                continue
            if its.state is ACQUIRED and its.member != member:
                return False
            if other < offset and its.state is AVAILABLE and not taken:
                return False
        return True

    def ready(self, member: str) -> list[int]:
        """What this member may have of what is due, lowest offset first."""
        plan = Plan()
        for offset in sorted(self.records):
            if self.is_due(offset) and self.admissible(offset, self.records[offset], member, plan):
                plan.taken.append(offset)
        return plan.taken

    # -- acquire --------------------------------------------------------------------------------

    def room(self) -> int:
        """How many new records may enter, where no order is kept."""
        due = sum(self.is_due(o) for o in self.records)
        return max(0, self.settings.record_locks_max - self.count(ACQUIRED) - due)

    def plan(
        self,
        now: int,
        member: str,
        *,
        max_records: int,
        soft: bool,
        due: Sequence[int],
        fresh: Sequence[Run],
        room: int,
    ) -> Plan:
        """Decides an acquire; changes nothing but who is waited for."""
        plan = Plan()
        locks = self.settings.record_locks_max - self.count(ACQUIRED)
        max_records = min(max_records, locks)
        if max_records <= 0:
            return plan
        self._plan_due(plan, now, member, max_records, soft, due)
        if not plan.closed and len(plan.taken) < max_records:
            budget = min(max_records - len(plan.taken), room)
            self._plan_fresh(plan, member, budget, soft, fresh)
        if plan.isolate:
            if self.isolating != member:
                self.isolating = member
                self.isolating_until = now + self.settings.lock_duration_ms
        elif self.isolating == member and plan.taken:
            self.isolating = None
        return plan

    def _plan_due(
        self, plan: Plan, now: int, member: str, budget: int, soft: bool, due: Sequence[int]
    ) -> None:
        limit = self.settings.delivery_limit
        hoped = Plan()
        for offset in due:
            record = self.records[offset]
            if record.count >= limit:
                hoped.worn_out.append(offset)
            elif self.admissible(offset, record, member, hoped):
                hoped.taken.append(offset)
        offsets = sorted(hoped.taken + hoped.worn_out)
        while offsets and not plan.closed and len(plan.taken) < budget:
            base = self.records[offsets[0]].base
            batch = []
            while offsets and self.records[offsets[0]].base == base:
                batch.append(offsets.pop(0))
            self._plan_batch(plan, now, member, budget, soft, batch)
        wanted, plan.taken = plan.taken, []
        worn, plan.worn_out = plan.worn_out, []
        for offset in sorted(wanted + worn):
            if offset in worn:
                plan.worn_out.append(offset)
            elif self.admissible(offset, self.records[offset], member, plan):
                plan.taken.append(offset)
        if not plan.taken:
            plan.closed = plan.isolate

    def _plan_batch(
        self, plan: Plan, now: int, member: str, budget: int, soft: bool, batch: list[int]
    ) -> None:
        """Specification 2.5 and 2.8, offset by offset."""
        limit = self.settings.delivery_limit
        threshold = max(2, -(-limit // 2))
        count = {o: self.records[o].count for o in batch}
        plan.worn_out += [o for o in batch if count[o] >= limit]
        live = [o for o in batch if count[o] < limit]
        if not live:
            return
        if max(count[o] for o in live) < threshold:
            for offset in live:
                if soft or len(plan.taken) < budget:
                    plan.taken.append(offset)
            return
        if plan.taken:
            plan.closed = True
            return
        self._plan_throttled(plan, now, member, live, None if soft else budget)
        if plan.taken:
            plan.closed = True

    def _plan_throttled(
        self, plan: Plan, now: int, member: str, live: list[int], budget: int | None
    ) -> None:
        limit = self.settings.delivery_limit
        threshold = max(2, -(-limit // 2))
        count = {o: self.records[o].count for o in live}
        cap: int | None = None
        for offset in live:
            if limit > 2 and count[offset] == limit - 1:
                if not plan.taken and not self.held(member):
                    plan.taken.append(offset)
                elif not plan.taken and self._may_isolate(now, member):
                    plan.isolate = plan.closed = True
                break
            if cap is None and count[offset] >= threshold:
                cap = max(1, self.records[offset].size >> (count[offset] - threshold + 1))
            if cap is not None and len(plan.taken) >= cap:
                break
            if budget is not None and len(plan.taken) >= budget:
                break
            plan.taken.append(offset)

    def _may_isolate(self, now: int, member: str) -> bool:
        other = self.isolating
        if other is None or other == member:
            return True
        return not self.held(other) or now >= self.isolating_until

    def _plan_fresh(
        self, plan: Plan, member: str, budget: int, soft: bool, fresh: Sequence[Run]
    ) -> None:
        if budget <= 0:
            return
        taken = 0
        space = SPACE - sum(r.state in UNFINISHED for r in self.records.values())
        for run in fresh:
            if taken >= budget:
                return
            for offset in range(run.first, run.last + 1):
                if (not soft and taken >= budget) or len(plan.entered) >= space:
                    return
                key = None
                if run.keys is not None:
                    key = int.from_bytes(run.keys.at(offset), "big")
                admitted = self.admissible(offset, Record(key=key), member, plan)
                plan.entered[offset] = key
                if admitted:
                    plan.taken.append(offset)
                    taken += 1

    def acquire(self, now: int, member: str, plan: Plan, tokens: dict[int, int]) -> None:
        """Carries out a plan; tokens are the real one's choice."""
        for offset in plan.worn_out:
            gone = self._archived(self.records[offset], ArchiveReason.DELIVERY_LIMIT, None)
            self.records[offset] = gone
        for offset, key in plan.entered.items():
            base, size = min(plan.entered), len(plan.entered)
            self.records[offset] = Record(base=base, size=size, key=key)
            self.end = offset + 1
        for offset in plan.taken:
            record = self.records[offset]
            duration = self.settings.lock_duration_ms
            self.records[offset] = replace(
                record,
                state=ACQUIRED,
                count=record.count + 1,
                hand_outs=record.hand_outs + 1,
                member=member,
                token=tokens[offset],
                deadline=now + duration,
                granted=duration,
                available_at=0,
                reason=None,
            )
        self._advance_start()

    # -- acknowledge ----------------------------------------------------------------------------

    def acknowledge(
        self, now: int, member: str, items: Iterable[AcknowledgedRange]
    ) -> list[tuple[int, Outcome]]:
        """Settles; returns the outcomes other than OK, offset by offset."""
        ok: Outcome = (AcknowledgeOutcome.OK, None)
        outcomes: dict[int, Outcome] = {}
        malformed: list[tuple[int, Outcome]] = []
        effects: dict[int, Record | None] = {}
        previous = -1
        for item in items:
            if item.first > item.last or item.first <= previous:
                malformed.append((item.first, (AcknowledgeOutcome.INVALID_REQUEST, None)))
                continue
            previous = item.last
            for offset in range(item.first, item.last + 1):
                outcomes[offset] = self._outcome(offset, member, item)
                record = self.records.get(offset)
                if outcomes[offset] == ok and record is not None and record.state is ACQUIRED:
                    effects[offset] = self._settled(record, now, item)
        for offset in self._finish(now, effects):
            if outcomes.get(offset) == ok:
                outcomes[offset] = (AcknowledgeOutcome.LOCK_LOST, None)
        return sorted([(o, x) for o, x in outcomes.items() if x != ok] + malformed)

    def _outcome(self, offset: int, member: str, item: AcknowledgedRange) -> Outcome:
        answer = AcknowledgeOutcome
        if offset < self.start:
            return answer.UNKNOWN_OUTCOME, None
        if offset >= self.end:
            return answer.INVALID_REQUEST, None
        record = self.records.get(offset)
        if record is None:
            return answer.ALREADY_FINISHED, RecordState.ACKNOWLEDGED
        if record.state in (ARCHIVING, ARCHIVED):
            return answer.ALREADY_FINISHED, ARCHIVED
        back = (AcknowledgeType.RELEASE, AcknowledgeType.RETURN)
        if record.state is AVAILABLE:
            known = item.type in back and record.token == item.lock_token != 0
            return (answer.OK if known else answer.LOCK_LOST), None
        if record.member != member or record.token != item.lock_token:
            return answer.LOCK_LOST, None
        if item.type is AcknowledgeType.RENEW and not self.settings.renew_enabled:
            return answer.RENEW_DISABLED, None
        return answer.OK, None

    def _settled(self, record: Record, now: int, item: AcknowledgedRange) -> Record | None:
        if item.type is AcknowledgeType.ACCEPT:
            return None
        if item.type is AcknowledgeType.REJECT:
            record = self._failed(record, now, item.reason)
            return self._archived(record, ArchiveReason.REJECTED, item.reason)
        if item.type is AcknowledgeType.RELEASE:
            return self._released(record, now, item.delay_ms, item.reason)
        if item.type is AcknowledgeType.RETURN:
            return self._returned(record, now)
        duration = self.settings.lock_duration_ms
        return replace(record, deadline=now + duration, granted=duration)

    def _released(self, record: Record, now: int, delay: int, reason: str | None) -> Record:
        record = self._failed(record, now, reason)
        if record.count >= self.settings.delivery_limit:
            return self._archived(record, ArchiveReason.DELIVERY_LIMIT, reason)
        wait = delay or self.settings.backoff_ms(record.count, spread=record.token)
        return self._available(record, record.count, now + wait if wait else 0, reason)

    def _returned(self, record: Record, now: int) -> Record:
        over = record.hand_outs - 10 * self.settings.delivery_limit
        wait = 0 if over <= 0 else min(1000 * 2 ** (over - 1), 60_000)
        return self._available(record, record.count - 1, now + wait if wait else 0, record.reason)

    @staticmethod
    def _failed(record: Record, now: int, words: str | None) -> Record:
        first, members, last_words = record.failed or (now // 1000 * 1000, (), None)
        if str(record.member) not in members:
            members = (*members, str(record.member))
            if len(members) > 10:
                members = (*members[:10], "…")
        return replace(record, failed=(first, members, words or last_words))

    @staticmethod
    def _available(record: Record, count: int, at: int, reason: str | None) -> Record:
        return replace(
            record,
            state=AVAILABLE,
            count=count,
            member=None,
            deadline=0,
            granted=0,
            available_at=at,
            reason=reason,
        )

    def _archived(self, record: Record, cause: ArchiveReason, message: str | None) -> Record:
        text = f"{cause}: {message}" if message else str(cause)
        state = ARCHIVING if self.settings.dead_letter_topic else ARCHIVED
        return Record(
            state,
            record.count,
            record.hand_outs,
            base=record.base,
            size=record.size,
            reason=text,
            failed=record.failed,
        )

    def _forced(self, record: Record, cause: ArchiveReason) -> Record:
        return Record(ARCHIVED, record.count, record.hand_outs, reason=str(cause))

    def _finish(self, now: int, effects: dict[int, Record | None]) -> list[int]:
        """Carries out effects with what follows from them; returns what went back unseen."""
        back: list[int] = []
        for offset, new in list(effects.items()):
            old = self.records[offset]
            if old.state is ACQUIRED and self._breaks(new):
                back += [o for o in self._chain_after(offset, old) if o not in back]
        back = [
            o for o in back if o not in effects or getattr(effects[o], "state", None) is ACQUIRED
        ]
        effects |= {o: self._returned(self.records[o], now) for o in back}
        for offset, new in effects.items():
            if new is None:
                del self.records[offset]
            elif new.state is AVAILABLE and offset < self.log_start:
                self.records[offset] = self._forced(new, ArchiveReason.LOG_START)
            else:
                self.records[offset] = new
        self._advance_start()
        return back

    @staticmethod
    def _breaks(new: Record | None) -> bool:
        """Whether a chain does not go on after this end of a lock."""
        if new is None or new.state is ACQUIRED:
            return False
        return new.state is AVAILABLE or not str(new.reason).startswith("REJECTED")

    def _chain_after(self, offset: int, old: Record) -> list[int]:
        """Later records of the same key under locks of the same member."""
        key = self.key(old)
        if self.settings.ordering is Ordering.UNORDERED or key in (NO_KEY, UNKNOWN_KEY):
            return []
        return [
            o for o in self.held(str(old.member)) if o > offset and self.key(self.records[o]) == key
        ]

    # -- everything else ------------------------------------------------------------------------

    def expire(self, now: int) -> None:
        ended = [o for o, r in self.records.items() if r.state is ACQUIRED and r.deadline <= now]
        self._finish(now, {o: self._released(self.records[o], now, 0, None) for o in ended})

    def release_member(self, now: int, member: str) -> None:
        if self.isolating == member:
            self.isolating = None
        held = self.held(member)
        self._finish(now, {o: self._released(self.records[o], now, 0, None) for o in held})

    def lock_book(self, now: int, member: str, book: Sequence[HeldRange]) -> set[tuple[int, int]]:
        """Returns the lost entries as (offset, token)."""
        shown = {(o, e.lock_token) for e in book for o in range(e.first, e.last + 1)}
        mine = {(o, self.records[o].token) for o in self.held(member)}
        unseen = sorted(o for o, token in mine - shown)
        back = self._finish(now, {o: self._returned(self.records[o], now) for o in unseen})
        return {(o, t) for o, t in shown if (o, t) not in mine or o in back}

    def move_log_start(self, log_start: int) -> None:
        self.log_start = log_start
        for offset, record in self.records.items():
            if offset < log_start and record.state is AVAILABLE:
                self.records[offset] = self._forced(record, ArchiveReason.LOG_START)
        for offset in range(self.end, log_start):
            self.records[offset] = self._forced(Record(), ArchiveReason.LOG_START)
        self.end = max(self.end, log_start)
        self._advance_start()

    def gap(self, first: int, last: int) -> None:
        for offset in range(first, last + 1):
            record = self.records.get(offset)
            if record is not None and record.state is AVAILABLE:
                del self.records[offset]
        self._advance_start()

    def skip(self, end: int) -> None:
        self.end = max(self.end, end)
        self._advance_start()

    def truncate(self, offset: int) -> None:
        self.records = {o: r for o, r in self.records.items() if o < offset}
        self.end = min(self.end, offset)
        self.start = min(self.start, offset)
        self.log_start = min(self.log_start, offset)
        self._advance_start()

    def dead_letters_done(self, first: int, last: int) -> None:
        for offset, record in self.records.items():
            if first <= offset <= last and record.state is ARCHIVING:
                self.records[offset] = replace(record, state=ARCHIVED)
        self._advance_start()

    def force(self, now: int, first: int, last: int, action: ForceAction) -> None:
        effects: dict[int, Record | None] = {}
        for offset, record in self.records.items():
            if not first <= offset <= last or record.state not in UNFINISHED:
                continue
            worn = record.state is ACQUIRED and record.count >= self.settings.delivery_limit
            if record.state is ACQUIRED and action is ForceAction.RELEASE:
                record = self._failed(record, now, None)
            if action is ForceAction.FINISH:
                effects[offset] = None
            elif action is ForceAction.SKIP:
                effects[offset] = self._forced(record, ArchiveReason.ADMIN)
            elif worn:
                effects[offset] = self._archived(record, ArchiveReason.DELIVERY_LIMIT, None)
            elif record.state is ACQUIRED or record.available_at:
                effects[offset] = self._available(record, record.count, 0, record.reason)
        self._finish(now, effects)

    def _advance_start(self) -> None:
        while self.start < self.end:
            record = self.records.get(self.start)
            if record is not None and record.state is not ARCHIVED:
                return
            self.records.pop(self.start, None)
            self.start += 1
