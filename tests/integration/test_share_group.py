"""The main job on a real Kafka: records in, a share group out."""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sharecoord_sdk import AcknowledgeType, AdminClient, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import eventually, poll_until, unique_name

TopicFactory = Callable[..., str]
Consumers = Callable[..., ShareConsumer]


@pytest.fixture
def consumers(coordinator: CoordinatorProcess) -> Iterator[Consumers]:
    with ExitStack() as stack:

        def make(group: str, topic: str, **config: object) -> ShareConsumer:
            consumer = ShareConsumer(
                {"bootstrap.servers": coordinator.address, "group.id": group, **config}
            )
            stack.callback(consumer.close)
            consumer.subscribe([topic])
            return consumer

        yield make


def test_every_record_once_with_key_value_headers_and_time(
    topic: TopicFactory, topics: Topics, consumers: Consumers
) -> None:
    name = topic()
    sent = [
        (b"k%d" % i if i % 3 else None, b"v%d" % i if i % 5 else None, [("h", b"1"), ("h", None)])
        for i in range(500)
    ]
    topics.produce(name, sent)
    consumer = consumers(unique_name("g"), name)
    got = poll_until(consumer, 500)
    assert [m.offset() for m in got] == list(range(500))
    assert [(m.key(), m.value(), m.headers()) for m in got] == sent
    assert {m.delivery_count() for m in got} == {1}
    assert all(m.timestamp()[1] > 0 for m in got)


def test_twenty_members_share_one_partition(
    topic: TopicFactory, topics: Topics, consumers: Consumers
) -> None:
    name, group = topic(), unique_name("g")
    members = [consumers(group, name) for _ in range(20)]
    topics.produce(name, 2_000)
    seen: Counter[int] = Counter()
    shares: Counter[int] = Counter()

    def all_seen() -> bool:
        for i, member in enumerate(members):
            batch = member.poll(0)
            seen.update(m.offset() for m in batch)
            shares[i] += len(batch)
        return len(seen) >= 2_000

    eventually(all_seen, 60, what="2,000 records")
    assert set(seen) == set(range(2_000))
    assert set(seen.values()) == {1}
    assert min(shares[i] for i in range(20)) > 0


def test_released_rejected_and_worn_out(
    topic: TopicFactory, topics: Topics, consumers: Consumers, coordinator: CoordinatorProcess
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 10)
    consumer = consumers(group, name, **{"share.acknowledgement.mode": "explicit"})
    counts: dict[int, list[int]] = {}

    def finished() -> bool:
        for message in consumer.poll(0.2):
            offset = message.offset()
            counts.setdefault(offset, []).append(message.delivery_count())
            kind = AcknowledgeType.ACCEPT
            if offset == 3:
                kind = AcknowledgeType.RELEASE
            elif offset == 5:
                kind = AcknowledgeType.REJECT
            consumer.acknowledge(message, kind)
        consumer.commit_sync()
        return len(counts.get(3, [])) == 5 and len(counts) == 10

    eventually(finished, 30, what="the delivery limit")
    assert counts[3] == [1, 2, 3, 4, 5]
    assert all(counts[o] == [1] for o in range(10) if o != 3)
    eventually(lambda: _start_offset(coordinator, group) == 10, 10, what="everything finished")


def test_a_program_that_does_not_poll_wears_nothing_out(
    topic: TopicFactory, topics: Topics, consumers: Consumers, coordinator: CoordinatorProcess
) -> None:
    name, group = topic(), unique_name("g")
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {"share.record.lock.duration.ms": "1000"})
    topics.produce(name, 500)
    consumer = consumers(group, name, **{"max.poll.records": 10})
    counts: dict[int, list[int]] = {}
    for message in poll_until(consumer, 30):
        counts[message.offset()] = [message.delivery_count()]
    # Nobody polls. What it was given is locked until the locks end, and never again.
    eventually(lambda: not _locked(coordinator, group), 20, what="the end of all locks")

    def all_seen() -> bool:
        # Without pauses: who polls more and more seldom lets what was fetched ahead run out.
        while batch := consumer.poll(0.2):
            for message in batch:
                counts.setdefault(message.offset(), []).append(message.delivery_count())
        return len(counts) == 500

    eventually(all_seen, 30, what="500 records")
    seen_late = [count for offset, count in counts.items() if offset >= 30]
    assert {first for first, *_ in seen_late} <= {1, 2}


def _locked(coordinator: CoordinatorProcess, group: str) -> int:
    """How many ranges of records are under a lock."""
    with sqlite3.connect(f"file:{coordinator.store_path}?mode=ro", uri=True) as db:
        (ranges,) = db.execute(
            "select count(*) from in_flight join share_partition as p on p.id = partition_id"
            " where state = 1 and group_id = ?",
            (group,),
        ).fetchone()
    return int(ranges)


def _start_offset(coordinator: CoordinatorProcess, group: str) -> int | None:
    with sqlite3.connect(f"file:{coordinator.store_path}?mode=ro", uri=True) as db:
        row = db.execute(
            "select start_offset from share_partition where group_id = ?", (group,)
        ).fetchone()
    return None if row is None else row[0]


def test_the_first_record_of_a_fresh_group_comes_within_half_a_second(
    topic: TopicFactory, topics: Topics, consumers: Consumers
) -> None:
    name = topic()
    topics.produce(name, 10)
    times: list[float] = []
    for _ in range(3):
        start = time.monotonic()
        consumer = consumers(unique_name("g"), name)
        poll_until(consumer, 1)
        times.append(time.monotonic() - start)
    assert min(times) < 0.5


def test_a_program_for_confluents_share_consumer_runs_here(
    topic: TopicFactory, topics: Topics, coordinator: CoordinatorProcess
) -> None:
    name = topic()
    topics.produce(name, 100)
    program = """
from confluent_kafka import ShareConsumer, AcknowledgeType, KafkaException, TopicPartition
import sys

confirmed = {}

def on_commit(offsets, exception):
    for place, found in offsets.items():
        confirmed.setdefault((place.topic, place.partition), set()).update(found)

consumer = ShareConsumer({
    "bootstrap.servers": ADDRESS,
    "group.id": GROUP,
    "client.id": "twin",
    "share.acknowledgement.mode": "explicit",
    "max.poll.records": 10,
})
consumer.set_acknowledgement_commit_callback(on_commit)
consumer.subscribe([TOPIC])
seen = []
while len(seen) < 100:
    messages = consumer.poll(timeout=1.0)
    assert len(messages) <= 10
    for message in messages:
        if message.error():
            raise KafkaException(message.error())
        seen.append((message.topic(), message.partition(), message.offset(), message.value()))
        consumer.acknowledge(message, AcknowledgeType.ACCEPT)
    result = consumer.commit_sync(timeout=10.0)
    assert all(error is None for error in result.values()), result
consumer.close()
"""
    namespace = {"ADDRESS": coordinator.address, "GROUP": unique_name("twin"), "TOPIC": name}
    moved = program.replace("from confluent_kafka import", "from sharecoord_sdk import")
    exec(compile(moved, "twin.py", "exec"), namespace)
    assert [offset for _, _, offset, _ in namespace["seen"]] == list(range(100))
    assert namespace["confirmed"] == {(name, 0): set(range(100))}
