"""The coordinators of a simulation: a lone one, or a fleet of up to three on one database."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from sharecoord.errors import SharecoordError
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet import fleet as peers
from sharecoord.runtime.kernel.budget import MemoryBudget
from sharecoord.runtime.kernel.committer import CommitLimits, Committer
from sharecoord.runtime.kernel.context import Context, Limits, ParkingLimits
from sharecoord.runtime.kernel.lease import Lease
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.testing.fake_dead_letters import FakeDeadLetters
from sharecoord.testing.harness import NoConsumerGroups, enough_files
from tests.event_book import EventBook
from tests.security_on import guard_of
from tests.simulation.environment import (
    GROUP,
    LogView,
    ProcessClock,
    SimLog,
    SimStore,
    StoreLink,
    StoreTrouble,
)
from tests.simulation.judges.judge import Judge
from tests.simulation.network import Links, Network
from tests.simulation.processes import Process

DEAD_LETTERS = "dead-letters"


class Node:
    """One coordinator process."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        loop = asyncio.get_running_loop()
        self.fleet = fleet
        self.name = name
        self.began_ms = int(loop.time() * 1000)
        self.process = Process(name, self._died)
        self.trouble = StoreTrouble()
        self.link = StoreLink(self.process, fleet.outside, fleet.chance, self.trouble)
        self.lease_link = StoreLink(self.process, fleet.outside, fleet.chance, self.trouble)
        self.store = SimStore(fleet.database, fleet.judge, fleet=not fleet.lone)
        self.clock = ProcessClock(loop, fleet.chance.randrange(1_000_000))
        self.view = LogView(fleet.log, self.process)
        self.coordinator: Coordinator | None = None
        self.admin: Admin | None = None
        self.ready = False
        self.draining = False
        self.closed_to_peers = False
        self.context: Context
        self.peers: peers.Fleet | None = None
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
        committer = Committer(
            self.store,
            self.link,
            now_ms=self.clock.now_ms,
            on_fatal=self._fatal,
            limits=CommitLimits(),
        )
        context = self.context = Context(
            coordinator_id=self.name,
            store=self.store,
            caller=self.link,
            reader=self.view,
            catalog=self.view,
            clock=self.clock,
            committer=committer,
            lease=Lease(self.store, self.lease_link, self.clock),
            budget=MemoryBudget(fleet.memory_bytes),
            new_incarnation=fleet.new_incarnation,
            limits=Limits(parking=fleet.parking),
            group_defaults=fleet.defaults,
            in_fleet=not fleet.lone,
            offsets_export=NoConsumerGroups(),
            dead_letters=fleet.dead_letters.client(),
            files=enough_files(),
            events=fleet.events,
            guard=guard_of(self.name),
        )
        self.peers = None if fleet.lone else peers.Fleet(self.name, self.clock)
        links = None if fleet.lone else Links(fleet.network, self)
        coordinator = Coordinator(context, self.peers, links)
        while not await self._tries(coordinator.start()):
            await context.stop_tasks()
            await asyncio.sleep(0.2)
        self.coordinator = coordinator
        self.admin = Admin(coordinator, CoordinatorInfo("sim", "", "", "memory:"))
        self.ready = True
        if coordinator.watch is not None:
            watch = coordinator.watch
            while not await self._tries(watch.announce(self.name, self.name)):  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    @staticmethod
    async def _tries(work: Coroutine[Any, Any, None]) -> bool:
        try:
            await work
        except SharecoordError:
            return False
        return True

    def _fatal(self, error: SharecoordError) -> None:
        self.fleet.judge.broken(f"{self.name} had to end: {error!r}")

    def _died(self, _: Process) -> None:
        self.ready = False
        self.view.abandon()
        if self.fleet.database.holder == self.name:
            # The lock of a file goes with its process.
            self.fleet.database.holder = None
        self.fleet.network.died(self)
        self.fleet.on_death(self)

    async def end(self) -> None:
        """As after SIGTERM: drains and closes."""
        self.draining = True
        coordinator = self.coordinator
        if coordinator is not None:
            await coordinator.drain()
            self.closed_to_peers = True
            for wire in self.fleet.network.wires:
                if wire.owner is self:
                    wire.gateway_left()
            await asyncio.sleep(0.05)
            await coordinator.close()
        self.process.kill()


@dataclass(eq=False)
class Fleet:
    """All coordinators, dead ones too.

    Attributes:
        lone: Whether there is one at a time, without a way to others.
        defaults: Settings of every group.
        memory_bytes: What payloads may take in each coordinator.
    """

    log: SimLog
    database: MemoryDatabase
    judge: Judge
    chance: random.Random
    lone: bool
    defaults: dict[str, str]
    memory_bytes: int
    parking: ParkingLimits

    def __post_init__(self) -> None:
        self.events = EventBook()
        self.dead_letters = FakeDeadLetters()
        self.dead_letters.topics[DEAD_LETTERS] = []
        self.dead_letters.on_arrival = self.judge.letter_arrived
        self.outside = contextvars.copy_context()
        self.network = Network(self.judge, self.chance, self.outside)
        self.nodes: list[Node] = []
        self.on_death: Callable[[Node], None] = lambda _: None
        self._incarnation = 0
        self._names = 0

    def new_incarnation(self) -> int:
        """A number that no other claim has."""
        self._incarnation += 1
        return self._incarnation

    def add(self, name: str = "") -> Node:
        """Starts a process; with the name of a dead one it is its restart.

        A lone coordinator that runs is the only one: another would be refused.
        """
        if self.lone and self.alive():
            return self.alive()[0]
        self._names += not name
        node = Node(self, name or f"c{self._names}")
        self.nodes.append(node)
        self.network.nodes[node.name] = node
        return node

    def alive(self) -> list[Node]:
        """The processes that are not dead."""
        return [node for node in self.nodes if not node.process.dead]

    def serving(self) -> list[Node]:
        """Where members can go."""
        return [node for node in self.nodes if node.serving]

    def resume_all(self) -> None:
        """One transaction, as an operator's tool would make it; a fleet sees it by itself."""
        group = self.database.groups.get(GROUP)
        self.judge.resuming()
        if group is None:
            return
        operator = SimStore(self.database, self.judge, fleet=True)
        operator.open(coordinator_id="operator", cluster_id="", address="", version="sim")
        scopes = [pause.scope for pause in group.pauses]
        change = operator.change_pauses(GROUP, resume=scopes)
        operator.close()
        assert change is not None, "there is the group"
        row = change.row
        for node in self.alive() if self.lone else ():
            group = node.coordinator.groups.get(GROUP) if node.coordinator is not None else None
            if group is not None:
                node.process.post(group.apply_config, row)


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
