"""Payloads of records that wait are in the store: their topic may forget them, whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.limits import KEPT_OVERHEAD_BYTES
from sharecoord.core.partition.share_partition import AcknowledgedRange
from sharecoord.core.records import Headers
from sharecoord.core.states import AcknowledgeType, ArchiveReason, ForceAction
from sharecoord.errors import StoreUnavailableError
from sharecoord.ports import OutgoingMessage
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.admin.reset import ResetCommand, ResetKind, ResetTo
from sharecoord.runtime.coordinator import LOG_START_INTERVAL_S, Coordinator
from sharecoord.runtime.kernel.context import ParkingLimits
from sharecoord.runtime.partition import kept_payloads
from sharecoord.store.book_entries import KEPT_PAYLOAD
from sharecoord.store.memory.database import MemoryPartition
from sharecoord.testing.fake_log import EPOCH_MS
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.ledger import Ledger
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import (
    Crash,
    accept,
    counts,
    doing,
    now_s,
    offsets,
    until,
    world_with,
)
from tests.world import TOPICS, World, actor_of, check_coordinator, running

INFO = CoordinatorInfo("test", "", "", "memory:")
RELEASE, REJECT = AcknowledgeType.RELEASE, AcknowledgeType.REJECT
HEADERS: Headers = [("a", b"1"), ("a", None), ("", b"\xff\x00"), ("größe", b"")]
LONG_MS = int(4 * LOG_START_INTERVAL_S * 1000)
"""Until then every move of the log's start is known."""

Record = tuple[bytes | None, bytes | None, Headers, int, int]


def keeping_world(records: int, *, any_values: bool = False, **settings: str) -> World:
    world = world_with(records, **settings)
    world.ledger = Ledger(values_are_offsets=not any_values)
    world.defaults["share.retry.keep.payload"] = "true"
    return world


def stored(world: World) -> MemoryPartition:
    """What the store has of the one share-partition."""
    (partition,) = world.database.partitions.values()
    return partition


def kept(world: World) -> list[int]:
    """Whose payloads the store has."""
    return sorted(stored(world).entries[KEPT_PAYLOAD])


def read(*deliveries: Delivery) -> dict[int, Record]:
    """Delivered records byte for byte."""
    return {
        (s.chunk.first + at if s.chunk.offsets is None else s.chunk.offsets[at]): (
            None if s.chunk.keys is None else s.chunk.keys[at],
            s.chunk.values[at],
            s.chunk.headers.get(at, []),
            s.chunk.timestamps[at],
            s.chunk.timestamp_type,
        )
        for delivery in deliveries
        for s in delivery.slices
        for at in range(s.start, s.stop)
    }


async def release(member: FakeMember, delivery: Delivery, delay_ms: int = LONG_MS) -> None:
    result = await member.acknowledge(delivery, RELEASE, delay_ms=delay_ms)
    assert result.error is None


async def forget(world: World, coordinator: Coordinator, offset: int) -> None:
    """The topic's log begins at `offset` from now on, and the coordinator knows it."""
    actor = actor_of(coordinator, "orders")
    assert not actor.log.fresh.records, "all was handed out"
    actor.cache.clear()
    world.log.move_log_start("orders", offset)
    partition = actor.partition
    assert partition is not None
    await until(lambda: partition.log_start_offset == offset, step_s=0.5)


def archived(world: World) -> set[str]:
    """Why records were archived."""
    return {row.reason or "" for row in stored(world).in_flight.values() if row.state == 4}


@virtual
async def test_it_comes_byte_for_byte_when_the_log_has_moved_past_it() -> None:
    world = keeping_world(2, any_values=True)
    world.log.append("orders", 1, key=b"\x00k", value=b"\xff", headers=HEADERS)
    world.log.append("orders", 1, key=b"")
    world.log.log("orders").records[1].value = None
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        deliveries = await member.take(4)
        before = read(*deliveries)
        assert before[2] == (b"\x00k", b"\xff", HEADERS, 1_002, 1)
        for delivery in deliveries:
            await release(member, delivery)
        assert kept(world) == [0, 1, 2, 3]
        began_s = now_s()
        await forget(world, coordinator, 4)
        again = await member.take(4, timeout_s=300)
        assert now_s() - began_s == pytest.approx(LONG_MS / 1000, abs=1)
        assert read(*again) == before
        assert counts(*again) == {2}
        await accept(member, *again)
        assert kept(world) == []
        assert world.start_offset("g", "orders") == 4
        assert actor_of(coordinator, "orders").budget.kept_bytes == 0


