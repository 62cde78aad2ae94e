"""The cluster is found through whoever answers, and asked about leaders, offsets, epochs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)
from sharecoord.kafka.wire import cluster as module
from sharecoord.kafka.wire.cluster import Cluster, EpochEnd, Leader
from sharecoord.kafka.wire.connection import Endpoint
from sharecoord.ports import EARLIEST, LATEST, FoundOffset, OffsetQuery
from sharecoord.testing.virtual_time import virtual
from tests.unit.kafka.wire.fake_kafka import OPEN, FakeKafka, Log

NAMES = ["a", "b", "c"]


def kafka_of(**logs: Log) -> FakeKafka:
    kafka = FakeKafka(2)
    for name, log in logs.items():
        kafka.add(name, log)
    return kafka


def test_all_who_ask_share_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(), b=Log(leader=2, epoch=3), c=Log())
        cluster = kafka.cluster(monkeypatch)
        await asyncio.gather(*(cluster.refresh([name]) for name in NAMES))
        assert [names for *_, names in kafka.metadata] == [("a", "b", "c")]
        assert cluster.topics["b"].leaders == {0: Leader(2, 3)}
        topic_id = kafka.topics["b"].topic_id
        assert topic_id is not None
        assert cluster.topics["b"].topic_id == topic_id.bytes
        assert cluster.cluster_id == "fake"
        await cluster.close()

    main()


def test_questions_in_a_row_wait_but_not_for_new_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(), b=Log())
        cluster = kafka.cluster(monkeypatch)
        loop = asyncio.get_running_loop()
        for _ in range(12):
            await cluster.refresh(["a"])
        assert 5 < loop.time() < 12
        began_s = loop.time()
        again = asyncio.create_task(cluster.refresh(["a"]))
        await asyncio.sleep(0)
        await cluster.refresh(["b"])
        await again
        assert loop.time() - began_s < 0.01
        await cluster.close()

    main()


@pytest.mark.parametrize("how", ["down", "silent"])
def test_a_dead_first_broker_does_not_matter(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log())
        kafka.first = {Endpoint("x", 1): 1, Endpoint("::1", 2): 2, Endpoint("y", 3): 1}
        getattr(kafka, how).update([Endpoint("x", 1), Endpoint("y", 3)])
        cluster = kafka.cluster(monkeypatch, **{"bootstrap.servers": "x:1,[::1]:2,y:3"})
        await cluster.refresh(["a"])
        assert asyncio.get_running_loop().time() <= 2 * module.STAGGER_S + 0.1
        assert kafka.metadata[0][1] == Endpoint("::1", 2)
        await cluster.close()

    main()


def test_when_nobody_answers_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log())
        kafka.down = {*kafka.nodes.values(), *kafka.first}
        cluster = kafka.cluster(monkeypatch)
        with pytest.raises(KafkaUnavailableError, match="can not connect to kafka:9092"):
            await cluster.refresh(["a"])
        kafka.down.clear()
        await cluster.refresh(["a"])
        await cluster.close()

    main()


def test_a_cluster_that_moved_is_found_by_its_first_addresses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log())
        cluster = kafka.cluster(monkeypatch)
        await cluster.refresh(["a"])
        old = dict(kafka.nodes)
        kafka.down.update(old.values())
        kafka.nodes = {7: Endpoint("node", 9700)}
        kafka.topics["a"].logs[0].leader = 7
        await cluster.refresh(["a"])
        assert set(cluster.nodes) == {7}
        assert all(made.closed for made in kafka.made if made.endpoint in old.values())
        assert cluster.connect(7).endpoint == Endpoint("node", 9700)
        with pytest.raises(KafkaUnavailableError, match="broker 1 is not known"):
            cluster.connect(1)
        await cluster.close()

    main()


def test_a_leaders_epoch_never_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(leader=1, epoch=5))
        cluster = kafka.cluster(monkeypatch)
        await cluster.refresh(["a"])
        log = kafka.topics["a"].logs[0]
        log.leader, log.epoch = 2, 4
        await cluster.refresh(["a"])
        assert cluster.topics["a"].leaders[0] == Leader(1, 5)
        assert not cluster.learn_leader("a", 0, Leader(2, 5))
        assert not cluster.learn_leader("a", 0, Leader(9, 6))
        assert cluster.learn_leader("a", 0, Leader(2, 6))
        kafka.add("a", Log(leader=1, epoch=0))
        await cluster.refresh(["a"])
        assert cluster.topics["a"].leaders[0] == Leader(1, 0)
        await cluster.close()

    main()


def test_watched_topics_are_refreshed_from_time_to_time(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(), b=Log())
        cluster = kafka.cluster(monkeypatch, **{"metadata.max.age.ms": 10_000})
        told: list[int] = []
        unlisten = cluster.listen(lambda: told.append(1))
        await cluster.refresh(["b"])
        cluster.watch("a")
        await asyncio.sleep(35)
        asked = [names for *_, names in kafka.metadata[1:]]
        # Every 8 to 10 s.
        assert 3 <= len(asked) <= 4
        assert set(asked) == {("a",)}
        assert set(cluster.topics) == {"a"}
        assert len(told) == 1 + len(asked)
        unlisten()
        cluster.unwatch("a")
        await asyncio.sleep(35)
        assert len(kafka.metadata) == 1 + len(asked)
        await cluster.close()

    main()


def test_offsets_of_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(start=2, end=9, epoch=4), b=Log(leader=2, end=5), c=Log(leader=-1))
        kafka.topics["d"] = kafka.add("d")
        kafka.topics["d"].error = ErrorCode.topic_authorization_failed
        kafka.add("e", Log(error=int(ErrorCode.offset_out_of_range)))
        cluster = kafka.cluster(monkeypatch)
        names = ["a", "b", "c", "d", "e", "nowhere"]
        queries = [OffsetQuery(n, 0, at) for n in names for at in (EARLIEST, LATEST)]
        found = await cluster.list_offsets(queries, committed=True, timeout_s=3)
        assert list(found) != []
        assert [found[q] for q in queries[:4]] == [
            FoundOffset(2, -1, 4),
            FoundOffset(9, -1, 4),
            FoundOffset(0, -1, 0),
            FoundOffset(5, -1, 0),
        ]
        kinds: list[Any] = [type(found[q]) for q in queries[4::2]]
        assert kinds == [
            KafkaUnavailableError,
            UnauthorizedError,
            OffsetOutOfRangeError,
            UnknownTopicOrPartitionError,
        ]
        assert "c-0" in str(found[queries[4]])
        await cluster.close()

    main()


def test_offsets_are_asked_again_after_a_change_of_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(end=9))
        cluster = kafka.cluster(monkeypatch)
        await cluster.refresh(["a"])
        log = kafka.topics["a"].logs[0]
        log.leader, log.epoch = 2, 1
        query = OffsetQuery("a", 0, LATEST)
        found = await cluster.list_offsets([query], committed=False, timeout_s=3)
        assert found == {query: FoundOffset(9, -1, 1)}
        kafka.down.add(kafka.nodes[2])
        found = await cluster.list_offsets([query], committed=False, timeout_s=3)
        assert isinstance(found[query], KafkaUnavailableError)
        await cluster.close()

    main()


def test_ends_of_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtual
    async def main() -> None:
        kafka = kafka_of(a=Log(end=9), b=Log(end=4, leader=2))
        cluster = kafka.cluster(monkeypatch)
        found = await cluster.end_of_epochs({("a", 0): 3, ("b", 0): 1}, timeout_s=3)
        assert found == {("a", 0): EpochEnd(3, 9), ("b", 0): EpochEnd(1, 4)}
        await cluster.close()

    main()


def test_a_wrong_setting_is_refused_at_once() -> None:
    with pytest.raises(InvalidConfigError, match=r"kafka\.bootstrap\.servers is empty"):
        Cluster({}, OPEN)
