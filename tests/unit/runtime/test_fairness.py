"""Many members on one partition: who gets how much, untuned, and what a turn costs."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.dispatch.fair_share import jain_index
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import Share
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.test_dispatch import accepting
from tests.unit.runtime.worlds import looked_at, until, world_with
from tests.world import TOPICS, running


@virtual
async def test_fifty_untuned_workers_are_all_busy_and_equal() -> None:
    world = world_with(15_000)
    async with accepting(world, [0.05] * 50) as (_, members):
        await asyncio.sleep(1)
        before = [m.accepted for m in members]
        await asyncio.sleep(10)
        gained = [m.accepted - b for m, b in zip(members, before, strict=True)]
        assert sum(gained) >= 0.95 * 50 * 10 / 0.05
        assert jain_index(gained) >= 0.99
        assert min(gained) > 0


@virtual
async def test_fast_workers_get_what_they_work_off_and_slow_ones_hoard_nothing() -> None:
    world = world_with(8_000)
    async with accepting(world, [0.01] * 4 + [0.5] * 4) as (coordinator, members):
        group = coordinator.groups["g"]
        await asyncio.sleep(2)
        before = [m.accepted for m in members]
        for _ in range(30):
            await asyncio.sleep(0.5)
            # What waits in a slow worker's buffer longer than a second would be more than two.
            assert max(group.totals.get(f"m{i}", 0) for i in range(4, 8)) <= 2
        gained = [m.accepted - b for m, b in zip(members, before, strict=True)]
        assert min(gained[:4]) >= 20 * max(gained[4:])
        # These workers wait for the answer (1 ms) before they go on: 11 ms for a record.
        assert min(gained[:4]) >= 0.95 * 15 / 0.011


@virtual
async def test_a_cold_first_record_does_not_make_a_fast_member_slow() -> None:
    """Four programs without work; in one of them the first record took 1.57 ms."""
    world = world_with(400_000)
    async with running(world) as coordinator:
        members = [await world.joined(coordinator, f"m{n}") for n in range(4)]

        async def work(member: FakeMember, first_us: int) -> None:
            busy_us = first_us
            while True:
                taken = [await member.next_delivery(timeout_s=1e9), *member.deliveries]
                member.deliveries.clear()
                words = (member.acknowledge(each, busy_us=busy_us) for each in taken)
                await asyncio.gather(*words)
                busy_us = 1

        works = [work(m, us) for m, us in zip(members, [1, 1, 1, 1_570], strict=True)]
        tasks = [asyncio.create_task(each) for each in works]
        await until(lambda: sum(m.received for m in members) >= 150_000, step_s=0.001)
        before = [member.received for member in members]
        await until(lambda: sum(m.received for m in members) >= 390_000, step_s=0.001)
        gained = [m.received - b for m, b in zip(members, before, strict=True)]
        for task in tasks:
            task.cancel()
    assert jain_index(gained) >= 0.95


@pytest.mark.parametrize("batch_s", [0.15, 0.3, 0.9])
@virtual
async def test_who_pays_by_the_batch_gets_large_ones(batch_s: float) -> None:
    """A program that writes each batch to a database; its records come one by one at first."""
    world = world_with(1)
    async with running(world) as coordinator:
        member = FakeMember("m", world.ledger)
        await member.join(coordinator, "g", TOPICS)
        done = 0
        for batch in range(40):
            delivery = await member.next_delivery(timeout_s=1e9)
            if not batch:
                world.log.append("orders", 1_000)
            await asyncio.sleep(batch_s)
            await member.acknowledge(delivery, busy_us=round(batch_s * 1e6))
            done += sum(each.last - each.first + 1 for each in delivery.ranges)
            if done > 1_000:
                break
        assert done == 1_001


@virtual
async def test_a_turn_costs_what_it_hands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand members that are busy are not looked at when one of them is served."""
    world = world_with(4_000)
    async with running(world) as coordinator:
        members = [
            await world.joined(coordinator, f"m{i}", max_poll_records=1) for i in range(1_000)
        ]
        first = [await member.next_delivery() for member in members]
        looks = looked_at(monkeypatch)
        await members[500].settle(first[500])
        await members[500].next_delivery()
        assert 0 < len(looks) < 20


def group_of(coordinator: Coordinator) -> GroupActor:
    return coordinator.groups["g"]


@virtual
async def test_the_live_index_tells_fair_from_unfair() -> None:
    world = world_with(0)
    async with accepting(world, [0.01] * 4) as (coordinator, _):
        dispatcher = group_of(coordinator).dispatcher
        dispatcher.measure()
        assert dispatcher.fairness is None, "nothing was handed out"
        for _ in range(5):
            world.log.append("orders", 40)
            await asyncio.sleep(1)
            dispatcher.measure()
        assert dispatcher.fairness is not None
        assert dispatcher.fairness >= 0.95
        sessions = group_of(coordinator).sessions.values()
        assert all(s.share.ratio is not None and 0.7 < s.share.ratio < 1.4 for s in sessions)
        # Someone who could take records and is given none.
        starved = group_of(coordinator).sessions["m3"]
        starved.comparison.done.clear()
        world.log.append("orders", 300)
        await asyncio.sleep(0.5)
        dispatcher.measure()
        assert dispatcher.fairness < 0.8
        assert starved.share.ratio == 0


def test_demand_is_summed_over_refills() -> None:
    share = Share()
    share.wants(10)
    share.gets(10)
    share.wants(4)
    share.wants(6)
    share.gets(2)
    assert (share.demand, share.got, share.waits_for) == (16, 12, 4)
    share.next_interval()
    assert (share.demand, share.got) == (4, 0)
    share.wants(0)
    assert share.demand == 0
    share.gets(3)
    assert (share.demand, share.got, share.waits_for) == (3, 3, 0)
