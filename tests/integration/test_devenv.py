"""The development environment itself: brokers, mock cluster, topics, guarded processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from functools import partial
from pathlib import Path
from typing import cast

import psutil  # type: ignore[import-untyped]
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from sharecoord.devenv import maven, processes
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.broker_config import (
    FAST_SHARE_GROUPS,
    TEST_SETTINGS,
    checked_settings,
    write_properties,
)
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.kafka_cluster import KafkaCluster
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import GuardedProcess, free_ports, port_open
from sharecoord.devenv.topics import Record, Topics, numbered_records
from sharecoord.errors import KafkaUnavailableError, UnknownTopicOrPartitionError
from tests.conftest import TopicFactory, container_settings
from tests.support import KafkaUnderTest, eventually, eventually_async, unique_name

Headers = tuple[tuple[str, bytes | None], ...]


def read(bootstrap_servers: str, topic: str, isolation: str = "read_committed") -> list[Record]:
    """Everything from the log start to the end of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "reader",
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )
    records: list[Record] = []
    try:
        # A broker that was started a moment ago names itself as the leader before it answers as it.
        low, _ = eventually(
            lambda: consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10),
            what=f"offsets of {topic}",
        )
        consumer.assign([TopicPartition(topic, 0, low)])
        end = time.monotonic() + 20
        while time.monotonic() < end:
            for message in consumer.consume(1000, timeout=0.1):
                if (error := message.error()) is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    return records
                headers = cast("Headers", tuple(message.headers() or ()))
                stamp_ms = message.timestamp()[1]
                records.append(Record(message.key(), message.value(), headers, stamp_ms))
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} within 20 s, {len(records)} records")


def run_to_kill(directory: Path, body: str) -> tuple[subprocess.Popen[bytes], int]:
    """Runs a program that writes a process id to `child`; returns it and that id."""
    script = directory / "parent.py"
    script.write_text(textwrap.dedent(body), encoding="utf-8")
    parent = subprocess.Popen([sys.executable, str(script), str(directory)])
    found = directory / "child"
    child = eventually(
        lambda: found.is_file() and int(found.read_text(encoding="ascii") or "0"), 30, "child's id"
    )
    return parent, child


