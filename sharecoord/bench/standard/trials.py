"""The trials of stores: transactions alone, recovery of a full store, restart under load."""

from __future__ import annotations

import statistics
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sharecoord_sdk import ShareConsumer

from sharecoord.bench.coordinator import MeasuredCoordinator
from sharecoord.bench.engine.tally import checked
from sharecoord.bench.errors import BenchError
from sharecoord.bench.procfs import cpu_s
from sharecoord.bench.standard.plans import StoreTrial
from sharecoord.core.changes import CommitBatch, PartitionCommit
from sharecoord.devenv.processes import port_open
from sharecoord.devenv.stores import alternating_ranges, fill_in_flight, opened, owned_partitions
from sharecoord.devenv.topics import Topics
from sharecoord.ports import Store

POLL_S: Final = 0.05
_LOOK_S: Final = 0.005
_STOP_S: Final = 30.0


class Pace:
    """Holds a loop back to a rate, from `now_s` on."""

    def __init__(self, records_per_s: float, now_s: float) -> None:
        self._each_s = 1 / records_per_s
        self._next_s = now_s

    def wait_s(self, records: int, now_s: float) -> float:
        """Seconds to wait after `records` more records. A late loop does not catch up."""
        self._next_s = max(self._next_s, now_s - POLL_S) + records * self._each_s
        return max(0.0, self._next_s - now_s)


class Taker:
    """A member with implicit acknowledgement."""

    def __init__(self, address: str, group: str, topic: str) -> None:
        self._config = {"bootstrap.servers": address, "group.id": group}
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="taker", daemon=True)
        self._failure: Exception | None = None
        self.pace: Pace | None = None
        """None: the member takes records as fast as it can."""
        self.records = 0
        self.arrivals_s: list[float] = []
        """Moments at which records came, one per poll, on the monotonic clock."""
        self.first_s: dict[int, float] = {}
        """Moment of the first record of each partition."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """The member is there until the block ends."""
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(_STOP_S)

    def check(self) -> None:
        """BenchError when the member could not go on."""
        if self._failure is not None:
            raise BenchError(f"the member ended: {self._failure!r}") from self._failure

    def wait_for(self, records: int, deadline_s: float) -> None:
        """Waits until the member was given `records` records in all; BenchError when late."""
        end_s = time.monotonic() + deadline_s
        while self.records < records:
            self.check()
            if time.monotonic() > end_s:
                raise BenchError(f"{self.records:,} of {records:,} records within {deadline_s:g} s")
            time.sleep(_LOOK_S)

    def _run(self) -> None:
        try:
            with ShareConsumer(self._config) as consumer:
                consumer.subscribe([self._topic])
                while not self._stop.is_set():
                    self._take(consumer)
        except Exception as error:  # noqa: BLE001 - `check` raises it
            self._failure = error

    def _take(self, consumer: ShareConsumer) -> None:
        messages = consumer.poll(POLL_S)
        now_s = time.monotonic()
        for message in messages:
            self.first_s.setdefault(checked(message).partition() or 0, now_s)
        if messages:
            self.arrivals_s.append(now_s)
            self.records += len(messages)
        pace = self.pace
        if pace is not None:
            self._stop.wait(pace.wait_s(len(messages), time.monotonic()))


RECOVERY_VALUE_BYTES: Final = 10
"""Room for a record's number; nobody looks at more of it."""
RESTART_VALUE_BYTES: Final = 1000
_WARM_COMMITS: Final = 6
"""A driver prepares a statement that it has seen a few times."""
_TOPIC_ID: Final = "0" * 31 + "1"
_GROUP: Final = "recovery"
_SERVED_S: Final = 180.0
_RECOVERY_SETTINGS: Final = {
    "memory.limit": "2GiB",
    "group.share.partition.max.record.locks": 4000,
}
_FULL_SPEED_S: Final = 1.0
_HALF_SPEED_S: Final = 1.5
_DEADLINE_S: Final = 60.0
_PORT_LOOK_S: Final = 0.002
_FIRST_RECORDS: Final = 50_000
"""Records that are taken before the speed is measured: a member is slow at first."""

# -- the store alone ------------------------------------------------------------------------------


def measure_commits(url: str, *, partitions: int, ranges: int, seconds: float) -> dict[str, float]:
    """Writes ranges and deletes them again, in turn, one group commit after the other.

    Returns `commits_per_s`, and `rows_per_s`: rows of ranges that were written or deleted.
    """
    with opened(url) as store:
        batches = _batches(store, partitions, ranges)
        count = 0

        def commit() -> None:
            nonlocal count
            store.commit(batches[count % 2])
            count += 1

        for _ in range(_WARM_COMMITS):
            commit()
        rate = rate_of(commit, seconds, time.perf_counter)
    return {"commits_per_s": rate, "rows_per_s": rate * partitions * ranges}


