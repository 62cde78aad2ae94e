"""Applications that name the Kafka port alone: what it does not serve is passed on to Kafka."""

from __future__ import annotations

import contextlib
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, ConsumerGroupType, KafkaError, Producer, ShareConsumer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.kafka_cluster import KafkaCluster
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import free_run
from tests.support import eventually, unique_name

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]

WAIT_S = 90


class Site(NamedTuple):
    """Kafka, and the one address that applications know."""

    kafka: KafkaCluster
    address: str
    brokers: int

    @property
    def config(self) -> dict[str, Any]:
        """Of every client."""
        return {"bootstrap.servers": self.address}

    def admin(self) -> AdminClient:
        """librdkafka's admin client."""
        return AdminClient(self.config)

    def make_topic(self, partitions: int = 4) -> str:
        """A topic that is made through the port; both brokers lead some of its partitions."""
        name = unique_name("t")
        admin = self.admin()
        for made in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            made.result(WAIT_S)
        # Where a leader does not know of it yet, records that want no answer are lost, as at Kafka.
        leaders = Producer(self.config)
        for partition in range(partitions):
            leaders.produce(name, b"first", partition=partition)
        assert leaders.flush(WAIT_S) == 0
        return name


@contextlib.contextmanager
def site_of(brokers: int, version: str, folder: Path) -> Iterator[Site]:
    """So many brokers of a release behind a coordinator that passes on."""
    port = free_run(brokers + 2)
    address = f"127.0.0.1:{port}"
    settings = {
        "kafka.port.listen": address,
        "kafka.port.passthrough": "true",
        "security.audit.sink": "off",
    }
    with (
        KafkaCluster(brokers, version) as kafka,
        CoordinatorProcess(kafka.bootstrap_servers, folder, settings=settings),
    ):
        yield Site(kafka, address, brokers)


@pytest.fixture(scope="module", params=["2 x 4.3.1", "1 x 3.9.1"])
def site(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    brokers, _, version = request.param.partition(" x ")
    with site_of(int(brokers), version, tmp_path_factory.mktemp("site")) as made:
        yield made


def produce(site: Site, topic: str, values: Sequence[str], **config: Any) -> None:
    """Produces, and waits until Kafka has said that it has all."""
    failed: list[KafkaError] = []
    producer = Producer({**site.config, **config})
    for value in values:
        producer.produce(
            topic, value.encode(), on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(WAIT_S) == 0
    assert not failed


def polled(consumer: Any) -> list[str]:
    """The values of one poll, beside the first ones of the topic."""
    is_plain = isinstance(consumer, Consumer)
    came = consumer.consume(500, 0.5) if is_plain else consumer.poll(0.5)
    return [
        (each.value() or b"").decode()
        for each in came
        if each.error() is None and each.value() != b"first"
    ]


def consumed(consumer: Any, count: int) -> Counter[str]:
    """The values of so many records, beside the first ones of the topic."""
    found: Counter[str] = Counter()

    def all_came() -> bool:
        found.update(polled(consumer))
        return found.total() >= count

    eventually(all_came, WAIT_S, what=f"{count} records")
    return found


def plain_consumer(site: Site, topic: str, **config: Any) -> Consumer:
    made = Consumer(
        {**site.config, "group.id": unique_name("c"), "auto.offset.reset": "earliest", **config}
    )
    made.subscribe([topic])
    return made


def share_consumer(site: Site, topic: str) -> ShareConsumer:
    """A member of a new group that reads from the begin."""
    group = unique_name("s")
    entry = ConfigEntry(
        "share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET
    )
    admin = site.admin()
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(WAIT_S)
    made = ShareConsumer({**site.config, "group.id": group})
    made.subscribe([topic])
    return made


def test_one_address_is_enough_to_produce_and_to_consume(site: Site) -> None:
    topic, all_values = site.make_topic(), list[str]()
    for acks in ("0", "1", "all"):
        values = [f"{acks}-{number}" for number in range(200)]
        produce(site, topic, values, acks=acks)
        all_values += values
    produce(site, topic, ["once"], **{"enable.idempotence": True})
    expected = Counter([*all_values, "once"])
    metadata = site.admin().list_topics(timeout=WAIT_S)
    host, port = site.address.split(":")
    assert {(each.host, each.port) for each in metadata.brokers.values()} == {
        (host, int(port) + 1 + node) for node in range(1, site.brokers + 1)
    }
    plain = plain_consumer(site, topic)
    assert consumed(plain, 601) == expected
    plain.commit(asynchronous=False)
    plain.close()
    share = share_consumer(site, topic)
    assert consumed(share, 601) == expected
    share.close()


def test_transactions_are_seen_whole_or_not_at_all(site: Site) -> None:
    topic = site.make_topic()
    producer = Producer({**site.config, "transactional.id": unique_name("tx")})
    producer.init_transactions(WAIT_S)
    for text, ends in (("kept", producer.commit_transaction), ("gone", producer.abort_transaction)):
        producer.begin_transaction()
        for number in range(50):
            producer.produce(topic, f"{text}-{number}".encode())
        producer.flush(WAIT_S)
        ends(WAIT_S)
    produce(site, topic, ["last"])
    expected = Counter([*(f"kept-{number}" for number in range(50)), "last"])
    plain = plain_consumer(site, topic)
    assert consumed(plain, 51) == expected
    # Offsets within a transaction, which go to the group's coordinator.
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        plain.position(plain.assignment()), plain.consumer_group_metadata(), WAIT_S
    )
    producer.commit_transaction(WAIT_S)
    committed = plain.committed(plain.assignment(), WAIT_S)
    assert sum(max(0, each.offset) for each in committed) >= 51
    plain.close()


def test_groups_of_both_kinds_are_listed_and_deleted(site: Site) -> None:
    topic = site.make_topic()
    produce(site, topic, ["a", "b"])
    plain, share = plain_consumer(site, topic), share_consumer(site, topic)
    assert consumed(plain, 2) == consumed(share, 2) == Counter("ab")
    plain.commit(asynchronous=False)
    plain.close()
    share.close()
    admin = site.admin()

    def listed() -> Counter[str]:
        found = admin.list_consumer_groups().result(WAIT_S)
        assert not found.errors
        return Counter(each.group_id for each in found.valid
                       if each.type == ConsumerGroupType.CLASSIC)  # fmt: skip

    (group,) = [each for each in listed() if each.startswith("c")][:1] or [""]
    assert group
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    assert described.group_id == group
    for deleted in admin.delete_consumer_groups([group]).values():
        deleted.result(WAIT_S)
    assert group not in listed()


def test_settings_of_topics_are_kafkas(site: Site) -> None:
    topic, admin = site.make_topic(), site.admin()
    entry = ConfigEntry("retention.ms", "12345678", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result(WAIT_S)
    described = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)])
    (found,) = [each.result(WAIT_S) for each in described.values()]
    assert found["retention.ms"].value == "12345678"


