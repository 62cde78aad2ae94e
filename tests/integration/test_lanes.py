"""Redriven letters and replays on a real Kafka, over kill -9 of the coordinator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as KafkaPartition
from sharecoord_sdk import AcknowledgeType, AdminClient, Message, ShareConsumer
from sharecoord_sdk.admin import ReplayOf

from sharecoord.core.changes import PartitionKey
from sharecoord.core.letters.lanes import Marking, MarkKind, Selection
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from sharecoord.store.factory import make_store
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

WAIT_S = 90
COUNT = 40


def letters_end(servers: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": unique_name("end")})
    try:
        return int(consumer.get_watermark_offsets(KafkaPartition(topic, 0), timeout=10)[1])
    finally:
        consumer.close()


def take(address: str, group: str, topic: str, count: int, kind: AcknowledgeType) -> list[Message]:
    """So many records, or some more, each settled and confirmed."""
    config = explicit(address, group, 5)
    found: list[Message] = []
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])

        def enough() -> bool:
            for message in consumer.poll(0.2):
                assert message.error() is None
                consumer.acknowledge(message, kind)
                found.append(message)
            assert set(consumer.commit_sync(20).values()) <= {None}
            return len(found) >= count

        eventually(enough, WAIT_S, what="records")
    return found


def test_a_redrive_outlives_kill_9_and_brings_each_letter_once(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    servers = kafka_broker.bootstrap_servers
    topics.produce(name, [(b"k", b"%d" % n, [("own", b"1")]) for n in range(COUNT)])
    coordinator = CoordinatorProcess(servers, tmp_path)
    with coordinator:
        with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
            admin.alter_group_configs(group, {"errors.deadletterqueue.topic.name": dead})
        take(coordinator.address, group, name, COUNT, AcknowledgeType.REJECT)
        eventually(lambda: letters_end(servers, dead) == COUNT, WAIT_S, what="letters")
        coordinator.kill()
        # A redrive is this one transaction: whoever starts next finds all of it.
        store = make_store(f"sqlite:///{coordinator.store_path}")
        store.open(coordinator_id="test", cluster_id="", address="", version="test")
        lane = PartitionKey(group, dead, topics.topic_id(dead), 0, name)
        selection = Selection(lane, ((0, COUNT - 11), (COUNT - 5, COUNT - 1)))
        (taken,) = store.take_in([selection], Marking(MarkKind.REDRIVEN, "run"))
        store.close()
        assert sum(last - first + 1 for first, last in taken.taken) == COUNT - 5
        coordinator.restart()
        accept = AcknowledgeType.ACCEPT
        first = take(coordinator.address, group, name, 12, accept)
        coordinator.kill()
        coordinator.restart()
        rest = take(coordinator.address, group, name, COUNT - 5 - len(first), accept)
    got = [*first, *rest]
    assert Counter(m.offset() for m in got) == Counter(
        [*range(COUNT - 10), *range(COUNT - 5, COUNT)]
    )
    assert {(m.topic(), m.partition(), m.key()) for m in got} == {(name, 0, b"k")}
    assert all(m.headers() == [("own", b"1")] for m in got)
    assert all(m.value() == b"%d" % (m.offset() or 0) for m in got)
    assert {m.redriven() for m in got} == {(dead, 0, m.offset()) for m in got}
    assert {m.delivery_count() for m in first} == {1}


def test_a_replay_outlives_kill_9_and_ends_where_it_should(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    name, group, side = topic(), unique_name("g"), unique_name("side")
    topics.produce(name, [(None, b"%d" % n, []) for n in range(COUNT)])
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator:
        with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
            admin.alter_group_configs(group, {"share.auto.offset.reset": "earliest"})
            (part,) = admin.replay(group, side, ReplayOf.times(), [name])
            assert (part.first_offset, part.stops_at, part.records) == (0, COUNT, COUNT)
        topics.produce(name, [(None, b"later", [])] * 10)
        accept = AcknowledgeType.ACCEPT
        first = take(coordinator.address, side, name, 12, accept)
        coordinator.kill()
        coordinator.restart()
        rest = take(coordinator.address, side, name, COUNT - len(first), accept)
        with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
            (described,) = admin.describe_groups([side])
            (left,) = described.offsets
    assert Counter(m.offset() for m in (*first, *rest)) == Counter(range(COUNT))
    assert (left.start_offset, left.stops_at, left.lag) == (COUNT, COUNT, 0)