@virtual
async def test_it_goes_in_the_commit_of_the_release_and_in_that_of_the_end() -> None:
    world = keeping_world(2)
    async with world.one_delivery(2, max_poll_records=100) as (coordinator, member, delivery):
        before = coordinator.context.committer.commits
        await release(member, delivery, 1_000)
        assert coordinator.context.committer.commits == before + 1
        assert kept(world) == [0, 1]
        (again,) = await member.take(2)
        assert kept(world) == [0, 1], "unfinished"
        before = coordinator.context.committer.commits
        await member.settle(again)
        assert coordinator.context.committer.commits == before + 1
        assert kept(world) == []


@virtual
async def test_the_next_owner_delivers_them_over_kill_9() -> None:
    world = keeping_world(1_200)
    first = await world.start()
    member = await world.joined(first, max_poll_records=500)
    deliveries: list[Delivery] = []
    while sum(each.records for each in deliveries) < 1_200:
        deliveries.append(await member.next_delivery())
        await release(member, deliveries[-1])
    await world.kill(first)
    world.log.move_log_start("orders", 1_200)
    async with running(world) as second:
        await member.join(second, "g", TOPICS, max_poll_records=500)
        again: list[Delivery] = []
        while sum(each.records for each in again) < 1_200:
            again.append(await member.next_delivery(timeout_s=300))
            await member.settle(again[-1])
        assert read(*again) == read(*deliveries)
        assert kept(world) == []
        assert not archived(world)


@virtual
async def test_without_the_setting_nothing_is_stored() -> None:
    world = world_with(3)
    async with world.one_delivery(3, max_poll_records=100) as (coordinator, member, delivery):
        await release(member, delivery)
        assert kept(world) == []
        await forget(world, coordinator, 2)
        (again,) = await member.take(1, timeout_s=300)
        assert offsets(again) == [2]
        await member.settle(again)


@virtual
async def test_what_was_kept_is_delivered_when_the_setting_is_off_again() -> None:
    world = keeping_world(3)
    async with world.one_delivery(3, max_poll_records=100) as (coordinator, member, delivery):
        key, (held,) = delivery.key, delivery.ranges
        first = [AcknowledgedRange(0, 1, RELEASE, held.lock_token, LONG_MS)]
        await member.send([(key.topic, key.topic_id, key.partition, first)])
        name = "share.retry.keep.payload"
        await Admin(coordinator, INFO).alter_group_configs("g", {name: "false"}, [])
        await member.acknowledge(delivery, RELEASE, delay_ms=LONG_MS, first=2, last=2)
        assert kept(world) == [0, 1]
        await forget(world, coordinator, 3)
        (again,) = await member.take(2, timeout_s=300)
        assert offsets(again) == [0, 1]
        await member.settle(again)
        assert world.start_offset("g", "orders") == 3


@virtual
async def test_a_scheduled_record_is_kept_too() -> None:
    world = keeping_world(0)
    at_ms = EPOCH_MS + LONG_MS
    headers: Headers = [("sharecoord-deliver-at", str(at_ms).encode())]
    world.log.append("orders", 1, headers=headers)
    world.log.append("orders", 1)
    async with world.one_delivery(1, max_poll_records=100) as (coordinator, member, now):
        await member.settle(now)
        assert (offsets(now), kept(world)) == ([1], [0])
        await forget(world, coordinator, 2)
        (later,) = await member.take(1, timeout_s=300)
        assert read(later) == {0: (None, b"0", headers, 1_000, 1)}
        assert counts(later) == {1}
        await member.settle(later)
        assert kept(world) == []


@virtual
async def test_compaction_does_not_take_it() -> None:
    world = keeping_world(4)
    async with world.one_delivery(4, max_poll_records=100) as (coordinator, member, delivery):
        key, (held,) = delivery.key, delivery.ranges
        said = [
            AcknowledgedRange(0, 0, RELEASE, held.lock_token),
            AcknowledgedRange(1, 1, RELEASE, held.lock_token, 500),
            AcknowledgedRange(2, 3, RELEASE, held.lock_token),
        ]
        world.log.compact("orders", [1, 2])
        actor = actor_of(coordinator, "orders")
        # Nobody has room for what is due at once: it is read again together with what is kept.
        member.joined_session.credit.records = 0
        await member.send([(key.topic, key.topic_id, key.partition, said)])
        actor.cache.clear()
        await asyncio.sleep(1)
        member.joined_session.credit.records = 1 << 40
        member.joined_group.dispatcher.wake_all()
        again = await member.take(3)
        assert sorted(offsets(*again)) == [0, 1, 3]
        assert {n: r[1] for n, r in read(*again).items()} == {0: b"0", 1: b"1", 3: b"3"}
        await accept(member, *again)
        assert world.start_offset("g", "orders") == 4


