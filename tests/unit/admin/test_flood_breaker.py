"""A flood of dead letters pauses its group, until an operator resumes it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sharecoord.core.pauses import WHOLE_GROUP
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import InvalidConfigError, StoreUnavailableError
from sharecoord.runtime.admin import Admin
from sharecoord.runtime.admin_types import ResetKind, ResetTo
from sharecoord.runtime.flood_watch import FloodWatch
from sharecoord.testing.harness import FakeMember, World
from sharecoord.testing.virtual_time import virtual as virtual_time
from tests.unit.admin.support import INFO, Bench, virtual
from tests.unit.runtime.fleets import fleet_of
from tests.unit.runtime.worlds import until, world_with

FLOOD = "errors.deadletterqueue.flood."
SETTINGS = {
    "errors.deadletterqueue.topic.name": "dead",
    FLOOD + "ratio": "0.5",
    FLOOD + "window.ms": "20000",
    FLOOD + "min.records": "20",
}


async def breaker(bench: Bench, **more: str) -> None:
    bench.world.dead_letters.topics["dead"] = []
    await bench.admin.alter_configs("g", SETTINGS | {FLOOD + k: v for k, v in more.items()}, [])
    watch = FloodWatch(bench.coordinator, bench.admin)
    bench.coordinator.context.spawn(watch.run(), "floods")


async def work(member: FakeMember, rejects: range) -> None:
    """Settles all that came: rejects some offsets, accepts the others."""
    await asyncio.sleep(1.5)
    while member.deliveries:
        delivery = await member.next_delivery()
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
    await bench.admin.resume_group("g", [WHOLE_GROUP])
    await work(member, range(100, 105))
    await asyncio.sleep(5)
    assert (member.received, pauses(bench.world)) == (140, [])
    # Another flood does.
    bench.log.append("orders", 40)
    await work(member, range(140, 180))
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
        await work(member, range(100 + 15 * turn, 115 + 15 * turn))
        await asyncio.sleep(25)
    assert pauses(bench.world) == []
    await bench.admin.alter_configs("g", {}, [FLOOD + "ratio"])
    bench.log.append("orders", 200)
    await work(member, range(250, 450))
    await asyncio.sleep(5)
    assert (member.received, pauses(bench.world)) == (450, [])


@virtual
async def test_a_reset_is_nobodys_work(bench: Bench) -> None:
    """What a reset moves over was not finished: it does not make a flood smaller."""
    await breaker(bench)
    member = await bench.member()
    await asyncio.sleep(1.5)
    member.deliveries.clear()

    await bench.reset(ResetTo(ResetKind.OFFSET, 70), force=True, orders=(0,))
    await work(member, range(70, 100))
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
            await bench.admin.alter_configs("g", {FLOOD + name: text}, [])


@virtual_time
async def test_in_a_fleet_one_coordinator_that_sees_it_stops_all() -> None:

    world = world_with(30, partitions=8)
    world.defaults |= SETTINGS
    world.dead_letters.topics["dead"] = []
    async with fleet_of(world, "a", "b") as fleet:
        for coordinator in fleet.all.values():
            watch = FloodWatch(coordinator, Admin(coordinator, INFO))
            coordinator.context.spawn(watch.run(), "floods")
        member = world.member("m")
        await member.join(fleet.all["a"], "g", ("orders",), max_poll_records=1000)
        await work(member, range(30))
        await until(lambda: pauses(world), step_s=0.1)
        await asyncio.sleep(1)
        assert all(c.groups["g"].pauses.group for c in fleet.all.values())
