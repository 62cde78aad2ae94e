"""Dead letters on a real Kafka: byte for byte, late rather than never, over kill -9."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message
from sharecoord_sdk import AcknowledgeType, AdminClient, ShareConsumer

from sharecoord.core.letters.dead_letters import ID_HEADER, KAFKA_PREFIX, PAYLOAD_HEADER, PREFIX
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.integration.topic_reader import TopicReader
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

NAME = "errors.deadletterqueue.topic.name"
WAIT_S = 60


class Desk:
    """A group, its topic, and a coordinator that sends its dead letters to another one."""

    def __init__(self, servers: str, topic: str, topics: Topics, at: CoordinatorProcess) -> None:
        self.topic, self.topics, self.coordinator = topic, topics, at
        self.group = unique_name("g")
        self._servers = servers
        self._readers: list[TopicReader] = []

    def close(self) -> None:
        for reader in self._readers:
            reader.close()

    def read(self, topic: str) -> TopicReader:
        self._readers.append(TopicReader(self._servers, topic))
        return self._readers[-1]

    def arrived(self, topic: str, count: int) -> list[Message]:
        """Waits for so many dead letters."""
        reader = self.read(topic)
        eventually(lambda: reader.has(count), WAIT_S, what="dead letters")
        return reader.found

    def set_topic(self, topic: str, **more: str) -> None:
        set_topic(self.coordinator, self.group, topic, **more)

    def small_topic(self) -> str:
        """One that does not take what `noise` is."""
        name = unique_name("small")
        self.topics.create(name, partitions=1, config={"max.message.bytes": "3000"})
        return name

    def reject_all(self, count: int, *, reason: str = "") -> None:
        reject_all(self.coordinator, self.group, self.topic, count, reason=reason)


@pytest.fixture
def desk(
    kafka_broker: KafkaUnderTest,
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
) -> Iterator[Desk]:
    made = Desk(kafka_broker.bootstrap_servers, topic(), topics, coordinator)
    yield made
    made.close()


def header(message: Message, name: str) -> str:
    (value,) = (value for each, value in message.headers() or [] if each == name)
    assert value is not None
    return str(value.decode())


def set_topic(coordinator: CoordinatorProcess, group: str, topic: str, **more: str) -> None:
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {NAME: topic, **more})


def reject_all(
    coordinator: CoordinatorProcess, group: str, topic: str, count: int, *, reason: str = ""
) -> None:
    config = explicit(coordinator.address, group)
    seen: set[int] = set()
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])

        def all_rejected() -> bool:
            for message in consumer.poll(0.2):
                seen.add(message.offset() or 0)
                consumer.acknowledge(message, AcknowledgeType.REJECT, reason=reason)
            return len(seen) == count

        eventually(all_rejected, WAIT_S, what="all records")
        assert set(consumer.commit_sync(10).values()) <= {None}


def noise() -> bytes:
    """What no compression makes small."""
    return random.Random(1).randbytes(20_000)


def test_they_arrive_byte_for_byte(desk: Desk, topic: Callable[..., str]) -> None:
    dead = topic()
    odd = [("a", b"1"), ("a", b"\xff\x00"), ("none", None), ("", b"")]
    desk.topics.produce(
        desk.topic, [(b"\x00\xff", b"value", odd), (None, None, None), (b"", b"", [])]
    )
    desk.set_topic(dead)
    desk.reject_all(3, reason="größe: nö")
    found = desk.arrived(dead, 3)
    assert [(m.key(), m.value()) for m in found] == [
        (b"\x00\xff", b"value"),
        (None, None),
        (b"", b""),
    ]
    first = found[0]
    assert (first.headers() or [])[: len(odd)] == odd
    assert header(first, KAFKA_PREFIX + "topic") == desk.topic
    assert header(first, KAFKA_PREFIX + "offset") == "0"
    assert header(first, KAFKA_PREFIX + "message") == "größe: nö"
    assert header(first, PREFIX + "reason") == "REJECTED"
    assert header(first, PAYLOAD_HEADER) == "whole"


def test_the_topic_is_gone_and_comes_back_and_none_is_lost(
    desk: Desk, topic: Callable[..., str]
) -> None:
    dead = topic()
    desk.set_topic(dead)
    desk.topics.delete(dead)
    desk.topics.produce(desk.topic, 100)
    desk.reject_all(100)
    eventually(
        lambda: "dead letters wait" in desk.coordinator.log_tail(), WAIT_S, what="the warning"
    )
    desk.coordinator.kill()
    desk.coordinator.restart()
    desk.topics.create(dead, partitions=1)
    found = desk.arrived(dead, 100)
    assert {header(m, KAFKA_PREFIX + "offset") for m in found} == {str(n) for n in range(100)}
    ids = {header(m, ID_HEADER) for m in found}
    assert len(ids) == 100, "duplicates carry the same id"


def test_what_is_too_large_for_the_topic_goes_without_its_payload(desk: Desk) -> None:
    dead = desk.small_topic()
    desk.topics.produce(desk.topic, [(b"k", b"x" * 100, None), (b"k", noise(), None)])
    desk.set_topic(dead)
    desk.reject_all(2)
    found = desk.arrived(dead, 2)
    assert {(m.value() is None, header(m, PAYLOAD_HEADER)) for m in found} == {
        (False, "whole"),
        (True, "kept"),
    }


def test_a_topic_is_made_where_that_is_allowed(desk: Desk) -> None:
    dead = unique_name("made")
    allowed = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    desk.set_topic(dead, **allowed)
    assert dead in desk.topics.names()
    desk.topics.produce(desk.topic, 10)
    desk.reject_all(10)
    desk.arrived(dead, 10)


ONCE = "errors.deadletterqueue.exactly.once"
FLOOD = 4_000
KILLS = 4


def reject_until_told(desk: Desk, over: threading.Event) -> None:
    config = explicit(desk.coordinator.address, desk.group, 50)
    with ShareConsumer(config) as consumer:
        consumer.subscribe([desk.topic])
        while not over.is_set():
            for message in consumer.poll(0.2):
                consumer.acknowledge(message, AcknowledgeType.REJECT)
            consumer.commit_async()


def test_each_letter_once_over_kill_9_in_the_middle_of_a_flood(
    desk: Desk, topic: Callable[..., str]
) -> None:
    dead = topic()
    desk.set_topic(dead, **{ONCE: "true"})
    desk.topics.produce(desk.topic, FLOOD)
    over, reader = threading.Event(), desk.read(dead)
    worker = threading.Thread(target=reject_until_told, args=(desk, over))
    worker.start()
    try:
        for cycle in range(KILLS):
            # Somewhere in a transaction, as like as not.
            enough = cycle * FLOOD // (KILLS + 1) + 1
            eventually(lambda enough=enough: reader.has(enough), WAIT_S, what="some letters")
            desk.coordinator.kill()
            desk.coordinator.restart()
        eventually(lambda: reader.has(FLOOD), 2 * WAIT_S, what="all letters")
    finally:
        over.set()
        worker.join()
    offsets = [header(message, KAFKA_PREFIX + "offset") for message in reader.found]
    assert sorted(map(int, offsets)) == list(range(FLOOD))
    # Of a second reader, after everything has settled: none came behind.
    again = desk.read(dead)
    eventually(lambda: again.has(FLOOD), WAIT_S, what="all letters again")
    again.has(FLOOD + 1)
    assert len(again.found) == FLOOD


def test_each_letter_once_without_its_payload_where_it_is_too_large(desk: Desk) -> None:
    dead = desk.small_topic()
    desk.topics.produce(desk.topic, [(b"k", b"a", None), (b"k", noise(), None), (b"k", b"b", None)])
    desk.set_topic(dead, **{ONCE: "true"})
    desk.reject_all(3)
    found = desk.arrived(dead, 3)
    assert sorted((m.value() or b"", header(m, PAYLOAD_HEADER)) for m in found) == [
        (b"", "kept"),
        (b"a", "whole"),
        (b"b", "whole"),
    ]


def test_a_topic_that_is_gone_is_waited_for_with_transactions_too(
    desk: Desk, topic: Callable[..., str]
) -> None:
    dead = topic()
    desk.set_topic(dead, **{ONCE: "true"})
    desk.topics.delete(dead)
    desk.topics.produce(desk.topic, 10)
    desk.reject_all(10)
    eventually(
        lambda: f"'{dead}' does not exist" in desk.coordinator.log_tail(), WAIT_S, what="a word"
    )
    desk.topics.create(dead, partitions=1)
    found = desk.arrived(dead, 10)
    assert len({header(m, KAFKA_PREFIX + "offset") for m in found}) == 10
