"""The audit trail in a topic of a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from sharecoord_sdk import AdminClient

from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.integration.topic_reader import TopicReader
from tests.support import KafkaUnderTest, eventually

WAIT_S = 60


def change(coordinator: CoordinatorProcess, *, lock_duration_ms: int) -> None:
    settings = {"share.record.lock.duration.ms": str(lock_duration_ms)}
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs("audited", settings)


def test_calls_arrive_in_order_over_an_end_and_a_kill(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path
) -> None:
    trail = topic()
    servers, settings = kafka_broker.bootstrap_servers, {"security.audit.sink": f"kafka:{trail}"}
    durations_ms = [20_000, 30_000, 40_000]
    reader = TopicReader(servers, trail)
    with CoordinatorProcess(servers, tmp_path, settings=settings) as coordinator:
        change(coordinator, lock_duration_ms=durations_ms[0])
        # The line may still wait when the process is told to end: it is written first.
        coordinator.stop()
        eventually(lambda: reader.has(1), WAIT_S, what="the line of a process that has ended")
        coordinator.start()
        change(coordinator, lock_duration_ms=durations_ms[1])
        eventually(lambda: reader.has(2), WAIT_S, what="the line of the next process")
        coordinator.kill()
        coordinator.start()
        change(coordinator, lock_duration_ms=durations_ms[2])
        eventually(lambda: reader.has(3), WAIT_S, what="the line after a kill")
    reader.close()
    lines = [json.loads(message.value() or b"") for message in reader.found]
    assert [line["call"] for line in lines] == ["alter_group_configs"] * 3
    assert [line["after"]["share.record.lock.duration.ms"] for line in lines] == [
        str(each) for each in durations_ms
    ]
    assert {line["principal"] for line in lines} == {"User:anonymous"}
    assert {message.key() for message in reader.found} == {b"standalone"}
