"""Topics that are deleted and made again, logs that lose their end or their start (design 5.12)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sharecoord.core.delivery import Delivery
from sharecoord.core.partition.share_partition import HeldRange
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.errors import SharecoordError
from sharecoord.kafka.looks import LOOK_TIMEOUT_S
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.log_changes import follow_log_starts
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.runtime.partition.topic_life import SILENCE_S
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.admin.support import INFO
from tests.unit.runtime.worlds import accept, now_s, offsets, until, world_with
from tests.world import TOPICS, World, actor_of, running


@virtual
async def test_a_topic_re_created_while_running_starts_at_0() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=50) as (_, member, old):
        world.make_again(5)
        (new,) = await member.take(5, timeout_s=120)
        assert offsets(new) == [0, 1, 2, 3, 4]
        assert new.key.topic_id != old.key.topic_id
        late = await member.acknowledge(old)
        assert late.error is not None
        assert late.error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
        assert not (await member.acknowledge(new)).exceptions
        rows = world.store.list_partitions("g")
        assert sorted((row.closed, row.key.topic_id == new.key.topic_id) for row in rows) == [
            (False, True),
            (True, False),
        ]


@virtual
async def test_a_topic_re_created_while_away_starts_at_0_even_with_latest() -> None:
    world = world_with(10, auto_offset_reset="latest")
    first = await world.start()
    await world.joined(first)
    await asyncio.sleep(1)
    await world.kill(first)
    world.make_again(3)
    async with world.one_delivery(3, "n", max_poll_records=50) as (_, again, delivery):
        assert offsets(delivery) == [0, 1, 2]
        await again.acknowledge(delivery)


@virtual
async def test_a_deleted_topic_is_given_up_and_found_again() -> None:
    world = world_with(10)
    async with world.one_member(max_poll_records=50) as (coordinator, member):
        await accept(member, *await member.take(10))
        world.log.delete("orders")
        await asyncio.sleep(65)
        assert member.assignments[-1].unknown_topics == TOPICS
        assert not coordinator.groups["g"].partitions
        world.log.create("orders")
        world.log.append("orders", 2)
        (delivery,) = await member.take(2, timeout_s=5)
        assert offsets(delivery) == [0, 1]
        await member.acknowledge(delivery)


@virtual
async def test_a_truncated_log_voids_the_state_beyond_it() -> None:
    world = world_with(10)
    async with world.one_delivery(10) as (coordinator, member, old):
        before = world.store.list_partitions("g")[0].state_epoch
        world.log.truncate("orders", 6)
        actor = coordinator.groups["g"].partitions["orders", 0]
        await until(lambda: actor.log.shorter_log is not None, step_s=0.0001)
        await until(lambda: actor.state is ActorState.ACTIVE, step_s=0.1)
        world.ledger.truncated(old.key, 6)
        world.log.append("orders", 4)
        (new,) = await member.take(4)
        assert offsets(new) == [6, 7, 8, 9]
        assert {r.delivery_count for r in new.ranges} == {1}
        late = await member.acknowledge(old, first=6)
        assert {e.outcome for e in late.exceptions} == {AcknowledgeOutcome.LOCK_LOST}
        assert not (await member.acknowledge(old, last=5)).exceptions
        assert not (await member.acknowledge(new)).exceptions
        assert world.store.list_partitions("g")[0].state_epoch == before + 1


@pytest.mark.parametrize("came", [40, 600])
@virtual
async def test_what_comes_between_a_look_and_what_is_made_of_it_is_delivered(came: int) -> None:
    """Also when the log is longer again than it ever was."""
    world = world_with(1_000)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 1_000)
        world.log.truncate("orders", 500)
        actor = actor_of(coordinator, "orders")
        await until(lambda: actor.log.shorter_log is not None, step_s=0.0001)
        world.log.append("orders", came)
        world.ledger.truncated(actor.key, 500)
        deliveries = await member.take(came)
        assert offsets(*deliveries) == list(range(500, 500 + came))
        await accept(member, *deliveries)
        assert world.start_offset("g", "orders") == 500 + came


@virtual
async def test_the_lowest_end_counts_though_the_truncation_was_not_stored_at_first() -> None:
    world = world_with(1_000)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 1_000)
        actor = actor_of(coordinator, "orders")
        # The look that is to show that it is the same topic comes late: the log grows until then.
        world.log.describe_failures = 20
        world.log.truncate("orders", 500)
        await until(lambda: actor.log.shorter_log is not None, step_s=0.0001)
        for _ in range(10):
            await asyncio.sleep(0.3)
            world.log.append("orders", 60)
        world.log.describe_failures = 0
        world.ledger.truncated(actor.key, 500)
        deliveries = await member.take(600, timeout_s=10)
        assert offsets(*deliveries) == list(range(500, 1_100))
        await accept(member, *deliveries)


@virtual
async def test_a_log_that_is_cut_while_nobody_reads_is_found_before_it_has_grown() -> None:
    world = world_with(1_000)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 1_000)
        actor = actor_of(coordinator, "orders")
        member.leave()
        await until(lambda: actor.log.resting, step_s=1)
        world.log.truncate("orders", 500)
        await follow_log_starts(coordinator.context, list(coordinator.groups.values()))
        await until(lambda: actor.log.shorter_log is not None, step_s=0.0001)
        world.log.append("orders", 700)
        world.ledger.truncated(actor.key, 500)
        await asyncio.sleep(1)
        await member.join(coordinator, "g", TOPICS, max_poll_records=2_000)
        deliveries = await member.take(700)
        assert offsets(*deliveries) == list(range(500, 1_200))
        await accept(member, *deliveries)


@virtual
async def test_what_was_read_ahead_of_a_log_that_is_cut_is_read_anew() -> None:
    world = world_with(1_000)
    world.ledger = type(world.ledger)(values_are_offsets=False)
    async with world.one_delivery(100, credit=100) as (coordinator, member, first):
        actor = actor_of(coordinator, "orders")
        await until(lambda: actor.log.proven_end == 1_000, step_s=0.001)
        for reading in world.log.readings:
            reading.wanted = False  # as one that is full
        world.log.truncate("orders", 500)
        await follow_log_starts(coordinator.context, list(coordinator.groups.values()))
        world.log.append("orders", 300, value=b"new")
        await until(lambda: actor.state is ActorState.ACTIVE, step_s=0.001)
        member.joined_session.credit.records = 1 << 40
        assert (await member.acknowledge(first)).error is None
        deliveries: list[Delivery] = []
        while len(offsets(*deliveries)) < 700:
            deliveries.append(await member.next_delivery())
            await member.acknowledge(deliveries[-1])
        assert sorted(offsets(*deliveries)) == list(range(100, 800))
        values = {o: v for d in deliveries for o, v in zip(offsets(d), values_of(d), strict=True)}
        assert {values[offset] for offset in range(500, 800)} == {b"new"}


@virtual
async def test_an_open_transaction_is_no_truncation_for_who_reads_committed_from_now_on() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        member = await finished(world, coordinator, 10)
        world.log.log("orders").stable_end = 4
        before = world.store.list_partitions("g")[0].state_epoch
        await Admin(coordinator, INFO).alter_group_configs(
            "g", {"share.isolation.level": "read_committed"}, []
        )
        actor = actor_of(coordinator, "orders")
        actor.drop(SharecoordError("loaded anew"))
        await until(lambda: actor.state is ActorState.ACTIVE, step_s=0.1)
        assert world.store.list_partitions("g")[0].state_epoch == before
        world.log.log("orders").stable_end = None
        world.log.append("orders", 2)
        (delivery,) = await member.take(2)
        assert offsets(delivery) == [10, 11]
        await member.acknowledge(delivery)


async def finished(world: World, coordinator: Coordinator, records: int) -> FakeMember:
    """A member that has finished so many records."""
    member = await world.joined(coordinator, max_poll_records=2_000)
    await accept(member, *await member.take(records))
    return member


def values_of(delivery: Delivery) -> list[bytes | None]:
    return [value for chunk, start, stop in delivery.slices for value in chunk.values[start:stop]]


@virtual
async def test_a_log_end_that_only_lags_for_a_moment_voids_nothing() -> None:
    world = world_with(10)
    first = await world.start()
    member, held = await world.handed(first, 10)
    await world.kill(first)
    log = world.log.log("orders")
    log.shown_end = 8
    async with running(world) as second:
        book = [(held.key.log_id, HeldRange(r.first, r.last, r.lock_token)) for r in held.ranges]
        joining = asyncio.ensure_future(
            member.join(second, "g", TOPICS, max_poll_records=10, lock_book=book)
        )
        await asyncio.sleep(10)
        log.shown_end = None
        await joining
        await until(
            lambda: second.groups["g"].partitions["orders", 0].state is ActorState.ACTIVE,
            step_s=0.1,
        )
        assert not (await member.acknowledge(held)).exceptions


@virtual
async def test_the_watch_counts_what_retention_took() -> None:
    world = world_with(10)
    async with world.one_delivery(4) as (coordinator, member, held):
        member.disconnect()
        world.log.move_log_start("orders", 8)
        await asyncio.sleep(31)
        window = coordinator.groups["g"].partitions["orders", 0].partition
        assert window is not None
        assert window.log_start_offset == 8
        await member.join(coordinator, "g", TOPICS, max_poll_records=4)
        await member.take(2)
        assert held.records == 4


# -- a topic that is made again between two looks -------------------------------------------------


@asynccontextmanager
async def quiet(partitions: int = 1) -> AsyncIterator[tuple[World, Coordinator, FakeMember]]:
    """A member that has finished 10 records of each partition, and a silence after them."""
    world = world_with(10, partitions=partitions)
    async with world.one_member(max_poll_records=5_000) as (coordinator, member):
        await accept(member, *await member.take(10 * partitions))
        await asyncio.sleep(SILENCE_S * 2)
        yield world, coordinator, member


@virtual
async def test_nothing_of_a_new_life_passes_for_the_former_one() -> None:
    partitions = 100
    async with quiet(partitions) as (world, coordinator, member):
        former = coordinator.groups["g"].topic_ids["orders"]
        world.log.describes.clear()
        world.make_again(30, partitions)
        deliveries = await member.take(30 * partitions)
        assert former not in {d.key.topic_id for d in deliveries}
        for partition in range(partitions):
            of_it = [d for d in deliveries if d.key.partition == partition]
            assert offsets(*of_it) == list(range(30))
        # 100 that woke up at once shared their looks, as do those that read the new life.
        assert len(world.log.describes) <= 20
        await accept(member, *deliveries)


@virtual
@pytest.mark.parametrize("failures", [1, 5])
async def test_records_wait_for_a_look_that_works(failures: int) -> None:
    async with quiet() as (world, _, member):
        world.log.describe_failures = failures
        world.make_again(30)
        await asyncio.sleep(0.04)
        assert not member.deliveries
        (delivery,) = await member.take(30, timeout_s=5)
        assert offsets(delivery) == list(range(30))
        await member.acknowledge(delivery)


@virtual
async def test_a_look_that_takes_long_only_delays() -> None:
    async with quiet() as (world, _, member):
        world.log.describe_s = 1.0
        world.log.append("orders", 5)
        await asyncio.sleep(0.5)
        world.log.append("orders", 5)
        began_s = now_s()
        deliveries = await member.take(10)
        assert offsets(*deliveries) == list(range(10, 20))
        # The records that came during the first look have one of their own.
        assert now_s() - began_s < 1.6
        await accept(member, *deliveries)


@virtual
async def test_a_look_that_never_answers_is_given_up_and_made_again() -> None:
    async with quiet() as (world, coordinator, member):
        budget = coordinator.context.budget.used_bytes
        world.log.describe_s = 1e9
        world.log.append("orders", 5)
        await asyncio.sleep(LOOK_TIMEOUT_S * 3)
        assert not member.deliveries
        assert coordinator.context.budget.used_bytes > budget
        world.log.describe_s = 0.001
        began_s = now_s()
        (delivery,) = await member.take(5)
        assert now_s() - began_s < LOOK_TIMEOUT_S + 1
        await member.acknowledge(delivery)


@virtual
async def test_records_of_a_topic_that_is_gone_are_dropped_with_its_share_partition() -> None:
    async with quiet() as (world, coordinator, member):
        world.log.describe_failures = 3
        world.log.append("orders", 5)
        await asyncio.sleep(0.01)
        world.log.delete("orders")
        await asyncio.sleep(65)
        assert not member.deliveries
        assert not coordinator.groups["g"].partitions
        assert coordinator.context.budget.used_bytes == 0


@virtual
async def test_records_that_flow_need_no_look() -> None:
    async with quiet() as (world, _, member):
        world.log.append("orders")
        await accept(member, *await member.take(1))
        world.log.describes.clear()
        for _ in range(100):
            await asyncio.sleep(0.1)
            world.log.append("orders")
            at_s = now_s()
            (delivery,) = await member.take(1)
            assert now_s() - at_s < 0.0015, "no more than the commit"
            await member.acknowledge(delivery)
        # Only the periodic looks, one every 2 s.
        assert len(world.log.describes) <= 6


@virtual
async def test_a_backlog_is_looked_at_in_time_and_never_waits() -> None:
    async with quiet() as (world, _, member):
        world.log.append("orders")
        await accept(member, *await member.take(1))
        world.log.describes.clear()
        world.log.drained_s = began_s = now_s()
        for _ in range(200):
            await asyncio.sleep(0.01)
            world.log.append("orders")
            at_s = now_s()
            (delivery,) = await member.take(1)
            assert now_s() - at_s < 0.0025, "the commit, behind a renewed lease at most"
            await member.acknowledge(delivery)
        assert 10 <= len(world.log.describes) <= (now_s() - began_s) / 0.06


@virtual
async def test_the_first_record_of_a_group_does_not_wait() -> None:
    world = world_with(10, partitions=20)
    async with world.one_member(max_poll_records=5_000) as (_, member):
        joined_s = now_s()
        deliveries = await member.take(200)
        # The store takes 1 ms a call; a look takes as long and comes while Kafka is asked.
        assert now_s() - joined_s < 0.1
        assert len(world.log.describes) <= 5
        await accept(member, *deliveries)


@virtual
async def test_a_re_read_of_a_topic_made_again_is_not_used() -> None:
    world = world_with(10)
    async with world.one_delivery(10, max_poll_records=50) as (coordinator, member, held):
        actor_of(coordinator, "orders").cache.clear()
        await asyncio.sleep(SILENCE_S * 2)
        world.make_again(30)
        await member.acknowledge(held, AcknowledgeType.RELEASE)
        deliveries = await member.take(30)
        assert held.key.topic_id not in {d.key.topic_id for d in deliveries}
        await accept(member, *deliveries)


@virtual
async def test_a_log_that_is_shorter_because_it_is_another_one_voids_nothing() -> None:
    async with quiet() as (world, _, member):
        (row,) = world.store.list_partitions("g")
        world.log.describe_failures = 1_000
        world.make_again(5)
        await asyncio.sleep(10)
        assert world.store.list_partitions("g")[0].state_epoch == row.state_epoch
        world.log.describe_failures = 0
        (delivery,) = await member.take(5)
        assert delivery.key.topic_id != row.key.topic_id
        await member.acknowledge(delivery)
