"""One trial: a fresh group and a fresh coordinator, consumers, a window, figures."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sharecoord.bench.coordinator import Counters, JoinWatch, MeasuredCoordinator
from sharecoord.bench.errors import BenchError
from sharecoord.bench.grid.board import Board
from sharecoord.bench.grid.cell import Cell, Consumer, Events, Mode, Order
from sharecoord.bench.grid.figures import (
    Trial,
    Window,
    exact_window,
    latency_figures,
    records_per_consumer,
    speed_figures,
)
from sharecoord.bench.grid.fleet import LOOK_S, Fleet, Sender
from sharecoord.bench.grid.job import SendJob
from sharecoord.bench.grid.recorder import Samples
from sharecoord.bench.grid.search import search_max_rate
from sharecoord.bench.grid.send import Waker, due_ns
from sharecoord.bench.grid.settings import (
    MAX_DRAIN_S,
    Settings,
    TopicKey,
    backlog_records,
    consumers_per_process,
    topic_key,
)
from sharecoord.bench.peers import parallel_consumer
from sharecoord.bench.procfs import cpu_s
from sharecoord.bench.runner import BROKER, COORDINATOR, Cluster
from sharecoord.devenv.native import set_group_config
from sharecoord.devenv.topics import Topics

FIRST_RECORD_S: Final = 90.0
"""How long a group may take to its first record."""
LATE_S: Final = 10.0
"""How long is waited for records of the window once it is over."""
_CLIENT: Final = "client"
_LOCKS: Final = "share.partition.max.record.locks"
_ORDERING: Final = "share.ordering"
_EDGE: Final = 0.1  # the first and the last tenth of a backlog are not measured
_WAKE_S: Final = 0.1
_SENDER_START_S: Final = 1.5
_AFTER_WINDOW_S: Final = 0.5
_MEMBERS_LEAST: Final = 10
"""With fewer, what the first connection loads would be taken for memory of members."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial leaves behind.

    Attributes:
        trial: Its figures.
        samples: Raw.
        origin_ns: When the window began; samples are written relative to it.
    """

    trial: Trial
    samples: Samples
    origin_ns: int


@dataclass(frozen=True, slots=True)
class _Server:
    """Whom the consumers of a trial talk to; without a coordinator the broker."""

    address: str
    group: str
    coordinator: MeasuredCoordinator | None = None
    idle_rss_mb: float = 0.0


class Trials:
    """Makes trials on one cluster."""

    def __init__(
        self, settings: Settings, cluster: Cluster, scratch: Path, tick: Callable[[], None]
    ) -> None:
        """Nothing is started.

        Args:
            settings: Of the run.
            cluster: Where.
            scratch: An existing directory on a disk.
            tick: Called often while a trial runs, for the progress bar.
        """
        self._settings = settings
        self._cluster = cluster
        self._scratch = scratch
        self._tick = tick
        self._topics = Topics(cluster.bootstrap_servers)
        if any(each.consumer is Consumer.PARALLEL_CONSUMER for each in settings.product().cells):
            parallel_consumer.prepare()
        self._joins: _Joins | None = None
        self.backlogs: dict[TopicKey, tuple[str, int]] = {}
        """Topics that were filled, and how many records each has."""

    def run(self, number: int, cell: Cell, repeat: int) -> Outcome:
        """Measures a cell once.

        Args:
            number: Of the cell.
            cell: What to measure.
            repeat: 0 for the rehearsal.

        Raises:
            SharecoordError: It could not be measured.
        """
        load_average = os.getloadavg()[0]
        mode = self._settings.mode
        if mode is Mode.MAX_RATE:
            figures, probes, samples, window = self._search(cell)
        else:
            probes = ()
            measure = self._steady if mode is Mode.LATENCY else self._backlog
            figures, samples, window = measure(cell)
        counts = records_per_consumer(samples, window, cell.consumers)
        trial = Trial(number, repeat, figures, counts, probes, load_average)
        return Outcome(trial, samples, window.begin_ns)

    # -- a backlog: throughput, drain --------------------------------------------------------------

    def _backlog(self, cell: Cell) -> tuple[dict[str, float], Samples, Window]:
        drain = self._settings.mode is Mode.DRAIN
        topic, filled = self.backlogs.get(topic_key(cell), ("", 0))
        per_record = drain or bool(cell.work_ms)
        with self._stage(
            cell, topic, per_record=per_record, latency=False, board_records=filled
        ) as (server, fleet):
            first_ns = self._first_record(fleet)
            watch = _Watch(self._cluster, server, fleet)
            if drain:
                window = self._until_drained(watch, fleet, first_ns, filled)
            else:
                needed = backlog_records(self._settings, cell)
                window = self._over_backlog(watch, fleet, first_ns, cell, needed)
            own, began_ns = self._own_figures(server, fleet), fleet.board.began_ns
            distinct, handled = fleet.board.distinct(), fleet.board.total
            samples = fleet.finish()
        if drain:
            window = exact_window(samples, window)
        figures = {
            **speed_figures(cell, samples, window),
            **own,
            "first_record_s": (min(samples.began_ns) - began_ns) / 1e9,
        }
        if drain:
            figures["drain_s"] = window.seconds
            figures["repeated_records"] = max(0, handled - distinct)
        return figures, samples, window

    def _over_backlog(
        self, watch: _Watch, fleet: Fleet, first_ns: int, cell: Cell, records: int
    ) -> Window:
        """From the warm-up's end, or the first tenth, to the duration's, or the last tenth."""
        edge = records * _EDGE if records and not cell.work_ms else float("inf")
        end = records - records * _EDGE if records else float("inf")
        warm_ns = first_ns + int(self._settings.warm_up_s * 1e9)
        self._wait(fleet, lambda: time.monotonic_ns() >= warm_ns or fleet.board.total >= edge)
        begin = watch.read()
        stop_ns = begin.at_ns + int(self._settings.duration_s * 1e9)
        self._wait(fleet, lambda: time.monotonic_ns() >= stop_ns or fleet.board.total >= end)
        return watch.window(begin)

    def _until_drained(self, watch: _Watch, fleet: Fleet, first_ns: int, records: int) -> Window:
        """From the first record to the moment when all were handled."""
        begin = watch.read()
        deadline_ns = first_ns + int(MAX_DRAIN_S * 1e9)

        def drained() -> bool:
            if time.monotonic_ns() > deadline_ns:
                raise BenchError(
                    f"{fleet.board.distinct():,} of {records:,} records were handled within "
                    f"{MAX_DRAIN_S:.0f} s; give fewer records"
                )
            return fleet.board.total >= records and fleet.board.distinct() >= records

        self._wait(fleet, drained)
        return watch.window(begin)

    # -- a steady rate: latency, max-rate ----------------------------------------------------------

    def _search(
        self, cell: Cell
    ) -> tuple[dict[str, float], tuple[tuple[float, bool], ...], Samples, Window]:
        """The highest rate whose p99 holds, with the figures measured at it."""
        best: dict[float, tuple[dict[str, float], Samples, Window]] = {}
        settings = self._settings

        def holds(rate: float) -> bool:
            measured = self._steady(replace(cell, rate=rate))
            best[rate] = measured
            figures = measured[0]
            return figures["p99_ms"] <= settings.p99_ms and not figures["missing_records"]

        found = search_max_rate(holds, settings.min_rate, settings.max_rate, settings.steps)
        figures, samples, window = best[found.rate or settings.min_rate]
        return {**figures, "max_rate_per_s": found.rate}, found.probes, samples, window

    def _steady(self, cell: Cell) -> tuple[dict[str, float], Samples, Window]:
        assert cell.rate is not None, "checked with the settings"
        topic = f"bench-{uuid.uuid4().hex[:12]}"
        self._topics.create(topic, partitions=cell.partitions)
        try:
            return self._steady_on(cell, cell.rate, topic)
        finally:
            self._topics.delete(topic)

    def _steady_on(
        self, cell: Cell, rate: float, topic: str
    ) -> tuple[dict[str, float], Samples, Window]:
        settings = self._settings
        seconds = settings.warm_up_s + settings.duration_s + _AFTER_WINDOW_S
        records = int(rate * seconds)
        with (
            self._stage(cell, topic, per_record=True, latency=True, board_records=records) as (
                server,
                fleet,
            ),
            ExitStack() as stack,
        ):
            self._wake(fleet, topic, cell.partitions)
            start_ns = time.monotonic_ns() + int(_SENDER_START_S * 1e9)
            directory = stack.enter_context(self._directory())
            sender = stack.enter_context(
                Sender(self._send_job(cell, rate, topic, start_ns, records, directory), directory)
            )
            watch = _Watch(self._cluster, server, fleet)
            begin_ns = start_ns + int(settings.warm_up_s * 1e9)
            self._wait(fleet, lambda: time.monotonic_ns() >= begin_ns)
            begin = replace(watch.read(), at_ns=begin_ns)
            end_ns = begin_ns + int(settings.duration_s * 1e9)
            self._wait(fleet, lambda: time.monotonic_ns() >= end_ns)
            window = replace(watch.window(begin), end_ns=end_ns)
            first = first_due(window.begin_ns, start_ns, rate)
            end = first_due(window.end_ns, start_ns, rate)
            late_ns = time.monotonic_ns() + int(LATE_S * 1e9)
            self._wait(
                fleet,
                lambda: (
                    fleet.board.distinct(first, end) == end - first or time.monotonic_ns() > late_ns
                ),
            )
            own, began_ns = self._own_figures(server, fleet), fleet.board.began_ns
            own |= self._member_figures(server)
            waited = missing_ns(
                fleet.board,
                first,
                end,
                start_ns=start_ns,
                rate=rate,
                now_ns=time.monotonic_ns(),
            )
            late = sender.outcome(time.monotonic() + LATE_S + _AFTER_WINDOW_S + 10)["late_ms"]
            samples = fleet.finish()
        figures = {
            **speed_figures(cell, samples, window),
            **latency_figures(samples, window, waited),
            **own,
            "first_record_s": (min(samples.began_ns) - began_ns) / 1e9,
            "producer_late_ms": late,
        }
        return figures, samples, window

    def _send_job(
        self, cell: Cell, rate: float, topic: str, start_ns: int, records: int, directory: Path
    ) -> SendJob:
        return SendJob(
            bootstrap_servers=self._cluster.bootstrap_servers,
            topic=topic,
            partitions=cell.partitions,
            payload_bytes=cell.payload_bytes,
            key_skew=cell.key_skew,
            keys=cell.keys,
            seed=self._settings.seed,
            rate=rate,
            start_ns=start_ns,
            records=records,
            outcome=str(directory / "sent.json"),
        )

    def _wake(self, fleet: Fleet, topic: str, partitions: int) -> None:
        """Sends single records until one is handled."""
        waker = Waker(self._cluster.bootstrap_servers, topic, partitions)
        next_s = 0.0
        deadline = time.monotonic() + FIRST_RECORD_S
        while not fleet.board.total:
            fleet.check()
            now = time.monotonic()
            if now > deadline:
                raise BenchError(f"no record was handled within {FIRST_RECORD_S:.0f} s")
            if now >= next_s:
                waker.wake()
                next_s = now + _WAKE_S
            self._pause()
        waker.finish()

    # -- what all have in common -------------------------------------------------------------------

    @contextmanager
    def _stage(
        self, cell: Cell, topic: str, *, per_record: bool, latency: bool, board_records: int
    ) -> Iterator[tuple[_Server, Fleet]]:
        """A server and subscribed consumers; all are gone at the end."""
        with ExitStack() as stack:
            directory = stack.enter_context(self._directory())
            server = self._server(stack, cell, directory)
            self._joins = self._watch_joins(stack, cell, server)
            fleet = Fleet(
                cell,
                directory,
                address=server.address,
                group=server.group,
                topic=topic,
                per_process=consumers_per_process(self._settings, cell),
                per_record=per_record,
                latency=latency,
                board_records=board_records,
                seed=self._settings.seed,
            )
            try:
                with fleet:
                    fleet.wait_ready()
                    yield server, fleet
            except BenchError as error:
                coordinator = server.coordinator
                if coordinator is not None and coordinator.exit_code is not None:
                    raise BenchError(f"the coordinator ended: {coordinator.log_tail()}") from error
                raise

    def _server(self, stack: ExitStack, cell: Cell, directory: Path) -> _Server:
        address = self._cluster.bootstrap_servers
        group = f"bench-{cell.consumer}-{uuid.uuid4().hex[:8]}"
        locks = {} if cell.record_locks is None else {_LOCKS: str(cell.record_locks)}
        if cell.consumer is Consumer.KAFKA_SHARE:
            set_group_config(address, group, {"share.auto.offset.reset": "earliest", **locks})
        if cell.consumer is not Consumer.SHARECOORD:
            return _Server(address, group)
        settings = {f"group.{name}": value for name, value in locks.items()}
        if cell.ordering is not Order.UNORDERED:
            settings[f"group.{_ORDERING}"] = str(cell.ordering)
        settings |= self._events(stack, cell, f"{group}-events", directory)
        coordinator = MeasuredCoordinator(address, directory, settings=settings)
        stack.enter_context(coordinator)
        return _Server(coordinator.address, group, coordinator, coordinator.rss_mb)

    def _events(self, stack: ExitStack, cell: Cell, name: str, directory: Path) -> dict[str, str]:
        """Settings of the coordinator; what its writer makes goes with the trial."""
        if cell.events is Events.NONE:
            return {}
        if cell.events is Events.PARQUET:
            return {"events.sink": f"parquet:{directory / name}"}
        self._topics.create(name)
        stack.callback(self._topics.delete, name)
        return {"events.sink": f"kafka:{name}"}

    def _watch_joins(self, stack: ExitStack, cell: Cell, server: _Server) -> _Joins | None:
        if server.coordinator is None:
            return None
        # A worker is one member, whatever its slots.
        members = cell.consumers
        watch = JoinWatch(server.address, server.group, members)
        stack.callback(watch.close)
        return _Joins(watch, server.coordinator, members)

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)

    def _first_record(self, fleet: Fleet) -> int:
        """Waits for the first record; when it was seen."""
        deadline = time.monotonic() + FIRST_RECORD_S

        def arrived() -> bool:
            if time.monotonic() > deadline:
                raise BenchError(f"no record was handled within {FIRST_RECORD_S:.0f} s")
            return fleet.board.total > 0

        self._wait(fleet, arrived)
        return time.monotonic_ns()

    def _own_figures(self, server: _Server, fleet: Fleet) -> dict[str, float]:
        """What only a coordinator of ours has."""
        if server.coordinator is None:
            return {}
        figures = {
            "coordinator_rss_mb": server.coordinator.rss_mb,
            "coordinator_peak_mb": server.coordinator.peak_rss_mb,
        }
        if self._joins is not None and self._joins.joined_ns is not None:
            figures["joined_s"] = (self._joins.joined_ns - fleet.board.began_ns) / 1e9
        return figures

    def _member_figures(self, server: _Server) -> dict[str, float]:
        """Memory per member: only where the topic was empty, or cached records would be in it."""
        joins = self._joins
        if joins is None or joins.rss_mb is None or joins.members < _MEMBERS_LEAST:
            return {}
        return {"member_kb": 1000 * (joins.rss_mb - server.idle_rss_mb) / joins.members}

    def _wait(self, fleet: Fleet, done: Callable[[], bool]) -> None:
        while not done():
            fleet.check()
            self._pause()

    def _pause(self) -> None:
        self._tick()
        if self._joins is not None:
            self._joins.look()
        time.sleep(LOOK_S)


class _Joins:
    """Waits for all members of a trial; the coordinator's memory at that moment."""

    def __init__(self, watch: JoinWatch, coordinator: MeasuredCoordinator, members: int) -> None:
        self._watch = watch
        self._coordinator = coordinator
        self.members = members
        self.rss_mb: float | None = None

    @property
    def joined_ns(self) -> int | None:
        """When all were there; None before."""
        return self._watch.joined_ns

    def look(self) -> None:
        """Called often."""
        if self.rss_mb is None and self._watch.look():
            self.rss_mb = self._coordinator.rss_mb


