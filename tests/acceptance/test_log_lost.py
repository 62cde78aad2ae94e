"""The log can not be written: its reader is gone, its disk is full, its pipe is never read.

The coordinator serves as before, probes tell the truth, and a metric counts the lines.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sharecoord_sdk import ShareConsumer

from sharecoord.core.dispatch.schedule import DELIVER_AT_HEADER
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import free_ports
from sharecoord.devenv.topics import Record, Topics
from tests.support import KafkaUnderTest, eventually, unique_name

RUN = "import sys; from sharecoord.cli.main import main; sys.exit(main())"
PIPE_BYTES = 64 << 10
DEADLINE_S = 30.0
UNUSABLE = Record(None, b"x", [(DELIVER_AT_HEADER, b"y" * 1_000)])


@contextmanager
def serving(
    kafka: KafkaUnderTest, directory: Path, error_file: Path, management_port: int
) -> Iterator[CoordinatorProcess]:
    """A coordinator whose standard error is a file of the test."""
    shell = ["sh", "-c", f'exec "$0" "$@" 2> {error_file}', sys.executable, "-c", RUN, "serve"]
    process = CoordinatorProcess(
        kafka.bootstrap_servers,
        directory,
        settings={"management.port": management_port, "log.level": "debug", "log.format": "json"},
        program=[*shell, "--log-level", "debug"],
    )
    with process:
        yield process


def page(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as answer:
        return str(answer.read().decode())


def dropped(port: int) -> float:
    found = re.search(r"^sharecoord_log_lines_dropped_total (\S+)", page(port, "/metrics"), re.M)
    assert found is not None
    return float(found[1])


def served(kafka: KafkaUnderTest, coordinator: CoordinatorProcess, records: int) -> None:
    """A new group on a new topic gets its records."""
    topic, topics = unique_name("t"), Topics(kafka.bootstrap_servers)
    topics.create(topic)
    topics.produce(topic, records)
    got = 0
    conf = {"bootstrap.servers": coordinator.address, "group.id": unique_name("g")}
    with ShareConsumer(conf) as consumer:
        consumer.subscribe([topic])

        def all_came() -> bool:
            nonlocal got
            got += len(consumer.poll(0.2))
            return got >= records

        eventually(all_came, DEADLINE_S, "all records")
    topics.delete(topic)


def ends(coordinator: CoordinatorProcess) -> None:
    """Nothing that waits to be said keeps it from ending in order."""
    os.kill(coordinator.pid, signal.SIGTERM)
    eventually(lambda: coordinator.exit_code == 0, DEADLINE_S, "it ends")


def loses_lines_and_nothing_else(coordinator: CoordinatorProcess, port: int) -> None:
    eventually(lambda: dropped(port) > 0, DEADLINE_S, "lines are counted")
    assert page(port, "/healthz/ready") == "ok\n"
    ends(coordinator)


def fifo_at(path: Path) -> int:
    """A pipe with a name; its reader's end."""
    os.mkfifo(path)
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK)


def test_a_full_disk(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    with serving(kafka_broker, tmp_path, Path("/dev/full"), port) as coordinator:
        served(kafka_broker, coordinator, 100)
        loses_lines_and_nothing_else(coordinator, port)


def test_a_reader_that_is_gone(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    reader = fifo_at(tmp_path / "log")
    with serving(kafka_broker, tmp_path, tmp_path / "log", port) as coordinator:
        served(kafka_broker, coordinator, 100)
        assert b"share-partition loaded" in os.read(reader, PIPE_BYTES)
        os.close(reader)
        served(kafka_broker, coordinator, 100)
        served(kafka_broker, coordinator, 100)
        loses_lines_and_nothing_else(coordinator, port)


def test_a_pipe_that_nobody_reads(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    """Filled by a parent before the start, as by anything that shares it: not one line fits."""
    (port,) = free_ports(1)
    reader = fifo_at(tmp_path / "log")
    writer = os.open(tmp_path / "log", os.O_WRONLY | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"z" * 4096)
    with serving(kafka_broker, tmp_path, tmp_path / "log", port) as coordinator:
        served(kafka_broker, coordinator, 100)
        assert page(port, "/healthz/live") == "ok\n"
        ends(coordinator)
    os.close(writer)
    os.close(reader)


def test_producers_can_not_fill_the_log(kafka_broker: KafkaUnderTest, tmp_path: Path) -> None:
    """Records whose schedule can not be used, one by one: few lines, and all of them delivered."""
    (port,) = free_ports(1)
    reader = fifo_at(tmp_path / "log")
    topic, topics = unique_name("t"), Topics(kafka_broker.bootstrap_servers)
    topics.create(topic)
    with serving(kafka_broker, tmp_path, tmp_path / "log", port) as coordinator:
        conf = {"bootstrap.servers": coordinator.address, "group.id": unique_name("g")}
        with ShareConsumer(conf) as consumer:
            consumer.subscribe([topic])
            consumer.poll(1.0)
            for _ in range(200):
                topics.produce(topic, [UNUSABLE])
            got = 0

            def all_came() -> bool:
                nonlocal got
                got += len(consumer.poll(0.2))
                return got >= 200

            eventually(all_came, DEADLINE_S, "all records")
        assert 1 <= os.read(reader, PIPE_BYTES).count(b"schedule not used") <= 5
        assert dropped(port) == 0
    os.close(reader)
    topics.delete(topic)
