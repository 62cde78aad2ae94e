"""Delayed records that are left to the store come back in time, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sharecoord.core.partition.share_partition import AcknowledgedRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.errors import StoreUnavailableError
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.context import ParkingLimits
from sharecoord.runtime.partition.parking import AGAIN_S
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import now_s, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, check_coordinator, running

INFO = CoordinatorInfo("test", "", "", "memory:")
RELEASE = AcknowledgeType.RELEASE
FEW = ParkingLimits(kept=10, most=20, page=8, low=5, ahead_ms=500)
EXACT_S = 0.05
"""Of the decision (design 5.5)."""


def small_world(records: int, **settings: str) -> World:
    """One that keeps few delayed ranges in memory."""
    world = world_with(records, **settings)
    world.parking = FEW
    return world


async def delay_all(
    member: FakeMember, records: int, delay_ms: Callable[[int], int]
) -> dict[int, float]:
    """Takes all records and releases each with a delay of its own; returns when each is due."""
    due: dict[int, float] = {}
    while len(due) < records:
        delivery = await member.next_delivery()
        tokens = {
            offset: r.lock_token for r in delivery.ranges for offset in range(r.first, r.last + 1)
        }
        said = [AcknowledgedRange(n, n, RELEASE, t, delay_ms(n)) for n, t in tokens.items()]
        key = delivery.key
        await member.send([(key.topic, key.topic_id, key.partition, said)])
        due |= {n: now_s() + delay_ms(n) / 1000 for n in tokens}
    await asyncio.sleep(0.1)  # what can go goes with the next commit
    return due


async def take_back(member: FakeMember, records: int) -> dict[int, float]:
    """Accepts so many records; returns when each came."""
    came: dict[int, float] = {}
    while len(came) < records:
        delivery = await member.next_delivery(timeout_s=7_200)
        for offset in offsets(delivery):
            assert offset not in came, "settled already"
            came[offset] = now_s()
        await member.settle(delivery)
    return came


def check_in_time(due: dict[int, float], came: dict[int, float], late_s: float = EXACT_S) -> None:
    """None came early, none came late."""
    wrong = {n: (due[n], at) for n, at in came.items() if not 0 <= at - due[n] <= late_s}
    assert not wrong
    assert came.keys() == due.keys()


def parked_of(coordinator: Coordinator) -> int:
    """How many records are in the store alone."""
    partition = actor_of(coordinator, "orders").partition
    assert partition is not None, "active"
    return partition.window.parked.records


def end_of(coordinator: Coordinator) -> int | None:
    """Where the window ends; None while it is not served."""
    actor = coordinator.groups["g"].partitions.get(("orders", 0))
    partition = actor.partition if actor else None
    return partition.window.end_offset if partition else None


def scattered(offset: int) -> int:
    """Delays in no order: 2 to 62 s."""
    return 2_000 + offset * 7_919 % 60_000


@virtual
async def test_memory_holds_those_that_are_due_first_and_all_come_in_time() -> None:
    world = small_world(400)
    async with world.one_member(max_poll_records=50) as (coordinator, member):
        due = await delay_all(member, 400, scattered)
        actor = actor_of(coordinator, "orders")
        assert actor.partition is not None
        assert parked_of(coordinator) >= 380
        assert len(actor.partition.window.ranges) <= FEW.most
        assert actor.partition.window.delayed == 400
        came: dict[int, float] = {}
        while len(came) < 400:
            came |= await take_back(member, 1)
            assert actor.partition.window.delayed_ranges <= FEW.most + FEW.page
            check_coordinator(coordinator)
        check_in_time(due, came)
        assert world.start_offset("g", "orders") == 400


@virtual
async def test_new_records_pass_those_that_wait() -> None:
    world = small_world(100, partition_max_record_locks="100")
    async with world.one_member(max_poll_records=100) as (_, member):
        due = await delay_all(member, 100, lambda n: 60_000 + n * 50)
        world.log.append("orders", 1_000)
        began_s = now_s()
        passed = await take_back(member, 1_000)
        assert sorted(passed) == list(range(100, 1_100))
        assert now_s() - began_s < 5
        assert world.start_offset("g", "orders") == 0
        check_in_time(due, await take_back(member, 100))
        assert world.start_offset("g", "orders") == 1_100


@virtual
async def test_the_next_owner_leaves_them_in_the_store_too() -> None:
    world = small_world(200)
    first = await world.start()
    member = await world.joined(first, max_poll_records=50)
    due = await delay_all(member, 200, scattered)
    await world.kill(first)
    async with running(world) as second:
        await member.join(second, "g", TOPICS, max_poll_records=50)
        await until(lambda: end_of(second) == 200, step_s=0.01)
        assert parked_of(second) == 190
        check_coordinator(second)
        check_in_time(due, await take_back(member, 200))


@virtual
async def test_a_flood_that_is_due_at_once_comes_as_fast_as_members_take_it() -> None:
    world = small_world(500, partition_max_record_locks="100")
    async with world.one_member(max_poll_records=50) as (coordinator, member):
        # Every second one: no two are one range.
        due = await delay_all(member, 500, lambda n: 30_000 if n % 2 else 30_001)
        actor = actor_of(coordinator, "orders")
        assert actor.partition is not None
        member.joined_session.credit.records = 0
        await asyncio.sleep(40)
        # Nobody takes them: no more are read than may be under a lock.
        assert 100 <= actor.partition.window.due <= 100 + 2 * FEW.page + FEW.most
        assert parked_of(coordinator) > 300
        member.joined_session.credit.records = 1 << 40
        member.joined_group.dispatcher.wake_all()
        check_in_time(due, await take_back(member, 500), late_s=20)


@virtual
async def test_the_store_is_away_when_they_are_due() -> None:
    world = small_world(100)
    async with world.one_member(max_poll_records=50) as (coordinator, member):
        due = await delay_all(member, 100, lambda n: 10_000 + n)
        await asyncio.sleep(9)
        assert parked_of(coordinator)
        for _ in range(3):
            world.store.fail_next(StoreUnavailableError("away"), method="read_delayed")
        check_in_time(due, await take_back(member, 100), late_s=4 * AGAIN_S)


@virtual
async def test_a_log_that_is_cut_takes_its_rows_along() -> None:
    world = small_world(100)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        due = await delay_all(member, 100, lambda n: 20_000 + n * 97 % 1_000)
        actor_of(coordinator, "orders").cache.clear()
        world.log.truncate("orders", 60)
        await until(lambda: end_of(coordinator) == 60, step_s=0.1)
        world.ledger.truncated(world.partition("g", "orders"), 60)
        world.log.append("orders", 5)
        new = await take_back(member, 5)
        assert sorted(new) == list(range(60, 65))
        check_coordinator(coordinator)
        (partition,) = world.database.partitions.values()
        assert max(row.last_offset for row in partition.in_flight.values()) < 60
        came = await take_back(member, 60)
        check_in_time({n: at for n, at in due.items() if n < 60}, came)
        assert world.start_offset("g", "orders") == 65


@virtual
async def test_a_log_start_that_passes_them_is_not_waited_for() -> None:
    world = small_world(100)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        due = await delay_all(member, 100, lambda n: 60_000 + n * 97 % 1_000)
        actor_of(coordinator, "orders").cache.clear()
        world.log.move_log_start("orders", 40)
        await until(lambda: world.start_offset("g", "orders") == 40, step_s=0.5)
        assert now_s() < min(due.values()), "gone before their time"
        came = await take_back(member, 60)
        check_in_time({n: at for n, at in due.items() if n >= 40}, came)


@virtual
async def test_order_that_is_switched_on_brings_them_all() -> None:
    world = small_world(100)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        due = await delay_all(member, 100, lambda n: 20_000 + 20 * n)
        assert parked_of(coordinator)
        await Admin(coordinator, INFO).alter_group_configs("g", {"share.ordering": "key"}, [])
        await until(lambda: end_of(coordinator) == 100, step_s=0.01)
        partition = actor_of(coordinator, "orders").partition
        assert partition is not None
        assert (parked_of(coordinator), partition.window.delayed) == (0, 100)
        check_in_time(due, await take_back(member, 100))


@virtual
async def test_who_acknowledges_late_hears_that_its_lock_is_lost() -> None:
    world = small_world(60)
    async with world.one_delivery(60) as (coordinator, member, delivery):
        key = delivery.key
        (token,) = {r.lock_token for r in delivery.ranges}

        async def say(kind: AcknowledgeType, first: int, last: int) -> list[tuple[int, int, int]]:
            said = [AcknowledgedRange(first, last, kind, token)]
            (result,) = await member.send([(key.topic, key.topic_id, key.partition, said)])
            return [(e.first, e.last, int(e.outcome)) for e in result.exceptions]

        delayed = [AcknowledgedRange(n, n, RELEASE, token, 60_000 + n) for n in range(50)]
        await member.send([(key.topic, key.topic_id, key.partition, delayed)])
        await say(AcknowledgeType.ACCEPT, 50, 59)
        assert parked_of(coordinator) >= 30
        lost, finished = AcknowledgeOutcome.LOCK_LOST, AcknowledgeOutcome.ALREADY_FINISHED
        for kind in (AcknowledgeType.ACCEPT, AcknowledgeType.REJECT, AcknowledgeType.RENEW):
            answers = await say(kind, 45, 55)
            found = {n for first, last, o in answers if o == lost for n in range(first, last + 1)}
            assert found == {*range(45, 50)}
            assert (50, 55, int(finished)) in answers
        # Its first answer may have been lost: they are as it wants them.
        assert await say(RELEASE, 45, 49) == []
        partition = actor_of(coordinator, "orders").partition
        assert partition is not None
        assert partition.window.delayed == 50
        assert not any(v.state is RecordState.ARCHIVED for _, _, v in partition.window.ranges)
