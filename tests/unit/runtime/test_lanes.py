"""A redrive delivers what was selected, once, to the members of the topic it came from."""

from __future__ import annotations

from sharecoord.core.dead_letters import KAFKA_PREFIX
from sharecoord.core.states import AcknowledgeType
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.lanes import LaneSelection
from sharecoord.testing.harness import FakeMember, World, running
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import counts, offsets, world_with

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
LANE = "dead/orders"


def lane_world(letters: int = 20, records: int = 0, **defaults: str) -> World:
    """Topic `orders`, and a topic `dead` with letters of it."""
    world = world_with(records, **defaults)
    world.log.create("dead")
    for offset in range(letters):
        headers = [
            ("own", b"1"),
            (KAFKA_PREFIX + "topic", b"orders"),
            (KAFKA_PREFIX + "partition", b"0"),
            (KAFKA_PREFIX + "offset", str(1000 + offset).encode()),
        ]
        world.log.append("dead", 1, key=f"k{offset % 3}".encode(), headers=headers)
    return world


def selection(world: World, *runs: tuple[int, int], **more: bytes) -> LaneSelection:
    return LaneSelection("dead", world.log.topic_id("dead"), 0, "orders", runs, **more)


async def joined(world: World, coordinator: Coordinator, name: str = "m") -> FakeMember:
    member = world.member(name)
    await member.join(coordinator, "g", ("orders",), max_poll_records=100)
    return member


@virtual
async def test_selected_letters_go_to_the_members_of_their_topic() -> None:
    world = lane_world()
    async with running(world) as coordinator:
        member = await joined(world, coordinator)
        result = await coordinator.lanes.redrive(
            "g", [selection(world, (2, 4), (9, 9))], run_id="r1"
        )
        assert (result.records, result.marked, result.under_way) == (4, 0, 0)
        deliveries = await member.take(4)
        assert offsets(*deliveries) == [2, 3, 4, 9]
        assert counts(*deliveries) == {1}
        assert {delivery.key.place for delivery in deliveries} == {(LANE, 0)}
        for delivery in deliveries:
            await member.settle(delivery, ACCEPT)
        assert world.start_offset("g", LANE) == 10
        world.ledger.check()
