"""`max.poll.records`: the SDK refuses what a coordinator refuses; a worker has no such limit."""

from __future__ import annotations

from typing import Any

import pytest
from sharecoord_sdk import AsyncShareConsumer, KafkaError, KafkaException, ShareConsumer
from sharecoord_sdk._core.config_table import POLL_RECORDS_MAX

from sharecoord.api.grpc.validation import MAX_POLL_RECORDS_MAX

from .fake_coordinator import make_batch
from .worker_running import Make
from .worker_world import WorkerWorld, credit_of

CONFIG: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}


def test_the_limit_is_the_coordinators() -> None:
    assert POLL_RECORDS_MAX == MAX_POLL_RECORDS_MAX


@pytest.mark.parametrize("kind", [ShareConsumer, AsyncShareConsumer])
def test_more_than_the_limit_is_refused_with_its_name_and_the_limit(kind: Any) -> None:
    with pytest.raises(KafkaException) as caught:
        kind({**CONFIG, "max.poll.records": MAX_POLL_RECORDS_MAX + 1})
    error = caught.value.args[0]
    assert error.code() == KafkaError._INVALID_ARG
    assert error.str() == (
        'Configuration property "max.poll.records" value 10001 is outside allowed range 1..10000'
    )


def test_the_limit_itself_is_taken() -> None:
    with ShareConsumer({**CONFIG, "max.poll.records": MAX_POLL_RECORDS_MAX}) as consumer:
        assert consumer.subscription() == []


def test_a_worker_of_more_slots_joins_within_the_limit(make: Make) -> None:
    running = make(concurrency=2 * MAX_POLL_RECORDS_MAX)
    running.worker.handler("t")(lambda message: None)
    assert running.start().join.max_poll_records == MAX_POLL_RECORDS_MAX


def test_a_worker_of_more_slots_fills_all_of_them() -> None:
    slots = 2 * MAX_POLL_RECORDS_MAX
    world = WorkerWorld(concurrency=slots)
    world.join()
    received = 0
    while world.hands.running < slots:
        count = credit_of(world) - received
        assert count > 0, f"{world.hands.running} slots have a record, and none is asked for"
        world.receive(make_batch([b"x"] * count, base=received))
        received += count
        world.start()
        world.publish()
