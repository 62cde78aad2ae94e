"""The processes of a trial: a server, its consumers, and what is read of them meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from sharecoord.bench.cluster import Cluster
from sharecoord.bench.coordinator import Counters, JoinWatch, MeasuredCoordinator
from sharecoord.bench.engine.figures import BROKER, CLIENT, COORDINATOR, DATABASE, Interval
from sharecoord.bench.engine.fleet import LOOK_S, Fleet
from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import cpu_s

FIRST_RECORD_S: Final = 90.0
"""Longest time of a group to its first record."""
_MEMBERS_LEAST: Final = 10
"""With fewer, what the first connection loads would be taken for memory of members."""


@dataclass(frozen=True, slots=True)
class Server:
    """The server of a trial's consumers: a fresh coordinator, or the broker."""

    address: str
    group: str
    coordinator: MeasuredCoordinator | None = None
    database_pid: int | None = None
    idle_rss_mb: float = 0.0
    idle_written_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Readings of the processes at a moment; None without a coordinator."""

    at_ns: int
    cpu_s: Mapping[str, float]
    counters: Counters | None
    written_bytes: int | None


class Stage:
    """A server with subscribed consumers, and what is read of their processes."""

    def __init__(
        self,
        cluster: Cluster,
        server: Server,
        fleet: Fleet,
        *,
        joins: JoinWatch | None = None,
        tick: Callable[[], None] = lambda: None,
        settle_s: float = 0.0,
    ) -> None:
        """Starts nothing; `tick` and `settle_s` as of `Trials`."""
        self.server = server
        self.fleet = fleet
        self.joins = joins
        self._tick = tick
        self._settle_s = settle_s
        coordinator = server.coordinator
        pids = {
            BROKER: cluster.pid,
            COORDINATOR: None if coordinator is None else coordinator.pid,
            DATABASE: server.database_pid,
        }
        self._pids = {name: pid for name, pid in pids.items() if pid is not None}

    def read(self) -> Reading:
        """Reads all of them now."""
        at_ns = time.monotonic_ns()
        cpu = {name: cpu_s(pid) for name, pid in self._pids.items()}
        cpu[CLIENT] = self.fleet.cpu_s()
        if self.server.coordinator is None:
            return Reading(at_ns, cpu, None, None)
        written = self.server.coordinator.written_bytes
        return Reading(at_ns, cpu, self.server.coordinator.counters(), written)

    def window(self, begin: Reading) -> Interval:
        """The window from an earlier reading to now."""
        end = self.read()
        used = {name: end.cpu_s[name] - begin.cpu_s[name] for name in end.cpu_s}
        done = None
        if begin.counters is not None and end.counters is not None:
            done = end.counters.since(begin.counters).commits_per_1000
        written = None
        if begin.written_bytes is not None and end.written_bytes is not None:
            written = end.written_bytes - begin.written_bytes
        return Interval(begin.at_ns, end.at_ns, used, done, written)

    def first_record(self, meanwhile: Callable[[], None] = lambda: None) -> int:
        """Waits for the first record; returns the moment. `meanwhile` is called often."""
        deadline = time.monotonic() + FIRST_RECORD_S

        def arrived() -> bool:
            if time.monotonic() > deadline:
                raise BenchError(f"no record was handled within {FIRST_RECORD_S:.0f} s")
            meanwhile()
            return self.fleet.board.total > 0

        self.wait(arrived)
        return time.monotonic_ns()

    def own_figures(self) -> dict[str, float]:
        """Figures that only this project's coordinator has."""
        if self.server.coordinator is None:
            return {}
        figures = {
            "coordinator_rss_mb": self.server.coordinator.rss_mb,
            "coordinator_peak_mb": self.server.coordinator.peak_rss_mb,
        }
        if self.joins is not None and self.joins.joined_ns is not None:
            figures["joined_s"] = (self.joins.joined_ns - self.fleet.board.began_ns) / 1e9
        return figures

    def settled_figures(self) -> dict[str, float]:
        """Memory before the first client and after the last record; costs of the whole trial."""
        coordinator = self.server.coordinator
        if coordinator is None or not self._settle_s:
            return {}
        time.sleep(self._settle_s)
        figures = {"idle_rss_mb": self.server.idle_rss_mb, "rss_after_mb": coordinator.rss_mb}
        done, written = coordinator.counters(), coordinator.written_bytes
        if done.commits_per_1000 is not None:
            figures["commits_per_1000"] = done.commits_per_1000
            if written is not None and self.server.idle_written_bytes is not None:
                bytes_each = (written - self.server.idle_written_bytes) / done.settled
                figures["store_bytes_per_record"] = bytes_each
        return figures

    def member_figures(self) -> dict[str, float]:
        """Memory per member, where the topic was empty: cached records would count as members'."""
        joins = self.joins
        if joins is None or joins.joined_ns is None or joins.members < _MEMBERS_LEAST:
            return {}
        return {"member_kb": 1000 * (joins.rss_mb - self.server.idle_rss_mb) / joins.members}

    def wait(self, done: Callable[[], bool]) -> None:
        """Waits until `done` says so; BenchError when a load process ended.

        Meanwhile the progress bar and the watch on joins take their turns.
        """
        while not done():
            self.fleet.check()
            self._tick()
            if self.joins is not None:
                self.joins.look()
            time.sleep(LOOK_S)
