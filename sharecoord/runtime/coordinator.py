"""The coordinator: groups, the watch over topics, the lease, and an orderly end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from sharecoord.errors import SharecoordError
from sharecoord.ports import PeerNetwork
from sharecoord.runtime.fleet import hand_over
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.fleet.watch import FleetWatch
from sharecoord.runtime.group import log_changes
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.group import NOBODY
from sharecoord.runtime.group.groups import Groups
from sharecoord.runtime.group.idle import IdleWatch
from sharecoord.runtime.group.offsets_export import OffsetsExporter
from sharecoord.runtime.kernel.clock import BEAT_S
from sharecoord.runtime.kernel.committer import CallbackEffect
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.letters.lanes import Lanes
from sharecoord.runtime.letters.orphans import INTERVAL_S as ORPHANS_INTERVAL_S
from sharecoord.runtime.letters.orphans import OrphanWatch
from sharecoord.runtime.memory.watch import MemoryWatch

log = structlog.get_logger(__name__)

UNKNOWN_TOPIC_INTERVAL_S = 0.5
"""Interval of looks for topics that members want and the cluster does not have."""

KNOWN_TOPIC_INTERVAL_S = 2.0
"""Interval of looks for new partitions and new ids of known topics; one request for all. A topic
that is deleted and made again within this time is read on at its old position until then."""

GONE_AFTER_S = 30.0
"""A topic that is missing for this time is given up."""

LOG_START_INTERVAL_S = 30.0
"""Interval at which the log starts are read for records that are due again."""


class Coordinator:
    """One coordinator: its groups and everything that looks at them again and again."""

    def __init__(
        self, context: Context, fleet: Fleet | None = None, network: PeerNetwork | None = None
    ) -> None:
        """Starts nothing; a fleet needs a network."""
        self.context = context
        self.fleet = fleet
        self.groups = Groups(context, NOBODY if fleet is None else fleet)
        self._missing_since_s: dict[str, float] = {}
        self.kafka_ok = True
        self.memory = MemoryWatch(context, self.groups)
        self.orphans = OrphanWatch(
            context, self.groups, making=self.groups.making, on_owed=self.groups.topics_wanted.set
        )
        self._network = network
        self.lanes = Lanes(context, self.groups)
        context.lease.on_renewed = self._lease_renewed
        self.watch: FleetWatch | None = None
        """None without a fleet."""
        self.offsets_exporter = OffsetsExporter(context, self.groups)
        if fleet is not None:
            assert network is not None, "a fleet has links"
            fleet.gateway.groups = self.groups
            fleet.groups = self.groups
            self.watch = FleetWatch(context, self.groups, fleet, network)

    async def start(self) -> None:
        """Loads groups and members; begins to watch."""
        await self.groups.load()
        members = await self.context.caller.call(self.context.store.load_members)
        fleet = self.fleet
        if fleet is not None:
            await hand_over.release_former(self.context, list(self.groups))
        for member in members:
            group = self.groups.get(member.group_id)
            # In a fleet, members of dead coordinators are taken over at the first look.
            here = fleet is None or member.gateway == fleet.coordinator_id
            if group is not None and here:
                group.remember(member)
        keep = self.context.tasks.keep
        if self.watch is not None:
            keep("fleet", self.watch.run)
        else:
            # Members that come back show locks of lanes, which must be known by then.
            await self._look_at_lanes()
        keep("lease", self.context.lease.run)
        keep("beat", self._beat)
        keep("memory", self.memory.run)
        keep("idle", IdleWatch(self.groups).run)
        keep("admission", self.groups.admission.run)
        keep("topics", self._watch_topics)
        keep("log-starts", self._follow_log_starts)
        keep("outboxes", self._follow_letters)
        keep("offsets-export", self.offsets_exporter.run)

    async def drain(self, grace_ms: int = 2_000) -> None:
        """Stops acquiring, asks members to go, commits what is pending (design 9, Drain).

        Members have `grace_ms` to hand back and to hear their last answers.
        """
        self.groups.draining = True
        if self.watch is not None:
            await self.watch.stand_down()
        for group in self.groups.values():
            group.dispatcher.stop()
            for session in list(group.sessions.values()):
                if session.channel is not None:
                    session.channel.drain(self.fleet.addresses if self.fleet else (), grace_ms)
        await self.context.committer.flush()

    async def close(self) -> None:
        """Ends everything, the store last."""
        self.groups.draining = True
        for group in self.groups.values():
            group.dispatcher.stop()
        await self.context.stop_tasks()
        if self._network is not None:
            await self._network.close()
        await self.context.committer.close()
        for group in self.groups.values():
            group.stop_timers()
        self.orphans.close()
        await self.context.stop_tasks()
        await self.context.catalog.close()
        await self.context.reader.close()
        await self.context.offsets_export.close()
        await self.context.dead_letters.close()
        if self.context.lease.caller is not self.context.caller:
            self.context.lease.caller.close()
        await self.context.caller.call(self.context.store.close)
        self.context.caller.close()

    def after_commit(self, callback: Callable[[SharecoordError | None], None]) -> None:
        """Calls back once everything decided so far is durable."""
        self.context.committer.add_effect(CallbackEffect(callback))

    # -- background -----------------------------------------------------------------------------

    @property
    def draining(self) -> bool:
        """Whether the coordinator goes down: nobody joins any more."""
        return self.groups.draining

    @property
    def store_ok(self) -> bool:
        """Whether the store answers, and the lease on it lives."""
        return self.context.lease.store_ok and not self.context.lease.has_lapsed

    def _lease_renewed(self, store_ms: int, had_lapsed: bool) -> None:  # noqa: FBT001 - a callback
        """Tells the fleet of the renewal; wakes the groups of a lease that had lapsed."""
        if self.watch is not None:
            self.watch.renewed(store_ms)
        for group in self.groups.values() if had_lapsed else ():
            group.dispatcher.wake_all()

    async def _beat(self) -> None:
        """Tells the clock that this process goes on."""
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
                    await self.groups.topics_wanted.wait()
                self.groups.topics_wanted.clear()
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

    async def _follow_letters(self) -> None:
        """Looks for dead letters that wait without members, and at lanes."""
        while True:
            try:
                await self.orphans.look()
            except SharecoordError as error:
                log.warning("outboxes not read", why=error.message)
            await self._look_at_lanes()
            await asyncio.sleep(ORPHANS_INTERVAL_S)

    async def _look_at_lanes(self) -> None:
        try:
            await self.lanes.look()
        except SharecoordError as error:
            log.warning("lanes not looked at", why=error.message)

    async def _follow_log_starts(self) -> None:
        """Archives and counts what retention took away under the groups."""
        while True:
            try:
                await log_changes.follow_log_starts(self.context, list(self.groups.values()))
            except SharecoordError as error:
                log.warning("log starts not read", why=error.message)
            await asyncio.sleep(LOG_START_INTERVAL_S)

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
            await self._retire_gone(wanted - found.keys() - self.context.catalog.refusals.keys())
        for group in self.groups.values():
            for topic in sorted((_wanted(group) | group.log_topics) & found.keys()):
                info = found[topic]
                is_same = group.topic_ids.get(topic) == info.topic_id
                if not is_same or group.opener.opened(topic) != set(info.partitions):
                    group.topic_found(topic, info)


def _wanted(group: GroupActor) -> set[str]:
    """Topics that members or dead letters want."""
    return group.topics | group.owed_topics
