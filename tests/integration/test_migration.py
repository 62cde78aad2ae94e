"""From a consumer group and from a native share group of a real Kafka, and back."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import confluent_kafka
import pytest
from sharecoord_sdk import AcknowledgeType, ShareConsumer
from sharecoord_sdk.admin import AdminClient, GroupNotEmptyError, InvalidRequestError

from sharecoord.devenv import maven
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.broker_config import FAST_SHARE_GROUPS
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.integration.test_kafka_edges import TopicFactory
from tests.support import KafkaUnderTest, eventually, explicit, unique_name


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


def printed(program: list[str], address: str, *arguments: str) -> tuple[str, str]:
    """What a tool says on stdout and stderr."""
    done = subprocess.run(
        [*program, "--bootstrap-server", address, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def command(address: str, *arguments: str) -> str:
    """`sharecoord groups`, as it is typed; returns what it prints."""
    program = [str(Path(sys.executable).with_name("sharecoord")), "groups"]
    return "".join(printed(program, address, *arguments))


def kafkas_command(servers: str, *arguments: str, version: str = maven.DEFAULT_VERSION) -> str:
    """`kafka-share-groups.sh`, as it is typed; returns what it prints on stdout.

    Args:
        servers: Of Kafka.
        arguments: Of the tool.
        version: Of the tool.
    """
    tool = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"
    libs = f"{maven.kafka_libs(version)}/*"
    return printed([str(maven.find_java()), "-cp", libs, tool], servers, *arguments)[0]


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
    Topics(servers).set_group_config(native, {"share.auto.offset.reset": "earliest"})
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

    text = ""

    def has_start() -> bool:
        nonlocal text
        text = kafkas_command(servers, "--describe", "--group", native)
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


# -- back to a native share group -----------------------------------------------------------------

NATIVE_S = 300.0
"""Jars of another release may have to be loaded; each call of the tool is a Java process."""

TOOL = "4.4.0"
"""Of Kafka's tool: the first one that reads and writes files of offsets."""


@dataclass(frozen=True, slots=True)
class Native:
    """A Kafka with share groups, and a coordinator in front of it."""

    servers: str
    address: str
    topics: Topics


@pytest.fixture(scope="module", params=["4.4.0", pytest.param("4.3.1", marks=pytest.mark.long)])
def native(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Native]:
    """The tool of 4.4, and brokers of 4.4 and 4.3."""
    directory: Path = tmp_path_factory.mktemp("coordinator")
    with (
        KafkaBroker(request.param, settings=FAST_SHARE_GROUPS) as broker,
        CoordinatorProcess(broker.bootstrap_servers, directory) as process,
    ):
        servers = broker.bootstrap_servers
        yield Native(servers, process.address, Topics(servers))


Places = set[tuple[int, int]]
"""Partitions and offsets."""


def places(partition: int, *offsets: int) -> Places:
    """Offsets of a partition."""
    return {(partition, offset) for offset in offsets}


def consume_natively(servers: str, group: str, topic: str, count: int) -> list[tuple[int, int]]:
    """What a native share group is given and accepts until it has so many, and no more comes."""
    found: list[tuple[int, int]] = []
    config = {"bootstrap.servers": servers, "group.id": group, "log_level": 0}
    member = confluent_kafka.ShareConsumer(config | {"share.acknowledgement.mode": "explicit"})
    with closing(member) as consumer:
        consumer.subscribe([topic])

        def read(timeout_s: float) -> int:
            for message in consumer.poll(timeout_s):
                assert message.error() is None, message.error()
                # Counts begin anew, whatever they were on the other side.
                assert message.delivery_count() == 1
                found.append((message.partition() or 0, message.offset() or 0))
                consumer.acknowledge(message)
            consumer.commit_sync()
            return len(found)

        eventually(lambda: read(0.2) >= count, 60, what=f"{count} records of {group}")
        assert read(1.0) == count
    return sorted(found)


def accept_here(address: str, group: str, topic: str, accepted: Places, count: int) -> None:
    """Takes so many records here and accepts some of them; the others are put off."""
    seen: Places = set()
    with ShareConsumer(explicit(address, group)) as consumer:
        consumer.subscribe([topic])

        def read() -> bool:
            for message in consumer.poll(0.2):
                place = (message.partition(), message.offset())
                seen.add(place)
                if place in accepted:
                    consumer.acknowledge(message)
                else:
                    consumer.acknowledge(message, AcknowledgeType.RELEASE, delay_ms=3_600_000)
            return len(seen) == count

        eventually(read, 60, what=f"{count} records of {group}")
        assert accepted <= seen
        consumer.commit_sync()


def go_back(native: Native, group: str, file: Path) -> str:
    """As the page says: offsets of ours as a file, and Kafka's tool sets them.

    Returns:
        What the first command says beside the file.
    """
    program = [str(Path(sys.executable).with_name("sharecoord")), "groups"]
    text, said = printed(program, native.address, "--export", "--group", group)
    file.write_text(text, encoding="utf-8")
    reset = ["--reset-offsets", "--group", group, "--from-file", str(file)]
    table = kafkas_command(native.servers, *reset, "--execute", version=TOOL)
    # It ends with 0 when it has set nothing, too.
    rows = [line.split() for line in table.splitlines() if line.startswith(group)]
    assert sorted(",".join(row[1:]) for row in rows) == sorted(text.split())
    return said


@pytest.mark.kafka
@pytest.mark.timeout(NATIVE_S)
def test_a_group_goes_on_as_a_native_one_where_it_was(native: Native, tmp_path: Path) -> None:
    """One that Kafka has never seen: two partitions, a hole, and a part that is not begun."""
    name, group = unique_name("t"), unique_name("g")
    native.topics.create(name, partitions=3)
    native.topics.produce(name, 10, partition=0)
    native.topics.produce(name, 6, partition=1)
    accepted = places(0, 0, 1, 2, 3, 6) | places(1, 0, 1)
    accept_here(native.address, group, name, accepted, 16)
    said = go_back(native, group, tmp_path / "billing.csv")
    assert "1 records beyond the start offsets are finished here already" in said
    left = places(0, 4, 5, 6, 7, 8, 9) | places(1, 2, 3, 4, 5)
    native.topics.produce(name, 1, partition=2)
    assert consume_natively(native.servers, group, name, 11) == sorted(left | places(2, 0))


@pytest.mark.kafka
@pytest.mark.timeout(NATIVE_S)
def test_a_native_group_comes_and_goes_back_by_files_of_kafkas_tool(
    native: Native, tmp_path: Path
) -> None:
    """The start offset that Kafka tells is that of before its last write, or an earlier one."""
    servers, name, group = native.servers, unique_name("t"), unique_name("g")
    native.topics.create(name)
    native.topics.produce(name, 5)
    native.topics.set_group_config(group, {"share.auto.offset.reset": "earliest"})
    assert consume_natively(servers, group, name, 5) == sorted(places(0, *range(5)))
    file = tmp_path / "billing.csv"
    where = ["--reset-offsets", "--group", group, "--all-topics", "--to-current", "--dry-run"]
    text = kafkas_command(servers, *where, "--export", version=TOOL)
    (told,) = [int(line.split(",")[2]) for line in text.splitlines() if line]
    assert told <= 5
    file.write_text(text, encoding="utf-8")
    importing = ["--import", "--group", group, "--from-file", str(file)]
    command(native.address, *importing, "--execute")
    native.topics.produce(name, 5)
    accept_here(native.address, group, name, places(0, *range(told, 8)), 10 - told)
    go_back(native, group, file)
    assert consume_natively(servers, group, name, 2) == sorted(places(0, 8, 9))
