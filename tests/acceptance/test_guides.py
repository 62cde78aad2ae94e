"""The examples of the guides run and print what the guides say."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from sharecoord_sdk import AdminClient

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Record, Topics
from tests.support import KafkaUnderTest, eventually, unique_name

BEGINNINGS = ("dead letter:", "trace:", "listed:", "redriven:", "again:")
"""Of the lines that the guide to dead letters prints."""

DEFAULTS = {"group.share.auto.offset.reset": "latest"}
"""Of `sharecoord serve`, where the coordinators of tests differ."""

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def coordinator(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    """With the product's defaults, for all guides: each has topics and groups of its own."""
    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, folder, settings=DEFAULTS) as process:
        yield process


def example_of(guide: str, section: str = "") -> str:
    """The only program of a guide, or of one of its sections."""
    text = (DOCS / guide).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    (program,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(program)


Reader = Callable[..., list[str]]
"""Runs the program of a guide as the guide says."""


@pytest.fixture
def run_example(
    coordinator: CoordinatorProcess, kafka_broker: KafkaUnderTest, tmp_path: Path
) -> Reader:
    def run(
        guide: str, names: dict[str, str], *files: str, section: str = "", times: int = 1
    ) -> list[str]:
        """Returns what it printed.

        Args:
            guide: Its file.
            names: Topics and groups of the guide, and what they are called here.
            files: Files that the program makes; they go into a folder of the test.
            section: Of the guide, when others have programs as well.
            times: How often it is run; what the first run printed is returned.
        """
        printed: list[str] = []
        servers = kafka_broker.bootstrap_servers
        told = {"localhost:7070": coordinator.address, "localhost:9092": servers}
        told |= {file: str(tmp_path / file) for file in files}
        for _ in range(times):
            with example_process(example_of(guide, section), tmp_path, told, names) as process:
                eventually(lambda: process.exit_code is not None, 60, what="its end")
                assert process.exit_code == 0, process.log_tail()
            printed = printed or process.log_path.read_text(encoding="utf-8").splitlines()
            process.log_path.unlink()
        return printed

    return run


@contextmanager
def example_process(
    program: str, folder: Path, told: dict[str, str], names: dict[str, str]
) -> Iterator[GuardedProcess]:
    """Runs a program of a guide; it is stopped at the end.

    Args:
        program: As it stands in the guide.
        folder: For the program and what it prints.
        told: Addresses and files of the guide, and what they are here.
        names: Topics and groups of the guide, and what they are called here.
    """
    for old, new in {**told, **{f'"{k}"': f'"{v}"' for k, v in names.items()}}.items():
        assert old in program
        program = program.replace(old, new)
    path, log = folder / "example.py", folder / "example.log"
    path.write_text(program, encoding="utf-8")
    process = GuardedProcess("example", [sys.executable, "-u", str(path)], log_path=log)
    process.start()
    try:
        yield process
    finally:
        process.stop(5)


def check_said(guide: str, printed: list[str]) -> None:
    """The guide says what its program prints."""
    said = " ".join((DOCS / guide).read_text(encoding="utf-8").split())
    for line in printed:
        assert f"`{line}`" in said, "the guide does not say so"


def check_all_said(guide: str, printed: list[str], count: int) -> None:
    """The program has printed so many lines, and the guide says each."""
    assert len(printed) == count
    check_said(guide, printed)


def test_delay(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"reminders": topic(), "reminder-workers": unique_name("group")}
    lines = run_example("delay.md", names)
    printed = [line for line in lines if "delivery" in line]
    check_all_said("delay.md", printed, 4)
    assert printed[0] == "say hello - delivery 1"
    assert printed[-1] == "pay the bill - delivery 1"


def test_replay(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"invoices": topic(), "invoicing": unique_name("invoicing")}
    names["second-look"] = unique_name("second-look")
    lines = run_example("replay.md", names)
    printed = [line for line in lines if line.startswith(("replay:", "second:", "left:"))]
    check_all_said("replay.md", printed, 5)


def test_long_jobs(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"videos": topic(), "video-workers": unique_name("group")}
    lines = run_example("long-jobs.md", names)
    printed = [line for line in lines if "scene" in line]
    check_all_said("long-jobs.md", printed, 3)


def test_values(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"baskets": topic(), "returns": topic(), "order-workers": unique_name("group")}
    lines = run_example("values.md", names)
    printed = [line for line in lines if line.startswith(("order ", "offset "))]
    check_all_said("values.md", printed, 6)


def test_dead_letters(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {name: unique_name(name) for name in ("billing", "billing-dead", "look")}
    names["payments"] = topic()
    lines = run_example("dead-letters.md", names)
    printed = [line for line in lines if line.startswith(BEGINNINGS)]
    check_all_said("dead-letters.md", printed, len(BEGINNINGS))


def test_worker(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"accounts": topic(), "account-workers": unique_name("workers")}
    lines = run_example("worker.md", names)
    printed = [line for line in lines if line.startswith(("done:", "failed:"))]
    check_all_said("worker.md", printed, 5)
    assert [line for line in printed if "alice" in line] == [
        "done: alice - open - delivery 1",
        "failed: alice - ConnectionError",
        "done: alice - pay 5 - delivery 2",
        "done: alice - close - delivery 1",
    ]


def test_exactly_once(run_example: Reader, topics: Topics) -> None:
    """It makes its topics itself, and is run twice."""
    made = ("sales", "sale-receipts")
    named = (*made, "ledger", "ledger-outputs", "receipt-reader")
    names = {name: unique_name(name) for name in named}
    try:
        lines = run_example("exactly-once.md", names, "bookings.db", times=2)
    finally:
        topics.delete(*{names[each] for each in made} & set(topics.names()))
    words = ("acknowledged:", "booked:", "received:")
    printed = [line for line in lines if line.startswith(words)]
    check_all_said("exactly-once.md", printed, 7)


def test_order(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"purchases": topic(), "shop": unique_name("shop")}
    lines = run_example("ordering.md", names)
    printed = [line for line in lines if line.startswith(("in order:", "blocked:"))]
    check_all_said("ordering.md", printed, 4)


def test_migration(run_example: Reader, topic: Callable[..., str]) -> None:
    groups = ("accounting", "accounting-old", "accounting-new")
    names = {name: unique_name(name) for name in groups}
    names["charges"] = topic()
    lines = run_example("migrate.md", names, section="From a plain consumer group")
    printed = [line for line in lines if line.startswith(("import:", "handled:", "export:"))]
    check_all_said("migrate.md", printed, 3)


AFTER = {
    "From Kafka's own share groups": ["booked: 4 - delivery 1", "booked: 3 - delivery 2"],
    "From Parallel Consumer": [
        "booked: alice 3 - delivery 2",
        "booked: alice 5 - delivery 1",
        "booked: bob 4 - delivery 2",
        "booked: bob 6 - delivery 1",
        "sent: receipt 1",
    ],
    "From KMQ": ["booked: 3 - delivery 1", "booked: 4 - delivery 2"],
}
"""Sections whose programs go on behind charge 2, and what they print."""


def left_by_a_consumer_group(servers: str, topics: Topics, charges: str, last: int) -> str:
    """Charges 1 to `last`; a consumer group has committed the first two.

    Returns:
        Its name.
    """
    numbers = range(1, last + 1)
    records = [Record(b"alice" if n % 2 else b"bob", b"%d" % n) for n in numbers]
    topics.produce(charges, records, partition=0)
    group = unique_name("old")
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(charges, 0, 2)], asynchronous=False)
    consumer.close()
    return group


