"""What a coordinator process tells Prometheus about its dead letters, and how the alerts end."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from sharecoord_sdk import AcknowledgeType, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from tests.acceptance.bad_input import run_cli
from tests.integration.test_dead_letters import reject_all, set_topic
from tests.support import KafkaUnderTest, eventually, unique_name

WAIT_S = 60
FAILING, FULL = "sharecoord_dead_letters_failing", "sharecoord_dead_letters_full"
WAITING, SENT = "sharecoord_dead_letters_waiting_records", "sharecoord_dead_letters_total"
FLOOD, PAUSED = "sharecoord_flood_breaker_open", "sharecoord_group_paused"


class Watched:
    """A coordinator whose metrics can be read."""

    def __init__(self, bootstrap_servers: str, directory: Path) -> None:
        (port,) = free_ports(1)
        self._url = f"http://{LOOPBACK}:{port}/metrics"
        settings = {
            "management.port": port,
            # A topic that is missing is said in a second.
            "kafka.topic.metadata.propagation.max.ms": 1_000,
        }
        self.process = CoordinatorProcess(bootstrap_servers, directory, settings=settings)

    def metrics(self, group: str) -> dict[str, float]:
        """By name; each test has one group with one partition."""
        with urllib.request.urlopen(self._url, timeout=10) as answer:
            text = answer.read().decode()
        return {
            sample.name: sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.labels.get("group") == group
        }

    def shows(self, group: str, **wanted: float) -> None:
        """Waits until metrics have these values."""

        def found() -> bool:
            seen = {name: self.metrics(group).get(name) for name in wanted}
            assert seen == wanted
            return True

        eventually(found, WAIT_S, what=f"{wanted}")


@pytest.fixture(scope="module")
def watched(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Watched]:
    made = Watched(kafka_broker.bootstrap_servers, tmp_path_factory.mktemp("watched"))
    with made.process:
        yield made


def status_of(watched: Watched, group: str) -> str:
    """What the command line says of the group's one partition."""
    server = ("--bootstrap-server", watched.process.address)
    return run_cli("groups", "--describe", "--group", group, *server).out


def test_a_topic_that_is_gone_raises_the_alerts_until_it_is_back(
    watched: Watched, topic: Callable[..., str], topics: Topics
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    limit = {"errors.deadletterqueue.outbox.max.bytes": "1MiB"}
    set_topic(watched.process, group, dead, **limit)
    topics.delete(dead)
    topics.produce(name, 11, value_bytes=100_000)
    reject_all(watched.process, group, name, 11)
    watched.shows(group, **{FAILING: 1, FULL: 1, WAITING: 11, SENT: 0})
    said = f"  11 dead letters not in their topic yet: dead-letter topic '{dead}' does not exist"
    assert said in status_of(watched, group)
    topics.create(dead, partitions=1)
    watched.shows(group, **{FAILING: 0, FULL: 0, WAITING: 0, SENT: 11})
    assert status_of(watched, group).endswith("  ok\n")


def test_a_flood_pauses_the_group_until_it_is_resumed_by_hand(
    watched: Watched, topic: Callable[..., str], topics: Topics
) -> None:
    name, dead, group = topic(), topic(), unique_name("g")
    # Judged when all are finished: none is left behind for the worker to wait for.
    flood = "errors.deadletterqueue.flood."
    settings = {flood + "ratio": "0.2", flood + "min.records": "150"}
    set_topic(watched.process, group, dead, **settings)
    topics.produce(name, 150)
    reject_all(watched.process, group, name, 150)
    watched.shows(group, **{FLOOD: 1, PAUSED: 1, SENT: 150})
    address = ("--bootstrap-server", watched.process.address)
    described = run_cli("groups", "--describe", "--state", "--group", group, *address).out
    assert "flood breaker: 150 of 150 records" in described
    topics.produce(name, 10)
    config = {"bootstrap.servers": watched.process.address, "group.id": group}
    with ShareConsumer({**config, "share.acknowledgement.mode": "explicit"}) as consumer:
        consumer.subscribe([name])
        watched.shows(group, sharecoord_lag_records=10, sharecoord_members=1)
        assert list(consumer.poll(1.0)) == []
        resumed = run_cli("groups", "--resume", "--group", group, *address)
        assert resumed.exit_code == 0, resumed.err
        watched.shows(group, **{FLOOD: 0, PAUSED: 0})
        seen: set[int | None] = set()

        def all_came() -> bool:
            for message in consumer.poll(0.2):
                seen.add(message.offset())
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
            return len(seen) == 10

        eventually(all_came, WAIT_S, what="what the group was paused before")
    watched.shows(group, sharecoord_lag_records=0)
