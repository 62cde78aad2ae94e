"""`share.offsets.export.group` against a real Kafka: what other tools see, and which names are left
alone."""

from __future__ import annotations

import re
import socket
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient as KafkaAdmin
from sharecoord_sdk import AcknowledgeType

from sharecoord.devenv import maven
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from sharecoord.kafka.client import make_group_reader
from sharecoord.kafka.offsets_export import metadata_of
from tests.integration.test_kafka_edges import EXPLICIT, Groups, TopicFactory
from tests.support import KafkaUnderTest, eventually, unique_name

ROUND_S = 30.0
"""A round each 5 s, and the first answers of a young cluster."""

LOOK_S = 120.0
"""A refused name is looked at again each minute; one that was changed in the next round."""

PARTITIONS = 2
"""Of the topics here, at most."""

Offsets = dict[int, tuple[int, str | None]]
"""Offset and metadata by partition."""


def mark_of(place: confluent_kafka.TopicPartition) -> str | None:
    """The coordinator's mark; None = it is somebody else's offset."""
    mark = re.match(r'sharecoord spso=\d+ group="[^"]*"', metadata_of(place))
    return mark[0] if mark else None


class Exporting:
    """A coordinator whose metrics can be read, and the tools of the Kafka behind it."""

    def __init__(self, coordinator: CoordinatorProcess, port: int, bootstrap_servers: str) -> None:
        self.groups = Groups(coordinator.address)
        self.bootstrap_servers = bootstrap_servers
        self.admin = KafkaAdmin({"bootstrap.servers": bootstrap_servers})
        self._metrics_url = f"http://{LOOPBACK}:{port}/metrics"

    def committed(self, name: str, topic: str) -> Offsets:
        """What a consumer group has committed."""
        reader = make_group_reader({"bootstrap.servers": self.bootstrap_servers}, name)
        try:
            places = [confluent_kafka.TopicPartition(topic, n) for n in range(PARTITIONS)]
            found = reader.committed(places, timeout=20)
        finally:
            reader.close()
        return {p.partition: (p.offset, mark_of(p)) for p in found if p.offset >= 0}

    def lag_by_tool(self, name: str) -> dict[int, int]:
        """What `kafka-consumer-groups.sh --describe` says, by partition."""
        tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
        libs = f"{maven.kafka_libs()}/*"
        where = ["--bootstrap-server", self.bootstrap_servers, "--describe", "--group", name]
        command = [str(maven.find_java()), "-cp", libs, tool, *where]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        lines = [line.split() for line in done.stdout.splitlines() if line.strip()]
        head = next(line for line in lines if "LAG" in line)
        rows = [line for line in lines if line[0] == name]
        return {int(row[head.index("PARTITION")]): int(row[head.index("LAG")]) for row in rows}

    def reason(self, group: str, name: str) -> str | None:
        """Why the metric says that a group is not exported; "" = it is, None = not tried."""
        with urllib.request.urlopen(self._metrics_url, timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        start = f'sharecoord_offsets_export_ok{{export_group="{name}",group="{group}",reason="'
        for line in lines:
            if line.startswith(start):
                return str(line[len(start) :].partition('"')[0])
        return None

    def serve(self, group: str, topic: str) -> None:
        """Ten records of the group are accepted."""
        consumer = self.groups.consumer(group, topic)
        seen = 0

        def ten() -> bool:
            nonlocal seen
            seen += len(consumer.poll(0.2))
            return seen == 10

        eventually(ten, 20, what="ten records")
        consumer.commit_sync(timeout=20.0)
        consumer.close()


@pytest.fixture(scope="module")
def exporting(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Exporting]:
    """A coordinator with a management port that is known."""
    (port,) = free_ports(1)
    directory: Path = tmp_path_factory.mktemp("exporting")
    address = kafka_broker.bootstrap_servers
    with CoordinatorProcess(address, directory, settings={"management.port": port}) as process:
        made = Exporting(process, port, address)
        yield made
        made.groups.close()


def test_other_tools_show_the_lag_of_the_share_group(
    exporting: Exporting, topic: TopicFactory, topics: Topics
) -> None:
    topic_name, name = topic(partitions=2), unique_name("sharecoord.lag")
    group = exporting.groups.new(share_offsets_export_group=name)
    topics.produce(topic_name, 50, partition=0)
    topics.produce(topic_name, 30, partition=1)
    consumer = exporting.groups.consumer(group, topic_name, **EXPLICIT)
    answered = 0

    def all_answered() -> bool:
        nonlocal answered
        for message in consumer.poll(0.2):
            # Partition 0: 0 to 9 and 20 to 29 are finished; partition 1: 5 to 9 alone.
            partition, offset = message.partition(), message.offset()
            if partition == 0 and (offset < 10 or 20 <= offset < 30):
                consumer.acknowledge(message)
            elif partition == 1 and 5 <= offset < 10:
                consumer.acknowledge(message, AcknowledgeType.REJECT)
            else:
                consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=3_600_000)
            answered += 1
        return answered == 80

    eventually(all_answered, 20, what="all records")
    consumer.commit_sync(timeout=20.0)
    expected = {
        0: (20, f'sharecoord spso=10 group="{group}"'),
        1: (5, f'sharecoord spso=0 group="{group}"'),
    }
    eventually(
        lambda: exporting.committed(name, topic_name) == expected, ROUND_S, what="offsets in Kafka"
    )
    lags = {p: each.lag for p, each in exporting.groups.offsets(group, topic_name).items()}
    assert lags == {0: 30, 1: 25}
    assert exporting.lag_by_tool(name) == lags
    # Records that come are lag at once, without another commit.
    topics.produce(topic_name, 7, partition=1)
    assert exporting.lag_by_tool(name) == {0: 30, 1: 32}


