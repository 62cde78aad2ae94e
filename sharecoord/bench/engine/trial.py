"""A trial: a fresh group and a fresh coordinator, consumers, a window, figures."""

from __future__ import annotations

import math
import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, NamedTuple

from sharecoord.bench.cluster import Cluster
from sharecoord.bench.coordinator import Counters, JoinWatch, MeasuredCoordinator
from sharecoord.bench.engine import parallel_consumer
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import (
    Cell,
    Consumer,
    Events,
    Mode,
    Order,
    SecurityKind,
    TopicKey,
)
from sharecoord.bench.engine.figures import (
    BROKER,
    CLIENT,
    COORDINATOR,
    DATABASE,
    Interval,
    Trial,
    exact_interval,
    latency_figures,
    records_per_consumer,
    speed_figures,
)
from sharecoord.bench.engine.fleet import LOOK_S, Fleet, SendProcess
from sharecoord.bench.engine.job import HEAD, NO_NUMBER, LoadJob, SendJob
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.engine.send import Sender, due_ns, fill_backlog
from sharecoord.bench.engine.settings import (
    MAX_DRAIN_S,
    Settings,
    backlog_records,
    backlogs,
    consumers_per_process,
    topic_key,
)
from sharecoord.bench.engine.stored import StoredBatches, stored_batches
from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import cpu_s
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.security import write_security
from sharecoord.devenv.stores import Stores
from sharecoord.devenv.topics import Topics

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
        """Starts nothing; `tick` as of `Trials`, `settle_s` as of `Settings`."""
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


LATE_S: Final = 10.0
"""Longest wait for records of the window once it is over."""
_CREATE_S: Final = 120.0
_LOCKS: Final = "share.partition.max.record.locks"
_ORDERING: Final = "share.ordering"
_EDGE: Final = 0.1  # the first and the last tenth of a backlog are not measured
_WAKE_S: Final = 0.1
_SENDER_START_S: Final = 1.5
_AFTER_WINDOW_S: Final = 0.5
Probes = tuple[tuple[float, bool], ...]
"""Rates that were tried in order, and whether they held."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a trial, and its window."""

    trial: Trial
    samples: Samples
    window: Interval


class Backlog(NamedTuple):
    """A topic that was filled; `stored` are its batches, where the broker's files can be read."""

    topic: str
    records: int
    stored: StoredBatches | None = None


_NO_BACKLOG: Final = Backlog("", 0)


