"""Letters outlive their group and their topic: who starts, or goes on, sends them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sharecoord.core.letters.dead_letters import ID_HEADER, KAFKA_PREFIX, PAYLOAD_HEADER, PREFIX
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.letters.orphans import INTERVAL_S, LOOKS_UNTIL_GONE
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.test_dead_letters import (
    INFO,
    NAME,
    arrived,
    letters_world,
    offsets_of,
    outbox,
    reject,
    text,
)
from tests.unit.runtime.worlds import accept, until
from tests.world import World, running

LETTERS = 10


async def waiting(world: World, coordinator: Coordinator, *, forget: bool = False) -> None:
    """Letters that wait for a cluster that is down, of a group without members."""
    world.dead_letters.down = True
    member, delivery = await world.handed(coordinator, LETTERS, max_poll_records=100)
    if forget:
        world.log.set_down(down=True)
        (actor,) = coordinator.groups["g"].partitions.values()
        actor.cache.clear()
    await reject(member, delivery)
    member.leave()
    await coordinator.context.committer.flush()
    assert outbox(world) == list(range(LETTERS))


@asynccontextmanager
async def letters_waiting(world: World, *, forget: bool = False) -> AsyncIterator[Coordinator]:
    """Runs a coordinator with letters that wait, see `waiting`, for the length of a block."""
    async with running(world) as coordinator:
        await waiting(world, coordinator, forget=forget)
        yield coordinator


async def deleted(coordinator: Coordinator) -> None:
    assert await Admin(coordinator, INFO).delete_groups(["g"]) == {"g": None}


def payloads(world: World) -> set[str]:
    return {text(message, PAYLOAD_HEADER) for message in arrived(world)}


async def all_sent(world: World) -> None:
    await until(lambda: not outbox(world), step_s=0.1)
    assert sorted(set(offsets_of(arrived(world)))) == list(range(LETTERS))


@virtual
async def test_of_a_group_that_was_deleted() -> None:
    world = letters_world(LETTERS)
    # Only the group knew the topic's name.
    world.defaults.pop(NAME)
    async with running(world) as coordinator:
        await Admin(coordinator, INFO).alter_group_configs("g", {NAME: "dead"}, [])
        await waiting(world, coordinator)
        await deleted(coordinator)
        await asyncio.sleep(100)
        assert outbox(world) == list(range(LETTERS))
        world.dead_letters.down = False
        await all_sent(world)
        assert payloads(world) == {"whole"}
        assert {text(message, KAFKA_PREFIX + "group") for message in arrived(world)} == {"g"}
        assert {text(message, PREFIX + "member") for message in arrived(world)} == {"m"}
        assert "g" not in coordinator.groups
        await asyncio.sleep(2 * INTERVAL_S)
        assert [part.row.owner for part in world.database.partitions.values()] == [None]


@virtual
@pytest.mark.parametrize("once", ["false", "true"])
async def test_of_a_group_that_was_deleted_before_a_restart(once: str) -> None:
    world = letters_world(LETTERS, exactly_once=once)
    async with letters_waiting(world) as coordinator:
        await deleted(coordinator)
    world.dead_letters.down = False
    world.dead_letters.transactions.clear()
    for name in [name for name in world.defaults if "deadletterqueue" in name]:
        del world.defaults[name]
    async with running(world) as coordinator:
        await all_sent(world)
        assert coordinator.groups == {}
        assert once == "false" or len(arrived(world)) == LETTERS
    assert sum(world.dead_letters.transactions) == (LETTERS if once == "true" else 0)


@virtual
async def test_of_a_topic_that_was_made_again() -> None:
    world = letters_world(LETTERS)
    async with letters_waiting(world) as coordinator:
        world.make_again(3)
        member, delivery = await world.handed(coordinator, 3, max_poll_records=100)
        await member.settle(delivery)
        world.dead_letters.down = False
        await all_sent(world)
        assert payloads(world) == {"whole"}


@virtual
async def test_of_a_topic_that_went_while_nobody_was_there() -> None:
    world = letters_world(LETTERS)
    async with letters_waiting(world):
        pass
    world.log.delete("orders")
    world.dead_letters.down = False
    async with running(world):
        async with asyncio.timeout(2 * LOOKS_UNTIL_GONE * INTERVAL_S):
            await all_sent(world)


@virtual
@pytest.mark.parametrize("same", [True, False])
async def test_payloads_are_read_where_the_topic_is_still_the_same(same: bool) -> None:
    world = letters_world(LETTERS)
    async with letters_waiting(world, forget=True) as coordinator:
        await deleted(coordinator)
        await asyncio.sleep(2 * INTERVAL_S)
        if not same:
            world.log.delete("orders")
        world.log.set_down(down=False)
        world.dead_letters.down = False
        await all_sent(world)
    assert payloads(world) == {"whole" if same else "gone"}


@virtual
@pytest.mark.parametrize("once", ["false", "true"])
@pytest.mark.parametrize("after_s", [0, 9.99, 10.0, 10.001, 10.002, 10.003, 10.004, 10.01, 20])
async def test_a_group_that_is_made_again_takes_them_over(after_s: float, once: str) -> None:
    world = letters_world(LETTERS, exactly_once=once)
    async with letters_waiting(world) as coordinator:
        await deleted(coordinator)
        world.dead_letters.down = False
        await asyncio.sleep(after_s)
        world.ledger.reset(world.partition("g", "orders"))
        member = await world.joined(coordinator, max_poll_records=100)
        await accept(member, *await member.take(LETTERS))
        await until(lambda: not outbox(world), step_s=0.1)
        ids = Counter(text(message, ID_HEADER) for message in arrived(world))
        assert len(ids) == LETTERS
        if once == "true":
            assert set(ids.values()) == {1}
        world.log.append("orders", 1)
        (delivery,) = await member.take(1)
        await reject(member, delivery)
        await until(lambda: len(arrived(world)) > LETTERS and not outbox(world), step_s=0.1)


@virtual
async def test_headers_alone_where_their_group_wanted_no_more() -> None:
    world = letters_world(LETTERS, copy_record_enable="false")
    async with letters_waiting(world) as coordinator:
        await deleted(coordinator)
        world.dead_letters.down = False
        await all_sent(world)
    assert payloads(world) == {"off"}
