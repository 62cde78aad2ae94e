"""The measurements: each starts a coordinator of its own and ends it."""

from __future__ import annotations

import math
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sharecoord_sdk import AcknowledgeType, ShareConsumer

from sharecoord.bench.capacity.clients import Clients, running_clients
from sharecoord.bench.capacity.counted import program, read_written
from sharecoord.bench.capacity.figures import (
    ALL_THERE_S,
    Extent,
    IdleFigures,
    Pattern,
    RecordFigures,
    StoreFigures,
    WorkerFigures,
)
from sharecoord.bench.capacity.topics import many_topics
from sharecoord.bench.coordinator import Counters, JoinWatch, MeasuredCoordinator
from sharecoord.bench.drivers.meter import CLIENT
from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.errors import BenchError
from sharecoord.bench.grid.send import fill_backlog
from sharecoord.bench.grid.settings import TopicKey
from sharecoord.bench.plans.throughput import DEFAULT_BATCH_BYTES
from sharecoord.bench.procfs import cpu_s
from sharecoord.bench.results import Spread
from sharecoord.bench.runner import (
    BROKER,
    COORDINATOR,
    DRIVER_GRACE_S,
    SLOWEST_RECORDS_PER_S,
    Cluster,
    run_driver_process,
)
from sharecoord.bench.topic_data import fill_topic
from sharecoord.devenv.topics import Topics

STORE_S: Final = 120.0
"""How long a consumer may take over the records of a way to acknowledge."""
_SETTLE_S: Final = 1.5  # the coordinator counts once a second
_LOOK_S: Final = 0.005
_POLL_S: Final = 1.0
_WARM_S: Final = 5.0
_ENOUGH: Final = 1.2
"""More records than the members can handle while they are looked at."""
WORKER_VALUE_BYTES: Final = 1000
_SMALL: Final = TopicKey(partitions=1, payload_bytes=100, key_skew=None)


@dataclass(frozen=True, slots=True)
class Driven:
    """One run of one member at full speed; the fields are as in `RecordFigures`."""

    records_per_s: float
    cpu_us: dict[str, float]
    commits_per_1000: float | None
    written_bytes: float | None
    peak_mb: float


@dataclass(frozen=True, slots=True)
class Reading:
    """A moment of members at work.

    Attributes:
        at_s: On the monotonic clock.
        records: That the members were given so far.
        cpu_s: CPU seconds so far, by process.
        counters: Of the coordinator.
        written_bytes: By the coordinator so far; None when it is not known.
    """

    at_s: float
    records: int
    cpu_s: Mapping[str, float]
    counters: Counters
    written_bytes: int | None


