"""Payloads that one coordinator of a fleet kept are delivered by the next owner, and then gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.states import AcknowledgeType, ForceAction, RecordState
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.coordinator import LOG_START_INTERVAL_S
from sharecoord.store.book_entries import KEPT_PAYLOAD
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import Fleet, everything_finished, fleet_of
from tests.unit.runtime.worlds import accept, counts, now_s, offsets, until, world_with
from tests.world import TOPICS, World, check_coordinator

PARTITIONS, RECORDS = 8, 4
ALL = PARTITIONS * RECORDS
DELAY_MS = int(4 * LOG_START_INTERVAL_S * 1000)
"""Long enough for every coordinator to know where its logs begin, and for a lease to end."""

EVERY = {partition: [*range(RECORDS)] for partition in range(PARTITIONS)}


def keeping_world(**settings: str) -> World:
    world = world_with(RECORDS, partitions=PARTITIONS, **settings)
    world.defaults["share.retry.keep.payload"] = "true"
    return world


def kept(world: World) -> dict[int, list[int]]:
    """Whose payloads the store has, by partition; [] = none."""
    found = world.database.partitions.values()
    return {each.row.key.partition: sorted(each.entries[KEPT_PAYLOAD]) for each in found}


NOTHING: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}


async def waiting(world: World, fleet: Fleet, name: str) -> FakeMember:
    """A member that has told all records to wait; their topic has forgotten them since."""
    member = await world.joined(fleet.all[name], max_poll_records=1000)
    for delivery in await member.take(ALL):
        result = await member.acknowledge(delivery, AcknowledgeType.RELEASE, delay_ms=DELAY_MS)
        assert result.error is None
    assert all(fleet.owned().values())
    assert kept(world) == EVERY
    forget(world, fleet)
    return member


@asynccontextmanager
async def all_waiting() -> AsyncIterator[tuple[World, Fleet, FakeMember]]:
    """Coordinators a and b, and a member of a that has told all records to wait, see `waiting`."""
    world = keeping_world()
    async with fleet_of(world, "a", "b") as fleet:
        yield world, fleet, await waiting(world, fleet, "a")


def forget(world: World, fleet: Fleet) -> None:
    """Nobody has the records any more but the store."""
    for partition in range(PARTITIONS):
        world.log.move_log_start("orders", RECORDS, partition=partition)
    for coordinator in fleet.all.values():
        for actor in coordinator.groups["g"].partitions.values():
            actor.cache.clear()


async def come_again(world: World, fleet: Fleet, member: FakeMember) -> None:
    """All comes once more, in its time, and leaves nothing behind."""
    again: list[Delivery] = []
    while sum(delivery.records for delivery in again) < ALL:
        again.append(await member.next_delivery(timeout_s=10 * DELAY_MS / 1000))
        assert (await member.settle(again[-1])).error is None
    assert counts(*again) == {2}
    got: dict[int, list[int]] = {}
    for delivery in again:
        got.setdefault(delivery.key.partition, []).extend(offsets(delivery))
    assert {partition: sorted(found) for partition, found in got.items()} == EVERY
    check_end(world, fleet)


def check_end(world: World, fleet: Fleet) -> None:
    """The ledger has compared what came with what was written."""
    world.ledger.check()
    assert everything_finished(world, ALL)
    assert kept(world) == NOTHING
    for partition in world.database.partitions.values():
        assert not partition.in_flight
    for coordinator in fleet.all.values():
        check_coordinator(coordinator)
        assert coordinator.groups["g"].partitions
        budget = {actor.budget.kept_bytes for actor in coordinator.groups["g"].partitions.values()}
        assert budget == {0}


@virtual
async def test_the_next_owner_delivers_what_was_kept_after_a_hand_over() -> None:
    async with all_waiting() as (world, fleet, member):
        before = fleet.owned()
        await fleet.add("c")
        await fleet.drain("b")
        await until(lambda: sum(map(len, fleet.owned().values())) == PARTITIONS, step_s=0.01)
        after = fleet.owned()
        assert before["b"].isdisjoint(after["a"] & after["c"])
        assert len(after["c"]) + len(after["a"] - before["a"]) >= len(before["b"])
        assert kept(world) == EVERY
        await come_again(world, fleet, member)


@pytest.mark.parametrize("victim", ["a", "b"])
@virtual
async def test_the_next_owner_delivers_what_was_kept_after_a_crash(victim: str) -> None:
    """Also when it was the one that had the member's stream."""
    async with all_waiting() as (world, fleet, member):
        await fleet.kill(victim)
        if victim == "a":
            assert await member.join(fleet.all["b"], "g", TOPICS, max_poll_records=1000) == []
        await come_again(world, fleet, member)


