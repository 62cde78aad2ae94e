"""kill -9 at every call to the store, before and after it happened; then a restart."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.errors import SharecoordError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.testing.harness import FakeMember, StreamBrokenError
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import counts, now_s, offsets, world_with
from tests.world import TOPICS, World, running

CALLS = 45
"""More store calls than the scenario makes before it is done."""


async def mixed_work(member: FakeMember) -> None:
    """Accepts, but releases and rejects a part at first sight."""
    while True:
        delivery = await member.next_delivery(timeout_s=1e9)
        await asyncio.sleep(0.003)
        for acquired in delivery.ranges:
            for offset in range(acquired.first, acquired.last + 1):
                kind = AcknowledgeType.ACCEPT
                if acquired.delivery_count == 1 and offset % 10 == 3:
                    kind = AcknowledgeType.RELEASE
                elif offset % 25 == 7:
                    kind = AcknowledgeType.REJECT
                if offset % 10 in (3, 7) or offset == acquired.first:
                    await member.acknowledge(delivery, kind, first=offset, last=offset)
        await member.settle(delivery)


async def scenario(world: World, coordinator: Coordinator, members: list[FakeMember]) -> None:
    """Members join, work, and go on until their coordinator is gone."""
    with contextlib.suppress(StreamBrokenError, SharecoordError):
        await coordinator.start()
        for member in members:
            await member.join(coordinator, "g", TOPICS, max_poll_records=20)
        await asyncio.gather(*(mixed_work(member) for member in members))


async def crash_and_go_on(crash_at: int, *, after: bool, forget: bool) -> World:
    world = world_with(120, partitions=2)
    members = [world.member("a"), world.member("b")]
    first = world.build(crash_at=crash_at, crash_after=after)
    running_scenario = asyncio.create_task(scenario(world, first, members))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(30):
            await world.caller.crashed.wait()
    await world.kill(first)
    running_scenario.cancel()
    await asyncio.gather(running_scenario, return_exceptions=True)
    await asyncio.sleep(1)

    second = await world.start()
    for member in members:
        member.deliveries.clear()
        if forget:
            world.ledger.forgot(member.member_id)
        await member.join(second, "g", TOPICS, max_poll_records=20)
    working = asyncio.gather(*(mixed_work(member) for member in members), finish(world, members))
    await asyncio.sleep(20)
    working.cancel()
    await asyncio.gather(working, return_exceptions=True)
    await second.drain()
    await second.close()
    return world


async def finish(world: World, members: list[FakeMember]) -> None:
    """Settles what the members still held from before the crash."""
    await asyncio.sleep(0.5)
    for member in members:
        for log_id, held in world.ledger.book(member.member_id):
            accept = AcknowledgedRange(
                held.first, held.last, AcknowledgeType.ACCEPT, held.lock_token
            )
            await member.send([(*log_id, [accept])])


@pytest.mark.parametrize("forget", [False, True], ids=["with-book", "book-lost"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_store_call_loses_nothing(after: bool, forget: bool) -> None:
    """Every crash point in one test: what is found is named by its number."""

    @virtual
    async def one(crash_at: int) -> None:
        world = await crash_and_go_on(crash_at, after=after, forget=forget)
        left = world.ledger.check_nothing_lost(world.database, world.log, "g")
        assert left == 0, f"{left} records are not finished"

    for crash_at in range(1, CALLS):
        try:
            one(crash_at)
        except AssertionError as error:
            raise AssertionError(f"crash at store call {crash_at}: {error}") from error


@virtual
async def test_locks_tokens_deadlines_and_counts_survive() -> None:
    world = world_with(30)
    first = await world.start()
    a, released = await world.handed(first, 10, "a")
    await a.acknowledge(released, AcknowledgeType.RELEASE, first=0, last=4)
    (again,) = await a.take(5)
    await asyncio.sleep(10)
    await world.kill(first)
    await asyncio.sleep(3)

    async with world.one_delivery(20, "b", max_poll_records=100) as (second, b, new):
        assert offsets(new) == list(range(10, 30)), "what a holds is not for b"
        assert not await a.join(second, "g", TOPICS, max_poll_records=10, credit=0)
        partition_id = world.database.ids[world.partition("g", "orders")]
        rows = world.store.read_in_flight(partition_id, from_offset=0, max_rows=10)
        mine = [(r.first_offset, r.delivery_count, r.lock_token) for r in rows][:2]
        tokens = (again.ranges[0].lock_token, released.ranges[0].lock_token)
        assert mine == [(0, 2, tokens[0]), (5, 1, tokens[1])]
        result = await a.acknowledge(released, first=5, last=6)
        assert result.error is None
        assert not result.exceptions
        await b.acknowledge(new)
        # The locks began at 0 and would end at 30; the restart at 13 gave no more than that.
        (late,) = await b.take(8)
        assert [(*r[:3],) for r in late.ranges] == [(0, 4, 3), (7, 9, 2)]
        assert 30 <= now_s() < 30.2
        lost = await a.acknowledge(released, first=7, last=7)
        assert [e.outcome for e in lost.exceptions] == [AcknowledgeOutcome.LOCK_LOST]


@virtual
async def test_a_lock_that_ended_during_an_outage_gets_grace() -> None:
    world = world_with(10)
    first = await world.start()
    a, delivery = await world.handed(first, 10, "a")
    await asyncio.sleep(20)
    await world.kill(first)
    await asyncio.sleep(20)
    async with world.one_member("b", max_poll_records=10) as (second, b):
        await asyncio.sleep(8)
        assert not b.received
        assert not await a.join(second, "g", TOPICS, credit=0)
        assert not (await a.acknowledge(delivery, last=4)).exceptions
        (rest,) = await b.take(5)
        assert offsets(rest) == [5, 6, 7, 8, 9]
        assert now_s() > 49


@virtual
async def test_records_that_were_committed_but_never_sent_come_back_unseen() -> None:
    world = world_with(0)
    first = await world.start()
    a = await world.joined(first, "a", max_poll_records=10)
    await asyncio.sleep(1.5)
    caller = world.caller
    caller.crash_at, caller.crash_after = caller.calls + 1, True
    world.log.append("orders", 10)
    await caller.crashed.wait()
    await world.kill(first)
    partition_id = world.database.ids[world.partition("g", "orders")]
    rows = list(world.database.partitions[partition_id].in_flight.values())
    assert [(r.state, r.delivery_count) for r in rows] == [(RecordState.ACQUIRED, 1)]
    assert not a.received

    async with running(world) as second:
        await asyncio.sleep(1)
        start_s = now_s()
        await a.join(second, "g", TOPICS, max_poll_records=10)
        (delivery,) = await a.take(10)
        assert counts(delivery) == {1}
        assert now_s() - start_s < 0.1


@virtual
async def test_who_never_comes_back_is_waited_for_and_its_delivery_counts() -> None:
    world = world_with(10)
    first = await world.start()
    await world.handed(first, 10, "a")
    await world.kill(first)
    async with world.one_delivery(10, "b") as (second, _, delivery):
        assert counts(delivery) == {2}
        assert now_s() >= 30
        await asyncio.sleep(20)
        assert set(second.groups["g"].sessions) == {"b"}
        assert set(world.database.members) == {("g", "b")}
