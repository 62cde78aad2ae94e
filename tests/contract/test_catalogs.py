"""Each catalog on real brokers: what it finds, and what it says when brokers and topics change."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.kafka_cluster import KafkaCluster
from sharecoord.devenv.maven import DEFAULT_VERSION
from sharecoord.devenv.topics import Topics
from sharecoord.errors import KafkaUnavailableError
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, TopicCatalog, TopicInfo, end_queries
from tests.contract.catalogs import CATALOGS, asking
from tests.support import PatientTopics, eventually_async, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PATIENCE_S = 60.0
SOON_S = 15.0
"""Longest wait for the partitions of brokers that live, and for an error when none does."""

EACH = pytest.mark.parametrize("kind", CATALOGS)
VERSIONS = [
    DEFAULT_VERSION,
    *(pytest.param(each, marks=pytest.mark.long) for each in ("4.4.0", "3.9.1", "2.8.2")),
]


@pytest.fixture(scope="module", params=VERSIONS)
def broker(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker of each release."""
    with KafkaBroker(request.param) as found:
        yield found


@pytest.fixture(scope="module")
def topics(broker: KafkaBroker) -> Topics:
    """Its topics."""
    return PatientTopics(broker.bootstrap_servers)


async def nothing(catalog: TopicCatalog, *queries: OffsetQuery) -> bool:
    """Whether there are no offsets; librdkafka calls that an error."""
    try:
        return not await catalog.offsets(queries)
    except KafkaUnavailableError:
        return True


@EACH
async def test_topics_and_both_ends_of_their_logs(kind: str, topics: Topics) -> None:
    name, other = unique_name("t"), unique_name("t")
    await asyncio.to_thread(topics.create, name, partitions=3)
    await asyncio.to_thread(topics.create, other)
    before_ms = int(time.time() * 1000)
    await asyncio.to_thread(topics.produce, name, 20, partition=1)
    await asyncio.to_thread(topics.delete_records, name, {1: 5})
    async with asking(kind, topics.bootstrap_servers) as catalog:
        assert len(await catalog.cluster_id()) == 22
        assert catalog.brokers == 1
        found = await catalog.describe([name, other, "nowhere"])
        assert found == {
            name: TopicInfo(topics.topic_id(name), (0, 1, 2)),
            other: TopicInfo(topics.topic_id(other), (0,)),
        }
        assert await catalog.look(name) == found[name]
        assert await catalog.look("nowhere") is None
        assert {name, other} <= set(await catalog.names())
        ends = end_queries([(name, n) for n in range(3)])
        answer = await catalog.offsets(ends)
        assert [answer[query] for query in ends] == [0, 0, 5, 20, 0, 0]
        times = [OffsetQuery(name, 1, before_ms), OffsetQuery(name, 1, before_ms + 10**8)]
        assert await catalog.offsets(times) == dict(zip(times, [5, 20], strict=True))
        spots = await catalog.find_offsets([*times, ends[3]])
        assert [spots[query].offset for query in (*times, ends[3])] == [5, -1, 20]
        assert before_ms <= spots[times[0]].timestamp_ms < before_ms + 60_000
        assert (spots[times[1]].timestamp_ms, spots[ends[3]].timestamp_ms) == (-1, -1)
        missing = OffsetQuery(name, 3, EARLIEST), OffsetQuery("nowhere", 0, EARLIEST)
        assert await catalog.offsets([ends[0], *missing]) == {ends[0]: 0}
        assert await nothing(catalog, *missing)
        # Nothing of this has made a topic.
        assert "nowhere" not in topics.names()


@EACH
async def test_ends_of_what_is_committed(kind: str, topics: Topics) -> None:
    name = unique_name("t")
    await asyncio.to_thread(topics.create, name)
    await asyncio.to_thread(topics.produce, name, 3)
    await asyncio.to_thread(topics.produce_transaction, name, 4, commit=True)
    producer = topics._producer({"transactional.id": unique_name("x")})
    await asyncio.to_thread(producer.init_transactions, 20)
    producer.begin_transaction()
    producer.produce(name, b"v", partition=0)
    await asyncio.to_thread(producer.flush, 20)
    end = OffsetQuery(name, 0, LATEST)
    async with asking(kind, topics.bootstrap_servers) as catalog:
        assert await catalog.offsets([end]) == {end: 9}
        assert await catalog.offsets([end], committed=True) == {end: 8}
        await asyncio.to_thread(producer.abort_transaction, 20)

        async def all_is_decided() -> bool:
            return await catalog.offsets([end], committed=True) == {end: 10}

        await eventually_async(all_is_decided, PATIENCE_S)