@dataclass(frozen=True, slots=True)
class _Reading:
    at_ns: int
    cpu_s: Mapping[str, float]
    counters: Counters | None
    written_bytes: int | None


class _Watch:
    """Reads clock, CPU time of all processes of a trial, and what the coordinator has done."""

    def __init__(self, cluster: Cluster, server: _Server, fleet: Fleet) -> None:
        self._fleet = fleet
        self._coordinator = server.coordinator
        self._pids: dict[str, int] = {}
        if cluster.pid is not None:
            self._pids[BROKER] = cluster.pid
        if server.coordinator is not None:
            self._pids[COORDINATOR] = server.coordinator.pid

    def read(self) -> _Reading:
        """Now."""
        at_ns = time.monotonic_ns()
        cpu = {name: cpu_s(pid) for name, pid in self._pids.items()}
        cpu[_CLIENT] = self._fleet.cpu_s()
        if self._coordinator is None:
            return _Reading(at_ns, cpu, None, None)
        written = self._coordinator.written_bytes
        return _Reading(at_ns, cpu, self._coordinator.counters(), written)

    def window(self, begin: _Reading) -> Window:
        """From then to now."""
        end = self.read()
        used = {name: end.cpu_s[name] - begin.cpu_s[name] for name in end.cpu_s}
        done = None
        if begin.counters is not None and end.counters is not None:
            done = end.counters.since(begin.counters).commits_per_1000
        written = None
        if begin.written_bytes is not None and end.written_bytes is not None:
            written = end.written_bytes - begin.written_bytes
        return Window(begin.at_ns, end.at_ns, used, done, written)


def first_due(at_ns: int, start_ns: int, rate: float) -> int:
    """Number of the first record that is due at or after a moment.

    Args:
        at_ns: The moment.
        start_ns: When record 0 is due.
        rate: Records per second.
    """
    number = max(0, int((at_ns - start_ns) / 1e9 * rate) - 2)
    while due_ns(start_ns, rate, number) < at_ns:
        number += 1
    return number


def missing_ns(
    board: Board, first: int, end: int, *, start_ns: int, rate: float, now_ns: int
) -> list[int]:
    """For each record from `first` to before `end` that nobody handled: for how long it is due.

    Args:
        board: What was handled.
        first: Number of a record.
        end: Number of the first one that does not count.
        start_ns: When record 0 was due.
        rate: Records per second.
        now_ns: Now.
    """
    return [
        now_ns - due_ns(start_ns, rate, first + place)
        for place, mark in enumerate(bytes(board.seen[first:end]))
        if not mark
    ]
