"""A redrive delivers what was selected, once, to the members of the topic it came from."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from sharecoord.core.changes import PartitionKey, PartitionRow
from sharecoord.core.letters.dead_letters import ID_HEADER, KAFKA_PREFIX
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotFoundError,
    InvalidRequestError,
    LimitExceededError,
    StoreUnavailableError,
)
from sharecoord.ports import TopicInfo
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.letters.lanes import SPANS_MAX, LaneSelection
from sharecoord.runtime.partition.bounds import Bound
from sharecoord.store.memory.database import MemoryPartition
from sharecoord.store.memory.store import MemoryStore
from sharecoord.testing.virtual_time import virtual
from tests.unit.admin.support import INFO
from tests.unit.runtime.worlds import Crash, counts, doing, now_s, offsets, until, world_with
from tests.world import TOPICS, World, running

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
LANE = "dead/orders"


def lane_world(letters: int = 20, records: int = 0, **defaults: str) -> World:
    """Topic `orders`, and a topic `dead` with letters of it."""
    world = world_with(records, **defaults)
    world.log.create("dead")
    for offset in range(letters):
        headers = [
            ("own", b"1"),
            (KAFKA_PREFIX + "topic", b"orders"),
            (KAFKA_PREFIX + "partition", b"0"),
            (KAFKA_PREFIX + "offset", str(1000 + offset).encode()),
        ]
        world.log.append("dead", 1, key=f"k{offset % 3}".encode(), headers=headers)
    return world


def selection(world: World, *runs: tuple[int, int], **more: bytes) -> LaneSelection:
    return LaneSelection("dead", world.log.topic_id("dead"), 0, "orders", runs, **more)


def lanes_of(world: World) -> list[tuple[PartitionKey, MemoryPartition]]:
    parts = world.database.partitions.values()
    return [(part.row.key, part) for part in parts if part.row.key.lane]


@virtual
async def test_selected_letters_go_to_the_members_of_their_topic() -> None:
    world = lane_world()
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        result = await coordinator.lanes.redrive(
            "g", [selection(world, (2, 4), (9, 9))], run_id="r1"
        )
        assert (result.records, result.marked, result.under_way) == (4, 0, 0)
        deliveries = await member.take(4)
        assert offsets(*deliveries) == [2, 3, 4, 9]
        assert counts(*deliveries) == {1}
        assert {delivery.key.place for delivery in deliveries} == {(LANE, 0)}
        for delivery in deliveries:
            await member.settle(delivery, ACCEPT)
        assert world.start_offset("g", LANE) == 10
        world.ledger.check()


@virtual
async def test_a_second_redrive_takes_nothing_unless_asked_to() -> None:
    world = lane_world()
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        await coordinator.lanes.redrive("g", [selection(world, (0, 2))], run_id="r1")
        for delivery in await member.take(3):
            await member.settle(delivery, ACCEPT)
        second = await coordinator.lanes.redrive("g", [selection(world, (1, 3))], run_id="r2")
        assert (second.records, second.marked) == (1, 2)
        (delivery,) = await member.take(1)
        assert offsets(delivery) == [3]
        await member.settle(delivery, ACCEPT)
        world.ledger.check()
        ((lane, _),) = lanes_of(world)
        world.ledger.reset(lane)
        third = await coordinator.lanes.redrive(
            "g", [selection(world, (1, 1))], run_id="r3", again=True
        )
        assert third.records == 1
        (delivery,) = await member.take(1)
        assert (offsets(delivery), counts(delivery)) == ([1], {1})
        marks = await coordinator.lanes.marks("g", "dead", world.log.topic_id("dead"), 0)
        assert [(m.first_offset, m.last_offset, m.kind, m.run_id) for m in marks] == [
            (0, 2, "redriven", "r1"),
            (1, 1, "redriven", "r3"),
            (3, 3, "redriven", "r2"),
        ]


@virtual
async def test_discarded_letters_stay_away_unless_asked_for() -> None:
    world = lane_world()
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        done = await coordinator.lanes.discard("g", [selection(world, (0, 4))], run_id="d")
        assert done.records == 5
        redriven = await coordinator.lanes.redrive("g", [selection(world, (3, 6))], run_id="r")
        assert (redriven.records, redriven.marked) == (2, 2)
        assert offsets(*await member.take(2)) == [5, 6]
        again = await coordinator.lanes.redrive(
            "g", [selection(world, (4, 4))], run_id="r2", again=True
        )
        assert again.records == 1
        assert offsets(*await member.take(1)) == [4]


@virtual
async def test_a_redrive_on_top_of_another_leaves_its_locks_alone() -> None:
    world = lane_world()
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        await coordinator.lanes.redrive("g", [selection(world, (5, 9))], run_id="r1")
        held = await member.take(5)
        more = await coordinator.lanes.redrive(
            "g", [selection(world, (0, 12))], run_id="r2", again=True
        )
        assert (more.records, more.under_way) == (8, 5)
        for delivery in held:
            result = await member.settle(delivery, ACCEPT)
            assert (result.error, result.exceptions) == (None, [])
        assert sorted(offsets(*await member.take(8))) == [0, 1, 2, 3, 4, 10, 11, 12]
        world.ledger.check()


@virtual
async def test_nobody_else_gets_letters() -> None:
    world = lane_world(records=5)
    async with world.one_delivery(5, max_poll_records=100) as (coordinator, member, plain):
        others = {}
        for group, topics in (("h", ("orders",)), ("g", ("dead",)), ("k", ("dead",))):
            other = others[group] = world.member(f"other-{group}")
            await other.join(coordinator, group, topics, max_poll_records=100)
        await coordinator.lanes.redrive("g", [selection(world, (2, 3))], run_id="r1")
        assert offsets(*await member.take(2)) == [2, 3]
        await until(lambda: len(others["k"].deliveries) > 0, step_s=0.01)
        assert offsets(*await others["h"].take(5)) == offsets(plain)
        assert {d.key.name for d in others["g"].deliveries} == {"dead"}
        assert {d.key.name for d in others["k"].deliveries} == {"dead"}
        await member.settle(plain, ACCEPT)
        assert world.start_offset("g", "orders") == 5


@virtual
async def test_a_rate_is_kept() -> None:
    world = lane_world(30)
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        began_s = now_s()
        await coordinator.lanes.redrive("g", [selection(world, (0, 29))], run_id="r", rate_per_s=10)
        got = 0
        while got < 30:
            (delivery,) = await member.take(1)
            got += delivery.records
            assert got <= (now_s() - began_s) * 10 + 2
            await member.settle(delivery, ACCEPT)
        assert 2.7 <= now_s() - began_s <= 3.5


def test_a_rate_is_waited_for_only_while_it_is_spent() -> None:
    """Else a lane that has nobody to take its records would wake each millisecond."""
    bound = Bound(rate_per_s=10, now_ms=0)
    now_ms = 1000
    while allowed := bound.allows(100, now_ms):
        assert bound.waits_until_ms(now_ms) == []
        bound.took(allowed)
    (until_ms,) = bound.waits_until_ms(now_ms)
    assert now_ms < until_ms <= now_ms + 100
    assert bound.waits_until_ms(until_ms) == []
    assert bound.allows(100, until_ms) == 1


@virtual
async def test_what_fails_again_is_another_letter_of_the_same_record() -> None:
    world = lane_world()
    world.dead_letters.topics["dead"] = []
    world.defaults |= {
        "errors.deadletterqueue.topic.name": "dead",
        "errors.deadletterqueue.copy.record.enable": "true",
    }
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        await coordinator.lanes.redrive("g", [selection(world, (7, 7))], run_id="r")
        (delivery,) = await member.take(1)
        await member.settle(delivery, REJECT)
        await until(lambda: world.dead_letters.topics["dead"], step_s=0.01)
        (message,) = world.dead_letters.topics["dead"]
        said = [(name, (value or b"").decode()) for name, value in message.headers]
        assert [name for name, _ in said if name == KAFKA_PREFIX + "offset"] == [
            KAFKA_PREFIX + "offset"
        ]
        headers = dict(said)
        assert headers[KAFKA_PREFIX + "topic"] == "orders"
        assert headers[KAFKA_PREFIX + "partition"] == "0"
        assert headers[KAFKA_PREFIX + "offset"] == "1007"
        assert headers["own"] == "1"
        assert f":{world.log.topic_id('dead')}:0:7:" in headers[ID_HEADER]
        await until(lambda: world.start_offset("g", LANE) == 8, step_s=0.01)


@virtual
async def test_letters_that_the_topic_has_no_more_are_finished() -> None:
    world = lane_world()
    async with world.one_member(max_poll_records=100) as (coordinator, member):
        world.log.compact("dead", [3])
        world.log.move_log_start("dead", 2)
        await coordinator.lanes.redrive("g", [selection(world, (0, 5))], run_id="r")
        deliveries = await member.take(3)
        assert offsets(*deliveries) == [2, 4, 5]
        for delivery in deliveries:
            await member.settle(delivery, ACCEPT)
        assert world.start_offset("g", LANE) == 6


@virtual
async def test_what_was_not_handed_out_can_be_taken_back() -> None:
    world = lane_world()
    async with running(world) as coordinator:
        await coordinator.groups.open("g")
        await coordinator.lanes.redrive("g", [selection(world, (0, 9))], run_id="r")
        member, held = await world.handed(coordinator, 3, credit=3)
        assert await coordinator.lanes.withdraw("g", "dead") == 7
        await member.settle(held, ACCEPT)
        assert world.start_offset("g", LANE) == 10
        again = await coordinator.lanes.redrive("g", [selection(world, (0, 9))], run_id="r2")
        assert (again.records, again.marked) == (7, 3)


@virtual
async def test_a_topic_that_was_made_again_has_none_of_its_letters() -> None:
    world = lane_world()
    async with running(world) as coordinator:
        former = selection(world, (0, 5))
        await coordinator.groups.open("g")
        world.log.delete("dead")
        world.log.create("dead")
        world.log.append("dead", 20)
        await coordinator.lanes.redrive("g", [former], run_id="r")
        member = await world.joined(coordinator, max_poll_records=100)
        await coordinator.lanes.look()
        rows = [part.row for key, part in lanes_of(world)]
        assert [row.closed for row in rows] == [True]
        assert member.deliveries == []
        assert (LANE, 0) not in coordinator.groups["g"].partitions


@virtual
@pytest.mark.parametrize("whole_group", [False, True])
async def test_a_lane_that_is_deleted_while_it_is_opened_is_not_made_again(
    *, whole_group: bool
) -> None:
    world = lane_world()
    async with running(world) as coordinator:
        admin = Admin(coordinator, INFO)
        await coordinator.groups.open("g")
        await coordinator.lanes.redrive("g", [selection(world, (0, 5))], run_id="r")
        coordinator.groups["g"].forget([LANE], "as if this coordinator had not opened it yet")
        world.log.describe_s = 0.05
        looking = asyncio.create_task(coordinator.lanes.look())
        await asyncio.sleep(0.02)
        if whole_group:
            assert await admin.delete_groups(["g"]) == {"g": None}
        else:
            assert await admin.delete_offsets("g", ["orders"]) == {"orders": None}
        await looking
        await asyncio.sleep(1)
        assert lanes_of(world) == []
        assert ("g" in world.database.groups) != whole_group
        if not whole_group:
            member = await world.joined(coordinator, max_poll_records=100)
            await asyncio.sleep(5)
            assert member.deliveries == []


@virtual
async def test_a_lane_that_was_emptied_for_its_outbox_reads_no_letters() -> None:
    world = lane_world(auto_offset_reset="earliest")
    async with running(world) as coordinator:
        await coordinator.groups.open("g")
        await coordinator.lanes.redrive("g", [selection(world, (0, 5))], run_id="r")
        ((_, part),) = lanes_of(world)
        group = coordinator.groups["g"]
        await until(lambda: (LANE, 0) in group.partitions, step_s=0.01)
        # As a deletion leaves it that finds dead letters of the lane waiting.
        group.forget([LANE], "its offsets were deleted")
        part.clear(None)
        part.row = replace(part.row, stops_at=None)
        group.topic_found(LANE, TopicInfo(world.log.topic_id("dead"), (0,)))
        member = await world.joined(coordinator, max_poll_records=100)
        await until(lambda: (LANE, 0) in group.partitions, step_s=0.01)
        await asyncio.sleep(5)
        world.log.append("dead", 5)
        await asyncio.sleep(5)
        assert member.deliveries == []


@virtual
@Crash.at_calls(range(5, 17))
async def test_a_crash_at_any_call_to_the_store_loses_and_doubles_none(crash: Crash) -> None:
    world = lane_world(8)

    async def works(coordinator: Coordinator, name: str) -> None:
        member = await world.joined(coordinator, name, max_poll_records=2)
        await member.work()

    async def redrives(coordinator: Coordinator) -> None:
        await coordinator.groups.open("g")
        await coordinator.lanes.redrive("g", [selection(world, (0, 5))], run_id="r")

    await crash.hits(world, lambda first: works(first, "m1"), redrives)
    async with running(world) as coordinator:
        await redrives(coordinator)
        async with doing(works(coordinator, "m2")):
            # The locks of the one that was killed with its coordinator end first.
            await until(lambda: world.start_offset("g", LANE) == 6, step_s=0.1)
    lives = [world.ledger.life(key, offset) for key, _ in lanes_of(world) for offset in range(6)]
    assert all(life.arrivals for life in lives)
    world.ledger.check()


@pytest.mark.parametrize("failures", [0, 2])
@virtual
async def test_members_keep_locks_of_lanes_over_a_restart(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the store does not answer at first."""
    world = lane_world()
    coordinator = await world.start()
    member = await world.joined(coordinator, max_poll_records=100)
    await coordinator.lanes.redrive("g", [selection(world, (0, 3))], run_id="r")
    (delivery,) = await member.take(4)
    await world.kill(coordinator)
    list_lanes, calls = MemoryStore.list_lanes, itertools.count()

    def fails_at_first(store: MemoryStore) -> list[PartitionRow]:
        if next(calls) < failures:
            raise StoreUnavailableError("away for a moment")
        return list_lanes(store)

    monkeypatch.setattr(MemoryStore, "list_lanes", fails_at_first)
    async with running(world) as second:
        assert await member.join(second, "g", TOPICS, max_poll_records=100) == []
        result = await member.settle(delivery, ACCEPT)
        assert (result.error, result.exceptions) == (None, [])
        assert world.start_offset("g", LANE) == 4
        world.ledger.check()


