"""What the simulator found, each as small as it can be."""

from __future__ import annotations

import asyncio

from sharecoord.core.changes import PartitionKey
from sharecoord.testing.virtual_time import virtual
from tests.simulation.environment import SimLog
from tests.unit.runtime.worlds import counts, offsets, world_with
from tests.world import running


@virtual
async def test_a_lock_that_ends_before_its_delivery_was_sent_does_not_count() -> None:
    """With a limit of 1 the records would be archived, and nobody would ever have seen them."""
    world = world_with(0, record_lock_duration_ms="1000", delivery_count_limit="1")
    async with running(world) as coordinator:
        member = world.member("one")
        await member.join(coordinator, "g", ("orders",), max_poll_records=100)
        await asyncio.sleep(0.5)
        world.caller.delay_s = 1.5
        world.log.append("orders", 5)
        await asyncio.sleep(4)
        world.caller.delay_s = 0.001
        deliveries = await member.take(5)
        assert (offsets(*deliveries), counts(*deliveries)) == ([0, 1, 2, 3, 4], {1})
        for delivery in deliveries:
            await member.settle(delivery)


def test_a_record_that_takes_a_lost_ones_place_has_a_value_of_its_own() -> None:
    """By its value the judge tells whether a record that a cut took is there again."""
    log = SimLog()
    log.create("orders")
    for _ in range(3):
        log.truncate("orders", 0)
        log.append("orders", 3)
    topic_id = log.topic_id("orders")
    assert [len(log.known.written[topic_id, 0][offset]) for offset in range(3)] == [3, 3, 3]


def test_a_marker_has_a_leader_epoch_as_a_record_has() -> None:
    """By it the judge tells whether the epoch that is stored with an end may be."""
    log = SimLog()
    log.create("orders")
    log.append("orders", 3)
    log.truncate("orders", 1)
    log.skip("orders", 2)
    key = PartitionKey("g", "orders", log.topic_id("orders"), 0)
    assert [log.known.epochs_at(key, offset) for offset in range(3)] == [{0}, {0, 1}, {0, 1}]
