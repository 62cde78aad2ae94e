"""Changes that the store refuses, today and tomorrow: only their share-partition stands still."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from sharecoord.core.changes import CommitBatch, CommitResult
from sharecoord.core.letters.dead_letters import PAYLOAD_HEADER
from sharecoord.errors import InternalError, StoreFencedError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.partition.load import FIRST_S, GOOD_S, MAX_S, Load
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.testing.ledger import Ledger
from sharecoord.testing.virtual_time import virtual
from tests.unit.admin.support import INFO
from tests.unit.runtime.test_dead_letters import arrived, letters_world, outbox, reject, text
from tests.unit.runtime.test_kept_payloads import keeping_world, kept, release
from tests.unit.runtime.worlds import accept, until
from tests.world import World, running

LARGE = b"x" * 2_000
MOST_BYTES = 1_000
"""So much the store takes in one row."""


def test_waits_grow_to_a_bound_and_begin_anew_after_a_good_time() -> None:
    refusals, refused = Load(), InternalError("a row that no database takes")
    assert refusals.wait_s(StoreFencedError("another came first"), 0.0) == 0.0
    now_s, waits = 0.0, []
    for _ in range(12):
        waits.append(refusals.wait_s(refused, now_s))
        now_s += waits[-1] + 0.01
    assert waits[:3] == [FIRST_S, 2 * FIRST_S, 4 * FIRST_S]
    assert waits[-2:] == [MAX_S, MAX_S]
    assert refusals.wait_s(refused, now_s + GOOD_S) == FIRST_S


def world_of_large_records(records: int = 0, *, once: str = "false") -> World:
    """So many small records, then a large one."""
    world = letters_world(records, exactly_once=once)
    world.ledger = Ledger(values_are_offsets=False)
    world.log.append("orders", 1, value=LARGE)
    return world


def refuse_letters(world: World) -> list[int]:
    """The store takes no row of a dead letter of partition 1; returns when it refused one."""
    commit, refused = world.store.commit, list[int]()

    def refuse(batch: CommitBatch) -> CommitResult:
        if any(part.partition_id == 1 and part.dead_letters for part in batch.partitions):
            if len(batch.partitions) == 1:
                refused.append(len(refused))
            raise InternalError("a row that no database takes")
        return commit(batch)

    world.store.commit = refuse  # type: ignore[method-assign]
    return refused


@virtual
async def test_what_is_refused_for_ever_is_tried_ever_more_seldom_and_holds_nobody_up() -> None:
    world = letters_world(1, partitions=2)
    world.defaults["share.delivery.count.limit"] = "1"
    world.ledger = Ledger(delivery_limit=1)
    async with running(world) as coordinator:
        refused = refuse_letters(world)
        member = await world.joined(coordinator, max_poll_records=100)
        first, second = await member.take(2)
        place = next(d for d in (first, second) if d.key.partition == 0)
        await member.settle(next(d for d in (first, second) if d is not place))
        # Nobody settles it: its lock ends, that was its last delivery, and its letter is refused.
        with structlog.testing.capture_logs():
            for _ in range(5):
                await asyncio.sleep(60)
                member.joined_group.polled(member.joined_session)
        assert 5 < len(refused) < 30
        board = StatusBoard()
        board.update(coordinator)
        assert board.latest is not None
        assert {p.partition: p.refused for p in board.latest.partitions} == {0: True, 1: False}
        (group,) = await Admin(coordinator, INFO).describe_groups(["g"])
        reasons = {view.partition: view.stopped_reason for view in group.partitions}
        assert "the store refuses its changes; again in 30 s" in reasons[0]
        assert "a row that no database takes" in reasons[0]
        assert reasons[1] == ""
        world.log.append("orders", 5, partition=1)
        (delivery,) = await member.take(5)
        await member.settle(delivery)
        del world.store.commit
        await asyncio.sleep(MAX_S + 5)
        assert len(arrived(world)) == 1
        board.update(coordinator)
        assert not any(place.refused for place in board.latest.partitions)


@pytest.mark.parametrize("once", ["false", "true"])
@virtual
async def test_a_letter_that_the_store_does_not_take_goes_to_its_topic_all_the_same(
    once: str,
) -> None:
    world = world_of_large_records(1, once=once)
    async with running(world) as coordinator:
        world.store.payload_max_bytes = MOST_BYTES
        member = await world.joined(coordinator, max_poll_records=100)
        for delivery in await member.take(2):
            await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 2, step_s=0.01)
        small, large = arrived(world)
        assert [text(each, PAYLOAD_HEADER) for each in (small, large)] == ["whole", "whole"]
        assert large.value == LARGE
        assert outbox(world) == []


@virtual
async def test_of_such_a_letter_a_crash_leaves_the_headers() -> None:
    world = world_of_large_records()
    world.dead_letters.set_silent(silent=True)
    coordinator = await world.start()
    world.store.payload_max_bytes = MOST_BYTES
    member, delivery = await world.handed(coordinator, 1, max_poll_records=100)
    await reject(member, delivery)
    assert outbox(world) == [0]
    await world.kill(coordinator)
    world.dead_letters.set_silent(silent=False)
    async with running(world):
        await until(lambda: len(arrived(world)) == 2, step_s=0.01)
        # What was under way arrives as well.
        assert [text(each, PAYLOAD_HEADER) for each in arrived(world)] == ["whole", "gone"]
        assert [each.value for each in arrived(world)] == [LARGE, None]


@virtual
async def test_what_neither_store_nor_topic_take_leaves_the_headers() -> None:
    world = world_of_large_records()
    world.dead_letters.most_bytes = MOST_BYTES
    async with running(world) as coordinator:
        world.store.payload_max_bytes = MOST_BYTES
        member, delivery = await world.handed(coordinator, 1, max_poll_records=100)
        await reject(member, delivery)
        await until(lambda: world.start_offset("g", "orders") == 1, step_s=0.01)
        assert [text(each, PAYLOAD_HEADER) for each in arrived(world)] == ["gone"]
        assert outbox(world) == []


@virtual
async def test_a_record_that_the_store_does_not_take_waits_without_being_kept() -> None:
    world = keeping_world(1, any_values=True)
    world.log.append("orders", 1, value=LARGE)
    async with running(world) as coordinator:
        world.store.payload_max_bytes = MOST_BYTES
        member = await world.joined(coordinator, max_poll_records=100)
        for delivery in await member.take(2):
            await release(member, delivery, 2_000)
        assert kept(world) == [0]
        (group,) = await Admin(coordinator, INFO).describe_groups(["g"])
        assert group.partitions[0].payloads_not_kept == 1
        await accept(member, *await member.take(2, timeout_s=30))
