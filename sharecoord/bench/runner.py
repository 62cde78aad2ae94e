"""Executes a plan on one broker: topics, fresh groups, drivers and coordinators as processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from sharecoord.bench.drivers.meter import Measured
from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.errors import BenchError
from sharecoord.bench.plans.plan import WARM_UP_REPEAT, Plan, Server, Step
from sharecoord.bench.procfs import rss_mb
from sharecoord.bench.results import Run
from sharecoord.bench.topic_data import fill_topic
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.maven import DEFAULT_VERSION
from sharecoord.devenv.native import set_group_config
from sharecoord.devenv.stores import Stores
from sharecoord.devenv.topics import Topics

BROKER = "broker"
COORDINATOR = "coordinator"
DATABASE = "database"
SLOWEST_RECORDS_PER_S = 5_000
DRIVER_GRACE_S = 60.0
_DRIVERS = "sharecoord.bench.drivers"
_SAID_LINES = 20

# What a small production broker has; the test default of 512 MB would hold the peer back.
BROKER_HEAP_MB = 1024
QUIET = {"log.level": "warning"}
"""Settings of the coordinator under measurement; nothing else differs from the defaults."""

SETTLE_S = 1.0
"""A process settles before its memory is read."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The Kafka under the benchmark.

    Attributes:
        bootstrap_servers: `host:port`, several with commas between them.
        pid: Process of the only broker, whose CPU time is read; None when it is not ours.
        version: Version, or the address of a given cluster.
    """

    bootstrap_servers: str
    pid: int | None
    version: str


def open_cluster(
    stack: ExitStack,
    kafka: str | None,
    *,
    say: Callable[[str], None],
    settings: Mapping[str, str] | None = None,
) -> Cluster:
    """A given cluster, or a broker of our own that ends with the stack.

    Args:
        stack: What is started is closed by it.
        kafka: Address of a cluster; None starts a broker.
        say: Takes one line when a broker is started.
        settings: Of that broker.

    Raises:
        DevenvError: It can not be started; says what is missing.
    """
    if kafka is not None:
        return Cluster(kafka, None, kafka)
    say("starting a broker")
    broker = KafkaBroker(DEFAULT_VERSION, heap_mb=BROKER_HEAP_MB, settings=dict(settings or {}))
    stack.enter_context(broker)
    return Cluster(broker.bootstrap_servers, broker.pid, broker.version)


class Runner:
    """Runs a plan; deletes its topics at the end."""

    def __init__(
        self,
        plan: Plan,
        cluster: Cluster,
        scratch: Path,
        stores: Stores,
        say: Callable[[str], None],
    ) -> None:
        """Nothing is started yet.

        Args:
            plan: What to run.
            cluster: Where.
            scratch: An existing directory on a disk, for the coordinators' files.
            stores: Makes their stores.
            say: Takes one line per step of progress.
        """
        self._plan = plan
        self._cluster = cluster
        self._scratch = scratch
        self._say = say
        self._stores = stores
        self._suffix = uuid.uuid4().hex[:8]

    def run(self) -> Iterator[Run]:
        """Produces the topics, makes all runs, gives each as soon as it is done.

        Raises:
            BenchError: A driver or a coordinator failed.
            SharecoordError: The cluster failed, or has no share groups.
        """
        address = self._cluster.bootstrap_servers
        batch_bytes = self._plan.batch_bytes
        topics = Topics(address)
        created: list[str] = []
        try:
            for size_bytes, records in self._plan.records.items():
                name = self._topic(size_bytes)
                self._say(f"producing {records:,} records of {size_bytes} B")
                topics.create(name)
                created.append(name)
                fill_topic(address, name, records, value_bytes=size_bytes, batch_bytes=batch_bytes)
            for step in self._plan.steps():
                yield self._step(step)
        finally:
            topics.delete(*created)

    def _topic(self, size_bytes: int) -> str:
        return f"bench-{size_bytes}-{self._suffix}"

    def _step(self, step: Step) -> Run:
        load_average = os.getloadavg()[0]
        if step.contender.server is Server.COORDINATOR:
            run = self._on_coordinator(step, load_average)
        else:
            group = self._fresh_group(step)
            if step.contender.server is Server.BROKER_SHARE_GROUP:
                settings = {"share.auto.offset.reset": "earliest"}
                set_group_config(self._cluster.bootstrap_servers, group, settings)
            measured = self._drive(step, self._cluster.bootstrap_servers, group, {})
            run = Run(step.contender.key, step.size_bytes, step.repeat, measured, load_average)
        self._say(_progress(step, run))
        return run

    def _on_coordinator(self, step: Step, load_average: float) -> Run:
        """A fresh process with a fresh database for every run: none inherits a warm cache."""
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(dir=self._scratch))
            url = stack.enter_context(self._stores.fresh(step.contender.store))
            server = self._stores.server(step.contender.store)
            coordinator = CoordinatorProcess(
                self._cluster.bootstrap_servers,
                Path(directory),
                settings={**QUIET, "store.url": url},
            )
            stack.enter_context(coordinator)
            idle_rss_mb = _settled_rss_mb(coordinator)
            watched = {COORDINATOR: coordinator.pid}
            if server is not None:
                watched[DATABASE] = server.pid
            try:
                measured = self._drive(step, coordinator.address, self._fresh_group(step), watched)
            except BenchError as error:
                if coordinator.exit_code is not None:
                    raise BenchError(f"the coordinator ended: {coordinator.log_tail()}") from error
                raise
            return Run(
                step.contender.key,
                step.size_bytes,
                step.repeat,
                measured,
                load_average,
                idle_rss_mb=idle_rss_mb,
                rss_after_mb=_settled_rss_mb(coordinator),
            )

    def _fresh_group(self, step: Step) -> str:
        return f"bench-{step.contender.key}-{uuid.uuid4().hex[:8]}"

    def _drive(self, step: Step, address: str, group: str, watched: Mapping[str, int]) -> Measured:
        broker = {} if self._cluster.pid is None else {BROKER: self._cluster.pid}
        options = DriverOptions(
            bootstrap_servers=address,
            group=group,
            topic=self._topic(step.size_bytes),
            records=step.records,
            explicit=step.contender.explicit,
            watched={**broker, **watched},
            deadline_s=DRIVER_GRACE_S + step.records / SLOWEST_RECORDS_PER_S,
        )
        measured = run_driver_process(step.contender.driver, options)
        if measured.value_bytes != measured.records * step.size_bytes:
            raise BenchError(
                f"{step.contender.title} was given {measured.value_bytes} bytes in "
                f"{measured.records} records of {step.size_bytes}: not the records of the topic"
            )
        return measured


def run_driver_process(driver: str, options: DriverOptions) -> Measured:
    """Runs a driver in a process of its own.

    Args:
        driver: Module in `sharecoord.bench.drivers`.
        options: What it is to do.

    Raises:
        BenchError: It failed, did not end in time, or printed something else.
    """
    argv = [sys.executable, "-m", f"{_DRIVERS}.{driver}", *options.argv()]
    try:
        answer = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=options.deadline_s + DRIVER_GRACE_S,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchError(f"the driver {driver} did not end within {error.timeout:.0f} s") from error
    if answer.returncode != 0:
        said = "\n".join(answer.stderr.strip().splitlines()[-_SAID_LINES:])
        raise BenchError(f"the driver {driver} failed with exit code {answer.returncode}:\n{said}")
    try:
        return Measured.from_json(answer.stdout.strip())
    except (TypeError, ValueError) as error:
        raise BenchError(f"the driver {driver} printed {answer.stdout[:200]!r}") from error


def _settled_rss_mb(coordinator: CoordinatorProcess) -> float:
    """Memory of a coordinator in MB, a moment after the last work."""
    time.sleep(SETTLE_S)
    return rss_mb(coordinator.pid)


def _progress(step: Step, run: Run) -> str:
    repeat = "warm-up" if step.repeat == WARM_UP_REPEAT else f"run {step.repeat}"
    return (
        f"{step.size_bytes:>6} B  {repeat:<8} {step.contender.title:<36}"
        f"{run.records_per_s:>11,.0f} records/s  (load {run.load_average:.1f})"
    )
