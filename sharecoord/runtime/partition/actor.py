"""The actor of one share-partition: hands out records, takes acknowledgements, ends locks.

All methods run on the loop and do not wait, so commands of a share-partition are serial by
construction. `runtime.group.loading` claims it and brings it to life.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence, Set

import structlog

from sharecoord.core.changes import LoadedPartition, PartitionCommit, PartitionKey
from sharecoord.core.delivery import Delivery, PartitionResult, Slice
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    Decision,
    HeldRange,
    RangeOutcome,
    handed_back,
)
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.records import RawBatch
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, AcquireMode, Ordering
from sharecoord.errors import (
    InternalError,
    NotOwnerError,
    SharecoordError,
    UnreadableRecordsError,
)
from sharecoord.eventlog.schema import RangeEvent
from sharecoord.ports import TopicInfo
from sharecoord.runtime.kernel.alarm import Alarm
from sharecoord.runtime.kernel.budget import GroupBudget
from sharecoord.runtime.kernel.committer import CallbackEffect
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.channel import MemberChannel
from sharecoord.runtime.member.session import Hindrance, Session, Totals
from sharecoord.runtime.partition.books import Books
from sharecoord.runtime.partition.candidates import LIFELINE_RECORDS, TOKENS_RESERVE
from sharecoord.runtime.partition.claimed import ActorState, ClaimedPartition
from sharecoord.runtime.partition.collector import Collector
from sharecoord.runtime.partition.event_tap import EventTap
from sharecoord.runtime.partition.load import Load
from sharecoord.runtime.partition.log import LogFollower
from sharecoord.runtime.partition.notices import Notices
from sharecoord.runtime.partition.payloads import Payloads
from sharecoord.runtime.partition.whole_batches import up_to_a_batch, whole_batches

log = structlog.get_logger(__name__)


class PartitionActor(ClaimedPartition):
    """One share-partition at its owner."""

    def __init__(
        self,
        key: PartitionKey,
        partition_id: int,
        context: Context,
        budget: GroupBudget,
        *,
        counts: tuple[dict[str, int], dict[str, int]],
        sessions: Mapping[str, Session],
        on_change: Callable[[PartitionActor, str | None], None],
        on_dropped: Callable[[PartitionActor, SharecoordError], None],
        on_timed_out: Callable[[Collection[str]], None],
        on_other_topic: Callable[[str, TopicInfo], None],
    ) -> None:
        """Serves nothing yet.

        Args:
            key: The share-partition.
            partition_id: The id of its row in the store.
            context: Ports, clock, limits.
            budget: The memory budget of the group.
            counts: Counts of the group; see `SharePartition.count_into`.
            sessions: The members of the group.
            on_change: See `Dispatcher.wake`.
            on_dropped: Called with the error that ended the incarnation: it is to be loaded anew.
            on_timed_out: Called with members whose locks ended by themselves.
            on_other_topic: Called when the topic was made again.
        """
        super().__init__(key, partition_id, context, budget)
        self.stopped_reason, self.load = "", Load()
        # The log is made after its books.
        self.books = Books(self, lambda at: self.log.start_moved(at))  # noqa: PLW0108
        events = context.events
        self._events = None if events is None else EventTap(self, events, sessions)
        on_arrival = None if self._events is None else self._events.arrived
        self.log = LogFollower(self, self.books, on_other_topic, on_arrival)
        self.payloads = Payloads(self, self.log, self.books.kept)
        self.notices = Notices(self, sessions)
        self.paused = self.apart = False
        """Paused by an operator; held back because of lanes (`SharedOrder._is_apart`)."""
        self.totals = Totals()
        """Records delivered and settled since the process began."""
        self.sending: dict[DeliveryEffect, None] = {}
        """Deliveries that wait for their commit."""
        self._unseen: list[tuple[str, Sequence[AcquiredRange | HeldRange]]] = []
        """Unsent records that may be stored as acquired: handed back after the reload."""
        self._counts = counts
        self._on_change = on_change
        self._on_dropped = on_dropped
        self._on_timed_out = on_timed_out
        self._alarm = Alarm(self.clock, self.on_time)
        """For the earliest lock end or due time."""

    # -- life -----------------------------------------------------------------------------------

    def activate(
        self, partition: SharePartition, loaded: LoadedPartition, *, incarnation: int
    ) -> None:
        """Takes over a loaded share-partition; reading starts afterwards.

        Raises:
            NotOwnerError: It was closed while it was loaded: nobody would stop it any more.
        """
        if self.state is not ActorState.LOADING:
            raise NotOwnerError(self.stopped_reason or f"it is {self.state.value} already")
        self.books.begin(loaded, partition.settings)
        partition.kept = self.books.kept.offsets
        self._begin(partition, loaded.row, incarnation)
        partition.count_into(*self._counts)
        self.payloads.rereading = False
        self.log.begin(loaded, partition.window.end_offset)
        self._set_alarm()
        self.notices.begins(partition)
        unseen, self._unseen = self._unseen, []
        for member_id, ranges in unseen:
            self.hand_back(member_id, ranges)

    def deactivate(self, state: ActorState, reason: str = "") -> None:
        """Stops serving; nothing of the state is written."""
        partition = self.partition
        self._end(state)
        if state is not ActorState.LOADING:
            self._unseen.clear()
        self.load.stop(for_ever=state is ActorState.CLOSED)
        self.stopped_reason = reason
        if partition is not None:
            self.notices.ends(partition, for_ever=state is ActorState.CLOSED)
            partition.count_into(None)
            partition.share_keys(None)
        self._alarm.cancel()
        self.books.end()
        if self._events is not None:
            self._events.begin()
        self.log.close()

    def drop(self, error: SharecoordError) -> None:
        """Ends the incarnation, because a commit failed or was fenced; then a new claim."""
        if self.partition is not None:
            self.deactivate(ActorState.LOADING)
            self._on_dropped(self, error)

    def leave(self) -> None:
        """Hands out nothing any more; decisions that were made are still stored and sent."""
        self.state = ActorState.LEAVING

    def take_commit(self) -> PartitionCommit | None:
        """The changes since the last call."""
        if self.partition is None:
            return None
        if self._events is not None:
            self._events.taken()
        if self.books.parking.park(self.partition.window):
            self.context.committer.add(self)
        commit = self._commit_of(self.partition)
        self.books.into(commit)
        if commit.raises_state_epoch or commit.passed_over is not None:
            self.state_epoch += 1
        return commit

    def apply_settings(self, settings: PartitionSettings) -> None:
        """New settings act on the next acquire, release or timer."""
        if self.partition is not None:
            if self.books.parking.holds_back(self.partition, settings):
                self.drop(SharecoordError("order needs all delayed records"))
                return
            self.partition.settings = self.settings = settings
            self.books.letters.apply_settings(settings)

    async def confirmed(self) -> None:
        """Waits until records that were read are known to be of the partition's own topic."""
        assert self.log.life is not None, "activated"
        known: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.log.life.confirm(lambda: None if known.done() else known.set_result(None))
        await known

    # -- decisions ------------------------------------------------------------------------------

    def commit(self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED) -> None:
        """Carries out a decision, and has its changes stored."""
        assert self.partition is not None, "decided by it"
        if not decision.changes_anything:
            self.partition.apply(decision)
            return
        self._apply(decision, ended_by)
        self.cache.drop_below(self.partition.window.start_offset)
        self.context.committer.add(self)
        self._set_alarm()
        self.wake()

    def _apply(
        self, decision: Decision, ended_by: RangeEvent = RangeEvent.RELEASED, work_us: float = 0.0
    ) -> None:
        """Carries out a decision; the event log hears of it when it is durable."""
        assert self.partition is not None, "decided by it"
        if self._events is not None:
            self._events.note(decision, ended_by, work_us)
        self.books.note(decision)
        self.partition.apply(decision)
        if decision.taken_back:
            self.notices.tell(decision.taken_back)

    def wake(self) -> None:
        """Asks the dispatcher to look at the share-partition."""
        self._on_change(self, None)

    # -- acquire --------------------------------------------------------------------------------

    def available(self) -> int:
        """How many records could be handed out now, payloads permitting."""
        partition = self.partition
        if partition is None or self.paused or self.apart or self.books.letters.is_full:
            return 0
        partition.window.advance(self.clock.now_ms())
        if not self.budget.may_acquire():
            return self._lifeline()
        found = partition.ready + min(self.log.fresh.records, partition.room)
        return self.log.bound.allows(found, self.clock.now_ms())

    def _lifeline(self) -> int:
        """How many due records may go out although memory is short."""
        assert self.partition is not None, "active"
        acquired = self.partition.window.acquired
        return 0 if acquired else min(self.partition.ready, LIFELINE_RECORDS)

    def acquire(self, session: Session, max_records: int, *, may_wait: bool = False) -> int:
        """Hands up to `max_records` to a member; returns how many.

        A member that `may_wait` has work meanwhile: it gets the next record batch as a whole.
        """
        partition = self.partition
        assert partition is not None, "only an active partition hands out"
        if partition.tokens_left < TOKENS_RESERVE:
            self.drop(SharecoordError("lock tokens used up: a new claim has more"))
            return 0
        now_ms = self.clock.now_ms()
        max_records = self.log.bound.allows(max_records, now_ms)
        short, opens = not self.budget.may_acquire(), self.opens(session)
        if short:
            max_records = min(max_records, self._lifeline())
        elif opens:
            max_records = self._up_to_a_batch(session, max_records, opens, may_wait=may_wait)
        if not max_records:
            return 0
        window, end_before = partition.window, partition.window.end_offset
        found = self.payloads.candidates(
            session.member_id,
            max_records,
            short=short,
            whole=bool(opens),
            soft=session.mode is AcquireMode.BATCH_OPTIMIZED,
        )
        decision = partition.decide_acquire(
            now_ms,
            session.member_id,
            max_records=max_records,
            mode=session.mode,
            due=found.due,
            fresh=found.fresh,
        )
        if not decision.changes_anything:
            partition.apply(decision)
            return 0
        self._apply(decision)
        delivery = DeliveryEffect.delivery_of(self, session, decision.acquired)
        if window.end_offset != end_before:
            self.log.took(end_before, window.end_offset)
        self.log.bound.took(delivery.records)
        self._set_alarm()
        if not delivery.records:
            self.context.committer.add(self)
            # Behind records that wait or are worn out there may be more.
            self.wake()
            return 0
        self._send(session, delivery, now_ms)
        if not self.log.fresh.records:
            self.log.skip_gap()
        return delivery.records

    def opens(self, session: Session) -> Set[int]:
        """The compressions of the batches that may go to the member as they are.

        None in order by key: all were opened here for their keys, and the SDK needs these first.
        None of a lane: the headers of dead letters say where they come from.
        """
        by_key = self.settings.ordering is Ordering.KEY
        return frozenset() if by_key or self.key.lane else session.opens

    def _up_to_a_batch(
        self, session: Session, max_records: int, opens: Set[int], *, may_wait: bool
    ) -> int:
        """Lets a delivery of new records alone end with a record batch."""
        partition = self.partition
        assert partition is not None, "only an active partition hands out"
        window, settings = partition.window, partition.settings
        is_soft = session.mode is AcquireMode.BATCH_OPTIMIZED
        if window.due or is_soft or settings.ordering != Ordering.UNORDERED:
            return max_records
        records = min(max_records, partition.room)
        if records <= 0:
            return 0
        held = 0
        if may_wait and records == max_records:
            most = min(session.batch_records_max, session.pace.batch_wait_max)
            held = min(window.held.get(session.member_id, 0), most)
        return up_to_a_batch(
            self.cache,
            window.end_offset,
            records,
            held,
            opens,
            opened=settings.scheduled_delivery,
        )

    def _send(self, session: Session, delivery: Delivery, now_ms: int) -> None:
        """Sends a delivery once its commit is durable."""
        session.sent(delivery.records, delivery.size_bytes, now_ms)
        self.budget.delivers(delivery.size_bytes)
        effect = DeliveryEffect(self, session, delivery)
        self.sending[effect] = None
        self.context.committer.add(self, effect)

    def hand_back(self, member_id: str, ranges: Sequence[AcquiredRange | HeldRange]) -> None:
        """Takes back unseen records that never reached the member; during a load after it."""
        if self.partition is None:
            if self.state is ActorState.LOADING:
                self._unseen.append((member_id, ranges))
            return
        returned = handed_back(ranges)
        decision = self.partition.decide_acknowledge(self.clock.now_ms(), member_id, returned)
        if decision.changes_anything:
            self.commit(decision)
            self._remember_unseen(member_id, ranges)
        # Also when its locks have ended meanwhile: its credit is back only now.
        self._on_change(self, member_id)

    def _remember_unseen(self, member_id: str, ranges: Sequence[AcquiredRange | HeldRange]) -> None:
        """Hands ranges back again when this commit fails: nobody else remembers them."""

        def committed(error: SharecoordError | None) -> None:
            if error is not None:
                self.hand_back(member_id, ranges)

        self.context.committer.add(self, CallbackEffect(committed))

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
        """Settles ranges; returns how many records the member holds no longer.

        The collector gets the answer when it is durable. `may_wait` allows the commit to wait for
        others; `work_us` is the application's time per record, 0 = unknown.
        """
        partition, checkpoints = self.partition, self.books.checkpoints
        assert partition is not None, "only an active partition is asked"
        renewed = any(r.type is AcknowledgeType.RENEW for r in ranges)
        if renewed and (refused := checkpoints.refusal(ranges, partition.settings)):
            collector.refuse(self.key, refused)
            return 0
        now_ms = self.clock.now_ms()
        before = partition.window.held.get(session.member_id, 0)
        decision = partition.decide_acknowledge(
            now_ms, session.member_id, ranges, is_atomic=session.is_atomic
        )
        self._apply(decision, work_us=work_us)
        if renewed:
            checkpoints.keep(ranges, decision.exceptions, self.clock.to_store(now_ms))
        settled = before - partition.window.held.get(session.member_id, 0)
        answer = (decision.exceptions, self.settings.lock_duration_ms if renewed else 0, settled)
        effect = AcknowledgeEffect(collector, self, session, ranges, *answer)
        self.context.committer.add(self, effect, may_wait=may_wait)
        self.cache.drop_below(partition.window.start_offset)
        self._set_alarm()
        self.wake()
        return settled

    def release_member(self, member_id: str) -> None:
        """Ends the locks of a departed member; its deliveries count, unsent ones go back unseen."""
        for effect in [e for e in self.sending if e.session.member_id == member_id]:
            effect.hand_back()
        if self.partition is not None:
            gone = self.partition.decide_release_member(self.clock.now_ms(), member_id)
            self.commit(gone, RangeEvent.DEPARTED)

    def compare_lock_book(
        self, session: Session, book: Sequence[HeldRange], *, is_shown_again: bool = False
    ) -> list[HeldRange]:
        """Settles the differences of a lock book, again if that fails; returns lost entries."""
        assert self.partition is not None, "only an active partition compares"
        forgets_ms = self.context.books_forget_after_ms
        member_id, counts = session.member_id, not session.shows_book
        decision = self.partition.decide_lock_book(
            self.clock.now_ms(), member_id, book, forgets_ms, counts=counts
        )
        self.commit(decision, RangeEvent.DEPARTED if counts else RangeEvent.RELEASED)
        if decision.unseen and not is_shown_again:
            self._remember_unseen(member_id, decision.unseen)
        return decision.lost

    def letters_arrived(self, first: int, last: int) -> None:
        """Kafka has the dead letters of [first, last]."""
        assert self.partition is not None, "its outbox ends with it"
        self.commit(self.partition.decide_dead_letter_done(first, last))

    def members(self) -> set[str]:
        """The members that hold records of the share-partition."""
        return set(self.partition.window.held) if self.partition else set()

    def _set_alarm(self) -> None:
        assert self.partition is not None, "active"
        window = self.partition.window
        times = [t for t in (window.next_deadline_ms(), window.next_due_ms()) if t is not None]
        if window.parked.records:
            times += self.books.parking.look(self.partition, self.clock.now_ms())
        if window.due or self.log.fresh.records:
            times += self.log.bound.waits_until_ms(self.clock.now_ms())
        if times:
            self._alarm.ask(min(times))

    def on_time(self) -> None:
        """Ends locks and waits whose time has come, and asks for dispatch."""
        if self.partition is None:
            return
        now_ms = self.clock.now_ms()
        self.partition.window.advance(now_ms)
        # A lock that ends before its delivery was sent was of no use: the delivery is not counted.
        for effect in [e for e in self.sending if e.delivery.ranges[0].deadline_ms <= now_ms]:
            effect.hand_back()
        expired = self.partition.decide_expire(now_ms)
        self.commit(expired, RangeEvent.EXPIRED)
        self._on_timed_out(expired.timed_out)
        self._set_alarm()
        self.wake()


