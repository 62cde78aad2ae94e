"""Gaps, evicted payloads, a log that moves, topics that come and grow, Kafka away."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from sharecoord.core.states import AcknowledgeType
from sharecoord.runtime.coordinator import LOG_START_INTERVAL_S, Coordinator
from sharecoord.runtime.kernel.budget import GroupBudget, MemoryBudget
from sharecoord.runtime.partition.record_cache import RecordCache
from sharecoord.testing.fake_log import FakeRecord, build_chunk
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import accept, at_work, counts, now_s, offsets, until, world_with
from tests.world import TOPICS, actor_of, check_coordinator, running


@virtual
async def test_holes_of_compaction_are_never_seen_and_block_nothing() -> None:
    world = world_with(100)
    holes = [0, 1, *range(20, 40), 50, 97, 98]
    world.log.compact("orders", holes)
    async with world.one_member(max_poll_records=7) as (_, member):
        seen: list[int] = []
        while len(seen) < 100 - len(holes):
            delivery = await member.next_delivery()
            seen += offsets(delivery)
            await member.acknowledge(delivery)
        assert seen == [o for o in range(100) if o not in holes]
        assert world.start_offset("g", "orders") == 100


@virtual
async def test_control_records_at_the_end_are_passed_over() -> None:
    world = world_with(10)
    world.log.skip("orders", 2)
    async with world.one_member(max_poll_records=50) as (_, member):
        await accept(member, *await member.take(10))
        await asyncio.sleep(0.1)
        assert world.start_offset("g", "orders") == 12
        world.log.skip("orders", 1)
        await asyncio.sleep(0.1)
        assert world.start_offset("g", "orders") == 13
        world.log.append("orders", 1)
        (delivery,) = await member.take(1)
        assert offsets(delivery) == [13]


@virtual
async def test_read_committed_stops_at_open_and_skips_aborted_transactions() -> None:
    world = world_with(10, isolation_level="read_committed")
    log = world.log.log("orders")
    log.stable_end = 4
    async with world.one_delivery(4, max_poll_records=50) as (_, member, delivery):
        await member.acknowledge(delivery)
        await asyncio.sleep(5)
        assert not member.deliveries
        log.aborted = {5, 6, 9}
        log.stable_end = None
        world.log.set_down(down=False)
        (delivery,) = await member.take(3)
        assert offsets(delivery) == [4, 7, 8]
        await member.acknowledge(delivery)
        await asyncio.sleep(0.1)
        assert world.start_offset("g", "orders") == 10


@virtual
async def test_everything_is_read_again_when_nothing_fits_in_memory() -> None:
    world = world_with(300, memory_bytes=1, partitions=2)
    async with world.one_member(max_poll_records=40) as (coordinator, member):
        async with asyncio.timeout(100):
            while world.ledger.confirmed() < 600:
                delivery = await member.next_delivery()
                kind = AcknowledgeType.ACCEPT
                if delivery.ranges[0].delivery_count < 3:
                    kind = AcknowledgeType.RELEASE
                assert (await member.acknowledge(delivery, kind)).error is None
                check_coordinator(coordinator)
        key = world.partition("g", "orders")
        assert {world.ledger.life(key, offset).count for offset in range(300)} == {3}
        assert now_s() < 20


@virtual
async def test_what_was_compacted_since_is_a_gap_for_the_redelivery() -> None:
    world = world_with(20)
    first = await world.start()
    member, delivery = await world.handed(first, 20)
    await member.acknowledge(delivery, AcknowledgeType.RELEASE, delay_ms=2_000, first=5)
    await world.kill(first)
    world.log.compact("orders", [5, 8, 9, 19])
    async with running(world) as second:
        # 0..4 are still held, so the read-again has to leave them alone.
        await member.join(second, "g", TOPICS, max_poll_records=20)
        (again,) = await member.take(11)
        assert offsets(again) == [6, 7, *range(10, 19)]
        assert counts(again) == {2}
        assert not (await member.acknowledge(again)).exceptions
        assert not (await member.acknowledge(delivery, last=4)).exceptions
        await asyncio.sleep(0.1)
        assert world.start_offset("g", "orders") == 20


@virtual
async def test_a_held_record_that_was_compacted_is_archived_when_it_is_due() -> None:
    """The payloads around it were read again while it was held, so its hole is known."""
    world = world_with(20)
    first = await world.start()
    member, delivery = await world.handed(first, 20)
    await world.kill(first)
    world.log.compact("orders", [10])
    async with running(world) as second:
        await member.join(second, "g", TOPICS, max_poll_records=20)
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, first=5, last=9)
        (around,) = await member.take(5)
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, first=11, last=15)
        (beyond,) = await member.take(5)
        # Both parts, read as one piece that covers the hole.
        session = member.joined_session
        session.credit.records = 0
        await member.acknowledge(around, AcknowledgeType.RELEASE)
        await member.acknowledge(beyond, AcknowledgeType.RELEASE)
        actor_of(second, "orders").cache.clear()
        session.credit.records = 1 << 40
        member.joined_group.dispatcher.wake_all()
        parts = await member.take(10)
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, first=10, last=10)
        await asyncio.sleep(0.5)
        assert not member.deliveries, "a record without a payload is never handed out"
        await accept(member, *parts)
        await member.acknowledge(delivery, last=4)
        await member.acknowledge(delivery, first=16)
        assert world.start_offset("g", "orders") == 20


@virtual
async def test_records_below_the_log_start_are_archived_and_counted() -> None:
    world = world_with(50)
    async with world.one_delivery(50, max_poll_records=100) as (coordinator, member, delivery):
        await member.acknowledge(delivery, AcknowledgeType.RELEASE, delay_ms=5_000, first=10)
        actor_of(coordinator, "orders").cache.clear()
        world.log.append("orders", 50)
        world.log.move_log_start("orders", 30)
        rest = await member.take(70)
        assert sorted(offsets(*rest)) == list(range(30, 100))
        # What is held runs on.
        assert not (await member.acknowledge(delivery, last=9)).exceptions
        for part in rest:
            assert not (await member.settle(part)).exceptions
        assert world.start_offset("g", "orders") == 100


@virtual
async def test_a_log_start_beyond_the_position_goes_on_there() -> None:
    world = world_with(0)
    async with world.one_member(max_poll_records=50, credit=0) as (_, member):
        await asyncio.sleep(1)
        world.log.set_down(down=True)
        world.log.append("orders", 50)
        world.log.move_log_start("orders", 20)
        world.log.set_down(down=False)
        await asyncio.sleep(1)
        member.joined_session.credit.records = 100
        member.joined_group.dispatcher.wake_all()
        (delivery,) = await member.take(30)
        assert offsets(delivery) == list(range(20, 50))


@virtual
async def test_a_log_start_beyond_all_records_goes_on_behind_the_markers() -> None:
    """What was read ahead is gone, and nothing comes that would say so again."""
    world = world_with(10)
    world.log.skip("orders", 3)
    async with world.one_member(max_poll_records=50, credit=0):
        await asyncio.sleep(1)
        world.log.move_log_start("orders", 11)
        await asyncio.sleep(LOG_START_INTERVAL_S + 1)
        assert world.start_offset("g", "orders") == 13


@virtual
async def test_partitions_that_are_added_start_at_zero() -> None:
    world = world_with(10, auto_offset_reset="latest")
    async with world.one_member(max_poll_records=50) as (_, member):
        await asyncio.sleep(1)
        world.log.create("orders", 3)
        world.log.append("orders", 5, partition=2)
        world.log.append("orders", 1)
        start_s = now_s()
        got = await member.take(6)
        assert sorted((d.key.partition, *offsets(d)) for d in got) == [(0, 10), (2, 0, 1, 2, 3, 4)]
        assert now_s() - start_s < 31


@virtual
async def test_added_partitions_start_at_zero_in_spite_of_a_crash() -> None:
    """The row is there, the start offset is not: it must not be resolved anew as `latest`."""
    world = world_with(10, auto_offset_reset="latest")
    first = await world.start()
    member = await world.joined(first)
    await asyncio.sleep(1)
    world.log.create("orders", 3)
    caller = world.caller
    await until(lambda: len(world.database.partitions) == 3, step_s=0.0005)
    caller.delay_s = 1e9
    await world.kill(first)
    assert world.database.partitions[3].row.head is None
    for partition in (1, 2):
        world.log.append("orders", 5, partition=partition)
    async with running(world) as second:
        await member.join(second, "g", TOPICS, max_poll_records=10)
        got = await member.take(10)
        assert {d.key.partition for d in got} == {1, 2}


@virtual
async def test_a_topic_that_appears_is_served_within_a_second() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        member, other = world.member("m"), world.member("other")
        await member.join(coordinator, "g", ("late",), max_poll_records=50)
        await asyncio.sleep(10)
        world.log.create("late", 2)
        world.log.append("late", 5)
        start_s = now_s()
        joining = asyncio.create_task(_join_all_the_time(other, coordinator))
        (delivery,) = await member.take(5)
        assert now_s() - start_s < 1
        assert member.assignments[-1].topics["late"][1] == (0, 1)
        joining.cancel()
        await member.acknowledge(delivery)


async def _join_all_the_time(member: FakeMember, coordinator: Coordinator) -> None:
    while True:
        await member.join(coordinator, "g", TOPICS)
        await asyncio.sleep(0.1)


@virtual
async def test_kafka_can_go_away_for_a_minute() -> None:
    world = world_with(500)
    async with world.one_member(max_poll_records=20) as (coordinator, member):
        async with at_work(member, seconds_per_record=0.001):
            await asyncio.sleep(0.05)
            world.log.set_down(down=True)
            await asyncio.sleep(60)
            world.log.append("orders", 100)
            world.log.set_down(down=False)
            await asyncio.sleep(5)
        assert world.ledger.confirmed() == 600
        assert coordinator.kafka_ok


@virtual
async def test_redelivery_waits_for_kafka_and_then_comes() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=20) as (coordinator, member, delivery):
        actor_of(coordinator, "orders").cache.clear()
        world.log.set_down(down=True)
        await member.acknowledge(delivery, AcknowledgeType.RELEASE)
        await asyncio.sleep(60)
        assert not member.deliveries
        world.log.set_down(down=False)
        (again,) = await member.take(10, timeout_s=1)
        assert counts(again) == {2}


@virtual
async def test_a_re_read_that_breaks_is_tried_again() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=20) as (coordinator, member, delivery):
        actor_of(coordinator, "orders").cache.clear()
        reread, broken = world.log.reread, True

        async def once(*args: object, **kwargs: object) -> object:
            nonlocal broken
            if broken:
                broken = False
                raise RuntimeError("nobody foresaw this")
            return await reread(*args, **kwargs)  # type: ignore[arg-type]

        world.log.reread = once  # type: ignore[method-assign,assignment]
        await member.acknowledge(delivery, AcknowledgeType.RELEASE)
        (again,) = await member.take(10, timeout_s=2)
        assert counts(again) == {2}
        assert not broken


@virtual
async def test_a_re_read_for_an_incarnation_that_is_gone_is_ignored() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=20) as (coordinator, member, delivery):
        actor = actor_of(coordinator, "orders")
        actor.cache.clear()
        reread = world.log.reread

        async def slow(*args: object, **kwargs: object) -> object:
            found = await reread(*args, **kwargs)  # type: ignore[arg-type]
            await asyncio.sleep(1)
            return found

        world.log.reread = slow  # type: ignore[method-assign,assignment]
        await member.acknowledge(delivery, AcknowledgeType.RELEASE)
        await asyncio.sleep(0.01)
        assert actor.payloads.rereading
        key = world.partition("g", "orders")
        world.ledger.reset(key)
        world.store.reset_partitions({key: 0})
        world.log.append("orders", 1)
        got = await member.take(11)
        assert sorted(offsets(*got)) == list(range(11))
        check_coordinator(coordinator)


@pytest.mark.parametrize("size", [10, 40_000])
@virtual
async def test_reading_ahead_stops_and_goes_on(size: int) -> None:
    world = world_with(0)
    world.ledger = type(world.ledger)(values_are_offsets=False)
    world.log.append("orders", 3_000 if size > 100 else 90_000, value=b"x" * size)
    async with world.one_member(max_poll_records=500, credit=0) as (coordinator, member):
        await asyncio.sleep(1)
        actor = actor_of(coordinator, "orders")
        ahead = actor.log.fresh.records
        assert 0 < ahead < world.log.log("orders").log_end
        (reading,) = world.log.readings
        assert not reading.wanted
        await asyncio.sleep(5)
        assert actor.log.fresh.records == ahead
        member.joined_session.credit.records = 1 << 40
        member.joined_group.dispatcher.wake_all()
        async with at_work(member):
            await asyncio.sleep(20)
        assert world.start_offset("g", "orders") == world.log.log("orders").log_end


def _records(first: int, last: int, *, without: tuple[int, ...] = ()) -> list[FakeRecord]:
    return [
        FakeRecord(o, b"k", str(o).encode(), [("h", None)], o)
        for o in range(first, last + 1)
        if o not in without
    ]


def test_a_chunk_that_overlaps_fills_what_is_missing() -> None:
    cache = RecordCache(GroupBudget(budget := MemoryBudget(1 << 30)))
    cache.add(build_chunk(_records(10, 19), 10))
    cache.add(build_chunk(_records(30, 39, without=(33,)), 25))
    cache.add(build_chunk(_records(5, 45, without=(22,)), 5))
    cache.add(build_chunk(_records(5, 45), 5))
    found = [o for o in range(60) if (chunk := cache.find(o)) and chunk.span(o, o) != (0, 0)]
    assert found[0] == 5
    assert found[-1] == 45
    for offset in {*range(5, 46)} - {22, 25, 26, 27, 28, 29, 33}:
        chunk = cache.find(offset)
        assert chunk is not None
        start, stop = chunk.span(offset, offset)
        assert chunk.values[start:stop] == [str(offset).encode()]
        assert chunk.timestamps[start] == offset
        assert chunk.headers[start] == [("h", None)]
    spans = [(c.covers_from, c.last) for c in cache.after(0)]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(spans)), spans
    assert budget.used_bytes == sum(c.size_bytes for c in cache.after(0)) > 0
    cache.clear()
    assert budget.used_bytes == 0
