"""The coordinators of a simulation: up to three processes on one database.

Forwarding between coordinators is not part of this release. What it will tell coordinators of each
other stands here in a few lines: which partitions a process should own (one place, one live
lease), who is a member elsewhere (vouching, once a second), and that an operator changed something.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
import zlib
from collections.abc import Callable, Collection, Coroutine
from typing import Any

from sharecoord.core.changes import GroupRow, MemberRow, PartitionKey
from sharecoord.errors import SharecoordError
from sharecoord.ports import TopicInfo
from sharecoord.runtime.admin import Admin
from sharecoord.runtime.admin_types import CoordinatorInfo
from sharecoord.runtime.committer import Committer
from sharecoord.runtime.context import Context
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.partition_actor import ActorState
from sharecoord.runtime.record_cache import MemoryBudget
from sharecoord.runtime.sessions import Session
from sharecoord.store.memory_store import MemoryDatabase
from sharecoord.testing.judge import Judge
from sharecoord.testing.processes import Process
from tests.simulation.environment import (
    LogView,
    ProcessClock,
    SimLog,
    SimStore,
    StoreLink,
    StoreTrouble,
)

GROUP = "g"
VOUCH_S = 1.0


class Node:
    """One coordinator process."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        loop = asyncio.get_running_loop()
        chance = fleet.chance
        self.fleet = fleet
        self.name = name
        self.process = Process(name, self._died)
        self.trouble = StoreTrouble()
        self.link = StoreLink(self.process, fleet.outside, chance, self.trouble)
        self.store = SimStore(fleet.database, fleet.judge, self._may_claim)
        self.clock = ProcessClock(loop, chance.randrange(1_000_000))
        self.view = LogView(fleet.log, self.process)
        self.coordinator: Coordinator | None = None
        self.admin: Admin | None = None
        self.ready = False
        self.draining = False
        self.streams: dict[str, int] = {}
        """The newest streams of members that it knows of, here or elsewhere."""
        self.booting = self.process.spawn(self._boot(), f"{name}-boot")

    @property
    def serving(self) -> bool:
        """Whether members can come."""
        return self.ready and not self.draining and not self.process.dead

    async def _boot(self) -> None:
        fleet = self.fleet
        self.store.open(
            coordinator_id=self.name, cluster_id=fleet.log.cluster, address="", version="sim"
        )
        self.clock.measured(self.store.now_ms())
        committer = Committer(self.store, self.link, now_ms=self.clock.now_ms, on_fatal=self._fatal)
        context = Context(
            coordinator_id=self.name,
            store=self.store,
            caller=self.link,
            reader=self.view,
            catalog=self.view,
            clock=self.clock,
            committer=committer,
            budget=MemoryBudget(fleet.memory_bytes),
            new_incarnation=fleet.new_incarnation,
            group_defaults=fleet.defaults,
        )
        coordinator = Coordinator(context)
        while True:
            try:
                await coordinator.start()
                break
            except SharecoordError:
                await context.stop_tasks()
                await asyncio.sleep(0.2)
        self.coordinator = coordinator
        self.admin = Admin(coordinator, CoordinatorInfo("sim", "", "", "memory:"))
        self.ready = True

    def _fatal(self, error: SharecoordError) -> None:
        self.fleet.judge.broken(f"{self.name} had to end: {error!r}")

    def _died(self, _: Process) -> None:
        self.ready = False
        self.view.abandon()
        self.fleet.node_died(self)

    def _may_claim(self, partition_id: int) -> bool:
        """Whether a partition should be this process's."""
        return self.fleet.owner(partition_id) in (None, self.name)

    async def end(self) -> None:
        """As after SIGTERM: drains and closes."""
        self.draining = True
        coordinator = self.coordinator
        if coordinator is not None:
            await coordinator.drain()
            await asyncio.sleep(0.05)
            await coordinator.close()
        self.process.kill()

    # -- what peers will do, inside of the process ----------------------------------------------

    async def open_group(self) -> None:
        """A use of the group here: who its members are stands in the database."""
        assert self.coordinator is not None, "ready"
        await self.coordinator.group(GROUP)
        self.hears_of([(row, 0) for row in self.fleet.all_members()])

    def hears_of(self, members: Collection[tuple[MemberRow, int]]) -> None:
        """Who is alive at other coordinators, each with the number of its stream.

        Member epochs tell nothing: they begin anew when a session has ended.
        """
        group = self.coordinator.groups.get(GROUP) if self.coordinator is not None else None
        if group is None or group.closed:
            return
        for row, stream in members:
            known = group.sessions.get(row.member_id)
            # A lock book of an earlier join here says nothing of what it got elsewhere since.
            moved = row.gateway != self.name and known is not None and known.book is not None
            newer = stream and self.streams.get(row.member_id) != stream
            if known is None or moved or newer:
                self.streams[row.member_id] = stream
                if known is not None:
                    known.cancel_timers()
                    known.channel = None
                session = Session(
                    row.group_id,
                    row.member_id,
                    row.member_epoch,
                    row.client_id,
                    row.host,
                    frozenset(row.topics),
                    last_poll_ms=self.clock.now_ms(),
                )
                group.dispatcher.joined(session)
                group.expire_later(session)
            elif known.channel is None:
                group.expire_later(known)

    def looks_after_partitions(self) -> None:
        """Tries again to own what should be this process's and is owned by nobody alive.

        An owner must know all members before it claims: locks of those whom nobody knows end.
        """
        self.hears_of([(row, 0) for row in self.fleet.all_members()])
        group = self.coordinator.groups.get(GROUP) if self.coordinator is not None else None
        for place, actor in list(group.partitions.items()) if group is not None else ():
            gone = actor.partition_id not in self.fleet.database.partitions
            mine = gone or self._may_claim(actor.partition_id)
            assert group is not None, "in this loop"
            if actor.state is ActorState.CLOSED and mine and group.is_open(place[0]):
                del group.partitions[place]
                group.dispatcher.forget(actor)
                topic_id, partitions = group.assignment(_reader(place[0])).topics[place[0]]
                group.topic_found(place[0], TopicInfo(topic_id, partitions))

    def hears_of_change(self, row: GroupRow, keys: Collection[PartitionKey]) -> None:
        """An operator changed settings or offsets."""
        group = self.coordinator.groups.get(GROUP) if self.coordinator is not None else None
        if group is None:
            return
        if row.group_epoch > group.group_epoch:
            group.apply_config(row)
        for actor in group.partitions.values():
            if actor.key in keys and actor.state is ActorState.ACTIVE:
                group.context.committer.add(actor)


