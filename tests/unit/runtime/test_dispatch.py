"""Who gets what when: fairness, the window's limits, the first record, the drain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from sharecoord.core.dispatch.pace import FIRST_RECORDS_MAX
from sharecoord.core.states import AcknowledgeType, ForceAction
from sharecoord.errors import DrainingError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import accept, at_work, now_s, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running


def jain(shares: Sequence[float]) -> float:
    """Jain's index of fairness: 1 = all equal."""
    return sum(shares) ** 2 / (len(shares) * sum(x * x for x in shares))


class Accepting(FakeMember):
    """Notes when it accepted how many records."""

    accepted = 0

    async def work(self, *, seconds_per_record: float = 0.0) -> None:
        while True:
            delivery = await self.next_delivery(timeout_s=1e9)
            for acquired in delivery.ranges:
                for offset in range(acquired.first, acquired.last + 1):
                    await asyncio.sleep(seconds_per_record)
                    await self.acknowledge(delivery, first=offset, last=offset)
                    self.accepted += 1


@asynccontextmanager
async def accepting(
    world: World, work_s: Sequence[float]
) -> AsyncIterator[tuple[Coordinator, list[Accepting]]]:
    """A coordinator, and members at work for the length of a block, with their times per record."""
    async with running(world) as coordinator:
        members = [Accepting(f"m{i}", world.ledger) for i in range(len(work_s))]
        tasks: list[asyncio.Task[None]] = []
        for member, seconds in zip(members, work_s, strict=True):
            await member.join(coordinator, "g", TOPICS)
            tasks.append(asyncio.create_task(member.work(seconds_per_record=seconds)))
        yield coordinator, members
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("partitions", [1, 3])
@virtual
async def test_ten_equal_members_get_equal_shares(partitions: int) -> None:
    """Untuned: nobody says how much it wants."""
    world = world_with(4_500 // partitions, partitions=partitions)
    async with accepting(world, [0.05] * 10) as (_, members):
        await asyncio.sleep(20)
        shares = [m.accepted for m in members]
        assert jain(shares) >= 0.98, shares
        assert min(shares) > 360, "and nobody waits for work"


@virtual
async def test_scarce_records_are_shared() -> None:
    """Fewer records than the members could work off: none gets more than its part."""
    world = world_with(0)
    async with accepting(world, [0.01] * 10) as (_, members):
        for _ in range(200):
            world.log.append("orders", 10)
            await asyncio.sleep(0.1)
        await asyncio.sleep(2)
        shares = [m.accepted for m in members]
        assert sum(shares) == 2_000
        assert jain(shares) >= 0.98, shares


@virtual
async def test_who_joins_late_has_its_share_within_a_second() -> None:
    world = world_with(20_000)
    async with running(world) as coordinator:
        members = [Accepting(f"m{i}", world.ledger) for i in range(5)]
        working: list[asyncio.Task[None]] = []
        for member in members[:4]:
            await member.join(coordinator, "g", TOPICS)
            working.append(asyncio.create_task(member.work(seconds_per_record=0.005)))
        await asyncio.sleep(5)
        late = members[4]
        await late.join(coordinator, "g", TOPICS)
        working.append(asyncio.create_task(late.work(seconds_per_record=0.005)))
        await asyncio.sleep(1)
        before = [m.accepted for m in members]
        await asyncio.sleep(2)
        gained = [m.accepted - b for m, b in zip(members, before, strict=True)]
        assert jain(gained) >= 0.98, gained
        for task in working:
            task.cancel()


@virtual
async def test_who_stops_acknowledging_gets_nothing_more() -> None:
    world = world_with(5_000)
    async with running(world) as coordinator:
        slow, fast = Accepting("slow", world.ledger), Accepting("fast", world.ledger)
        for member in (slow, fast):
            await member.join(coordinator, "g", TOPICS)
        working = [asyncio.create_task(m.work(seconds_per_record=0.005)) for m in (slow, fast)]
        await asyncio.sleep(2)
        working[0].cancel()
        await asyncio.sleep(0.3)
        got = slow.received
        held = coordinator.groups["g"].totals.get("slow", 0)
        assert 0 < held <= 60, "what it works off in 200 ms, not more"
        done = fast.accepted
        await asyncio.sleep(20)
        assert slow.received == got
        assert fast.accepted - done > 2_500, "the other one goes on at its pace"
        working[1].cancel()


@virtual
async def test_one_stuck_record_blocks_nothing() -> None:
    world = world_with(20_000, record_lock_duration_ms="3600000")
    async with world.one_delivery(100) as (_, member, stuck):
        await member.acknowledge(stuck, first=1)
        async with at_work(member):
            await asyncio.sleep(30)
        assert world.ledger.confirmed() == 19_999
        assert world.start_offset("g", "orders") == 0
        assert len(world.database.partitions[1].in_flight) == 1
        await member.acknowledge(stuck, last=0)
        assert world.start_offset("g", "orders") == 20_000


@virtual
async def test_a_full_window_stops_new_data_and_goes_on_redelivering() -> None:
    world = world_with(1_000, partition_max_record_locks="100")
    async with world.one_delivery(100, max_poll_records=500) as (_, member, delivery):
        await asyncio.sleep(5)
        assert not member.deliveries, "the window is full"
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, first=50, last=59)
        (again,) = await member.take(10)
        assert offsets(again) == list(range(50, 60))
        await asyncio.sleep(5)
        assert not member.deliveries
        await member.acknowledge(delivery, first=90)
        (new,) = await member.take(10)
        assert offsets(new) == list(range(100, 110))
        # Records that wait for their time take no room.
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, delay_ms=60_000, last=9)
        (more,) = await member.take(10)
        assert offsets(more) == list(range(110, 120))