class Trials:
    """Makes trials on one cluster."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        scratch: Path,
        *,
        stores: Stores,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is started.

        Args:
            settings: Settings of the run.
            cluster: The Kafka under the trials.
            scratch: An existing directory on a disk.
            stores: Makes the stores of coordinators.
            tick: Called often while a trial runs, for the progress bar.
        """
        self._settings = settings
        self._cluster = cluster
        self._scratch = scratch
        self._stores = stores
        self._tick = tick
        self._settle_s = settings.settle_s
        self._topics = Topics(cluster.bootstrap_servers, timeout_s=_CREATE_S)
        if any(each.consumer is Consumer.PARALLEL_CONSUMER for each in settings.product().cells):
            parallel_consumer.prepare()
        self._backlogs: dict[TopicKey, Backlog] = {}

    def fill(self, stack: ExitStack, cells: Sequence[Cell], say: Callable[[str], None]) -> None:
        """Makes and fills the topics of cells; the stack deletes them."""
        for key, records in backlogs(self._settings, cells).items():
            self.topic(stack, key, records, say)

    def topic(
        self, stack: ExitStack, key: TopicKey, records: int, say: Callable[[str], None]
    ) -> str:
        """Name of a topic with so many records, made and filled at its first use; as of `fill`."""
        if self._backlogs.get(key, _NO_BACKLOG).records < records:
            say(
                f"producing {records:,} records of {key.payload_bytes} B in batches of "
                f"{key.batch_bytes:,} B, compression {key.compression}"
            )
            name = f"bench-{uuid.uuid4().hex[:12]}"
            self._topics.create(name, partitions=key.partitions)
            stack.callback(self._topics.delete, name)
            fill_backlog(
                self._cluster.bootstrap_servers,
                name,
                key,
                records,
                seed=self._settings.seed,
            )
            self._backlogs[key] = Backlog(name, records, self._stored(key, name))
        return self._backlogs[key].topic

    def _stored(self, key: TopicKey, topic: str) -> StoredBatches | None:
        """The batches that the broker stores; None where its files are out of reach."""
        if self._cluster.log_dir is None:
            return None
        found = stored_batches(self._cluster.log_dir, topic, key.partitions)
        found.check(key, topic)
        return found

    def run(self, number: int, cell: Cell, repeat: int, *, records: int | None = None) -> Outcome:
        """Measures the cell of a number once; repeat 0 is the rehearsal. May raise SharecoordError.

        `records` of the backlog are consumed; None: as many as the cell needs.
        """
        load_average = os.getloadavg()[0]
        probes: Probes = ()
        mode = self._settings.mode
        if mode is Mode.MAX_RATE:
            figures, probes, samples, window = self._search(cell)
        elif mode is Mode.LATENCY:
            figures, samples, window = self._steady(cell)
        else:
            figures, samples, window = self._backlog(cell, records)
        counts = records_per_consumer(samples, window, cell.consumers)
        trial = Trial(number, repeat, figures, counts, probes, load_average)
        return Outcome(trial, samples, window)

    # -- a backlog: throughput, drain --------------------------------------------------------------

    def _backlog(
        self, cell: Cell, records: int | None
    ) -> tuple[dict[str, float], Samples, Interval]:
        drain = self._settings.mode is Mode.DRAIN
        key = topic_key(cell)
        topic, filled, stored = self._backlogs.get(key, _NO_BACKLOG)
        per_record = drain or bool(cell.work_ms)
        with self._stage(
            cell, topic, per_record=per_record, latency=False, board_records=filled
        ) as stage:
            first_ns = stage.first_record()
            if drain:
                window = self._until_drained(stage, first_ns, filled)
            else:
                needed = min(records or math.inf, backlog_records(self._settings, cell))
                window = self._over_backlog(stage, first_ns, cell, needed)
            own, began_ns = stage.own_figures(), stage.fleet.board.began_ns
            distinct, handled = stage.fleet.board.distinct(), stage.fleet.board.total
            end = stage.fleet.board.end
            samples = stage.fleet.finish()
            own |= stage.settled_figures()
        if self._settle_s and end:
            # One consumer is given a partition in order: more records than offsets means that
            # some came again.
            own["repeated_records"] = max(0, handled - end)
        if drain:
            window = exact_interval(samples, window)
        figures = {
            **speed_figures(cell, samples, window),
            **own,
            "first_record_s": (min(samples.began_ns) - began_ns) / 1e9,
            **({} if stored is None else stored.figures(key)),
        }
        if drain:
            figures["drain_s"] = window.seconds
            figures["repeated_records"] = max(0, handled - distinct)
        return figures, samples, window

    def _over_backlog(self, stage: Stage, first_ns: int, cell: Cell, records: float) -> Interval:
        """The window from the warm-up's end (or first tenth) to the duration's (or last tenth)."""
        edge = records * _EDGE if records and not cell.work_ms else float("inf")
        end = records - records * _EDGE if records else float("inf")
        warm_ns = first_ns + int(self._settings.warm_up_s * 1e9)
        stage.wait(lambda: time.monotonic_ns() >= warm_ns or stage.fleet.board.total >= edge)
        begin = stage.read()
        stop_ns = begin.at_ns + int(self._settings.duration_s * 1e9)
        stage.wait(lambda: time.monotonic_ns() >= stop_ns or stage.fleet.board.total >= end)
        return stage.window(begin)

    def _until_drained(self, stage: Stage, first_ns: int, records: int) -> Interval:
        """The window from the first record to the moment when all were handled."""
        begin = stage.read()
        deadline_ns = first_ns + int(MAX_DRAIN_S * 1e9)

        def drained() -> bool:
            if time.monotonic_ns() > deadline_ns:
                raise BenchError(
                    f"{stage.fleet.board.distinct():,} of {records:,} records were handled within "
                    f"{MAX_DRAIN_S:.0f} s; give fewer records"
                )
            return stage.fleet.board.total >= records and stage.fleet.board.distinct() >= records

        stage.wait(drained)
        return stage.window(begin)

    # -- a steady rate: latency, max-rate ----------------------------------------------------------

    def _search(self, cell: Cell) -> tuple[dict[str, float], Probes, Samples, Interval]:
        """The highest rate whose p99 holds, with the figures measured at it."""
        best: dict[float, tuple[dict[str, float], Samples, Interval]] = {}
        settings = self._settings

        def holds(rate: float) -> bool:
            measured = self._steady(replace(cell, rate=rate))
            best[rate] = measured
            figures = measured[0]
            return figures["p99_ms"] <= settings.p99_ms and not figures["missing_records"]

        found, probes = search_max_rate(holds, settings.min_rate, settings.max_rate, settings.steps)
        figures, samples, window = best[found or settings.min_rate]
        return {**figures, "max_rate_per_s": found}, probes, samples, window

    def _steady(self, cell: Cell) -> tuple[dict[str, float], Samples, Interval]:
        assert cell.rate is not None, "checked with the settings"
        topic = f"bench-{uuid.uuid4().hex[:12]}"
        self._topics.create(topic, partitions=cell.partitions)
        try:
            return self._steady_on(cell, cell.rate, topic)
        finally:
            self._topics.delete(topic)

    def _steady_on(
        self, cell: Cell, rate: float, topic: str
    ) -> tuple[dict[str, float], Samples, Interval]:
        settings = self._settings
        seconds = settings.warm_up_s + settings.duration_s + _AFTER_WINDOW_S
        records = int(rate * seconds)
        with (
            self._stage(cell, topic, per_record=True, latency=True, board_records=records) as stage,
            ExitStack() as stack,
        ):
            self._wake(stage, topic, cell.partitions)
            start_ns = time.monotonic_ns() + int(_SENDER_START_S * 1e9)
            directory = stack.enter_context(self._directory())
            sender = stack.enter_context(
                self._sender(cell, rate, topic, start_ns, records, directory)
            )
            begin_ns = start_ns + int(settings.warm_up_s * 1e9)
            stage.wait(lambda: time.monotonic_ns() >= begin_ns)
            begin = replace(stage.read(), at_ns=begin_ns)
            end_ns = begin_ns + int(settings.duration_s * 1e9)
            stage.wait(lambda: time.monotonic_ns() >= end_ns)
            window = replace(stage.window(begin), end_ns=end_ns)
            first = first_due(window.begin_ns, start_ns, rate)
            end = first_due(window.end_ns, start_ns, rate)
            board = stage.fleet.board
            late_ns = time.monotonic_ns() + int(LATE_S * 1e9)
            stage.wait(
                lambda: board.distinct(first, end) == end - first or time.monotonic_ns() > late_ns
            )
            own, began_ns = stage.own_figures() | stage.member_figures(), board.began_ns
            now_ns = time.monotonic_ns()
            waited = missing_ns(board, first, end, start_ns=start_ns, rate=rate, now_ns=now_ns)
            late_ms = sender.late_ms(time.monotonic() + LATE_S + _AFTER_WINDOW_S + 10)
            samples = stage.fleet.finish()
        figures = {
            **speed_figures(cell, samples, window),
            **latency_figures(samples, window, waited),
            **own,
            "first_record_s": (min(samples.began_ns) - began_ns) / 1e9,
            "producer_late_ms": late_ms,
        }
        return figures, samples, window

    def _sender(
        self, cell: Cell, rate: float, topic: str, start_ns: int, records: int, directory: Path
    ) -> SendProcess:
        job = SendJob(
            bootstrap_servers=self._cluster.bootstrap_servers,
            topic=topic,
            key=topic_key(cell),
            seed=self._settings.seed,
            rate=rate,
            start_ns=start_ns,
            records=records,
            outcome=str(directory / "sent.json"),
        )
        return SendProcess(job, directory)

    def _wake(self, stage: Stage, topic: str, partitions: int) -> None:
        """Sends records without a number to each partition until one is handled."""
        sender = Sender(self._cluster.bootstrap_servers, {"linger.ms": 0})
        next_s = 0.0

        def send() -> None:
            nonlocal next_s
            if time.monotonic() >= next_s:
                for partition in range(partitions):
                    head = HEAD.pack(time.monotonic_ns(), NO_NUMBER)
                    sender.send(topic, head, partition=partition)
                sender.serve()
                next_s = time.monotonic() + _WAKE_S

        stage.first_record(send)
        sender.finish()

    # -- what all have in common -------------------------------------------------------------------

    @contextmanager
    def _stage(
        self, cell: Cell, topic: str, *, per_record: bool, latency: bool, board_records: int
    ) -> Iterator[Stage]:
        """A server and subscribed consumers; all are gone at the end."""
        with ExitStack() as stack:
            directory = stack.enter_context(self._directory())
            server = self._server(stack, cell, directory)
            joins = self._watch_joins(stack, cell, server)
            job = LoadJob(
                cell,
                server.address,
                server.group,
                topic,
                self._settings.seed,
                per_record=per_record,
                latency=latency,
                board_records=board_records,
            )
            fleet = Fleet(job, directory, consumers_per_process(self._settings, cell))
            server_alive = nullcontext() if (c := server.coordinator) is None else c.blamed()
            with server_alive, fleet:
                fleet.wait_ready()
                yield Stage(
                    self._cluster,
                    server,
                    fleet,
                    joins=joins,
                    tick=self._tick,
                    settle_s=self._settle_s,
                )

    def _server(self, stack: ExitStack, cell: Cell, directory: Path) -> Server:
        address = self._cluster.bootstrap_servers
        group = f"bench-{cell.consumer}-{uuid.uuid4().hex[:8]}"
        locks = {} if cell.record_locks is None else {_LOCKS: str(cell.record_locks)}
        if cell.consumer is Consumer.KAFKA_SHARE:
            settings = {"share.auto.offset.reset": "earliest", **locks}
            self._topics.set_group_config(group, settings)
        if not cell.has_coordinator:
            return Server(address, group)
        settings = {f"group.{name}": value for name, value in locks.items()}
        if cell.ordering is not Order.UNORDERED:
            settings[f"group.{_ORDERING}"] = str(cell.ordering)
        settings |= self._events(stack, cell, f"{group}-events", directory)
        settings |= _security(cell, directory)
        kafka_port = ""
        if cell.consumer is Consumer.KAFKA_PORT:
            kafka_port = settings["kafka.port.listen"] = f"{LOOPBACK}:{free_ports(1)[0]}"
        settings["store.url"] = stack.enter_context(self._stores.fresh(cell.store))
        database = self._stores.server(cell.store)
        coordinator = MeasuredCoordinator(address, directory, settings=settings)
        stack.enter_context(coordinator)
        time.sleep(self._settle_s)
        return Server(
            kafka_port or coordinator.address,
            group,
            coordinator,
            None if database is None else database.pid,
            coordinator.rss_mb,
            coordinator.written_bytes,
        )

    def _events(self, stack: ExitStack, cell: Cell, name: str, directory: Path) -> dict[str, str]:
        """Settings of the event log, whose files or topic are deleted with the trial."""
        if cell.events is Events.NONE:
            return {}
        if cell.events is Events.PARQUET:
            return {"events.sink": f"parquet:{directory / name}"}
        self._topics.create(name)
        stack.callback(self._topics.delete, name)
        return {"events.sink": f"kafka:{name}"}

    def _watch_joins(self, stack: ExitStack, cell: Cell, server: Server) -> JoinWatch | None:
        if server.coordinator is None:
            return None
        # A worker is one member, whatever its slots.
        watch = JoinWatch(server.coordinator, server.group, cell.consumers)
        stack.callback(watch.close)
        return watch

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)


