"""The world of `sharecoord.testing` with a fleet, an event log, and checks of what is inside."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from sharecoord.core.states import RecordState
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.testing import harness
from sharecoord.testing.fake_log import FakeLog
from tests.event_book import EventBook
from tests.invariants import check_partition
from tests.peers import PeerHub


class World(harness.World):
    """A world whose coordinators may be a fleet, and whose events are kept."""

    events: EventBook

    def __init__(self, log: FakeLog, **options: Any) -> None:
        super().__init__(log, **options)
        self.events = EventBook()
        self.peers = PeerHub()

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
