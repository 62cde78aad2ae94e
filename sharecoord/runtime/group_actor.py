"""One share group: its members, its share-partitions, and the dispatch between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from sharecoord.config.group import GroupConfig, resolve
from sharecoord.core.changes import (
    LANE_MARK,
    GroupRow,
    MemberRow,
    PartitionKey,
    key_of,
    served_by,
)
from sharecoord.core.decisions import AcquiredRange
from sharecoord.core.delivery import Assignment, LostRange, PartitionResult
from sharecoord.core.events import GroupEvent
from sharecoord.core.held_book import LockBook, held_of
from sharecoord.core.pace import window_follows
from sharecoord.core.pauses import Pauses
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.share_partition import AcknowledgedRange
from sharecoord.errors import (
    GroupMaxSizeReachedError,
    MemberFencedError,
    SharecoordError,
    StoreFencedError,
    UnknownMemberError,
)
from sharecoord.ports import TopicInfo
from sharecoord.runtime import (
    idle,
    loading,
    lock_books,
    log_changes,
    moves,
    opening,
    pausing,
)
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.admission import session_of
from sharecoord.runtime.channel import MemberChannel
from sharecoord.runtime.context import Context
from sharecoord.runtime.dispatch import Dispatcher
from sharecoord.runtime.effects import Collector
from sharecoord.runtime.event_tap import tap_maker, work_us_each
from sharecoord.runtime.group_events import tell
from sharecoord.runtime.group_settings import check_subscription, settings_of
from sharecoord.runtime.memory_budget import GroupBudget
from sharecoord.runtime.not_served import why_not_served
from sharecoord.runtime.partition_actor import PartitionActor
from sharecoord.runtime.rereads import reread
from sharecoord.runtime.sessions import JoinCommand, Session, session_of_row
from sharecoord.runtime.shared_order import SharedOrder

log = structlog.get_logger(__name__)

Place = tuple[str, int]


class GroupActor:
    """See the module. Methods run on the loop; those that wait say so."""

    def __init__(self, context: Context, row: GroupRow) -> None:
        self.group_id = row.group_id
        self.context = context
        self.sessions: dict[str, Session] = {}
        self._joining = 0
        """Joins that are being written."""
        self.partitions: dict[Place, PartitionActor] = {}
        self.budget = GroupBudget(context.budget)
        self.totals: dict[str, int] = {}
        """Records that members hold in all partitions; kept by their windows."""
        self.chained: dict[str, int] = {}
        """Those of them that wait for earlier records of their keys."""
        self.topic_ids: dict[str, str] = {}
        self.owed_topics: frozenset[str] = frozenset()
        """With dead letters that wait: served without members, too."""
        self.owners: dict[str, frozenset[str]] = {}
        """In a fleet, by topic: the owners of what its members are served, `HERE` included."""
        self.owners_by_name: dict[str, frozenset[str]] = {}
        """The same of the topic alone, and of each lane (`PartitionKey.name`)."""
        self.elsewhere: dict[Place, str] = {}
        """In a fleet: the owners of what is not to be served here."""
        self._partition_ids: dict[str, tuple[int, ...]] = {}
        self.pauses = Pauses(row.pauses)
        self.group_epoch = self.seen_epoch = row.group_epoch
        self.config = GroupConfig()
        self.settings = PartitionSettings()
        self.shared_order = SharedOrder(self)
        self._opening: dict[str, asyncio.Task[None]] = {}
        self.dispatcher = Dispatcher(self)
        self.budget.on_outbox_room = self.dispatcher.wake_all
        self.closed = False
        """The group was deleted: nobody comes in any more, the next use makes a new actor."""
        self.apply_config(row)

    def apply_config(self, row: GroupRow) -> None:
        """New overrides act at once."""
        self.group_epoch = row.group_epoch
        self.pauses = Pauses(row.pauses)
        pausing.follow(self)
        before, self.config = self.config, resolve(row.config, self.context.group_defaults)
        self.settings = settings_of(self.config, row.blocked_keys)
        for actor in list(self.partitions.values()):
            actor.apply_settings(self.settings)
            if (
                before.isolation_level != self.config.isolation_level
                and actor.state is ActorState.ACTIVE
            ):
                self.dropped(actor, SharecoordError("the isolation level changed: read anew"))
        self.shared_order.settings_changed()
        self.schedule_pump()

    # -- members --------------------------------------------------------------------------------

    async def join(
        self, command: JoinCommand, channel: MemberChannel | None
    ) -> tuple[Session, list[LostRange]]:
        """Adds or takes back a member; an older stream of it is fenced.

        Raises:
            GroupMaxSizeReachedError: The group is full.
            MemberFencedError: The member has joined elsewhere since.
            StoreUnavailableError: The member could not be written.
            StoreFencedError: The group was deleted meanwhile: join again, a new one.
        """
        self._check_open()
        check_subscription(self.config, command.topics)
        members = len(self.sessions) + self._joining
        if command.member_id not in self.sessions and members >= self.config.group_max_size:
            raise GroupMaxSizeReachedError(
                f"group {self.group_id!r} has {members} members already; "
                "raise share.group.max.size to admit more",
                retry_after_ms=5000,
            )
        self._joining += 1
        try:
            epoch = await self.context.joins.ask(
                MemberRow(
                    self.group_id,
                    command.member_id,
                    0,
                    command.client_id,
                    command.host,
                    self.context.coordinator_id,
                    command.topics,
                    join_number=command.join_number,
                )
            )
        finally:
            self._joining -= 1
        if epoch is None:
            raise MemberFencedError("a newer stream of this member id joined")
        return await self.admit(command, channel, epoch)

    async def admit(
        self,
        command: JoinCommand,
        channel: MemberChannel | None,
        epoch: int,
        *,
        gateway: str = "",
    ) -> tuple[Session, list[LostRange]]:
        """Takes in a member whose epoch is written: here, or by the gateway of its stream.

        Args:
            command: Who joins.
            channel: The way to it.
            epoch: Of this join.
            gateway: The coordinator that has its stream; "" = this one.

        Raises:
            MemberFencedError: A newer stream of it is here.
            StoreFencedError: The group was deleted meanwhile.
        """
        # Written before the deletion, the row went with the group.
        self._check_open()
        former = self.sessions.get(command.member_id)
        if former is not None and former.member_epoch > epoch:
            raise MemberFencedError("a newer stream of this member id joined")
        session = session_of(self, command, channel, epoch, gateway)
        try:
            lost = await lock_books.compare_joined(self, session, command.lock_book)
            lost = await lock_books.stored(self, session, lost)
            if self.context.fleet is not None and not gateway:
                lost += await self.context.fleet.gateway.introduce(self, session)
                lock_books.check_current(self, session)
                late = lock_books.compare_places(self, session)
                lost += await lock_books.stored(self, session, late)
            if session.away is not None:
                session.away.lost(lost)
            session.comparing = 0
            self.dispatcher.offer(session)
        except BaseException:
            # The stream broke meanwhile, or a newer one joined: nobody else would end the session.
            self.disconnected(session)
            raise
        return session, lost

    def _check_open(self) -> None:
        if self.closed:
            raise StoreFencedError(
                f"group {self.group_id!r} was deleted meanwhile; join again", retry_after_ms=100
            )

    def is_open(self, topic: str) -> bool:
        """Whether all share-partitions of a topic are known."""
        task = self._opening.get(topic)
        return topic in self.topic_ids and task is not None and task.done()

    def opening(self, topics: set[str]) -> list[asyncio.Task[None]]:
        """What opens these topics."""
        return [task for topic, task in self._opening.items() if topic in topics]

    def session(self, member_id: str, member_epoch: int | None = None) -> Session:
        """A member's session.

        Raises:
            UnknownMemberError: It has none: join first.
            MemberFencedError: A later join exists.
        """
        session = self.sessions.get(member_id)
        if session is None:
            raise UnknownMemberError(
                f"member {member_id!r} of group {self.group_id!r} is not known; join first"
            )
        if member_epoch is not None and member_epoch != session.member_epoch:
            raise MemberFencedError(
                f"member epoch {member_epoch} is not current ({session.member_epoch}); join again"
            )
        return session

    def disconnected(self, session: Session) -> None:
        """The stream broke: locks stay; the session ends after its timeout."""
        if self.sessions.get(session.member_id) is not session:
            return
        session.channel = None
        self.expire_later(session)
        if self.context.fleet is not None and not session.is_lent:
            self.context.fleet.gateway.gone(session)

    def fenced(self, session: Session, error: SharecoordError) -> None:
        """The member has a newer stream elsewhere, or its group is gone."""
        channel = session.channel
        self.disconnected(session)
        if channel is not None:
            channel.end(error)

    def expire_later(self, session: Session, delay_s: float = 0.0) -> None:
        """(Re)starts the session timeout of a member without a stream; 0 = the whole of it."""
        if session.expiry is not None:
            session.expiry.cancel()
        delay_s = delay_s or self.config.session_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        session.expiry = loop.call_later(delay_s, self._session_ended, session)

    def _session_ended(self, session: Session) -> None:
        fleet = self.context.fleet
        if not self.context.store_ok:
            # Nobody can join without the store: session timeouts stand still (design 5, Time).
            self.expire_later(session)
        elif fleet is not None and (left_s := fleet.introduces_for_s(session.gateway)):
            # Its gateway stood still, or did not reach this owner, and has just come back.
            self.expire_later(session, left_s)
        elif self.sessions.get(session.member_id) is session:
            log.info("session timed out", group=self.group_id, member=session.member_id)
            self.leave(session, why="session timeout")

    def remember(self, member: MemberRow) -> None:
        """A member that is known from the store alone: its session ends after its timeout."""
        here = member.gateway == self.context.coordinator_id or self.context.fleet is None
        session = session_of_row(member, self.context.clock.now_ms(), is_here=here)
        self.dispatcher.joined(session)
        self.expire_later(session)

    def polled(self, session: Session) -> None:
        """The application took part: a lock that ran out before holds nothing up any more."""
        session.last_poll_ms = self.context.clock.now_ms()
        self.dispatcher.took_part(session)

    def leave(
        self,
        session: Session,
        book: LockBook | None = None,
        *,
        why: str = "",
    ) -> None:
        """Removes a member; what it holds is released and counts (KIP-932, T11).

        Args:
            session: The member's.
            book: What its application has; the rest never reached it, and goes back unseen
                (design 5.3). None = nobody knows, all of it counts.
            why: What ended its session; "" = it left.
        """
        if self.sessions.get(session.member_id) is not session:
            return
        session.cancel_timers()
        session.channel = None
        fleet = self.context.fleet
        if fleet is not None and not session.is_lent:
            fleet.gateway.left(session, book)
        self.dispatcher.left(session)
        event = GroupEvent.SESSION_ENDED if why else GroupEvent.LEFT
        tell(self.context, self.group_id, event, session=session, reason=why or None)
        for actor in self.partitions.values():
            if book is not None and actor.state is ActorState.ACTIVE:
                actor.compare_lock_book(session.member_id, held_of(book, actor.key))
            actor.release_member(session.member_id)
        if fleet is None or fleet.keeps(self.group_id, session.member_id, session.gateway):
            committer = self.context.committer
            committer.remove_member(self.group_id, session.member_id, session.member_epoch)

    def hand_back(
        self, session: Session, key: PartitionKey, ranges: Sequence[AcquiredRange]
    ) -> None:
        """Takes back unseen what was delivered to a front and never reached the member."""
        actor = self.partitions.get(key.place)
        if actor is not None:
            actor.hand_back(session.member_id, ranges)
        elif self.context.fleet is not None:
            self.context.fleet.gateway.hand_back(self, session, key, ranges)

    def subscribe(self, session: Session, topics: Sequence[str]) -> None:
        """Replaces a member's topics; a stream that was replaced itself has no say any more."""
        if self.sessions.get(session.member_id) is not session:
            return
        self.dispatcher.subscribed(session, topics)
        idle.wake(self.context, self)
        self.changed(session)

    def pause(self, session: Session, places: frozenset[Place]) -> None:
        """Replaces the share-partitions of which a member gets nothing."""
        session.paused = places
        self.changed(session)

    def changed(self, session: Session) -> None:
        """A member wants something else than before."""
        if self.context.fleet is not None and not session.is_lent:
            self.context.fleet.gateway.changed(self, session)
        self.dispatcher.offer(session)

    def assignment(self, session: Session) -> Assignment:
        """What a member may receive from."""
        topics: dict[str, tuple[str, tuple[int, ...]]] = {}
        for topic in sorted(session.topics & self.topic_ids.keys()):
            topics[topic] = (self.topic_ids[topic], self._partition_ids[topic])
        return Assignment(topics, tuple(sorted(session.topics - topics.keys())))

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(
        self,
        session: Session,
        acknowledgements: Sequence[tuple[str, str, int, Sequence[AcknowledgedRange]]],
        collector: Collector,
        *,
        busy_us: int = 0,
        may_wait: bool = False,
    ) -> None:
        """Settles ranges, partition by partition; the collector answers after the commit.

        Args:
            session: Who says it.
            acknowledgements: (topic, topic id, partition, ranges).
            collector: Sealed by this call.
            busy_us: How long the application had records since it last said so; 0 = unknown.
            may_wait: Whether the commit may wait for others (`CommitLimits.linger_ms`).
        """
        now_ms = self.context.clock.now_ms()
        self.polled(session)
        settled = on_way = 0
        work_us = work_us_each(self.context, busy_us, acknowledgements)
        for topic, topic_id, partition, ranges in acknowledgements:
            actor = self.partitions.get((topic, partition))
            owner = self.elsewhere.get((topic, partition))
            if actor is None and owner is not None and self.context.fleet is not None:
                key = key_of(self.group_id, topic, topic_id, partition)
                gateway = self.context.fleet.gateway
                on_way += gateway.settle(owner, session, key, ranges, collector, may_wait=may_wait)
                continue
            error = why_not_served(self, actor, topic, topic_id, partition)
            if error is not None or actor is None:
                collector.expect()
                key = key_of(self.group_id, topic, topic_id, partition)
                collector.add(PartitionResult(key, error=error))
                continue
            settled += actor.acknowledge(
                session, ranges, collector, may_wait=may_wait, work_us=work_us
            )
        if settled + on_way:
            session.acknowledged_total += settled + on_way
            self.dispatcher.settled(session, settled, now_ms, busy_us, on_way=on_way)
        collector.seal()

    def held(self, session: Session) -> int:
        """Records that a member holds, of all owners, as far as they take up its room.

        What waits behind earlier records of its key does not, up to a bound: what comes after it
        may be for handlers that have nothing to do.
        """
        here = self.totals.get(session.member_id, 0)
        if chained := self.chained.get(session.member_id, 0):
            here -= min(chained, session.pace.chained_max)
        return here + session.away.held(self.elsewhere) if session.away else here

    # -- dispatch -------------------------------------------------------------------------------

    def schedule_pump(self) -> None:
        """Looks for something to dispatch everywhere; for what is rare."""
        self.dispatcher.wake_all()

    def stop_dispatch(self) -> None:
        """Nothing is acquired any more; the coordinator goes down."""
        self.dispatcher.stop()

    def stop_timers(self) -> None:
        """Nothing happens by itself any more; what is not committed is forgotten."""
        for session in self.sessions.values():
            session.cancel_timers()
        for actor in self.partitions.values():
            actor.deactivate(ActorState.CLOSED, "the coordinator ended")

    def window_grows(self, record_locks_max: int) -> None:
        """Lets a window that is not set by hand follow the members' pace (design 5.4)."""
        present = self.settings.record_locks_max
        if window_follows(present, record_locks_max):
            self.settings = self.settings._replace(record_locks_max=record_locks_max)
            for actor in self.partitions.values():
                actor.apply_settings(self.settings)
                self.dispatcher.wake(actor)

    # -- topics ---------------------------------------------------------------------------------

    @property
    def log_topics(self) -> set[str]:
        """Topics that are read for their own sake: those of lanes are not among them."""
        return {topic for topic in self.topic_ids if LANE_MARK not in topic}

    @property
    def topics(self) -> set[str]:
        """Topics that members want."""
        return set(self.dispatcher.topics)

    def topic_found(self, topic: str, info: TopicInfo) -> None:
        """Opens what is new of a topic, unless the group was deleted."""
        if self.closed:
            return
        if self.topic_ids.get(topic, info.topic_id) != info.topic_id:
            self._stop_opening(topic)
        self.topic_ids[topic] = info.topic_id
        self._partition_ids[topic] = info.partitions
        if self.context.fleet is not None:
            moves.place_topic(self.context.fleet, self, topic)
            self._introduce_all(topic)
        self.open_again(topic)

    def _introduce_all(self, topic: str) -> None:
        """Who wants a topic is made known to the owners of its share-partitions."""
        for session in self.sessions.values():
            wanted = served_by(topic) in session.topics
            if wanted and not session.comparing and not session.is_lent:
                self.changed(session)

    def open_again(self, topic: str) -> None:
        """Opens what is to be served here and is not yet."""
        info = TopicInfo(self.topic_ids[topic], self._partition_ids[topic])
        task = self._opening.get(topic)
        if task is None or task.done():
            work = opening.open_topic(self, topic, info)
            self._opening[topic] = self.context.spawn(work, f"open-{topic}")

    def keys_of(self, topic: str) -> list[PartitionKey]:
        """The share-partitions of a topic, whoever owns them."""
        topic_id = self.topic_ids.get(topic)
        if topic_id is None:
            return []
        partitions = self._partition_ids[topic]
        return [key_of(self.group_id, topic, topic_id, each) for each in partitions]

    def knows(self, place: Place) -> bool:
        """Whether a topic, or a lane, is known to have a partition."""
        return place in self.elsewhere or place[1] in self._partition_ids.get(place[0], ())

    def names_served(self, topics: Iterable[str]) -> set[str]:
        """What members of these topics are served from: the topics, and lanes."""
        wanted = set(topics)
        return wanted | {name for name in self.topic_ids if served_by(name) in wanted}

    def _stop_opening(self, topic: str) -> None:
        """What is being opened belongs to a life of the topic that has ended."""
        task = self._opening.pop(topic, None)
        if task is not None:
            task.cancel()

    async def topic_gone(self, topic: str) -> None:
        """The cluster does not have the topic any more; should it come back, it starts anew."""
        self._stop_opening(topic)
        del self.topic_ids[topic]
        del self._partition_ids[topic]
        await log_changes.retire_topic(self.context, self, self.group_id, topic)
        for session in self.sessions.values():
            if topic in session.topics and session.channel is not None:
                session.channel.assigned(self.assignment(session))

    def forget(self, topics: Iterable[str], why: str) -> None:
        """Takes topics out of the group; nothing of their state is written any more.

        Whatever opens or loads them ends here too: nobody would stop what it brings to life.
        """
        for topic in set(topics):
            self._stop_opening(topic)
            self.topic_ids.pop(topic, None)
            self._partition_ids.pop(topic, None)
            for place in [place for place in self.partitions if place[0] == topic]:
                self.forget_place(place, why)

    def forget_place(self, place: Place, why: str) -> None:
        """Takes a share-partition out of the group."""
        actor = self.partitions.pop(place)
        actor.deactivate(ActorState.CLOSED, why)
        self.dispatcher.forget(actor)
        self.shared_order.look_at(actor.key.home)
        for session in self.sessions.values():
            session.compared.discard(place)

    def close(self) -> None:
        """The group is being deleted: all its work ends, and nobody comes in any more."""
        self.closed = True
        self.dispatcher.stop()
        served = {topic for topic, _ in self.partitions}
        self.forget(served | self.topic_ids.keys() | self._opening.keys(), "the group was deleted")
        fleet = self.context.fleet
        for session in self.sessions.values():
            session.cancel_timers()
            if fleet is not None:
                fleet.gateway.gone(session)
            channel, session.channel = session.channel, None
            if channel is not None:
                channel.end(StoreFencedError("the group was deleted meanwhile; join again"))
        self.sessions.clear()

    def new_actor(self, key: PartitionKey, partition_id: int) -> PartitionActor:
        """A share-partition that is to be served here; `loading` brings it to life."""
        actor = PartitionActor(
            key,
            partition_id,
            context=self.context,
            budget=self.budget,
            counts=(self.totals, self.chained),
            pump=self.dispatcher.wake,
            on_dropped=self.dropped,
            on_missing=self._missing,
            on_timed_out=self.dispatcher.timed_out,
            tap=tap_maker(self.context, self.sessions),
        )
        actor.paused = pausing.is_paused(self.pauses, key)
        self.partitions[key.place] = actor
        return actor

    def activated(self, actor: PartitionActor) -> None:
        """A share-partition is served from now on."""
        place = actor.key.place
        tell(self.context, self.group_id, GroupEvent.OWNED, place=place)
        moves.compare_all(self.context.fleet, self, actor)
        # Who left while this was not served left its locks behind.
        for member_id in actor.members() - self.sessions.keys():
            actor.release_member(member_id)
        if self.context.fleet is not None:
            # Its former owner may have heard of them until now: afresh at each claim (design 9).
            for member_id in actor.members():
                if self.sessions[member_id].channel is None:
                    self.expire_later(self.sessions[member_id])
        self.shared_order.joined(actor.key)
        loading.start_reading(self.context, self, actor)
        self.schedule_pump()

    def dropped(self, actor: PartitionActor, error: SharecoordError) -> None:
        """The incarnation of a share-partition failed: claim and load it anew."""
        if self.partitions.get(actor.key.place) is not actor:
            return
        log.warning("share-partition dropped", partition=actor.key, why=str(error))
        actor.deactivate(ActorState.LOADING)
        self.shared_order.look_at(actor.key.home)
        moves.compare_anew(self, actor)
        loading.start_loading(self.context, self, actor)

    def _missing(self, actor: PartitionActor, first: int, last: int) -> None:
        """Payloads of due records are not in memory: read them again."""
        work = reread(self, actor, first, last)
        self.context.spawn(work, f"reread-{actor.key.name}")
