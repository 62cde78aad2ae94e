"""The owner of one share-partition: core state, payloads, timers, and what waits for commits.

All methods run on the loop and do not wait, so commands of a share-partition are serial by
construction. Loading and claiming is `loading`'s business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

import structlog

from sharecoord.core.changes import PartitionCommit, PartitionKey
from sharecoord.core.decisions import handed_back
from sharecoord.core.events import RangeEvent
from sharecoord.core.records import RecordChunk, gaps_in
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.share_partition import (
    AcknowledgedRange,
    AcquiredRange,
    Decision,
    HeldRange,
    SharePartition,
)
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import NotOwnerError, SharecoordError
from sharecoord.ports import LogReading
from sharecoord.runtime.actor_state import ActorState, Pump
from sharecoord.runtime.alarm import Alarm
from sharecoord.runtime.bounded import UNBOUNDED
from sharecoord.runtime.candidates import (
    DUE_LOOKAHEAD_RECORDS,
    LIFELINE_RECORDS,
    TOKENS_RESERVE,
    Candidates,
    candidates,
)
from sharecoord.runtime.checkpoints import Checkpoints
from sharecoord.runtime.dead_letters import DeadLetters
from sharecoord.runtime.effects import AcknowledgeEffect, Collector, DeliveryEffect, HandBackEffect
from sharecoord.runtime.event_tap import EventTap
from sharecoord.runtime.kept_payloads import KeptPayloads
from sharecoord.runtime.memory_budget import GroupBudget
from sharecoord.runtime.parking import Parking
from sharecoord.runtime.passing_over import PassedOver
from sharecoord.runtime.read_ahead import ReadAhead
from sharecoord.runtime.record_cache import RecordCache, parts_without
from sharecoord.runtime.recovery import commit_of, lock_left_max_ms
from sharecoord.runtime.sessions import Session
from sharecoord.runtime.topic_life import TopicLife

if TYPE_CHECKING:
    from sharecoord.runtime.context import Context

log = structlog.get_logger(__name__)


class PartitionActor:
    """See the module."""

    def __init__(
        self,
        key: PartitionKey,
        partition_id: int,
        *,
        context: Context,
        budget: GroupBudget,
        counts: tuple[dict[str, int], dict[str, int]],
        pump: Pump,
        on_dropped: Callable[[PartitionActor, SharecoordError], None],
        on_missing: Callable[[PartitionActor, int, int], None],
        on_timed_out: Callable[[Collection[str]], None],
        tap: Callable[[PartitionKey, RecordCache], EventTap] | None = None,
    ) -> None:
        self.key = key
        self.partition_id = partition_id
        self.clock = context.clock
        self.state = ActorState.LOADING
        self.stopped_reason = ""
        self.incarnation = self.state_epoch = self.replay_epoch = 0
        self.partition: SharePartition | None = None
        self._settings = PartitionSettings()
        """As of the last incarnation: answers of its commits still go out when it has ended."""
        self.reading: LogReading | None = None
        self.life: TopicLife | None = None
        """What lets records pass as long as the topic is still the same."""
        self.log_end_offset: int | None = None
        self.bound = UNBOUNDED
        self.cache = RecordCache(budget)
        self.fresh = ReadAhead(self.cache)
        self.proven_end = 0
        self.missing_wanted = False
        self.held_back = False
        """Nothing new is read because of the memory limit."""
        self.read_ahead_given_up = False
        """... and reading was closed: it starts anew at the window's end."""
        self.paused = self.resting = self.apart = False
        """An operator's pause; nobody wants it: nothing is read; see `SharedOrder._is_apart`."""
        self.regressed_since_ms: int | None = None
        """Since when the log ends before what was read; None = it does not."""
        self._raises_state_epoch = False
        self.passed_over = PassedOver()
        self.generation = 0
        """Grows when an incarnation ends; what an older one asked for is void."""
        self.delivered_records = self.settled_records = self.dead_letters = 0
        """Sent to members, settled by them, sent to the dead-letter topic, since process start."""
        self.sending: dict[DeliveryEffect, None] = {}
        """Deliveries that wait for their commit."""
        self._unseen: list[tuple[str, Sequence[AcquiredRange | HeldRange]]] = []
        """What was not sent and may be stored as acquired: handed back after the reload."""
        self.loader: asyncio.Task[None] | None = None
        """The load under way; ends when the actor is closed."""
        self.freed = asyncio.Event()
        """Another coordinator gave it free: a claim that waits is made now."""
        self.budget = budget
        self._counts = counts
        """What members hold in all partitions of the group; see `Window.count_into`."""
        self._committer = context.committer
        self._pump = pump
        self._on_dropped = on_dropped
        self._on_missing = on_missing
        self._on_timed_out = on_timed_out
        self._alarm = Alarm(self.clock, self.on_time)
        """For the earliest lock end or due time."""
        self.parking = Parking(context, self)
        self._context = context
        self.letters = DeadLetters(context, self)
        self.checkpoints = Checkpoints(budget)
        self.kept = KeptPayloads(context, self)
        self._events = None if tap is None else tap(key, self.cache)

    # -- life -----------------------------------------------------------------------------------

    def activate(self, partition: SharePartition, *, incarnation: int) -> None:
        """Takes over a loaded share-partition; reading starts afterwards.

        Raises:
            NotOwnerError: It was closed while it was loaded: nobody would stop it any more.
        """
        if self.state is not ActorState.LOADING:
            raise NotOwnerError(self.stopped_reason or f"it is {self.state.value} already")
        self.partition = partition
        self._settings = partition.settings
        partition.window.count_into(*self._counts)
        self._raises_state_epoch = False
        self.incarnation = incarnation
        self.state = ActorState.ACTIVE
        self.fresh.clear()
        self.proven_end = partition.window.end_offset
        self.read_ahead_given_up = self.resting = self.missing_wanted = False
        self.cache.clear()
        self._set_alarm()
        unseen, self._unseen = self._unseen, []
        for member_id, ranges in unseen:
            self.hand_back(member_id, ranges)

    def deactivate(self, state: ActorState, reason: str = "") -> None:
        """Stops serving; nothing of the state is written."""
        self.generation += 1
        self.state = state
        if state is not ActorState.LOADING:
            self._unseen.clear()
        loader, self.loader = self.loader, None
        if state is ActorState.CLOSED and loader and loader is not asyncio.current_task():
            loader.cancel()
        self.stopped_reason = reason
        if self.partition is not None:
            self.partition.window.count_into(None)
            self.partition.share_keys(None)
        self.partition = None
        if self.reading is not None:
            self.reading.close()
            self.reading = None
        self._alarm.cancel()
        for book in (self.parking, self.letters, self.checkpoints, self.kept):
            book.end()
        self.letters = DeadLetters(self._context, self)
        if self._events is not None:
            self._events.begin()
        self.cache.clear()
        self.fresh.clear()

    def drop(self, error: SharecoordError) -> None:
        """A commit failed or was fenced: the whole incarnation goes, then a new claim."""
        if self.partition is not None:
            self.deactivate(ActorState.LOADING)
            self._on_dropped(self, error)

    def leave(self) -> None:
        """Hands out nothing any more; what was decided goes on."""
        self.state = ActorState.LEAVING

    @property
    def lock_left_max_ms(self) -> int:
        """No lock that was granted here can last longer, whatever recoveries add to it."""
        return lock_left_max_ms(self._settings)

    @property
    def pending_ranges(self) -> int:
        """Changed ranges that are not stored yet."""
        return len(self.partition.window.dirty) if self.partition else 0

    def take_commit(self) -> PartitionCommit | None:
        """What must be stored since the last call."""
        if self.partition is None:
            return None
        if self._events is not None:
            self._events.taken()
        if self.parking.park(self.partition.window):
            self._committer.add(self)
        commit = commit_of(self.partition, self.partition_id, self.state_epoch, self.clock)
        for book in (self.letters, self.checkpoints, self.kept, self.passed_over):
            book.into(commit)
        commit.raises_state_epoch, self._raises_state_epoch = self._raises_state_epoch, False
        if commit.raises_state_epoch or commit.passed_over is not None:
            self.state_epoch += 1
        return commit

    def apply_settings(self, settings: PartitionSettings) -> None:
        """New settings act on the next acquire, release or timer."""
        if self.partition is not None:
            if self.parking.holds_back(self.partition, settings):
                self.drop(SharecoordError("order needs all delayed records"))
                return
            self.partition.settings = self._settings = settings
            self.letters.apply_settings(settings)

    # -- the log (ports.LogSink) ----------------------------------------------------------------

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Records arrived."""
        if self.partition is None:
            return
        if chunk.covers_from > max(self.proven_end, self.partition.window.end_offset):
            # What lies between would pass for a gap.
            self._on_dropped(self, SharecoordError(f"the read left out {self.proven_end} ff."))
            return
        self.cache.add(chunk)
        end = self.partition.window.end_offset
        if chunk.first < end:
            # The log's start moved while it was read: not all of it is still to be handed out.
            assert end <= self.partition.log_start_offset, "the window passed what was not read"
            self._recount_fresh()
        else:
            self.fresh.add(chunk)
        if self._events is not None:
            self._events.arrived(chunk.last)
        self.proven_end = max(self.proven_end, chunk.last + 1)
        if self.log_end_offset is None or self.log_end_offset < self.proven_end:
            self.log_end_offset = self.proven_end
        self.adjust_appetite()
        self.cache.evict(self.partition.window.end_offset, self.budget.excess_bytes)
        self._pump(self)

    def on_end(self, end_offset: int) -> None:
        """The end of the log was reached; trailing gaps are proven up to it."""
        self.log_end_offset = end_offset
        self.nothing_before(end_offset)

    def nothing_before(self, offset: int) -> None:
        """What was not passed on before `offset` is not to be handed out."""
        if self.partition is not None:
            self.proven_end = max(self.proven_end, offset)
            self._skip_gap()

    def on_out_of_range(self) -> None:
        """The position is not in the log (any more): resolved by loading anew."""
        self.reading = None
        if self.state is ActorState.ACTIVE:
            self._on_dropped(self, SharecoordError("position out of range"))

    def on_gone(self) -> None:
        """The partition was deleted."""
        self.reading = None
        log.warning("partition is gone", topic=self.key.topic, partition=self.key.partition)

    def adjust_appetite(self) -> None:
        """Reads on or pauses, by what was read ahead and by what memory allows."""
        if self.reading is not None:
            if self.held_back or not self.budget.may_read():
                self.reading.want_more(wanted=False)
                return
            if self.fresh.is_full:
                self.reading.want_more(wanted=False)
            elif self.fresh.is_low:
                self.reading.want_more(wanted=True)

    def hold_back(self, *, held: bool) -> None:
        """Stops reading for the sake of memory, or lets it go on; also what is read anew later."""
        if held or self.held_back:
            self.held_back = held
            self.adjust_appetite()

    def give_up_read_ahead(self) -> int:
        """Forgets all payloads and stops reading; returns how many bytes that makes free.

        Whoever lets reading go on starts it anew at the window's end (`read_ahead_given_up`).
        """
        if self.partition is None or self.reading is None:
            return 0
        freed = self.cache.size_bytes
        self.reading.close()
        self.reading = None
        self.read_ahead_given_up = True
        self.cache.clear()
        self.fresh.clear()
        self.proven_end = self.partition.window.end_offset
        return freed

    def rest(self) -> None:
        """Reads nothing and holds no payloads until a member wants them."""
        self.resting = True
        self.give_up_read_ahead()

    def _skip_gap(self) -> None:
        """Moves the window over a proven gap when no record is left before its end."""
        partition = self.partition
        if partition and not self.fresh.records and partition.window.end_offset < self.proven_end:
            self._commit(partition.decide_skip(self.proven_end))

    # -- acquire --------------------------------------------------------------------------------

    def available(self) -> int:
        """How many records could be handed out now, payloads permitting."""
        partition = self.partition
        if partition is None or self.paused or self.apart or self.letters.is_full:
            return 0
        partition.window.advance(self.clock.now_ms())
        if not self.budget.may_acquire():
            return self._lifeline()
        found = partition.window.ready + min(self.fresh.records, partition.room)
        return self.bound.allows(found, self.clock.now_ms())

    def _lifeline(self) -> int:
        """How many due records may go out although memory is short."""
        assert self.partition is not None, "active"
        window = self.partition.window
        return 0 if window.acquired else min(window.ready, LIFELINE_RECORDS)

    def acquire(self, session: Session, max_records: int) -> int:
        """Hands up to `max_records` to a member; returns how many."""
        partition = self.partition
        assert partition is not None, "only an active partition hands out"
        if partition.tokens_left < TOKENS_RESERVE:
            self._on_dropped(self, SharecoordError("lock tokens used up: a new claim has more"))
            return 0
        now_ms = self.clock.now_ms()
        max_records = self.bound.allows(max_records, now_ms)
        short = not self.budget.may_acquire()
        if short:
            max_records = min(max_records, self._lifeline())
        if not max_records:
            return 0
        window, end_before = partition.window, partition.window.end_offset
        found = self._candidates(session.member_id, max_records, short=short)
        decision = partition.decide_acquire(
            now_ms,
            session.member_id,
            max_records=max_records,
            mode=session.mode,
            due=found.due,
            fresh=found.fresh,
        )
        if not decision.changes_anything:
            return 0
        self._apply(decision)
        delivery = DeliveryEffect.delivery_of(self, decision.acquired)
        if window.end_offset != end_before:
            self.fresh.take(end_before, window.end_offset)
            self.adjust_appetite()
        self.bound.took(delivery.records)
        self._set_alarm()
        if not delivery.records:
            self._committer.add(self)
            # Behind what is to be delivered later, or was worn out, there may be more.
            self._pump(self)
            return 0
        session.sent(delivery.records, delivery.size_bytes, now_ms)
        self.budget.delivers(delivery.size_bytes)
        effect = DeliveryEffect(self, session, delivery)
        self.sending[effect] = None
        self._committer.add(self, effect)
        if not self.fresh.records:
            self._skip_gap()
        return delivery.records

    def _recount_fresh(self) -> None:
        """Counts what was read ahead anew, after the window's end moved by itself."""
        assert self.partition is not None, "active"
        self.fresh.recount(self.partition.window.end_offset)
        self.adjust_appetite()

    def _candidates(self, member_id: str, max_records: int, *, short: bool) -> Candidates:
        """What may be acquired; what must be read again first is asked for."""
        assert self.partition is not None, "active"
        found = candidates(
            self.partition,
            self.cache,
            self.clock,
            member_id=member_id,
            max_records=max_records,
            lookahead=LIFELINE_RECORDS if short else DUE_LOOKAHEAD_RECORDS,
            with_fresh=bool(self.fresh.records) and not short,
        )
        for first, last in found.gaps:
            self._commit(self.partition.decide_gap(first, last))
        self.kept.bring(found.stored)
        if found.missing is not None and not self.missing_wanted:
            self.missing_wanted = True
            self._on_missing(self, *found.missing)
        return found

    def payload_read(self, first: int, last: int, chunks: Sequence[RecordChunk]) -> None:
        """A re-read came back; it is used once the topic is known to be still the same."""
        if self.life is not None:
            self.life.confirm(lambda: self._use_payload(first, last, chunks))

    def _use_payload(self, first: int, last: int, chunks: Sequence[RecordChunk]) -> None:
        """Records go to the cache, what is not there is a gap."""
        self.missing_wanted, self.cache.reread_end = False, last + 1
        partition = self.partition
        if partition is None:
            return
        self.cache.evict(partition.window.end_offset, self.budget.excess_bytes)
        for chunk in chunks:
            for part in parts_without(chunk, self.kept.offsets):
                self.cache.add(part)
        for gap in gaps_in(chunks, first, last):
            self._commit(partition.decide_gap(*gap))
        self._pump(self)

    # -- sending --------------------------------------------------------------------------------

    def hand_back(self, member_id: str, ranges: Sequence[AcquiredRange | HeldRange]) -> None:
        """Takes back unseen what never reached the member; while loading, once that is done."""
        if self.partition is None:
            if self.state is ActorState.LOADING:
                self._unseen.append((member_id, ranges))
            return
        returned = handed_back(ranges)
        decision = self.partition.decide_acknowledge(self.clock.now_ms(), member_id, returned)
        if decision.changes_anything:
            self._commit(decision)
            self._committer.add(self, HandBackEffect(self, member_id, ranges))
        # Also when its locks have ended meanwhile: its credit is back only now.
        self._pump(self, member_id)

    # -- acknowledge, leave, time ---------------------------------------------------------------

    def acknowledge(
        self,
        session: Session,
        ranges: Sequence[AcknowledgedRange],
        collector: Collector,
        *,
        may_wait: bool,
        work_us: float = 0.0,
    ) -> int:
        """Settles what a member says; returns how many records it holds no longer.

        Args:
            session: Who says it.
            ranges: What it says.
            collector: Hears the answer when it is durable.
            may_wait: Whether the commit may wait for others.
            work_us: The application's time per record; 0 = unknown.
        """
        partition = self.partition
        assert partition is not None, "only an active partition is asked"
        renewed = any(r.type is AcknowledgeType.RENEW for r in ranges)
        if renewed and (refused := self.checkpoints.refusal(ranges, partition.settings)):
            collector.refuse(self.key, refused)
            return 0
        now_ms = self.clock.now_ms()
        before = partition.window.held.get(session.member_id, 0)
        decision = partition.decide_acknowledge(now_ms, session.member_id, ranges)
        self._apply(decision, work_us=work_us)
        if renewed:
            self.checkpoints.keep(ranges, decision.exceptions, self.clock.to_store(now_ms))
        settled = before - partition.window.held.get(session.member_id, 0)
        effect = AcknowledgeEffect(
            collector,
            self,
            session,
            ranges,
            decision.exceptions,
            lock_remaining_ms=partition.settings.lock_duration_ms if renewed else 0,
            settled=settled,
        )
        self._committer.add(self, effect, may_wait=may_wait)
        self.cache.drop_below(partition.window.start_offset)
        self._set_alarm()
        self._pump(self)
        return settled

    def release_member(self, member_id: str) -> None:
        """A member left or its session ended: its locks end, its deliveries count.

        What has not been sent yet goes back unseen.
        """
        for effect in [e for e in self.sending if e.session.member_id == member_id]:
            effect.hand_back()
        if self.partition is not None:
            gone = self.partition.decide_release_member(self.clock.now_ms(), member_id)
            self._commit(gone, RangeEvent.DEPARTED)

    def compare_lock_book(
        self, member_id: str, book: Sequence[HeldRange], *, is_shown_again: bool = False
    ) -> list[HeldRange]:
        """Settles how a lock book differs, again if that fails; returns what is lost."""
        assert self.partition is not None, "only an active partition compares"
        forgets_ms = self._context.books_forget_after_ms
        decision = self.partition.decide_lock_book(self.clock.now_ms(), member_id, book, forgets_ms)
        self._commit(decision)
        if decision.unseen and not is_shown_again:
            self._committer.add(self, HandBackEffect(self, member_id, decision.unseen))
        return decision.lost

    def truncate(self, offset: int) -> None:
        """The log lost its end: state from `offset` on is void, and so are its locks."""
        assert self.partition is not None, "active"
        log.warning("log truncated", partition=self.key, offset=offset)
        self._raises_state_epoch, self.replay_epoch = True, self.state_epoch + 1
        self.proven_end = offset
        self.passed_over.cut(offset)
        self.bound.ends_at(offset)
        self._commit(self.partition.decide_truncate(offset))
        self._recount_fresh()

    def dead_letters_safe(self, first: int, last: int) -> None:
        """Kafka has the dead letters of [first, last]."""
        assert self.partition is not None, "its outbox ends with it"
        self._commit(self.partition.decide_dead_letter_done(first, last))

    def log_start_moved(self, log_start_offset: int) -> None:
        """Records below the log start are gone."""
        if self.partition is not None:
            log_start_offset = self.bound.cap(log_start_offset)
            self.kept.before_log_start(self.partition, log_start_offset)
            self._commit(self.partition.decide_log_start(log_start_offset))
            self.parking.log_start_moved(self.partition)
            self._recount_fresh()

    def members(self) -> set[str]:
        """Who holds something here."""
        return set(self.partition.window.held) if self.partition else set()

    def _apply(
        self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED, work_us: float = 0.0
    ) -> None:
        """Carries out a decision; the event log hears of it when it is durable."""
        assert self.partition is not None, "decided by it"
        if self._events is not None:
            self._events.note(self, self.partition, decision, ended_by=ended_by, work_us=work_us)
        if self._settings.dead_letter_topic:
            self.letters.note(decision.edits, self.partition.window, self.clock.now_ms())
        if self.checkpoints:
            self.checkpoints.finish(decision)
        if self._settings.retry_keep_payload:
            self.kept.note(decision, self._settings)
        if self.kept:
            self.kept.finish(decision)
        self.partition.apply(decision)

    def _commit(self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED) -> None:
        if decision.changes_anything:
            self._apply(decision, ended_by)
            assert self.partition is not None, "decided by it"
            self.cache.drop_below(self.partition.window.start_offset)
            self._committer.add(self)
            self._set_alarm()
            self._pump(self)

    def _set_alarm(self) -> None:
        assert self.partition is not None, "active"
        window = self.partition.window
        times = [t for t in (window.next_deadline_ms(), window.next_due_ms()) if t is not None]
        if window.parked.records:
            times += self.parking.look(self.partition, self.clock.now_ms())
        if window.due or self.fresh.records:
            times += self.bound.waits_until_ms(self.clock.now_ms())
        if times:
            self._alarm.ask(min(times))

    def on_time(self) -> None:
        """Ends locks and waits whose time has come, and has what is due dispatched."""
        if self.partition is None:
            return
        now_ms = self.clock.now_ms()
        self.partition.window.advance(now_ms)
        # A lock that ends before its delivery was sent was of no use to anybody: uncounted.
        for effect in [e for e in self.sending if e.delivery.ranges[0].deadline_ms <= now_ms]:
            effect.hand_back()
        expired = self.partition.decide_expire(now_ms)
        self._commit(expired, RangeEvent.EXPIRED)
        self._on_timed_out(expired.timed_out)
        self._set_alarm()
        self._pump(self)
