"""From a consumer group and from a native share group of a real Kafka, and back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import confluent_kafka
import pytest
from sharecoord_sdk import ShareConsumer
from sharecoord_sdk.admin import AdminClient, GroupNotEmptyError, InvalidRequestError

from sharecoord.devenv import maven
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.native import set_group_config
from tests.integration.test_kafka_edges import TopicFactory
from tests.support import KafkaUnderTest, eventually, unique_name


def plain_consumer(servers: str, group: str, topic: str) -> confluent_kafka.Consumer:
    """A member of a consumer group that commits by hand."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.subscribe([topic])
    return consumer


def consume_plainly(servers: str, group: str, topic: str, count: int) -> list[bytes]:
    """Records that a consumer group reads and commits, one after the other."""
    consumer = plain_consumer(servers, group, topic)
    values: list[bytes] = []

    def read() -> bool:
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
            consumer.commit(message, asynchronous=False)
        return len(values) == count

    try:
        eventually(read, 60, what=f"{count} records of {group}")
    finally:
        consumer.close()
    return values


def consume_shared(address: str, group: str, topic: str, count: int) -> set[bytes]:
    """Records that a share group accepts: so many, or some more."""
    values: list[bytes] = []
    config = {"bootstrap.servers": address, "group.id": group, "max.poll.records": count}
    with ShareConsumer(config) as consumer:
        consumer.subscribe([topic])

        def read() -> bool:
            values.extend(message.value() or b"" for message in consumer.poll(0.2))
            return len(values) >= count

        eventually(read, 60, what=f"{count} records of {group}")
        consumer.commit_sync()
    return set(values)


def command(address: str, *arguments: str) -> str:
    """`sharecoord groups`, as it is typed; returns what it prints."""
    where = ["--bootstrap-server", address]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("sharecoord")), "groups", *where, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_consumer_group_comes_and_goes_back(
    kafka_broker: KafkaUnderTest,
    coordinator: CoordinatorProcess,
    topic: TopicFactory,
) -> None:
    servers, name = kafka_broker.bootstrap_servers, topic()
    old, new, group = unique_name("old"), unique_name("new"), unique_name("g")
    values = [f"{n}".encode() for n in range(12)]
    produce(servers, name, values)
    assert consume_plainly(servers, old, name, 4) == values[:4]
    importing = ["--import", "--group", group, "--from-consumer-group", old]
    said = command(coordinator.address, *importing, "--dry-run")
    assert [line.split()[3:7] for line in said.splitlines() if name in line] == [
        ["4", "4", "-", "8"]
    ]
    command(coordinator.address, *importing, "--execute")
    taken = consume_shared(coordinator.address, group, name, 5)
    start = 4 + len(taken)
    assert taken == {*values[4:start]}
    back = ["--export", "--group", group, "--to-consumer-group", new, "--execute"]
    said = command(coordinator.address, *back)
    assert [line.split() for line in said.splitlines() if name in line] == [
        [new, name, "0", str(start), "0", "Successful"]
    ]
    assert consume_plainly(servers, new, name, len(values) - start) == values[start:]


def produce(servers: str, topic: str, values: list[bytes]) -> None:
    """Writes records to partition 0, in order."""
    producer = confluent_kafka.Producer({"bootstrap.servers": servers})
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def test_consumer_groups_with_members_and_names_without_offsets_are_refused(
    kafka_broker: KafkaUnderTest, coordinator: CoordinatorProcess, topic: TopicFactory
) -> None:
    servers, name, old = kafka_broker.bootstrap_servers, topic(), unique_name("old")
    produce(servers, name, [b"1", b"2", b"3"])
    consume_plainly(servers, old, name, 2)
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        with pytest.raises(InvalidRequestError, match="has committed nothing"):
            admin.import_offsets("g", unique_name("typo"))
        busy = plain_consumer(servers, old, name)
        try:
            eventually(lambda: busy.poll(0.2), 60, what="the third record")
            with pytest.raises(GroupNotEmptyError, match=f"'{old}' of Kafka has members"):
                admin.import_offsets(unique_name("g"), old)
            (found,) = admin.import_offsets(unique_name("g"), old, dry_run=True)
            assert (found.committed_offset, found.lag) == (2, 1)
            group = unique_name("g")
            admin.import_offsets(group, old, force=True)
            with pytest.raises(GroupNotEmptyError, match=f"'{old}' of Kafka has members"):
                admin.export_offsets(group, old)
        finally:
            busy.close()


def test_a_native_share_group_comes_by_what_its_tool_prints(
    kafka_broker: KafkaUnderTest,
    coordinator: CoordinatorProcess,
    topic: TopicFactory,
    tmp_path: Path,
) -> None:
    """Its members have gone; the table of `kafka-share-groups --describe` is read as it is."""
    servers, name, native = kafka_broker.bootstrap_servers, topic(), unique_name("native")
    produce(servers, name, [f"{n}".encode() for n in range(9)])
    set_group_config(servers, native, {"share.auto.offset.reset": "earliest"})
    with confluent_kafka.ShareConsumer(
        {"bootstrap.servers": servers, "group.id": native}
    ) as consumer:
        consumer.subscribe([name])
        taken = 0

        def took(count: int) -> bool:
            nonlocal taken
            taken += len(consumer.poll(0.5))
            consumer.commit_sync()
            return taken >= count

        eventually(lambda: took(9), 60, what="records of the native group")
        # Kafka tells the start offset of before its last write.
        produce(servers, name, [f"{n}".encode() for n in range(9, 12)])
        eventually(lambda: took(12), 60, what="more records of the native group")

    def described() -> str:
        tool = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
        where = ["--bootstrap-server", servers, "--describe", "--group", native]
        libs = f"{maven.kafka_libs()}/*"
        done = subprocess.run(
            [str(maven.find_java()), "-cp", libs, tool, *where],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout

    text = ""

    def has_start() -> bool:
        nonlocal text
        text = described()
        return any(
            line.split()[3].isdecimal() and int(line.split()[3]) > 0
            for line in text.splitlines()
            if name in line
        )

    eventually(has_start, 60, what="the start offset that Kafka tells")
    file = tmp_path / "native.txt"
    file.write_text(text, encoding="utf-8")
    command(
        coordinator.address, "--import", "--group", native, "--from-file", str(file), "--execute"
    )
    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        (group,) = admin.describe_groups([native])
        start = group.offsets[0].start_offset
    assert start is not None
    assert 0 < start <= 12
    left = {f"{n}".encode() for n in range(start, 12)}
    if left:
        assert consume_shared(coordinator.address, native, name, len(left)) == left
