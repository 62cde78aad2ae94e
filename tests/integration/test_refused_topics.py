"""A topic that the coordinator may not see, on a Kafka with ACLs: nobody else hears of it."""

from __future__ import annotations

from collections.abc import Iterator

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
from confluent_kafka.cimpl import NewPartitions
from sharecoord_sdk import AdminClient as CoordinatorAdmin
from sharecoord_sdk import KafkaError, ShareConsumer

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from sharecoord.errors import KafkaUnavailableError, UnauthorizedError
from sharecoord.kafka.offsets_export import KafkaOffsetsExport
from sharecoord.kafka.refusals import Refusals
from sharecoord.ports import LATEST, CommittedOffset, OffsetQuery, TopicCatalog
from tests.contract.catalogs import CATALOGS, asking
from tests.support import eventually, eventually_async, unique_name

WAIT_S = 60
SOON_S = 15
"""Well below the 45 s for which a partition that was added waited."""

ANYBODY = "User:ANONYMOUS"


class Cluster:
    """A broker whose topics can be refused to everybody."""

    def __init__(self, broker: KafkaBroker) -> None:
        self.servers = broker.bootstrap_servers
        self.topics = Topics(self.servers)
        self._admin = AdminClient({"bootstrap.servers": self.servers})

    def make(self, partitions: int = 1, records: int = 5) -> str:
        name = unique_name("t")
        self.topics.create(name, partitions=partitions)
        self.topics.produce(name, [(None, b"%d" % n, []) for n in range(records)])
        return name

    def refuse(self, topic: str, *, even_its_name: bool) -> None:
        """Nobody may read it; nor describe it."""
        kind = AclPermissionType.DENY if even_its_name else AclPermissionType.ALLOW
        rule = AclBinding(*self._place(topic), ANYBODY, "*", AclOperation.DESCRIBE, kind)
        for made in self._admin.create_acls([rule]).values():
            made.result()

    def grow(self, topic: str) -> None:
        self._admin.create_partitions([NewPartitions(topic, 2)])[topic].result(20)

    def allow(self, topic: str) -> None:
        anything = (None, None, AclOperation.ANY, AclPermissionType.ANY)
        rules = AclBindingFilter(*self._place(topic), *anything)  # type: ignore[arg-type]
        for gone in self._admin.delete_acls([rules]).values():
            gone.result()

    @staticmethod
    def _place(topic: str) -> tuple[ResourceType, str, ResourcePatternType]:
        return ResourceType.TOPIC, topic, ResourcePatternType.LITERAL


@pytest.fixture(scope="module")
def cluster(broker_with_acls: KafkaBroker) -> Cluster:
    return Cluster(broker_with_acls)


