"""Redrives in fleets that keep order by key: letters of a partition go where the partition is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

from sharecoord.core.changes import lane_of
from sharecoord.core.delivery import Delivery
from sharecoord.core.letters.dead_letters import KAFKA_PREFIX
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.records import key_hashes_of
from sharecoord.ports import OffsetQuery
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.fleet import hand_over
from sharecoord.runtime.group.shared_order import LANE_WAIT_MS
from sharecoord.runtime.letters.lanes import LaneSelection
from sharecoord.runtime.letters.plan import LetterCommand
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import fleet_of, joined_fleet
from tests.unit.runtime.test_lanes import ACCEPT, lanes_of
from tests.unit.runtime.test_lanes_order import KeyJudge, key_of
from tests.unit.runtime.worlds import counts, now_s, offsets, until, world_with
from tests.world import TOPICS, World, running

PARTITIONS, LETTERS, RECORDS = 6, 12, 30


def key(partition: int, n: int) -> bytes:
    """Of a source partition: two keys each."""
    return f"{partition}-{n % 2}".encode()


def keyed_world(records: int = RECORDS, **more: str) -> World:
    """`orders`, and in each partition of `dead` letters of two partitions of it."""
    world = world_with(0, partitions=PARTITIONS, ordering="key", **more)
    world.log.create("dead", PARTITIONS)
    for partition in range(PARTITIONS):
        for n in range(records):
            world.log.append("orders", 1, partition=partition, key=key(partition, n))
        for source in (partition, (partition + 1) % PARTITIONS):
            for n in range(LETTERS):
                world.log.append("dead", 1, partition=partition, key=key(source, n))
    return world


def letters_of(world: World) -> Iterator[LaneSelection]:
    """All of them, a selection for each lane."""
    for partition in range(PARTITIONS):
        for at, source in enumerate((partition, (partition + 1) % PARTITIONS)):
            first = at * LETTERS
            keys = key_hashes_of([key(source, n) for n in range(LETTERS)])
            yield LaneSelection(
                "dead",
                world.log.topic_id("dead"),
                partition,
                "orders",
                [(first, first + LETTERS - 1)],
                keys,
                source,
            )


class Judge(KeyJudge):
    """Order holds in each lane; several have letters of one key."""

    def takes(self, delivery: Delivery) -> None:
        self.last = self.lasts.setdefault(str(delivery.key.place), {})
        super().takes(delivery)
        assert counts(delivery) == {1}, "no attempt is burnt"

    def __init__(self) -> None:
        super().__init__()
        self.lasts: dict[str, dict[bytes, int]] = {}

    @property
    def done(self) -> int:
        """Deliveries that were seen, letters and records."""
        return self.seen.total()


class Crew:
    """Members that hold what they get for a while, and insist on their acknowledgements."""

    def __init__(self, world: World, judge: Judge) -> None:
        self.world, self.judge = world, judge
        self._tasks: list[asyncio.Task[None]] = []

    async def join(self, coordinator: Coordinator, *names: str) -> None:
        """They come to one coordinator."""
        for name in names:
            member = self.world.member(name)
            await member.join(coordinator, "g", TOPICS, max_poll_records=4)
            self._tasks.append(asyncio.create_task(self._works(member)))

    async def _works(self, member: FakeMember) -> None:
        while True:
            delivery = await member.next_delivery(timeout_s=600)
            self.judge.takes(delivery)
            await asyncio.sleep(0.02)
            # Whoever gets the key next may hear of it before this one hears that it is settled.
            self.judge.gives_back(delivery)
            while (reply := await member.settle(delivery, ACCEPT)).error is not None:
                assert reply.error.retriable, reply.error
                await asyncio.sleep(0.1)
            assert reply.exceptions == []

    async def leave(self) -> None:
        """They end, and say what went wrong."""
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            assert isinstance(ended, asyncio.CancelledError), ended


async def everything_done(world: World, judge: Judge, crew: Crew) -> None:
    wanted = PARTITIONS * RECORDS + 2 * PARTITIONS * LETTERS
    await until(lambda: judge.done >= wanted, step_s=0.1)
    await asyncio.sleep(60)
    await crew.leave()
    assert judge.done == wanted
    assert judge.seen["orders"] == PARTITIONS * RECORDS
    world.ledger.check()


@pytest.mark.parametrize("together", [1, 50])
def test_order_holds_while_partitions_and_their_letters_move(
    together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hand_over, "MOVED_TOGETHER_MAX", together)

    @virtual
    async def play() -> None:
        world = keyed_world()
        judge = Judge()
        crew = Crew(world, judge)
        async with fleet_of(world, "a", "b") as fleet:
            await crew.join(fleet.all["a"], "m1", "m2")
            await crew.join(fleet.all["b"], "m3", "m4")
            await until(lambda: judge.done >= 10, step_s=0.01)
            done = await fleet.all["b"].lanes.redrive("g", [*letters_of(world)], run_id="r")
            assert done.records == 2 * PARTITIONS * LETTERS
            for name in ("c", "d", "e"):
                seen = judge.done
                await until(lambda seen=seen: judge.done >= seen + 20, step_s=0.01)
                await fleet.add(name)
                assert fleet.owned()[name] or name != "c"
            await fleet.kill("d")
            await fleet.drain("c")
            await everything_done(world, judge, crew)

    play()


@virtual
async def test_who_takes_over_knows_the_keys_that_letters_have_out() -> None:
    world = keyed_world(records=0)
    async with joined_fleet(world, "a", "b", max_poll_records=100) as (fleet, member):
        await until(lambda: sum(map(len, fleet.owned().values())) == PARTITIONS, step_s=0.1)
        letters = [each for each in letters_of(world) if each.partition == each.source_partition]
        await fleet.all["a"].lanes.redrive("g", letters, run_id="r")
        held = await member.take(PARTITIONS * LETTERS)
        for partition in range(PARTITIONS):
            world.log.append("orders", 2, partition=partition, key=key(partition, 0))
            world.log.append("orders", 2, partition=partition, key=b"%d-" % partition)
        others = [d for d in await member.take(2 * PARTITIONS) if not d.key.lane]
        assert {key_of(d, offset) for d in others for offset in offsets(d)} == {
            b"%d-" % n for n in range(PARTITIONS)
        }
        await fleet.kill("b")
        await asyncio.sleep(10)
        assert member.deliveries == [], "the keys of the others are out"
        for delivery in held:
            assert (await member.settle(delivery, ACCEPT)).error is None
        assert len(offsets(*await member.take(2 * PARTITIONS))) == 2 * PARTITIONS


@virtual
async def test_an_operator_s_redrive_goes_by_the_partitions_of_the_letters() -> None:
    world = keyed_world(records=0)
    for partition in range(PARTITIONS):
        headers = [
            (KAFKA_PREFIX + "topic", b"orders"),
            (KAFKA_PREFIX + "partition", b"%d" % partition),
            (KAFKA_PREFIX + "offset", b"7"),
            (KAFKA_PREFIX + "group", b"g"),
        ]
        world.log.append("dead", 1, partition=0, key=key(partition, 0), headers=headers)
    async with joined_fleet(world, "a", "b", max_poll_records=100) as (fleet, member):
        command = LetterCommand("g", LetterFilter(), all_letters=True, topic="dead")
        redriven = await fleet.admin("b").redrive_dead_letters(command)
        assert redriven.letters == PARTITIONS
        for delivery in await member.take(PARTITIONS):
            assert (await member.settle(delivery, ACCEPT)).error is None
        lanes = {key.lane: part.row for key, part in lanes_of(world)}
        assert set(lanes) == {lane_of("orders", partition) for partition in range(PARTITIONS)}
        rows = [part.row for part in world.database.partitions.values()]
        owners = {row.key.place: row.owner for row in rows}
        assert len(set(owners.values())) > 1
        for row in lanes.values():
            assert row.owner == owners[row.key.home]


# -- one coordinator ------------------------------------------------------------------------------


class Unreadable:
    """Kafka says nothing of a topic's offsets."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch, topic: str = "dead") -> None:
        self.on = True
        offsets_of = world.log.offsets

        async def some(
            queries: Sequence[OffsetQuery], *, committed: bool = False
        ) -> dict[OffsetQuery, int]:
            found = await offsets_of(queries, committed=committed)
            return {q: at for q, at in found.items() if q.topic != topic or not self.on}

        monkeypatch.setattr(world.log, "offsets", some)


