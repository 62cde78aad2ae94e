"""SQLite with real processes: the lock, kill -9 in a storm of commits, a disk that fails."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sharecoord.errors import StoreInUseError
from sharecoord.ports import Store
from sharecoord.store.factory import make_store
from tests.contract.store_process import PARTITIONS, ROWS
from tests.contract.store_worlds import (
    claim_partition,
    letter_of,
    row_of,
)

ROOT = Path(__file__).parents[2]
KILL_CYCLES = 6


@contextlib.contextmanager
def process(mode: str, path: Path | str) -> Iterator[subprocess.Popen[str]]:
    """Runs `store_process`; it is dead when the block has ended."""
    url = path if isinstance(path, str) else f"sqlite:///{path}"
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.store_process", mode, url],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            yield child
        finally:
            child.kill()


def line_of(child: subprocess.Popen[str]) -> str:
    """The next line that the child says."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def opened(path: Path) -> Store:
    """The store in this process."""
    store = make_store(f"sqlite:///{path}")
    store.open(coordinator_id="test", cluster_id="kafka-1", address="a:1", version="0.1.0")
    return store


def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with process("hold", path) as child:
        assert line_of(child) == "open"
        with pytest.raises(StoreInUseError) as caught:
            opened(path)
        for part in (f"pid {child.pid}", "coordinator holder", str(path), "--store"):
            assert part in caught.value.message
        # Under another name it is the same file.
        link = tmp_path / "link.db"
        link.symlink_to(path)
        with pytest.raises(StoreInUseError, match=f"pid {child.pid}"):
            opened(link)
        # An orderly end frees it.
        child.communicate()
        assert child.returncode == 0
    opened(path).close()


def test_kill_frees_the_store_at_once(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with process("hold", path) as child:
        assert line_of(child) == "open"
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        opened(path).close()


def check_state(store: Store, *, least: int, most: int) -> int:
    """Every partition is exactly as one commit left it; returns that commit's number."""
    rows = store.list_partitions("group")
    assert len(rows) == PARTITIONS
    numbers = {row.head.change_sequence for row in rows if row.head is not None}
    assert len(numbers) == 1, "partitions of one commit stand at different commits"
    number = numbers.pop()
    assert least <= number <= most
    for row in rows:
        loaded = claim_partition(store, row.partition_id, incarnation=9, previous_incarnation=None)
        assert loaded is not None, "the lease of who was killed is void"
        base = number * 100
        wanted = tuple(row_of(base + index, base + index) for index in range(ROWS))
        assert loaded.in_flight == wanted
        assert [letter.offset for letter in loaded.dead_letters] == [number]
        assert loaded.dead_letters[0].value == letter_of(0).value
    store.close()
    return number


def kill_in_a_storm(place: Path | str, *, cycles: int, longest: int) -> Iterator[int]:
    """Kills a process that commits, again and again.

    Args:
        place: The file or the URL of its store.
        cycles: How often.
        longest: How many commits there are before the kill in the second cycle; later ones have
            more, by the square of their number.

    Yields:
        The number of the last commit that has returned, of each cycle.
    """
    for cycle in range(cycles):
        with process("storm", place) as child:
            said = [int(line_of(child)) for _ in range(1 + cycle * cycle * longest)]
            os.kill(child.pid, signal.SIGKILL)
            assert child.stdout is not None
            rest = child.stdout.read().split("\n")
            child.wait()
        yield [*said, *(int(line) for line in rest[:-1])][-1]


def test_kill_in_a_storm_of_commits(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    number = 0
    # From the first commit to beyond a checkpoint of SQLite.
    for confirmed in kill_in_a_storm(path, cycles=KILL_CYCLES, longest=37):
        assert confirmed > number
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        # What returned is there; the commit under way may be.
        number = check_state(opened(path), least=confirmed, most=confirmed + 1)


def test_a_failing_write_ends_the_store_and_keeps_what_was_committed(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    with process("limited", path) as child:
        said = line_of(child)
        child.wait()
    assert said.startswith("StoreFatalError ")
    assert f"{path}: I/O error" in said
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM in_flight").fetchone() == (ROWS,)
