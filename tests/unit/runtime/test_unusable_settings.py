"""Stored settings that can not be used (any more): one group never stops another, nor itself."""

from __future__ import annotations

import asyncio

import structlog

from sharecoord.config.group import GroupSource
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.testing.harness import FakeMember, World
from sharecoord.testing.virtual_time import virtual
from tests.unit.admin.support import INFO

from .worlds import until, world_with

FIRST, MAX = "share.retry.backoff.ms", "share.retry.backoff.max.ms"
NOTE = "a group's setting is not in force"


async def started(world: World, stored: dict[str, dict[str, str]]) -> Coordinator:
    """A coordinator that finds these settings of groups in its store."""
    coordinator = world.build()
    for group_id, values in stored.items():
        world.store.save_group_config(group_id, set_values=values, deleted=[])
    await coordinator.start()
    return coordinator


async def member_of(world: World, coordinator: Coordinator, group_id: str) -> FakeMember:
    member = world.member(f"m-{group_id}")
    await member.join(coordinator, group_id, ("orders",), max_poll_records=10)
    return member


def unused(coordinator: Coordinator) -> tuple[tuple[str, str], ...]:
    board = StatusBoard()
    board.update(coordinator)
    assert board.latest is not None
    return board.latest.unused_settings


@virtual
async def test_a_default_that_contradicts_a_groups_own_value_gives_way_to_it() -> None:
    world = world_with(10, retry_backoff_ms="5000", retry_backoff_max_ms="60000")
    with structlog.testing.capture_logs() as lines:
        coordinator = await started(world, {"g": {MAX: "1000"}, "h": {}})
        for group_id in ("g", "h"):
            await (await member_of(world, coordinator, group_id)).take(10)
        g, h = coordinator.groups["g"].config, coordinator.groups["h"].config
        assert (g.retry_backoff_ms, g.retry_backoff_max_ms) == (0, 1000)
        assert (h.retry_backoff_ms, h.retry_backoff_max_ms) == (5000, 60000)
        admin = Admin(coordinator, INFO)
        await admin.alter_group_configs("h", {"share.session.timeout.ms": "50000"}, [])
        await asyncio.sleep(5)
    (line,) = (each for each in lines if each["event"] == NOTE)
    assert (line["group"], line["setting"], line["value"]) == ("g", FIRST, "5000")
    assert (line["source"], line["served"]) == (GroupSource.COORDINATOR.value, True)
    entries = {entry.name: entry for entry in await admin.describe_group_configs("g")}
    assert (entries[FIRST].value, entries[FIRST].source) == ("0", GroupSource.DEFAULT)
    assert "must be at least share.retry.backoff.ms, which is 5000" in entries[FIRST].problem
    assert [name for name, entry in entries.items() if entry.problem] == [FIRST]
    views = {view.group_id: view for view in await admin.describe_groups()}
    assert [FIRST in why for why in views["g"].settings_problems] == [True]
    assert views["h"].settings_problems == ()
    assert unused(coordinator) == (("g", FIRST),)
    # What the operator says next must fit again; the fix is one of both.
    await admin.alter_group_configs("g", {}, [MAX])
    assert coordinator.groups["g"].config.retry_backoff_ms == 5000
    assert unused(coordinator) == ()
    await coordinator.close()


@virtual
async def test_what_another_release_stored_is_left_out_and_can_be_deleted() -> None:
    world = world_with(10)
    coordinator = await started(
        world, {"g": {"share.of.the.future": "7", "share.session.timeout.ms": "1"}}
    )
    await (await member_of(world, coordinator, "g")).take(10)
    assert coordinator.groups["g"].config.session_timeout_ms == 45_000
    admin = Admin(coordinator, INFO)
    *_, last = await admin.describe_group_configs("g")
    assert (last.name, last.value) == ("share.of.the.future", "7")
    assert "unknown setting" in last.problem
    await admin.alter_group_configs("g", {}, ["share.of.the.future", "share.session.timeout.ms"])
    assert all(not entry.problem for entry in await admin.describe_group_configs("g"))
    assert unused(coordinator) == ()
    await coordinator.close()


@virtual
async def test_a_group_whose_order_can_not_be_read_is_not_served_and_no_other_is_held_up() -> None:
    world = world_with(10)
    coordinator = await started(world, {"g": {"share.ordering": "by-magic"}, "h": {}})
    waiting = await member_of(world, coordinator, "g")
    await (await member_of(world, coordinator, "h")).take(10)
    await asyncio.sleep(30)
    assert waiting.received == 0
    admin = Admin(coordinator, INFO)
    (view,) = await admin.describe_groups(["g"])
    assert 'share.ordering="by-magic" is not valid' in view.partitions[0].stopped_reason
    await admin.alter_group_configs("g", {"share.ordering": "unordered"}, [])
    await waiting.take(10)
    (view,) = await admin.describe_groups(["g"])
    assert view.partitions[0].stopped_reason == ""
    await coordinator.close()


@virtual
async def test_a_fleet_goes_on_when_a_newer_release_changes_a_group() -> None:
    world = world_with(10)
    coordinator = world.build(fleet=True)
    await coordinator.start()
    for group_id in ("a", "b"):
        await coordinator.groups.open(group_id)
    world.store.save_group_config("a", set_values={"share.of.the.future": "7"}, deleted=[])
    changed = {"share.session.timeout.ms": "50000"}
    world.store.save_group_config("b", set_values=changed, deleted=[])
    await until(lambda: coordinator.groups["b"].config.session_timeout_ms == 50_000, step_s=0.1)
    await asyncio.sleep(10)
    assert coordinator.fleet is not None
    assert not coordinator.fleet.is_blind
    assert unused(coordinator) == (("a", "share.of.the.future"),)
    await coordinator.close()
