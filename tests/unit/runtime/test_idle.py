"""Share-partitions that no member wants cost nothing, and lose nothing."""

from __future__ import annotations

import asyncio

from sharecoord.runtime.group.idle import LOOK_INTERVAL_S, REST_AFTER_S
from sharecoord.runtime.group.log_changes import follow_log_starts
from sharecoord.runtime.kernel.budget import MemoryLimits
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import offsets, until, world_with
from tests.world import actor_of, running

LOOKS_S = 2 * LOOK_INTERVAL_S + 0.1
"""One look notices, one acts."""


@virtual
async def test_what_nobody_wants_reads_nothing_until_a_member_comes() -> None:
    world = world_with(100)
    async with world.one_member("first", max_poll_records=10) as (coordinator, first):
        await first.settle(await first.next_delivery())
        actor = actor_of(coordinator, "orders")
        first.leave()
        await asyncio.sleep(REST_AFTER_S - LOOKS_S)
        assert world.log.readings
        assert actor.cache.size_bytes > 0
        await asyncio.sleep(2 * LOOKS_S)
        assert not world.log.readings
        assert (actor.cache.size_bytes, actor.log.fresh.records) == (0, 0)
        second = await world.joined(coordinator, "second", max_poll_records=1_000)
        seen: list[int] = []
        while len(seen) < 90:
            delivery = await second.next_delivery()
            seen += offsets(delivery)
            await second.settle(delivery)
        assert sorted(seen) == list(range(10, 100))


@virtual
async def test_what_rests_keeps_no_records_of_a_partition_that_is_gone() -> None:
    world = world_with(100)
    async with world.one_member("first", max_poll_records=10) as (coordinator, first):
        await first.settle(await first.next_delivery())
        actor = actor_of(coordinator, "orders")
        first.leave()
        assert actor.log.reading is not None
        actor.log.reading.close()
        actor.log.on_gone()
        await asyncio.sleep(REST_AFTER_S + LOOKS_S)
        assert actor.log.resting
        assert (actor.cache.size_bytes, actor.log.fresh.records) == (0, 0)
        second = await world.joined(coordinator, "second", max_poll_records=1_000)
        seen: list[int] = []
        while len(seen) < 90:
            delivery = await second.next_delivery()
            seen += offsets(delivery)
            await second.settle(delivery)
        assert sorted(seen) == list(range(10, 100))


@virtual
async def test_a_worker_that_comes_back_in_time_finds_its_read_ahead() -> None:
    world = world_with(100)
    async with running(world) as coordinator:
        for name in ("first", "second", "third"):
            member = await world.joined(coordinator, name, max_poll_records=10)
            await member.settle(await member.next_delivery())
            await asyncio.sleep(LOOKS_S)
            (reading,) = world.log.readings
            member.leave()
            await asyncio.sleep(REST_AFTER_S - LOOKS_S)
            assert list(world.log.readings) == [reading]


@virtual
async def test_a_subscription_wakes_its_topic_alone() -> None:
    world = world_with(10)
    world.log.create("bills")
    world.log.append("bills", 10)
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", ("orders", "bills"), credit=0)
        await until(lambda: len(world.log.readings) == 2, step_s=0.1)
        group, session = member.joined_group, member.joined_session
        group.subscribe(session, ["orders"])
        await asyncio.sleep(REST_AFTER_S + LOOKS_S)
        assert [r.topic for r in world.log.readings] == ["orders"]
        group.subscribe(session, ["bills"])
        assert sorted(r.topic for r in world.log.readings) == ["bills", "orders"]


@virtual
async def test_the_lag_of_a_group_at_rest_follows_the_log() -> None:
    world = world_with(10)
    async with world.one_member(credit=0) as (coordinator, member):
        await until(lambda: world.log.readings, step_s=0.1)
        actor = actor_of(coordinator, "orders")
        await until(lambda: actor.log.end_offset == 10, step_s=0.1)
        member.leave()
        await asyncio.sleep(REST_AFTER_S + LOOKS_S)
        world.log.append("orders", 90)
        await follow_log_starts(coordinator.context, list(coordinator.groups.values()))
        assert actor.log.end_offset == 100


@virtual
async def test_the_memory_limit_does_not_wake_what_rests() -> None:
    world = world_with(100)
    async with world.one_member(credit=0) as (coordinator, member):
        await until(lambda: world.log.readings, step_s=0.1)
        member.leave()
        await asyncio.sleep(REST_AFTER_S + LOOKS_S)
        assert coordinator.context.limits.memory == MemoryLimits()
        coordinator.memory.look()
        assert not world.log.readings
        again = await world.joined(coordinator, "again", max_poll_records=10)
        assert offsets(await again.next_delivery()) == list(range(10))
