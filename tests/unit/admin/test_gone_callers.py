"""A caller that goes away in the middle of a change: all of it is in force, or nothing."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Coroutine
from typing import Any

import pytest

from sharecoord.errors import StoreUnavailableError
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from tests.unit.admin.support import Bench, virtual

STEP_S = 0.0005
"""Half of a store call, the shortest thing that a change waits for."""

LAST = 40
"""Steps after which each of the changes has ended by itself."""


async def left_after(steps: int, work: Coroutine[Any, Any, Any]) -> bool:
    """Goes away after so many steps; whether that was before the answer."""
    task = asyncio.create_task(work)
    await asyncio.sleep(steps * STEP_S)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.sleep(1)
    return task.cancelled()


@virtual
async def test_a_reset_is_seen_by_the_live_group(bench: Bench) -> None:
    member = await bench.member()
    await member.acknowledge(await member.next_delivery())
    was_left = []
    for steps in range(LAST):
        command = ResetCommand("g", ResetTo(ResetKind.OFFSET, 90), {"orders": (0,)}, force=True)
        was_left.append(await left_after(steps, bench.admin.reset_offsets(command)))
        if (await bench.partition()).start_offset == 90:
            delivery = await member.next_delivery()
            assert delivery.ranges[0].first == 90
            await member.acknowledge(delivery)
            await asyncio.sleep(1)
        assert (await bench.partition()).start_offset == 100
    assert was_left[0]
    assert not was_left[-1]


@virtual
async def test_settings_are_in_force_where_they_are_stored(bench: Bench) -> None:
    member = await bench.member()
    group = member.group
    assert group is not None
    was_left = []
    for steps in range(LAST):
        change = {"share.delivery.count.limit": str(steps % 8 + 2)}
        was_left.append(await left_after(steps, bench.admin.alter_group_configs("g", change, [])))
        (stored,) = (row for row in bench.world.store.load_groups() if row.group_id == "g")
        limit = stored.config.get("share.delivery.count.limit", "5")
        assert group.settings.delivery_limit == int(limit)
    assert was_left[0]
    assert not was_left[-1]


@virtual
async def test_offsets_and_groups_are_deleted_whole(bench: Bench) -> None:
    was_left = []
    for steps in range(LAST):
        member = await bench.member()
        await member.acknowledge(await member.next_delivery())
        await bench.leave(member)
        if steps % 2:
            was_left.append(await left_after(steps, bench.admin.delete_groups(["g"])))
        else:
            delete = bench.admin.delete_offsets("g", ["orders"])
            was_left.append(await left_after(steps, delete))
        (group,) = await bench.admin.describe_groups(["g"])
        if group.error is None and group.partitions:
            assert group.partitions[0].start_offset == 100
            await bench.admin.delete_groups(["g"])
    assert was_left[0]
    assert not was_left[-1]


def test_a_failure_that_nobody_hears_of_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    @virtual
    async def go_away(bench: Bench) -> None:
        change = {"share.delivery.count.limit": "4"}
        task = asyncio.create_task(bench.admin.alter_group_configs("g", change, []))
        await asyncio.sleep(STEP_S)
        bench.world.caller.down = True
        task.cancel()
        await asyncio.sleep(1)
        bench.world.caller.down = False

    go_away()
    assert "the store is away" in capsys.readouterr().out


@virtual
async def test_a_change_that_is_stopped_before_its_first_step_is_not_waited_for(
    bench: Bench,
) -> None:
    """Python warns of a coroutine that nobody ever ran, which fails this test."""
    caller = asyncio.create_task(
        bench.admin.alter_group_configs("g", {"share.ordering": "key"}, [])
    )
    await asyncio.sleep(0)
    (change,) = (task for task in asyncio.all_tasks() if task.get_name() == "operator")
    change.cancel()
    await asyncio.wait([caller])
    assert caller.cancelled()
    del change
    gc.collect()
    assert "g" not in {row.group_id for row in bench.world.store.load_groups()}


@virtual
async def test_what_is_to_be_seen_later_makes_no_deleted_group_again(bench: Bench) -> None:
    await bench.coordinator.groups.open("g")
    away = StoreUnavailableError("away", retry_after_ms=50)
    bench.world.store.fail_next(away, method="ensure_group")
    with pytest.raises(StoreUnavailableError):
        await bench.admin.alter_group_configs("g", {"share.delivery.count.limit": "4"}, [])
    assert await bench.admin.delete_groups(["g"]) == {"g": None}
    await asyncio.sleep(60)
    assert bench.coordinator.groups == {}
    assert bench.world.store.load_groups() == []
    assert "refresh" not in {task.get_name() for task in asyncio.all_tasks()}


@virtual
async def test_what_could_not_be_seen_is_looked_at_by_one_until_it_is(bench: Bench) -> None:
    group = await bench.coordinator.groups.open("g")
    away = StoreUnavailableError("away", retry_after_ms=50)
    for limit in ("4", "6"):
        bench.world.store.fail_next(away, method="ensure_group")
        with pytest.raises(StoreUnavailableError):
            await bench.admin.alter_group_configs("g", {"share.delivery.count.limit": limit}, [])
    assert [t.get_name() for t in asyncio.all_tasks()].count("refresh") == 1
    bench.world.store.fail_next(away, method="load_groups")
    before = group.settings.delivery_limit
    await asyncio.sleep(5)
    assert (before, group.settings.delivery_limit) == (5, 6)