@pytest.mark.parametrize("readable_after_s", [5, None])
def test_a_partition_waits_for_its_letters_but_not_for_ever(
    readable_after_s: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    @virtual
    async def play() -> None:
        world = keyed_world(records=0)
        member, (first, *_) = world.member("m"), letters_of(world)
        former = await world.start()
        await member.join(former, "g", TOPICS, max_poll_records=100)
        await former.lanes.redrive("g", [first], run_id="r")
        held = await member.take(LETTERS)
        await world.kill(former)
        world.log.append("orders", 2, partition=0, key=key(0, 0))
        dead = Unreadable(world, monkeypatch)
        coordinator = await world.start()
        began_s = now_s()
        await member.join(coordinator, "g", TOPICS, max_poll_records=100)
        if readable_after_s is None:
            await member.take(2, timeout_s=100)
            waited_s = now_s() - began_s
            assert LANE_WAIT_MS / 1000 <= waited_s < LANE_WAIT_MS / 1000 + 11
        else:
            await asyncio.sleep(readable_after_s)
            dead.on = False
            await asyncio.sleep(5)
            assert member.deliveries == [], "the letters are out"
            for delivery in held:
                assert (await member.settle(delivery, ACCEPT)).error is None
            await member.take(2)
        await coordinator.close()

    play()


def test_letters_wait_for_their_partition_as_long_as_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @virtual
    async def play() -> None:
        world = keyed_world(records=0)
        Unreadable(world, monkeypatch, "orders")
        coordinator = await world.start()
        member, (first, *_) = world.member("m"), letters_of(world)
        await member.join(coordinator, "g", TOPICS, max_poll_records=100)
        await coordinator.lanes.redrive("g", [first], run_id="r")
        await asyncio.sleep(2 * LANE_WAIT_MS / 1000)
        assert member.deliveries == []
        world.log.delete("orders")
        taken = await member.take(LETTERS)
        assert offsets(*taken) == list(range(LETTERS))
        await coordinator.close()

    play()


@virtual
async def test_what_another_one_owns_by_now_is_not_served_here() -> None:
    world = keyed_world()
    async with running(world) as coordinator:
        member = await world.joined(coordinator, max_poll_records=4)
        home = ("orders", 0)
        both = [each for each in letters_of(world) if each.source_partition == home[1]]
        await coordinator.lanes.redrive("g", both, run_id="r")
        group = coordinator.groups["g"]
        await until(lambda: len(group.partitions) == PARTITIONS + len(both), step_s=0.1)
        await asyncio.sleep(1)
        first, other = (actor for actor in group.partitions.values() if actor.key.lane)
        together = (group.partitions[home], first, other)
        epochs = {a.key.place: a.partition.owner_epoch for a in together if a.partition}

        def waiting() -> set[tuple[str, int]]:
            return {actor.key.place for actor in together if actor.apart}

        assert waiting() == set()
        for moved in together:
            newer = {**epochs, moved.key.place: epochs[moved.key.place] + 1}
            group.shared_order.lanes_are([first.key, other.key], [first.key, other.key], newer)
            # Who has lost it hands out nothing in any case.
            assert waiting() >= {actor.key.place for actor in together if actor is not moved}
        await coordinator.lanes.look()
        assert waiting() == set()
        for delivery in await member.take(4):
            await member.settle(delivery, ACCEPT)