def gone(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


# -- waiting --------------------------------------------------------------------------------------


def test_eventually_returns_the_first_truthy_value() -> None:
    answers = iter([None, 0, "", "here", "later"])
    assert eventually(lambda: next(answers), 5) == "here"


def test_eventually_says_what_it_waited_for_and_what_it_saw() -> None:
    with pytest.raises(AssertionError, match=r"not within 0 s \(1 probe\): rain; last value 0"):
        eventually(lambda: 0, 0, what="rain")

    def broken() -> bool:
        raise ValueError("no sky")

    with pytest.raises(AssertionError, match=r"broken; last ValueError: no sky"):
        eventually(broken, 0)


async def test_eventually_async_takes_functions_and_coroutines() -> None:
    answers = iter([None, 7, None, 8])

    async def probe() -> int | None:
        return next(answers)

    assert await eventually_async(probe, 5) == 7
    assert await eventually_async(lambda: next(answers), 5) == 8
    with pytest.raises(AssertionError, match=r"last (StopAsyncIteration|RuntimeError)"):
        await eventually_async(probe, 0)


# -- processes ------------------------------------------------------------------------------------


def test_a_guarded_process_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    parent, child = run_to_kill(
        tmp_path,
        """
        import sys, time
        from pathlib import Path
        from threading import Thread
        from sharecoord.devenv.processes import GuardedProcess
        directory = Path(sys.argv[1])
        scratch = directory / "scratch"
        scratch.mkdir()
        log_path = scratch / "log"
        process = GuardedProcess("sleeper", ["sleep", "600"], log_path=log_path, scratch=scratch)
        starter = Thread(target=process.start)
        starter.start()
        starter.join()
        (directory / "child").write_text(str(process.pid))
        time.sleep(600)
        """,
    )
    # The thread that started it has ended, and the child still lives.
    assert not gone(child)
    parent.kill()
    parent.wait()
    eventually(lambda: gone(child), 10, "the child ends after its parent")
    eventually(lambda: not (tmp_path / "scratch").exists(), 10, "its files go")


def test_a_guarded_process_dies_with_a_parent_that_exits(tmp_path: Path) -> None:
    parent, child = run_to_kill(
        tmp_path,
        """
        import sys
        from pathlib import Path
        from sharecoord.devenv.processes import GuardedProcess
        directory = Path(sys.argv[1])
        process = GuardedProcess("sleeper", ["sleep", "600"], log_path=directory / "log")
        process.start()
        (directory / "child").write_text(str(process.pid))
        """,
    )
    assert parent.wait(20) == 0
    assert gone(child)


def test_a_guarded_process_is_stopped_killed_and_started_again(tmp_path: Path) -> None:
    deaf = "trap '' TERM; echo started; while :; do sleep 0.1; done"
    process = GuardedProcess("deaf", ["/bin/sh", "-c", deaf], log_path=tmp_path / "log")
    with pytest.raises(DevenvError, match="deaf is not running"):
        _ = process.pid
    for times in (1, 2):
        process.start()
        with pytest.raises(DevenvError, match="deaf is running already"):
            process.start()
        said = partial(lambda n: process.log_tail().count("started") == n, times)
        eventually(said, 10, "it speaks")
        pid = process.pid
        process.stop(grace_s=0.1)
        assert gone(pid)
        assert not process.alive


def test_a_program_that_is_not_there_shows_in_exit_code_and_log(tmp_path: Path) -> None:
    process = GuardedProcess("ghost", [str(tmp_path / "ghost")], log_path=tmp_path / "log")
    process.start()
    assert eventually(lambda: process.exit_code, 10) == 127
    assert "not found" in process.log_tail()
    process.kill()


def test_free_ports_are_distinct_and_outside_the_ephemeral_range() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(15000 <= port < 32768 for port in ports)
    assert not any(port_open(port) for port in ports)


def test_a_port_that_was_given_is_not_given_again(monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([*free_ports(1) * 3, *free_ports(1) * 2])
    monkeypatch.setattr(processes, "_given_ports", set[int]())
    monkeypatch.setattr(random.SystemRandom, "choice", lambda _self, _ports: next(free))
    assert free_ports(1) != free_ports(1)


# -- finding Kafka's parts ------------------------------------------------------------------------


def test_missing_programs_are_named_with_the_line_that_installs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv(maven.CACHE_VARIABLE, str(tmp_path / "cache"))
    for find in (maven.find_java, maven.find_maven, maven.kafka_libs):
        with pytest.raises(DevenvError, match="apt-get install -y openjdk-17-jre-headless maven"):
            find()


@pytest.mark.parametrize("version", ['"1.8.0_402"', '"11.0.22" 2024-01-16'])
def test_an_old_java_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version {version}' >&2\n", encoding="ascii")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(DevenvError, match=r"is Java (8|11) and Kafka needs 17 or newer: apt-get"):
        maven.find_java()


def test_a_failed_download_leaves_nothing_and_says_what_maven_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maven_program = tmp_path / "mvn"
    maven_program.write_text("#!/bin/sh\necho 'no route'; exit 3\n", encoding="ascii")
    maven_program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(maven.CACHE_VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(DevenvError, match=r"(?s)exit code 3.*no route"):
        maven.kafka_libs("4.3.1")
    assert [path.name for path in (tmp_path / "cache" / "kafka").iterdir()] == ["4.3.1.lock"]


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(DevenvError, match=r"version: Kafka '1\.0' .* use one of 4\.3\.1, 4\.4\.0"):
        KafkaBroker("1.0")
    with pytest.raises(DevenvError, match="heap_mb: 64"):
        KafkaBroker(heap_mb=64)
    with pytest.raises(DevenvError, match=r"settings: log\.dirs is set by"):
        KafkaBroker(settings={"log.dirs": "/tmp"})
    with pytest.raises(DevenvError, match="call start"):
        _ = KafkaBroker().bootstrap_servers
    with pytest.raises(DevenvError, match="value_bytes: 9"):
        list(numbered_records(1, 9))
    write_properties(tmp_path / "p", checked_settings({"a.b": "C:\\x"}))
    assert "a.b=C:\\\\x\n" in (tmp_path / "p").read_text(encoding="utf-8")


def test_container_settings_follow_the_naming_of_the_image() -> None:
    given = container_settings("example", 1234)
    assert given["KAFKA_ADVERTISED_LISTENERS"] == "PLAINTEXT://example:1234"
    assert given["KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR"] == "1"
    # The image spells an underscore and a dash of a setting in other ways.
    assert not any("_" in name or "-" in name for name in {**TEST_SETTINGS, **FAST_SHARE_GROUPS})


# -- the mock cluster -----------------------------------------------------------------------------


def test_the_mock_cluster_keeps_records(mock_cluster: MockCluster) -> None:
    name = unique_name("m")
    sent = [Record(b"k%d" % i, b"v%d" % i, (("h", b"x"),), 1000 + i) for i in range(20)]
    tool = Topics(mock_cluster.bootstrap_servers)
    assert tool.produce(name, sent).offsets == {0: (0, 19)}
    assert read(mock_cluster.bootstrap_servers, name) == sent


def test_a_killed_mock_cluster_is_gone_and_leaves_no_files() -> None:
    cluster = MockCluster(topics=["there"])
    with cluster:
        tool = Topics(cluster.bootstrap_servers, timeout_s=1.0)
        assert tool.names() == ["there"]
        pid = cluster.pid
        cluster.kill()
        assert gone(pid)
        with pytest.raises(KafkaUnavailableError, match="list topics"):
            tool.names()
    with pytest.raises(DevenvError, match="not running"):
        _ = cluster.bootstrap_servers


# -- a real broker --------------------------------------------------------------------------------


def test_records_come_back_as_they_were_sent(
    kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    sent = [Record(b"k", b"v", (("h", None),), 5), Record(None, None, (), 6)]
    assert topics.produce(name, sent).offsets == {0: (0, 1)}
    assert topics.produce(name, 3, one_record_batches=True).offsets == {0: (2, 4)}
    assert topics.produce(name, [(b"a", b"b", [])], compression="zstd").count == 1
    got = read(kafka_broker.bootstrap_servers, name)
    assert got[:2] == sent
    numbered = [record.value for record in numbered_records(3)]
    assert [record.value for record in got[2:]] == [*numbered, b"b"]


def test_aborted_records_are_written_and_not_delivered(
    kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic()
    assert topics.produce_transaction(name, 2, commit=False).offsets == {0: (0, 1)}
    # Offset 2 is the control record of the abort.
    assert topics.produce_transaction(name, 1, commit=True).offsets == {0: (3, 3)}
    assert len(read(kafka_broker.bootstrap_servers, name)) == 1
    assert len(read(kafka_broker.bootstrap_servers, name, "read_uncommitted")) == 3


def test_the_log_start_moves_and_unknown_topics_are_named(
    kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    name = topic(partitions=2)
    topics.produce(name, 10, partition=1)
    assert topics.delete_records(name, {1: 4}) == {1: 4}
    assert read(kafka_broker.bootstrap_servers, name) == []
    with pytest.raises(DevenvError, match=f"create topic {name}: TOPIC_ALREADY_EXISTS"):
        topics.create(name)
    with pytest.raises(UnknownTopicOrPartitionError, match="create the topic first"):
        topics.produce(unique_name("missing"), 1)
    topics.delete(name)
    assert name not in topics.names()


def test_data_survive_kill_and_restart_on_the_same_address(
    kafka_broker: KafkaUnderTest, topics: Topics, topic: TopicFactory
) -> None:
    broker = kafka_broker.broker
    if broker is None:
        pytest.skip(f"the broker comes from {kafka_broker.source} and is not ours to kill")
    name = topic()
    topics.produce(name, 100)
    address, first_pid = broker.bootstrap_servers, broker.pid
    os.kill(first_pid, signal.SIGKILL)
    eventually(lambda: not broker.running, 10, "the broker is gone")
    broker.restart()
    assert broker.pid != first_pid
    broker.restart()
    assert broker.bootstrap_servers == address
    assert len(read(address, name)) == 100


def test_settings_of_a_native_share_group_are_set_or_refused(
    kafka_broker: KafkaUnderTest, topics: Topics
) -> None:
    group = unique_name("g")
    topics.set_group_config(group, {"share.auto.offset.reset": "earliest"})
    with pytest.raises(DevenvError, match=r"set share\.nonsense of share group"):
        topics.set_group_config(group, {"share.nonsense": "1"})


@pytest.mark.kafka
def test_a_broker_that_can_not_start_shows_its_log_and_leaves_nothing() -> None:
    broker = KafkaBroker(settings={"num.io.threads": "many"}, heap_mb=256)
    with pytest.raises(DevenvError, match=r"(?s)(ended with|could not format).*num\.io\.threads"):
        broker.start()
    with pytest.raises(DevenvError, match="no directory yet"):
        _ = broker.data_dir


@pytest.mark.kafka
@pytest.mark.long
@pytest.mark.parametrize("version", ["4.4.0", "4.2.1", "3.9.1", "2.8.2"])
def test_other_releases_keep_their_data_over_a_kill(version: str) -> None:
    with KafkaBroker(version, heap_mb=384) as broker:
        tool = Topics(broker.bootstrap_servers)
        tool.create("kept")
        tool.produce("kept", 10)
        tool.produce_transaction("kept", 5, commit=False)
        broker.kill()
        broker.start()
        assert len(read(broker.bootstrap_servers, "kept")) == 10


@pytest.mark.parametrize(
    ("brokers", "version", "problem"),
    [
        (0, "4.3.1", "brokers: 0; use 1 to 9"),
        (10, "4.3.1", "use 1 to 9"),
        (2, "2.8.2", "ZooKeeper"),
    ],
)
def test_a_cluster_that_can_not_be_is_refused(brokers: int, version: str, problem: str) -> None:
    with pytest.raises(DevenvError, match=problem):
        KafkaCluster(brokers, version)
