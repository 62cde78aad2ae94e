"""The same script on Kafka's own share group and here: deliveries, counts, final states are equal.

Records are produced one per batch, so that Kafka's soft record budget is exact, and both sides
take at most ten at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
import pytest
import sharecoord_sdk

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.native import set_group_config
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest, eventually, unique_name

RECORDS = 60
TAKE = 10
DELIVERY_LIMIT = 5

ACCEPT, RELEASE, REJECT = 1, 2, 3


@dataclass
class Outcome:
    """What one side did with every record."""

    deliveries: list[tuple[int, int]] = field(default_factory=list)
    """(offset, delivery count) in the order in which they came."""
    accepted: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    worn_out: set[int] = field(default_factory=set)

    @property
    def finished(self) -> int:
        return len(self.accepted) + len(self.rejected) + len(self.worn_out)


def decide(offset: int, count: int) -> int:
    """The script: some fail always, some at first, some are refused."""
    if offset % 11 == 4:
        return RELEASE
    if offset % 7 == 3:
        return RELEASE if count < 3 else ACCEPT
    if offset % 13 == 5:
        return REJECT
    return ACCEPT


def run_script(module: Any, address: str, group: str, topic: str) -> Outcome:
    """Plays the script until every record is finished."""
    outcome = Outcome()
    consumer = module.ShareConsumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": TAKE,
        }
    )
    consumer.subscribe([topic])

    def step() -> bool:
        messages = consumer.poll(0.5)
        for message in messages:
            assert message.error() is None
            offset, count = message.offset(), message.delivery_count()
            outcome.deliveries.append((offset, count))
            kind = decide(offset, count)
            consumer.acknowledge(message, module.AcknowledgeType(kind))
            if kind == ACCEPT:
                outcome.accepted.add(offset)
            elif kind == REJECT:
                outcome.rejected.add(offset)
            elif count == DELIVERY_LIMIT:
                outcome.worn_out.add(offset)
        if len(messages):
            results = consumer.commit_sync(10.0)
            assert set(results.values()) == {None}
        return outcome.finished == RECORDS

    try:
        eventually(step, 60, what="the end of the script")
        assert len(consumer.poll(1.0)) == 0, "a finished record came again"
    finally:
        consumer.close()
    return outcome


@pytest.fixture
def one_record_batches(topic: Callable[..., str], topics: Topics) -> str:
    name = topic()
    topics.produce(name, RECORDS, one_record_batches=True)
    return name


def test_the_same_script_gives_the_same_deliveries(
    kafka_broker: KafkaUnderTest, coordinator: CoordinatorProcess, one_record_batches: str
) -> None:
    native_group = unique_name("native")
    set_group_config(
        kafka_broker.bootstrap_servers, native_group, {"share.auto.offset.reset": "earliest"}
    )
    native = run_script(
        confluent_kafka, kafka_broker.bootstrap_servers, native_group, one_record_batches
    )
    ours = run_script(sharecoord_sdk, coordinator.address, unique_name("ours"), one_record_batches)
    assert sorted(ours.deliveries) == sorted(native.deliveries)
    assert (ours.accepted, ours.rejected, ours.worn_out) == (
        native.accepted,
        native.rejected,
        native.worn_out,
    )
    for offset in range(RECORDS):
        counts = [count for o, count in ours.deliveries if o == offset]
        assert counts == list(range(1, len(counts) + 1))
