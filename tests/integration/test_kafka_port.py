"""Unmodified share consumers at the Kafka port, with a real Kafka behind it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
import sharecoord_sdk
from confluent_kafka import AcknowledgeType, Message, ShareConsumer
from sharecoord_sdk.admin import AdminClient

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Topics
from tests.integration.kafka_tools import KafkaTools
from tests.support import KafkaUnderTest, eventually, explicit, unique_name

WAIT_S = 60


class Desk:
    """A coordinator with a Kafka port."""

    def __init__(self, servers: str, folder: Path) -> None:
        (port,) = free_ports(1)
        self.kafka_address = f"127.0.0.1:{port}"
        # A run of all suites with security changes nothing here: these clients show no credentials.
        settings = {"kafka.port.listen": self.kafka_address, "security.audit.sink": "off"}
        self.coordinator = CoordinatorProcess(servers, folder, settings=settings)
        self.group = unique_name("g")

    def consumer(self, topic: str, **more: Any) -> ShareConsumer:
        """librdkafka's share consumer, as its users make it."""
        made = ShareConsumer(
            {
                "bootstrap.servers": self.kafka_address,
                "group.id": self.group,
                **{name.replace("_", "."): value for name, value in more.items()},
            }
        )
        made.subscribe([topic])
        return made


@pytest.fixture
def desk(kafka_broker: KafkaUnderTest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(kafka_broker.bootstrap_servers, tmp_path)
    with made.coordinator:
        yield made


def place(message: Message) -> tuple[int, int]:
    return message.partition() or 0, message.offset() or 0


def collected(consumer: ShareConsumer, found: dict[tuple[int, int], Any]) -> None:
    for message in consumer.poll(0.2):
        assert message.error() is None, message.error()
        found[place(message)] = message


def test_every_record_comes_byte_for_byte(
    desk: Desk, topic: Callable[..., str], topics: Topics
) -> None:
    name = topic(partitions=3)
    headers = [("a", b"1"), ("a", b"\xff"), ("none", None)]
    topics.produce(name, [(b"key", b"value", headers), (None, None, []), (b"", b"", [])])
    topics.produce(name, 1_000)
    consumer, found = desk.consumer(name), dict[tuple[int, int], Any]()

    def all_came() -> bool:
        collected(consumer, found)
        return len(found) == 1_003

    eventually(all_came, WAIT_S, what="all records")
    consumer.close()
    said = {(m.key(), m.value()) for m in found.values() if m.offset() < 3}
    assert {(b"key", b"value"), (None, None), (b"", b"")} <= said
    (first,) = (m for m in found.values() if m.key() == b"key")
    assert first.headers() == headers


def test_what_is_released_comes_again_and_what_is_rejected_does_not(
    desk: Desk, topic: Callable[..., str], topics: Topics
) -> None:
    name = topic()
    topics.produce(name, 9)
    consumer = desk.consumer(name, share_acknowledgement_mode="explicit")
    kinds = [AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT]
    times: dict[int, int] = {}

    def all_came() -> bool:
        for message in consumer.poll(0.2):
            offset = message.offset() or 0
            times[offset] = times.get(offset, 0) + 1
            again = times[offset] > 1
            consumer.acknowledge(message, AcknowledgeType.ACCEPT if again else kinds[offset % 3])
        return sum(times.values()) == 12

    eventually(all_came, WAIT_S, what="three records twice")
    assert set(consumer.commit_sync(10).values()) <= {None}
    consumer.close()
    assert times == {offset: 2 if offset % 3 == 1 else 1 for offset in range(9)}


def test_members_of_both_protocols_share_a_group(
    desk: Desk, topic: Callable[..., str], topics: Topics
) -> None:
    name = topic()
    kafka = desk.consumer(name)
    config = explicit(desk.coordinator.address, desk.group)
    by_kafka: dict[tuple[int, int], Any] = {}
    by_grpc: list[int] = []
    with sharecoord_sdk.ShareConsumer(config) as grpc:
        grpc.subscribe([name])
        grpc.poll(0.1)

        def all_came() -> bool:
            if min(len(by_kafka), len(by_grpc)) == 0:
                # Both are there by now, or will be: each gets a part of what comes.
                topics.produce(name, 200)
            collected(kafka, by_kafka)
            for message in grpc.poll(0.2):
                by_grpc.append(message.offset() or 0)
                grpc.acknowledge(message)
            return bool(by_kafka) and bool(by_grpc)

        eventually(all_came, WAIT_S, what="records for both")
        with AdminClient({"bootstrap.servers": desk.coordinator.address}) as admin:
            (group,) = admin.describe_groups([desk.group])
        ours, theirs = sorted((each.software for each in group.members), reverse=True)
        assert ours == f"sharecoord-sdk {sharecoord_sdk.__version__}"
        assert theirs.startswith(f"confluent-kafka-python {confluent_kafka.__version__}")
        grpc.commit_sync(10)
    kafka.close()
    offsets = [offset for _, offset in by_kafka]
    assert not set(offsets) & set(by_grpc)


# -- Kafka's own programs -------------------------------------------------------------------------


def java(version: str, main: str, *arguments: str) -> str:
    """What a program of Kafka prints."""
    command = [
        str(find_java()),
        "-cp",
        f"{kafka_libs(version)}/*",
        f"org.apache.kafka.tools.{main}",
    ]
    done = subprocess.run(
        [*command, *arguments], capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "version", [pytest.param("4.2.1", marks=pytest.mark.long), "4.3.1", "4.4.0"]
)
def test_kafkas_own_consumers_run_unchanged(
    desk: Desk, topic: Callable[..., str], topics: Topics, version: str
) -> None:
    name = topic(partitions=2)
    topics.produce(name, 2_000)
    place = ("--bootstrap-server", desk.kafka_address, "--topic", name)
    shown = java(
        version,
        "consumer.ConsoleShareConsumer",
        *place,
        *("--group", f"{desk.group}-console", "--max-messages", "10", "--timeout-ms", "30000"),
    )
    assert len([line for line in shown.splitlines() if line.startswith("00000")]) == 10
    told = java(
        version,
        "ShareConsumerPerformance",
        *place,
        *("--group", f"{desk.group}-perf", "--num-records", "2000", "--timeout", "30000"),
    )
    names, figures = (line.split(", ") for line in told.strip().splitlines()[-2:])
    assert dict(zip(names, figures, strict=True))["data.consumed.in.nMsg"].strip() == "2000"


def test_kafkas_own_tool_shows_and_deletes_groups(
    desk: Desk, topic: Callable[..., str], topics: Topics
) -> None:
    name = topic()
    topics.produce(name, 20)
    consumer, found = desk.consumer(name), dict[tuple[int, int], Any]()

    def all_came() -> bool:
        collected(consumer, found)
        return len(found) == 20

    eventually(all_came, WAIT_S, what="all records")
    # Without a word about them librdkafka releases what came last; tools may outlast the locks.
    assert set(consumer.commit_sync(10).values()) <= {None}

    with KafkaTools("4.3.1") as programs:

        def tool(*arguments: str) -> str:
            return programs.run("groups", desk.kafka_address, *arguments).text

        of_group = ("--describe", "--group", desk.group)
        assert desk.group in tool("--list").splitlines()
        assert "rdkafka" in tool(*of_group, "--members")
        assert "Stable" in tool(*of_group, "--state")
        consumer.close()
        (line,) = [each for each in tool(*of_group).splitlines() if name in each]
        assert line.split()[:4] == [desk.group, name, "0", "20"]
        assert "was successful" in tool("--delete", "--group", desk.group)
        assert desk.group not in tool("--list").splitlines()