BAD = [
    ({"spans": ()}, "has no runs"),
    ({"spans": ((3, 2),)}, "not in order"),
    ({"spans": ((0, 3), (3, 4))}, "not in order"),
    ({"spans": ((-1, 3),)}, "not in order"),
    ({"source_topic": ""}, "source_topic"),
    ({"keys": b"x"}, "1 bytes, not 8"),
]


@virtual
@pytest.mark.parametrize(("change", "match"), BAD)
async def test_bad_selections_are_refused(change: dict[str, Any], match: str) -> None:
    world = lane_world()
    async with running(world) as coordinator:
        await coordinator.groups.open("g")
        bad = replace(selection(world, (0, 0)), **change)
        with pytest.raises(InvalidRequestError, match=match):
            await coordinator.lanes.redrive("g", [bad], run_id="r")


@virtual
async def test_what_can_not_be_redriven_is_said() -> None:
    world = lane_world()
    async with running(world) as coordinator:
        good = selection(world, (0, 3))
        redrive = coordinator.lanes.redrive
        with pytest.raises(GroupNotFoundError, match="'g'"):
            await redrive("g", [good], run_id="r")
        await coordinator.groups.open("g")
        with pytest.raises(InvalidRequestError, match="run_id"):
            await redrive("g", [good], run_id="")
        with pytest.raises(InvalidRequestError, match="twice"):
            await redrive("g", [good, good], run_id="r")
        for rate in (-1, 2_000_000):
            with pytest.raises(InvalidRequestError, match="rate_per_s"):
                await redrive("g", [good], run_id="r", rate_per_s=rate)
        other = replace(good, source_topic="payments")
        with pytest.raises(InvalidRequestError, match="at least 1 for each"):
            await redrive("g", [good, other], run_id="r", rate_per_s=1)
        many = replace(good, spans=[(2 * n, 2 * n) for n in range(SPANS_MAX + 1)])
        with pytest.raises(LimitExceededError, match="in parts"):
            await redrive("g", [many], run_id="r")
    assert lanes_of(world) == []
