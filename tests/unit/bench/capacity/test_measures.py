"""What is measured without a broker: the disk, rows of SQLite, how a consumer acknowledges."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from sharecoord_sdk import AcknowledgeType

from sharecoord.bench.capacity import trials
from sharecoord.bench.capacity.counted import Written, counting_connection, program, read_written
from sharecoord.bench.capacity.figures import Pattern
from sharecoord.bench.capacity.trials import finish, measure_disk, record_figures, worker_figures
from sharecoord.bench.errors import BenchError
from sharecoord.bench.text import Spread


def test_the_disk_is_timed_and_nothing_is_left_on_it(tmp_path: Path) -> None:
    found = measure_disk(tmp_path, 0.0)
    assert 0 < found.median_ms <= found.p99_ms
    assert found.per_s > 0
    assert list(tmp_path.iterdir()) == []


# -- rows -----------------------------------------------------------------------------------------


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[tuple[sqlite3.Connection, Written]]:
    """A table without rows, and what was counted since."""
    written = Written()
    connection = sqlite3.connect(
        tmp_path / "db", isolation_level=None, factory=counting_connection(written)
    )
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, v) WITHOUT ROWID")
    yield connection, written
    connection.close()


def test_rows_are_counted_when_they_are_committed(
    counted: tuple[sqlite3.Connection, Written],
) -> None:
    connection, written = counted
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO t VALUES (?, 1)", [(number,) for number in range(10)])
    assert written == Written(0, 0)
    connection.commit()
    assert written == Written(10, 1)
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("UPDATE t SET v = 2 WHERE id < 3")
    connection.execute("DELETE FROM t WHERE id = 9")
    connection.execute("INSERT INTO t VALUES (1, 7) ON CONFLICT (id) DO UPDATE SET v = 7")
    connection.commit()
    assert written == Written(15, 2)


def test_a_transaction_that_only_reads_is_none(
    counted: tuple[sqlite3.Connection, Written],
) -> None:
    connection, written = counted
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM t").fetchall()
    connection.commit()
    assert written == Written(0, 0)


def test_a_process_leaves_its_counts_when_it_ends(tmp_path: Path) -> None:
    outcome = tmp_path / "written.json"
    argv = program(outcome)
    assert argv[0] == sys.executable
    # The same program with something else in the coordinator's place.
    script = argv[2].replace(
        "from sharecoord.cli.main import main\nsys.exit(main())",
        "import sqlite3.dbapi2 as driver\n"
        "connection = driver.connect(sys.argv[2])\n"
        "connection.execute('CREATE TABLE t (v)')\n"
        "connection.execute('INSERT INTO t VALUES (1)')\n"
        "connection.commit()\n"
        "connection.close()",
    )
    assert "driver.connect" in script
    subprocess.run([argv[0], "-c", script, str(outcome), "serve", str(tmp_path / "db")], check=True)
    assert read_written(outcome) == Written(1, 1)


def test_a_process_that_was_killed_left_none(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="left no counts"):
        read_written(tmp_path / "none")
    (tmp_path / "odd").write_text(json.dumps({"x": 1}), encoding="utf-8")
    with pytest.raises(BenchError, match="left no counts"):
        read_written(tmp_path / "odd")


# -- acknowledging --------------------------------------------------------------------------------


class Message(NamedTuple):
    number: int
    deliveries: int = 1
    failed: str | None = None

    def offset(self) -> int:
        return self.number

    def delivery_count(self) -> int:
        return self.deliveries

    def error(self) -> str | None:
        return self.failed


class Consumer:
    """Hands out ten records at a time; what is released comes again, before new ones."""

    def __init__(self, first: Message | None = None) -> None:
        self.said: list[tuple[int, int, AcknowledgeType]] = []
        self.commits = 0
        self._due = [] if first is None else [first]
        self._next = 0

    def poll(self, timeout: float) -> list[Message]:
        assert timeout > 0
        due, self._due = self._due, []
        new = [Message(self._next + place) for place in range(10 - len(due))]
        self._next += len(new)
        return due + new

    def acknowledge(self, message: Message, kind: AcknowledgeType) -> None:
        self.said.append((message.number, message.deliveries, kind))
        if kind is AcknowledgeType.RELEASE:
            self._due.append(message._replace(deliveries=message.deliveries + 1))

    def commit_sync(self) -> None:
        self.commits += 1


def test_every_second_record_is_released_once_and_then_accepted() -> None:
    consumer = Consumer()
    finish(consumer, 20, Pattern.ALTERNATING, 60.0)
    released = [number for number, _, kind in consumer.said if kind is AcknowledgeType.RELEASE]
    accepted = [
        (number, count) for number, count, kind in consumer.said if kind is AcknowledgeType.ACCEPT
    ]
    assert all(number % 2 for number in released)
    assert len(released) == len(set(released))
    assert len(accepted) >= 20
    assert all(count == 1 + number % 2 for number, count in accepted)


def test_ranges_are_left_to_the_implicit_mode() -> None:
    consumer = Consumer()
    finish(consumer, 25, Pattern.RANGES, 60.0)
    assert (consumer.said, consumer.commits) == ([], 3)


def test_what_goes_wrong_ends_the_measurement() -> None:
    with pytest.raises(BenchError, match="was given an error: broken"):
        finish(Consumer(Message(1, failed="broken")), 5, Pattern.RANGES, 60.0)
    with pytest.raises(BenchError, match="0 of 5 records were finished within -1 s"):
        finish(Consumer(), 5, Pattern.RANGES, -1.0)


# -- figures --------------------------------------------------------------------------------------


def trial(speed: float, cost: float, **more: float) -> dict[str, float]:
    return {
        "records_per_s": speed,
        "cpu_coordinator_s_per_million": cost,
        "coordinator_peak_mb": 100 + cost,
        **more,
    }


def test_repeats_become_medians() -> None:
    runs = [
        trial(speed, cost, store_bytes_per_record=10.0 * cost)
        for speed, cost in ((100.0, 3.0), (300.0, 1.0), (200.0, 2.0))
    ]
    figures = record_figures(100, runs)
    assert figures.records_per_s == Spread(200, 100, 300)
    assert figures.cpu_us == {"coordinator": Spread(2, 1, 3)}
    assert figures.commits_per_1000 is None
    assert figures.written_bytes == Spread(20, 10, 30)
    assert figures.peak_mb == Spread(102, 101, 103)


def test_members_that_handle_nothing_have_no_cost() -> None:
    found = worker_figures(100, 5.0, trial(1000.0, 10.0, commits_per_1000=2.0))
    assert (found.members, found.work_ms, found.records_per_s) == (100, 5.0, 1000)
    assert found.cpu_us == {"coordinator": 10.0}
    assert (found.commits_per_1000, found.written_bytes) == (2, None)
    with pytest.raises(BenchError, match="100 members handled no record"):
        worker_figures(100, 5.0, {"records_per_s": 0.0})


@pytest.mark.parametrize(
    ("before", "after", "records", "each"),
    [(100, 4196, 2, 2048.0), (None, 1, 2, None), (1, None, 2, None), (1, 2, 0, None)],
)
def test_bytes_each(before: int | None, after: int | None, records: int, each: Any) -> None:
    assert trials._each(before, after, records) == each