class Measurements:
    """Measures on one cluster; deletes its topics on exit."""

    def __init__(self, cluster: Cluster, scratch: Path, extent: Extent) -> None:
        """Nothing is started.

        Args:
            cluster: Where.
            scratch: An existing directory on a disk, for the coordinators' databases.
            extent: How much is measured.
        """
        self._cluster = cluster
        self._scratch = scratch
        self._extent = extent
        self._topics = Topics(cluster.bootstrap_servers)
        self.tick: Callable[[], object] = lambda: None
        """Called often, for a progress bar."""

    # -- records -----------------------------------------------------------------------------------

    def record(self, value_bytes: int) -> RecordFigures:
        """Speed and cost of records of one length.

        Raises:
            SharecoordError: It could not be measured.
        """
        records = self._extent.records[value_bytes]
        with self._topic() as topic:
            fill_topic(
                self._cluster.bootstrap_servers,
                topic,
                records,
                value_bytes=value_bytes,
                batch_bytes=DEFAULT_BATCH_BYTES,
            )
            runs = [self._drive(topic, records) for _ in range(self._extent.repeats)]
        return record_figures(value_bytes, runs)

    def _drive(self, topic: str, records: int) -> Driven:
        with self._coordinator() as (coordinator, _):
            watched = {COORDINATOR: coordinator.pid}
            if self._cluster.pid is not None:
                watched[BROKER] = self._cluster.pid
            options = DriverOptions(
                bootstrap_servers=coordinator.address,
                group=f"capacity-{uuid.uuid4().hex[:8]}",
                topic=topic,
                records=records,
                explicit=False,
                watched=watched,
                deadline_s=DRIVER_GRACE_S + records / SLOWEST_RECORDS_PER_S,
            )
            before = coordinator.written_bytes
            measured = run_driver_process("sharecoord_share", options)
            self._pause(_SETTLE_S)
            done = coordinator.counters()
            return Driven(
                records_per_s=measured.records / measured.seconds,
                cpu_us={
                    name: used * 1e6 / measured.records for name, used in measured.cpu_s.items()
                },
                commits_per_1000=done.commits_per_1000,
                written_bytes=_each(before, coordinator.written_bytes, done.settled),
                peak_mb=coordinator.peak_rss_mb,
            )

    def workers(self, members: int, work_ms: float) -> WorkerFigures:
        """Cost of records of 1 kB on one partition, with members that take their time.

        Raises:
            SharecoordError: It could not be measured, or no record came in time.
        """
        seconds = _WARM_S + self._extent.idle_s
        with self._topic() as topic, ExitStack() as stack:
            fill_topic(
                self._cluster.bootstrap_servers,
                topic,
                math.ceil(_ENOUGH * seconds * members * 1000 / work_ms),
                value_bytes=WORKER_VALUE_BYTES,
                batch_bytes=DEFAULT_BATCH_BYTES,
            )
            coordinator, directory = stack.enter_context(self._coordinator())
            clients = stack.enter_context(
                running_clients(
                    directory,
                    address=coordinator.address,
                    topic=topic,
                    clients=members,
                    work_ms=work_ms,
                )
            )
            if self._arrive(clients, 1):
                raise BenchError(f"no record came within {ALL_THERE_S:.0f} s")
            self._pause(_WARM_S)
            begin = self._read(coordinator, clients)
            self._pause(self._extent.idle_s)
            end = self._read(coordinator, clients)
        return worker_figures(members, work_ms, begin, end)

    def _read(self, coordinator: MeasuredCoordinator, clients: Clients) -> Reading:
        pids = {COORDINATOR: coordinator.pid, CLIENT: clients.pid}
        if self._cluster.pid is not None:
            pids[BROKER] = self._cluster.pid
        return Reading(
            at_s=time.monotonic(),
            records=clients.records,
            cpu_s={name: cpu_s(pid) for name, pid in pids.items()},
            counters=coordinator.counters(),
            written_bytes=coordinator.written_bytes,
        )

    # -- the store ---------------------------------------------------------------------------------

    def store(self, pattern: Pattern) -> StoreFigures:
        """Rows, transactions and bytes of a way to acknowledge.

        Raises:
            SharecoordError: It could not be measured.
        """
        records = self._extent.store_records[pattern]
        with self._topic() as topic, ExitStack() as stack:
            self._fill(topic, records, partitions=1)
            outcome = stack.enter_context(self._directory()) / "written.json"
            coordinator, _ = stack.enter_context(self._coordinator(program(outcome)))
            before = coordinator.written_bytes
            config = {
                "bootstrap.servers": coordinator.address,
                "group.id": f"capacity-{uuid.uuid4().hex[:8]}",
                "share.acknowledgement.mode": (
                    "explicit" if pattern is Pattern.ALTERNATING else "implicit"
                ),
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
        """So many members of one group on one empty partition.

        Raises:
            SharecoordError: It could not be measured, or they did not join in time.
        """
        with self._topic() as topic, ExitStack() as stack:
            coordinator, directory = stack.enter_context(self._coordinator())
            watch = JoinWatch(coordinator.address, "capacity", count)
            stack.callback(watch.close)
            clients = stack.enter_context(
                running_clients(directory, address=coordinator.address, topic=topic, clients=count)
            )
            if not self._wait(clients, watch.look):
                raise BenchError(f"{count} members did not join within {ALL_THERE_S:.0f} s")
            return self._idle(coordinator, count, time.monotonic() - clients.began_s)

    def partitions(self, count: int) -> IdleFigures:
        """So many share-partitions of one group with one member, then a restart after kill -9.

        Raises:
            SharecoordError: It could not be measured, or records did not come in time.
        """
        with self._topic(count) as topic, ExitStack() as stack:
            self._fill(topic, count, partitions=count)
            coordinator, directory = stack.enter_context(self._coordinator())
            clients = stack.enter_context(
                running_clients(directory, address=coordinator.address, topic=topic, clients=1)
            )
            missing = self._arrive(clients, count)
            idle = self._idle(coordinator, count, time.monotonic() - clients.began_s, missing)
            if missing:
                return idle
            coordinator.kill()
            self._fill(topic, count, partitions=count)
            began_s = time.monotonic()
            coordinator.restart()
            if self._arrive(clients, 2 * count):
                return idle
            return replace(idle, restart_s=time.monotonic() - began_s)

    def groups(self, count: int) -> IdleFigures:
        """So many groups with a member and a topic each.

        Raises:
            SharecoordError: It could not be measured.
        """
        with many_topics(self._cluster.bootstrap_servers, count) as prefix:
            return self._groups(count, prefix, own_topics=True)

    def fanouts(self, count: int) -> IdleFigures:
        """So many groups with a member each, all on the same partition.

        Raises:
            SharecoordError: It could not be measured.
        """
        with self._topic() as topic:
            self._fill(topic, 1, partitions=1)
            return self._groups(count, topic, own_topics=False)

    def _groups(self, count: int, topic: str, *, own_topics: bool) -> IdleFigures:
        with ExitStack() as stack:
            coordinator, directory = stack.enter_context(self._coordinator())
            clients = stack.enter_context(
                running_clients(
                    directory,
                    address=coordinator.address,
                    topic=topic,
                    clients=count,
                    own_groups=True,
                    own_topics=own_topics,
                )
            )
            missing = self._arrive(clients, count)
            return self._idle(coordinator, count, time.monotonic() - clients.began_s, missing)

    # -- what all have in common -------------------------------------------------------------------

    def _idle(
        self,
        coordinator: MeasuredCoordinator,
        count: int,
        all_there_s: float | None,
        missing: int = 0,
    ) -> IdleFigures:
        self._pause(_SETTLE_S)
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

    def _arrive(self, clients: Clients, records: int) -> int:
        """Waits until so many records have come; how many are missing when that takes too long."""
        self._wait(clients, lambda: clients.records >= records)
        return max(0, records - clients.records)

    def _wait(self, clients: Clients, done: Callable[[], bool]) -> bool:
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

    def _fill(self, topic: str, records: int, *, partitions: int) -> None:
        fill_backlog(
            self._cluster.bootstrap_servers,
            topic,
            TopicKey(partitions, _SMALL.payload_bytes, None),
            records,
            batch_bytes=DEFAULT_BATCH_BYTES,
            seed=1,
        )

    @contextmanager
    def _topic(self, partitions: int = 1) -> Iterator[str]:
        name = f"capacity-{uuid.uuid4().hex[:12]}"
        self._topics.create(name, partitions=partitions)
        try:
            yield name
        finally:
            self._topics.delete(name)

    @contextmanager
    def _coordinator(
        self, run: list[str] | None = None
    ) -> Iterator[tuple[MeasuredCoordinator, Path]]:
        with self._directory() as directory:
            address = self._cluster.bootstrap_servers
            with MeasuredCoordinator(address, directory, program=run) as coordinator:
                try:
                    yield coordinator, directory
                except BenchError as error:
                    if coordinator.exit_code is not None:
                        said = coordinator.log_tail()
                        raise BenchError(f"the coordinator ended: {said}") from error
                    raise

    @contextmanager
    def _directory(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self._scratch) as name:
            yield Path(name)


def finish(consumer: Any, records: int, pattern: Pattern, deadline_s: float) -> None:
    """Takes records until so many are finished.

    Args:
        consumer: A subscribed share consumer, in explicit mode for `Pattern.ALTERNATING`.
        records: How many.
        pattern: How to acknowledge.
        deadline_s: How long it may take.

    Raises:
        BenchError: A message is an error, or time is over.
    """
    finished = 0
    end_s = time.monotonic() + deadline_s
    while finished < records:
        if time.monotonic() > end_s:
            raise BenchError(
                f"{finished:,} of {records:,} records were finished within {deadline_s:.0f} s"
            )
        for message in consumer.poll(_POLL_S):
            if message.error() is not None:
                raise BenchError(f"the consumer was given an error: {message.error()}")
            if pattern is Pattern.RANGES:
                finished += 1
            elif message.offset() % 2 and message.delivery_count() == 1:
                consumer.acknowledge(message, AcknowledgeType.RELEASE)
            else:
                consumer.acknowledge(message, AcknowledgeType.ACCEPT)
                finished += 1
        consumer.commit_sync()


def record_figures(value_bytes: int, runs: list[Driven]) -> RecordFigures:
    """Medians with least and greatest of at least one run."""
    speeds, peaks = (
        Spread.of(run.records_per_s for run in runs),
        Spread.of(run.peak_mb for run in runs),
    )
    assert speeds is not None, "there is a run"
    assert peaks is not None, "there is a run"
    costs = {name: Spread.of(run.cpu_us[name] for run in runs) for name in runs[0].cpu_us}
    return RecordFigures(
        value_bytes=value_bytes,
        records_per_s=speeds,
        cpu_us={name: cost for name, cost in costs.items() if cost is not None},
        commits_per_1000=Spread.of(
            run.commits_per_1000 for run in runs if run.commits_per_1000 is not None
        ),
        written_bytes=Spread.of(run.written_bytes for run in runs if run.written_bytes is not None),
        peak_mb=peaks,
    )


def worker_figures(members: int, work_ms: float, begin: Reading, end: Reading) -> WorkerFigures:
    """What happened between two moments.

    Raises:
        BenchError: No record was handled.
    """
    records = end.records - begin.records
    if not records:
        raise BenchError(f"{members} members handled no record within a window")
    return WorkerFigures(
        members=members,
        work_ms=work_ms,
        records_per_s=records / (end.at_s - begin.at_s),
        cpu_us={
            name: 1e6 * (used - begin.cpu_s[name]) / records for name, used in end.cpu_s.items()
        },
        commits_per_1000=end.counters.since(begin.counters).commits_per_1000,
        written_bytes=_each(begin.written_bytes, end.written_bytes, records),
    )


def _each(before: int | None, after: int | None, records: float) -> float | None:
    if before is None or after is None or not records:
        return None
    return (after - before) / records