# -- effects that wait for a commit ----------------------------------------------------------------


def _size_bytes(part: Slice, *, in_batches: bool) -> int:
    """Bytes of records for a member that takes them in the log's batches, or as columns."""
    chunk, start, stop = part
    if in_batches:
        if (raw := chunk.raw(start, stop)) is not None:
            return len(raw)
        if (batches := chunk.whole(start, stop)) is not None:
            return sum(len(each.content) for each in batches)
    return chunk.payload_bytes(start, stop)


class DeliveryEffect:
    """A delivery on its way to a member; it is checked again before it is sent."""

    __slots__ = ("actor", "channel", "delivery", "session")

    def __init__(self, actor: PartitionActor, session: Session, delivery: Delivery) -> None:
        self.actor = actor
        self.session = session
        self.channel: MemberChannel | None = session.channel
        self.delivery = delivery

    @staticmethod
    def delivery_of(
        actor: PartitionActor, session: Session, acquired: list[AcquiredRange]
    ) -> Delivery:
        """The delivery of acquired records: by reference, with their checkpoints."""
        slices = actor.cache.slices(acquired)
        records = sum(s.stop - s.start for s in slices)
        whole: Sequence[RawBatch] = ()
        if not session.takes_batches:
            looks = actor.settings.scheduled_delivery
            whole = whole_batches(slices, acquired, actor.opens(session), opened=looks)
        if whole:
            size = sum(len(batch.content) for batch in whole)
        else:
            size = sum(_size_bytes(each, in_batches=session.takes_batches) for each in slices)
        kept: Sequence[tuple[int, bytes]] = ()
        if actor.books.checkpoints:
            kept = actor.books.checkpoints.of(acquired)
            size += sum(len(data) for _, data in kept)
        return Delivery(actor.key, slices, acquired, records, size, kept, actor.replay_epoch, whole)

    def release(self) -> None:
        """Sends the records, or hands them back unseen."""
        channel = self.channel
        now_ms = self.actor.clock.now_ms()
        self.actor.sending.pop(self, None)
        if channel is None or channel is not self.session.channel:
            self.hand_back()
        elif not self._is_granted(now_ms):
            self.session.refund(self.delivery.records, self.delivery.size_bytes)
            self.hand_back()
        else:
            self._deliver(channel, now_ms)

    def _is_granted(self, now_ms: int) -> bool:
        """Whether the delivery is worth sending: tokens current, half of the lock left."""
        partition = self.actor.partition
        if partition is None:
            return False
        half_ms = partition.settings.lock_duration_ms // 2
        for acquired in self.delivery.ranges:
            grant = partition.window.grants.get(acquired.lock_token)
            if grant is None or grant.remaining != acquired.last - acquired.first + 1:
                return False
            if acquired.deadline_ms - now_ms < half_ms:
                return False
        return True

    def _deliver(self, channel: MemberChannel, now_ms: int) -> None:
        away = self.session.away
        if away is not None:
            key = self.actor.key
            ends_ms = now_ms + self.actor.lock_left_max_ms
            away.received(key.log_id, self.delivery.ranges, ends_ms)
        try:
            channel.deliver(self.delivery, now_ms)
            self.actor.totals.delivered += self.delivery.records
            if self.delivery.whole or self.session.takes_batches:
                self.actor.totals.delivered_whole += self.delivery.records
        except UnreadableRecordsError as error:
            # They come again, later each time; the member gets others meanwhile.
            log.error("records can not be opened", partition=self.actor.key, why=error.message)
            self.session.refund(self.delivery.records, self.delivery.size_bytes)
            self.hand_back()
        except Exception as error:
            log.exception("a delivery could not be sent", member=self.session.member_id)
            self.session.hindrances.add(Hindrance.BROKEN)
            self.hand_back()
            channel.end(InternalError(f"a delivery could not be sent: {error!r}"))

    def abort(self, error: SharecoordError) -> None:
        """Hands the unseen records back; if they were stored all the same, after the reload."""
        self.actor.sending.pop(self, None)
        if self.channel is self.session.channel:
            self.session.refund(self.delivery.records, self.delivery.size_bytes)
        self.hand_back()

    def hand_back(self) -> None:
        """Takes the records back unseen."""
        self.actor.hand_back(self.session.member_id, self.delivery.ranges)


