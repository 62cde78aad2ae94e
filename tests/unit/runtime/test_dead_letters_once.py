"""With `errors.deadletterqueue.exactly.once` each letter is in its topic once, whatever happens."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.core.letters.dead_letters import PAYLOAD_HEADER, outbox_name
from sharecoord.errors import StoreUnavailableError
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.store.book_entries import DEAD_LETTER
from sharecoord.testing.fake_dead_letters import (
    STEPS,
    FakeDeadLetterClient,
    FakeLetterTransactions,
)
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.fleets import fleet_of
from tests.unit.runtime.test_dead_letters import (
    INFO,
    NAME,
    arrived,
    letters_world,
    offsets_of,
    outbox,
    reject,
    rejecting,
    text,
)
from tests.unit.runtime.worlds import Crash, doing, until
from tests.world import World, actor_of, running

ONCE = "errors.deadletterqueue.exactly.once"


def once_world(records: int) -> World:
    return letters_world(records, exactly_once="true")


async def all_rejected(world: World, coordinator: Coordinator, records: int) -> FakeMember:
    member = await world.joined(coordinator, max_poll_records=records)
    for delivery in await member.take(records):
        await reject(member, delivery)
    return member


async def killed_when_dead(world: World, coordinator: Coordinator) -> None:
    """Kills a coordinator at the step that was chosen, or soon if it never comes so far."""
    ended = asyncio.create_task(world.dead_letters.dead.wait())
    await asyncio.wait([ended], timeout=5)
    ended.cancel()
    await world.kill(coordinator)


def is_over(world: World, records: int) -> bool:
    done = bool(arrived(world)) and world.start_offset("g", "orders") == records
    return done and not outbox(world)


@virtual
async def test_letters_go_in_few_transactions_in_order() -> None:
    world = once_world(50)
    async with running(world) as coordinator:
        await all_rejected(world, coordinator, 50)
        await until(lambda: is_over(world, 50), step_s=0.01)
    assert offsets_of(arrived(world)) == list(range(50))
    assert sum(world.dead_letters.transactions) == 50
    assert len(world.dead_letters.transactions) < 10


@virtual
@pytest.mark.parametrize("most", [1, 3, 6])
@pytest.mark.parametrize("steps", range(1 + 3 * STEPS))
async def test_a_kill_at_any_step_of_a_transaction(steps: int, most: int) -> None:
    world = once_world(6)
    world.dead_letters.dies_at = steps
    coordinator = await world.start()
    work = asyncio.create_task(rejecting(world, coordinator, "m1", most))
    await killed_when_dead(world, coordinator)
    work.cancel()
    world.dead_letters.dies_at = None
    async with running(world) as coordinator:
        work = asyncio.create_task(rejecting(world, coordinator, "m2", most))
        await until(lambda: is_over(world, 6), step_s=0.1)
        work.cancel()
    assert sorted(offsets_of(arrived(world))) == list(range(6))


@virtual
@Crash.at_calls(range(8, 24))
async def test_a_crash_at_any_call_to_the_store(crash: Crash) -> None:
    world = once_world(6)
    await crash.hits(world, lambda first: rejecting(world, first, "m1", 2))
    async with running(world) as coordinator, doing(rejecting(world, coordinator, "m2", 2)):
        await until(lambda: is_over(world, 6), step_s=0.1)
    assert sorted(offsets_of(arrived(world))) == list(range(6))


@virtual
async def test_a_transaction_whose_end_nobody_hears_of_is_not_sent_again() -> None:
    world = once_world(20)
    world.dead_letters.forgets = True
    async with running(world) as coordinator:
        await all_rejected(world, coordinator, 20)
        await until(lambda: is_over(world, 20), step_s=0.1)
    assert offsets_of(arrived(world)) == list(range(20))


@virtual
async def test_a_former_owner_is_fenced_and_who_is_fenced_loads_anew() -> None:
    world = once_world(20)
    world.dead_letters.down = True
    async with running(world) as coordinator:
        member = await world.joined(coordinator, max_poll_records=10)
        await reject(member, (await member.take(10))[0])
        actor = actor_of(coordinator, "orders")
        world.dead_letters.down = False
        await until(lambda: len(arrived(world)) == 10, step_s=0.01)
        stranger = world.dead_letters.client()
        await stranger.open(outbox_name(actor.key), "dead")
        before = actor.incarnation
        await reject(member, (await member.take(10))[0])
        await until(lambda: is_over(world, 20), step_s=0.01)
        assert actor.incarnation != before
    assert offsets_of(arrived(world)) == list(range(20))


@virtual
async def test_a_former_owner_that_stood_still_before_it_opened_sends_nothing() -> None:
    world = once_world(10)
    async with fleet_of(world, "a") as fleet:
        store_of_a = world.caller
        member, delivery = await world.handed(fleet.all["a"], 10)
        actor, sink = actor_of(fleet.all["a"], "orders"), fleet.all["a"].context.dead_letters
        assert isinstance(sink, FakeDeadLetterClient)
        goes_on = asyncio.Event()

        async def late(outbox: str, topic: str) -> FakeLetterTransactions:
            await goes_on.wait()
            return await FakeDeadLetterClient.open(sink, outbox, topic)

        sink.open = late  # type: ignore[method-assign]
        await reject(member, delivery)
        store_of_a.down, world.database.leases["a"] = True, 0
        with pytest.raises(StoreUnavailableError):
            # The former owner cannot look who is there.
            await fleet.add("b")
        # Of one letter more, which the former owner never had.
        world.log.append("orders", 1)
        other = await world.joined(fleet.all["b"], "n")
        await reject(other, (await other.take(1))[0])
        await until(lambda: is_over(world, 11), step_s=0.01)
        assert actor.partition is not None, "it knows nothing of its successor"
        goes_on.set()
        await asyncio.sleep(5)
        assert actor.partition is None
    assert offsets_of(arrived(world)) == list(range(11))


@virtual
async def test_the_topic_is_gone_and_they_wait_as_without_transactions() -> None:
    world = once_world(10)
    del world.dead_letters.topics["dead"]
    async with running(world) as coordinator:
        await all_rejected(world, coordinator, 10)
        await asyncio.sleep(100)
        assert "no topic dead" in actor_of(coordinator, "orders").books.letters.problem
        world.dead_letters.topics["dead"] = []
        await until(lambda: is_over(world, 10), step_s=1)
    assert offsets_of(arrived(world)) == list(range(10))


@virtual
@pytest.mark.parametrize("steps", range(20))
async def test_what_is_too_large_goes_once_without_its_payload_which_stays(steps: int) -> None:
    world = once_world(0)
    sizes = [10, 5_000, 10, 6_000, 10]
    for size in sizes:
        world.log.append("orders", 1, key=b"k" * size)
    world.dead_letters.most_bytes = 1_000
    world.dead_letters.dies_at = steps
    coordinator = await world.start()
    await all_rejected(world, coordinator, 5)
    await killed_when_dead(world, coordinator)
    world.dead_letters.dies_at = None
    async with running(world):
        await until(lambda: world.start_offset("g", "orders") == 5, step_s=0.1)
        await asyncio.sleep(60)
    found = zip(offsets_of(arrived(world)), arrived(world), strict=True)
    told = {offset: text(message, PAYLOAD_HEADER) for offset, message in found}
    assert len(arrived(world)) == 5
    assert told == {n: "kept" if size > 1_000 else "whole" for n, size in enumerate(sizes)}
    (partition,) = world.database.partitions.values()
    kept = {n: len(each.key or b"") for n, each in partition.entries[DEAD_LETTER].items()}
    assert kept == {1: 5_000, 3: 6_000}


@virtual
async def test_it_can_be_switched_on_while_letters_wait() -> None:
    world = letters_world(20)
    world.dead_letters.down = True
    async with running(world) as coordinator:
        await all_rejected(world, coordinator, 20)
        await Admin(coordinator, INFO).alter_group_configs("g", {ONCE: "true"}, [])
        world.dead_letters.down = False
        await until(lambda: is_over(world, 20), step_s=1)
    assert offsets_of(arrived(world)) == list(range(20))
    assert sum(world.dead_letters.transactions) == 20


@virtual
async def test_letters_of_a_new_store_are_not_taken_for_those_of_a_lost_one() -> None:
    first, second = once_world(10), once_world(10)
    second.dead_letters = first.dead_letters
    for world in (first, second):
        async with running(world) as coordinator:
            await all_rejected(world, coordinator, 10)
            await until(lambda world=world: is_over(world, 10), step_s=0.01)
    assert offsets_of(arrived(first)) == [*range(10), *range(10)], NAME
