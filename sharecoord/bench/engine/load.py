"""Consumers of one process: `python -m sharecoord.bench.engine.load JOB`.

Each consumer is a thread with its own poll loop, as a worker of its own would have it; workers with
continuous refill and asynchronous members run on an event loop instead (`slots.py`).
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.consumers import Source, open_source
from sharecoord.bench.engine.job import HEAD, LoadJob
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.engine.tally import Handled, Tally, checked
from sharecoord.bench.engine.work import work_times_s
from sharecoord.bench.errors import BenchError

_LOOK_S: Final = 0.02
_CLOSE_S: Final = 30.0
"""Longest time to close all consumers; the samples are complete by then."""


class Worker:
    """A consumer with its loop."""

    def __init__(self, job: LoadJob, board: Board, consumer: int) -> None:
        self.samples = Samples()
        self._job = job
        self._board = board
        self._tally = Tally(job, board, consumer, self.samples)
        self._times = work_times_s(job.cell.distribution, job.cell.work_ms, job.seed, consumer)
        self._source: Source | None = None

    def open(self) -> None:
        """Makes the consumer and subscribes it."""
        job = self._job
        self._source = open_source(job.cell, job.bootstrap_servers, job.group, job.topic)

    def run(self) -> None:
        """Consumes until the board says stop."""
        assert self._source is not None, "opened before"
        if not self._job.per_record:
            self._look(self._source)
        elif self._job.cell.parallel.slots == 1:
            self._work(self._source, map)
        else:
            with ThreadPoolExecutor(self._job.cell.parallel.slots) as pool:
                self._work(self._source, pool.map)

    def close(self) -> None:
        """Leaves the group."""
        if self._source is not None:
            self._source.close()

    def _look(self, source: Source) -> None:
        while not self._board.stopped():
            records = value_bytes = 0
            message: Any = None
            for message in source.poll():
                value_bytes += len(checked(message).value())
                records += 1
                source.done(message)
            if records:
                source.commit()
                self._tally.batch(records, value_bytes, message.offset() + 1)

    def _work(self, source: Source, each: Callable[..., Iterable[Handled | None]]) -> None:
        """Handles records with `map`, or with that of a pool."""
        while not self._board.stopped():
            messages = list(source.poll())
            for message, handled in zip(messages, each(self._handle, messages), strict=True):
                if handled is None:
                    return
                self._tally.record(handled)
                source.done(message)
            source.commit()

    def _handle(self, message: Any) -> Handled | None:
        """The handler; None when the trial is over."""
        if self._board.stopped():
            return None
        began_ns = time.monotonic_ns()
        intended_ns, number = HEAD.unpack_from(checked(message).value())
        work_s = next(self._times)
        if work_s:
            time.sleep(work_s)
        latency_ns = self._tally.latency_ns(began_ns, intended_ns, number)
        return Handled(began_ns, time.monotonic_ns() - began_ns, latency_ns, number)


def run_threads(job: LoadJob, board: Board) -> Samples:
    """Runs all consumers of the process, each in a thread; their samples. May raise BenchError."""
    end = job.first_consumer + job.consumers
    workers = [Worker(job, board, consumer) for consumer in range(job.first_consumer, end)]
    failures: list[BaseException] = []

    def consume(worker: Worker) -> None:
        try:
            worker.run()
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            failures.append(error)

    began_ns = time.monotonic_ns()
    for worker in workers:
        worker.open()
    threads = [threading.Thread(target=consume, args=(each,), daemon=True) for each in workers]
    for thread in threads:
        thread.start()
    board.set_ready(job.process, began_ns)
    while not (board.stopped() or failures):
        time.sleep(_LOOK_S)
    if failures:
        raise BenchError(f"{type(failures[0]).__name__}: {failures[0]}") from failures[0]
    deadline = time.monotonic() + _CLOSE_S
    merged = Samples()
    _join(threads, deadline)
    for worker in workers:
        merged.extend(worker.samples)
    # All at the same time, because each close is a round trip.
    closers = [threading.Thread(target=each.close, daemon=True) for each in workers]
    for thread in closers:
        thread.start()
    _join(closers, deadline)
    return merged


def _join(threads: Iterable[threading.Thread], deadline: float) -> None:
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def main(path: Path) -> None:
    """Runs a job, writes its samples; ends with one line of complaint when it fails."""
    job = LoadJob.read(path)
    board = job.open_board()
    try:
        if job.cell.on_loop:
            # Only these cells need an event loop and the asynchronous client.
            from sharecoord.bench.engine.slots import run_slots

            samples = run_slots(job, board)
        else:
            samples = run_threads(job, board)
    except BenchError as error:
        sys.exit(error.message)
    samples.write(Path(job.samples))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
