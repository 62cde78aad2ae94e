"""A coordinator on virtual time: real core and runtime, a shared database, a fake log, members.

Store time follows virtual time. A coordinator can be killed at any call to the store, the store can
go away, and every member reports to one `Ledger`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

from sharecoord.core.changes import PartitionKey, key_of
from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.core.fleet.held_book import lock_book_of
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import AcknowledgedRange, HeldRange, TakenBack
from sharecoord.core.states import AcknowledgeType, AcquireMode, TakenBackReason
from sharecoord.errors import SharecoordError, StoreUnavailableError
from sharecoord.ports import CommittedOffset, EventSink, PeerNetwork
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet.fleet import Fleet
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.kernel.budget import MemoryBudget
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.kernel.committer import CommitLimits, Committer
from sharecoord.runtime.kernel.context import Context, Limits, ParkingLimits
from sharecoord.runtime.kernel.lease import Lease
from sharecoord.runtime.kernel.open_files import OpenFiles
from sharecoord.runtime.member.session import JoinCommand, Session
from sharecoord.runtime.partition.collector import Collector
from sharecoord.security.guard import Guard
from sharecoord.security.principals import Caller
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.fake_dead_letters import FakeDeadLetters
from sharecoord.testing.fake_log import EPOCH_MS, FakeLog
from sharecoord.testing.ledger import BookEntry, Ledger

__all__ = [
    "FakeMember",
    "StreamBrokenError",
    "VirtualStoreCaller",
    "World",
    "running",
]

P = ParamSpec("P")
T = TypeVar("T")

COMMIT_S = 0.001
"""Virtual duration of a store call."""

STORE_EPOCH_MS = EPOCH_MS
"""Time of the store's clock at virtual time 0."""

Acknowledgements = list[tuple[str, str, int, list[AcknowledgedRange]]]
"""(topic, topic id, partition, ranges)"""


class StreamBrokenError(Exception):
    """The coordinator of this member is gone, or it ended the stream."""


