"""The examples of the guides run and print what the guides say."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from tests.support import KafkaUnderTest, eventually, unique_name

BEGINNINGS = ("dead letter:", "trace:", "listed:", "redriven:", "again:")
"""Of the lines that the guide to dead letters prints."""

DOCS = Path(__file__).resolve().parents[2] / "docs"


def example_of(guide: str) -> str:
    """The only program of a guide."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(program)


def run_example(
    guide: str, servers: str, folder: Path, names: dict[str, str], *files: str
) -> list[str]:
    """Runs the program of a guide; returns what it printed.

    Args:
        guide: Its file.
        servers: Of Kafka.
        folder: For the coordinator and the program.
        names: Topics and groups of the guide, and what they are called here.
        files: Files that the program makes; they go into the folder.
    """
    program = example_of(guide)
    with CoordinatorProcess(servers, folder) as coordinator:
        told = {"localhost:7070": coordinator.address, "localhost:9092": servers}
        told |= {file: str(folder / file) for file in files}
        for old, new in {**told, **{f'"{k}"': f'"{v}"' for k, v in names.items()}}.items():
            assert old in program
            program = program.replace(old, new)
        path, log = folder / "example.py", folder / "example.log"
        path.write_text(program, encoding="utf-8")
        process = GuardedProcess("example", [sys.executable, "-u", str(path)], log_path=log)
        process.start()
        try:
            eventually(lambda: process.exit_code is not None, 60, what="the end of the example")
            assert process.exit_code == 0, process.log_tail()
        finally:
            process.stop(5)
    return log.read_text(encoding="utf-8").splitlines()


def check_said(guide: str, printed: list[str]) -> None:
    """The guide says what its program prints."""
    said = " ".join((DOCS / guide).read_text(encoding="utf-8").split())
    for line in printed:
        assert f"`{line}`" in said, "the guide does not say so"


def test_delay(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"reminders": topic()}
    lines = run_example("delay.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if "delivery" in line]
    assert len(printed) == 4
    check_said("delay.md", printed)
    assert printed[0] == "say hello - delivery 1"
    assert printed[-1] == "pay the bill - delivery 1"


def test_replay(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"invoices": topic(), "billing": unique_name("billing")}
    lines = run_example("replay.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if line.startswith(("replay:", "second:", "left:"))]
    assert len(printed) == 5
    check_said("replay.md", printed)


def test_long_jobs(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"videos": topic(), "video-workers": unique_name("group")}
    lines = run_example("long-jobs.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if "scene" in line]
    assert len(printed) == 3
    check_said("long-jobs.md", printed)


def test_values(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"orders": topic(), "returns": topic(), "order-workers": unique_name("group")}
    lines = run_example("values.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if line.startswith(("order ", "offset "))]
    assert len(printed) == 6
    check_said("values.md", printed)


def test_dead_letters(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path
) -> None:
    names = {"payments": topic(), "billing-dead": unique_name("dead"), "look": unique_name("look")}
    lines = run_example("dead-letters.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if line.startswith(BEGINNINGS)]
    assert len(printed) == len(BEGINNINGS)
    check_said("dead-letters.md", printed)


def test_worker(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"accounts": topic(), "account-workers": unique_name("workers")}
    lines = run_example("worker.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if line.startswith(("done:", "failed:"))]
    assert len(printed) == 5
    check_said("worker.md", printed)
    assert [line for line in printed if "alice" in line] == [
        "done: alice - open - delivery 1",
        "failed: alice - ConnectionError",
        "done: alice - pay 5 - delivery 2",
        "done: alice - close - delivery 1",
    ]


def test_exactly_once(
    kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path
) -> None:
    names = {name: unique_name(name) for name in ("ledger", "ledger-outputs", "receipt-reader")}
    names |= {"payments": topic(), "receipts": topic()}
    servers = kafka_broker.bootstrap_servers
    lines = run_example("exactly-once.md", servers, tmp_path, names, "bookings.db")
    words = ("acknowledged:", "booked:", "received:")
    printed = [line for line in lines if line.startswith(words)]
    assert len(printed) == 7
    check_said("exactly-once.md", printed)


def test_order(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"purchases": topic(), "shop": unique_name("shop")}
    lines = run_example("ordering.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if line.startswith(("in order:", "blocked:"))]
    assert len(printed) == 4
    check_said("ordering.md", printed)


def test_migration(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {name: unique_name(name) for name in ("billing", "billing-old", "billing-new")}
    names["payments"] = topic()
    lines = run_example("migrate.md", kafka_broker.bootstrap_servers, tmp_path, names)
    printed = [line for line in lines if line.startswith(("import:", "handled:", "export:"))]
    assert len(printed) == 3
    check_said("migrate.md", printed)


def test_pause(kafka_broker: KafkaUnderTest, topic: Callable[..., str], tmp_path: Path) -> None:
    names = {"payments": topic(), "transfers": unique_name("transfers")}
    lines = run_example("pause.md", kafka_broker.bootstrap_servers, tmp_path, names)
    words = ("paid:", "while", "paused", "offset")
    printed = [line for line in lines if line.startswith(words)]
    assert len(printed) == 5
    check_said("pause.md", printed)