class AcknowledgeEffect:
    """The answer for one partition of a request."""

    __slots__ = (
        "actor",
        "collector",
        "exceptions",
        "lock_remaining_ms",
        "ranges",
        "session",
        "settled",
    )

    def __init__(
        self,
        collector: Collector,
        actor: PartitionActor,
        session: Session,
        ranges: Sequence[AcknowledgedRange],
        exceptions: list[RangeOutcome],
        lock_remaining_ms: int,
        settled: int,
    ) -> None:
        collector.expect()
        self.collector: Collector | None = collector
        self.actor = actor
        self.session = session
        self.ranges = ranges
        self.exceptions = exceptions
        self.lock_remaining_ms = lock_remaining_ms
        self.settled = settled

    def release(self) -> None:
        """Answers: the changes are durable."""
        self.actor.totals.acknowledged += self.settled
        key, left_ms = self.actor.key, self.lock_remaining_ms
        away = self.session.away
        if away is not None:
            ends_ms = self.actor.clock.now_ms() + self.actor.lock_left_max_ms
            away.settled(key.log_id, self.ranges, self.exceptions, renewed_until_ms=ends_ms)
        self._answer(PartitionResult(key, self.exceptions, None, left_ms))

    def abort(self, error: SharecoordError) -> None:
        """Answers with the error: the member asks again with the same tokens."""
        self._answer(PartitionResult(self.actor.key, error=error))

    def _answer(self, result: PartitionResult) -> None:
        """Answers once: a release that fails after its answer is aborted as well."""
        collector, self.collector = self.collector, None
        if collector is not None:
            collector.add(result)
