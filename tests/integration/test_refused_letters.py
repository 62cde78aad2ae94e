"""Brokers that take no dead letters now: all wait, the alert says why, and all arrive later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from confluent_kafka.admin import AdminClient as KafkaAdmin
from sharecoord_sdk import AcknowledgeType, AdminClient, ShareConsumer
from sharecoord_sdk.admin import RecordState

from sharecoord.core.letters.dead_letters import KAFKA_PREFIX
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.topics import Topics
from tests.integration.test_alerts import FAILING, SENT, WAIT_S, WAITING, Watched
from tests.integration.test_dead_letters import ONCE, header, set_topic
from tests.integration.topic_reader import TopicReader
from tests.support import eventually, unique_name

LETTERS = 20
pytestmark = pytest.mark.kafka
modes = pytest.mark.parametrize("once", ["false", "true"])


class Refusing:
    """A broker that can be made to refuse, and a coordinator in front of it."""

    def __init__(self, broker: KafkaBroker, watched: Watched) -> None:
        self.broker, self.watched = broker, watched
        self.topics = Topics(broker.bootstrap_servers)
        self._admin = KafkaAdmin({"bootstrap.servers": broker.bootstrap_servers})

    def topic(self, config: Mapping[str, str] | None = None) -> str:
        name = unique_name("t")
        self.topics.create(name, config=config)
        return name

    def alter(self, topic: str, name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
        for done in self._admin.incremental_alter_configs([resource]).values():
            done.result()

    def deny_write(self, topic: str) -> None:
        """All else stays allowed: that a topic has an ACL denies what none allows."""
        place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS", "*")
        rules = [
            AclBinding(*place, AclOperation.ALL, AclPermissionType.ALLOW),
            AclBinding(*place, AclOperation.WRITE, AclPermissionType.DENY),
        ]
        for done in self._admin.create_acls(rules).values():
            done.result()

    def allow_write(self, topic: str) -> None:
        place = (ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, None, None)
        rule = AclBindingFilter(*place, AclOperation.WRITE, AclPermissionType.DENY)
        for done in self._admin.delete_acls([rule]).values():
            assert len(done.result()) == 1

    def prove(
        self,
        dead: str,
        once: str,
        *,
        why: str,
        refuse: Callable[[], None],
        allow: Callable[[], None],
    ) -> None:
        """What is rejected while a topic refuses it waits and is told, and arrives afterwards."""
        group, source = unique_name("g"), self.topic()
        self.topics.produce(source, LETTERS)
        set_topic(self.watched.process, group, dead, **{ONCE: once})
        self._reject_all(group, source, refuse)
        self.watched.shows(group, **{FAILING: 1, WAITING: LETTERS, SENT: 0})
        self._is_told(f"dead-letter topic '{dead}'", why)
        with AdminClient({"bootstrap.servers": self.watched.process.address}) as admin:
            ranges = admin.list_in_flight(group, source, 0)
        assert {each.state for each in ranges} == {RecordState.ARCHIVING}
        allow()
        self.watched.shows(group, **{FAILING: 0, WAITING: 0, SENT: LETTERS})
        reader = TopicReader(self.broker.bootstrap_servers, dead)
        try:
            eventually(lambda: reader.has(LETTERS), WAIT_S, what="dead letters")
        finally:
            reader.close()
        offsets = [int(header(message, KAFKA_PREFIX + "offset")) for message in reader.found]
        assert sorted(offsets) == list(range(LETTERS))

    def _reject_all(self, group: str, source: str, refuse: Callable[[], None]) -> None:
        config = {
            "bootstrap.servers": self.watched.process.address,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
        seen: set[int | None] = set()
        with ShareConsumer(config) as consumer:
            consumer.subscribe([source])

            def all_rejected() -> bool:
                for message in consumer.poll(0.2):
                    if not seen:
                        # The coordinator has read all of them with the first.
                        refuse()
                    seen.add(message.offset())
                    consumer.acknowledge(message, AcknowledgeType.REJECT)
                return len(seen) == LETTERS

            eventually(all_rejected, WAIT_S, what="all records")
            assert set(consumer.commit_sync(20).values()) <= {None}

    def _is_told(self, *words: str) -> None:
        def told() -> bool:
            lines = self.watched.process.log_tail().replace("\\", "").splitlines()
            return any(all(word in line for word in words) for line in lines)

        eventually(told, WAIT_S, what=f"{words} in the log")


@contextmanager
def refusing(directory: Path, broker: KafkaBroker) -> Iterator[Refusing]:
    watched = Watched(broker.bootstrap_servers, directory)
    with watched.process:
        yield Refusing(broker, watched)


@pytest.fixture(scope="module")
def kafka(
    broker_with_acls: KafkaBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Refusing]:
    with refusing(tmp_path_factory.mktemp("acls"), broker_with_acls) as made:
        yield made


@pytest.fixture(scope="module")
def old_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Refusing]:
    """Newer ones want no more replicas in sync than a topic has."""
    directory = tmp_path_factory.mktemp("old")
    with KafkaBroker("2.8.2") as broker, refusing(directory, broker) as made:
        yield made


@modes
def test_a_topic_that_may_not_be_written_is_waited_for(kafka: Refusing, once: str) -> None:
    dead = kafka.topic()
    kafka.prove(
        dead,
        once,
        why="allow WRITE and DESCRIBE on it",
        refuse=partial(kafka.deny_write, dead),
        allow=partial(kafka.allow_write, dead),
    )


@modes
def test_a_topic_that_takes_no_such_records_is_waited_for(kafka: Refusing, once: str) -> None:
    """A compacted topic refuses what has no key."""
    dead = kafka.topic({"cleanup.policy": "compact"})
    kafka.prove(
        dead,
        once,
        why="INVALID_RECORD",
        refuse=lambda: None,
        allow=partial(kafka.alter, dead, "cleanup.policy", "delete"),
    )


def test_a_broker_that_is_away_raises_the_alert_until_it_is_back(kafka: Refusing) -> None:
    """Kafka's client tries on by itself, and says nothing."""
    dead, why = kafka.topic(), "no answer from Kafka"
    try:
        kafka.prove(dead, "false", why=why, refuse=kafka.broker.kill, allow=kafka.broker.start)
    finally:
        if not kafka.broker.running:
            kafka.broker.start()


@pytest.mark.long
@modes
def test_a_topic_without_enough_replicas_is_waited_for(old_kafka: Refusing, once: str) -> None:
    # A transaction ends with Kafka's reason; without one the client tries on and says nothing.
    name = "min.insync.replicas"
    why = name if once == "false" else "NOT_ENOUGH_REPLICAS"
    dead = old_kafka.topic({name: "2"})
    allow = partial(old_kafka.alter, dead, name, "1")
    old_kafka.prove(dead, once, why=why, refuse=lambda: None, allow=allow)