@virtual
async def test_a_window_that_is_not_set_grows_with_its_members() -> None:
    world = world_with(10_000)
    async with running(world) as coordinator:
        members = [await world.joined(coordinator, f"m{i}", max_poll_records=4) for i in range(600)]
        await asyncio.sleep(1)
        first = members[0]
        await accept(first, *list(first.deliveries))
        await asyncio.sleep(1)
        assert min(m.received for m in members) > 0, "no number of members starves"


@pytest.mark.parametrize("existing", [True, False])
@virtual
async def test_the_first_record_of_a_group_comes_within_half_a_second(existing: bool) -> None:
    world = world_with(10 if existing else 0)
    async with running(world) as coordinator:
        await asyncio.sleep(7.3)
        start_s = now_s()
        member = await world.joined(coordinator)
        if not existing:
            world.log.append("orders", 1)
        await member.next_delivery()
        assert now_s() - start_s < 0.5


@virtual
async def test_a_record_that_arrives_goes_out_at_once() -> None:
    world = world_with(0)
    async with world.one_member() as (_, member):
        for _ in range(20):
            await asyncio.sleep(1.017)
            start_s = now_s()
            world.log.append("orders", 1)
            await member.acknowledge(await member.next_delivery())
            assert now_s() - start_s < 0.01


@virtual
async def test_a_drain_stops_acquiring_flushes_and_tells_the_members() -> None:
    world = world_with(1_000)
    coordinator = await world.start()
    member, delivery = await world.handed(coordinator, 50)
    waiting = asyncio.create_task(member.acknowledge(delivery))
    await asyncio.sleep(0)
    await coordinator.drain()
    assert member.drained
    assert not (await waiting).exceptions
    assert world.start_offset("g", "orders") == 50
    received = member.received
    world.log.append("orders", 50)
    await asyncio.sleep(5)
    assert member.received == received
    with pytest.raises(DrainingError):
        await world.member("late").join(coordinator, "g", TOPICS)
    await coordinator.close()
    assert len(asyncio.all_tasks()) == 1
    second = await world.start()
    await member.join(second, "g", TOPICS, max_poll_records=50)
    async with at_work(member):
        await asyncio.sleep(60)
    assert world.ledger.confirmed() == 1_050
    assert world.ledger.check_nothing_lost(world.database, world.log, "g") == 0
    await second.close()


@virtual
async def test_nothing_starves_among_many_partitions() -> None:
    world = world_with(50, partitions=20)
    async with world.one_member(max_poll_records=1) as (coordinator, member):
        async with at_work(member, seconds_per_record=0.001):
            await asyncio.sleep(1)
            begun = sum(
                (p := actor_of(coordinator, "orders", number).partition) is not None
                and p.window.start_offset > 0
                for number in range(20)
            )
        assert begun == 20


@virtual
async def test_credit_comes_back_when_locks_end_before_their_commit() -> None:
    """When they end the credit is still spent; once it is given back the member is served again."""
    world = world_with(0, delivery_count_limit="10")
    async with world.one_member(credit=10, max_poll_records=10) as (coordinator, member):
        await asyncio.sleep(1)
        world.caller.delay_s = 0.3
        world.log.append("orders", 10)
        await until(lambda: coordinator.groups["g"].totals.get("m"), step_s=0.001)
        actor = actor_of(coordinator, "orders")
        assert actor.partition is not None
        now_ms = actor.clock.now_ms()
        actor.commit(actor.partition.decide_force(now_ms, 0, 9, ForceAction.RELEASE))
        assert offsets(*await member.take(10)) == list(range(10))


@virtual
async def test_a_partition_that_left_the_group_is_not_kept() -> None:
    world = world_with(10)
    async with world.one_member(credit=1) as (coordinator, member):
        await member.take(1)
        dispatcher, actor = coordinator.groups["g"].dispatcher, actor_of(coordinator, "orders")
        assert actor in dispatcher._ready, "it has more, and nobody can take it"
        coordinator.groups["g"].forget(TOPICS, "the topic is gone")
        assert actor not in dispatcher._ready
        assert actor not in dispatcher._woken


@virtual
async def test_a_lone_new_member_gets_what_is_there() -> None:
    """A program that reads alone sees a batch as it was produced, as with Kafka."""
    world = world_with(30)
    async with world.one_member() as (_, member):
        assert offsets(await member.next_delivery()) == list(range(30))
        # Nothing is known of it yet, and still nobody else is there.
        world.log.append("orders", 1_000)
        await asyncio.sleep(1)
        assert member.received == FIRST_RECORDS_MAX


@virtual
async def test_a_new_member_among_others_starts_with_one_record() -> None:
    world = world_with(30)
    async with world.one_member("other", max_poll_records=1) as (coordinator, other):
        await other.next_delivery()
        member = await world.joined(coordinator)
        assert len(offsets(await member.next_delivery())) == 1
        await asyncio.sleep(1)
        assert member.received == 1


@virtual
async def test_who_joins_a_lone_new_member_waits_for_nothing() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        first = await world.joined(coordinator, "m1")
        second = await world.joined(coordinator, "m2")
        world.log.append("orders", 30)
        assert len(offsets(await first.next_delivery())) == 1
        assert len(offsets(await second.next_delivery())) == 1


@virtual
async def test_who_stands_where_another_member_was_killed_is_alone() -> None:
    world = world_with(31)
    async with world.one_member("killed", max_poll_records=1) as (coordinator, killed):
        await killed.next_delivery()
        killed.disconnect()
        member = await world.joined(coordinator)
        assert offsets(await member.next_delivery()) == list(range(1, 31))
