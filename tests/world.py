"""The world of `sharecoord.testing` with a fleet, an event log, and checks of what is inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sharecoord.core.delivery import Delivery
from sharecoord.core.states import RecordState
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.testing import harness
from sharecoord.testing.fake_log import FakeLog
from sharecoord.testing.harness import FakeMember
from tests.event_book import EventBook
from tests.invariants import check_partition
from tests.peers import PeerHub
from tests.security_on import guard_of

TOPICS = ("orders",)


class World(harness.World):
    """A world whose coordinators may be a fleet, and whose events are kept."""

    events: EventBook

    def __init__(self, log: FakeLog, **options: Any) -> None:
        super().__init__(log, **options)
        self.events = EventBook()
        self.peers = PeerHub()
        self.make_guard = guard_of

    def build(
        self, coordinator_id: str = "c1", *, fleet: bool = False, **options: Any
    ) -> Coordinator:
        """A coordinator that is not started yet; those of a fleet reach each other by `peers`."""
        if fleet:
            options["network"] = self.peers.network(coordinator_id)
        coordinator = super().build(coordinator_id, **options)
        if fleet:
            self.peers.coordinators[coordinator_id] = coordinator
        return coordinator

    def append(self, records: int, partitions: int = 1, topic: str = "orders") -> None:
        """Writes so many records to each of the first partitions of a topic."""
        for partition in range(partitions):
            self.log.append(topic, records, partition=partition)

    def make_again(self, records: int, partitions: int = 1) -> None:
        """Topic `orders` gets its next life; no turn of the loop sees the moment without it."""
        self.log.delete("orders")
        self.log.create("orders", partitions)
        self.append(records, partitions)

    async def joined(
        self, coordinator: Coordinator, member_id: str = "m", **wishes: Any
    ) -> FakeMember:
        """Adds a member of group `g` that reads `orders`, with wishes as `FakeMember.join` has."""
        member = self.member(member_id)
        await member.join(coordinator, "g", TOPICS, **wishes)
        return member

    @asynccontextmanager
    async def one_member(
        self, member_id: str = "m", **wishes: Any
    ) -> AsyncIterator[tuple[Coordinator, FakeMember]]:
        """Runs a coordinator with one member, see `joined`, for the length of a block."""
        async with running(self) as coordinator:
            yield coordinator, await self.joined(coordinator, member_id, **wishes)

    async def handed(
        self, coordinator: Coordinator, records: int, member_id: str = "m", **wishes: Any
    ) -> tuple[FakeMember, Delivery]:
        """Adds a member, see `joined`, that so many records went to at a stroke, its most."""
        member = await self.joined(
            coordinator, member_id, **{"max_poll_records": records, **wishes}
        )
        (delivery,) = await member.take(records)
        return member, delivery

    @asynccontextmanager
    async def one_delivery(
        self, records: int, member_id: str = "m", **wishes: Any
    ) -> AsyncIterator[tuple[Coordinator, FakeMember, Delivery]]:
        """Runs a coordinator with one member, see `handed`, for the length of a block."""
        async with running(self) as coordinator:
            yield coordinator, *await self.handed(coordinator, records, member_id, **wishes)


@asynccontextmanager
async def running(world: World) -> AsyncIterator[Coordinator]:
    """A coordinator until the block ends; then it, the ledger and the events are checked."""
    async with harness.running(world) as coordinator:
        yield coordinator
        check_coordinator(coordinator)
    world.events.check(world.database)


def actor_of(
    coordinator: Coordinator, topic: str, partition: int = 0, group_id: str = "g"
) -> PartitionActor:
    """The actor of a share-partition."""
    return coordinator.groups[group_id].partitions[topic, partition]


def check_coordinator(coordinator: Coordinator) -> None:
    """Checks every window, and that held records and credits fit together.

    Raises:
        InternalError: An invariant of a window does not hold.
        AssertionError: The read-ahead of a partition, or what a member holds, was miscounted.
    """
    for group in coordinator.groups.values():
        totals: Counter[str] = Counter()
        for actor in group.partitions.values():
            if actor.partition is not None:
                totals.update(actor.partition.window.held)
        assert group.totals == dict(totals), "what members hold everywhere"
        topics = Counter(topic for session in group.sessions.values() for topic in session.topics)
        assert group.dispatcher.topics == topics, "how many members want each topic"
        for actor in group.partitions.values():
            if actor.partition is None:
                continue
            check_partition(actor.partition)
            check_kept(actor)
            end = actor.partition.window.end_offset
            ahead = sum(
                last - first + 1
                for chunk in actor.cache.after(end)
                for first, last in chunk.runs(end)
            )
            counted = actor.log.fresh.records
            assert counted == ahead, f"{counted} fresh, found {ahead}"


def check_kept(actor: PartitionActor) -> None:
    """Checks that payloads are kept of unfinished records alone."""
    assert actor.partition is not None, "active"
    window, kept = actor.partition.window, actor.books.kept.offsets
    for first, last in kept.spans(0, 2**63 - 1):
        for offset in range(first, last + 1):
            found = window.ranges.get(offset)
            unfinished = found is not None and found[2].state is not RecordState.ARCHIVED
            assert unfinished or window.parked.covers(offset, offset), f"{offset} is kept"
