"""The share-partition and its record-by-record twin, driven by the same random commands.

After every step: equal records, all counts equal to a recount, stored rows equal to the ranges,
and the invariants of design 4 that one share-partition can show.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sharecoord.core.changes import InFlightRow, PartitionHead
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.share_partition import (
    AcknowledgedRange,
    Decision,
    HeldRange,
    SharePartition,
)
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, AcquireMode, ForceAction, Ordering, RecordState
from sharecoord.core.window.window import Keys
from sharecoord.eventlog.schema import RangeEvent
from sharecoord.store.memory.delayed import truncate
from tests.invariants import archiving, check_decision, check_partition
from tests.property.conversions import (
    Found,
    as_record,
    from_row,
    once_where_malformed,
    spread,
    to_row,
    without_key,
)
from tests.property.oracle import ACQUIRED, ARCHIVING, AVAILABLE, Oracle, Plan, Record
from tests.property.told import BY_ACKNOWLEDGING, BY_ACQUIRING, BY_FORCE, NOT_BY_THEMSELVES, Told
from tests.support import columns_of

MEMBERS = ("ann", "bob", "cy")
OFFSETS_MAX = 120
TYPES = st.sampled_from(list(AcknowledgeType))
KINDS = [None, *AcknowledgeType]
KINDS_PLAIN = [None, AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE]


class SharePartitionMachine(RuleBasedStateMachine):
    """Both implementations, a simulated table of rows, a clock and a log."""

    orderings: Sequence[Ordering] = (Ordering.UNORDERED,)

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A new share-partition with drawn settings."""
        first = data.draw(st.sampled_from([0, 7]), label="start offset")
        chosen = PartitionSettings(
            lock_duration_ms=1_000,
            delivery_limit=data.draw(st.sampled_from([1, 2, 3, 5, 7]), label="limit"),
            record_locks_max=data.draw(st.sampled_from([1, 8, 25, 2_000]), label="locks"),
            renew_enabled=data.draw(st.booleans(), label="renew"),
            dead_letter_topic=data.draw(st.sampled_from(["", "dead"]), label="dead letters"),
            retry_backoff_ms=data.draw(st.sampled_from([0, 0, 300]), label="back-off"),
            retry_backoff_max_ms=2_000,
            retry_backoff_jitter=data.draw(st.sampled_from([0.0, 0.5]), label="jitter"),
            ordering=data.draw(st.sampled_from(self.orderings), label="ordering"),
            chain_max=data.draw(st.sampled_from([1, 3, 256]), label="chain"),
        )
        self.now, self.epoch, self.base = 1_000, 1, first
        self.real = SharePartition(
            PartitionHead(first, first, -1, 0, 0), owner_epoch=1, settings=chosen
        )
        self.twin = Oracle(first, first, chosen)
        self.rows: dict[int, InFlightRow] = {}
        self.told = Told()
        self.keys: dict[int, int] = {}
        self.tokens: set[int] = set()
        self.accepted: set[int] = set()
        self.gone: dict[int, str] = {}
        self.hand_outs: dict[int, int] = {}
        self.old_locks: list[AcknowledgedRange] = []
        self.real.window.advance(self.now)
        self.twin.due_until = self.now

    # -- helpers --------------------------------------------------------------------------------

    def carry_out(
        self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED
    ) -> set[RangeEvent]:
        """Applies and stores a decision, as the runtime does; returns what the event log says."""
        check_decision(self.real, decision)
        told = self.told.note(self.real.window, decision, ended_by)
        for first, last, value in decision.edits:
            for offset in range(first, last + 1):
                if value is None:
                    found = self.real.window.ranges.get(offset)
                    if found is not None and found[2].state is ACQUIRED:
                        self.accepted.add(offset)
                    self.gone[offset] = "finished"
                elif value.state is RecordState.ARCHIVED:
                    self.gone[offset] = str(value.reason)
        assert archiving(decision) == [
            (e.first, e.last, e.value)
            for e in decision.edits
            if e.value is not None and e.value.state is ARCHIVING
        ]
        before = self.real.change_sequence
        self.real.apply(decision)
        assert self.real.change_sequence == before + decision.changes_anything
        self.store()
        return told

    def store(self) -> None:
        """Writes the dirty rows, as a group commit does."""
        truncated_at = self.real.window.take_truncation()
        if truncated_at is not None:
            truncate(self.rows, truncated_at)
        for first, change in self.real.window.dirty.items():
            if change is None:
                self.rows.pop(first, None)
            else:
                self.rows[first] = to_row(first, *change)
        self.real.window.dirty.clear()

    def bring(self) -> None:
        """All ranges are in memory; here they always are."""

    def ranges(self) -> list[Found]:
        """All ranges, those that are in the store alone included."""
        parked = self.real.window.parked
        left = [from_row(row) for row in self.rows.values() if parked.covers(*row[:2])]
        return sorted([*self.real.window.ranges, *left])

    def some_due(self, data: st.DataObject, member: str) -> list[Found]:
        """Due ranges whose payload is at hand: some are missing, some are cut."""
        wanted = data.draw(st.sampled_from([1, 5, 1_000]), label="look for")
        found = self.real.due_ranges(wanted, member)
        expected = self.twin.ready(member)
        assert spread(found) == expected[: len(spread(found))]
        assert len(spread(found)) >= min(wanted, len(expected))
        if data.draw(st.booleans(), label="all at hand"):
            return found
        chosen: list[Found] = []
        for first, last, value in found:
            here = data.draw(st.sampled_from(["yes", "yes", "no", "part"]), label="at hand")
            left, right = first, last
            if here == "part":
                left = data.draw(st.integers(first, last))
                right = data.draw(st.integers(left, last))
            if here != "no":
                chosen.append((left, right, value))
        return chosen

    def some_fresh(self, data: st.DataObject) -> list[Run]:
        """New records beyond the window, with gaps between them."""
        shape = st.lists(st.tuples(st.sampled_from([0, 0, 2]), st.integers(1, 12)), max_size=3)
        position, runs = self.real.window.end_offset, []
        for gap, size in data.draw(shape, label="new data (gap, size)"):
            first = position + gap
            position = first + size
            if position - self.base > OFFSETS_MAX:
                break
            runs.append(Run(first, position - 1, self.draw_keys(data, first, size)))
        return runs

    def draw_keys(self, data: st.DataObject, first: int, size: int) -> Keys | None:
        """Key hashes of new records (none where no order is kept)."""
        if self.real.settings.ordering is not Ordering.KEY:
            return None
        for offset in range(first, first + size):
            if offset not in self.keys:
                self.keys[offset] = data.draw(st.integers(0, 2), label=f"key of {offset}")
        offsets = range(first, first + size)
        return Keys(first, b"".join(self.keys[o].to_bytes(8, "big") for o in offsets))

    def some_range(self, data: st.DataObject) -> tuple[int, int]:
        """Any range of offsets near the window, right or wrong."""
        low = max(self.real.window.start_offset - 2, 0)
        first = data.draw(st.integers(low, self.real.window.end_offset + 1))
        return first, first + data.draw(st.integers(0, 12))

    def some_acknowledgements(self, data: st.DataObject, member: str) -> list[AcknowledgedRange]:
        """Parts of what the member holds, sometimes with mistakes; sometimes old locks."""
        items: list[AcknowledgedRange] = []
        plain = data.draw(st.booleans(), label="accept and release only")
        for first, last, value in sorted(self.real.window.held_by(member)):
            left = first if plain else data.draw(st.integers(first, last))
            while left <= last:
                right = min(left + data.draw(st.sampled_from([0, 1, 2, 20])), last)
                kind = data.draw(st.sampled_from(KINDS_PLAIN if plain else KINDS))
                if kind is not None:
                    delay = 0 if plain else data.draw(st.sampled_from([0, 700]))
                    reason = None if plain else data.draw(st.sampled_from([None, "no"]))
                    items.append(
                        AcknowledgedRange(left, right, kind, value.lock_token, delay, reason)
                    )
                left = right + 1
        if items:
            self.old_locks.append(items[0])
        if data.draw(st.integers(0, 3), label="mistakes") == 0:
            first, last = self.some_range(data)
            token = data.draw(st.sampled_from([0, 1, *(i.lock_token for i in items)]))
            items.append(AcknowledgedRange(first, last, data.draw(TYPES), token))
            if self.old_locks:
                items.append(data.draw(st.sampled_from(self.old_locks[-8:])))
            if data.draw(st.booleans(), label="in order"):
                # Two items may differ in their reason alone, and None has no place among texts.
                items.sort(key=lambda item: (*item[:5], item.reason or ""))
        return items

    # -- commands -------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        member=st.sampled_from(MEMBERS),
        mode=st.sampled_from(list(AcquireMode)),
        max_records=st.sampled_from([0, 1, 2, 10, 500]),
    )
    def acquire(
        self, data: st.DataObject, member: str, mode: AcquireMode, max_records: int
    ) -> None:
        """Redelivery, then new data."""
        self.acquire_of(
            self.some_due(data, member), self.some_fresh(data), member, mode, max_records
        )

    def acquire_of(
        self,
        due: list[Found],
        fresh: list[Run],
        member: str,
        mode: AcquireMode,
        max_records: int,
    ) -> Plan:
        """One acquire of both, compared."""
        soft = mode is AcquireMode.BATCH_OPTIMIZED
        room = self.real.room
        plan = self.twin.plan(
            self.now,
            member,
            max_records=max_records,
            soft=soft,
            due=spread(due),
            fresh=fresh,
            room=room,
        )
        decision = self.real.decide_acquire(
            self.now, member, max_records=max_records, mode=mode, due=due, fresh=fresh
        )
        assert spread(decision.acquired) == plan.taken
        assert decision.isolate == plan.isolate
        assert self.real.isolation.member_id == self.twin.isolating
        for taken in decision.acquired:
            assert taken.lock_token not in self.tokens
            self.tokens.add(taken.lock_token)
            for offset in range(taken.first, taken.last + 1):
                old = self.twin.records.get(offset, Record())
                assert taken.delivery_count == old.count + 1 <= self.real.settings.delivery_limit
                assert offset not in self.accepted
        if not soft:
            assert len(plan.taken) <= max_records
            assert len([o for o in plan.taken if o in plan.entered]) <= room
        tokens = {o: t.lock_token for t in decision.acquired for o in range(t.first, t.last + 1)}
        told = self.carry_out(decision)
        assert told <= BY_ACQUIRING
        self.twin.acquire(self.now, member, plan, tokens)
        return plan

    @rule(data=st.data(), member=st.sampled_from(MEMBERS))
    def acknowledge(self, data: st.DataObject, member: str) -> None:
        """All types, whole and partial, right and wrong."""
        items = self.some_acknowledgements(data, member)
        parked = self.real.window.parked
        if any([*parked.spans(item.first, item.last)] for item in items):
            self.bring()
        decision = self.real.decide_acknowledge(self.now, member, items)
        real = [
            (offset, (outcome, state))
            for first, last, outcome, state in decision.exceptions
            for offset in range(first, max(first, last) + 1)
        ]
        real = once_where_malformed(items, real)
        told = self.carry_out(decision)
        assert told <= {*BY_ACKNOWLEDGING, *NOT_BY_THEMSELVES}
        assert real == self.twin.acknowledge(self.now, member, items)

    @rule(data=st.data(), member=st.sampled_from(MEMBERS), requests=st.integers(1, 4))
    def work(self, data: st.DataObject, member: str, requests: int) -> None:
        """A member takes records and answers piece by piece."""
        self.acquire(data, member, AcquireMode.FAIR, 10)
        for _ in range(requests):
            self.records_are_equal()
            self.acknowledge(data, member)

    @rule(ms=st.sampled_from([1, 100, 400, 1_000, 5_000]))
    def time_passes(self, ms: int) -> None:
        """Delayed records become due."""
        self.bring()
        self.now += ms
        before = sum(self.twin.is_due(o) for o in self.twin.records)
        self.twin.due_until = self.now
        after = sum(self.twin.is_due(o) for o in self.twin.records)
        times = [
            r.available_at
            for r in self.twin.records.values()
            if r.state is AVAILABLE and r.available_at > self.now - ms
        ]
        next_due = self.real.window.next_due_ms()
        assert not times or (next_due is not None and next_due <= min(times))
        assert self.real.window.advance(self.now) == after - before

    @rule()
    def expire(self) -> None:
        """Locks end whose time is over."""
        deadlines = [r.deadline for r in self.twin.records.values() if r.state is ACQUIRED]
        next_deadline = self.real.window.next_deadline_ms()
        assert not deadlines or (next_deadline is not None and next_deadline <= min(deadlines))
        told = self.carry_out(self.real.decide_expire(self.now), RangeEvent.EXPIRED)
        assert told <= {RangeEvent.EXPIRED, *NOT_BY_THEMSELVES}
        self.twin.expire(self.now)

    @rule(member=st.sampled_from(MEMBERS))
    def release_member(self, member: str) -> None:
        """A member departs."""
        told = self.carry_out(
            self.real.decide_release_member(self.now, member), RangeEvent.DEPARTED
        )
        assert told <= {RangeEvent.DEPARTED, *NOT_BY_THEMSELVES}
        self.twin.release_member(self.now, member)

    @rule(data=st.data(), member=st.sampled_from(MEMBERS))
    def compare_lock_books(self, data: st.DataObject, member: str) -> None:
        """A member joins again and shows what it holds, or believes to hold."""
        book: list[HeldRange] = []
        for first, last, value in self.real.window.held_by(member):
            if data.draw(st.booleans(), label="shown"):
                left = data.draw(st.integers(first, last))
                right = data.draw(st.integers(left, last))
                book.append(HeldRange(left, right, value.lock_token))
        if data.draw(st.booleans(), label="mistake"):
            token = data.draw(st.sampled_from([1, *(e.lock_token for e in book)]))
            book.append(HeldRange(*self.some_range(data), token))
        decision = self.real.decide_lock_book(self.now, member, book)
        assert self.carry_out(decision) <= set(NOT_BY_THEMSELVES)
        lost = {(o, e.lock_token) for e in decision.lost for o in range(e.first, e.last + 1)}
        assert lost == self.twin.lock_book(self.now, member, book)

    @rule(ahead=st.integers(-3, 20))
    def log_start_moves(self, ahead: int) -> None:
        """Retention, or records deleted."""
        self.bring()
        log_start = max(self.twin.log_start, self.real.window.start_offset + ahead)
        if log_start - self.base <= OFFSETS_MAX:
            self.carry_out(self.real.decide_log_start(log_start))
            self.twin.move_log_start(log_start)

    @rule(data=st.data())
    def gap_is_proven(self, data: st.DataObject) -> None:
        """A re-read shows that records are gone."""
        self.bring()
        first, last = self.some_range(data)
        assert self.carry_out(self.real.decide_gap(first, last)) <= {RangeEvent.GAP}
        self.twin.gap(first, last)

    @rule(ahead=st.sampled_from([-1, 0, 1, 3]))
    def skip_a_gap(self, ahead: int) -> None:
        """Control records at the end of the window."""
        end = self.real.window.end_offset + ahead
        self.carry_out(self.real.decide_gap_ahead(end))
        self.twin.skip(end)

    @rule(back=st.integers(0, 12))
    def log_is_truncated(self, back: int) -> None:
        """Unclean leader election: the end goes back, offsets are used again."""
        offset = max(self.real.window.end_offset - back, 0)
        decision = self.real.decide_truncate(offset)
        if back:
            told = [o for taken in decision.taken_back for o in range(taken.first, taken.last + 1)]
            assert sorted(told) == [
                o
                for o, record in sorted(self.twin.records.items())
                if o >= offset and record.state is ACQUIRED
            ]
            self.carry_out(decision)
            self.twin.truncate(offset)
        else:
            assert not decision.changes_anything
        self.accepted = {o for o in self.accepted if o < offset}
        self.keys = {o: key for o, key in self.keys.items() if o < offset}

    @rule(data=st.data())
    def dead_letters_are_safe(self, data: st.DataObject) -> None:
        """Kafka confirmed dead letters."""
        first, last = self.some_range(data)
        told = self.carry_out(self.real.decide_dead_letter_done(first, last))
        assert told <= {RangeEvent.DEAD_LETTERED}
        self.twin.dead_letters_done(first, last)

    @rule(data=st.data(), action=st.sampled_from(list(ForceAction)))
    def operator_forces(self, data: st.DataObject, action: ForceAction) -> None:
        """Release, archive or finish, whoever holds the records."""
        self.bring()
        first, last = self.some_range(data)
        told = self.carry_out(
            self.real.decide_force(self.now, first, last, action), BY_FORCE[action]
        )
        assert told <= {BY_FORCE[action], *NOT_BY_THEMSELVES}
        self.twin.force(self.now, first, last, action)

    @rule(limit=st.sampled_from([1, 2, 3, 5, 7]), locks=st.sampled_from([1, 8, 25, 2_000]))
    def limits_change(self, limit: int, locks: int) -> None:
        """The group's settings change at run time."""
        changed = self.real.settings._replace(delivery_limit=limit, record_locks_max=locks)
        self.real.settings = self.twin.settings = changed

    @rule(backoff_ms=st.sampled_from([0, 300]), renew=st.booleans(), letters=st.booleans())
    def policies_change(self, backoff_ms: int, renew: bool, letters: bool) -> None:
        """Back-off, renewal and dead letters are switched at run time."""
        changed = self.real.settings._replace(
            retry_backoff_ms=backoff_ms, renew_enabled=renew, dead_letter_topic="dead" * letters
        )
        self.real.settings = self.twin.settings = changed

    @precondition(lambda self: self.rows)
    @rule()
    def recover(self) -> None:
        """kill -9, and a new owner loads what is stored."""
        self.epoch += 1
        head, sequence = self.real.head, self.real.change_sequence
        parked = self.real.window.parked
        rows = [self.rows[first] for first in sorted(self.rows)]
        loaded = [from_row(row) for row in rows if not parked.covers(*row[:2])]
        self.real = SharePartition(head, owner_epoch=self.epoch, settings=self.real.settings)
        self.real.load(*columns_of(loaded), parked)
        self.real.window.advance(self.now)
        assert not self.real.window.dirty
        assert self.real.head == head
        assert self.real.change_sequence == sequence
        self.twin.isolating = None
        log_start = self.twin.log_start
        self.carry_out(self.real.decide_log_start(log_start))
        self.twin.move_log_start(log_start)

    # -- what holds after every step ------------------------------------------------------------

    @invariant()
    def records_are_equal(self) -> None:
        """The two implementations agree about every record, bound and count."""
        if not hasattr(self, "real"):
            return
        window = self.real.window
        expanded = {
            offset: as_record(offset, value)
            for first, last, value in self.ranges()
            for offset in range(first, last + 1)
        }
        known = {
            o: r if r.state in (AVAILABLE, ACQUIRED) else Record(*without_key(r))
            for o, r in self.twin.records.items()
        }
        different = {
            o: (expanded.get(o), known.get(o))
            for o in expanded.keys() | known.keys()
            if expanded.get(o) != known.get(o)
        }
        assert not different
        assert (window.start_offset, window.end_offset) == (self.twin.start, self.twin.end)
        finished = (
            window.end_offset
            - window.start_offset
            - sum(r.state is not RecordState.ARCHIVED for r in known.values())
        )
        assert self.real.head.finished_count == finished

    @invariant()
    def window_is_sound(self) -> None:
        """Counts, grants and indexes equal a recount; every due range is found."""
        if not hasattr(self, "real"):
            return
        check_partition(self.real)
        for member in MEMBERS[:1]:
            assert spread(self.real.due_ranges(10_000, member)) == self.twin.ready(member)
        if self.real.settings.ordering is Ordering.UNORDERED:
            assert self.real.room == self.twin.room()

    @invariant()
    def rows_are_the_ranges(self) -> None:
        """What is stored is what is in memory."""
        if not hasattr(self, "real"):
            return
        assert [self.rows[f] for f in sorted(self.rows)] == [
            to_row(*found) for found in self.ranges()
        ]

    @invariant()
    def the_event_log_tells_it_all(self) -> None:
        """Who reads nothing but events knows the state and the count of every record."""
        if hasattr(self, "real"):
            self.told.check(self.ranges(), self.base, self.real.window.end_offset)

    @invariant()
    def nothing_is_lost(self) -> None:
        """Every offset from the group's start is finished for a known reason, or still due."""
        if not hasattr(self, "real"):
            return
        for first, last, value in self.ranges():
            if value.state in (AVAILABLE, ACQUIRED):
                assert self.accepted.isdisjoint(range(first, last + 1))

    def teardown(self) -> None:
        """With cooperative members everything ends finished, in bounded steps."""
        if not hasattr(self, "real"):
            return
        self.real.settings = self.twin.settings = self.real.settings._replace(
            record_locks_max=2_000, blocked_keys=frozenset()
        )
        self.work_off()
        window = self.real.window
        assert window.unfinished == window.archiving
        end = window.end_offset
        self.carry_out(self.real.decide_dead_letter_done(window.start_offset, end))
        assert window.start_offset == window.end_offset == end
        assert self.rows == {}
        assert (window.held, window.grants, window.grants_of) == ({}, {}, {})

    def work_off(self) -> None:
        """One member takes and accepts until nothing is left for it."""
        left = len(self.twin.records)
        for _ in range(3 * left + 10):
            self.time_passes(120_000)
            self.expire()
            due = self.real.due_ranges(10_000, "zoe")
            plan = self.acquire_of(due, [], "zoe", AcquireMode.FAIR, 500)
            assert plan.taken or plan.worn_out or not due
            items = [
                AcknowledgedRange(first, last, AcknowledgeType.ACCEPT, value.lock_token)
                for first, last, value in sorted(self.real.window.held_by("zoe"))
            ]
            self.carry_out(self.real.decide_acknowledge(self.now, "zoe", items))
            assert self.twin.acknowledge(self.now, "zoe", items) == []
            if not self.real.window.acquired + self.real.window.due + self.real.window.delayed:
                break
