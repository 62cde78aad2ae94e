"""`Worker`: handlers for the records of topics, many at a time in one process."""

from __future__ import annotations

import asyncio
import math
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, TypeVar

from ._core.config import read_config
from ._core.errors import IllegalStateException
from ._core.outcomes import Reject, Retry
from ._worker.handlers import Handler, read_handler
from ._worker.shell import Options, Shell

__all__ = ["Reject", "Retry", "Worker"]

F = TypeVar("F", bound=Callable[[Any], Any])

CONCURRENCY_MAX: Final = 100_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_NOT_HERE: Final = {
    "max.poll.records": "a Worker has no polls; `concurrency` says how many records run at a time",
    "share.acknowledgement.mode": "a Worker acknowledges what its handlers did",
}


class Worker:
    """Runs handlers over the records of a share group, `concurrency` at a time.

    A slot that becomes free takes the next record at once. What a handler does is the outcome of
    its record: it returns: ACCEPT. It raises `Retry(after_s)`: delivered again, not before that. It
    raises `Reject(reason)`: never again. Any other exception: released, and logged. Locks are
    renewed while a handler runs.

    Handlers of one worker run in no order. In a group with `share.ordering` key or partition, which
    keeps order between members, give the worker `concurrency=1`.

    Args:
        conf: As of `ShareConsumer`, without `max.poll.records` and `share.acknowledgement.mode`.
        concurrency: Most handlers that run at a time, of all topics together.
        renew_max_s: The locks of one record are renewed for so long; then its lock ends, and the
            record goes to another worker.
        drain_timeout_s: How long running handlers have to finish when the worker stops.

    Raises:
        TypeError: An argument of another type.
        ValueError: A number out of bounds, no `group.id`, or a key that workers do not have.
        KafkaException: _INVALID_ARG: an unknown key, or a value out of bounds.
    """

    def __init__(
        self,
        conf: dict[str, Any],
        concurrency: int = 100,
        *,
        renew_max_s: float = 3600.0,
        drain_timeout_s: float = 30.0,
    ) -> None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool):
            raise TypeError(f"concurrency must be int, not {type(concurrency).__name__}")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency must be 1 to {CONCURRENCY_MAX}, not {concurrency}")
        for name, why in _NOT_HERE.items():
            if isinstance(conf, dict) and name in conf:
                raise ValueError(f"{name} does not go with a Worker: {why}; remove it")
        read_config((conf,), {})
        self._conf = dict(conf)
        self._options = Options(
            concurrency,
            _seconds("renew_max_s", renew_max_s),
            _seconds("drain_timeout_s", drain_timeout_s),
        )
        self._handlers: dict[str, Handler] = {}
        self._lock = threading.Lock()
        self._started = False
        self._stop_asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shell: Shell | None = None

    def handler(self, topic: str, *, batch: int | None = None) -> Callable[[F], F]:
        """Registers the decorated function for the records of a topic.

        An `async def` function runs in the worker's loop, a plain one on a thread. Async handlers
        must not block: what blocks belongs in a plain function.

        Args:
            topic: One handler per topic; decorate a function several times for several topics.
            batch: The function takes a list of 1 to `batch` messages instead of one message: those
                that wait, without waiting for more. The outcome is that of all of them: when it
                returns all are accepted, when it raises all are released or rejected. A batch
                takes one slot.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            TypeError: An unknown keyword, not a str, not callable, or a batch that is no integer.
            ValueError: The topic has a handler, is no name, or a batch out of bounds.
            IllegalStateException: The worker runs.
        """

        def register(function: F) -> F:
            made = read_handler(topic, function, batch)
            if self._started:
                raise IllegalStateException("handlers must be registered before the worker runs")
            if topic in self._handlers:
                name = self._handlers[topic].name
                raise ValueError(f"topic {topic!r} has a handler already: {name}")
            self._handlers[topic] = made
            return function

        # Wrong arguments are told where they stand, before there is a function.
        read_handler(topic, print, batch)
        return register

    def run(self) -> None:
        """Works until `stop`, SIGTERM or SIGINT; in a loop of its own. Blocks.

        The first signal drains: nothing more is taken, running handlers have `drain_timeout_s` to
        finish, records that no handler has seen go back uncounted, and acknowledgements are
        confirmed. A second signal ends at once (KeyboardInterrupt for SIGINT, SystemExit for
        SIGTERM). Signals are handled in the main thread only; elsewhere call `stop`.

        Raises:
            IllegalStateException: No handler, the worker ran already, or a loop runs here.
            KafkaException: The coordinator refused this worker.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise IllegalStateException("a loop runs in this thread: await run_async() instead")
        self._begin()
        restore = self._catch_signals()
        loop = asyncio.new_event_loop()
        at_once = True
        try:
            loop.run_until_complete(self._run())
            at_once = False
        except Exception:
            at_once = False
            raise
        finally:
            for number, former in restore.items():
                signal.signal(number, former)
            _close(loop, at_once=at_once)

    async def run_async(self) -> None:
        """`run` in the running loop. Signals are the application's: call `stop`.

        When cancelled it drains first; when cancelled again it ends at once.

        Raises:
            IllegalStateException: No handler, or the worker ran already.
            KafkaException: The coordinator refused this worker.
        """
        self._begin()
        await self._run()

    def stop(self) -> None:
        """Starts the drain and returns at once. From any thread, any number of times.

        Before `run` it makes that return at once.
        """
        with self._lock:
            self._stop_asked = True
            loop, shell = self._loop, self._shell
        if loop is None or shell is None:
            return
        try:
            loop.call_soon_threadsafe(shell.stop)
        except RuntimeError:
            # The loop is closed: the run is over.
            pass

    def _begin(self) -> None:
        with self._lock:
            if not self._handlers:
                raise IllegalStateException("a worker needs a handler: @worker.handler(topic)")
            if self._started:
                raise IllegalStateException("a worker runs once; make a new one")
            self._started = True

    async def _run(self) -> None:
        shell = Shell(self._conf, self._handlers, self._options)
        with self._lock:
            self._loop, self._shell = asyncio.get_running_loop(), shell
            if self._stop_asked:
                return
        try:
            await shell.run()
        finally:
            with self._lock:
                self._loop = self._shell = None

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        caught: list[int] = []

        def on_signal(number: int, _frame: FrameType | None) -> None:
            caught.append(number)
            if len(caught) == 1:
                self._stop_from_signal()
                return
            if self._shell is not None:
                self._shell.is_hurried = True
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)

        return {number: signal.signal(number, on_signal) for number in _SIGNALS}

    def _stop_from_signal(self) -> None:
        """`stop` without the lock, which the interrupted code may hold."""
        self._stop_asked = True
        loop, shell = self._loop, self._shell
        if loop is not None and shell is not None and not loop.is_closed():
            loop.call_soon_threadsafe(shell.stop)


def _seconds(name: str, value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number of seconds, not {type(value).__name__}")
    if not 0 <= value < math.inf:
        raise ValueError(f"{name} must be a finite number of seconds, 0 or more, not {value}")
    return float(value)


def _close(loop: asyncio.AbstractEventLoop, *, at_once: bool) -> None:
    """Ends a loop as `asyncio.run` does; at once = without waiting for threads of `to_thread`."""
    try:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        if not at_once:
            loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
