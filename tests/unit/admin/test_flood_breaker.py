"""A flood of dead letters pauses its group, until an operator resumes it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sharecoord.core.dispatch.pauses import WHOLE_GROUP
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import InvalidConfigError, StoreUnavailableError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.flood_watch import FloodWatch
from sharecoord.runtime.admin.reset import ResetKind, ResetTo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual as virtual_time
from tests.unit.admin.support import INFO, Bench, virtual
from tests.unit.runtime.fleets import Fleet, fleet_of
from tests.unit.runtime.worlds import until, world_with
from tests.world import World

FLOOD = "errors.deadletterqueue.flood."
SETTINGS = {
    "errors.deadletterqueue.topic.name": "dead",
    FLOOD + "ratio": "0.5",
    FLOOD + "window.ms": "20000",
    FLOOD + "min.records": "20",
}


def watch(coordinator: Coordinator) -> None:
    floods = FloodWatch(coordinator, Admin(coordinator, INFO))
    coordinator.context.tasks.spawn(floods.run(), "floods")


async def breaker(bench: Bench, **more: str) -> None:
    bench.world.dead_letters.topics["dead"] = []
    await bench.admin.alter_group_configs(
        "g", SETTINGS | {FLOOD + k: v for k, v in more.items()}, []
    )
    watch(bench.coordinator)


async def work(member: FakeMember, rejects: range, records: int = 100) -> None:
    """Settles so many at once: rejects some offsets, accepts the others."""
    for delivery in await member.take(records):
        for acquired in delivery.ranges:
            for offset in range(acquired.first, acquired.last + 1):
                kind = AcknowledgeType.REJECT if offset in rejects else AcknowledgeType.ACCEPT
                await member.acknowledge(delivery, kind, first=offset, last=offset)


def pauses(world: World) -> list[Any]:
    return [*world.database.groups["g"].pauses]


@virtual
async def test_a_flood_pauses_the_group_until_it_is_resumed(bench: Bench) -> None:
    await breaker(bench)
    member = await bench.member()
    await work(member, range(30, 100))
    await asyncio.sleep(2)
    (pause,) = pauses(bench.world)
    assert (pause.scope, pause.by) == (WHOLE_GROUP, "flood breaker")
    assert pause.reason.startswith("70 of 100 records of the last 20 s became dead letters (70%)")
    bench.log.append("orders", 40)
    await asyncio.sleep(60)
    assert member.received == 100
    # It begins anew: the former flood does not stop it again.
    await bench.admin.resume_group("g")
    await work(member, range(100, 105), 40)
    await asyncio.sleep(5)
    assert (member.received, pauses(bench.world)) == (140, [])
    # Another flood does.
    bench.log.append("orders", 40)
    await work(member, range(140, 180), 40)
    await asyncio.sleep(2)
    assert len(pauses(bench.world)) == 1


@virtual
async def test_few_or_late_or_none_of_them_do_not(bench: Bench) -> None:
    await breaker(bench)
    member = await bench.member()
    # Below the share; then a flood of fewer records than say something.
    await work(member, range(50))
    await asyncio.sleep(30)
    for turn in range(10):
        bench.log.append("orders", 15)
        await work(member, range(100 + 15 * turn, 115 + 15 * turn), 15)
        await asyncio.sleep(25)
    assert pauses(bench.world) == []
    await bench.admin.alter_group_configs("g", {}, [FLOOD + "ratio"])
    bench.log.append("orders", 200)
    await work(member, range(250, 450), 200)
    await asyncio.sleep(5)
    assert (member.received, pauses(bench.world)) == (450, [])


async def paused_by(bench: Bench, what: str) -> None:
    """The group is paused within a look or two, because of this."""
    await asyncio.sleep(2)
    (pause,) = pauses(bench.world)
    assert pause.reason.startswith(what)


@virtual
async def test_a_burst_right_at_the_start_is_a_flood(bench: Bench) -> None:
    await breaker(bench)
    await work(await bench.member(), range(100))
    await paused_by(bench, "100 of 100 records")


@virtual
async def test_a_burst_right_after_a_restart_is_one(bench: Bench) -> None:
    """What was finished before it, and what the log lost meanwhile, is not part of it."""
    await breaker(bench)
    await work(await bench.member(), range(40))
    await bench.world.kill(bench.coordinator)
    bench.log.append("orders", 60)
    bench.log.move_log_start("orders", 130)
    bench.coordinator = await bench.world.start()
    bench.admin = Admin(bench.coordinator, INFO)
    watch(bench.coordinator)
    await work(await bench.member("m2"), range(130, 160), 30)
    await paused_by(bench, "30 of 30 records")


@virtual
async def test_a_burst_right_after_a_load_is_one(bench: Bench) -> None:
    """The watch knows the group and not its newest share-partition."""
    await breaker(bench)
    await work(await bench.member(), range(0))
    await asyncio.sleep(30)
    bench.log.create("more")
    bench.log.append("more", 30)
    await work(await bench.member("m2", topic="more"), range(30), 30)
    await paused_by(bench, "30 of 30 records")


@virtual
async def test_what_was_before_the_breaker_was_set_is_none(bench: Bench) -> None:
    await breaker(bench, ratio="0")
    member = await bench.member()
    await work(member, range(100))
    await asyncio.sleep(3)
    await bench.admin.alter_group_configs("g", {FLOOD + "ratio": "0.5"}, [])
    await asyncio.sleep(3)
    assert pauses(bench.world) == []
    bench.log.append("orders", 30)
    await work(member, range(100, 130), 30)
    await paused_by(bench, "30 of 30 records")


@virtual
async def test_a_reset_is_nobodys_work(bench: Bench) -> None:
    """What a reset moves over was not finished: it does not make a flood smaller."""
    await breaker(bench)
    member = await bench.member()
    await member.take(100)
    # A look sees what was there before.
    await asyncio.sleep(1.5)
    await bench.reset(ResetTo(ResetKind.OFFSET, 70), force=True, orders=(0,))
    await work(member, range(70, 100), 30)
    await asyncio.sleep(2)
    (pause,) = pauses(bench.world)
    assert pause.reason.startswith("30 of 30 records")


@virtual
async def test_a_store_that_is_away_is_tried_again(bench: Bench) -> None:
    await breaker(bench)
    member = await bench.member()
    bench.world.store.fail_next(StoreUnavailableError("away"), method="change_pauses")
    await work(member, range(100))
    await asyncio.sleep(3)
    assert len(pauses(bench.world)) == 1


@virtual
async def test_bad_settings_are_refused_by_name(bench: Bench) -> None:
    for name, text in (("ratio", "1.5"), ("window.ms", "10"), ("min.records", "0")):
        with pytest.raises(InvalidConfigError, match=FLOOD + name):
            await bench.admin.alter_group_configs("g", {FLOOD + name: text}, [])


@contextlib.asynccontextmanager
async def watched_fleet(world: World, *names: str) -> AsyncIterator[Fleet]:
    world.defaults |= SETTINGS
    world.dead_letters.topics["dead"] = []
    async with fleet_of(world, *names) as fleet:
        for name in names:
            watch(fleet.all[name])
        yield fleet


@virtual_time
async def test_a_move_does_not_count_what_the_former_owner_finished() -> None:
    world = world_with(100)
    async with watched_fleet(world, "a") as fleet:
        member = world.member("m")
        await member.join(fleet.all["a"], "g", ("orders",), max_poll_records=1000)
        await work(member, range(40))
        await asyncio.sleep(3)
        await fleet.add("b")
        watch(fleet.all["b"])
        await until(lambda: fleet.owned()["b"], step_s=0.1)
        world.log.append("orders", 30)
        await work(member, range(100, 130), 30)
        await until(lambda: pauses(world), step_s=0.1)
        (pause,) = pauses(world)
        assert pause.reason.startswith("30 of 30 records")


@virtual_time
async def test_in_a_fleet_one_coordinator_that_sees_it_stops_all() -> None:
    world = world_with(30, partitions=8)
    async with watched_fleet(world, "a", "b") as fleet:
        member = world.member("m")
        await member.join(fleet.all["a"], "g", ("orders",), max_poll_records=1000)
        await work(member, range(30), 240)
        await until(lambda: pauses(world), step_s=0.1)
        await asyncio.sleep(1)
        assert all(c.groups["g"].pauses.group for c in fleet.all.values())
