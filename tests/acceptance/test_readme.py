"""The README is true: its worker runs, and says what a new group should know."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.maven import find_java, kafka_libs
from sharecoord.devenv.processes import LOOPBACK, GuardedProcess, free_ports
from sharecoord.devenv.topics import Record, Topics
from tests.acceptance.bad_input import run_cli
from tests.acceptance.test_guides import DEFAULTS, example_process
from tests.support import KafkaUnderTest, eventually, unique_name

ROOT = Path(__file__).resolve().parents[2]
COMPILE_S = 120
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def worker_of_the_readme(
    coordinator: CoordinatorProcess, topic: str, folder: Path, group: str
) -> AbstractContextManager[GuardedProcess]:
    """Its only program, running."""
    (program,) = blocks("python")
    names = {"orders": topic, "orders-workers": group}
    return example_process(program, folder, {"localhost:7070": coordinator.address}, names)


def test_the_worker_of_ten_lines_prints_records(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    (worker,) = blocks("python")
    assert len(worker.strip().splitlines()) <= 10
    name = topic()
    topics.produce(name, [Record(None, b"hello %d" % i) for i in range(3)])
    with (
        CoordinatorProcess(kafka_broker.bootstrap_servers, tmp_path) as coordinator,
        worker_of_the_readme(coordinator, name, tmp_path, unique_name("g")) as process,
    ):
        eventually(lambda: "hello 2" in process.log_tail(), 30, what="the worker's output")


def test_a_worker_of_a_new_group_says_how_to_get_what_is_there(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], topics: Topics, tmp_path: Path
) -> None:
    """Its topic has records, and a new group begins behind them: the log has the way back."""
    name, group, servers = topic(), unique_name("g"), kafka_broker.bootstrap_servers
    topics.produce(name, [Record(None, b"hello %d" % i) for i in range(3)])
    with (
        CoordinatorProcess(servers, tmp_path, settings=DEFAULTS) as coordinator,
        worker_of_the_readme(coordinator, name, tmp_path, group) as process,
    ):
        said = f"group '{group}' is new on topic '{name}' and starts at its end"
        eventually(lambda: said in process.log_tail(), 30, what="what a new group is told")
        typed = re.search(r"sharecoord (groups .* --force);", process.log_tail())
        assert typed is not None, process.log_tail()
        done = run_cli(*typed[1].split())
        assert done.exit_code == 0, done
        eventually(lambda: "hello 2" in process.log_tail(), 30, what="what was there")


def test_the_java_program_prints_records_of_a_kafka_without_share_groups(tmp_path: Path) -> None:
    (program,) = blocks("java")
    assert len(program.strip().splitlines()) <= 20
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    source = tmp_path / "Orders.java"
    source.write_text(program.replace("localhost:9192", address), encoding="utf-8")
    assert address in source.read_text(encoding="utf-8")
    java, jars = find_java(), f"{kafka_libs()}/*"
    compiler = [java.with_name("javac"), "-proc:none", "-cp", jars, "-d", tmp_path, source]
    subprocess.run(compiler, check=True, timeout=COMPILE_S)
    options = ["-XX:TieredStopAtLevel=1", "-Xmx256m", "-cp", f"{tmp_path}:{jars}"]
    command = [str(java), *options, source.stem]
    with KafkaBroker("3.9.1") as broker:
        topics = Topics(broker.bootstrap_servers)
        topics.create("orders")
        topics.produce("orders", [Record(None, b"hello %d" % i) for i in range(3)])
        settings = {"kafka.port.listen": address, "security.audit.sink": "off"}
        with CoordinatorProcess(broker.bootstrap_servers, tmp_path, settings=settings):
            process = GuardedProcess("orders", command, log_path=tmp_path / "orders.log")
            process.start()
            try:
                eventually(lambda: "2 1 hello 2" in process.log_tail(), 60, what="its output")
            finally:
                process.stop(5)
