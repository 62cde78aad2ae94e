"""Looks at topics that share requests (`sharecoord.kafka.looks`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.looks import LOOK_INTERVAL_S, LOOK_TIMEOUT_S, SharedLooks
from sharecoord.ports import TopicInfo
from sharecoord.testing.virtual_time import virtual


class Cluster:
    """Answers after `takes_s` what was true when it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, tuple[str, ...]]] = []
        self.takes_s = 0.002
        self.life = "1"
        self.error: Exception | None = None
        self.looks = SharedLooks(self.describe)

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        self.asked.append((asyncio.get_running_loop().time(), tuple(topics)))
        life, error = self.life, self.error
        await asyncio.sleep(self.takes_s)
        if error is not None:
            raise error
        return {topic: TopicInfo(life, (0,)) for topic in topics if topic != "gone"}


@virtual
async def test_those_who_look_at_the_same_time_share_a_request() -> None:
    cluster = Cluster()
    topics = ["b", "a", "gone"] * 100
    found = await asyncio.gather(*(cluster.looks.look(topic) for topic in topics))
    assert found == [TopicInfo("1", (0,)), TopicInfo("1", (0,)), None] * 100
    assert [asked for _, asked in cluster.asked] == [("a", "b", "gone")]


@virtual
async def test_a_look_never_gets_the_answer_of_one_that_began_before() -> None:
    cluster = Cluster()
    first = asyncio.ensure_future(cluster.looks.look("a"))
    await asyncio.sleep(0.001)
    cluster.life = "2"
    second = await cluster.looks.look("a")
    assert (await first, second) == (TopicInfo("1", (0,)), TopicInfo("2", (0,)))


@virtual
async def test_requests_keep_their_distance() -> None:
    cluster = Cluster()
    for number in range(50):
        await cluster.looks.look(f"t{number}")
    times = [at_s for at_s, _ in cluster.asked]
    gaps = [later - at_s for at_s, later in pairwise(times)]
    assert len(times) == 50
    assert min(gaps) >= LOOK_INTERVAL_S - 1e-9


@virtual
async def test_who_gives_up_waiting_leaves_the_others_their_answer() -> None:
    cluster = Cluster()
    one, other = (asyncio.ensure_future(cluster.looks.look("a")) for _ in range(2))
    await asyncio.sleep(0.001)
    one.cancel()
    assert await other == TopicInfo("1", (0,))
    assert one.cancelled()


@virtual
@pytest.mark.parametrize("error", [KafkaUnavailableError("away"), RuntimeError("a mistake")])
async def test_all_hear_of_a_failure_and_can_look_again(error: Exception) -> None:
    cluster = Cluster()
    cluster.error = error
    found = await asyncio.gather(
        *(cluster.looks.look("a") for _ in range(3)), return_exceptions=True
    )
    assert found == [error] * 3
    cluster.error = None
    assert await cluster.looks.look("a") == TopicInfo("1", (0,))


@virtual
async def test_a_request_without_an_answer_ends() -> None:
    cluster = Cluster()
    cluster.takes_s = 1e9
    with pytest.raises(KafkaUnavailableError, match="did not describe a within 2 s"):
        await cluster.looks.look("a")
    assert asyncio.get_running_loop().time() == pytest.approx(LOOK_TIMEOUT_S)


@virtual
async def test_closing_ends_whoever_waits() -> None:
    cluster = Cluster()
    waiting = asyncio.ensure_future(cluster.looks.look("a"))
    await asyncio.sleep(0.001)
    later = asyncio.ensure_future(cluster.looks.look("b"))
    await asyncio.sleep(0)
    await cluster.looks.close()
    await asyncio.wait([waiting, later])
    assert waiting.cancelled()
    assert later.cancelled()
