"""What a group may hold in memory is divided: who takes more than its part harms nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from sharecoord.errors import LimitExceededError, UnknownMemberError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.kernel.budget import MemoryLimits
from sharecoord.runtime.memory import watch as memory_module
from sharecoord.runtime.memory.stalled_streams import STALLED_AFTER_S
from sharecoord.runtime.memory.use import MemoryLevel, use_of
from sharecoord.runtime.memory.watch import LOOK_INTERVAL_S, RESERVE_BYTES, RESERVES_RATIO
from sharecoord.testing import fake_log
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.small_memory import (
    LIMIT_BYTES,
    READ_BYTES,
    RECORD_BYTES,
    level_of,
    limited,
    small_reads,
    total_now,
    world_of,
)
from tests.unit.runtime.worlds import accept, now_s, offsets, until
from tests.world import TOPICS, World, actor_of

__all__ = ["small_reads"]

SOON_S = 3.0
"""Work of a group that is not held up: up to a thousand commits of 1 ms, and a few looks."""


def used(coordinator: Coordinator, group_id: str) -> int:
    """What a group has in memory."""
    return use_of(coordinator.groups[group_id]).used_bytes


async def join(
    world: World, coordinator: Coordinator, group_id: str, *, credit: int = 1 << 40
) -> FakeMember:
    """The member of a group of its own."""
    member = world.member(f"member-of-{group_id}")
    await member.join(coordinator, group_id, TOPICS, max_poll_records=20, credit=credit)
    return member


async def work_off(member: FakeMember, count: int) -> float:
    """Accepts so many records; returns how long it took."""
    began_s, seen = now_s(), 0
    while seen < count:
        delivery = await member.next_delivery(timeout_s=600)
        seen += delivery.records
        await member.settle(delivery)
    return now_s() - began_s


async def works_off(
    world: World, coordinator: Coordinator, groups: Sequence[str], count: int = 300
) -> None:
    """Each of these groups works off so many records as if it were alone."""
    members = [await join(world, coordinator, group) for group in groups]
    took_s = await asyncio.gather(*(work_off(member, count) for member in members))
    assert max(took_s) < SOON_S


async def fill(world: World, coordinator: Coordinator, group_id: str) -> FakeMember:
    """A group that reads what nobody takes, until it is held back."""
    member = await join(world, coordinator, group_id, credit=0)
    await until(lambda: level_of(coordinator) is MemoryLevel.READS_STOPPED, step_s=0.01)
    return member


@virtual
async def test_a_group_alone_has_all_and_one_that_comes_later_its_part() -> None:
    world = world_of(3_000)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        greedy = await fill(world, coordinator, "greedy")
        assert used(coordinator, "greedy") >= 0.80 * LIMIT_BYTES
        later = await join(world, coordinator, "later")
        assert await work_off(later, 3_000) < 2 * SOON_S
        assert actor_of(coordinator, "orders", group_id="greedy").log.held_back
        assert not actor_of(coordinator, "orders", group_id="later").log.held_back
        assert total_now(coordinator) <= LIMIT_BYTES
        # Nothing is lost of what was held back.
        greedy.joined_session.credit.records = 1 << 40
        greedy.joined_group.dispatcher.wake_all()
        await work_off(greedy, 3_000)


@virtual
async def test_one_greedy_group_among_ten() -> None:
    world = world_of(1_000)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        await fill(world, coordinator, "greedy")
        await works_off(world, coordinator, [f"g{number}" for number in range(9)], 1_000)
        assert used(coordinator, "greedy") <= 0.80 * LIMIT_BYTES


@virtual
async def test_more_partitions_than_fit_into_memory_take_turns() -> None:
    world = world_of(300, 300, 300)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        await fill(world, coordinator, "greedy")
        groups = [f"g{number}" for number in range(9)]
        members = [await join(world, coordinator, group) for group in groups]
        # 30 reads of 50 kB come together, which is more than the limit.
        took_s = await asyncio.gather(*(work_off(member, 900) for member in members))
        assert max(took_s) < 20 * SOON_S


@virtual
async def test_ten_greedy_groups_have_equal_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_log, "CHUNK_RECORDS_MAX", 10)
    read_bytes = 10 * RECORD_BYTES
    world = world_of(1_500, 1_500)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        groups = [f"g{number}" for number in range(10)]
        for group in groups:
            await join(world, coordinator, group, credit=0)
        await asyncio.sleep(5)
        parts = [used(coordinator, group) for group in groups]
        assert sum(parts) <= LIMIT_BYTES
        assert min(parts) >= 0.75 * LIMIT_BYTES / 10 - read_bytes
        assert max(parts) <= 0.95 * LIMIT_BYTES / 10 + 2 * read_bytes
        # Each works on with what it has.
        members = [world.members[f"member-of-{group}"] for group in groups]
        for member in members:
            member.joined_session.credit.records = 1 << 40
            member.joined_group.dispatcher.wake_all()
        await asyncio.gather(*(work_off(member, 3_000) for member in members))


@virtual
async def test_a_group_that_needs_little_leaves_its_part_to_others() -> None:
    world = world_of(3_000)
    world.log.create("few", 1)
    world.log.append("few", 30)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        modest = world.member("modest")
        await modest.join(coordinator, "modest", ("few",), credit=0)
        await fill(world, coordinator, "greedy")
        await asyncio.sleep(1)
        assert used(coordinator, "modest") == 30 * RECORD_BYTES
        assert used(coordinator, "greedy") >= 0.75 * LIMIT_BYTES
        assert not actor_of(coordinator, "few", group_id="modest").log.held_back


@pytest.mark.parametrize("filled", [0.96, 1.0, 1.5])
@virtual
async def test_send_buffers_that_fill_everything_stop_their_own_group_alone(filled: float) -> None:
    world = world_of(300)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        deaf = await join(world, coordinator, "deaf", credit=0)
        deaf.unsent_bytes = int(filled * LIMIT_BYTES)
        coordinator.memory.look()
        assert level_of(coordinator) is MemoryLevel.ACQUIRING_STOPPED
        second = world.member("second")
        await second.join(coordinator, "deaf", TOPICS)
        await works_off(world, coordinator, ["one", "two"])
        assert not second.deliveries
        assert coordinator.groups["deaf"].budget.acquiring_stopped
        assert not coordinator.groups["one"].budget.acquiring_stopped
        deaf.unsent_bytes = 0
        await work_off(second, 300)


@virtual
async def test_above_the_limit_a_group_reads_up_to_its_reserve() -> None:
    world = world_of(3_000)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        deaf = await join(world, coordinator, "deaf", credit=0)
        deaf.unsent_bytes = 2 * LIMIT_BYTES
        await join(world, coordinator, "idle", credit=0)
        await asyncio.sleep(5)
        reserve = LIMIT_BYTES * RESERVES_RATIO / 2
        assert reserve < RESERVE_BYTES
        # A growth of a thirty-second of the limit is looked at; what comes meanwhile is extra.
        slack = LIMIT_BYTES // memory_module.LOOKS_PER_LIMIT + 2 * READ_BYTES
        assert READ_BYTES <= used(coordinator, "idle") <= reserve + slack


@virtual
async def test_redelivery_goes_on_beside_a_group_that_has_filled_the_caches() -> None:
    world = world_of(300)
    world.log.create("few", 1)
    world.log.append("few", 60)
    world.memory_bytes = 400 * RECORD_BYTES
    async with limited(world, MemoryLimits(100 * LIMIT_BYTES)) as coordinator:
        for number in range(2):
            hoarder = world.member(f"hoarder-{number}")
            await hoarder.join(coordinator, f"hoards-{number}", TOPICS, max_poll_records=300)
            await hoarder.take(300)
        other = world.member("other")
        await other.join(coordinator, "other", ("few",), max_poll_records=60)
        held = await other.take(60)
        await asyncio.sleep(2 * LOOK_INTERVAL_S)
        for topic in ("orders", "few"):
            world.log.append(topic, 50)
        await asyncio.sleep(1)
        actor = actor_of(coordinator, "few", group_id="other")
        assert actor.cache.find(offsets(*held)[0]), "its own payloads are within its part"
        hoarded = actor_of(coordinator, "orders", group_id="hoards-0").cache
        assert hoarded.size_bytes <= 200 * RECORD_BYTES


# -- streams that nobody reads --------------------------------------------------------------------


@virtual
async def test_a_stream_that_is_not_read_is_ended_and_its_locks_stay() -> None:
    world = world_of(20)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        deaf = await join(world, coordinator, "g")
        (held,) = await deaf.take(20)
        deaf.unsent_bytes, deaf.unsent_since_s = 20_000, now_s()
        await asyncio.sleep(STALLED_AFTER_S - 1)
        assert not deaf.ended
        session = deaf.joined_session
        await asyncio.sleep(2)
        assert isinstance(deaf.ended, LimitExceededError)
        assert "member 'member-of-g' of group 'g'" in deaf.ended.message
        assert "20000 bytes" in deaf.ended.message
        assert session.channel is None
        # The session goes on: it may come back with what it holds.
        window = actor_of(coordinator, "orders").partition
        assert window is not None
        assert session.member_id in coordinator.groups["g"].sessions
        assert held.records == 20
        # What gRPC has still counts, until it is gone.
        assert used_in_all(coordinator) >= 20_000
        deaf.unsent_bytes = 0
        assert used_in_all(coordinator) < 20_000 + LIMIT_BYTES // 10
        other = await world.joined(coordinator, "other", max_poll_records=20)
        again = await other.take(20, timeout_s=60)
        assert offsets(*again) == offsets(held)
        await accept(other, *again)
        await asyncio.sleep(60)
        with pytest.raises(UnknownMemberError):
            coordinator.groups["g"].session(session.member_id)


def used_in_all(coordinator: Coordinator) -> int:
    coordinator.memory.look()
    return coordinator.memory.figures.send_buffers


@virtual
async def test_a_slow_reader_is_left_alone() -> None:
    world = world_of(20)
    async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
        slow = await join(world, coordinator, "g")
        slow.unsent_bytes = 100_000
        for _ in range(10):
            slow.unsent_since_s = now_s()
            await asyncio.sleep(STALLED_AFTER_S - 1)
        assert not slow.ended
        slow.unsent_bytes = 0


# -- looks ----------------------------------------------------------------------------------------


@virtual
async def test_a_look_that_fails_is_told_of_and_the_next_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = world_of(3_000)
    with structlog.testing.capture_logs() as lines:
        async with limited(world, MemoryLimits(LIMIT_BYTES)) as coordinator:
            with monkeypatch.context() as patch:
                patch.setattr(memory_module, "use_of", lambda _: 1 / 0)
                await join(world, coordinator, "g", credit=0)
                await asyncio.sleep(1)
            await until(lambda: level_of(coordinator) is MemoryLevel.READS_STOPPED, step_s=0.01)
    failed = [line for line in lines if line["event"].startswith("a look at memory failed")]
    assert len(failed) >= 3
    assert {line["log_level"] for line in failed} == {"error"}
