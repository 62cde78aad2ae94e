"""Topics that are deleted and made again, logs that lose their end or their start (design 5.12)."""

from __future__ import annotations

import asyncio

from sharecoord.core.share_partition import HeldRange
from sharecoord.core.states import AcknowledgeOutcome
from sharecoord.runtime.partition_actor import ActorState
from sharecoord.testing.harness import running
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import offsets, until, world_with

TOPICS = ("orders",)


@virtual
async def test_a_topic_re_created_while_running_starts_at_0() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", TOPICS, max_poll_records=50)
        (old,) = await member.take(10)
        world.log.delete("orders")
        world.log.create("orders")
        world.log.append("orders", 5)
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
    member = world.member("m")
    await member.join(first, "g", TOPICS)
    await asyncio.sleep(1)
    await world.kill(first)
    world.log.delete("orders")
    world.log.create("orders")
    world.log.append("orders", 3)
    async with running(world) as second:
        again = world.member("n")
        await again.join(second, "g", TOPICS, max_poll_records=50)
        (delivery,) = await again.take(3)
        assert offsets(delivery) == [0, 1, 2]
        await again.acknowledge(delivery)


@virtual
async def test_a_deleted_topic_is_given_up_and_found_again() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", TOPICS, max_poll_records=50)
        await member.acknowledge((await member.take(10))[0])
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
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", TOPICS, max_poll_records=10)
        (old,) = await member.take(10)
        before = world.store.list_partitions("g")[0].state_epoch
        world.log.truncate("orders", 6)
        actor = coordinator.groups["g"].partitions["orders", 0]
        await until(lambda: actor.regressed_since_ms is not None, step_s=0.1)
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


@virtual
async def test_a_log_end_that_only_lags_for_a_moment_voids_nothing() -> None:
    world = world_with(10)
    first = await world.start()
    member = world.member("m")
    await member.join(first, "g", TOPICS, max_poll_records=10)
    (held,) = await member.take(10)
    await world.kill(first)
    log = world.log.log("orders")
    log.log_end = 8
    async with running(world) as second:
        book = [
            ("orders", held.key.topic_id, 0, HeldRange(r.first, r.last, r.lock_token))
            for r in held.ranges
        ]
        joining = asyncio.ensure_future(
            member.join(second, "g", TOPICS, max_poll_records=10, lock_book=book)
        )
        await asyncio.sleep(2)
        log.log_end = 10
        await joining
        await until(
            lambda: second.groups["g"].partitions["orders", 0].state is ActorState.ACTIVE,
            step_s=0.1,
        )
        assert not (await member.acknowledge(held)).exceptions


@virtual
async def test_the_watch_counts_what_retention_took() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", TOPICS, max_poll_records=4)
        (held,) = await member.take(4)
        member.disconnect()
        world.log.move_log_start("orders", 8)
        await asyncio.sleep(31)
        window = coordinator.groups["g"].partitions["orders", 0].partition
        assert window is not None
        assert window.log_start_offset == 8
        await member.join(coordinator, "g", TOPICS, max_poll_records=4)
        await member.take(2)
        assert held.records == 4
