"""Processes of the demo: a Kafka, the coordinator, the workers. All of them end with us."""

from __future__ import annotations

import shutil
import sys
import tempfile
import threading
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Self

from sharecoord.demo.plan import (
    DELIVERY_LIMIT,
    LOCK_DURATION_MS,
    SESSION_TIMEOUT_MS,
    WORKERS_MAX,
    Order,
)
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import GuardedProcess
from sharecoord.devenv.topics import Record, Topics
from sharecoord.errors import SharecoordError

ANSWER_TIMEOUT_S: Final = 10.0
"""Longest time until the first answer of a cluster that should be there."""

STOP_GRACE_S: Final = 10.0
GROUP: Final = "demo"
COORDINATOR_SETTINGS: Final = {
    "management.enable": False,
    "group.share.delivery.count.limit": DELIVERY_LIMIT,
    "group.share.record.lock.duration.ms": LOCK_DURATION_MS,
    "group.share.session.timeout.ms": SESSION_TIMEOUT_MS,
}
"""`sharecoord serve` with short times, so that the demo is short too."""

CHUNKS_PER_S: Final = 10
"""Number of times per second that the producer sends a little."""


class Stage:
    """Starts, kills and ends the processes; a `with` block ends all of them in every case.

    The topic has a name of its own, so a cluster of yours is left as it was. `directory` has the
    store, ledgers, logs and, if they are wanted, `events`. `coordinator` is there after
    `start_coordinator`.
    """

    coordinator: CoordinatorProcess

    def __init__(self, *, kafka: str | None, real: bool, with_events: bool = False) -> None:
        """Nothing is started yet; without an address in `kafka` it will be real or a mock."""
        self.topic = f"sharecoord-demo-{uuid.uuid4().hex[:8]}"
        self.kafka = kafka or ""
        self.directory = Path(tempfile.mkdtemp(prefix="sharecoord-demo-"))
        self.events = self.directory / "events"
        self.keeps_files = False
        self._with_events = with_events
        self._mock = kafka is None and not real
        self._real = real
        self._ends = ExitStack()
        self._ends.callback(self._delete_files)
        self._workers: dict[str, GuardedProcess] = {}

    @property
    def store(self) -> Path:
        """The coordinator's SQLite file."""
        return self.coordinator.store_path

    @property
    def kafka_kind(self) -> str:
        """The kind of the cluster, in words."""
        if self._mock:
            return "librdkafka's mock cluster, in a process of its own"
        if self._real:
            return "a real broker, started for this demo (Maven fetches it the first time)"
        return f"your cluster at {self.kafka}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def ledger(self, member: str) -> Path:
        """The file in which a worker writes what it does."""
        return self.directory / f"{member}.ledger"

    # -- Kafka ----------------------------------------------------------------------------------

    def start_kafka(self) -> None:
        """Brings up the cluster and the topic; SharecoordError when it does not answer."""
        if self._mock:
            cluster = self._ends.enter_context(MockCluster(topics=[self.topic]))
            self.kafka = cluster.bootstrap_servers
            return
        if self._real:
            self.kafka = self._ends.enter_context(KafkaBroker()).bootstrap_servers
        else:
            Topics(self.kafka, timeout_s=ANSWER_TIMEOUT_S).names()
        topics = Topics(self.kafka)
        topics.create(self.topic)
        if not self._real:
            self._ends.callback(self._delete_topic, topics)

    def _delete_topic(self, topics: Topics) -> None:
        try:
            topics.delete(self.topic)
        except SharecoordError as error:
            print(f"The topic {self.topic} is left behind: {error.message}", file=sys.stderr)

    # -- the coordinator ------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Starts the coordinator and returns at once; see `CoordinatorProcess.wait_ready`."""
        sink = {"events.sink": f"parquet:{self.events}"} if self._with_events else {}
        self.coordinator = CoordinatorProcess(
            self.kafka, self.directory, settings={**COORDINATOR_SETTINGS, **sink}
        )
        self._ends.callback(self.coordinator.kill)
        self.coordinator.launch()

    # -- the workers ----------------------------------------------------------------------------

    def start_workers(self, members: Sequence[str]) -> None:
        """Starts one process per member."""
        assert len(members) <= WORKERS_MAX, "checked by the plan"
        for member in members:
            argv = [sys.executable, "-m", "sharecoord.demo.worker", "--group", GROUP]
            argv += ["--coordinator", self.coordinator.address, "--topic", self.topic]
            argv += ["--member", member, "--ledger", str(self.ledger(member))]
            log_path = self.directory / f"{member}.log"
            process = GuardedProcess(member, argv, log_path=log_path, scratch=self.directory)
            self._ends.callback(process.kill)
            self._workers[member] = process
            process.start()

    def check_workers(self) -> None:
        """DevenvError, with the end of its log, when a worker has ended by itself."""
        for process in self._workers.values():
            if process.exit_code is not None:
                raise process.failed(f"ended with exit code {process.exit_code}")

    def kill_worker(self, member: str) -> int:
        """Ends a worker with kill -9; returns the process id that it had."""
        process = self._workers.pop(member)
        pid = process.pid
        process.kill()
        return pid

    def stop_workers(self) -> None:
        """Asks all workers to finish what they hold, and waits."""
        ending = [
            threading.Thread(target=process.stop, args=(STOP_GRACE_S,))
            for process in self._workers.values()
        ]
        for each in ending:
            each.start()
        for each in ending:
            each.join()

    def _delete_files(self) -> None:
        if not self.keeps_files:
            shutil.rmtree(self.directory, ignore_errors=True)


