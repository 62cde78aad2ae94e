"""Dead letters on a real Kafka: byte for byte, late rather than never, over kill -9."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from sharecoord_sdk import AcknowledgeType, AdminClient, ShareConsumer

from sharecoord.core.letters.dead_letters import ID_HEADER, KAFKA_PREFIX, PAYLOAD_HEADER, PREFIX
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

NAME = "errors.deadletterqueue.topic.name"
WAIT_S = 60


class Reader:
    """Reads a dead-letter topic from its begin."""

    def __init__(self, servers: str, topic: str) -> None:
        self.found: list[Message] = []
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": unique_name("r")})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def close(self) -> None:
        self._consumer.close()

    def has(self, count: int) -> bool:
        for message in self._consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            self.found.append(message)
        return len(self.found) >= count


@pytest.fixture
def read(kafka_broker: KafkaUnderTest) -> Iterator[Callable[[str], Reader]]:
    readers: list[Reader] = []

    def make(topic: str) -> Reader:
        readers.append(Reader(kafka_broker.bootstrap_servers, topic))
        return readers[-1]

    yield make
    for reader in readers:
        reader.close()


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


def test_they_arrive_byte_for_byte(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    odd = [("a", b"1"), ("a", b"\xff\x00"), ("none", None), ("", b"")]
    topics.produce(name, [(b"\x00\xff", b"value", odd), (None, None, None), (b"", b"", [])])
    set_topic(coordinator, group, dead)
    reject_all(coordinator, group, name, 3, reason="größe: nö")
    reader = read(dead)
    eventually(lambda: reader.has(3), WAIT_S, what="dead letters")
    assert [(m.key(), m.value()) for m in reader.found] == [
        (b"\x00\xff", b"value"),
        (None, None),
        (b"", b""),
    ]
    first = reader.found[0]
    assert (first.headers() or [])[: len(odd)] == odd
    assert header(first, KAFKA_PREFIX + "topic") == name
    assert header(first, KAFKA_PREFIX + "offset") == "0"
    assert header(first, KAFKA_PREFIX + "message") == "größe: nö"
    assert header(first, PREFIX + "reason") == "REJECTED"
    assert header(first, PAYLOAD_HEADER) == "whole"


def test_the_topic_is_gone_and_comes_back_and_none_is_lost(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    set_topic(coordinator, group, dead)
    topics.delete(dead)
    topics.produce(name, 100)
    reject_all(coordinator, group, name, 100)
    eventually(lambda: "dead letters wait" in coordinator.log_tail(), WAIT_S, what="the warning")
    coordinator.kill()
    coordinator.restart()
    topics.create(dead, partitions=1)
    reader = read(dead)
    eventually(lambda: reader.has(100), WAIT_S, what="dead letters")
    assert {header(m, KAFKA_PREFIX + "offset") for m in reader.found} == {
        str(n) for n in range(100)
    }
    ids = {header(m, ID_HEADER) for m in reader.found}
    assert len(ids) == 100, "duplicates carry the same id"


def test_what_is_too_large_for_the_topic_goes_without_its_payload(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, group = topic(), unique_name("g")
    dead = unique_name("small")
    topics.create(dead, partitions=1, config={"max.message.bytes": "3000"})
    noise = random.Random(1).randbytes(20_000)
    topics.produce(name, [(b"k", b"x" * 100, None), (b"k", noise, None)])
    set_topic(coordinator, group, dead)
    reject_all(coordinator, group, name, 2)
    reader = read(dead)
    eventually(lambda: reader.has(2), WAIT_S, what="dead letters")
    assert {(m.value() is None, header(m, PAYLOAD_HEADER)) for m in reader.found} == {
        (False, "whole"),
        (True, "kept"),
    }


def test_a_topic_is_made_where_that_is_allowed(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, dead, group = topic(), unique_name("made"), unique_name("g")
    allowed = {"errors.deadletterqueue.auto.create.topics.enable": "true"}
    set_topic(coordinator, group, dead, **allowed)
    assert dead in topics.names()
    topics.produce(name, 10)
    reject_all(coordinator, group, name, 10)
    reader = read(dead)
    eventually(lambda: reader.has(10), WAIT_S, what="dead letters")


ONCE = "errors.deadletterqueue.exactly.once"
FLOOD = 4_000
KILLS = 4


def reject_until_told(
    coordinator: CoordinatorProcess, group: str, topic: str, over: threading.Event
) -> None:
    config = explicit(coordinator.address, group, 50)
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])
        while not over.is_set():
            for message in consumer.poll(0.2):
                consumer.acknowledge(message, AcknowledgeType.REJECT)
            consumer.commit_async()


def test_each_letter_once_over_kill_9_in_the_middle_of_a_flood(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    set_topic(coordinator, group, dead, **{ONCE: "true"})
    topics.produce(name, FLOOD)
    over, reader = threading.Event(), read(dead)
    worker = threading.Thread(target=reject_until_told, args=(coordinator, group, name, over))
    worker.start()
    try:
        for cycle in range(KILLS):
            # Somewhere in a transaction, as like as not.
            enough = cycle * FLOOD // (KILLS + 1) + 1
            eventually(lambda enough=enough: reader.has(enough), WAIT_S, what="some letters")
            coordinator.kill()
            coordinator.restart()
        eventually(lambda: reader.has(FLOOD), 2 * WAIT_S, what="all letters")
    finally:
        over.set()
        worker.join()
    offsets = [header(message, KAFKA_PREFIX + "offset") for message in reader.found]
    assert sorted(map(int, offsets)) == list(range(FLOOD))
    # Of a second reader, after everything has settled: none came behind.
    again = read(dead)
    eventually(lambda: again.has(FLOOD), WAIT_S, what="all letters again")
    again.has(FLOOD + 1)
    assert len(again.found) == FLOOD


def test_each_letter_once_without_its_payload_where_it_is_too_large(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, group = topic(), unique_name("g")
    dead = unique_name("small")
    topics.create(dead, partitions=1, config={"max.message.bytes": "3000"})
    noise = random.Random(1).randbytes(20_000)
    topics.produce(name, [(b"k", b"a", None), (b"k", noise, None), (b"k", b"b", None)])
    set_topic(coordinator, group, dead, **{ONCE: "true"})
    reject_all(coordinator, group, name, 3)
    reader = read(dead)
    eventually(lambda: reader.has(3), WAIT_S, what="dead letters")
    assert sorted((m.value() or b"", header(m, PAYLOAD_HEADER)) for m in reader.found) == [
        (b"", "kept"),
        (b"a", "whole"),
        (b"b", "whole"),
    ]


def test_a_topic_that_is_gone_is_waited_for_with_transactions_too(
    topic: Callable[..., str],
    topics: Topics,
    coordinator: CoordinatorProcess,
    read: Callable[[str], Reader],
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    set_topic(coordinator, group, dead, **{ONCE: "true"})
    topics.delete(dead)
    topics.produce(name, 10)
    reject_all(coordinator, group, name, 10)
    eventually(lambda: f"'{dead}' does not exist" in coordinator.log_tail(), WAIT_S, what="a word")
    topics.create(dead, partitions=1)
    reader = read(dead)
    eventually(lambda: reader.has(10), WAIT_S, what="dead letters")
    assert len({header(m, KAFKA_PREFIX + "offset") for m in reader.found}) == 10