@virtual
async def test_at_the_limit_records_wait_without_and_it_is_said() -> None:
    world = keeping_world(0, any_values=True)
    world.defaults["share.retry.keep.payload.max.bytes"] = "1048576"
    size = (1 << 20) // 3 - KEPT_OVERHEAD_BYTES
    world.log.append("orders", 5, value=b"x" * size)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        deliveries = await member.take(5)
        for delivery in deliveries:
            await release(member, delivery)
        assert kept(world) == [0, 1, 2]
        view = (await Admin(coordinator, INFO).describe_groups(["g"]))[0].partitions[0]
        assert (view.delayed_records, view.payloads_not_kept) == (5, 2)
        assert actor_of(coordinator, "orders").budget.kept_bytes <= 1 << 20
        await forget(world, coordinator, 4)
        again = await member.take(4, timeout_s=300)
        assert sorted(offsets(*again)) == [0, 1, 2, 4]
        await accept(member, *again)
        # There is room again.
        world.log.append("orders", 1)
        (new,) = await member.take(1)
        await release(member, new, 1_000)
        assert kept(world) == [5]
        await member.settle(*await member.take(1))


@virtual
async def test_what_memory_has_no_more_is_read_and_stored_after_the_release() -> None:
    world = keeping_world(6)
    async with world.one_delivery(6, max_poll_records=100) as (coordinator, member, delivery):
        actor = actor_of(coordinator, "orders")
        actor.cache.clear()
        world.log.compact("orders", [5])
        await release(member, delivery)
        assert kept(world) == []
        await until(lambda: len(kept(world)) == 5, step_s=0.01)
        assert actor.books.kept.not_kept == 1
        await forget(world, coordinator, 6)
        (again,) = await member.take(5, timeout_s=300)
        assert read(again) == {n: r for n, r in read(delivery).items() if n < 5}
        await member.settle(again)
        assert world.start_offset("g", "orders") == 6


@virtual
async def test_what_neither_memory_nor_the_log_has_is_counted() -> None:
    world = keeping_world(6)
    async with world.one_delivery(6, max_poll_records=100) as (coordinator, member, delivery):
        actor = actor_of(coordinator, "orders")
        actor.cache.clear()
        world.log.move_log_start("orders", 4)
        await release(member, delivery)
        await until(lambda: kept(world) == [4, 5], step_s=0.01)
        assert actor.books.kept.not_kept == 4
        (again,) = await member.take(2, timeout_s=300)
        assert offsets(again) == [4, 5]
        await member.settle(again)


@virtual
async def test_what_is_finished_before_it_was_read_is_not_stored() -> None:
    world = keeping_world(3)
    async with world.one_delivery(3, max_poll_records=100) as (coordinator, member, delivery):
        actor = actor_of(coordinator, "orders")
        (chunk,) = actor.cache.after(0)
        actor.cache.clear()
        world.log.set_down(down=True)
        await release(member, delivery, 1_000)
        actor.cache.add(chunk)
        (again,) = await member.take(3)
        await member.settle(again)
        world.log.set_down(down=False)
        await asyncio.sleep(5)
        assert kept(world) == []
        assert actor.books.kept.not_kept == 0


@virtual
async def test_what_an_operator_finishes_has_none_any_more() -> None:
    world = keeping_world(5)
    async with world.one_delivery(5, max_poll_records=100) as (coordinator, member, delivery):
        await release(member, delivery)
        admin = Admin(coordinator, INFO)
        place = PartitionName("orders", 0)
        await admin.force_records("g", place, 0, 0, ForceAction.FINISH)
        await admin.force_records("g", place, 2, 2, ForceAction.SKIP)
        assert kept(world) == [1, 3, 4]
        await admin.force_records("g", place, 1, 1, ForceAction.RELEASE)
        (now,) = await member.take(1)
        assert (offsets(now), kept(world)) == ([1], [1, 3, 4])
        await member.settle(now)
        check_coordinator(coordinator)
        (again,) = await member.take(2, timeout_s=300)
        await member.settle(again)
        assert kept(world) == []


