"""One share group: its members, its share-partitions, and the dispatch between them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from sharecoord.core.changes import (
    LANE_MARK,
    GroupRow,
    JoinRefusal,
    MemberRow,
    PartitionKey,
    Place,
    key_of,
    served_by,
)
from sharecoord.core.delivery import Assignment, LostRange
from sharecoord.core.dispatch.pace import window_follows
from sharecoord.core.dispatch.pauses import Pauses
from sharecoord.core.fleet.held_book import LockBook, held_of
from sharecoord.core.partition.decisions import Acknowledgements, AcquiredRange
from sharecoord.errors import (
    GroupMaxSizeReachedError,
    MemberFencedError,
    SharecoordError,
    StoreFencedError,
    UnknownMemberError,
)
from sharecoord.eventlog.schema import GroupEvent
from sharecoord.ports import TopicInfo
from sharecoord.runtime.group import idle, loading, lock_books, log_changes
from sharecoord.runtime.group.dispatch import Dispatcher
from sharecoord.runtime.group.events import tell
from sharecoord.runtime.group.group import Group, Peers
from sharecoord.runtime.group.opening import Opener
from sharecoord.runtime.group.settings import check_subscription, config_of, settings_of
from sharecoord.runtime.group.shared_order import SharedOrder
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.channel import MemberChannel
from sharecoord.runtime.member.session import (
    Away,
    Comparison,
    Credit,
    Hindrance,
    JoinCommand,
    Presence,
    Session,
    anothers_member,
    newer_stream,
    session_of_row,
)
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.runtime.partition.collector import Collector
from sharecoord.runtime.partition.event_tap import work_us_each
from sharecoord.security.actions import group as group_resource
from sharecoord.security.principals import Caller

log = structlog.get_logger(__name__)

POLL_LOOK_S_MIN = 0.01
"""Least time between two checks whether a member still polls."""


class GroupActor(Group):
    """One live share group. Its methods run on the loop."""

    def __init__(self, context: Context, row: GroupRow, peers: Peers) -> None:
        super().__init__(context, row.group_id, peers)
        self._joining = 0
        """Number of joins that are being written."""
        self.owed_topics: frozenset[str] = frozenset()
        """Topics with dead letters that wait: they are served without members, too."""
        self.made_by = ""
        self.group_epoch = self.seen_epoch = row.group_epoch
        self.shared_order = SharedOrder(self)
        self.opener = Opener(self)
        self.dispatcher = Dispatcher(self)
        self.budget.on_outbox_room = self.dispatcher.wake_all
        self.closed = False
        """Whether the group was deleted: nobody joins any more, the next use makes a new actor."""
        self.apply_config(row)

    def apply_config(self, row: GroupRow) -> None:
        """Puts the stored settings, pauses and blocked keys of the group into force."""
        self.group_epoch = row.group_epoch
        # An operator's group gets its maker after its first settings.
        self.made_by = row.made_by or self.made_by
        self.pauses = Pauses(row.pauses)
        self._follow_pauses()
        before = self.config
        defaults, unused = self.context.group_defaults, self.unused_settings
        self.config, self.unused_settings = config_of(row, defaults, unused)
        self.settings = settings_of(self.config, row.blocked_keys)
        for actor in list(self.partitions.values()):
            actor.apply_settings(self.settings)
            is_other = before.isolation_level != self.config.isolation_level
            if is_other and actor.state is ActorState.ACTIVE:
                self.dropped(actor, SharecoordError("the isolation level changed: read anew"))
        self.shared_order.settings_changed()
        if self.config.ordering is not before.ordering:
            self.opener.tell_assignments(self.sessions.values())
        self.dispatcher.wake_all()

    def _follow_pauses(self) -> None:
        """Notes pauses at share-partitions and members; a lane is paused with its origin."""
        for actor in self.partitions.values():
            actor.paused = self.pauses.of_place(*actor.key.home) is not None
        for session in self.sessions.values():
            is_paused = self.pauses.of_member(session.member_id) is not None
            session.hinder(Hindrance.PAUSED, holds=is_paused)

    # -- members --------------------------------------------------------------------------------

    async def join(
        self, command: JoinCommand, channel: MemberChannel | None
    ) -> tuple[Session, list[LostRange]]:
        """Takes in a member, new or come back; an older stream of the member is fenced.

        Raises:
            GroupMaxSizeReachedError: The group is full.
            MemberFencedError: The member has joined elsewhere since.
            UnauthorizedError: The member is another principal's, at another coordinator.
            StoreUnavailableError: The member could not be written.
            StoreFencedError: The group was deleted meanwhile: join again.
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
            epoch = await self.context.calls.joins.ask(
                MemberRow(
                    self.group_id,
                    command.member_id,
                    0,
                    command.client_id,
                    command.host,
                    self.context.coordinator_id,
                    command.topics,
                    join_number=command.join_number,
                    principal=command.stored_principal,
                )
            )
        finally:
            self._joining -= 1
        if epoch is JoinRefusal.OVERTAKEN:
            raise newer_stream()
        if epoch is JoinRefusal.ANOTHERS:
            resource = group_resource(self.group_id)
            with self.context.guard.telling(command.caller or Caller(), "Join", resource):
                raise anothers_member(self.group_id, command.member_id)
        return await self.admit(command, channel, epoch)

    async def admit(
        self,
        command: JoinCommand,
        channel: MemberChannel | None,
        epoch: int,
        *,
        gateway: str = "",
    ) -> tuple[Session, list[LostRange]]:
        """Takes in a member whose epoch is written: here, or by `gateway`, which has its stream.

        Raises:
            MemberFencedError: A newer stream of the member is here.
            StoreFencedError: The group was deleted meanwhile.
        """
        # A row that was written before the deletion went with the group.
        self._check_open()
        former = self.sessions.get(command.member_id)
        if former is not None and former.member_epoch > epoch:
            raise newer_stream()
        session = self._new_session(command, channel, epoch, gateway)
        try:
            lost = await lock_books.compare_joined(self, session, command.lock_book)
            lost = await lock_books.stored(self, session, lost)
            if self.context.in_fleet and not gateway:
                lost += await self.peers.gateway.introduce(self, session)
                lock_books.check_current(self, session)
                late = lock_books.compare_places(self, session)
                lost += await lock_books.stored(self, session, late)
            if session.away is not None:
                session.away.lost(lost)
            session.comparison.pending = False
            self.dispatcher.offer(session)
        except BaseException:
            # The stream broke, or a newer one joined: nothing else would end the session.
            self.disconnected(session)
            raise
        return session, lost

    def _new_session(
        self, command: JoinCommand, channel: MemberChannel | None, epoch: int, gateway: str
    ) -> Session:
        """The session of a member that joins; it replaces a former one."""
        former = self.sessions.get(command.member_id)
        session = Session(
            group_id=self.group_id,
            member_id=command.member_id,
            member_epoch=epoch,
            client_id=command.client_id,
            host=command.host,
            topics=frozenset(command.topics),
            mode=command.mode,
            max_poll_records=command.max_poll_records,
            channel=channel,
            credit=Credit(
                command.credit_records,
                command.credit_bytes,
                unsent_max_bytes=self.context.limits.memory.stream_unsent_max_bytes,
            ),
            presence=Presence(command.max_poll_interval_ms, self.context.clock.now_ms()),
            comparison=Comparison(pending=True, epochs=command.book_epochs),
            gateway=gateway,
            away=Away.after(former) if self.context.in_fleet and not gateway else None,
            software=command.software,
            opens=command.opens,
            takes_batches=command.takes_batches,
            is_atomic=command.is_atomic,
            caller=command.caller,
            principal=command.principal_name,
        )
        if former is None:
            tell(self.context, self.group_id, GroupEvent.JOINED, session=session)
        else:
            self._replace(former, session)
            self._count_for_principal(former, -1)
        self._count_for_principal(session, 1)
        self.dispatcher.joined(session)
        if not gateway:
            self._watch_polls(session)
        idle.wake(self)
        return session

    def _count_for_principal(self, session: Session, change: int) -> None:
        """Counts a member for its principal's quota, at the coordinator that let it in."""
        if session.caller is not None:
            quotas, principal = self.context.guard.quotas, session.caller.principal
            quotas.member(principal, change)
            session.records_max = quotas.records_each(principal)

    def _replace(self, former: Session, session: Session) -> None:
        """A member's new stream takes the place of its former one."""
        former.presence.cancel_timers()
        session.pace = former.pace
        session.totals = former.totals
        if former.channel is not None and former.channel is not session.channel:
            stale, former.channel = former.channel, None
            stale.end(newer_stream())
            if not former.is_lent:
                self.peers.gateway.gone(former)

    def _check_open(self) -> None:
        if self.closed:
            raise StoreFencedError(
                f"group {self.group_id!r} was deleted meanwhile; join again", retry_after_ms=100
            )

    def is_open(self, topic: str) -> bool:
        """Whether all share-partitions of a topic are known."""
        return self.opener.is_open(topic)

    def opening(self, topics: set[str]) -> list[asyncio.Task[None]]:
        """The tasks that open these topics."""
        return self.opener.tasks(topics)

    def session(self, member_id: str, member_epoch: int | None = None) -> Session:
        """A member's session.

        Raises:
            UnknownMemberError: The member has no session: join first.
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
        if not session.is_lent:
            self.peers.gateway.gone(session)

    def fenced(self, session: Session, error: SharecoordError) -> None:
        """Ends the stream of a member that has a newer one, or whose group is gone."""
        channel = session.channel
        self.disconnected(session)
        if channel is not None:
            channel.end(error)

    def expire_later(self, session: Session, delay_s: float = 0.0) -> None:
        """(Re)starts the session timeout of a member without a stream; 0 = the whole of it."""
        if session.presence.expiry is not None:
            session.presence.expiry.cancel()
        delay_s = delay_s or self.config.session_timeout_ms / 1000
        loop = asyncio.get_running_loop()
        session.presence.expiry = loop.call_later(delay_s, self._session_ended, session)

    def _session_ended(self, session: Session) -> None:
        if not self.context.lease.store_ok:
            # No member can join without the store: session timeouts stand still (design 5, Time).
            self.expire_later(session)
        elif left_s := self.peers.introduces_for_s(session.gateway):
            # The gateway stood still, or did not reach this owner, and has just come back.
            self.expire_later(session, left_s)
        elif self.sessions.get(session.member_id) is session:
            log.info("session timed out", group=self.group_id, member=session.member_id)
            self.leave(session, why="session timeout")

    def remember(self, member: MemberRow) -> None:
        """Takes in a member that is known from the store alone, until its session timeout."""
        here = member.gateway == self.context.coordinator_id or not self.context.in_fleet
        session = session_of_row(member, self.context.clock.now_ms(), is_here=here)
        self.dispatcher.joined(session)
        self.expire_later(session)

    def _watch_polls(self, session: Session) -> None:
        """Looks again when `max.poll.interval.ms` since the member's last poll is over."""
        idle_ms = self.context.clock.now_ms() - session.presence.last_poll_ms
        delay_s = max((session.presence.max_poll_interval_ms - idle_ms) / 1000, POLL_LOOK_S_MIN)
        loop = asyncio.get_running_loop()
        session.presence.poll_timer = loop.call_later(delay_s, self._look_at_polls, session)

    def _look_at_polls(self, session: Session) -> None:
        """Removes a member that has not polled for `max.poll.interval.ms`."""
        if self.sessions.get(session.member_id) is not session:
            return
        idle_ms = self.context.clock.now_ms() - session.presence.last_poll_ms
        if idle_ms < session.presence.max_poll_interval_ms:
            self._watch_polls(session)
            return
        log.warning("max.poll.interval.ms exceeded", group=self.group_id, member=session.member_id)
        channel = session.channel
        self.leave(session, why="max.poll.interval.ms")
        if channel is not None:
            channel.end(
                UnknownMemberError(
                    f"no poll for {idle_ms} ms (max.poll.interval.ms="
                    f"{session.presence.max_poll_interval_ms}): the member was removed and its "
                    "records released; poll more often or raise max.poll.interval.ms"
                )
            )

    def offer(self, session: Session) -> None:
        """A member may be able to take more, or less, than before."""
        self.dispatcher.offer(session)

    def polled(self, session: Session, *, polls: bool = True) -> None:
        """The application gave a sign: a lock that ended before holds nothing up any more."""
        session.presence.last_poll_ms = self.context.clock.now_ms()
        self.dispatcher.took_part(session, polls=polls)

    def leave(
        self,
        session: Session,
        book: LockBook | None = None,
        *,
        why: str = "",
    ) -> None:
        """Removes a member; its records are released, and the deliveries count (KIP-932, T11).

        Args:
            session: The member's.
            book: The records that its application has; all others go back unseen (design 5.3).
                None = not known, so all deliveries count.
            why: The cause of the session's end; "" = the member left.
        """
        if self.sessions.get(session.member_id) is not session:
            return
        session.presence.cancel_timers()
        session.channel = None
        self._count_for_principal(session, -1)
        if not session.is_lent:
            self.peers.gateway.left(session, book)
        self.dispatcher.left(session)
        event = GroupEvent.SESSION_ENDED if why else GroupEvent.LEFT
        tell(self.context, self.group_id, event, session=session, reason=why or None)
        for actor in self.partitions.values():
            if book is not None and actor.state is ActorState.ACTIVE:
                actor.compare_lock_book(session, held_of(book, actor.key))
            actor.release_member(session.member_id)
        if self.peers.keeps(self.group_id, session.member_id, session.gateway):
            committer = self.context.committer
            committer.remove_member(self.group_id, session.member_id, session.member_epoch)

    def hand_back(
        self, session: Session, key: PartitionKey, ranges: Sequence[AcquiredRange]
    ) -> None:
        """Takes back unseen the records of a delivery that never reached the member."""
        actor = self.partitions.get(key.place)
        if actor is not None:
            actor.hand_back(session.member_id, ranges)
        else:
            self.peers.gateway.hand_back(self, session, key, ranges)

    def subscribe(self, session: Session, topics: Sequence[str]) -> None:
        """Replaces a member's topics, unless its stream was replaced by a newer one."""
        if self.sessions.get(session.member_id) is not session:
            return
        self.dispatcher.subscribed(session, topics)
        idle.wake(self)
        self.changed(session)

    def pause(self, session: Session, places: frozenset[Place]) -> None:
        """Replaces the share-partitions that a member paused for itself."""
        session.paused = places
        self.changed(session)

    def changed(self, session: Session) -> None:
        """A member wants other topics or partitions than before."""
        if not session.is_lent:
            self.peers.gateway.changed(self, session)
        self.dispatcher.offer(session)

    def assignment(self, session: Session) -> Assignment:
        """The topics that a member may receive from."""
        return self.opener.assignment(session)

    # -- acknowledgements -----------------------------------------------------------------------

    def acknowledge(
        self,
        session: Session,
        acknowledgements: Acknowledgements,
        collector: Collector,
        *,
        busy_us: int = 0,
        may_wait: bool = False,
        is_sign: bool = True,
    ) -> None:
        """Settles ranges, partition by partition; the collector answers after the commit.

        Args:
            session: The member's.
            acknowledgements: (topic, topic id, partition, ranges).
            collector: Sealed by this call.
            busy_us: How long the application had records since its last word; 0 = unknown.
            may_wait: Whether the commit may wait for others (`CommitLimits.linger_ms`).
            is_sign: Whether the application acknowledges, not its SDK while it does not poll.
        """
        now_ms = self.context.clock.now_ms()
        if is_sign:
            self.polled(session, polls=False)
        settled = on_way = 0
        work_us = work_us_each(self.context, busy_us, acknowledgements)
        for topic, topic_id, partition, ranges in acknowledgements:
            actor = self.partitions.get((topic, partition))
            owner = self.elsewhere.get((topic, partition))
            if actor is None and owner is not None:
                key = key_of(self.group_id, topic, topic_id, partition)
                on_way += self.peers.gateway.settle(
                    owner, session, key, ranges, collector, may_wait=may_wait
                )
                continue
            error = self.why_not_served(actor, topic, topic_id, partition)
            if error is not None or actor is None:
                collector.refuse(key_of(self.group_id, topic, topic_id, partition), error)
                continue
            settled += actor.acknowledge(
                session, ranges, collector, may_wait=may_wait, work_us=work_us
            )
        if settled + on_way:
            session.totals.acknowledged += settled + on_way
            self.dispatcher.settled(session, settled, now_ms, busy_us, on_way=on_way)
        collector.seal()

    # -- dispatch -------------------------------------------------------------------------------

    def wake(self, actor: PartitionActor, refunded: str | None = None) -> None:
        """A share-partition may have records, or its members hold fewer than before."""
        self.dispatcher.wake(actor, refunded)

    def stop_timers(self) -> None:
        """Cancels all timers; changes that are not committed are forgotten."""
        for session in self.sessions.values():
            session.presence.cancel_timers()
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
        """The topics of the group, without lanes."""
        return {topic for topic in self.topic_ids if LANE_MARK not in topic}

    @property
    def topics(self) -> set[str]:
        """Topics that members want."""
        return set(self.dispatcher.topics)

    def topic_found(self, topic: str, info: TopicInfo) -> None:
        """Opens new partitions of a topic, unless the group was deleted."""
        if self.closed:
            return
        if self.topic_ids.get(topic, info.topic_id) != info.topic_id:
            self.opener.stop(topic)
        self.topic_ids[topic] = info.topic_id
        self.partition_ids[topic] = info.partitions
        self.peers.found_topic(self, topic)
        self.opener.open(topic)

    def names_served(self, topics: Iterable[str]) -> set[str]:
        """The names of topics and of the lanes that serve the same members."""
        wanted = set(topics)
        return wanted | {name for name in self.topic_ids if served_by(name) in wanted}

    async def topic_gone(self, topic: str) -> None:
        """Retires a topic that the cluster does not have any more."""
        self.opener.stop(topic)
        del self.topic_ids[topic]
        del self.partition_ids[topic]
        self.peers.forget_topic(self, topic)
        await log_changes.retire(self, topic)
        self.opener.tell_assignments(s for s in self.sessions.values() if topic in s.topics)

    def forget(self, topics: Iterable[str], why: str) -> None:
        """Takes topics out of the group, with the work that opens or loads them.

        Nothing of their state is written any more.
        """
        for topic in set(topics):
            self.opener.stop(topic)
            self.topic_ids.pop(topic, None)
            self.partition_ids.pop(topic, None)
            for place in [place for place in self.partitions if place[0] == topic]:
                self.forget_place(place, why)

    def forget_place(self, place: Place, why: str) -> None:
        """Takes a share-partition out of the group."""
        actor = self.partitions.pop(place)
        actor.deactivate(ActorState.CLOSED, why)
        self.dispatcher.forget(actor)
        self.peers.forget(actor.key)
        self.shared_order.look_at(actor.key.home)
        for session in self.sessions.values():
            session.comparison.done.discard(place)

    def close(self) -> None:
        """Ends all work of a group that is being deleted; nobody joins any more."""
        self.closed = True
        self.dispatcher.stop()
        served = {topic for topic, _ in self.partitions}
        known = served | self.topic_ids.keys() | set(self.opener.topics)
        self.forget(known, "the group was deleted")
        self.peers.closed(self)
        for session in self.sessions.values():
            session.presence.cancel_timers()
            self._count_for_principal(session, -1)
            self.peers.gateway.gone(session)
            channel, session.channel = session.channel, None
            if channel is not None:
                channel.end(StoreFencedError("the group was deleted meanwhile; join again"))
        self.sessions.clear()

    def new_actor(self, key: PartitionKey, partition_id: int) -> PartitionActor:
        """Makes the actor of a share-partition; `loading` brings it to life."""
        actor = PartitionActor(
            key,
            partition_id,
            self.context,
            self.budget,
            counts=(self.totals, self.chained),
            sessions=self.sessions,
            on_change=self.dispatcher.wake,
            on_dropped=self.dropped,
            on_timed_out=self.dispatcher.timed_out,
            on_other_topic=self.topic_found,
        )
        actor.paused = self.pauses.of_place(*key.home) is not None
        self.partitions[key.place] = actor
        return actor

    def activated(self, actor: PartitionActor) -> None:
        """A share-partition is served from now on."""
        place = actor.key.place
        tell(self.context, self.group_id, GroupEvent.OWNED, place=place)
        lock_books.compare_all(self, actor)
        self.peers.claimed(self, actor)
        # Members that left while this was not served left their locks behind.
        for member_id in actor.members() - self.sessions.keys():
            actor.release_member(member_id)
        if self.context.in_fleet:
            # The former owner may have heard of them: a whole timeout at each claim (design 9).
            for member_id in actor.members():
                if self.sessions[member_id].channel is None:
                    self.expire_later(self.sessions[member_id])
        self.shared_order.joined(actor.key)
        actor.log.start(committed=actor.reads_committed)
        self.dispatcher.wake_all()

    def dropped(self, actor: PartitionActor, error: SharecoordError) -> None:
        """Claims and loads anew a share-partition whose incarnation failed."""
        if self.partitions.get(actor.key.place) is not actor:
            return
        log.warning("share-partition dropped", partition=actor.key, why=str(error))
        actor.deactivate(ActorState.LOADING)
        self.shared_order.look_at(actor.key.home)
        lock_books.compare_anew(self, actor)
        loading.start_loading(self, actor, error)