@EACH
async def test_a_topic_that_is_made_again_is_another_one(kind: str, topics: Topics) -> None:
    name = unique_name("t")
    await asyncio.to_thread(topics.create, name, partitions=2)
    await asyncio.to_thread(topics.produce, name, 7)
    end = OffsetQuery(name, 0, LATEST)
    async with asking(kind, topics.bootstrap_servers) as catalog:
        old = await catalog.look(name)
        assert await catalog.offsets([end]) == {end: 7}
        await asyncio.to_thread(topics.delete, name)

        async def is_gone() -> bool:
            return await catalog.look(name) is None and not await catalog.describe([name])

        await eventually_async(is_gone, PATIENCE_S)
        if kind == "wire":
            # librdkafka's question may have an old broker make the topic.
            assert await nothing(catalog, end)
        await asyncio.to_thread(topics.create, name)
        await asyncio.to_thread(topics.produce, name, 2)
        new = await catalog.look(name)
        assert new == TopicInfo(topics.topic_id(name), (0,))
        assert new != old
        assert await catalog.offsets([end]) == {end: 2}


# librdkafka shows an old leader epoch for more than a minute after that.
@pytest.mark.parametrize("kind", ["wire"])
async def test_a_broker_that_dies_and_comes_back(kind: str) -> None:
    with KafkaBroker() as broker:
        tool, name = Topics(broker.bootstrap_servers), unique_name("t")
        tool.create(name)
        tool.produce(name, 7)
        end = OffsetQuery(name, 0, LATEST)
        async with asking(kind, broker.bootstrap_servers) as catalog:
            known = await catalog.describe([name])
            assert await catalog.offsets([end]) == {end: 7}
            await asyncio.to_thread(broker.kill)
            began_s = time.monotonic()
            for question in (catalog.look(name), catalog.describe([name]), catalog.offsets([end])):
                with pytest.raises(KafkaUnavailableError, match="Kafka"):
                    await question
            assert time.monotonic() - began_s < 3 * SOON_S
            await asyncio.to_thread(broker.start)

            async def answers() -> bool:
                try:
                    return await catalog.offsets([end]) == {end: 7}
                except KafkaUnavailableError:
                    return False

            await eventually_async(answers, PATIENCE_S)
            assert await catalog.describe([name]) == known


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    """A cluster of three; broker 1 is the controller."""
    with KafkaCluster(3) as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("kind", ["wire"])
async def test_other_brokers_answer_when_one_dies(kind: str, three: KafkaCluster) -> None:
    name = unique_name("t")
    admin = AdminClient({"bootstrap.servers": three.bootstrap_servers, "log_level": 0})
    replicas = [[2, 3], [3, 1], [1, 3]]
    topic = NewTopic(name, len(replicas), replica_assignment=replicas)
    admin.create_topics([topic])[name].result(30)
    tool = Topics(three.bootstrap_servers)
    for number in range(3):
        await asyncio.to_thread(tool.produce, name, 5, partition=number)
    ends = [OffsetQuery(name, number, LATEST) for number in range(3)]
    everything = dict.fromkeys(ends, 5)
    async with asking(kind, three.bootstrap_servers) as catalog:
        assert await catalog.offsets(ends) == everything
        assert catalog.brokers == 3
        await asyncio.to_thread(three.broker(2).kill)
        began_s = time.monotonic()
        assert (await catalog.offsets(ends)).items() >= dict.fromkeys(ends[1:], 5).items()
        assert await catalog.look(name) is not None
        assert time.monotonic() - began_s < SOON_S

        async def answers_for_all() -> bool:
            return await catalog.offsets(ends) == everything

        await eventually_async(answers_for_all, PATIENCE_S)
        print(f"all partitions {time.monotonic() - began_s:.1f} s after the broker died")
        await asyncio.to_thread(three.broker(2).start)
        await eventually_async(answers_for_all, PATIENCE_S)
    await asyncio.to_thread(tool.delete, name)