@virtual
async def test_retention_that_passes_what_is_under_a_lock_finds_it_kept() -> None:
    world = keeping_world(4, record_lock_duration_ms="180000")
    async with world.one_delivery(4, max_poll_records=100) as (_, member, delivery):
        world.log.move_log_start("orders", 3)
        await until(lambda: kept(world) == [0, 1, 2], step_s=0.5)
        await member.acknowledge(delivery, last=0)
        assert kept(world) == [1, 2]
        await member.acknowledge(delivery, RELEASE, first=1)
        (again,) = await member.take(3)
        assert read(again) == {n: r for n, r in read(delivery).items() if n > 0}
        await member.settle(again)
        assert kept(world) == []


@virtual
async def test_those_left_to_the_store_wait_below_the_log_start_if_they_are_kept() -> None:
    world = world_with(100)
    world.parking = ParkingLimits(kept=10, most=20, page=8, low=5, ahead_ms=500)
    async with world.one_delivery(100) as (coordinator, member, delivery):
        key, (held,) = delivery.key, delivery.ranges
        admin = Admin(coordinator, INFO)
        # Every third one is kept; each is a range of its own.
        for keeps in (False, True):
            text = "true" if keeps else "false"
            await admin.alter_group_configs("g", {"share.retry.keep.payload": text}, [])
            said = [
                AcknowledgedRange(n, n, RELEASE, held.lock_token, LONG_MS + n * 97 % 1_000)
                for n in range(100)
                if (n % 3 == 0) is keeps
            ]
            await member.send([(key.topic, key.topic_id, key.partition, said)])
        await asyncio.sleep(0.1)
        began_s, actor = now_s(), actor_of(coordinator, "orders")
        assert kept(world) == list(range(0, 100, 3))
        assert actor.partition is not None
        assert actor.partition.window.parked.records > 70
        await forget(world, coordinator, 80)
        await until(
            lambda: actor.partition is not None and actor.partition.window.delayed == 47, step_s=0.1
        )
        assert now_s() - began_s < LONG_MS / 1000, "gone before their time"
        calls = world.caller.calls
        await asyncio.sleep(5)
        assert world.caller.calls < calls + 10, "the store is left alone"
        again = await member.take(47, timeout_s=300)
        assert sorted(offsets(*again)) == [*range(0, 80, 3), *range(80, 100)]
        await accept(member, *again)
        assert kept(world) == []


@virtual
async def test_a_cut_log_and_a_reset_take_them_along() -> None:
    world = keeping_world(10)
    async with world.one_delivery(10, max_poll_records=100) as (coordinator, member, delivery):
        await release(member, delivery)
        actor_of(coordinator, "orders").cache.clear()
        world.log.truncate("orders", 6)
        await until(lambda: kept(world) == list(range(6)), step_s=0.1)
        world.ledger.truncated(world.partition("g", "orders"), 6)
        check_coordinator(coordinator)
        member.leave()
        await asyncio.sleep(1)
        admin = Admin(coordinator, INFO)
        await admin.reset_offsets(ResetCommand("g", ResetTo(ResetKind.LATEST)))
        await until(lambda: kept(world) == [], step_s=0.1)


@virtual
async def test_a_topic_that_is_made_again_and_a_group_that_is_deleted_leave_nothing() -> None:
    world = keeping_world(3)
    async with world.one_delivery(3, max_poll_records=100) as (coordinator, member, delivery):
        await release(member, delivery)
        world.make_again(1)
        (new,) = await member.take(1, timeout_s=120)
        former, present = (world.database.partitions[n] for n in sorted(world.database.partitions))
        assert (former.row.closed, former.entries[KEPT_PAYLOAD]) == (True, {})
        await release(member, new)
        assert sorted(present.entries[KEPT_PAYLOAD]) == [0]
        member.leave()
        await asyncio.sleep(1)
        await Admin(coordinator, INFO).delete_groups(["g"])
        assert not world.database.partitions