def _batches(store: Store, partitions: int, ranges: int) -> tuple[CommitBatch, CommitBatch]:
    """A commit that writes the ranges, and a commit that deletes them."""
    rows = owned_partitions(store, "bench", "bench", _TOPIC_ID, partitions)
    now_ms = store.now_ms()
    write = [alternating_ranges(row, ranges, now_ms) for row in rows]
    delete = [
        PartitionCommit(
            each.partition_id,
            each.owner_epoch,
            each.state_epoch,
            each.head,
            deleted=[row.first_offset for row in each.upserted],
        )
        for each in write
    ]
    return CommitBatch(partitions=write), CommitBatch(partitions=delete)


def rate_of(call: Callable[[], None], seconds: float, clock_s: Callable[[], float]) -> float:
    """How often per second `call` can be called, one call after the other."""
    count, began_s = 0, clock_s()
    while True:
        call()
        count += 1
        passed_s = clock_s() - began_s
        if passed_s >= seconds:
            return count / passed_s


# -- recovery -----------------------------------------------------------------------------------


def measure_recovery(
    url: str, trial: StoreTrial, *, bootstrap_servers: str, topic: str, directory: Path
) -> dict[str, float]:
    """Fills an empty store, starts a coordinator on it, takes one new record of each partition.

    The topic has `trial.partitions` partitions with `trial.ranges` + 1 records each.
    SharecoordError: the coordinator does not start, or not every share-partition was served in
    time.
    """
    fill_in_flight(
        url,
        group=_GROUP,
        topic=topic,
        topic_id=Topics(bootstrap_servers).topic_id(topic),
        partitions=trial.partitions,
        ranges=trial.ranges,
    )
    settings = {**_RECOVERY_SETTINGS, "store.url": url}
    coordinator = MeasuredCoordinator(bootstrap_servers, directory, settings=settings)
    began_s = time.monotonic()
    with coordinator:
        ready_s, used_s = time.monotonic(), cpu_s(coordinator.pid)
        taker = Taker(coordinator.address, _GROUP, topic)
        with taker.running():
            taker.wait_for(trial.partitions, _SERVED_S)
        return {
            "port_open_s": ready_s - began_s,
            **recovery_figures(ready_s, taker.first_s.values()),
            "coordinator_cpu_s": cpu_s(coordinator.pid) - used_s,
            "peak_mb": coordinator.peak_rss_mb,
        }


def recovery_figures(began_s: float, served_s: Iterable[float]) -> dict[str, float]:
    """Seconds from `began_s` until the first share-partition was served, half were, and all were.

    `served_s` are the moments of the first record of each share-partition; at least one.
    """
    after_s = sorted(each - began_s for each in served_s)
    return {
        "first_delivery_s": after_s[0],
        "half_served_s": statistics.median(after_s),
        "all_served_s": after_s[-1],
    }


# -- restart ------------------------------------------------------------------------------------


def measure_restart(
    url: str, *, bootstrap_servers: str, topic: str, records: int, directory: Path
) -> dict[str, float]:
    """Ends a coordinator under load by kill -9 and starts it again.

    SharecoordError: it does not start, nothing came again, or the records were too few.
    """
    settings = {"store.url": url}
    group = f"restart-{uuid.uuid4().hex[:8]}"
    with MeasuredCoordinator(bootstrap_servers, directory, settings=settings) as coordinator:
        taker = Taker(coordinator.address, group, topic)
        with taker.running():
            half_per_s = _bring_to_half(taker)
            coordinator.kill()
            _until_silent(taker)
            if taker.records >= records:
                raise BenchError(f"{records:,} records were worked off before the restart")
            before, polls = taker.records, len(taker.arrivals_s)
            launched_s = time.monotonic()
            coordinator.launch()
            opened_s = _until_open(int(coordinator.address.rpartition(":")[2]))
            taker.wait_for(before + 1, _DEADLINE_S)
    return {
        "load_per_s": half_per_s,
        "port_open_s": opened_s - launched_s,
        # The port may have opened a moment before it was seen.
        "first_delivery_s": max(0.0, taker.arrivals_s[polls] - opened_s),
    }


def _bring_to_half(taker: Taker) -> float:
    """Lets the member take as fast as it can, then half as fast; returns the half rate."""
    taker.wait_for(_FIRST_RECORDS, _DEADLINE_S)
    before, began_s = taker.records, time.monotonic()
    time.sleep(_FULL_SPEED_S)
    now_s = time.monotonic()
    half_per_s = (taker.records - before) / (now_s - began_s) / 2
    taker.check()
    if not half_per_s:
        raise BenchError("the member was given nothing for a second")
    taker.pace = Pace(half_per_s, now_s)
    time.sleep(_HALF_SPEED_S)
    return half_per_s


def _until_silent(taker: Taker) -> None:
    """Waits until the member has used up its buffer."""
    while time.monotonic() - taker.arrivals_s[-1] < 4 * POLL_S:
        taker.check()
        time.sleep(_PORT_LOOK_S)


def _until_open(port: int) -> float:
    """Waits until a port accepts connections; returns that moment on the monotonic clock."""
    end_s = time.monotonic() + _DEADLINE_S
    while not port_open(port):
        if time.monotonic() > end_s:
            raise BenchError(f"port {port} did not open within {_DEADLINE_S:g} s")
        time.sleep(_PORT_LOOK_S)
    return time.monotonic()
