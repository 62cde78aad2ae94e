"""Whole batches on a real Kafka: what comes out of them is what columns and librdkafka say."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from sharecoord_sdk import AcknowledgeType, AdminClient, Message, ShareConsumer
from sharecoord_sdk._core import whole

from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.arrivals import Arrived, came
from tests.conftest import TopicFactory
from tests.integration.test_raw_batches import CODECS, TIMEOUT_S, producer, seen
from tests.support import KafkaUnderTest, eventually, poll_until, unique_name

__all__ = ["came"]

RECORDS = 700

Consumers = Callable[..., ShareConsumer]


@pytest.fixture
def consumers(coordinator: CoordinatorProcess) -> Iterator[Consumers]:
    """Makes consumers of a group and a topic; the group does not look for schedules."""
    with ExitStack() as stack:
        admin = stack.enter_context(AdminClient({"bootstrap.servers": coordinator.address}))

        def make(group: str, topic: str, **config: object) -> ShareConsumer:
            admin.alter_group_configs(group, {"share.scheduled.delivery": False})
            made = ShareConsumer(
                {"bootstrap.servers": coordinator.address, "group.id": group, **config}
            )
            stack.callback(made.close)
            made.subscribe([topic])
            return made

        yield make


def fill(servers: str, topic: str, compression: str) -> None:
    """Keys, nulls, several headers with one name, times: each kind of record there is."""
    made = producer(servers, **{"compression.type": compression})
    for i in range(RECORDS):
        made.produce(
            topic,
            None if i % 11 == 0 else b"value %d " % i + b"x" * (i % 400),
            None if i % 3 == 0 else b"k%d" % (i % 7),
            timestamp=1_700_000_000_000 + i * 37 % 1_000,
            headers=[("a", b"%d" % i), ("a", None), ("ключ", b"")] if i % 5 == 0 else [],
        )
    assert made.flush(TIMEOUT_S) == 0


def row(message: Message) -> tuple[Any, ...]:
    _, time_ms = message.timestamp()
    headers = message.headers() or []
    return message.offset(), time_ms, message.key(), message.value(), headers


@pytest.mark.parametrize("compression", CODECS)
def test_both_forms_say_what_librdkafka_says(
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
    consumers: Consumers,
    came: list[Arrived],
    compression: str,
) -> None:
    name = topic()
    fill(kafka_broker.bootstrap_servers, name, compression)
    wanted = seen(kafka_broker.bootstrap_servers, name)
    for form in ("auto", "false"):
        came.clear()
        consumer = consumers(unique_name("g"), name, **{"sharecoord.record.batches": form})
        got = poll_until(consumer, RECORDS)
        assert [row(message) for message in got] == wanted
        unopened = sum(each.batch.record_count for each in came if each.contents)
        if form == "false" or compression == "none":
            # Small batches that are not compressed go as columns.
            assert unopened == 0
        else:
            assert unopened > RECORDS / 2


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_members_of_both_kinds_work_off_a_topic_and_what_was_released_comes_again(
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
    consumers: Consumers,
    came: list[Arrived],
    compression: str,
) -> None:
    name, group = topic(), unique_name("g")
    fill(kafka_broker.bootstrap_servers, name, compression)
    explicit = {"share.acknowledgement.mode": "explicit"}
    opens = consumers(group, name, **explicit)
    columns = consumers(group, name, **explicit, **{"sharecoord.record.batches": "false"})
    done: dict[int, tuple[Any, ...]] = {}
    counts: dict[int, int] = {}

    def work() -> bool:
        for consumer in (opens, columns):
            for message in consumer.poll(0):
                at, count = message.offset(), message.delivery_count()
                assert at not in done
                counts[at] = count
                if at % 13 == 0 and count == 1:
                    consumer.acknowledge(message, AcknowledgeType.RELEASE)
                else:
                    done[at] = row(message)
                    consumer.acknowledge(message)
            consumer.commit_sync(10)
        return len(done) == RECORDS

    eventually(work, 60, what="all records")
    assert [done[at] for at in sorted(done)] == seen(kafka_broker.bootstrap_servers, name)
    assert {at for at, count in counts.items() if count == 2} == set(range(0, RECORDS, 13))
    again = [each for each in came if each.batch.ranges[0].delivery_count > 1]
    assert again
    assert not any(each.contents for each in again)


def test_of_transactions_only_what_was_committed_comes(
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
    consumers: Consumers,
    coordinator: CoordinatorProcess,
) -> None:
    name, group = topic(), unique_name("g")
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {"share.isolation.level": "read_committed"})
    made = producer(
        kafka_broker.bootstrap_servers,
        **{"transactional.id": unique_name("x"), "compression.type": "lz4"},
    )
    made.init_transactions(TIMEOUT_S)
    for turn in range(6):
        made.begin_transaction()
        for i in range(100):
            made.produce(name, b"%d %d" % (turn, i))
        (made.abort_transaction if turn % 2 else made.commit_transaction)(TIMEOUT_S)
    got = poll_until(consumers(group, name), 300)
    time.sleep(0.1)
    assert [m.value() for m in got] == [b"%d %d" % (t, i) for t in (0, 2, 4) for i in range(100)]


def test_what_a_member_can_not_open_comes_again_as_columns(
    kafka_broker: KafkaUnderTest,
    topic: TopicFactory,
    consumers: Consumers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = topic()
    fill(kafka_broker.bootstrap_servers, name, "zstd")

    def damaged(*_: object) -> whole.Opened:
        raise ValueError("it is damaged")

    monkeypatch.setattr(whole, "read", damaged)
    consumer = consumers(unique_name("g"), name)
    done: dict[int, tuple[Any, ...]] = {}
    failed: set[int] = set()

    def work() -> bool:
        for message in consumer.poll(0.1):
            if message.error() is None:
                assert message.delivery_count() == (2 if message.offset() in failed else 1)
                done[message.offset()] = row(message)
            else:
                failed.add(message.offset())
        return len(done) == RECORDS

    eventually(work, 60, what="all records")
    assert len(failed) > RECORDS / 2
    assert [done[at] for at in sorted(done)] == seen(kafka_broker.bootstrap_servers, name)
