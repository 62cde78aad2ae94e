"""Members of a group that begins at the end of a topic, by default, are told so."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.opening import NEW_TOLD_MS
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import INFO
from tests.unit.runtime.worlds import world_with
from tests.world import TOPICS, World, running

RESET = "share.auto.offset.reset"


async def told(world: World, coordinator: Coordinator, name: str = "m") -> set[str]:
    """What a member that joins now hears of, with the join or soon after it."""
    member = await world.joined(coordinator, name)
    at_join = member.joined_group.assignment(member.joined_session)
    await asyncio.sleep(1)
    return {topic for each in (at_join, *member.assignments) for topic in each.starts_at_end}


@virtual
async def test_the_members_that_start_with_a_group_are_told() -> None:
    world = world_with(10, auto_offset_reset="latest")
    async with running(world) as coordinator:
        assert await told(world, coordinator) == set(TOPICS)
        assert await told(world, coordinator, "second") == set(TOPICS)
        assert world.start_offset("g", "orders") == 10
        await asyncio.sleep(NEW_TOLD_MS / 1000)
        assert await told(world, coordinator, "late") == set()


@virtual
async def test_a_topic_that_a_member_subscribes_later_is_told() -> None:
    world = world_with(10, auto_offset_reset="latest")
    world.log.create("bills", 1)
    async with running(world) as coordinator:
        await told(world, coordinator)
        await asyncio.sleep(NEW_TOLD_MS / 1000)
        member = world.members["m"]
        member.assignments.clear()
        member.joined_group.subscribe(member.joined_session, ("orders", "bills"))
        coordinator.groups.subscription_changed(member.joined_group, member.joined_session)
        await asyncio.sleep(1)
        assert [each.starts_at_end for each in member.assignments] == [("bills",)]


@virtual
async def test_a_group_that_has_read_the_topic_is_not_new_after_a_restart() -> None:
    world = world_with(10, auto_offset_reset="latest")
    async with running(world) as coordinator:
        await told(world, coordinator)
    async with running(world) as coordinator:
        assert await told(world, coordinator, "next") == set()


@pytest.mark.parametrize("reset", ["earliest", "by_duration:PT1H"])
@virtual
async def test_another_policy_is_not_told(reset: str) -> None:
    world = world_with(10, auto_offset_reset=reset)
    async with running(world) as coordinator:
        assert await told(world, coordinator) == set()


@virtual
async def test_who_has_chosen_the_end_is_not_told() -> None:
    world = world_with(10, auto_offset_reset="latest")
    async with running(world) as coordinator:
        await Admin(coordinator, INFO).alter_group_configs("g", {RESET: "latest"}, [])
        assert await told(world, coordinator) == set()
