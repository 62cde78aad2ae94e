"""Workers of one group as processes, and what their ledgers say so far."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Self

from sharecoord.demo.ledger import Entry, LedgerReader, Outcome, Tally, Verb
from sharecoord.demo.window_view import WindowState, read_window
from sharecoord.devenv.coordinator import CoordinatorProcess, clean_environment
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.records import LockEntry, read_locks
from tests.acceptance.chaos.verdict import DELIVERY_LIMIT, LOCK_MARGIN_S, Findings, weigh
from tests.support import eventually

ROOT = Path(__file__).resolve().parents[3]
STOP_GRACE_S = 10.0


class Crew:
    """Hires, kills and dismisses workers; every process has a name and a ledger of its own.

    Attributes:
        tally: What all ledgers say, up to the last `look`.
        confirmed: Offsets whose acceptance the coordinator has confirmed.
        produced: Offsets in the log.
    """

    def __init__(
        self,
        directory: Path,
        address: str,
        group: str,
        topic: str,
        *,
        work_ms: float = 0.0,
        poll_records: int = 50,
        release_each: int = 0,
        commit_each: bool = False,
    ) -> None:
        """Nothing is started yet.

        Args:
            directory: For ledgers and logs; made when it is missing.
            address: Where the coordinator, or a proxy before it, listens.
            group: The share group.
            topic: The topic; partition 0 of it is used.
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
        self._argv = [
            *(sys.executable, "-m", "tests.acceptance.chaos.worker"),
            *("--coordinator", address, "--group", group, "--topic", topic),
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

    def hire(self) -> str:
        """Starts one more worker; returns its name."""
        name = f"w{len(self._readers) + 1}"
        files = ["--ledger", str(self._directory / name), "--locks", str(self._locks(name))]
        process = GuardedProcess(
            name,
            [*self._argv, "--member", name, *files],
            log_path=self._directory / f"{name}.log",
            env=worker_environment(),
        )
        self._readers[name] = LedgerReader(self._directory / name)
        self._processes[name] = process
        process.start()
        return name

    def working(self, *names: str) -> None:
        """Waits until these workers have joined."""
        eventually(lambda: self.look().joined >= set(names), 30.0, f"{names} have joined")

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
        """Adds records to the log."""
        found = topics.produce(self.topic, count, value_bytes=value_bytes)
        first, last = found.offsets[0]
        self.produced |= set(range(first, last + 1))

    def until(self, probe: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Waits while it follows the ledgers."""

        def looked() -> bool:
            self.look()
            return probe()

        eventually(looked, timeout_s, what)

    def until_finished(self, coordinator: CoordinatorProcess, timeout_s: float = 60.0) -> None:
        """Waits until the store says that everything is finished."""
        end = max(self.produced) + 1

        def done() -> bool:
            window = self.window(coordinator)
            return window is not None and window.start_offset > 0 and window.lag(end) == 0

        self.until(done, timeout_s, f"all {end} records are finished")

    def window(self, coordinator: CoordinatorProcess) -> WindowState | None:
        """The share-partition as the store has it."""
        return read_window(coordinator.store_path, self.topic)

    def verdict(
        self,
        coordinator: CoordinatorProcess,
        margin_s: float = LOCK_MARGIN_S,
        *,
        delivery_limit: int = DELIVERY_LIMIT,
    ) -> Findings:
        """Ends the workers and weighs what they wrote."""
        self.dismiss_all()
        self.look()
        window = self.window(coordinator)
        assert window is not None, "there is a share-partition"
        return weigh(
            self.produced,
            self.tally.entries,
            self.locks(),
            unfinished=window.lag(max(self.produced) + 1),
            margin_s=margin_s,
            delivery_limit=delivery_limit,
        )

    def _locks(self, name: str) -> Path:
        return self._directory / f"{name}.locks"


def _accepted(entry: Entry) -> bool:
    return entry.verb is Verb.CONFIRMED and entry.outcome is Outcome.ACCEPT


def worker_environment() -> dict[str, str]:
    """Ours, in which the tests can be imported from any directory."""
    ours = clean_environment()
    path = [str(ROOT), *filter(None, [ours.get("PYTHONPATH")])]
    return {**ours, "PYTHONPATH": os.pathsep.join(path)}
