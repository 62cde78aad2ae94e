"""Continuous refill inside one process: a free slot takes the next record at once.

Every slot is an `AsyncShareConsumer` of its own on one event loop and one channel; a consumer of
the cell is `slots` of them. A client that spreads one member's records over slots by itself
replaces the body of `_serve_consumer` and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

from sharecoord_sdk import AsyncShareConsumer

from sharecoord.bench.errors import BenchError
from sharecoord.bench.grid.board import Board
from sharecoord.bench.grid.cell import Consumer
from sharecoord.bench.grid.consumers import MemorySource, share_config
from sharecoord.bench.grid.job import HEAD, LoadJob
from sharecoord.bench.grid.load import Handled, Tally, checked
from sharecoord.bench.grid.recorder import Samples
from sharecoord.bench.grid.work import work_times_s

_POLL_S: Final = 0.5
_LOOK_S: Final = 0.02
_CLOSE_S: Final = 30.0


def run_slots(job: LoadJob, board: Board) -> Samples:
    """Runs all slots of the process' consumers; their samples.

    Raises:
        BenchError: A slot failed.
    """
    try:
        return asyncio.run(_run(job, board))
    except BenchError:
        raise
    except Exception as error:
        raise BenchError(f"{type(error).__name__}: {error}") from error


async def _run(job: LoadJob, board: Board) -> Samples:
    samples = Samples()
    began_ns = time.monotonic_ns()
    serve = _serve_memory if job.cell.consumer is Consumer.NONE else _serve_consumer
    tasks: list[asyncio.Task[None]] = []
    for consumer in range(job.first_consumer, job.first_consumer + job.consumers):
        tally = Tally(job, board, consumer, samples)
        times = work_times_s(job.cell.distribution, job.cell.work_ms, job.seed, consumer)
        tasks.append(asyncio.create_task(serve(job, board, tally, times)))
    await asyncio.sleep(0)
    board.set_ready(job.process, began_ns)
    while not board.stopped():
        failed = [task for task in tasks if task.done()]
        if failed:
            failed[0].result()
        await asyncio.sleep(_LOOK_S)
    _, late = await asyncio.wait(tasks, timeout=_CLOSE_S)
    for task in late:
        task.cancel()
    return samples


async def _serve_consumer(job: LoadJob, board: Board, tally: Tally, times: Iterator[float]) -> None:
    """One consumer of the cell with all its slots, until the board says stop."""
    config = share_config(job.cell, job.bootstrap_servers, job.group)

    async def slot() -> None:
        async with AsyncShareConsumer(config) as consumer:
            await consumer.subscribe([job.topic])
            while not board.stopped():
                for message in await consumer.poll(_POLL_S):
                    if board.stopped():
                        return
                    await _handle(message, tally, times)
                    consumer.acknowledge(message)

    await asyncio.gather(*(slot() for _ in range(job.cell.parallel.slots)))


async def _serve_memory(job: LoadJob, board: Board, tally: Tally, times: Iterator[float]) -> None:
    """The same without a queue."""

    async def slot() -> None:
        (message, *_) = MemorySource().poll()
        while not board.stopped():
            await _handle(message, tally, times)

    await asyncio.gather(*(slot() for _ in range(job.cell.parallel.slots)))


async def _handle(message: object, tally: Tally, times: Iterator[float]) -> None:
    began_ns = time.monotonic_ns()
    intended_ns, number = HEAD.unpack_from(checked(message).value())
    work_s = next(times)
    if work_s:
        await asyncio.sleep(work_s)
    latency_ns = tally.latency_ns(began_ns, intended_ns, number)
    tally.record(Handled(began_ns, time.monotonic_ns() - began_ns, latency_ns, number))