@pytest.mark.parametrize("before_ms", [5, 3, 2, 1, 0, -1, -2, -3, -5, -8])
@virtual
async def test_what_is_due_while_its_share_partition_moves_comes_once(before_ms: int) -> None:
    async with all_waiting() as (world, fleet, member):
        due_s = world_due_s(world)
        await asyncio.sleep(due_s - now_s() - before_ms / 1000)
        await fleet.add("c")
        await come_again(world, fleet, member)
        assert fleet.owned()["c"]


def world_due_s(world: World) -> float:
    """When the first record that waits is due, on virtual time."""
    rows = [row for part in world.database.partitions.values() for row in part.in_flight.values()]
    store_ms = min(row.available_at_ms for row in rows)
    return now_s() + (store_ms - world.database.clock_ms()) / 1000


@virtual
async def test_what_was_under_a_lock_when_retention_passed_it_outlives_its_owner() -> None:
    world = keeping_world(record_lock_duration_ms=str(DELAY_MS))
    async with fleet_of(world, "a", "b") as fleet:
        first = await world.joined(fleet.all["a"], "first", max_poll_records=1000)
        await first.take(ALL)
        assert kept(world) == NOTHING
        for partition in range(PARTITIONS):
            world.log.move_log_start("orders", RECORDS, partition=partition)
        await until(lambda: kept(world) == EVERY, step_s=0.5)
        await fleet.kill("b")
        first.leave()
        member = await world.joined(fleet.all["a"], max_poll_records=1000)
        await come_again(world, fleet, member)


@virtual
async def test_an_owner_that_stood_still_leaves_nothing_of_what_another_has_delivered() -> None:
    async with all_waiting() as (world, fleet, member):
        caller = fleet.caller("b")
        caller.down, world.database.leases["b"] = True, 0
        await until(lambda: len(fleet.owned()["a"]) == PARTITIONS, step_s=0.1)
        again = await member.take(ALL, timeout_s=10 * DELAY_MS / 1000)
        await accept(member, *again)
        assert kept(world) == NOTHING
        caller.down = False
        await until(lambda: fleet.owned()["b"], step_s=0.1)
        await asyncio.sleep(30)
        assert (counts(*again), member.deliveries) == ({2}, [])
        check_end(world, fleet)


@virtual
async def test_what_is_forced_at_another_coordinator_has_no_payload_any_more() -> None:
    async with all_waiting() as (world, fleet, member):
        owned = fleet.owned()
        steps = (0, ForceAction.FINISH), (2, ForceAction.SKIP), (1, ForceAction.RELEASE)
        for name, other in (("a", "b"), ("b", "a")):
            for partition in sorted(owned[other]):
                for offset, action in steps:
                    span = offset, offset
                    place = "orders", partition
                    await fleet.admin(name).force_records("g", PartitionName(*place), *span, action)
        assert kept(world) == {partition: [1, 3] for partition in range(PARTITIONS)}
        # What is due at once comes from its owner, what still waits from the next one.
        now = await member.take(PARTITIONS, timeout_s=1)
        assert offsets(*now) == [1] * PARTITIONS
        await accept(member, *now)
        await fleet.kill("b")
        later = await member.take(PARTITIONS, timeout_s=10 * DELAY_MS / 1000)
        assert offsets(*later) == [3] * PARTITIONS
        await accept(member, *later)
        rows = [r for part in world.database.partitions.values() for r in part.in_flight.values()]
        assert {row.state for row in rows} <= {RecordState.ARCHIVED}
        check_end(world, fleet)