def _security(cell: Cell, directory: Path) -> dict[str, str]:
    """Settings of the listener, and of who may do what there."""
    if cell.security is SecurityKind.NONE:
        return {}
    settings = {"listen.address": f"unix:{directory / 'listen'}"}
    if cell.security is SecurityKind.RULES:
        settings |= write_security(directory)
    return settings


def search_max_rate(
    holds: Callable[[float], bool], low: float, high: float, max_steps: int
) -> tuple[float, Probes]:
    """Finds the highest rate for which `holds` is true, by bisection; 0 when none is.

    Both ends are tried, then always the geometric middle between the best and the worst rate. There
    are at most `max_steps` calls. Each one after the ends halves the uncertainty (of the
    logarithm); the search also ends when the two are within 2%.
    """
    probes: list[tuple[float, bool]] = []

    def probe(rate: float) -> bool:
        held = holds(rate)
        probes.append((rate, held))
        return held

    if not probe(low):
        return 0.0, tuple(probes)
    best, worst = low, high
    if len(probes) < max_steps and high > low and probe(high):
        return high, tuple(probes)
    while len(probes) < max_steps and worst / best > 1.02:
        middle = float(round(math.sqrt(best * worst)))
        if not best < middle < worst:
            break
        if probe(middle):
            best = middle
        else:
            worst = middle
    return best, tuple(probes)


def first_due(at_ns: int, start_ns: int, rate: float) -> int:
    """Number of the first record that is due at or after a moment."""
    number = max(0, int((at_ns - start_ns) / 1e9 * rate) - 2)
    while due_ns(start_ns, rate, number) < at_ns:
        number += 1
    return number


def missing_ns(
    board: Board, first: int, end: int, *, start_ns: int, rate: float, now_ns: int
) -> list[int]:
    """The time since each record from `first` to before `end` that nobody handled was due."""
    return [
        now_ns - due_ns(start_ns, rate, first + place)
        for place, mark in enumerate(bytes(board.seen[first:end]))
        if not mark
    ]
