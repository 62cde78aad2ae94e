"""`Worker`: handlers for the records of topics, many at a time in one process."""

from __future__ import annotations

import asyncio
import inspect
import math
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any, Final, TypeVar

from sharecoord_sdk._core.config import read_config
from sharecoord_sdk._core.errors import IllegalStateException
from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._worker.binding import OnBadValue, check_on_bad_value, with_values
from sharecoord_sdk._worker.handlers import Handler, read_handler
from sharecoord_sdk._worker.layers import Middleware
from sharecoord_sdk._worker.options import (
    Backoff,
    BatchOutcome,
    Behaviour,
    Breaker,
    FailureOutcome,
    RetryFunction,
    refuse_unbound,
)
from sharecoord_sdk._worker.shell import Options, Shell
from sharecoord_sdk._worker.tracing import read_tracing

__all__ = ["Backoff", "BatchOutcome", "Breaker", "Reject", "Retry", "Worker", "WorkerState"]

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M", bound=Callable[[Any, Any], Any])

CONCURRENCY_MAX: Final = 100_000
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_NOT_HERE: Final = {
    "max.poll.records": "a Worker has no polls; `concurrency` says how many records run at a time",
    "share.acknowledgement.mode": "a Worker acknowledges what its handlers did",
}


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The momentary work of a worker.

    Attributes:
        handlers: Handlers that run.
        records: Records that they have.
        waiting: Records that no handler has seen.
        stuck: Plain handlers that were given up and have not returned; each keeps its slot.
        breakers: `closed`, `open` or `probing`, by topic; of handlers with a breaker.
    """

    handlers: int = 0
    records: int = 0
    waiting: int = 0
    stuck: int = 0
    breakers: Mapping[str, str] = field(default_factory=dict)


class Worker:
    """Runs handlers over the records of a share group, `concurrency` at a time.

    A slot that becomes free takes the next record at once. What a handler does is the outcome of
    its record: it returns: ACCEPT. It raises `Retry(after_s)`: delivered again, not before that. It
    raises `Reject(reason)`: never again. Any other exception: released, and logged. Locks are
    renewed while a handler runs.

    Handlers run in no order unless they are given one (`ordering=`); docs/worker.md has all of it.

    Args:
        conf: As of `ShareConsumer`, without `max.poll.records` and `share.acknowledgement.mode`.
        concurrency: Most handlers that run at a time, of all topics together.
        renew_max_s: The locks of one record are renewed for so long; then its lock ends, and the
            record goes to another worker.
        drain_timeout_s: How long running handlers have to finish when the worker stops.
        tracing: Whether handlers run in the OpenTelemetry context of their record's headers and in
            a span `process`; or the TracerProvider of these spans. Needs opentelemetry-api.

    Raises:
        ImportError: Tracing without opentelemetry-api.
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
        tracing: Any = False,
    ) -> None:
        if not isinstance(concurrency, int) or isinstance(concurrency, bool):
            raise TypeError(f"concurrency must be int, not {type(concurrency).__name__}")
        if not 1 <= concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency must be 1 to {CONCURRENCY_MAX}, not {concurrency}")
        for name, why in _NOT_HERE.items():
            if isinstance(conf, dict) and name in conf:
                raise ValueError(f"{name} does not go with a Worker: {why}; remove it")
        self._config = read_config((conf,), {})
        self._traced = read_tracing(tracing, self._config)
        self._conf = dict(conf)
        self._options = Options(
            concurrency,
            _seconds("renew_max_s", renew_max_s),
            _seconds("drain_timeout_s", drain_timeout_s),
        )
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []
        self._lock = threading.Lock()
        self._started = False
        self._stop_asked = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shell: Shell | None = None

    def handler(
        self,
        topic: str,
        *,
        batch: int | None = None,
        ordering: str | None = None,
        retry: Backoff | RetryFunction | None = None,
        on_error: Mapping[type[BaseException], FailureOutcome] | None = None,
        timeout: float | None = None,
        rate_per_s: float | None = None,
        rate_per_key_per_s: float | None = None,
        breaker: Breaker | None = None,
        value: Any = None,
        on_bad_value: OnBadValue = Reject,
    ) -> Callable[[F], F]:
        """Registers the decorated function for the records of a topic.

        An `async def` function runs in the worker's loop and must not block; a plain one runs on a
        thread. docs/worker.md and docs/values.md have examples.

        Args:
            topic: One handler per topic; decorate a function several times for several topics.
            batch: The function takes lists of 1 to `batch` messages, values, or both: of those that
                wait and can be read, without waiting for more. When it returns None all are
                accepted, when it raises all are released or rejected; a list of outcomes in the
                order of the list, or a `BatchOutcome`, says it of each. A batch takes one slot.
            ordering: "key": records of one key of a partition run one at a time, in order; records
                without a key in none. "partition": those of a partition. When one is released, the
                later ones that this worker holds go back unseen. Give the group the same
                `share.ordering`: it keeps the order between members, over retries and restarts.
            retry: When a failed record comes again, unless the handler raised `Retry` or `Reject`:
                a `Backoff`, or a function of message and attempt that returns seconds or `Reject`.
            on_error: What exceptions mean, before `retry` is asked: `Retry(after_s)` or `Reject`,
                by class; the most specific class wins.
            timeout: Seconds that a call may take; then `TimeoutError` is what it raised. A plain
                handler can not be cancelled: it keeps its slot until it returns.
            rate_per_s: Most records per second, here.
            rate_per_key_per_s: Most records per second of one key of a partition, here.
            breaker: Pauses the topic while what the handler depends on is down.
            value: What a record's value is read as, when no type hint says it: a type of
                `sharecoord_sdk.values`, or a callable of the bytes.
            on_bad_value: What becomes of a record whose value can not be read: `Reject`, `Retry`,
                one of them made, or a function of message and error that gives one.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            TypeError: A value of another type, or a parameter of the function that nobody fills.
            ValueError: The topic has a handler, is no name, or a value out of bounds.
            IllegalStateException: The worker runs.
        """
        behaviour = Behaviour(
            ordering=ordering,
            retry=retry,
            on_error={} if on_error is None else on_error,
            timeout_s=timeout,
            rate_per_s=rate_per_s,
            rate_per_key_per_s=rate_per_key_per_s,
            breaker=breaker,
        )

        def register(function: F) -> F:
            self._register(read_handler(topic, function, batch, behaviour), value, on_bad_value)
            return function

        # Wrong arguments are told where they stand, before there is a function.
        read_handler(topic, print, batch, behaviour)
        check_on_bad_value(on_bad_value)
        return register

    def _register(self, made: Handler, value: Any, on_bad_value: OnBadValue) -> None:
        handler = with_values(made, value, on_bad_value)
        self._check_not_started("handlers")
        known = self._handlers.get(handler.topic)
        if known is not None:
            raise ValueError(f"topic {handler.topic!r} has a handler already: {known.name}")
        self._handlers[handler.topic] = handler

    def middleware(self, function: M) -> M:
        """Registers what is called around every handler: `async def f(message, call_next)`.

        The first that is registered is outermost. It gets what the handler gets (a list, of
        handlers of batches), awaits `call_next(message)`, which runs the next one and at last the
        handler, and returns what that returned. What it raises is the outcome.

        Raises:
            TypeError: Not an `async def` function.
            IllegalStateException: The worker runs.
        """
        if not inspect.iscoroutinefunction(function):
            raise TypeError("middleware must be an `async def` function of message and call_next")
        refuse_unbound(function, "middleware")
        self._check_not_started("middleware")
        self._middleware.append(function)
        return function

    def state(self) -> WorkerState:
        """The worker's momentary work; empty before and after its run. From any thread."""
        shell = self._shell
        return WorkerState() if shell is None else WorkerState(**shell.state())

    def _check_not_started(self, what: str) -> None:
        if self._started:
            raise IllegalStateException(f"{what} must be registered before the worker runs")

    def describe(self) -> dict[str, Any]:
        """How the worker is wired, in plain values: group, limits, and per handler what it takes.

        `python -m sharecoord_sdk.worker MODULE:WORKER --dry-run` prints it, and asks the
        coordinator whether a run would work.
        """
        config, options = self._config, self._options
        return {
            "group": config.group_id,
            "coordinators": list(config.addresses),
            "client": config.client_id,
            "concurrency": options.concurrency,
            "renew_max_s": options.renew_max_s,
            "drain_timeout_s": options.drain_timeout_s,
            "tracing": self._traced is not None,
            "middleware": [each.__qualname__ for each in self._middleware],
            "handlers": [each.described() for each in self._handlers.values()],
        }

    def run(self) -> None:
        """Works until `stop`, SIGTERM or SIGINT; in a loop of its own. Blocks.

        The first signal drains: nothing more is taken, running handlers have `drain_timeout_s` to
        finish, records that no handler has seen go back uncounted, and acknowledgements are
        confirmed. A second signal ends at once (KeyboardInterrupt for SIGINT, SystemExit for
        SIGTERM). Signals are handled in the main thread only; elsewhere call `stop`.

        Raises:
            IllegalStateException: No handler, the worker ran already, or a loop runs here.
            KafkaException: The coordinator refused this worker.
            KeyboardInterrupt: A handler raised it, after a drain of at most 5 s; or a signal.
            SystemExit: The same.
            Exception: What `error_cb` raised, or an error of the worker itself; after such a drain.
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
            self._run_in(loop)
            at_once = False
        except Exception:
            at_once = False
            raise
        finally:
            for number, former in restore.items():
                signal.signal(number, former)
            _close(loop, at_once=at_once)

    def _run_in(self, loop: asyncio.AbstractEventLoop) -> None:
        run = loop.create_task(self._run())
        while True:
            try:
                return loop.run_until_complete(run)
            except (KeyboardInterrupt, SystemExit) as error:
                shell = self._shell
                if run.done():
                    # Nobody else looks at it.
                    run.exception()
                    raise
                if shell is None or shell.is_hurried:
                    raise
                # A task that a handler started raised it: that ends the loop, whoever awaits it.
                shell.end_by(error)

    async def run_async(self) -> None:
        """`run` in the running loop. Signals are the application's: call `stop`.

        When cancelled it drains first; when cancelled again it ends at once.

        Raises:
            IllegalStateException: No handler, or the worker ran already.
            KafkaException: The coordinator refused this worker.
            KeyboardInterrupt: A handler raised it, after a drain of at most 5 s.
            SystemExit: The same.
            Exception: What `error_cb` raised, or an error of the worker itself; after such a drain.
        """
        self._begin()
        await self._run()

    def stop(self) -> None:
        """Starts the drain and returns at once. From any thread, any number of times.

        Before `run` it makes that return at once.
        """
        # Without a lock, which the code that a signal interrupts might hold: a run that has not
        # shown its loop here yet looks at the flag after it has.
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
        options = replace(self._options, middleware=tuple(self._middleware), around=self._traced)
        shell = Shell(self._conf, self._handlers, options)
        self._loop, self._shell = asyncio.get_running_loop(), shell
        if self._stop_asked:
            return
        try:
            await shell.run()
        finally:
            self._loop = self._shell = None

    def _catch_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        caught: list[int] = []

        def on_signal(number: int, _frame: FrameType | None) -> None:
            caught.append(number)
            if len(caught) == 1:
                self.stop()
                return
            if self._shell is not None:
                self._shell.is_hurried = True
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise SystemExit(128 + number)

        found = [number for number in _SIGNALS if signal.getsignal(number) is not None]
        for number in set(_SIGNALS).difference(found):
            # The signal belongs to a program around Python, and could not be restored.
            self._config.logger.warning(
                "%s is handled outside of Python, and left so: call stop() to end this worker",
                number.name,
            )
        return {number: signal.signal(number, on_signal) for number in found}


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
