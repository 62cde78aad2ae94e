"""Members of the Kafka port in a fleet: their coordinator passes on what others own."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from sharecoord.api.kafka import membership
from sharecoord.api.kafka.members import KafkaMember
from sharecoord.core.changes import key_of
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import AcquiredRange
from sharecoord.core.states import AcquireMode
from sharecoord.runtime.member.session import JoinCommand
from tests.support import eventually_async
from tests.unit.api.kafka.client import ACCEPT, Client, fetched, port_at, port_of
from tests.unit.runtime.fleets import fleet_of
from tests.unit.runtime.worlds import world_with
from tests.world import World

PARTITIONS = 8
RECORDS = 6
EACH = range(PARTITIONS)
WAIT_S = 20
NOT_COORDINATOR = 16


class Worker:
    """Fetches and accepts; notes what came."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._epoch = 0
        self._said: dict[int, list[tuple[int, int, int]]] = {}
        self.counts: dict[tuple[int, int], list[int]] = {}
        """Delivery counts by partition and offset."""
        self.refused: list[int] = []

    async def turn(self) -> None:
        """One fetch, which accepts what the one before brought."""
        answer = await self._client.fetch(
            self._epoch, said=self._said, partitions=EACH, records=7, wait_ms=100, is_exact=True
        )
        assert answer.error_code.value == 0
        self._epoch += 1
        self._said = {}
        records = 0
        for partition, found in fetched(answer).items():
            if found.acknowledge_error:
                self.refused.append(found.acknowledge_error)
            for first, last, count in found.acquired:
                offsets = range(first, last + 1)
                assert set(offsets) <= set(found.offsets)
                self._said.setdefault(partition, []).append((first, last, ACCEPT))
                records += len(offsets)
                for offset in offsets:
                    self.counts.setdefault((partition, offset), []).append(count)
        assert records <= 7

    async def all_came(self) -> bool:
        await self.turn()
        return len(self.counts) == PARTITIONS * RECORDS


def all_finished(world: World) -> bool:
    return all(world.start_offset("g", "orders", each) == RECORDS for each in EACH)


async def test_records_of_all_owners_come_at_the_one_address() -> None:
    world = world_with(RECORDS, partitions=PARTITIONS)
    async with asyncio.timeout(60), fleet_of(world, "a", "b", "c") as fleet:
        async with port_at(world, fleet.all["a"]) as port:
            worker = Worker(await port.joined())
            await eventually_async(worker.all_came, WAIT_S)
            await worker.turn()
            assert all_finished(world)
        assert all(fleet.owned().values()), "each of the three owns some"
        assert set(map(tuple, worker.counts.values())) == {(1,)}
        assert worker.refused == []


async def test_an_owner_that_is_killed_or_goes_leaves_its_records_to_others() -> None:
    world = world_with(RECORDS, partitions=PARTITIONS)
    async with (
        asyncio.timeout(60),
        fleet_of(world, "a", "b", "c") as fleet,
        port_at(world, fleet.all["a"]) as port,
    ):
        worker = Worker(await port.joined())
        await worker.turn()
        await worker.turn()
        await fleet.kill("b")
        await worker.turn()
        await fleet.drain("c")
        await eventually_async(worker.all_came, WAIT_S)
        await worker.turn()
        await eventually_async(partial(all_finished, world), WAIT_S)


async def test_an_owner_of_a_release_without_kafka_port_is_named() -> None:
    world = world_with(1)
    async with asyncio.timeout(60), fleet_of(world, "a") as fleet:
        group = await fleet.all["a"].groups.open("g", "")
        member = KafkaMember(group)
        command = JoinCommand("m", "c", "h", (), AcquireMode.FAIR, 0, 60_000, 0, 0)
        member.joined = (await group.join(command, member))[0]
        key = key_of("g", "orders", "", 0)
        member.relay(Relayed(1, key, [AcquiredRange(0, 0, 1, 7, 0)], 1, 10, 99, b"columns"))
        assert member.waiting == []
        assert "update all coordinators" in str(member.ended)


async def test_who_does_not_fetch_where_it_is_a_member_looks_for_its_coordinator_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The connection ends too: Java's client keeps it, whatever FindCoordinator says."""
    monkeypatch.setattr(membership, "IDLE_MAX_S", 0.0)
    world = world_with(1)
    async with (
        asyncio.timeout(60),
        fleet_of(world, "a") as fleet,
        port_at(world, fleet.all["a"]) as port,
    ):
        heart = await port.joined()
        assert (await heart.heartbeat(1)).error_code.value == NOT_COORDINATOR
        assert await heart.ended()
        # It may have had nothing to fetch: it is a member as before.
        client, heart = await port.connect(), await port.connect()
        client.topic_id = port.kafka._fetching._ids.known_id("orders")
        assert fetched(await client.fetch(0))[0].acquired == [(0, 0, 1)]
        assert (await heart.heartbeat(1)).error_code.value == 0
        assert (await client.acknowledge(-1, {0: [(0, 0, ACCEPT)]})).error_code.value == 0
        assert (await heart.heartbeat(1)).error_code.value == NOT_COORDINATOR


async def test_a_coordinator_without_others_is_that_of_all_its_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(membership, "IDLE_MAX_S", 0.0)
    async with port_of(world_with(1)) as port:
        assert (await (await port.joined()).heartbeat(1)).error_code.value == 0
