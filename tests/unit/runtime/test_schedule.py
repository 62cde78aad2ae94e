"""Records that are to be delivered later: in time, and in nobody's way."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.dispatch.schedule import DELAY_HEADER, DELIVER_AT_HEADER
from sharecoord.runtime.kernel.context import ParkingLimits
from sharecoord.testing.harness import STORE_EPOCH_MS
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import accept, counts, now_s, offsets, world_with
from tests.world import TOPICS, World, actor_of

EXACT_S = 0.05


def schedule(world: World, at_s: float, count: int = 1, *, key: bytes | None = None) -> None:
    """Records for a moment of virtual time."""
    at_ms = str(STORE_EPOCH_MS + round(at_s * 1_000)).encode()
    world.log.append("orders", count, key=key, headers=[(DELIVER_AT_HEADER, at_ms)])


@virtual
async def test_it_comes_in_time_and_others_do_not_wait_for_it() -> None:
    world = world_with(3)
    schedule(world, 30, 2)
    world.log.append("orders", 3)
    schedule(world, 20)
    world.log.append("orders", 1)
    async with world.one_member(max_poll_records=10) as (_, member):
        now = await member.take(7)
        assert sorted(offsets(*now)) == [0, 1, 2, 5, 6, 7, 9]
        assert now_s() < 1
        await accept(member, *now)
        assert world.start_offset("g", "orders") == 3
        (third,) = await member.take(1)
        assert (offsets(third), counts(third)) == ([8], {1})
        assert 20 <= now_s() <= 20 + EXACT_S
        await member.settle(third)
        (last,) = await member.take(2)
        assert (offsets(last), counts(last)) == ([3, 4], {1})
        assert 30 <= now_s() <= 30 + EXACT_S
        await member.settle(last)
        assert world.start_offset("g", "orders") == 10


@virtual
async def test_a_delay_counts_from_the_records_own_time() -> None:
    world = world_with(0)
    world.log.append("orders", headers=[(DELAY_HEADER, b"60000")])
    ahead_ms = STORE_EPOCH_MS + 5_000 - 1_001
    world.log.append("orders", headers=[(DELAY_HEADER, str(ahead_ms).encode())])
    async with world.one_member(max_poll_records=10) as (_, member):
        # Its minute was over long ago.
        (first,) = await member.take(1)
        assert (offsets(first), now_s() < 1) == ([0], True)
        (second,) = await member.take(1)
        assert offsets(second) == [1]
        assert 5 <= now_s() <= 5 + EXACT_S
        await accept(member, *(first, second))


@virtual
@pytest.mark.parametrize("kill", [False, True])
async def test_thousands_wait_in_the_store_and_survive_their_owner(kill: bool) -> None:
    world = world_with(0, partition_max_record_locks="100")
    world.parking = ParkingLimits(kept=10, most=20, page=8, low=5, ahead_ms=500)
    due = {n: 60 + n * 7_919 % 3_000 / 10 for n in range(3_000)}
    for at_s in due.values():
        schedule(world, at_s)
    world.log.append("orders", 1)
    coordinator = await world.start()
    member, now = await world.handed(coordinator, 1, max_poll_records=100)
    assert offsets(now) == [3_000]
    await member.settle(now)
    assert now_s() < 5, "thousands that wait are in nobody's way"
    partition = actor_of(coordinator, "orders").partition
    assert partition is not None
    assert (partition.window.delayed, partition.window.due) == (3_000, 0)
    await asyncio.sleep(1)
    assert len(partition.window.ranges) <= 20
    if kill:
        await world.kill(coordinator)
        coordinator = await world.start("c1")
        await member.join(coordinator, "g", TOPICS, max_poll_records=100)
    came: dict[int, float] = {}
    while len(came) < 3_000:
        delivery = await member.next_delivery(timeout_s=3_600)
        came |= dict.fromkeys(offsets(delivery), now_s())
        assert counts(delivery) == {1}
        await member.settle(delivery)
    late = {n: (due[n], at) for n, at in came.items() if not 0 <= at - due[n] <= EXACT_S}
    assert not late
    assert world.start_offset("g", "orders") == 3_001
    await coordinator.close()


@virtual
async def test_in_key_order_it_holds_back_its_own_key_alone() -> None:
    world = world_with(0, ordering="key")
    schedule(world, 10, key=b"a")
    world.log.append("orders", 2, key=b"a")
    world.log.append("orders", 2, key=b"b")
    async with world.one_member(max_poll_records=10) as (_, member):
        now = await member.take(2)
        assert sorted(offsets(*now)) == [3, 4]
        assert now_s() < 1
        await accept(member, *now)
        later = await member.take(3)
        assert sorted(offsets(*later)) == [0, 1, 2]
        assert 10 <= now_s() <= 10 + EXACT_S
        await accept(member, *later)


@virtual
async def test_what_can_not_be_used_is_delivered_at_once() -> None:
    world = world_with(0)
    for value in (b"soon", b"-1", None, str(10**17).encode()):
        world.log.append("orders", headers=[(DELIVER_AT_HEADER, value), (DELAY_HEADER, value)])
    async with world.one_member(max_poll_records=10) as (_, member):
        found = await member.take(4)
        assert now_s() < 1
        await accept(member, *found)
