"""Letters that are redriven: Kafka's members get none, members of the SDK get all."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sharecoord.core.states import AcknowledgeType
from sharecoord.runtime.letters.lanes import LaneSelection
from tests.unit.api.kafka.client import ACCEPT, Fetched, fetched, port_of
from tests.unit.runtime.test_lanes import LANE, lane_world, lanes_of, selection
from tests.unit.runtime.test_lanes_order import OF_ONE, keyed
from tests.unit.runtime.worlds import counts, offsets
from tests.world import World


def hand_outs(world: World) -> set[int]:
    """How often letters of lanes were handed out to members that did not see them."""
    return {row.hand_outs for _, part in lanes_of(world) for row in part.in_flight.values()}


@pytest.mark.parametrize(
    ("ordering", "select", "name"),
    [
        pytest.param("unordered", selection, LANE, id="of-all-partitions"),
        pytest.param("key", keyed, OF_ONE, id="of-one-partition"),
    ],
)
async def test_letters_pass_members_that_take_record_batches(
    ordering: str, select: Callable[..., LaneSelection], name: str
) -> None:
    world = lane_world(3, 2, ordering=ordering)
    async with port_of(world) as port:
        kafka = await port.joined("kafka")
        assert fetched(await kafka.fetch(0))[0].acquired == [(0, 1, 1)]
        redriven = await port.coordinator.lanes.redrive("g", [select(world, (0, 2))], run_id="r")
        assert redriven.records == 3
        # Both offsets 0 would be of partition 0: acknowledgements could not tell them apart.
        answer = fetched(await kafka.fetch(1, said={0: [(0, 1, ACCEPT)]}, wait_ms=100))
        assert answer == {0: Fetched([], [], 0)}
        assert hand_outs(world) == {0}
        member = await world.joined(port.coordinator, "sdk", max_poll_records=10)
        deliveries = await member.take(3)
        assert sorted(offsets(*deliveries)) == [0, 1, 2]
        assert counts(*deliveries) == {1}
        for delivery in deliveries:
            await member.settle(delivery, AcknowledgeType.ACCEPT)
        assert {key.name for key, _ in lanes_of(world)} == {name}
        assert world.start_offset("g", name) == 3
