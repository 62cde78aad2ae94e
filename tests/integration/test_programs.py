"""What programs are given on a real Kafka: order by key for programs that do nothing for it, and no
attempt for a record that no program saw."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
from sharecoord_sdk import AcknowledgeType, AdminClient, Message, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.support import eventually, unique_name

TopicFactory = Callable[..., str]
MEMBERS = 8
KEYS = 50


class Shop:
    """Members that work in threads, and what they were given too early.

    Each releases one delivery of five, with some delay, and commits after each poll. None does
    anything for the sake of order.
    """

    def __init__(self, address: str, group: str, topic: str, keys: list[int]) -> None:
        self._config = {
            "bootstrap.servers": address,
            "group.id": group,
            "share.acknowledgement.mode": "explicit",
        }
        self._topic = topic
        self._before = [
            [at for at in range(offset) if keys[at] == key] for offset, key in enumerate(keys)
        ]
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.done: set[int] = set()
        self.early: list[tuple[int, list[int]]] = []
        self.refused: list[object] = []
        self._threads = [threading.Thread(target=self._work, args=(n,)) for n in range(MEMBERS)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Closes all members."""
        self._is_over.set()
        for thread in self._threads:
            thread.join(30)

    def _work(self, number: int) -> None:
        chance = random.Random(number)
        with ShareConsumer(self._config) as consumer:
            consumer.subscribe([self._topic])
            while not self._is_over.is_set():
                for message in consumer.poll(0.2):
                    self._treat(consumer, message, chance)
                results = consumer.commit_sync()
                with self._lock:
                    self.refused += [error for error in results.values() if error is not None]

    def _treat(self, consumer: ShareConsumer, message: Message, chance: random.Random) -> None:
        offset = message.offset()
        assert offset is not None
        with self._lock:
            missing = [at for at in self._before[offset] if at not in self.done]
            if missing:
                self.early.append((offset, missing))
            if chance.random() < 0.2:
                delay_ms = chance.choice((0, 20, 100))
                consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=delay_ms)
            else:
                consumer.acknowledge(message)
                self.done.add(offset)


@pytest.mark.parametrize(("ordering", "records"), [("key", 400), ("partition", 100)])
def test_order_holds_for_programs_that_do_nothing_for_it(
    ordering: str,
    records: int,
    coordinator: CoordinatorProcess,
    topic: TopicFactory,
    topics: Topics,
) -> None:
    name, group, chance = topic(), unique_name("g"), random.Random(5)
    keys = [min(KEYS, int(chance.paretovariate(1.0))) for _ in range(records)]
    topics.produce(name, [(b"%d" % key, b"x", []) for key in keys])
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        limit = {"share.delivery.count.limit": "100"}
        admin.alter_group_configs(group, {"share.ordering": ordering, **limit})
    lanes = keys if ordering == "key" else [0] * records
    shop = Shop(coordinator.address, group, name, lanes)
    try:
        eventually(lambda: len(shop.done) == records, 120, what="all records done")
    finally:
        shop.stop()
    assert shop.early == []
    assert shop.refused == []


def test_what_waits_at_a_program_that_does_not_poll_uses_up_no_attempt(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), unique_name("g")
    config = {
        "bootstrap.servers": coordinator.address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        admin.alter_group_configs(group, {"share.record.lock.duration.ms": "6000"})
    counts: dict[int | None, int | None] = {}
    with ShareConsumer(config) as worker, ShareConsumer(config) as idle:
        worker.subscribe([name])
        topics.produce(name, 20)

        def released() -> bool:
            for message in worker.poll(0.2):
                counts[message.offset()] = message.delivery_count()
                worker.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=1_000)
            return len(counts) == 20

        eventually(released, 30)
        idle.subscribe([name])
        idle.poll(0)
        worker.commit_sync()
        assert set(counts.values()) == {1}
        counts.clear()

        def finished() -> bool:
            for message in worker.poll(0.2):
                counts[message.offset()] = message.delivery_count()
                worker.acknowledge(message)
            worker.commit_sync()
            return len(counts) == 20

        eventually(finished, 60)
    assert set(counts.values()) == {2}
