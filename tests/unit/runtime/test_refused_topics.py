"""Topics that Kafka refuses, and partitions without a leader: they stop nobody else."""

from __future__ import annotations

import asyncio

from sharecoord.runtime.admin.admin import Admin
from sharecoord.testing.virtual_time import virtual
from tests.unit.admin.support import INFO
from tests.unit.runtime.worlds import accept, offsets, until, world_with
from tests.world import running

BOTH = ("closed", "orders")


@virtual
async def test_a_member_gets_what_is_open_and_hears_what_to_allow() -> None:
    world = world_with(10)
    world.log.create("closed")
    world.log.append("closed", 5)
    world.log.refuse("closed")
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", BOTH, max_poll_records=50)
        (delivery,) = await member.take(10)
        assert offsets(delivery) == list(range(10))
        await member.acknowledge(delivery)
        assignment = member.assignments[-1]
        assert assignment.unknown_topics == ()
        assert assignment.refused_topics == {"closed": world.log.refusals["closed"].message}
        (group,) = await Admin(coordinator, INFO).describe_groups(["g"])
        assert group.refused_topics == assignment.refused_topics
        del world.log.refusals["closed"]
        (late,) = await member.take(5, timeout_s=3)
        await member.acknowledge(late)
        assert member.assignments[-1].refused_topics == {}
        (group,) = await Admin(coordinator, INFO).describe_groups(["g"])
        assert group.refused_topics == {}


@virtual
async def test_a_topic_that_is_refused_for_long_is_not_taken_for_deleted() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=50) as (_, member):
        await accept(member, *await member.take(10))
        (row,) = world.store.list_partitions("g")
        world.log.refuse("orders")
        await asyncio.sleep(130)
        assert [r.closed for r in world.store.list_partitions("g")] == [False]
        world.log.append("orders", 3)
        world.log.refusals.clear()
        world.log.set_down(down=False)
        (delivery,) = await member.take(3)
        assert (delivery.key, offsets(delivery)) == (row.key, [10, 11, 12])
        await member.acknowledge(delivery)


@virtual
async def test_a_partition_without_a_leader_keeps_no_other_one_waiting() -> None:
    world = world_with(10, partitions=3)
    world.log.leaderless.add(("orders", 1))
    async with world.one_member(max_poll_records=50) as (_, member):
        deliveries = await member.take(20, timeout_s=1)
        assert {d.key.partition for d in deliveries} == {0, 2}
        await accept(member, *deliveries)
        await asyncio.sleep(20)
        world.log.leaderless.clear()
        (late,) = await member.take(10, timeout_s=3)
        assert late.key.partition == 1
        await member.acknowledge(late)


@virtual
async def test_retention_is_followed_beside_a_refused_topic() -> None:
    world = world_with(10)
    world.log.create("closed")
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", BOTH, max_poll_records=5)
        await accept(member, *await member.take(5))
        await until(lambda: len(coordinator.groups["g"].partitions) == 2, step_s=0.01)
        member.leave()
        world.log.refuse("closed")
        world.log.move_log_start("orders", 8)
        await asyncio.sleep(31)
        window = coordinator.groups["g"].partitions["orders", 0].partition
        assert window is not None
        assert window.log_start_offset == 8