def java(main: str, *arguments: str, given: str = "") -> str:
    """What a program of Kafka's prints."""
    command = [str(find_java()), "-cp", f"{kafka_libs('4.3.1')}/*", main]
    done = subprocess.run(
        [*command, *arguments],
        input=given, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kafkas_console_programs_run_unchanged(site: Site) -> None:
    topic = site.make_topic()
    lines = [f"line {number}" for number in range(20)]
    tools, place = "org.apache.kafka.tools", ("--bootstrap-server", site.address, "--topic", topic)
    java(f"{tools}.ConsoleProducer", *place, given="\n".join([*lines, ""]))
    some = ("--max-messages", "24", "--timeout-ms", "60000")
    shown = java(f"{tools}.consumer.ConsoleConsumer", *place, "--from-beginning", *some)
    assert sorted(shown.splitlines()) == sorted([*lines, *["first"] * 4])
    share = share_consumer(site, topic)
    assert consumed(share, 20) == Counter(lines)
    share.close()


def test_a_broker_goes_and_comes_back(tmp_path: Path) -> None:
    with site_of(2, "4.3.1", tmp_path) as site:
        topic = site.make_topic()
        share, expected = share_consumer(site, topic), Counter[str]()
        produce(site, topic, values := [f"before-{number}" for number in range(100)])
        expected.update(values)
        found = consumed(share, 100)
        site.kafka.broker(2).kill()

        def has_left() -> bool:
            # A request that librdkafka has given to the broker that is gone waits for its return.
            return 2 not in site.admin().list_topics(timeout=5).brokers

        eventually(has_left, WAIT_S, what="the other broker says so")
        site.kafka.broker(2).start()
        produce(site, topic, values := [f"after-{number}" for number in range(100)])
        expected.update(values)

        def all_came() -> bool:
            # What the consumer held of the broker's partitions may come again before the others.
            found.update(polled(share))
            return found.keys() >= expected.keys()

        eventually(all_came, WAIT_S, what="every record")
        assert found.keys() == expected.keys()
        share.close()