@pytest.fixture(scope="module")
def guarded(
    cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    with CoordinatorProcess(cluster.servers, tmp_path_factory.mktemp("guarded")) as process:
        yield process


def consumer_of(
    coordinator: CoordinatorProcess,
    topics: list[str],
    group: str,
    errors: list[KafkaError] | None = None,
) -> ShareConsumer:
    heard: list[KafkaError] = [] if errors is None else errors
    consumer = ShareConsumer(
        {
            "bootstrap.servers": coordinator.address,
            "group.id": group,
            "error_cb": heard.append,
        }
    )
    consumer.subscribe(topics)
    return consumer


def receives(consumer: ShareConsumer, topic: str, count: int, within_s: float = SOON_S) -> None:
    seen: set[tuple[int | None, int | None]] = set()

    def all_there() -> bool:
        for message in consumer.poll(0.2):
            if message.topic() == topic:
                seen.add((message.partition(), message.offset()))
        return len(seen) >= count

    eventually(all_there, within_s, what=f"{count} records of {topic}")


@pytest.mark.parametrize("even_its_name", [True, False])
def test_it_stops_nobody_else_and_is_named(
    cluster: Cluster, guarded: CoordinatorProcess, *, even_its_name: bool
) -> None:
    # A group that is at work, and one that waits for a topic.
    widened, waited_for = cluster.make(), unique_name("t")
    first = consumer_of(guarded, [widened], unique_name("g"))
    receives(first, widened, 5)
    second = consumer_of(guarded, [waited_for], unique_name("g"))
    assert not list(second.poll(0.1))

    opened, closed = cluster.make(), cluster.make()
    cluster.refuse(closed, even_its_name=even_its_name)
    errors: list[KafkaError] = []
    group = unique_name("g")
    third = consumer_of(guarded, [opened, closed], group, errors)
    receives(third, opened, 5)
    assert not [m for m in third.poll(1.0) if m.topic() == closed]
    # The others' topics grow and appear meanwhile.
    cluster.topics.create(waited_for)
    cluster.topics.produce(waited_for, [(None, b"v", [])])
    receives(second, waited_for, 1)
    cluster.grow(widened)
    Topics(cluster.servers).produce(widened, [(None, b"v", [])] * 3, partition=1)
    receives(first, widened, 3)

    log = guarded.store_path.with_name("coordinator.log").read_text(encoding="utf-8")
    refused = [line for line in log.splitlines() if "topic refused" in line and closed in line]
    assert len(refused) == 1, refused
    assert "READ" in refused[0]
    with CoordinatorAdmin({"bootstrap.servers": guarded.address}) as admin:
        (described,) = admin.describe_groups([group])
        assert "READ" in described.refused_topics[closed]
    if even_its_name:
        assert [error.code() for error in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        assert closed in errors[0].str()

    cluster.allow(closed)
    receives(third, closed, 5, WAIT_S)
    for consumer in (first, second, third):
        consumer.close()


@pytest.mark.parametrize("kind", CATALOGS)
async def test_each_question_about_several_things_is_answered_for_each(
    kind: str, cluster: Cluster
) -> None:
    async with asking(kind, cluster.servers) as catalog:
        await each_question(cluster, catalog)


async def each_question(cluster: Cluster, catalog: TopicCatalog) -> None:
    opened, closed = cluster.make(), cluster.make()
    cluster.refuse(closed, even_its_name=True)
    places = [OffsetQuery(opened, 0, LATEST), OffsetQuery(opened, 0, 1)]
    asked = [*places, OffsetQuery(closed, 0, LATEST), OffsetQuery(closed, 0, 1)]

    async def only_the_open_one() -> bool:
        # The rule takes a moment.
        return set(await catalog.describe([opened, closed])) == {opened}

    await eventually_async(only_the_open_one, WAIT_S)
    assert "DESCRIBE" in catalog.refusals[closed].message
    assert await catalog.offsets(asked) == {places[0]: 5, places[1]: 0}
    assert await catalog.look(opened) is not None
    with pytest.raises(UnauthorizedError, match=closed):
        await catalog.look(closed)
    with pytest.raises(UnauthorizedError, match=closed):
        await catalog.offsets(asked[2:])
    assert isinstance(catalog.refusals, Refusals)
    export = KafkaOffsetsExport({"bootstrap.servers": cluster.servers}, catalog.refusals)
    group, committed = unique_name("x"), CommittedOffset(3, "")

    async def takes_offsets() -> bool:
        # A broker that has no offsets yet makes their topic first, and says that it loads.
        try:
            return await export.read(group) == {}
        except KafkaUnavailableError:
            return False

    await eventually_async(takes_offsets, WAIT_S)
    written = await export.write(group, {(opened, 0): committed, (closed, 0): committed})
    assert written == {(opened, 0)}
    assert await export.read(group) == {(opened, 0): committed}
    cluster.allow(closed)

    async def both() -> bool:
        return set(await catalog.describe([opened, closed])) == {opened, closed}

    await eventually_async(both, WAIT_S)
    assert await export.write(group, {(closed, 0): committed}) == {(closed, 0)}
    assert set(await catalog.offsets(asked)) == set(asked)
    assert dict(catalog.refusals) == {}
    await export.close()
