"""kill -9 of the coordinator: what was promised holds (design 4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from sharecoord_sdk import AcknowledgeType, Message, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

SHORT_LOCKS = {
    "group.share.record.lock.duration.ms": 3_000,
    "group.share.delivery.count.limit": 1_000,
}
"""What died with an answer is there again after this time, not after 30 s; none is given up."""


def test_locks_and_counts_survive_kill_9(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 200)
    with CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator:
        config = explicit(coordinator.address, group, 100)
        with ShareConsumer(config) as a, ShareConsumer(config) as b:
            a.subscribe([name])
            held: list[Message] = []
            eventually(lambda: held.extend(a.poll(0.2)) or len(held) > 0, 20, what="a holds")
            coordinator.kill()
            coordinator.restart()
            b.subscribe([name])
            others: list[Message] = []

            def rest_came() -> bool:
                batch = list(b.poll(0.2))
                for message in batch:
                    b.acknowledge(message)
                others.extend(batch)
                b.commit_async()
                return len(others) >= 200 - len(held)

            eventually(rest_came, 30, what="the rest goes to b")
            mine = {m.offset() for m in held}
            assert not mine & {m.offset() for m in others}
            for message in held:
                a.acknowledge(message, AcknowledgeType.ACCEPT)
            result = a.commit_sync(timeout=20.0)
            assert list(result.values()) == [None]


@pytest.mark.parametrize("total", [6_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_six_kills_under_load_lose_nothing(
    kafka_broker: KafkaUnderTest,
    topic: Callable[..., str],
    topics: Topics,
    tmp_path: Path,
    total: int,
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, total)
    seen: Counter[int] = Counter()
    confirmed: set[int] = set()

    def on_commit(offsets: dict[object, set[int]], exception: object) -> None:
        if exception is None:
            for found in offsets.values():
                confirmed.update(found)

    with CoordinatorProcess(
        kafka_broker.bootstrap_servers, tmp_path, settings=SHORT_LOCKS
    ) as coordinator:
        config = explicit(coordinator.address, group, 50)
        with ShareConsumer(config) as consumer:
            consumer.set_acknowledgement_commit_callback(on_commit)
            consumer.subscribe([name])
            kills = 0

            def step() -> bool:
                nonlocal kills
                again = set()
                for message in consumer.poll(0.1):
                    seen[message.offset()] += 1
                    if message.offset() in confirmed:
                        again.add(message.offset())
                    consumer.acknowledge(message)
                assert not again, f"confirmed and delivered again: {sorted(again)[:5]}"
                consumer.commit_async()
                if kills < 6 and len(seen) > (kills + 1) * total // 8:
                    coordinator.kill()
                    coordinator.restart()
                    kills += 1
                return len(confirmed) == total

            eventually(step, 110, what="every record confirmed")
    assert kills == 6
    assert set(seen) == set(range(total))