def by_name(lines: list[str]) -> dict[str, list[str]]:
    """What was printed of each: `booked: alice 3`."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line.split()[1], []).append(line)
    return found


@pytest.mark.parametrize("section", AFTER)
def test_migration_after(
    section: str,
    kafka_broker: KafkaUnderTest,
    coordinator: CoordinatorProcess,
    topic: Callable[..., str],
    topics: Topics,
    tmp_path: Path,
) -> None:
    servers, said = kafka_broker.bootstrap_servers, AFTER[section]
    program = example_of("migrate.md", section)
    names = {"charges": topic(), "accounting": unique_name("accounting")}
    last = 2 + sum(line.startswith("booked:") for line in said)
    old = left_by_a_consumer_group(servers, topics, names["charges"], last)
    if '"receipts"' in program:
        names["receipts"] = topic()
        topics.produce(names["receipts"], [Record(None, b"receipt 1")], partition=0)

    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        # The receipt is there before the group.
        settings = {"share.auto.offset.reset": "earliest"}
        if 'ordering="key"' in program:
            settings["share.ordering"] = "key"
        admin.alter_group_configs(names["accounting"], settings)
        admin.import_offsets(names["accounting"], old)
    told = {"localhost:7070": coordinator.address}
    with example_process(program, tmp_path, told, names) as process:

        def printed() -> list[str]:
            assert process.exit_code is None, process.log_tail()
            lines = process.log_path.read_text(encoding="utf-8").splitlines()
            return [line for line in lines if line.startswith(("booked:", "sent:"))]

        eventually(lambda: len(printed()) >= len(said), 60, what="the lines of the page")
        assert by_name(printed()) == by_name(said)
    check_said("migrate.md", said)


def test_pause(run_example: Reader, topic: Callable[..., str]) -> None:
    names = {"transfers": topic(), "transfer-desk": unique_name("desk")}
    lines = run_example("pause.md", names)
    words = ("paid:", "while", "paused", "offset")
    printed = [line for line in lines if line.startswith(words)]
    check_all_said("pause.md", printed, 5)
