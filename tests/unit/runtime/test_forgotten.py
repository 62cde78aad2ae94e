"""What is gone leaves nothing behind in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import fleet_of, joined_fleet
from tests.unit.runtime.test_fleet_changes import PARTITIONS, work_off
from tests.unit.runtime.worlds import accept, until, world_with
from tests.world import TOPICS, running


@pytest.mark.parametrize("what", ["group", "offsets"])
@virtual
async def test_coordinators_forget_what_is_deleted(what: str) -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        await work_off(world, fleet, "a")
        # Somebody has nothing to do with records that are there: its owners are hungry.
        member = await world.joined(fleet.all["a"], max_poll_records=1)
        world.log.append("orders", 5, partition=0)
        world.log.append("orders", 5, partition=1)
        await asyncio.sleep(2)
        member.leave()
        await asyncio.sleep(2)
        admin = fleet.admin("b")
        if what == "group":
            assert await admin.delete_groups(["g"]) == {"g": None}
        else:
            assert await admin.delete_offsets("g", TOPICS) == {"orders": None}
        await asyncio.sleep(3)
        for coordinator in fleet.all.values():
            its = coordinator.fleet
            assert its is not None
            assert (its._told, its.gateway._hungry, its.gateway._compared) == ({}, {}, {})
            assert [(link._told, link._asked) for link in its.gateway_links.values()] == [({}, {})]


@virtual
async def test_a_topic_that_is_made_again_leaves_nothing_of_its_former_life() -> None:
    world = world_with(3, partitions=2)
    async with running(world) as coordinator:
        member = await world.joined(coordinator, max_poll_records=100)
        await accept(member, *await member.take(6))
        group = coordinator.groups["g"]
        former = list(group.partitions.values())
        world.log.delete("orders")
        world.log.create("orders", 2)
        await until(lambda: all(actor.state is ActorState.CLOSED for actor in former), step_s=0.1)
        await until(lambda: group.is_open("orders"), step_s=0.1)
        await asyncio.sleep(5)
        known = {*group.dispatcher._ready, *group.dispatcher._woken}
        assert known.isdisjoint(former)
        world.log.append("orders", 4)
        await member.take(4)
        world.log.delete("orders")
        await until(lambda: not group.partitions, step_s=1.0)
        assert member.joined_session.comparison.done == set()
        assert not group.dispatcher._ready


@virtual
async def test_a_topic_that_is_gone_has_no_owners_and_nobody_waits_for_what_nobody_wants() -> None:
    world = world_with(0, partitions=PARTITIONS)
    async with joined_fleet(world, "a", "b", max_poll_records=100) as (fleet, member):
        await asyncio.sleep(2)
        group = fleet.all["a"].groups["g"]
        assert group.elsewhere
        assert group.dispatcher._waiting
        world.log.delete("orders")
        await asyncio.sleep(60)
        assert (group.elsewhere, group.owners, group.owners_by_name) == ({}, {}, {})
        member.leave()
        assert group.dispatcher._waiting == {}


@virtual
async def test_a_member_that_could_not_be_taken_in_by_a_mistake_is_taken_in_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_with(3, partitions=PARTITIONS)
    async with fleet_of(world, "a", "b") as fleet:
        admit = fleet.all["b"].groups.admit
        tries: list[str] = []

        async def admits_later(group_id: str, *args: Any, **kwargs: Any) -> Any:
            tries.append(group_id)
            if len(tries) < 3:
                raise ValueError("unforeseen")
            return await admit(group_id, *args, **kwargs)

        monkeypatch.setattr(fleet.all["b"].groups, "admit", admits_later)
        member = await world.joined(fleet.all["a"], max_poll_records=1000)
        await member.take(3 * PARTITIONS)
        assert tries == ["g"] * 3
