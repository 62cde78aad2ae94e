"""The measurements of `bench capacity`: each starts a coordinator of its own and ends it."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sharecoord_sdk import AcknowledgeType, ShareConsumer

from sharecoord.bench.capacity.counted import program, read_written
from sharecoord.bench.capacity.figures import (
    ALL_THERE_S,
    DiskFigures,
    Extent,
    IdleFigures,
    Pattern,
    RecordFigures,
    StoreFigures,
    WorkerFigures,
)
from sharecoord.bench.cluster import Cluster
from sharecoord.bench.coordinator import JoinWatch, MeasuredCoordinator
from sharecoord.bench.engine.cell import Cell, Client, Consumer, TopicKey
from sharecoord.bench.engine.figures import PROCESSES, cpu_figure
from sharecoord.bench.engine.fleet import Fleet
from sharecoord.bench.engine.job import LoadJob
from sharecoord.bench.engine.send import Sender, fill_backlog
from sharecoord.bench.engine.settings import SETTLE_S, Settings
from sharecoord.bench.engine.stats import percentile
from sharecoord.bench.engine.tally import checked
from sharecoord.bench.engine.trial import Trials
from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import cpu_s
from sharecoord.bench.text import Spread, spread_of
from sharecoord.devenv.stores import Stores
from sharecoord.devenv.topics import Topics

STORE_S: Final = 120.0
"""Longest time that a consumer may take for the records of a way to acknowledge."""
_LOOK_S: Final = 0.005
_CREATE_S: Final = 60.0
_POLL_S: Final = 1.0
_WARM_S: Final = 5.0
DRIVE_S: Final = 180.0
"""Longest time of a member to the first tenth of its records, and from there to the last."""
_SMALL_BYTES: Final = 100
_PAGE: Final = b"\xa5" * 4096
_LEAST_PAGES: Final = 20


class Measurements:
    """Measures on one cluster; deletes its topics on exit."""

    def __init__(self, cluster: Cluster, scratch: Path, extent: Extent) -> None:
        self._cluster = cluster
        self._scratch = scratch
        self._extent = extent
        self._topics = Topics(cluster.bootstrap_servers, timeout_s=_CREATE_S)
        self.tick: Callable[[], None] = lambda: None
        """Called often, for a progress bar."""

    # -- records -----------------------------------------------------------------------------------

    def record(self, value_bytes: int) -> RecordFigures:
        """Speed and cost of records of one length: one member takes one partition."""
        extent = self._extent
        settings = Settings(
            records=extent.records[value_bytes],
            warm_up_s=DRIVE_S,
            duration_s=DRIVE_S,
            settle_s=SETTLE_S,
        )
        cell = Cell(Consumer.SHARECOORD, payload_bytes=value_bytes)
        return record_figures(value_bytes, self._trials(settings, cell, extent.repeats))

    def workers(self, members: int, work_ms: float) -> WorkerFigures:
        """Cost of records of 1 kB on one partition, with members that take their time."""
        settings = Settings(warm_up_s=_WARM_S, duration_s=self._extent.idle_s)
        cell = Cell(Consumer.SHARECOORD, members, client=Client.TASKS, work_ms=work_ms)
        (figures,) = self._trials(settings, cell, 1)
        return worker_figures(members, work_ms, figures)

    def _trials(self, settings: Settings, cell: Cell, repeats: int) -> list[Mapping[str, float]]:
        with ExitStack() as stack:
            trials = Trials(
                settings,
                self._cluster,
                self._scratch,
                stores=Stores(stack, self._scratch),
                tick=self.tick,
            )
            trials.fill(stack, [cell], lambda _: None)
            return [trials.run(0, cell, number + 1).trial.figures for number in range(repeats)]

    # -- the store ---------------------------------------------------------------------------------

    def store(self, pattern: Pattern) -> StoreFigures:
        """Rows, transactions and bytes of a way to acknowledge."""
        records = self._extent.store_records[pattern]
        with self._topic(records) as topic, ExitStack() as stack:
            outcome = stack.enter_context(self._directory()) / "written.json"
            coordinator, _ = stack.enter_context(self._coordinator(program(outcome)))
            before = coordinator.written_bytes
            mode = "explicit" if pattern is Pattern.ALTERNATING else "implicit"
            config = {
                "bootstrap.servers": coordinator.address,
                "group.id": f"capacity-{uuid.uuid4().hex[:8]}",
                "share.acknowledgement.mode": mode,
            }
            with ShareConsumer(config) as consumer:
                consumer.subscribe([topic])
                finish(consumer, records, pattern, STORE_S)
            bytes_each = _each(before, coordinator.written_bytes, records)
            coordinator.stop()
            written = read_written(outcome)
        return StoreFigures(
            pattern=pattern,
            records=records,
            rows=written.rows / records,
            commits_per_1000=1000 * written.transactions / records,
            written_bytes=bytes_each,
        )

    # -- much of something, and nothing to do ------------------------------------------------------

    def bare(self) -> IdleFigures:
        """A coordinator that nobody uses."""
        with self._coordinator() as (coordinator, _):
            return self._idle(coordinator, 0, None)

    def members(self, count: int) -> IdleFigures:
        """Measures `count` members of one group on one empty partition."""
        with self._topic(0) as topic, ExitStack() as stack:
            coordinator, directory = stack.enter_context(self._coordinator())
            watch = JoinWatch(coordinator, "capacity", count)
            stack.callback(watch.close)
            began_s = time.monotonic()
            clients = stack.enter_context(_clients(coordinator, directory, topic, count))
            if not self._wait(clients, watch.look):
                raise BenchError(f"{count} members did not join within {ALL_THERE_S:.0f} s")
            return self._idle(coordinator, count, time.monotonic() - began_s)

    def partitions(self, count: int) -> IdleFigures:
        """Measures `count` share-partitions with one member, then a restart after kill -9."""
        with self._topic(count, partitions=count) as topic, ExitStack() as stack:
            coordinator, directory = stack.enter_context(self._coordinator())
            began_s = time.monotonic()
            clients = stack.enter_context(_clients(coordinator, directory, topic, 1))
            missing = self._arrive(clients, count)
            idle = self._idle(coordinator, count, time.monotonic() - began_s, missing)
            if missing:
                return idle
            coordinator.kill()
            self._fill(topic, count, count)
            began_s = time.monotonic()
            coordinator.restart()
            if self._arrive(clients, 2 * count):
                return idle
            return replace(idle, restart_s=time.monotonic() - began_s)

    def groups(self, count: int) -> IdleFigures:
        """Measures `count` groups with a member and a topic each."""
        prefix = f"capacity-{uuid.uuid4().hex[:12]}"
        names = [f"{prefix}-{number}" for number in range(count)]
        try:
            self._topics.create(*names)
            sender = Sender(self._cluster.bootstrap_servers, {"linger.ms": 5})
            for name in names:
                sender.send(name, b"." * _SMALL_BYTES)
            sender.finish()
            return self._groups(count, prefix, own_topics=True)
        finally:
            self._topics.delete(*(set(names) & set(self._topics.names())))

    def fanouts(self, count: int) -> IdleFigures:
        """Measures `count` groups with a member each, all on the same partition."""
        with self._topic(1) as topic:
            return self._groups(count, topic, own_topics=False)

    def _groups(self, count: int, topic: str, *, own_topics: bool) -> IdleFigures:
        with ExitStack() as stack:
            coordinator, directory = stack.enter_context(self._coordinator())
            began_s = time.monotonic()
            clients = stack.enter_context(
                _clients(
                    coordinator, directory, topic, count, own_groups=True, own_topics=own_topics
                )
            )
            missing = self._arrive(clients, count)
            return self._idle(coordinator, count, time.monotonic() - began_s, missing)

    # -- what all have in common -------------------------------------------------------------------

    def _idle(
        self,
        coordinator: MeasuredCoordinator,
        count: int,
        all_there_s: float | None,
        missing: int = 0,
    ) -> IdleFigures:
        self._pause(SETTLE_S)
        begin_s, used_s = time.monotonic(), cpu_s(coordinator.pid)
        self._pause(self._extent.idle_s)
        used_s = cpu_s(coordinator.pid) - used_s
        percent = 100 * used_s / (time.monotonic() - begin_s)
        return IdleFigures(
            count=count,
            all_there_s=None if missing else all_there_s,
            rss_mb=coordinator.rss_mb,
            idle_cpu_percent=percent,
            missing=missing,
        )

    def _arrive(self, clients: Fleet, records: int) -> int:
        """Waits for `records` records; returns how many are missing when that takes too long."""
        self._wait(clients, lambda: clients.board.total >= records)
        return max(0, records - clients.board.total)

    def _wait(self, clients: Fleet, done: Callable[[], bool]) -> bool:
        """Waits until something is done; False when that takes too long."""
        end_s = time.monotonic() + ALL_THERE_S
        while not done():
            clients.check()
            if time.monotonic() > end_s:
                return False
            self.tick()
            time.sleep(_LOOK_S)
        return True

    def _pause(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while (left_s := end_s - time.monotonic()) > 0:
            self.tick()
            time.sleep(min(left_s, 0.1))

    def _fill(self, topic: str, records: int, partitions: int) -> None:
        fill_backlog(
            self._cluster.bootstrap_servers,
            topic,
            TopicKey(partitions, _SMALL_BYTES),
            records,
            seed=1,
        )

    @contextmanager
    def _topic(self, records: int, *, partitions: int = 1) -> Iterator[str]:
        """A topic with so many small records, until the block ends."""
        name = f"capacity-{uuid.uuid4().hex[:12]}"
        self._topics.create(name, partitions=partitions)
        try:
            self._fill(name, records, partitions)
            yield name
        finally:
            self._topics.delete(name)

    @contextmanager
    def _coordinator(
        self, run: list[str] | None = None
    ) -> Iterator[tuple[MeasuredCoordinator, Path]]:
        with self._directory() as directory:
            address = self._cluster.bootstrap_servers
            with (
                MeasuredCoordinator(address, directory, program=run) as coordinator,
                coordinator.blamed(),
            ):
                yield coordinator, directory

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)


def finish(consumer: Any, records: int, pattern: Pattern, deadline_s: float) -> None:
    """Takes records until `records` are finished; BenchError after an error or when it is late."""
    finished = 0
    end_s = time.monotonic() + deadline_s
    while finished < records:
        if time.monotonic() > end_s:
            raise BenchError(
                f"{finished:,} of {records:,} records were finished within {deadline_s:.0f} s"
            )
        for message in consumer.poll(_POLL_S):
            checked(message)
            if pattern is Pattern.RANGES:
                finished += 1
            elif message.offset() % 2 and message.delivery_count() == 1:
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                finished += 1
        consumer.commit_sync()


def _clients(
    coordinator: MeasuredCoordinator,
    directory: Path,
    topic: str,
    count: int,
    *,
    own_groups: bool = False,
    own_topics: bool = False,
) -> Fleet:
    """A process of asynchronous members that take small records; the rest is as in `LoadJob`."""
    cell = Cell(Consumer.SHARECOORD, count, payload_bytes=_SMALL_BYTES, client=Client.TASKS)
    job = LoadJob(
        *(cell, coordinator.address, "capacity", topic),
        own_groups=own_groups,
        own_topics=own_topics,
    )
    return Fleet(job, directory, per_process=count)


def measure_disk(directory: Path, seconds: float) -> DiskFigures:
    """Appends at least 20 pages to a file, each with an fdatasync, as SQLite does to its log."""
    path = directory / "fsync"
    taken_ms: list[float] = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        end_s = time.monotonic() + seconds
        while len(taken_ms) < _LEAST_PAGES or time.monotonic() < end_s:
            began_ns = time.monotonic_ns()
            os.write(file, _PAGE)
            os.fdatasync(file)
            taken_ms.append((time.monotonic_ns() - began_ns) / 1e6)
    finally:
        os.close(file)
        path.unlink()
    ordered = sorted(taken_ms)
    return DiskFigures(
        median_ms=percentile(ordered, 50),
        p99_ms=percentile(ordered, 99),
        per_s=1000 * len(ordered) / sum(ordered),
    )


def record_figures(value_bytes: int, runs: Sequence[Mapping[str, float]]) -> RecordFigures:
    """Medians with least and greatest of the figures of at least one trial."""
    known = [name for name in PROCESSES if cpu_figure(name) in runs[0]]
    return RecordFigures(
        value_bytes=value_bytes,
        records_per_s=Spread.of(run["records_per_s"] for run in runs),
        # CPU seconds per million records are microseconds per record.
        cpu_us={name: Spread.of(run[cpu_figure(name)] for run in runs) for name in known},
        commits_per_1000=spread_of(run.get("commits_per_1000") for run in runs),
        written_bytes=spread_of(run.get("store_bytes_per_record") for run in runs),
        peak_mb=Spread.of(run["coordinator_peak_mb"] for run in runs),
    )


def worker_figures(members: int, work_ms: float, figures: Mapping[str, float]) -> WorkerFigures:
    """The figures of a trial; BenchError when no record was handled."""
    if not figures["records_per_s"]:
        raise BenchError(f"{members} members handled no record within a window")
    return WorkerFigures(
        members=members,
        work_ms=work_ms,
        records_per_s=figures["records_per_s"],
        cpu_us={
            name: figures[cpu_figure(name)] for name in PROCESSES if cpu_figure(name) in figures
        },
        commits_per_1000=figures.get("commits_per_1000"),
        written_bytes=figures.get("store_bytes_per_record"),
    )


def _each(before: int | None, after: int | None, records: float) -> float | None:
    if before is None or after is None or not records:
        return None
    return (after - before) / records