def member_of_connect(address: str, name: str) -> socket.socket:
    """Makes a group as Kafka Connect does, by one JoinGroup request; its member is us."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value)) + value.encode()

    protocols = struct.pack(">i", 1) + text("default") + struct.pack(">i", 1) + b"x"
    timeouts = struct.pack(">ii", 6_000, 6_000)
    body = text(name) + timeouts + text("") + text("connect") + protocols
    request = struct.pack(">hhi", 11, 2, 1) + text("test") + body
    host, port = address.split(",")[0].rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=20)
    connection.sendall(struct.pack(">i", len(request)) + request)
    assert connection.recv(4)
    return connection


@pytest.mark.timeout(240)
@pytest.mark.parametrize("looks_again", [False, pytest.param(True, marks=pytest.mark.long)])
def test_names_of_others_are_left_alone_until_they_are_free(
    exporting: Exporting, topic: TopicFactory, topics: Topics, looks_again: bool
) -> None:
    topic_name = topic()
    topics.produce(topic_name, 10)
    names = {kind: unique_name(kind) for kind in ("members", "offsets", "connect")}
    kafka = exporting.bootstrap_servers
    with ExitStack() as stack:
        member = confluent_kafka.Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": names["members"],
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        stack.callback(member.close)
        member.subscribe([topic_name])
        eventually(lambda: member.poll(0.2) is not None, 30, what="a member of a consumer group")
        foreign = [confluent_kafka.TopicPartition(topic_name, 0, 3)]
        altered = exporting.admin.alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(names["offsets"], foreign)]
        )
        altered[names["offsets"]].result(20)
        stack.enter_context(member_of_connect(kafka, names["connect"]))
        groups = {
            kind: exporting.groups.new(share_offsets_export_group=name)
            for kind, name in names.items()
        }
        for group in groups.values():
            exporting.serve(group, topic_name)

        def reasons() -> dict[str, str | None]:
            return {kind: exporting.reason(groups[kind], names[kind]) for kind in names}

        refused = {
            "members": "GROUP_NOT_EMPTY",
            "offsets": "INVALID_CONFIG",
            "connect": "INVALID_CONFIG",
        }
        eventually(lambda: reasons() == refused, ROUND_S, what="all refused")
        assert exporting.committed(names["offsets"], topic_name) == {0: (3, None)}
        assert exporting.committed(names["members"], topic_name) == {}
        assert exporting.committed(names["connect"], topic_name) == {}

    def delete(name: str) -> None:
        exporting.admin.delete_consumer_groups([name])[name].result(20)

    delete(names["offsets"])
    # The member on the closed connection must time out first.
    eventually(lambda: delete(names["connect"]) is None, 30, what="the other group is empty")
    if not looks_again:
        for group in groups.values():
            exporting.groups.alter(group, share_offsets_export_group=unique_name("other"))
        eventually(lambda: set(reasons().values()) == {None}, ROUND_S, what="other names")
        for kind, name in names.items():
            exporting.groups.alter(groups[kind], share_offsets_export_group=name)
    eventually(lambda: set(reasons().values()) == {""}, LOOK_S, what="all exported")
    for kind, name in names.items():
        expected = {0: (10, f'sharecoord spso=10 group="{groups[kind]}"')}
        assert exporting.committed(name, topic_name) == expected


def test_the_name_of_a_share_group_of_kafka_is_left_alone(
    exporting: Exporting, topic: TopicFactory, topics: Topics
) -> None:
    topic_name, name = topic(), unique_name("native")
    topics.produce(topic_name, 10)
    native = confluent_kafka.ShareConsumer(
        {"bootstrap.servers": exporting.bootstrap_servers, "group.id": name}
    )
    try:
        native.subscribe([topic_name])
        native.poll(5.0)
        group = exporting.groups.new(share_offsets_export_group=name)
        exporting.serve(group, topic_name)
        eventually(
            lambda: exporting.reason(group, name) == "INVALID_CONFIG", ROUND_S, what="refused"
        )
        assert exporting.committed(name, topic_name) == {}
    finally:
        native.close()