def _reader(topic: str) -> Session:
    """Somebody who wants a topic."""
    return Session(GROUP, "", 0, "", "", frozenset([topic]))


class Fleet:
    """All coordinators, dead ones too."""

    def __init__(
        self,
        log: SimLog,
        database: MemoryDatabase,
        judge: Judge,
        chance: random.Random,
        *,
        defaults: dict[str, str],
        memory_bytes: int,
    ) -> None:
        self.log = log
        self.database = database
        self.judge = judge
        self.chance = chance
        self.defaults = defaults
        self.memory_bytes = memory_bytes
        self.outside = contextvars.copy_context()
        self.nodes: list[Node] = []
        self.on_death: Callable[[Node], None] = lambda _: None
        self.members_of: Callable[[Node], Collection[tuple[str, int]]] = lambda _: ()
        """Whose streams a coordinator holds, and their numbers."""
        self._incarnation = 0
        self._names = 0

    def new_incarnation(self) -> int:
        """A number that no other claim has."""
        self._incarnation += 1
        return self._incarnation

    def add(self, name: str = "") -> Node:
        """Starts a process; with the name of a dead one it is its restart."""
        self._names += not name
        node = Node(self, name or f"c{self._names}")
        self.nodes.append(node)
        return node

    def alive(self) -> list[Node]:
        """The processes that are not dead."""
        return [node for node in self.nodes if not node.process.dead]

    def serving(self) -> list[Node]:
        """Where members can go."""
        return [node for node in self.nodes if node.serving]

    def lives(self, name: str) -> bool:
        """Whether a lease holds, by the store's clock."""
        return self.database.leases.get(name, 0) >= self.database.clock_ms()

    def owner(self, partition_id: int) -> str | None:
        """Which process should own a partition: who has it, or one of those whose leases hold."""
        found = self.database.partitions.get(partition_id)
        if found is not None and found.row.owner is not None and self.lives(found.row.owner):
            return found.row.owner
        names = [name for name in self.database.leases if self.lives(name)]
        return min(names, key=lambda n: zlib.crc32(f"{n}/{partition_id}".encode()), default=None)

    def node_died(self, node: Node) -> None:
        """A process is gone."""
        self.on_death(node)

    async def watch(self) -> None:
        """Plays the peers, once a second."""
        while True:
            for node in self.alive():
                self.vouch_for(node)
                node.process.post(node.looks_after_partitions)
            await asyncio.sleep(VOUCH_S)

    def vouch_for(self, node: Node) -> None:
        """Tells all others whose streams a process holds; a frozen one tells nothing."""
        if node.process.frozen or not node.ready:
            return
        rows = [
            (row, stream)
            for name, stream in self.members_of(node)
            if (row := self.database.members.get((GROUP, name)))
        ]
        for other in self.alive():
            if other is not node and rows:
                other.process.post(other.hears_of, rows)

    def all_members(self) -> list[MemberRow]:
        """All members that are stored."""
        return [self.database.members[key] for key in sorted(self.database.members)]

    def tell_change(self, keys: Collection[PartitionKey] = ()) -> None:
        """Tells all coordinators that an operator changed something."""
        row = self.database.groups.get(GROUP)
        for node in self.alive() if row is not None else ():
            node.process.post(node.hears_of_change, row, keys)

    def set_paused(self, *, paused: bool) -> None:
        """As an operator will: one transaction, then all hear of it."""
        if GROUP in self.database.groups:
            operator = SimStore(self.database, self.judge, lambda _: True)
            operator.open(coordinator_id="operator", cluster_id="", address="", version="sim")
            operator.set_group_paused(GROUP, paused=paused)
            operator.close()
            self.tell_change()


def _hear(task: asyncio.Task[Any]) -> None:
    """Typed errors are an operator's to read; any other one is a mistake and goes on."""
    if not task.cancelled():
        with contextlib.suppress(SharecoordError):
            task.result()


async def finished(process: Process, work: Coroutine[Any, Any, Any], timeout_s: float) -> None:
    """Runs work inside a process and waits for it; a crash or a freeze leaves it unfinished."""
    task = process.spawn(work, "operator")
    await asyncio.wait([task], timeout=timeout_s)
    if task.done():
        _hear(task)
    else:
        # It may still end with an error of the store, on which it wanted to put things in order.
        task.add_done_callback(_hear)
        task.cancel()
