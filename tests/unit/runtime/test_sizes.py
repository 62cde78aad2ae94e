"""How many records a delivery has: many under load, a lone one at once, equal parts for all."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.dispatch.pace import (
    FIRST_RECORDS_MAX,
    PREFETCH_RECORDS_MAX,
    REFILL_MS,
    REFILL_PART,
)
from sharecoord.core.records import RECORD_OVERHEAD_BYTES
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import joined_fleet
from tests.unit.runtime.worlds import now_s, offsets, until, world_with
from tests.world import running

REFILL = PREFETCH_RECORDS_MAX // REFILL_PART
COMMIT_S = 0.002
"""More than a call to the store of these worlds takes."""


async def freed_by(member: FakeMember, delivery: Delivery, records: int, busy_us: int) -> list[int]:
    """Accepts so many records of a delivery at a time; returns the sizes of what came for them."""
    sizes: list[int] = []
    first, last = delivery.ranges[0].first, delivery.ranges[-1].last
    for start in range(first, last + 1, records):
        known = len(member.deliveries)
        end = min(last, start + records - 1)
        await member.acknowledge(delivery, first=start, last=end, busy_us=busy_us)
        await asyncio.sleep(0.01)
        sizes += [each.records for each in member.deliveries[known:]]
    return sizes


@virtual
async def test_a_fast_member_that_is_busy_gets_many_records_at_a_time() -> None:
    """Each word frees as many as one poll has; what comes has six times as many."""
    world = world_with(100_000)
    async with world.one_member() as (_, member):
        first = await member.next_delivery()
        assert first.records == FIRST_RECORDS_MAX
        assert sum(await freed_by(member, first, 500, 1)) == PREFETCH_RECORDS_MAX
        held, member.deliveries = member.deliveries, []
        for delivery in held:
            assert set(await freed_by(member, delivery, 500, 1)) <= {REFILL}
        assert member.received >= FIRST_RECORDS_MAX + 2 * PREFETCH_RECORDS_MAX - REFILL


@virtual
async def test_a_slow_member_that_is_busy_gets_what_it_works_off_in_5_ms() -> None:
    world = world_with(10_000)
    async with world.one_member() as (_, member):
        first = await member.next_delivery()
        # 2 records/ms: 400 are prefetched.
        await freed_by(member, first, 500, 250_000)
        (held,) = await member.take(400)
        assert set(await freed_by(member, held, 1, 500)) == {2 * REFILL_MS}


@virtual
async def test_a_lone_record_goes_out_at_once_to_a_fast_member() -> None:
    world = world_with(500)
    async with world.one_member() as (_, member):
        await freed_by(member, await member.next_delivery(), 500, 1)
        for offset in range(500, 510):
            began_s = now_s()
            world.log.append("orders", 1)
            # The member still holds the ones before.
            assert offsets(await member.next_delivery()) == [offset]
            assert now_s() - began_s <= COMMIT_S


@virtual
async def test_no_member_gets_a_large_delivery_while_others_starve() -> None:
    """Fast members that share a small window get equal parts of it, again and again."""
    world = world_with(50_000, partition_max_record_locks="5000")
    async with running(world) as coordinator:
        members = [await world.joined(coordinator, f"m{n}") for n in range(50)]

        async def work(member: FakeMember) -> None:
            while True:
                delivery = await member.next_delivery(timeout_s=1e9)
                await member.acknowledge(delivery, busy_us=1)

        tasks = [asyncio.create_task(work(member)) for member in members]
        await until(lambda: sum(m.received for m in members) >= 25_000, step_s=0.001)
        received = [member.received for member in members]
        for task in tasks:
            task.cancel()
    # A round of equal parts more or less.
    assert max(received) - min(received) <= 5_000 / 50 * 1.2


@virtual
async def test_a_wish_for_few_records_is_kept_to() -> None:
    world = world_with(20_000)
    async with world.one_member(max_poll_records=7) as (_, member):
        for _ in range(200):
            delivery = await member.next_delivery()
            assert 1 <= delivery.records <= 7
            await member.acknowledge(delivery, busy_us=1)


@virtual
async def test_a_credit_for_few_records_is_kept_to() -> None:
    """A member whose pace allows more than it has credit for gets the credit at once."""
    world = world_with(20_000)
    async with world.one_member(credit=510) as (_, member):
        first = await member.next_delivery()
        assert await freed_by(member, first, 500, 1) == [10]
        assert member.received == 510


# -- of another coordinator -----------------------------------------------------------------------


async def deliveries_of(member: FakeMember, records: int, each: int, record_us: int) -> int:
    """Works, with a word for `each` records, until it has had so many; returns its deliveries."""
    words: list[asyncio.Task[PartitionResult]] = []
    done = deliveries = 0
    while done < records:
        delivery = await member.next_delivery()
        deliveries += 1
        first, last = delivery.ranges[0].first, delivery.ranges[-1].last
        for start in range(first, last + 1, each):
            end = min(last, start + each - 1)
            busy_us = record_us * (end - start + 1)
            await asyncio.sleep(busy_us / 1e6)
            word = member.acknowledge(delivery, first=start, last=end, busy_us=busy_us)
            words.append(asyncio.create_task(word))
        done += delivery.records
    await asyncio.gather(*words)
    return deliveries


@pytest.mark.parametrize(
    ("records", "each", "record_us"), [(3_000, 1, 500), (10_000, 10, 50), (50_000, 500, 2)]
)
@virtual
async def test_a_member_of_another_coordinator_gets_no_smaller_deliveries(
    records: int, each: int, record_us: int
) -> None:
    found: dict[bool, int] = {}
    for name in "ab":
        async with joined_fleet(world_with(2 * records), "a", "b", at=name) as (fleet, member):
            deliveries = await deliveries_of(member, records, each, record_us)
            found[bool(fleet.owned()[name])] = deliveries
    assert found[False] <= 1.1 * found[True]


@virtual
async def test_a_member_that_holds_little_waits_for_no_owner_that_can_send_nothing() -> None:
    """The owner has no bytes left for the records that it was lent, and many of these."""
    wishes = {"at": "a", "max_poll_records": 100, "credit_bytes": RECORD_OVERHEAD_BYTES}
    world = world_with(0)
    async with joined_fleet(world, "a", "b", **wishes) as (fleet, member):
        for _ in range(20):
            world.log.append("orders", 10)
            session, delivery = member.joined_session, await member.next_delivery(timeout_s=5)
            await member.acknowledge(delivery, busy_us=1)
            assert session.away is not None
            assert 100 - session.away.credit.lent < session.pace.refill(100, 0)
            session.credit.size_bytes = session.credit.delivered_bytes + RECORD_OVERHEAD_BYTES
            member.joined_group.dispatcher.offer(session)
        assert fleet.owned() == {"a": set(), "b": {0}}