class VirtualStoreCaller:
    """Store calls in order, on the loop; the store can be slow, gone, or the place of a crash."""

    def __init__(self) -> None:
        self.delay_s = COMMIT_S
        self.down = False
        self.calls = 0
        self.crash_at = 0
        """Number of the call that never returns; 0 = none."""
        self.crash_after = False
        """Whether that call happens all the same."""
        self.crashed = asyncio.Event()
        self._lock = asyncio.Lock()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Waits its turn, then calls."""
        async with self._lock:
            await asyncio.sleep(self.delay_s)
            if self.down and function.__name__ != "close":
                raise StoreUnavailableError("the store is away", retry_after_ms=100)
            self.calls += 1
            if self.calls == self.crash_at:
                with contextlib.suppress(SharecoordError):
                    if self.crash_after:
                        function(*args, **kwargs)
                self.crashed.set()
                await asyncio.Event().wait()
            return function(*args, **kwargs)

    def close(self) -> None:
        """Nothing to release."""


class _Stream:
    """A stream of a member, which receives nothing once the member has its next stream."""

    def __init__(self, member: FakeMember, number: int) -> None:
        self._member = member
        self._number = number

    @property
    def _is_current(self) -> bool:
        return self._member.stream == self._number

    @property
    def unsent_bytes(self) -> int:
        return self._member.unsent_bytes

    @property
    def unsent_since_s(self) -> float:
        return self._member.unsent_since_s

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        if self._is_current:
            self._member.deliver(delivery, now_ms)

    def relay(self, item: Relayed) -> None:
        """Deliveries of other coordinators come as they are, with the time at which they went."""
        assert isinstance(item.frame, tuple), "made by links that do not encode"
        delivery, now_ms = item.frame
        self.deliver(delivery, now_ms)

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        if self._is_current:
            self._member.acknowledged(acknowledge_id, results)

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        if self._is_current:
            self._member.lost(key, ranges)

    def assigned(self, assignment: Assignment) -> None:
        if self._is_current:
            self._member.assignments.append(assignment)

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        if self._is_current:
            self._member.drained = True
            self._member.drained_to = list(addresses)

    def end(self, error: SharecoordError | None) -> None:
        if self._is_current:
            self._member.end(error)

    def cut(self, error: SharecoordError) -> None:
        self.end(error)


class FakeMember:
    """A member that a test moves; it keeps what it gets and reports to the ledger."""

    def __init__(self, member_id: str, ledger: Ledger | None = None) -> None:
        self.member_id = member_id
        self.ledger = ledger or Ledger()
        self.unsent_bytes = 0
        self.unsent_since_s = math.inf
        self.deliveries: list[Delivery] = []
        self.results: dict[int, list[PartitionResult]] = {}
        self.assignments: list[Assignment] = []
        self.taken_back: list[TakenBack] = []
        """Locks that ended without its word, as it was told."""
        self.drained = False
        self.drained_to: list[str] = []
        self.ended: SharecoordError | bool = False
        self.group: GroupActor | None = None
        self.session: Session | None = None
        self.received = 0
        """Number of records that it received."""
        self._ids = itertools.count(1)
        self._arrived = asyncio.Event()
        self.stream = 0
        """Number of its stream; grows when one ends and when one begins."""
        self._connected = False

    # -- what comes on its stream ---------------------------------------------------------------

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Keeps a delivery, unless it gave its stream up."""
        if not self._connected:
            return
        self.ledger.delivered(self.member_id, delivery, now_ms)
        self.deliveries.append(delivery)
        self.received += delivery.records
        self._arrived.set()

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Keeps an answer."""
        self.results[acknowledge_id] = results
        self._arrived.set()

    def lost(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Notes locks that ended without its word."""
        self.taken_back += ranges
        for each in ranges:
            uncounted = each.reason is TakenBackReason.CHAIN_BROKE
            held = HeldRange(*each[1:4])
            self.ledger.lost(self.member_id, key, held, uncounted=uncounted)

    def end(self, error: SharecoordError | None) -> None:
        """Notes the end; a member that was removed holds nothing any more."""
        self.ended = error or True
        if self.group is not None and self.member_id not in self.group.sessions:
            self.ledger.gone(self.member_id)
        self.broken()

    # -- what a test does -----------------------------------------------------------------------

    async def join(
        self,
        coordinator: Coordinator,
        group_id: str,
        topics: tuple[str, ...],
        *,
        mode: AcquireMode = AcquireMode.FAIR,
        max_poll_records: int = 0,
        max_poll_interval_ms: int = 300_000,
        credit: int = 1 << 40,
        credit_bytes: int = 1 << 40,
        lock_book: list[BookEntry] | None = None,
        opens: frozenset[int] = frozenset(),
        caller: Caller | None = None,
    ) -> list[HeldRange]:
        """Joins with a lock book (by default what it believes to hold); returns what it lost."""
        self.broken()
        book = self.ledger.book(self.member_id) if lock_book is None else lock_book
        command = JoinCommand(
            self.member_id,
            f"client-{self.member_id}",
            "test:0",
            topics,
            mode,
            max_poll_records,
            max_poll_interval_ms,
            credit,
            credit_bytes,
            lock_book_of(book),
            opens=opens,
            caller=caller,
        )
        self.ledger.joined(self.member_id, book)
        self.ended = self.drained = False
        channel = _Stream(self, self.stream)
        self.group, self.session, lost = await coordinator.groups.join(group_id, command, channel)
        self._connected = True
        for entry in lost:
            self.ledger.lost(self.member_id, entry.key, entry.held)
        return [entry.held for entry in lost]

    @property
    def joined_session(self) -> Session:
        """The session of the last join."""
        assert self.session is not None, "join first"
        return self.session

    @property
    def joined_group(self) -> GroupActor:
        """The group of the last join."""
        assert self.group is not None, "join first"
        return self.group

    async def next_delivery(self, timeout_s: float = 60.0) -> Delivery:
        """The next delivery that was not taken yet."""
        stream = self.stream
        async with asyncio.timeout(timeout_s):
            while not self.deliveries:
                await self._something(stream)
        return self.deliveries.pop(0)

    async def take(self, count: int, timeout_s: float = 60.0) -> list[Delivery]:
        """Deliveries with `count` records in all."""
        taken: list[Delivery] = []
        while sum(d.records for d in taken) < count:
            taken.append(await self.next_delivery(timeout_s))
        return taken

    async def _something(self, stream: int) -> None:
        if self._connected and self.stream == stream:
            self._arrived.clear()
            await self._arrived.wait()
        if self.stream != stream or not self._connected:
            raise StreamBrokenError

    async def acknowledge(
        self,
        delivery: Delivery,
        kind: AcknowledgeType = AcknowledgeType.ACCEPT,
        *,
        delay_ms: int = 0,
        first: int | None = None,
        last: int | None = None,
        busy_us: int = 0,
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
        said = [(key.name, key.topic_id, key.partition, ranges)]
        (result,) = await self.send(said, busy_us=busy_us)
        return result

    async def send(self, items: Acknowledgements, *, busy_us: int = 0) -> list[PartitionResult]:
        """Sends acknowledgements as they are; returns the answers.

        Raises:
            StreamBrokenError: The coordinator went away before it answered.
        """
        group, session, stream = self.joined_group, self.joined_session, self.stream
        number = next(self._ids)
        sent_at_ms = int(asyncio.get_running_loop().time() * 1000)
        by_key = {
            key_of(group.group_id, topic, topic_id, partition): ranges
            for topic, topic_id, partition, ranges in items
        }
        for key, ranges in by_key.items():
            self.ledger.sent(self.member_id, key, ranges)
        collector = Collector(lambda results: self.acknowledged(number, results))
        if not self._connected:
            raise StreamBrokenError
        # Every second one may wait for company: an SDK says so of most.
        waits = number % 2 == 0
        group.acknowledge(session, items, collector, busy_us=busy_us, may_wait=waits)
        while number not in self.results:
            await self._something(stream)
        results = self.results.pop(number)
        for result in results:
            said = by_key.get(result.key, [])
            self.ledger.answered(self.member_id, said, result, sent_at_ms)
        return results

    async def settle(
        self, delivery: Delivery, kind: AcknowledgeType = AcknowledgeType.ACCEPT
    ) -> PartitionResult:
        """Settles a delivery; asks again while the answer says that a retry helps."""
        while True:
            result = await self.acknowledge(delivery, kind)
            if result.error is None or not result.error.retriable:
                return result
            await asyncio.sleep((result.error.retry_after_ms or 100) / 1000)

    async def work(self, *, seconds_per_record: float = 0.0) -> None:
        """Accepts whatever comes, until cancelled or the stream breaks."""
        while True:
            delivery = await self.next_delivery(timeout_s=1e9)
            await asyncio.sleep(seconds_per_record * delivery.records)
            await self.settle(delivery)

    def leave(self) -> None:
        """Leaves in good order."""
        self.ledger.gone(self.member_id)
        self.joined_group.leave(self.joined_session)

    def disconnect(self) -> None:
        """Breaks the stream."""
        self.joined_group.disconnected(self.joined_session)
        self.broken()

    def broken(self) -> None:
        """Ends the stream: who waits for something on it gets StreamBrokenError."""
        self.stream += 1
        self._connected = False
        self._arrived.set()


class NoConsumerGroups:
    """An `OffsetsExport` without consumer groups: it takes every offset, and forgets it."""

    async def read(
        self, group_id: str, *, even_with_members: bool = False
    ) -> dict[tuple[str, int], CommittedOffset]:
        """No offsets."""
        return {}

    async def write(
        self, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> set[tuple[str, int]]:
        """All places."""
        return set(offsets)

    async def close(self) -> None:
        """Nothing is open."""


def enough_files() -> OpenFiles:
    """More files than any test needs, and none of them is open."""
    return OpenFiles(1 << 20, brokers=1, count=lambda: 0)


class World:
    """A log, a database, and the coordinators that run on them. Made inside a running loop."""

    def __init__(
        self,
        log: FakeLog,
        *,
        defaults: dict[str, str] | None = None,
        memory_bytes: int = 64 << 20,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.database = MemoryDatabase(clock_ms=lambda: STORE_EPOCH_MS + int(loop.time() * 1000))
        self.log = log
        self.defaults = {"share.auto.offset.reset": "earliest", **(defaults or {})}
        limit = int(self.defaults.get("share.delivery.count.limit", "5"))
        self.ledger = Ledger(delivery_limit=limit)
        self.memory_bytes = memory_bytes
        self.parking = ParkingLimits()
        """Limits of coordinators that are built from now on."""
        self.fatal: list[SharecoordError] = []
        self.store = MemoryStore(self.database, check_ranges=True)
        """Handle of the coordinator that was started last."""
        self.caller = VirtualStoreCaller()
        """The way of that coordinator to its store."""
        self.lease_caller: VirtualStoreCaller | None = None
        """The way of its renewals, when these do not wait behind commits."""
        self.members: dict[str, FakeMember] = {}
        self.events: EventSink | None = None
        self.make_guard: Callable[[str], Guard] = lambda name: Guard(coordinator_id=name)
        """Makes the guard of each coordinator."""
        self.dead_letters = FakeDeadLetters()
        self._incarnations = itertools.count(1)

    def member(self, member_id: str) -> FakeMember:
        """A member that reports to this world's ledger."""
        member = self.members[member_id] = FakeMember(member_id, self.ledger)
        return member

    async def start(self, coordinator_id: str = "c1") -> Coordinator:
        """A running coordinator over this database and log."""
        coordinator = self.build(coordinator_id)
        await coordinator.start()
        return coordinator

    def build(
        self,
        coordinator_id: str = "c1",
        *,
        crash_at: int = 0,
        crash_after: bool = False,
        network: PeerNetwork | None = None,
    ) -> Coordinator:
        """A coordinator that is not started yet.

        Args:
            coordinator_id: Its id.
            crash_at: Number of the store call that never returns (`caller.crashed` tells when);
                0 = none.
            crash_after: Whether that call happens all the same.
            network: Its links to the others of its fleet; None: it is alone.
        """
        fleet = network is not None
        clock = RuntimeClock(asyncio.get_running_loop())
        self.caller = caller = VirtualStoreCaller()
        caller.crash_at, caller.crash_after = crash_at, crash_after
        self.store = store = MemoryStore(self.database, check_ranges=True, fleet=fleet)
        store.open(
            coordinator_id=coordinator_id,
            cluster_id=self.log.cluster,
            address="test:0",
            version="test",
        )
        clock.measured(store.now_ms())
        committer = Committer(
            store, caller, now_ms=clock.now_ms, on_fatal=self.fatal.append, limits=CommitLimits()
        )
        context = Context(
            coordinator_id=coordinator_id,
            store=store,
            caller=caller,
            reader=self.log,
            catalog=self.log,
            clock=clock,
            committer=committer,
            lease=Lease(store, self.lease_caller or caller, clock),
            budget=MemoryBudget(self.memory_bytes),
            new_incarnation=lambda: next(self._incarnations),
            limits=Limits(parking=self.parking),
            group_defaults=self.defaults,
            in_fleet=fleet,
            offsets_export=NoConsumerGroups(),
            dead_letters=self.dead_letters.client(),
            files=enough_files(),
            events=self.events,
            guard=self.make_guard(coordinator_id),
        )
        return Coordinator(context, Fleet(coordinator_id, clock) if fleet else None, network)

    async def kill(self, coordinator: Coordinator) -> None:
        """Ends a coordinator as kill -9 does: nothing is flushed; what the store has, it has."""
        store = coordinator.context.store
        assert isinstance(store, MemoryStore), "started by this world"
        store.crash()
        coordinator.context.committer.abandon()
        for group in coordinator.groups.values():
            group.dispatcher.stop()
            group.stop_timers()
            for session in group.sessions.values():
                session.channel = None
        for member in self.members.values():
            if member.group in coordinator.groups.values():
                member.broken()
        await coordinator.context.stop_tasks()

    def partition(self, group_id: str, topic: str, partition: int = 0) -> PartitionKey:
        """The key of a share-partition that exists in the database."""
        return next(
            key
            for key in self.database.ids
            if (key.group_id, *key.place) == (group_id, topic, partition)
        )

    def start_offset(self, group_id: str, topic: str, partition: int = 0) -> int:
        """The committed SPSO."""
        partition_id = self.database.ids[self.partition(group_id, topic, partition)]
        head = self.database.partitions[partition_id].row.head
        assert head is not None, "initialised"
        return head.start_offset


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Coordinator]:
    """A coordinator until the block ends, closed in good order; then the ledger is checked."""
    coordinator = await world.start()
    yield coordinator
    await coordinator.drain()
    await coordinator.close()
    world.ledger.check()
    assert not world.fatal, world.fatal
