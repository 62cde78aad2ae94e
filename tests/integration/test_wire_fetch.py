"""The fetcher on real brokers: what changes under it, and clusters in which leaders change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.kafka_cluster import KafkaCluster
from sharecoord.devenv.maven import DEFAULT_VERSION
from sharecoord.devenv.topics import Topics
from sharecoord.errors import UnauthorizedError
from sharecoord.kafka.wire import fetch
from sharecoord.kafka.wire.cluster import Cluster
from sharecoord.kafka.wire.fetcher import Fetcher, Fetching
from sharecoord.kafka.wire.security import security_of
from sharecoord.ports import EARLIEST, LATEST, FoundOffset, OffsetQuery
from tests.support import eventually_async, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(240)]

PATIENCE_S = 60.0

VERSIONS = [
    DEFAULT_VERSION,
    *(pytest.param(each, marks=pytest.mark.long) for each in ("4.4.0", "3.9.1", "2.8.2")),
]


class Sink:
    """Writes down what comes."""

    def __init__(self) -> None:
        self.next = 0
        self.bytes = 0
        self.said: list[tuple[Any, ...]] = []
        self.log_start = -1
        self.aborted = 0

    def on_fetched(self, found: fetch.Found) -> int | None:
        self.next = fetch.reach(found.records).next_offset
        self.bytes += len(found.records)
        self.log_start = found.log_start_offset
        self.aborted += len(found.aborted)
        return None

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self.said.append(("diverged", epoch, end_offset))

    def on_out_of_range(self) -> None:
        self.said.append(("out of range",))

    def on_gone(self) -> None:
        self.said.append(("gone",))

    def on_refused(self, error: UnauthorizedError) -> None:
        self.said.append(("refused",))


class Reads:
    """A cluster that is read."""

    def __init__(self, servers: str, **settings: Any) -> None:
        self.settings = {"bootstrap.servers": servers, **settings}
        self.cluster = Cluster(self.settings, security_of(self.settings))
        self.fetcher = Fetcher(self.cluster, self.settings, committed=True)

    def read(
        self, topic: str, partition: int = 0, offset: int = 0, last_epoch: int = -1
    ) -> tuple[Sink, Fetching]:
        sink = Sink()
        return sink, self.fetcher.fetch(topic, partition, offset, last_epoch, sink)


@asynccontextmanager
async def reading(servers: str, **settings: Any) -> AsyncIterator[Reads]:
    made = Reads(servers, **settings)
    try:
        yield made
    finally:
        await made.fetcher.close()
        await made.cluster.close()


async def until(probe: Callable[[], object], what: str) -> None:
    await eventually_async(probe, deadline_s=PATIENCE_S, what=what)


def created(topics: Topics, name: str) -> bool:
    topics.create(name)
    return True


@pytest.fixture(scope="module", params=VERSIONS)
def topics_of(request: pytest.FixtureRequest) -> Iterator[Topics]:
    """The topics of a broker of each release."""
    with KafkaBroker(request.param) as broker:
        yield Topics(broker.bootstrap_servers)


async def test_records_and_ends_of_logs(topics_of: Topics) -> None:
    name = unique_name("plain")
    await asyncio.to_thread(topics_of.create, name, partitions=3)
    await asyncio.to_thread(topics_of.produce, name, 5_000, partition=1, value_bytes=1000)
    async with reading(topics_of.bootstrap_servers) as reads:
        sinks = [reads.read(name, number)[0] for number in range(3)]
        await until(lambda: sinks[1].next == 5_000, "the records that were there")
        assert sinks[1].bytes > 5_000_000
        await asyncio.to_thread(topics_of.produce, name, 10, partition=2)
        await until(lambda: sinks[2].next == 10, "records that come")
        queries = [OffsetQuery(name, n, at) for n in range(3) for at in (EARLIEST, LATEST)]
        found = await reads.cluster.list_offsets(queries, committed=True, timeout_s=10)
        ends = [each.offset for each in found.values() if isinstance(each, FoundOffset)]
        assert sorted(ends) == [0, 0, 0, 0, 10, 5_000]
        (epoch,) = (await reads.cluster.end_of_epochs({(name, 1): 0}, timeout_s=10)).values()
        assert epoch == (0, 5_000)


async def test_transactions_that_were_aborted_are_told(topics_of: Topics) -> None:
    name = unique_name("aborted")
    await asyncio.to_thread(topics_of.create, name)
    await asyncio.to_thread(topics_of.produce_transaction, name, 10, commit=False)
    await asyncio.to_thread(topics_of.produce, name, 5)
    async with reading(topics_of.bootstrap_servers) as reads:
        sink, _ = reads.read(name)
        await until(lambda: sink.next == 16, "the control record and what is behind it")
        assert sink.aborted >= 1


async def test_a_log_whose_start_moves(topics_of: Topics) -> None:
    name = unique_name("start")
    await asyncio.to_thread(topics_of.create, name)
    await asyncio.to_thread(topics_of.produce, name, 100)
    await asyncio.to_thread(topics_of.delete_records, name, {0: 60})
    async with reading(topics_of.bootstrap_servers) as reads:
        sink, fetching = reads.read(name)
        await until(lambda: sink.said == [("out of range",)], "the end of the reading")
        assert fetching.closed
        sink, _ = reads.read(name, offset=60, last_epoch=0)
        await until(lambda: sink.next == 100, "what is left")
        assert sink.log_start == 60
        assert sink.said == []


async def test_a_topic_that_is_made_again_under_the_fetch(topics_of: Topics) -> None:
    name, other = unique_name("again"), unique_name("other")
    await asyncio.to_thread(topics_of.create, name, other)
    await asyncio.to_thread(topics_of.produce, name, 100)
    async with reading(topics_of.bootstrap_servers) as reads:
        (sink, fetching), (calm, _) = reads.read(name), reads.read(other)
        await until(lambda: sink.next == 100, "the records of the first topic")
        assert fetching.topic_id
        await asyncio.to_thread(topics_of.delete, name)
        # ZooKeeper's clusters still have the name for a moment.
        await until(partial(asyncio.to_thread, created, topics_of, name), "the second topic")
        await asyncio.to_thread(topics_of.produce, name, 150)
        await until(lambda: sink.said, "the end of the reading")
        # A broker that is asked by name may say first that it has no such offset.
        assert sink.said[0] in {("gone",), ("out of range",)}
        await asyncio.to_thread(topics_of.produce, other, 5)
        await until(lambda: calm.next == 5, "another topic's records")
        sink, _ = reads.read(name)
        await until(lambda: sink.next == 150, "the records of the second topic")


@contextmanager
def refused(servers: str, topic: str, *, even_its_name: bool) -> Iterator[None]:
    """Nobody may read a topic, or describe it, for a while."""
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
    kind = AclPermissionType.DENY if even_its_name else AclPermissionType.ALLOW
    for made in admin.create_acls([AclBinding(*place, AclOperation.DESCRIBE, kind)]).values():
        made.result(30)
    yield
    rules = AclBindingFilter(*place, AclOperation.ANY, AclPermissionType.ANY)
    for gone in admin.delete_acls([rules]).values():
        gone.result(30)


@pytest.mark.parametrize("even_its_name", [True, False])
async def test_a_topic_that_is_refused_for_a_while(
    broker_with_acls: KafkaBroker, *, even_its_name: bool
) -> None:
    servers = broker_with_acls.bootstrap_servers
    topics = Topics(servers)
    closed, opened = unique_name("closed"), unique_name("opened")
    await asyncio.to_thread(topics.create, closed, opened)
    await asyncio.to_thread(topics.produce, closed, 10)
    async with reading(servers) as reads:
        (sink, _), (other, _) = reads.read(closed), reads.read(opened)
        await until(lambda: sink.next == 10, "records before")
        with refused(servers, closed, even_its_name=even_its_name):
            await until(lambda: ("refused",) in sink.said, "the refusal")
            await asyncio.to_thread(topics.produce, opened, 5)
            await until(lambda: other.next == 5, "records of another topic")
        await asyncio.to_thread(topics.produce, closed, 5)
        await until(lambda: sink.next == 15, "records afterwards")
        assert set(sink.said) == {("refused",)}


# -- several brokers ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def three() -> Iterator[KafkaCluster]:
    """A cluster of three; broker 1 is the controller."""
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with KafkaCluster(3, settings={"replica.selector.class": selector}) as cluster:
        yield cluster


@contextmanager
def replicated(
    cluster: KafkaCluster, replicas: list[list[int]], **config: str
) -> Iterator[tuple[str, Topics]]:
    """A topic whose partitions have these replicas; the first one of each leads."""
    name = unique_name("replicated")
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = NewTopic(name, len(replicas), replica_assignment=replicas, config=config)
    admin.create_topics([topic])[name].result(30)
    topics = Topics(cluster.bootstrap_servers)
    yield name, topics
    # A broker that starts waits for the leaders of all that it has.
    topics.delete(name)


@pytest.fixture
def spread(three: KafkaCluster) -> Iterator[tuple[str, Topics]]:
    """A topic that each broker leads a partition of."""
    with replicated(three, [[2, 3], [3, 2], [1, 3]]) as made:
        yield made


@pytest.fixture
def paired(three: KafkaCluster) -> Iterator[tuple[str, Topics]]:
    """A topic on brokers 2 and 3, whichever of them is left may lead."""
    config = {"unclean.leader.election.enable": "true"}
    with replicated(three, [[2, 3]], **config) as made:
        yield made


@pytest.mark.long
async def test_a_leader_that_dies_is_replaced(
    three: KafkaCluster, spread: tuple[str, Topics]
) -> None:
    name, topics = spread
    for number in range(3):
        await asyncio.to_thread(topics.produce, name, 100, partition=number)
    async with reading(three.bootstrap_servers) as reads:
        sinks, fetchings = zip(*(reads.read(name, number) for number in range(3)), strict=True)
        await until(lambda: [s.next for s in sinks] == [100] * 3, "all records")
        await asyncio.to_thread(three.broker(2).kill)
        for number in range(3):
            await asyncio.to_thread(topics.produce, name, 100, partition=number)
        await until(lambda: [s.next for s in sinks] == [200] * 3, "records of the new leader")
        assert fetchings[0].leader_epoch > 0
        await asyncio.to_thread(three.broker(2).start)
        await asyncio.to_thread(topics.produce, name, 10, partition=0)
        await until(lambda: sinks[0].next == 210, "records after the old leader came back")
        assert [sink.said for sink in sinks] == [[], [], []]


@pytest.mark.long
async def test_the_replica_in_our_rack_is_read(
    three: KafkaCluster, paired: tuple[str, Topics]
) -> None:
    name, topics = paired
    await asyncio.to_thread(topics.produce, name, 100)
    async with reading(three.bootstrap_servers, **{"client.rack": "rack-3"}) as reads:
        sink, fetching = reads.read(name)
        await until(lambda: sink.next == 100, "all records")
        await until(lambda: fetching.replica == 3, "the advice of the leader")
        await asyncio.to_thread(topics.produce, name, 50)
        await until(lambda: sink.next == 150, "records from the follower")
        assert sink.said == []


@pytest.mark.long
async def test_a_log_that_was_cut_is_seen(three: KafkaCluster, paired: tuple[str, Topics]) -> None:
    name, topics = paired
    await asyncio.to_thread(topics.produce, name, 100)
    async with reading(three.bootstrap_servers) as reads:
        sink, _ = reads.read(name)
        await until(lambda: sink.next == 100, "what both replicas have")
        await asyncio.to_thread(three.broker(3).kill)
        await asyncio.to_thread(topics.produce, name, 50)
        await until(lambda: sink.next == 150, "what broker 2 has alone")
        await asyncio.to_thread(three.broker(2).kill)
        await asyncio.to_thread(three.broker(3).start)
        await until(lambda: sink.said, "the log of broker 3 to be seen as cut")
        assert sink.said[0][0] == "diverged"
        assert sink.said[0][2] == 100
        await asyncio.to_thread(three.broker(2).start)
