"""Kafka is away for a while: what is in hand is settled meanwhile, the rest comes afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sharecoord_sdk import AcknowledgeType, Message, ShareConsumer

from sharecoord.devenv.broker import KafkaBroker
from tests.acceptance.chaos.fixtures import broker, everybody_is_up, scene
from tests.acceptance.chaos.scene import Scene, configure, let_pass
from tests.support import eventually, explicit, unique_name

__all__ = ["broker", "everybody_is_up", "scene"]

pytestmark = pytest.mark.timeout(300)

SHORT_S, LONG_S = 4.0, 60.0
RECORDS = 1_500


@contextmanager
def stopped(broker: KafkaBroker) -> Iterator[None]:
    """SIGSTOP: connections stay, nobody answers."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker.pid, signal.SIGCONT)


@contextmanager
def killed(broker: KafkaBroker) -> Iterator[None]:
    """Kill -9, and the same port and data afterwards."""
    broker.kill()
    try:
        yield
    finally:
        broker.start()


WAYS = pytest.mark.parametrize("way", [stopped, killed], ids=["sigstop", "kill9"])
TIMES = pytest.mark.parametrize("away_s", [SHORT_S, pytest.param(LONG_S, marks=pytest.mark.long)])


@WAYS
@TIMES
def test_kafka_is_away_and_comes_back(scene: Scene, way: type, away_s: float) -> None:
    with scene.crew(work_ms=1.0, release_each=10) as crew:
        names = crew.hire(), crew.hire()
        crew.produce(scene.topics, RECORDS)
        crew.working(*names)
        crew.at_work(scene.topics, 200)
        with way(scene.broker):
            let_pass(away_s)
            assert scene.coordinator.exit_code is None, "it waits for Kafka"
        crew.produce(scene.topics, 200)
        crew.until_finished(scene.coordinator)
        assert crew.verdict(scene.coordinator).faults == ()


@WAYS
def test_what_is_in_hand_is_settled_while_kafka_is_away(scene: Scene, way: type) -> None:
    name = unique_name("t")
    scene.topics.create(name)
    scene.topics.produce(name, 100)
    group = unique_name("g")
    configure(scene.coordinator, group, share_record_lock_duration_ms=60_000)
    config = explicit(scene.coordinator.address, group, 100)
    with ShareConsumer(config) as consumer:
        consumer.subscribe([name])
        held: list[Message] = []

        def something_came() -> bool:
            held.extend(consumer.poll(0.2))
            return bool(held)

        eventually(something_came, 60, "records in hand")
        with way(scene.broker):
            for message in held:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            assert list(consumer.commit_sync(20.0).values()) == [None]
    scene.topics.delete(name)
