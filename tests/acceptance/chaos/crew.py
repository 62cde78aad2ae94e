"""Workers of one group as processes, and what their ledgers say so far."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Self

from sharecoord.demo.ledger import Entry, LedgerReader, Outcome, Tally, Verb
from sharecoord.demo.window_view import WindowState, read_window
from sharecoord.devenv.coordinator import CoordinatorProcess, clean_environment
from sharecoord.devenv.databases import execute
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Record, Topics, numbered_records
from tests.acceptance.chaos.records import PARTITION_SPAN, LockEntry, place_of, read_locks
from tests.acceptance.chaos.verdict import DELIVERY_LIMIT, LOCK_MARGIN_S, Findings, weigh
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[3]
STOP_GRACE_S = 10.0
JOIN_S = 60.0
FINISH_S = 100.0
MORE_RECORDS = 500


class Crew:
    """Hires, kills and dismisses workers; every process has a name and a ledger of its own.

    Attributes:
        tally: What all ledgers say, up to the last `look`.
        confirmed: Records whose acceptance the coordinator has confirmed.
        produced: Records in the log.
    """

    def __init__(
        self,
        directory: Path,
        address: str,
        group: str,
        topic: str,
        *,
        partitions: int = 1,
        work_ms: float = 0.0,
        poll_records: int = 50,
        release_each: int = 0,
        commit_each: bool = False,
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: For ledgers and logs; made when it is missing.
            address: Where the coordinator, or a proxy before it, listens; of several, with commas
                between them, each worker begins with another.
            group: The share group.
            topic: The topic.
            partitions: How many it has.
            work_ms: How long a worker takes for a record.
            poll_records: `max.poll.records`.
            release_each: Every so manieth record is released at its first delivery; 0 = none.
            commit_each: Whether each record is acknowledged at once, not with the others of its
                poll.
        """
        directory.mkdir(parents=True, exist_ok=True)
        self.tally = Tally()
        self.confirmed: set[int] = set()
        self.produced: set[int] = set()
        self.group = group
        self.topic = topic
        self._directory = directory
        self._addresses = address.split(",")
        self._partitions = partitions
        self._argv = [
            *(sys.executable, "-m", "tests.acceptance.chaos.worker"),
            *("--group", group, "--topic", topic),
            *("--work-ms", str(work_ms), "--poll-records", str(poll_records)),
            *("--release-each", str(release_each)),
            *(["--commit-each"] if commit_each else []),
        ]
        self._processes: dict[str, GuardedProcess] = {}
        self._readers: dict[str, LedgerReader] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            process.kill()

    def hire(self, address: str = "", program: Sequence[str] = ()) -> str:
        """Starts one more worker; returns its name.

        Args:
            address: What it is told of coordinators; "" = the crew's addresses.
            program: Another worker than the SDK's, with arguments of its own.
        """
        number = len(self._readers)
        name = f"w{number + 1}"
        first = number % len(self._addresses)
        turned = ",".join(self._addresses[first:] + self._addresses[:first])
        own = ["--member", name, "--coordinator", address or turned]
        files = ["--ledger", str(self._directory / name), "--locks", str(self._locks(name))]
        process = GuardedProcess(
            name,
            [*(program or self._argv), *own, *files],
            log_path=self._directory / f"{name}.log",
            env=worker_environment(),
        )
        self._readers[name] = LedgerReader(self._directory / name)
        self._processes[name] = process
        process.start()
        return name

    def working(self, *names: str) -> None:
        """Waits until these workers have joined."""
        eventually(lambda: self.look().joined >= set(names), JOIN_S, f"{names} have joined")

    def kill(self, name: str) -> None:
        """As kill -9."""
        self._processes.pop(name).kill()

    def dismiss(self, name: str) -> None:
        """SIGTERM: the worker finishes the record in hand and leaves."""
        process = self._processes.pop(name)
        process.stop(STOP_GRACE_S)

    def send_signal(self, name: str, signum: signal.Signals) -> None:
        """Any other signal."""
        self._processes[name].signal(signum)

    def end(self, name: str, signum: signal.Signals) -> None:
        """Kills or dismisses."""
        (self.kill if signum is signal.SIGKILL else self.dismiss)(name)

    def dismiss_all(self) -> None:
        """SIGTERM to all of them, then waits."""
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
        for name in list(self._processes):
            self.dismiss(name)

    def look(self) -> Tally:
        """Reads what is new; fails when a worker has ended by itself."""
        for reader in self._readers.values():
            entries = reader.read()
            self.tally.add(entries)
            self.confirmed |= {each.offset for each in entries if _accepted(each)}
        for name, process in self._processes.items():
            assert process.exit_code is None, f"{name} ended:\n{process.log_tail()}"
        return self.tally

    def deliveries(self) -> int:
        """How many records came out of polls."""
        return sum(each.verb is Verb.GOT for each in self.look().entries)

    def unanswered(self) -> int:
        """How many acknowledgements are on their way."""
        entries = self.look().entries
        said = sum(each.verb is Verb.DID for each in entries)
        heard = sum(each.verb in (Verb.CONFIRMED, Verb.REFUSED) for each in entries)
        return said - heard

    def locks(self) -> list[LockEntry]:
        """All lock files."""
        return [entry for name in self._readers for entry in read_locks(self._locks(name))]

    # -- records --------------------------------------------------------------------------------

    def produce(self, topics: Topics, count: int, *, value_bytes: int = 100) -> None:
        """Adds records to the log, spread over its partitions."""
        found = topics.produce(self.topic, self._records(count, value_bytes), partition=None)
        for partition, (first, last) in found.offsets.items():
            places = place_of(partition, first), place_of(partition, last)
            self.produced |= set(range(places[0], places[1] + 1))

    def _records(self, count: int, value_bytes: int) -> Iterator[Record]:
        """Keys spread them; those without go to one partition at a time."""
        begin = len(self.produced)
        for number, record in enumerate(numbered_records(count, value_bytes), begin):
            yield record._replace(key=b"%d" % number)

    def until(self, probe: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Waits while it follows the ledgers."""

        def looked() -> bool:
            self.look()
            return probe()

        eventually(looked, timeout_s, what)

    def until_busy(self, topics: Topics, probe: Callable[[], bool], what: str) -> None:
        """Waits, and adds records while it does: a look that comes late must not find all done."""

        def busy() -> bool:
            if len(self.produced) - len(self.confirmed) < MORE_RECORDS:
                self.produce(topics, MORE_RECORDS)
            return probe()

        self.until(busy, JOIN_S, what)

    def at_work(self, topics: Topics, count: int) -> None:
        """Waits until so many records are confirmed, and there are more to come."""
        self.until_busy(topics, lambda: len(self.confirmed) >= count, f"{count} are confirmed")

    def until_finished(self, store: CoordinatorProcess | str, timeout_s: float = FINISH_S) -> None:
        """Waits until the store says that everything is finished.

        Args:
            store: A coordinator on SQLite, or the URL of a server.
            timeout_s: How long.
        """
        self.until(
            lambda: self.unfinished(store) == 0, timeout_s, f"{len(self.produced)} are finished"
        )

    def unfinished(self, store: CoordinatorProcess | str) -> int:
        """Records that the store has as lag."""
        ends: dict[int, int] = {}
        for place in self.produced:
            partition, offset = divmod(place, PARTITION_SPAN)
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        windows = read_heads(store, self.group)
        return sum(windows.get(p, WindowState()).lag(end) for p, end in ends.items())

    def window(self, coordinator: CoordinatorProcess) -> WindowState | None:
        """Partition 0 as a store on SQLite has it."""
        return read_window(coordinator.store_path, self.topic)

    def verdict(
        self,
        store: CoordinatorProcess | str,
        margin_s: float = LOCK_MARGIN_S,
        *,
        delivery_limit: int = DELIVERY_LIMIT,
    ) -> Findings:
        """Ends the workers and weighs what they wrote."""
        self.dismiss_all()
        self.look()
        return weigh(
            self.produced,
            self.tally.entries,
            self.locks(),
            unfinished=self.unfinished(store),
            margin_s=margin_s,
            delivery_limit=delivery_limit,
        )

    def _locks(self, name: str) -> Path:
        return self._directory / f"{name}.locks"


def read_heads(store: CoordinatorProcess | str, group: str) -> dict[int, WindowState]:
    """A group's share-partitions of its one topic as a store has them, without their ranges.

    Nothing while a file of SQLite is busy.
    """
    query = (
        "SELECT partition_index, start_offset, end_offset, finished_count FROM share_partition "
        f"WHERE group_id = '{group}' AND NOT closed AND start_offset IS NOT NULL"
    )
    if isinstance(store, str):
        rows = execute(store, query)
    else:
        try:
            with closing(sqlite3.connect(f"{store.store_path.as_uri()}?mode=ro", uri=True)) as file:
                rows = file.execute(query).fetchall()
        except sqlite3.OperationalError:
            rows = []
    return {
        partition: WindowState(start, end, finished or 0)
        for partition, start, end, finished in rows
    }


def _accepted(entry: Entry) -> bool:
    return entry.verb is Verb.CONFIRMED and entry.outcome is Outcome.ACCEPT


def worker_environment() -> dict[str, str]:
    """Ours, in which the tests can be imported from any directory."""
    ours = clean_environment()
    path = [str(ROOT), *filter(None, [ours.get("PYTHONPATH")])]
    return {**ours, "PYTHONPATH": os.pathsep.join(path)}
