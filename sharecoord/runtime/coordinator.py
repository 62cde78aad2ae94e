"""The coordinator: groups, the watch over topics, the lease, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import structlog

from sharecoord.core.changes import GroupRow
from sharecoord.core.delivery import LostRange
from sharecoord.errors import (
    DrainingError,
    GroupNotFoundError,
    KafkaUnavailableError,
    LimitExceededError,
    SharecoordError,
    StoreFatalError,
    StoreFencedError,
    StoreInUseError,
)
from sharecoord.ports import PeerNetwork
from sharecoord.runtime import log_changes, moves
from sharecoord.runtime.channel import MemberChannel
from sharecoord.runtime.clock import BEAT_S
from sharecoord.runtime.context import Context
from sharecoord.runtime.effects import CallbackEffect
from sharecoord.runtime.fleet_watch import FleetWatch
from sharecoord.runtime.group_actor import GroupActor
from sharecoord.runtime.idle import IdleWatch
from sharecoord.runtime.lanes import Lanes
from sharecoord.runtime.memory import MemoryWatch
from sharecoord.runtime.offsets_export import OffsetsExporter
from sharecoord.runtime.opening import opened
from sharecoord.runtime.outboxes import INTERVAL_S as OUTBOX_INTERVAL_S
from sharecoord.runtime.outboxes import OutboxWatch
from sharecoord.runtime.sessions import JoinCommand, Session

log = structlog.get_logger(__name__)

UNKNOWN_TOPIC_INTERVAL_S = 0.5
"""How often topics are looked for that members want and the cluster does not have."""

KNOWN_TOPIC_INTERVAL_S = 2.0
"""How often known topics are looked at for new partitions and new ids; one request for all. A topic
that is deleted and made again within this time is read on at its old position until then."""

GONE_AFTER_S = 30.0
"""A topic that is missing for so long is given up."""

LOG_START_INTERVAL_S = 30.0
"""How often retention is followed for records that are due again."""


JOIN_LIVES_MAX = 3
"""A join that meets a deletion of its group goes on in the next life of it; so often, then its
caller is told to try again: an operator who deletes in a loop must not hold streams for ever."""


class Coordinator:
    """See the module."""

    def __init__(self, context: Context, network: PeerNetwork | None = None) -> None:
        """Starts nothing.

        Args:
            context: Ports, clock, limits.
            network: Links to the other coordinators, in a fleet.
        """
        self.context = context
        self.groups: dict[str, GroupActor] = {}
        self.draining = False
        self._missing_since_s: dict[str, float] = {}
        self.store_ok = True
        self.kafka_ok = True
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watch_now = asyncio.Event()
        self.memory = MemoryWatch(context, self.groups)
        self.outboxes = OutboxWatch(
            context, self.groups, making=self.making, on_owed=self._watch_now.set
        )
        self._network = network
        self.lanes = Lanes(self)
        self.watch: FleetWatch | None = None
        """In a fleet."""
        self.offsets_exporter = OffsetsExporter(context, self.groups)
        if context.fleet is not None:
            assert network is not None, "a fleet has links"
            context.fleet.gateway.groups = self.groups
            self.watch = FleetWatch(self, context.fleet, network)

    async def start(self) -> None:
        """Loads groups and members; begins to watch."""
        rows = await self.context.caller.call(self.context.store.load_groups)
        for row in rows:
            self.groups[row.group_id] = GroupActor(self.context, row)
        members = await self.context.caller.call(self.context.store.load_members)
        fleet = self.context.fleet
        if fleet is not None:
            await moves.release_former(self.context, list(self.groups))
        for member in members:
            group = self.groups.get(member.group_id)
            # Of a fleet's other members, those of the dead are taken over at the first look.
            here = fleet is None or member.gateway == fleet.coordinator_id
            if group is not None and here:
                group.remember(member)
        if self.watch is not None:
            self.context.spawn(self.watch.run(), "fleet")
        else:
            # A member that comes back shows locks of lanes: none is unknown then.
            await self._look_at_lanes()
        self.context.spawn(self._renew_lease(), "lease")
        self.context.spawn(self._beat(), "beat")
        self.context.spawn(self.memory.run(), "memory")
        self.context.spawn(IdleWatch(self.groups).run(), "idle")
        self.context.spawn(self._watch_topics(), "topics")
        self.context.spawn(self._follow_log_starts(), "log-starts")
        self.context.spawn(self._follow_outboxes(), "outboxes")
        self.context.spawn(self.offsets_exporter.run(), "offsets-export")

    async def drain(self, grace_ms: int = 2_000) -> None:
        """Stops acquiring, asks members to go, commits what is pending (design 9, Drain).

        Args:
            grace_ms: How long members may take to hand back and to hear their last answers.
        """
        self.draining = True
        fleet = self.context.fleet
        if self.watch is not None:
            await self.watch.stand_down()
        for group in self.groups.values():
            group.stop_dispatch()
            for session in list(group.sessions.values()):
                if session.channel is not None:
                    session.channel.drain(fleet.addresses if fleet else (), grace_ms)
        await self.context.committer.flush()

    async def close(self) -> None:
        """Ends everything, the store last."""
        self.draining = True
        for group in self.groups.values():
            group.stop_dispatch()
        await self.context.stop_tasks()
        if self._network is not None:
            await self._network.close()
        await self.context.committer.close()
        for group in self.groups.values():
            group.stop_timers()
        self.outboxes.close()
        await self.context.stop_tasks()
        await self.context.reader.close()
        await self.context.catalog.close()
        if self.context.offsets_export is not None:
            await self.context.offsets_export.close()
        if self.context.dead_letters is not None:
            await self.context.dead_letters.close()
        await self.context.caller.call(self.context.store.close)
        self.context.caller.close()

    async def group(self, group_id: str) -> GroupActor:
        """The group's actor; made on first use.

        Raises:
            LimitExceededError: It is new, and there are as many as there may be.
        """
        found = self.groups.get(group_id)
        if found is not None:
            return found
        async with self.making(group_id):
            found = self.groups.get(group_id)
            if found is None:
                self.check_room(group_id)
                row: GroupRow = await self.context.caller.call(
                    self.context.store.ensure_group, group_id
                )
                found = self.groups[group_id] = GroupActor(self.context, row)
        return found

    def check_room(self, group_id: str) -> None:
        """Whether a group is there, or may be made.

        Raises:
            LimitExceededError: There are as many as there may be.
        """
        if group_id not in self.groups and len(self.groups) >= self.context.groups_max:
            raise LimitExceededError(
                f"group {group_id!r} is new and there are {len(self.groups)} groups already; "
                "delete those that nobody uses, or raise limits.groups.max",
                retry_after_ms=5_000,
            )

    def making(self, group_id: str) -> asyncio.Lock:
        """Who holds this makes or deletes the group: nobody else does meanwhile."""
        return self._making.setdefault(group_id, asyncio.Lock())

    async def existing_group(self, group_id: str) -> GroupActor:
        """The actor of a group that is there.

        Raises:
            GroupNotFoundError: There is none of that name.
        """
        found = self.groups.get(group_id)
        if found is None:
            raise GroupNotFoundError(
                f"there is no share group {group_id!r}; it is made when its first member joins"
            )
        return found

    async def join(
        self, group_id: str, command: JoinCommand, channel: MemberChannel | None
    ) -> tuple[GroupActor, Session, list[LostRange]]:
        """Brings a member into its group and opens the topics it wants.

        A group that is deleted meanwhile is made again, as if the join had come after.

        Raises:
            DrainingError: This coordinator is going down.
            SharecoordError: As `GroupActor.join`.
        """
        if self.draining:
            raise DrainingError("this coordinator is shutting down", retry_after_ms=1000)
        for lives_left in reversed(range(JOIN_LIVES_MAX)):
            group = await self.group(group_id)
            await self._open_topics(group, command.topics)
            try:
                session, lost = await group.join(command, channel)
            except StoreFencedError:
                if not group.closed or not lives_left:
                    raise
                log.info("joining a group that was deleted meanwhile: a new one", group=group_id)
            else:
                self._watch_now.set()
                return group, session, lost
        raise AssertionError("the last attempt returns or raises")

    async def admit(
        self,
        group_id: str,
        command: JoinCommand,
        channel: MemberChannel,
        *,
        epoch: int,
        gateway: str,
    ) -> tuple[GroupActor, Session, list[LostRange]]:
        """Takes in a member whose gateway is another coordinator, and opens the topics it wants.

        Raises:
            DrainingError: This coordinator is going down.
            SharecoordError: As `GroupActor.admit`.
        """
        if self.draining:
            raise DrainingError("this coordinator is shutting down", retry_after_ms=1000)
        group = await self.group(group_id)
        await self._open_topics(group, command.topics)
        session, lost = await group.admit(command, channel, epoch, gateway=gateway)
        self._watch_now.set()
        return group, session, lost

    async def _open_topics(self, group: GroupActor, topics: Sequence[str]) -> None:
        """Starts to open topics that the group does not serve yet; waits for Kafka's answer."""
        missing = [topic for topic in topics if topic not in group.topic_ids]
        if not missing:
            return
        try:
            found = await self.context.catalog.describe(missing)
        except KafkaUnavailableError as error:
            log.warning("topics not known yet", topics=missing, why=error.message)
            return
        for topic, info in found.items():
            group.topic_found(topic, info)

    def subscription_changed(self, group: GroupActor, session: Session) -> None:
        """A member wants other topics: open what is new of them."""
        self.context.spawn(self._open_topics(group, sorted(session.topics)), "subscribe")

    def after_commit(self, callback: Callable[[SharecoordError | None], None]) -> None:
        """Calls back once everything decided so far is durable."""
        self.context.committer.add_effect(CallbackEffect(callback))

    # -- background -----------------------------------------------------------------------------

    async def _renew_lease(self) -> None:
        while True:
            try:
                asked_ms = self.context.clock.now_ms()
                now_ms = await self.context.caller.call(
                    self.context.store.renew_lease, duration_ms=self.context.lease_ms
                )
                self.context.clock.measured(now_ms, asked_ms=asked_ms)
                self.store_ok = self.context.store_ok = True
                if self.watch is not None:
                    self.watch.renewed(now_ms)
            except (StoreFatalError, StoreInUseError):
                raise
            except SharecoordError as error:
                self.store_ok = self.context.store_ok = False
                log.warning("lease not renewed", why=error.message)
            await asyncio.sleep(self.context.lease_renewal_s)

    async def _beat(self) -> None:
        """Keeps the clock's sense of whether this process stands still."""
        while True:
            self.context.clock.beat()
            await asyncio.sleep(BEAT_S)

    async def _watch_topics(self) -> None:
        """Looks for topics that are wanted and missing, and for changes of the others."""
        loop = asyncio.get_running_loop()
        looked_s = looked_at_all_s = loop.time()
        while True:
            unknown = any(_wanted(g) - g.topic_ids.keys() for g in self.groups.values())
            next_s = looked_at_all_s + KNOWN_TOPIC_INTERVAL_S
            if unknown or not self.kafka_ok:
                next_s = min(next_s, looked_s + UNKNOWN_TOPIC_INTERVAL_S)
            try:
                async with asyncio.timeout_at(next_s):
                    await self._watch_now.wait()
                self._watch_now.clear()
                continue
            except TimeoutError:
                looked_s = loop.time()
            everything = not self.kafka_ok or looked_s >= looked_at_all_s + KNOWN_TOPIC_INTERVAL_S
            try:
                await self._look_at_topics(everything=everything)
                self.kafka_ok = True
            except SharecoordError as error:
                self.kafka_ok = False
                log.warning("topics not read", why=error.message)
            except Exception:
                log.exception("topics not read")
            if everything:
                looked_at_all_s = looked_s

    async def _follow_outboxes(self) -> None:
        """Dead letters that wait go to their topic without members, too; lanes are looked at."""
        while True:
            try:
                await self.outboxes.look()
            except SharecoordError as error:
                log.warning("outboxes not read", why=error.message)
            await self._look_at_lanes()
            await asyncio.sleep(OUTBOX_INTERVAL_S)

    async def _look_at_lanes(self) -> None:
        try:
            await self.lanes.look()
        except SharecoordError as error:
            log.warning("lanes not looked at", why=error.message)

    async def _follow_log_starts(self) -> None:
        """Archives and counts what retention took away under the groups."""
        while True:
            await asyncio.sleep(LOG_START_INTERVAL_S)
            try:
                await log_changes.follow_log_starts(self.context, list(self.groups.values()))
            except SharecoordError as error:
                log.warning("log starts not read", why=error.message)

    async def _retire_gone(self, missing: set[str]) -> None:
        """Gives up topics that have been missing for a while; a broker may not know one at once."""
        now_s = asyncio.get_running_loop().time()
        self._missing_since_s = {
            topic: self._missing_since_s.get(topic, now_s) for topic in missing
        }
        gone = {
            t for t, since_s in self._missing_since_s.items() if now_s - since_s >= GONE_AFTER_S
        }
        for group in list(self.groups.values()):
            for topic in sorted(gone & group.log_topics):
                await group.topic_gone(topic)

    async def _look_at_topics(self, *, everything: bool) -> None:
        wanted: set[str] = set()
        for group in self.groups.values():
            if everything:
                wanted |= _wanted(group) | group.log_topics
            else:
                wanted |= _wanted(group) - group.topic_ids.keys()
        found = await self.context.catalog.describe(sorted(wanted))
        if everything:
            await self._retire_gone(wanted - found.keys())
        for group in self.groups.values():
            for topic in sorted((_wanted(group) | group.log_topics) & found.keys()):
                info = found[topic]
                is_same = group.topic_ids.get(topic) == info.topic_id
                if not is_same or opened(group, topic) != set(info.partitions):
                    group.topic_found(topic, info)


def _wanted(group: GroupActor) -> set[str]:
    """Topics that members or dead letters want."""
    return group.topics | group.owed_topics
