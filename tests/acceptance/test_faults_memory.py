"""Memory that one group takes and does not work off, and what others notice of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharecoord.devenv.broker import KafkaBroker
from tests.acceptance.chaos.arena import (
    EVERYTHING,
    Arena,
    a_join,
    bystanding,
    log_of,
    serving,
    watched,
)
from tests.acceptance.chaos.fixtures import broker
from tests.acceptance.chaos.hostility import WIDE_GREETING, Crowd, call
from tests.support import eventually, unique_name

__all__ = ["broker"]


@pytest.fixture
def arena(broker: KafkaBroker, tmp_path: Path) -> Iterator[Arena]:
    """One for each test: what these leave behind lasts for as long as a session."""
    with serving(broker, tmp_path) as scene, bystanding(scene) as bystander:
        yield watched(scene, bystander)


def until_short(arena: Arena) -> None:
    """Waits until the limit is in force, or the test would show nothing."""

    def is_short() -> bool:
        return b"memory limit: groups above their part" in log_of(arena.scene).read_bytes()

    eventually(is_short, 60.0, "memory is short")


@pytest.mark.long
@pytest.mark.timeout(240)
def test_readers_that_never_read_records(arena: Arena) -> None:
    """Twenty members take all there is of sixteen partitions and read nothing of it."""
    partitions = 16
    topic = unique_name("t")
    arena.scene.topics.create(topic, partitions=partitions)
    for number in range(partitions):
        arena.scene.topics.produce(topic, 2_500, value_bytes=10_000, partition=number)
    group = unique_name("g")
    with Crowd(arena.address) as crowd:
        for _ in range(20):
            first = a_join(
                group_id=group, topics=[topic], credit=EVERYTHING, max_poll_records=2_000
            )
            crowd.grow(1, WIDE_GREETING + call(1, first))
        until_short(arena)
        arena.goes_on(125)
        arena.is_unharmed()
    arena.scene.topics.delete(topic)


@pytest.mark.timeout(120)
def test_groups_whose_members_have_gone(arena: Arena) -> None:
    """A hundred groups that read what nobody takes any more, until their sessions end."""
    topic = unique_name("t")
    arena.scene.topics.create(topic)
    arena.scene.topics.produce(topic, 2_000, value_bytes=10_000)
    with Crowd(arena.address) as crowd:
        for _ in range(100):
            first = a_join(topics=[topic], credit=EVERYTHING, max_poll_records=2_000)
            crowd.grow(1, WIDE_GREETING + call(1, first))
        until_short(arena)
    arena.goes_on(125)
    arena.is_unharmed(consumers=100)
    arena.scene.topics.delete(topic)
