"""Checkpoints of handlers: `Message.checkpoint` of the records of a worker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from time import monotonic
from typing import TYPE_CHECKING, Final

from sharecoord_sdk._core.acks import CommitTicket
from sharecoord_sdk._core.columns import IN_FLIGHT, LOST, Columns
from sharecoord_sdk._core.errors import IllegalStateException, KafkaError, KafkaException
from sharecoord_sdk._core.records import COMPLETED, CheckpointStore

if TYPE_CHECKING:
    from .core import WorkerCore

# Extra time of a plain handler for the loop, beyond the loop's for the coordinator.
_LOOP_S: Final = 5.0


class WorkerCheckpoints(CheckpointStore):
    """The checkpoint store of a worker. Made in the worker's loop.

    Args:
        core: The worker's rules.
        soon: Asks the writer of the stream to send soon.
    """

    def __init__(self, core: WorkerCore, soon: Callable[[], None]) -> None:
        self._core = core
        self._soon = soon
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._open: set[asyncio.Future[None]] = set()

    def keep(self, columns: Columns, row: int, data: bytes) -> Awaitable[None]:
        """Returns an awaitable in the loop's thread; waits itself on another one."""
        stored = self._keep(columns, row, data)
        if threading.get_ident() == self._thread:
            return stored
        try:
            waiting = asyncio.run_coroutine_threadsafe(stored, self._loop)
        except RuntimeError as error:
            stored.close()
            raise IllegalStateException("the worker has ended") from error
        try:
            waiting.result(self._core.config.api_timeout_s + _LOOP_S)
        except CancelledError as error:
            raise IllegalStateException("the worker has ended") from error
        except TimeoutError as error:
            if waiting.done():
                raise
            # The loop is blocked, or was closed before it began.
            waiting.cancel()
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error
        return COMPLETED

    async def _keep(self, columns: Columns, row: int, data: bytes) -> None:
        core, state = self._core, columns.states[row]
        if state == LOST:
            raise KafkaException(KafkaError(KafkaError.INVALID_RECORD_STATE))
        span = columns.span_at(row)
        if span is None or state != IN_FLIGHT:
            raise IllegalStateException("a checkpoint needs a record whose handler runs")
        future: asyncio.Future[None] = self._loop.create_future()
        ticket = CommitTicket(lambda: None if future.done() else future.set_result(None))
        self._open.add(future)
        try:
            core.send_checkpoint(span, data, ticket, monotonic())
            self._soon()
            async with asyncio.timeout(core.config.api_timeout_s):
                await future
        except TimeoutError:
            ticket.time_out()
        finally:
            self._open.discard(future)
        error = next(iter(ticket.results.values()))
        if error is not None:
            raise KafkaException(error)
        columns.keep_checkpoint(row, data)
        core.checkpoint_stored(columns, row, monotonic())

    def close(self) -> None:
        """Fails every open checkpoint, because the worker ends."""
        for future in self._open:
            if not future.done():
                future.set_exception(IllegalStateException("the worker has ended"))
