"""An operator forces records at one coordinator of a fleet; they are another one's, or move."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Delivery
from sharecoord.core.states import AcknowledgeOutcome, ForceAction
from sharecoord.errors import SharecoordError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.force import ForcedRange
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import everything_finished, joined_fleet
from tests.unit.runtime.worlds import accept, counts, offsets, until, world_with
from tests.world import World

SKIP, FINISH, RELEASE = ForceAction.SKIP, ForceAction.FINISH, ForceAction.RELEASE
FINISHED, LOST = AcknowledgeOutcome.ALREADY_FINISHED, AcknowledgeOutcome.LOCK_LOST
PARTITIONS, RECORDS = 8, 6
ALL = PARTITIONS * RECORDS

STEPS = {1: (FINISH, "finished"), 2: (SKIP, "archived"), 4: (RELEASE, "available")}
"""What is forced of each partition, and what becomes of it."""

Held = dict[int, Delivery]


async def holding(world: World, member: FakeMember) -> Held:
    """All records, under locks of one member: a delivery of each partition."""
    held = {delivery.key.partition: delivery for delivery in await member.take(ALL)}
    assert len(held) == PARTITIONS
    return held


async def force(admin: Admin, partition: int) -> None:
    """Once for each step; each is said again until it is stored."""
    for offset, (action, after) in STEPS.items():
        found = await forced(admin, partition, offset, action)
        assert found == [ForcedRange(offset, offset, "acquired", after, "m", 1)]


async def forced(
    admin: Admin, partition: int, offset: int, action: ForceAction
) -> list[ForcedRange]:
    while True:
        try:
            place, span = ("orders", partition), (offset, offset)
            return await admin.force_records("g", PartitionName(*place), *span, action)
        except SharecoordError as error:
            if not error.retriable:
                raise
            await asyncio.sleep(0.01)


async def work_off(world: World, member: FakeMember, held: Held, touched: set[int]) -> None:
    """What was released comes again; all is accepted, with the answers that are due."""
    again = await member.take(len(touched))
    assert {(d.key.partition, *offsets(d)) for d in again} == {(p, 4) for p in touched}
    assert counts(*again) == {2}
    for partition, delivery in held.items():
        result = await member.settle(delivery)
        assert result.error is None
        said = {(at, e.outcome) for e in result.exceptions for at in range(e.first, e.last + 1)}
        was_forced = {(1, FINISHED), (2, FINISHED), (4, LOST)}
        assert said == (was_forced if partition in touched else set())
    await accept(member, *again)
    assert everything_finished(world, ALL)
    await asyncio.sleep(60)
    for partition, delivery in held.items():
        for offset in range(RECORDS):
            twice = partition in touched and offset == 4
            assert arrivals(world, delivery.key, offset) == 1 + twice, (partition, offset)


def arrivals(world: World, key: PartitionKey, offset: int) -> int:
    return world.ledger.life(key, offset).arrivals


@virtual
async def test_records_of_the_others_share_partitions_are_forced() -> None:
    world = world_with(RECORDS, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await holding(world, member)
        owned = fleet.owned()
        assert all(owned.values())
        for name, other in (("a", "b"), ("b", "a")):
            for partition in sorted(owned[other]):
                await force(fleet.admin(name), partition)
        await work_off(world, member, held, {*range(PARTITIONS)})


@virtual
async def test_what_the_other_owner_has_not_read_yet_is_passed_over() -> None:
    world = world_with(300, partitions=PARTITIONS, partition_max_record_locks="100")
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await member.take(100 * PARTITIONS)
        owned, places = fleet.owned(), dict[int, ForceAction]()
        assert all(owned.values())
        for name, other in (("a", "b"), ("b", "a")):
            for number, partition in enumerate(sorted(owned[other])):
                places[partition] = action = (FINISH, SKIP)[number % 2]
                admin = fleet.admin(name)
                found = await admin.force_records(
                    "g", PartitionName("orders", partition), 200, 209, action
                )
                assert found == [ForcedRange(200, 209, "unread", "passed_over")]
        assert len(places) == PARTITIONS
        for delivery in held:
            assert not (await member.settle(delivery)).exceptions
        rest: list[Delivery] = []
        while not everything_finished(world, 300 * PARTITIONS):
            rest.append(await member.next_delivery())
            await member.settle(rest[-1])
        for partition in range(PARTITIONS):
            got = offsets(*(d for d in [*held, *rest] if d.key.partition == partition))
            assert sorted(got) == [n for n in range(300) if not 200 <= n < 210]
        world.ledger.check()


@pytest.mark.parametrize("after_s", [0.0, 0.001, 0.002, 0.003, 0.005, 0.008, 0.013, 0.021, 1.0])
@virtual
async def test_records_are_forced_while_their_share_partitions_move(after_s: float) -> None:
    world = world_with(RECORDS, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await holding(world, member)
        before = fleet.owned()
        coming = asyncio.create_task(fleet.add("c"))
        await asyncio.sleep(after_s)
        admins = [fleet.admin(name) for name in "ab"]
        async with asyncio.TaskGroup() as group:
            for partition in range(PARTITIONS):
                group.create_task(force(admins[partition % 2], partition))
        await coming
        await until(lambda: sum(map(len, fleet.owned().values())) == PARTITIONS, step_s=0.01)
        assert fleet.owned()["c"]
        assert fleet.owned()["a"] < before["a"] or fleet.owned()["b"] < before["b"]
        await work_off(world, member, held, {*range(PARTITIONS)})


@pytest.mark.parametrize("hears", [True, False], ids=["has heard", "hears nothing"])
@virtual
async def test_an_owner_dies_right_after_its_records_were_forced(hears: bool) -> None:
    world = world_with(RECORDS, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=1000) as (fleet, member):
        held = await holding(world, member)
        touched = fleet.owned()["b"]
        assert touched
        # It may not see that its rows have changed: it would load them.
        fleet.caller("b").down = not hears
        for partition in sorted(touched):
            await force(fleet.admin("a"), partition)
        if hears:
            await asyncio.sleep(0.01)
        await fleet.kill("b")
        await work_off(world, member, held, touched)
        assert fleet.owned() == {"a": {*range(PARTITIONS)}}


@virtual
async def test_who_forced_dies_right_after_it_and_the_owner_goes_on() -> None:
    world = world_with(RECORDS, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", at="b", max_poll_records=1000) as (fleet, member):
        held = await holding(world, member)
        touched = fleet.owned()["b"]
        assert touched
        for partition in sorted(touched):
            await force(fleet.admin("a"), partition)
        await fleet.kill("a")
        await work_off(world, member, held, touched)
        assert fleet.owned() == {"b": {*range(PARTITIONS)}}