class PacedProducer:
    """Produces in the background, little by little, no further than it is allowed to.

    `produced` has the offset of each record that Kafka has confirmed, with the record.
    """

    def __init__(self, kafka: str, topic: str, orders: Sequence[Order], per_s: float) -> None:
        self.produced: dict[int, Order] = {}
        self._topics = Topics(kafka)
        self._topic = topic
        self._orders = orders
        self._per_chunk = max(1, round(per_s / CHUNKS_PER_S))
        self._allowed = 0
        self._at_once = 0
        self._error: BaseException | None = None
        self._change = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="demo-producer", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether everything that is allowed is in the log; raises what stopped the producer."""
        if self._error is not None:
            raise self._error
        return len(self.produced) >= self._allowed

    def allow(self, count: int, *, at_once: int = 0) -> None:
        """Lets the producer go on up to `count` records in all, the next `at_once` in one go."""
        with self._change:
            self._allowed = max(self._allowed, min(count, len(self._orders)))
            self._at_once = at_once
            self._change.notify()

    def close(self) -> None:
        """Ends the thread."""
        with self._change:
            self._stopping = True
            self._change.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (chunk := self._next_chunk()) is not None:
                self._produce(chunk)
        except BaseException as error:  # noqa: BLE001 - handed over to the director's thread
            self._error = error

    def _next_chunk(self) -> Sequence[Order] | None:
        """Waits for the next records; None = no more."""
        with self._change:
            self._change.wait_for(lambda: self._stopping, timeout=1 / CHUNKS_PER_S)
            done = len(self.produced)
            self._change.wait_for(lambda: self._stopping or done < self._allowed)
            if self._stopping:
                return None
            count, self._at_once = max(self._per_chunk, self._at_once), 0
            return self._orders[done : min(done + count, self._allowed)]

    def _produce(self, chunk: Sequence[Order]) -> None:
        records = [Record(str(order.number).encode(), order.encode()) for order in chunk]
        report = self._topics.produce(self._topic, records)
        first, last = report.offsets[0]
        # Nobody else writes to this topic, so what was sent in order has consecutive offsets.
        assert last - first + 1 == len(chunk), "one producer"
        self.produced.update(zip(range(first, last + 1), chunk, strict=True))
