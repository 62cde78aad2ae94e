"""kill -9 of the coordinator: what its Kafka members held, and what they get afterwards."""

from __future__ import annotations

import asyncio

from tests.unit.api.kafka.client import ACCEPT, Client, fetched, port_at, port_of
from tests.unit.runtime.fleets import fleet_of
from tests.unit.runtime.worlds import world_with
from tests.world import World

INVALID_RECORD_STATE = 121


async def held_over_kill_9(world: World) -> None:
    """A member `m` fetches all records; then its coordinator is killed."""
    first = await world.start()
    async with asyncio.timeout(30), port_at(world, first) as port:
        got = fetched(await (await port.joined()).fetch(0))
        assert got[0].acquired == [(0, 5, 1)]
    await world.kill(first)


async def acquired(client: Client, epoch: int) -> list[tuple[int, int, int]]:
    found = fetched(await client.fetch(epoch, wait_ms=200))
    return found[0].acquired if found else []


async def test_a_member_that_joins_again_has_seen_what_it_held() -> None:
    """Its program may have worked on the records: the delivery counts, and they come at once."""
    world = world_with(6)
    await held_over_kill_9(world)
    async with port_of(world) as port:
        assert await acquired(await port.joined(), 0) == [(0, 5, 2)]


async def test_an_acknowledgement_of_a_former_delivery_settles_nothing() -> None:
    world = world_with(6)
    await held_over_kill_9(world)
    async with port_of(world) as port:
        member = await port.joined()
        assert not fetched(await member.fetch(0, records=0, wait_ms=0))
        answer = await member.acknowledge(1, {0: [(0, 5, ACCEPT)]})
        assert answer.responses[0].partitions[0].error_code.value == INVALID_RECORD_STATE
        assert await acquired(member, 2) == [(0, 5, 2)]


async def test_a_member_whose_coordinator_is_killed_goes_on_at_another_one() -> None:
    world = world_with(6)
    async with asyncio.timeout(60), fleet_of(world, "a", "b") as fleet:
        async with port_at(world, fleet.all["a"]) as port:
            assert await acquired(await port.joined(), 0) == [(0, 5, 1)]
        await fleet.kill("a")
        async with port_at(world, fleet.all["b"]) as port:
            assert await acquired(await port.joined(), 0) == [(0, 5, 2)]