@virtual
async def test_a_letter_has_the_payload_that_only_the_store_has() -> None:
    world = keeping_world(0, delivery_count_limit="2")
    world.defaults["errors.deadletterqueue.topic.name"] = "dead"
    world.dead_letters.topics["dead"] = []
    world.log.append("orders", 3, key=b"k", headers=HEADERS)
    first = await world.start()
    member, delivery = await world.handed(first, 3, max_poll_records=100)
    await release(member, delivery)
    await forget(world, first, 3)
    (again,) = await member.take(3, timeout_s=300)
    actor_of(first, "orders").cache.clear()
    for _ in range(3):
        world.store.fail_next(StoreUnavailableError("away"), method="read_kept")
    await member.settle(again, REJECT)
    assert kept(world) == [0, 1, 2], "they are in no letter yet"
    await world.kill(first)
    async with running(world) as second:
        await member.join(second, "g", TOPICS)
        letters: list[OutgoingMessage] = world.dead_letters.topics["dead"]
        await until(lambda: len(letters) == 3 and not kept(world), step_s=0.1)
        assert [(each.key, each.value) for each in letters] == [
            (b"k", str(n).encode()) for n in range(3)
        ]
        assert all(list(each.headers[:4]) == HEADERS for each in letters)


@virtual
async def test_the_store_is_away_when_they_are_due() -> None:
    world = keeping_world(4)
    async with world.one_delivery(4, max_poll_records=100) as (coordinator, member, delivery):
        await release(member, delivery)
        await forget(world, coordinator, 4)
        for _ in range(3):
            world.store.fail_next(StoreUnavailableError("away"), method="read_kept")
        began_s = now_s()
        (again,) = await member.take(4, timeout_s=300)
        assert read(again) == read(delivery)
        assert now_s() - began_s < LONG_MS / 1000 + 4 * kept_payloads.AGAIN_S
        await member.settle(again)


@virtual
async def test_a_row_that_somebody_deleted_costs_its_record_alone() -> None:
    world = keeping_world(4)
    async with world.one_delivery(4, max_poll_records=100) as (coordinator, member, delivery):
        await release(member, delivery)
        await forget(world, coordinator, 4)
        del stored(world).entries[KEPT_PAYLOAD][1]
        again = await member.take(3, timeout_s=300)
        assert sorted(offsets(*again)) == [0, 2, 3]
        assert archived(world) == {str(ArchiveReason.LOG_START)}
        await accept(member, *again)
        assert world.start_offset("g", "orders") == 4


@virtual
async def test_reads_of_the_store_are_bounded_by_bytes() -> None:
    world = keeping_world(0, any_values=True)
    size = kept_payloads.READ_BYTES_MAX // 4
    world.log.append("orders", 10, value=b"x" * size)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        deliveries = await member.take(10)
        for delivery in deliveries:
            await release(member, delivery)
        await forget(world, coordinator, 10)
        actor = actor_of(coordinator, "orders")
        chunks = await actor.books.kept.read(range(10))
        assert sum(chunk.count for chunk in chunks) == 3
        again = await member.take(10, timeout_s=300)
        assert sorted(offsets(*again)) == list(range(10))
        await accept(member, *again)


@virtual
@Crash.at_calls(range(15, 27))
async def test_a_crash_at_any_call_to_the_store_loses_none(crash: Crash) -> None:
    """The log has lost whatever was told to wait, at the moment of the crash."""
    world = keeping_world(6)
    waiting: set[int] = set()
    came_again: set[int] = set()

    async def works(coordinator: Coordinator, name: str) -> None:
        member = await world.joined(coordinator, name, max_poll_records=2)
        while True:
            delivery = await member.next_delivery(timeout_s=600)
            if counts(delivery) == {1}:
                await release(member, delivery, 1_000)
                waiting.update(offsets(delivery))
                actor_of(coordinator, "orders").cache.drop_below(max(waiting) + 1)
            else:
                assert set(read(delivery)) == set(offsets(delivery))
                came_again.update(offsets(delivery))
                await member.settle(delivery)

    crashed = await crash.hits(world, lambda first: works(first, "m1"))
    assert crashed, "there are so many calls"
    if waiting:
        assert waiting == set(range(max(waiting) + 1))
        world.log.move_log_start("orders", max(waiting) + 1)
    async with running(world) as coordinator, doing(works(coordinator, "m2")):
        await until(lambda: world.start_offset("g", "orders") == 6, step_s=0.1)
    assert waiting <= came_again
    assert kept(world) == []
