"""A coordinator on virtual time: real core and runtime, a store, a fake log, members by hand."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.core.share_partition import AcknowledgedRange, HeldRange
from sharecoord.core.states import AcknowledgeType, AcquireMode
from sharecoord.errors import SharecoordError
from sharecoord.ports import Store
from sharecoord.runtime.clock import RuntimeClock
from sharecoord.runtime.committer import Committer
from sharecoord.runtime.context import Context
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.effects import Collector
from sharecoord.runtime.group_actor import GroupActor, JoinCommand
from sharecoord.runtime.record_cache import MemoryBudget
from sharecoord.runtime.sessions import Session
from sharecoord.testing.fake_log import FakeLog

P = ParamSpec("P")
T = TypeVar("T")

COMMIT_S = 0.001
"""Virtual duration of a store call."""


class InlineStoreCaller:
    """Store calls in order, on the loop, each taking COMMIT_S of virtual time."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self.delay_s = COMMIT_S

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Waits its turn, then calls."""
        async with self._lock:
            await asyncio.sleep(self.delay_s)
            return function(*args, **kwargs)

    def close(self) -> None:
        """Nothing to release."""


class FakeMember:
    """A member by hand: a `MemberChannel` that keeps what it gets."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.unsent_bytes = 0
        self.deliveries: list[Delivery] = []
        self.results: list[tuple[int, list[PartitionResult]]] = []
        self.assignments: list[Assignment] = []
        self.drained = False
        self.ended: SharecoordError | bool = False
        self.group: GroupActor | None = None
        self.session: Session | None = None
        self._ids = itertools.count(1)
        self._arrived = asyncio.Event()

    # -- MemberChannel --------------------------------------------------------------------------

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Keeps a delivery."""
        assert now_ms >= 0, "monotonic"
        self.deliveries.append(delivery)
        self._arrived.set()

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Keeps an answer."""
        self.results.append((acknowledge_id, results))
        self._arrived.set()

    def assigned(self, assignment: Assignment) -> None:
        """Keeps an assignment."""
        self.assignments.append(assignment)

    def drain(self) -> None:
        """Notes the wish."""
        self.drained = True

    def end(self, error: SharecoordError | None) -> None:
        """Notes the end."""
        self.ended = error or True
        self._arrived.set()

    # -- what a test does -----------------------------------------------------------------------

    async def join(
        self,
        coordinator: Coordinator,
        group_id: str,
        topics: tuple[str, ...],
        *,
        mode: AcquireMode = AcquireMode.FAIR,
        max_poll_records: int = 0,
        credit: int = 100_000,
        lock_book: list[tuple[str, str, int, HeldRange]] | None = None,
    ) -> list[HeldRange]:
        """Joins; returns what it lost of its lock book."""
        command = JoinCommand(
            self.member_id,
            f"client-{self.member_id}",
            "test:0",
            topics,
            mode,
            max_poll_records,
            300_000,
            credit,
            1 << 40,
            lock_book or [],
        )
        self.group, self.session, lost = await coordinator.join(group_id, command, self)
        return [entry.held for entry in lost]

    async def next_delivery(self, timeout_s: float = 60.0) -> Delivery:
        """The next delivery that was not taken yet."""
        async with asyncio.timeout(timeout_s):
            while not self.deliveries:
                self._arrived.clear()
                await self._arrived.wait()
        return self.deliveries.pop(0)

    async def take(self, count: int, timeout_s: float = 60.0) -> list[Delivery]:
        """Deliveries with `count` records in all."""
        taken: list[Delivery] = []
        while sum(d.records for d in taken) < count:
            taken.append(await self.next_delivery(timeout_s))
        return taken

    async def acknowledge(
        self,
        delivery: Delivery,
        kind: AcknowledgeType = AcknowledgeType.ACCEPT,
        *,
        delay_ms: int = 0,
        first: int | None = None,
        last: int | None = None,
    ) -> PartitionResult:
        """Settles (a part of) a delivery; returns the answer."""
        ranges = [
            AcknowledgedRange(
                r.first if first is None else max(first, r.first),
                r.last if last is None else min(last, r.last),
                kind,
                r.lock_token,
                delay_ms,
            )
            for r in delivery.ranges
            if (first is None or r.last >= first) and (last is None or r.first <= last)
        ]
        key = delivery.key
        (result,) = await self.send([(key.topic, key.topic_id, key.partition, ranges)])
        return result

    async def send(
        self, items: list[tuple[str, str, int, list[AcknowledgedRange]]]
    ) -> list[PartitionResult]:
        """Sends acknowledgements as they are; returns the answers."""
        assert self.group is not None, "join first"
        assert self.session is not None, "join first"
        number = next(self._ids)
        collector = Collector(lambda results: self.acknowledged(number, results))
        self.group.acknowledge(self.session, items, collector)
        while not any(i == number for i, _ in self.results):
            self._arrived.clear()
            await self._arrived.wait()
        return next(results for i, results in self.results if i == number)

    def disconnect(self) -> None:
        """The stream breaks."""
        assert self.group is not None, "join first"
        assert self.session is not None, "join first"
        self.group.disconnected(self.session)


class World:
    """A log, a store, and the coordinator that runs now."""

    def __init__(
        self, store: Store, log: FakeLog, *, defaults: dict[str, str] | None = None
    ) -> None:
        self.store = store
        self.log = log
        self.defaults = {"share.auto.offset.reset": "earliest", **(defaults or {})}
        self.fatal: list[SharecoordError] = []
        self._incarnations = itertools.count(1)

    async def start(self, coordinator_id: str = "c1") -> Coordinator:
        """A coordinator over this store and log."""
        clock = RuntimeClock(asyncio.get_running_loop())
        caller = InlineStoreCaller()
        self.store.open(
            coordinator_id=coordinator_id,
            cluster_id=await self.log.cluster_id(),
            address="test:0",
            version="test",
        )
        clock.measured(self.store.now_ms())
        committer = Committer(self.store, caller, now_ms=clock.now_ms, on_fatal=self.fatal.append)
        context = Context(
            coordinator_id=coordinator_id,
            store=self.store,
            caller=caller,
            reader=self.log,
            catalog=self.log,
            clock=clock,
            committer=committer,
            budget=MemoryBudget(64 << 20),
            new_incarnation=lambda: next(self._incarnations),
            group_defaults=self.defaults,
        )
        coordinator = Coordinator(context)
        await coordinator.start()
        return coordinator

    @staticmethod
    async def kill(coordinator: Coordinator) -> None:
        """As kill -9: nothing is flushed, no goodbye; what the store has, it has."""
        for group in coordinator.groups.values():
            group.stop_dispatch()
            for session in group.sessions.values():
                session.cancel_timers()
                session.channel = None
            for actor in group.partitions.values():
                actor.deactivate(actor.state)
        coordinator.context.committer.abandon()
        await coordinator.context.stop_tasks()


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Coordinator]:
    """A coordinator for the length of a block, closed in good order."""
    coordinator = await world.start()
    try:
        yield coordinator
    finally:
        await coordinator.drain()
        await coordinator.close()
