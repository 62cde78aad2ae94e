"""Many consumers on one event loop of a process: workers with slots, and asynchronous members.

`continuous:N`: a consumer of the cell is one `Worker` that runs N handlers at a time; a free slot
takes the next record at once. `tasks`: a consumer is an `AsyncShareConsumer` with a task of its
own, which works off one record after the other.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from sharecoord_sdk import AsyncShareConsumer, Message, Worker

from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Ack, Consumer, Order
from sharecoord.bench.engine.consumers import MemoryMessage, share_config, worker_config
from sharecoord.bench.engine.job import HEAD, LoadJob
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.engine.tally import Bucket, Handled, Tally, checked
from sharecoord.bench.engine.work import work_times_s
from sharecoord.bench.errors import BenchError
from sharecoord.runtime.kernel.precise_loop import precise_loop

_POLL_S: Final = 2.0
"""Long: thousands of members that wait must not wake the loop all the time."""
_LOOK_S: Final = 0.02
_CLOSE_S: Final = 30.0
_DRAIN_S: Final = 20.0
"""Longest time that handlers may go on once the trial is over."""


@dataclass(slots=True)
class _Stage:
    """The job, the board, and the ends of all consumers of the process.

    `stops` are called when the trial is over. `failures` are exceptions of handlers, which a worker
    takes for outcomes.
    """

    job: LoadJob
    board: Board
    stops: list[Callable[[], None]] = field(default_factory=list)
    failures: list[BaseException] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Hand:
    """Tally and work times of one consumer of the cell."""

    tally: Tally
    times: Iterator[float]

    async def handle(self, message: object) -> None:
        """Works off one record."""
        began_ns = time.monotonic_ns()
        intended_ns, number = HEAD.unpack_from(checked(message).value())
        work_s = next(self.times)
        if work_s:
            await asyncio.sleep(work_s)
        latency_ns = self.tally.latency_ns(began_ns, intended_ns, number)
        self.tally.record(Handled(began_ns, time.monotonic_ns() - began_ns, latency_ns, number))


def run_slots(job: LoadJob, board: Board) -> Samples:
    """Runs all consumers of the process; their samples. BenchError when a consumer failed."""
    try:
        with asyncio.Runner(loop_factory=precise_loop) as runner:
            return runner.run(_run(job, board))
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(f"{type(error).__name__}: {error}") from error


async def _run(job: LoadJob, board: Board) -> Samples:
    samples = Samples()
    stage = _Stage(job, board)
    cell = job.cell
    serve = _serve_worker if cell.parallel.continuous else _serve_member
    if cell.consumer is Consumer.NONE:
        serve = _serve_memory
    began_ns = time.monotonic_ns()
    tasks: list[asyncio.Task[None]] = []
    for consumer in range(job.first_consumer, job.first_consumer + job.consumers):
        times = work_times_s(job.cell.distribution, job.cell.work_ms, job.seed, consumer)
        hand = _Hand(Tally(job, board, consumer, samples), times)
        tasks.append(asyncio.create_task(serve(stage, hand)))
    # In their first turn they subscribe.
    await asyncio.sleep(0)
    board.set_ready(job.process, began_ns)
    while not board.stopped():
        _check(stage, tasks)
        await asyncio.sleep(_LOOK_S)
    for stop in stage.stops:
        stop()
    _, late = await asyncio.wait(tasks, timeout=_CLOSE_S)
    for task in late:
        task.cancel()
    _check(stage, ())
    return samples


def _check(stage: _Stage, tasks: Iterable[asyncio.Task[None]]) -> None:
    """Raises the exception that ended a consumer before its time."""
    for error in stage.failures:
        raise error
    for task in tasks:
        if task.done():
            task.result()
            raise BenchError("a consumer ended before the trial was over")


# -- one worker with slots ------------------------------------------------------------------------


async def _serve_worker(stage: _Stage, hand: _Hand) -> None:
    job = stage.job
    worker = Worker(
        worker_config(job.cell, job.bootstrap_servers, job.group),
        concurrency=job.cell.parallel.slots,
        drain_timeout_s=_DRAIN_S,
    )
    bucket = Bucket(hand.tally)
    ordering = None if job.cell.ordering is Order.UNORDERED else str(job.cell.ordering)
    register = worker.handler(job.topic, batch=job.cell.batch or None, ordering=ordering)
    register(_handler(stage, hand, bucket))
    stage.stops.append(worker.stop)
    await worker.run_async()
    bucket.flush()


def _handler(stage: _Stage, hand: _Hand, bucket: Bucket) -> Callable[[Any], Awaitable[None]]:
    """The function that a worker is given; its complaints end the trial."""

    async def handle(message: Message) -> None:
        try:
            await hand.handle(message)
        except BenchError as error:
            stage.failures.append(error)

    async def handle_all(messages: list[Message]) -> None:
        for message in messages:
            await handle(message)

    async def look(message: Message) -> None:
        try:
            bucket.add(len(message.value() or b""))
        except BenchError as error:
            stage.failures.append(error)

    async def look_at_all(messages: list[Message]) -> None:
        try:
            hand.tally.batch(len(messages), sum(len(each.value() or b"") for each in messages))
        except BenchError as error:
            stage.failures.append(error)

    if stage.job.per_record:
        return handle_all if stage.job.cell.batch else handle
    return look_at_all if stage.job.cell.batch else look


# -- one member for each consumer -----------------------------------------------------------------


async def _serve_member(stage: _Stage, hand: _Hand) -> None:
    job, board = stage.job, stage.board
    explicit = job.cell.ack is Ack.EXPLICIT
    async with AsyncShareConsumer(
        share_config(job.cell, job.bootstrap_servers, job.group_of(hand.tally.consumer))
    ) as consumer:
        await consumer.subscribe([job.topic_of(hand.tally.consumer)])
        while not board.stopped():
            messages = await consumer.poll(_POLL_S)
            if not job.per_record and messages:
                lengths = [len(checked(message).value()) for message in messages]
                hand.tally.batch(len(lengths), sum(lengths))
            for message in messages:
                if job.per_record:
                    if board.stopped():
                        return
                    await hand.handle(message)
                if explicit:
                    consumer.acknowledge(message)
            if explicit and messages:
                consumer.commit_async()


# -- no queue -------------------------------------------------------------------------------------


async def _serve_memory(stage: _Stage, hand: _Hand) -> None:
    async def slot() -> None:
        message = MemoryMessage()
        while not stage.board.stopped():
            await hand.handle(message)

    await asyncio.gather(*(slot() for _ in range(stage.job.cell.parallel.slots)))
