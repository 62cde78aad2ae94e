"""Lanes of groups that keep order by key, and of fleets."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sharecoord.core.changes import PartitionKey, PartitionRow
from sharecoord.core.delivery import Delivery
from sharecoord.core.letters.lanes import Marking, MarkKind, Selection
from sharecoord.core.records import key_hashes_of
from sharecoord.errors import InvalidConfigError, InvalidRequestError
from sharecoord.ports import TopicInfo
from sharecoord.runtime.letters.lanes import LaneSelection
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import admin_of, joined_fleet
from tests.unit.runtime.test_lanes import ACCEPT, LANE, lane_world, selection
from tests.unit.runtime.worlds import offsets, until
from tests.world import World, running

OF_ONE = f"{LANE}/0"
"""Its letters come from partition 0 alone."""


def keyed(world: World, *runs: tuple[int, int]) -> LaneSelection:
    keys = [f"k{at % 3}".encode() for first, last in runs for at in range(first, last + 1)]
    return replace(selection(world, *runs, keys=key_hashes_of(keys)), source_partition=0)


def key_of(delivery: Delivery, offset: int) -> bytes | None:
    for chunk, start, stop in delivery.slices:
        found = list(chunk.offsets or range(chunk.first, chunk.last + 1))[start:stop]
        if offset in found:
            assert chunk.keys is not None
            return chunk.keys[start + found.index(offset)]
    raise AssertionError(f"{offset} is not in {delivery}")


class KeyJudge:
    """Which key is out where; two places at once are wrong, and so is another order in a lane."""

    def __init__(self) -> None:
        self.out: dict[bytes, Counter[str]] = {}
        self.last: dict[bytes, int] = {}
        self.seen: Counter[str] = Counter()

    def takes(self, delivery: Delivery) -> None:
        for offset in offsets(delivery):
            key, name = key_of(delivery, offset), delivery.key.name
            assert key is not None
            places = self.out.setdefault(key, Counter())
            places[name] += 1
            assert len(+places) == 1, f"{key!r} is out at {places}"
            if delivery.key.lane:
                assert offset > self.last.get(key, -1), f"{key!r}: {offset} after {self.last[key]}"
                self.last[key] = offset
            self.seen[name] += 1

    def gives_back(self, delivery: Delivery) -> None:
        for offset in offsets(delivery):
            key = key_of(delivery, offset)
            assert key is not None
            self.out[key][delivery.key.name] -= 1


@virtual
async def test_no_key_is_out_in_a_lane_and_elsewhere_at_once() -> None:
    world = lane_world(30, ordering="key")
    for n in range(60):
        world.log.append("orders", 1, key=f"k{n % 3}".encode())
    judge = KeyJudge()
    async with running(world) as coordinator:

        async def works(name: str) -> None:
            member = await world.joined(coordinator, name, max_poll_records=4)
            while True:
                delivery = await member.next_delivery()
                judge.takes(delivery)
                await asyncio.sleep(0.02)
                judge.gives_back(delivery)
                await member.settle(delivery, ACCEPT)

        tasks = [asyncio.create_task(works(f"m{n}")) for n in range(3)]
        await until(lambda: judge.seen["orders"] >= 6, step_s=0.01)
        result = await coordinator.lanes.redrive("g", [keyed(world, (0, 29))], run_id="r")
        assert result.records == 30
        await until(lambda: judge.seen[OF_ONE] == 30 and judge.seen["orders"] == 60, step_s=0.1)
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await until(lambda: world.start_offset("g", OF_ONE) == 30, step_s=0.1)
        await coordinator.lanes.look()
        shared = coordinator.groups["g"].shared_order.keys
        assert shared == {}, "order costs nothing more than before"
        world.ledger.check()


@virtual
async def test_letters_get_their_turn_beside_a_key_with_much_traffic() -> None:
    world = lane_world(3, ordering="key")
    for _ in range(3):
        world.log.append("dead", 1, key=b"hot")
    world.log.append("orders", 4_000, key=b"hot")
    async with world.one_member(max_poll_records=10) as (coordinator, member):
        first = await member.next_delivery()
        letters = selection(world, (3, 5), keys=key_hashes_of([b"hot"] * 3))
        letters = replace(letters, source_partition=0)
        await coordinator.lanes.redrive("g", [letters], run_id="r")
        held, before, found = [first], 0, 0
        while found < 3:
            await member.settle(held.pop(0), ACCEPT)
            while not held:
                delivery = await member.next_delivery()
                held.append(delivery)
                found += delivery.records if delivery.key.lane else 0
                before += 0 if delivery.key.lane else delivery.records
        assert before < 2_000, "long before the topic's own are done"


@virtual
async def test_order_by_key_needs_keys_and_the_partition_of_the_letters() -> None:
    world = lane_world(ordering="key")
    async with running(world) as coordinator:
        await coordinator.groups.open("g")
        good = keyed(world, (0, 3))
        for wanted in (replace(good, keys=None), replace(good, source_partition=None)):
            with pytest.raises(InvalidRequestError, match="must have keys and source_partition"):
                await coordinator.lanes.redrive("g", [wanted], run_id="r")
        assert (await coordinator.lanes.redrive("g", [good], run_id="r")).records == 4


@virtual
async def test_order_by_key_does_not_begin_while_letters_are_under_way_without_it() -> None:
    world = lane_world(30)
    async with running(world) as coordinator:
        await coordinator.groups.open("g")
        admin, by_key = admin_of(coordinator), {"share.ordering": "key"}
        await coordinator.lanes.redrive("g", [selection(world, (0, 29))], run_id="r")
        with pytest.raises(InvalidConfigError, match=r"dead/orders\[0\].*dead-letters withdraw"):
            await admin.alter_group_configs("g", by_key, [])
        await admin.alter_group_configs("g", {"share.ordering": "partition"}, [])
        await coordinator.lanes.withdraw("g", "dead")
        await admin.alter_group_configs("g", by_key, [])
        # What knows its partition keeps any order.
        await coordinator.lanes.redrive("g", [keyed(world, (0, 29))], run_id="r")
        await admin.alter_group_configs("g", {"share.ordering": "unordered"}, [])
        await admin.alter_group_configs("g", by_key, [])


@virtual
@pytest.mark.parametrize("asked", ["a", "b"])
async def test_in_a_fleet_any_coordinator_redrives_and_one_serves(asked: str) -> None:
    world = lane_world()
    for partition in range(1, 8):
        world.log.create("dead", partition + 1)
        world.log.append("dead", 4, partition=partition)
    async with joined_fleet(world, "a", "b", max_poll_records=100) as (fleet, member):
        wanted = [replace(selection(world, (0, 3)), partition=partition) for partition in range(8)]
        result = await fleet.all[asked].lanes.redrive("g", wanted, run_id="r")
        assert result.records == 32
        got: list[tuple[int, int]] = []
        while len(got) < 32:
            delivery = await member.next_delivery()
            got += [(delivery.key.partition, offset) for offset in offsets(delivery)]
            reply = await member.settle(delivery, ACCEPT)
            assert (reply.error, reply.exceptions) == (None, [])
        assert sorted(got) == [(partition, offset) for partition in range(8) for offset in range(4)]
        owners = {
            name
            for name, each in fleet.all.items()
            for place in each.groups["g"].partitions
            if place[0] == LANE
        }
        assert owners == {"a", "b"}
        world.ledger.check()


@virtual
async def test_a_lane_that_comes_while_its_topic_s_other_one_is_opened_is_opened_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = lane_world()
    world.log.create("dead", 2)
    world.log.append("dead", 4, partition=1)
    async with running(world) as coordinator:
        member = await world.joined(coordinator, max_poll_records=100)
        group, topic_id = coordinator.groups["g"], world.log.topic_id("dead")
        for partition in (0, 1):
            key = PartitionKey("g", "dead", topic_id, partition, "orders")
            selection_ = Selection(key, ((0, 3),))
            coordinator.context.store.take_in([selection_], Marking(MarkKind.REDRIVEN, "r"))
        store, others = coordinator.context.store, [TopicInfo(topic_id, (0, 1))]
        open_partitions = store.open_partitions

        def meanwhile(keys: Sequence[PartitionKey]) -> list[PartitionRow]:
            if others:
                group.topic_found(LANE, others.pop())
            return open_partitions(keys)

        monkeypatch.setattr(store, "open_partitions", meanwhile)
        group.topic_found(LANE, TopicInfo(topic_id, (0,)))
        await until(lambda: group.is_open(LANE), step_s=0.01)
        assert (LANE, 1) not in group.partitions, "it came too late to be opened with the other"
        await coordinator.lanes.look()
        got = [delivery.key.partition for delivery in await member.take(8)]
        assert sorted(got) == [0, 1]
