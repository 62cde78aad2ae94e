"""A dead-letter topic that takes nothing now: letters wait, the alert says why, all come later."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import pytest

from sharecoord.errors import UnauthorizedError
from sharecoord.kafka.client import KafkaError
from sharecoord.kafka.dead_letter_producer import _problem
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.partition.letter_sender import SILENCE_S
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.test_dead_letters import (
    INFO,
    arrived,
    letters_world,
    offsets_of,
    outbox,
    reject,
)
from tests.unit.runtime.worlds import until
from tests.world import World, actor_of, running

LETTERS = 10
REFUSALS = {
    KafkaError.KAFKA_STORAGE_ERROR: "KAFKA_STORAGE_ERROR",
    KafkaError.NOT_ENOUGH_REPLICAS: "NOT_ENOUGH_REPLICAS",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    KafkaError.INVALID_RECORD: "INVALID_RECORD",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow WRITE and DESCRIBE",
}
modes = pytest.mark.parametrize("once", ["false", "true"])


class Alert(NamedTuple):
    """What the metrics say."""

    waiting: int
    failing: bool


def alert(coordinator: Coordinator) -> Alert:
    board = StatusBoard()
    board.update(coordinator)
    assert board.latest is not None
    (place,) = board.latest.partitions
    return Alert(place.dead_letters_waiting, place.dead_letters_failing)


def problem(coordinator: Coordinator) -> str:
    return actor_of(coordinator, "orders").books.letters.problem


async def described(coordinator: Coordinator) -> tuple[int, str]:
    """What operators see of the share-partition."""
    (group,) = await Admin(coordinator, INFO).describe_groups(["g"])
    (offsets,) = group.partitions
    return offsets.dead_letters_waiting, offsets.dead_letters_problem


async def all_rejected(world: World, coordinator: Coordinator) -> None:
    member = await world.joined(coordinator, max_poll_records=100)
    for delivery in await member.take(LETTERS):
        await reject(member, delivery)


async def all_wait(world: World, coordinator: Coordinator, *, seconds: float) -> None:
    """They are stored, and ARCHIVING, and stay so."""
    await asyncio.sleep(seconds)
    partition = actor_of(coordinator, "orders").partition
    assert partition is not None
    assert partition.window.archiving == LETTERS
    assert (outbox(world), arrived(world)) == (list(range(LETTERS)), [])


async def all_arrive(world: World, coordinator: Coordinator) -> None:
    """Each once, and the alert ends."""
    async with asyncio.timeout(100):
        await until(lambda: world.start_offset("g", "orders") == LETTERS, step_s=1)
    assert offsets_of(arrived(world)) == list(range(LETTERS))
    assert (outbox(world), alert(coordinator)) == ([], Alert(0, failing=False))


@modes
@pytest.mark.parametrize("code", REFUSALS)
@virtual
async def test_what_kafka_refuses_for_now_waits_and_arrives_later(code: int, once: str) -> None:
    world = letters_world(LETTERS, exactly_once=once)
    world.dead_letters.refusal = _problem("dead", KafkaError(code))
    async with running(world) as coordinator:
        await all_rejected(world, coordinator)
        await all_wait(world, coordinator, seconds=100)
        assert alert(coordinator) == Alert(LETTERS, failing=True)
        assert "topic 'dead'" in problem(coordinator)
        assert REFUSALS[code] in problem(coordinator)
        assert await described(coordinator) == (LETTERS, problem(coordinator))
        world.dead_letters.refusal = None
        await all_arrive(world, coordinator)
        assert await described(coordinator) == (0, "")


def test_a_missing_permission_is_told_from_passing_trouble() -> None:
    assert isinstance(
        _problem("dead", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)), UnauthorizedError
    )


@modes
@virtual
async def test_a_kafka_that_says_nothing_raises_the_alert(once: str) -> None:
    """Its client tries on by itself when brokers, replicas or room are missing."""
    world = letters_world(LETTERS, exactly_once=once)
    world.dead_letters.set_silent(silent=True)
    async with running(world) as coordinator:
        await all_rejected(world, coordinator)
        await all_wait(world, coordinator, seconds=SILENCE_S - 1)
        assert alert(coordinator) == Alert(LETTERS, failing=False)
        await all_wait(world, coordinator, seconds=100)
        assert alert(coordinator) == Alert(LETTERS, failing=True)
        assert "topic 'dead': no answer from Kafka" in problem(coordinator)
        assert "min.insync.replicas" in problem(coordinator)
        world.dead_letters.set_silent(silent=False)
        await all_arrive(world, coordinator)
        # Again, and again it is said.
        world.dead_letters.set_silent(silent=True)
        world.log.append("orders", 1)
        member = world.members["m"]
        await reject(member, await member.next_delivery())
        await asyncio.sleep(3 * SILENCE_S)
        assert alert(coordinator) == Alert(1, failing=True)
