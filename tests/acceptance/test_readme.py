"""The README is true: its worker runs, and says what a new group should know."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Record, Topics
from tests.acceptance.bad_input import run_cli
from tests.acceptance.test_guides import DEFAULTS, example_process
from tests.support import KafkaUnderTest, eventually, unique_name

ROOT = Path(__file__).resolve().parents[2]
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
