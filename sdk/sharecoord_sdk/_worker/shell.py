"""The loop of a worker: stream, timers, slots. The rules are in `core`.

Each call of an async handler is a task of its own, in a fresh copy of the application's context:
libraries that keep something by task or in context variables find nothing of another record.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final, TypeVar

from sharecoord_sdk._async.consumer import AsyncShareConsumer
from sharecoord_sdk._async.stream import Mailbox
from sharecoord_sdk._core.acks import AckOutcome
from sharecoord_sdk._core.columns import Span
from sharecoord_sdk._core.config_table import POLL_RECORDS_MAX
from sharecoord_sdk._core.core import Arrival
from sharecoord_sdk._core.errors import KafkaException
from sharecoord_sdk._core.records import Message, message_at, messages_of

from .batches import refuse_unopened, unopened_in
from .checkpoints import WorkerCheckpoints
from .core import WorkerCore
from .failures import text_of
from .handlers import Handler
from .layers import Around, Middleware, with_layers
from .leases import Part
from .line import Lease
from .threads import Job, Threads

# How long results wait for others, when some were sent just before.
_FLUSH_S: Final = 0.005
# The time for which handlers that do not suspend keep the loop.
_TURN_S: Final = 0.003
# Most handlers that begin in one turn: as many as the quickest do in that time.
_TURN_TASKS_MAX: Final = 1024
# Python 3.12 and later begin a task at once; one that does not suspend costs no turn of the loop.
_EAGER: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
# The shortest and the longest time between signs of life of a worker with nothing to send.
_SIGN_S: Final = (0.5, 5.0)
# The time in which cancelled handlers clean up.
_CANCEL_S: Final = 1.0
# The time in which the coordinator confirms before the leave, which waits once more.
_SETTLE_S: Final = 5.0
# The time of a drain when a handler ends the program; running handlers have half of it.
_EXIT_DRAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a worker beside the configuration of its consumer. Times in seconds."""

    concurrency: int
    renew_max_s: float
    drain_timeout_s: float
    #: Outermost first.
    middleware: tuple[Middleware, ...] = ()
    #: Goes around it, as a span does.
    around: Around | None = None


class _Inbox(Mailbox[Arrival]):
    """A mailbox that passes arrivals on at once: a worker never polls."""

    def __init__(self, shell: Shell) -> None:
        super().__init__()
        self._shell = shell

    def put(self, item: Arrival) -> None:
        self._shell._arrived(item)


_Step = TypeVar("_Step", bound=Callable[..., None])


def _guarded(step: _Step) -> _Step:
    """Decorates a step of the loop, whose error ends the worker: nobody else would see it.

    In the loop's own handler of exceptions the worker would live on, and take no records.
    """

    @functools.wraps(step)
    def guarded(shell: Shell, *arguments: Any) -> None:
        try:
            step(shell, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever it is
            shell._failed(error)

    return guarded  # type: ignore[return-value]


class Shell(AsyncShareConsumer):
    """A run of a worker, in the running loop; `handlers` are by topic."""

    def __init__(
        self, conf: dict[str, Any], handlers: Mapping[str, Handler], options: Options
    ) -> None:
        super().__init__(conf)
        records = options.concurrency * max(h.records_max for h in handlers.values())
        config = replace(
            self._config,
            explicit=True,
            # The coordinator lets a worker hold at least so many: those in its slots, and as many
            # again. Credits keep what waits here to what is worked off soon.
            max_poll_records=min(POLL_RECORDS_MAX, 2 * records),
            max_poll_given=True,
        )
        self._config = config
        assert self._core is not None, "a new consumer has a core"
        self._loop = asyncio.get_running_loop()
        self._threads = Threads(options.concurrency, self._jobs_done, self._threads_refused)
        layers = (options.middleware, self._threads, self._got_stuck, options.around)
        handlers = {topic: with_layers(each, *layers) for topic, each in handlers.items()}
        self._rules = WorkerCore(
            config,
            self._core.member_id,
            self._core.link._chance,
            handlers=handlers,
            concurrency=options.concurrency,
            renew_max_s=options.renew_max_s,
        )
        self._core = self._rules
        self._locks = self._rules.locks
        self._checkpoints = WorkerCheckpoints(self._rules, self._soon)
        self._locks.owner = self._checkpoints
        self._handlers = handlers
        self._options = options
        self._inbox = _Inbox(self)
        self._context: Context = copy_context()
        self._tasks: set[asyncio.Task[None]] = set()
        # Tasks begin in turns: whether one is due, and how many may begin in one.
        self._turn_set = False
        self._turn_most = 1
        # When the last one began, with how many handlers; whether all that began in it finished.
        self._turn_began: float | None = None
        self._turn_jobs = 0
        self._are_straight = False
        self._cycle_set = False
        self._timer: asyncio.TimerHandle | None = None
        self._flush_set = False
        self._flushed_at = -math.inf
        self._cancelling = False
        self._changed = asyncio.Event()
        self._stop_asked = False
        self._is_short = False
        # The exception of a handler that ends the program, or of this worker.
        self._exit: BaseException | None = None
        # Whether the worker failed again: there is no point in a drain.
        self._is_broken = False
        #: Whether to end without a drain.
        self.is_hurried = False

    def state(self) -> dict[str, Any]:
        """The fields of `WorkerState`."""
        locks = self._locks
        return {
            "handlers": locks.jobs - locks.stuck,
            "records": locks.running,
            "waiting": locks.waiting,
            "stuck": locks.stuck,
            "breakers": self._rules.states(),
        }

    # -- one run ------------------------------------------------------------------------------

    def stop(self) -> None:
        """Starts the drain. In the loop."""
        self._stop_asked = True
        self._changed.set()

    def _warn(self, text: str) -> None:
        self._config.logger.log(logging.WARNING, "%s", text)

    def end_by(self, error: BaseException) -> None:
        """Ends the worker by an exception that ends the program: drains, and `run` raises it."""
        if self._exit is not None or not isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self._exit = error
        name = type(error).__name__
        text = f"a handler raised {name}: this worker hands back its records, leaves, and raises it"
        self._warn(text)
        self._rules.begin_stop(monotonic())
        self._soon()

    def _failed(self, error: Exception) -> None:
        """Ends the worker by an error of its own, or of a callback of the application."""
        if self._exit is not None:
            self._is_broken = True
        else:
            self._exit = error
            what = f"{type(error).__name__}: {text_of(error)}"
            self._config.logger.error("this worker fails and ends: %s", what, exc_info=error)
        self._changed.set()

    async def run(self) -> None:
        """Works until `stop` or until a handler ends the program, then drains and leaves.

        Raises:
            KafkaException: The coordinator refused this worker.
            KeyboardInterrupt: A handler raised it.
            SystemExit: A handler raised it.
            Exception: A step of this worker failed, or `error_cb`.
        """
        core = self._rules
        try:
            core.subscribe(list(self._handlers), monotonic())
            self._cycle()
            cancelled = await self._work()
            refused: KafkaException | None = None
            try:
                core.raise_error()
            except KafkaException as error:
                refused = error
            try:
                await self._drain()
            except Exception as error:  # noqa: BLE001 - of what is broken already, as a rule
                self._failed(error)
            for why in (self._exit, refused, cancelled):
                if why is not None:
                    raise why
        finally:
            self._end_now()
            await self._end()

    async def _work(self) -> asyncio.CancelledError | None:
        """Waits for a stop, a failure, or the worker's cancellation, which it returns."""
        try:
            while self._exit is None and not (self._stop_asked or self._rules.failure):
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError as error:
            return error
        return None

    async def _drain(self) -> None:
        core, locks = self._rules, self._locks
        if self.is_hurried or self._is_broken:
            return
        ends_at, handlers_s = math.inf, self._options.drain_timeout_s
        limit = f"drain_timeout_s = {handlers_s:g} s"
        if self._exit is not None:
            ends_at = monotonic() + _EXIT_DRAIN_S
            handlers_s = min(handlers_s, _EXIT_DRAIN_S / 2)
            limit = f"{handlers_s:g} s"
        core.begin_stop(monotonic())
        self._cycle()
        # Handlers that were given up are not waited for.
        if not await self._until(lambda: locks.jobs <= locks.stuck, handlers_s):
            text = (
                f"{locks.jobs - locks.stuck} handlers with {locks.running} records did not finish"
                f" within {limit}; their records come again"
            )
            self._warn(text)
            await self._cancel_tasks()
        # Before the leave, which would count what was on its way here.
        settle_s = min(_SETTLE_S, (ends_at - monotonic()) / 2)
        await self._until(lambda: core.is_settled or not core.link.is_up, settle_s)
        leave_s = min(self._config.close_timeout_s, ends_at - monotonic())
        core.begin_close(monotonic(), leave_s)
        self._cycle()
        if not await self._until(lambda: core.is_close_done, leave_s):
            text = (
                "the coordinator did not confirm the end of this worker: records whose results or"
                " releases have not reached it come again when their locks end"
            )
            self._warn(text)

    async def _until(self, what: Any, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                while not (what() or self._is_broken):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return bool(what())

    async def _cancel_tasks(self) -> None:
        self._cancelling = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_S)

    def _end_now(self) -> None:
        """Stops everything that can be stopped."""
        self._closed = True
        self._cancelling = True
        for task in self._tasks:
            task.cancel()
        self._threads.stop()
        self._checkpoints.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- the cycle ----------------------------------------------------------------------------

    @_guarded
    def _arrived(self, arrival: Arrival) -> None:
        self._rules.arrived(arrival, arrival.received_at)
        self._soon()

    def _soon(self) -> None:
        """Runs a cycle in the next turn of the loop."""
        if not self._cycle_set:
            self._cycle_set = True
            self._loop.call_soon(self._cycle)

    @_guarded
    def _cycle(self) -> None:
        """Runs everything that is due: starts handlers, sends results, opens streams, logs."""
        self._cycle_set = False
        if self._closed:
            return
        core = self._rules
        self._fill()
        # After `_fill`: the records that it starts are busy from then on.
        now = monotonic()
        self._drive(core)
        if now >= self._flushed_at + _FLUSH_S:
            core.publish(now)
            self._flush_set = False
            self._flushed_at = now
            self._drive(core)
        elif self._locks.has_results:
            self._flush_later()
        self._dispatch(core)
        self._changed.set()
        self._arm()

    def _flush_later(self) -> None:
        """Sends results in the next turn, or a little later when some were sent just before."""
        if self._flush_set:
            return
        self._flush_set = True
        wait_s = self._flushed_at + _FLUSH_S - monotonic()
        if wait_s <= 0:
            self._soon()
        else:
            self._loop.call_later(wait_s, self._flush_now)

    def _flush_now(self) -> None:
        # Timers of a loop may fire a moment early: what was waited for counts as over.
        self._flushed_at = -math.inf
        self._soon()

    def _arm(self) -> None:
        """Sets the timer for the next time at which something is due."""
        now = monotonic()
        low, high = _SIGN_S
        at = now + min(high, max(low, self._config.max_poll_interval_ms / 4000))
        wake_at = self._rules.wake_at(now)
        if wake_at is not None:
            at = min(at, wake_at)
        when = self._loop.time() + max(0.0, at - now)
        if self._timer is not None:
            if self._timer.when() <= when and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._cycle()

    # -- handlers -----------------------------------------------------------------------------

    def _fill(self) -> None:
        """Starts handlers, unless a turn is due that does so."""
        if not self._turn_set:
            self._turn()

    @_guarded
    def _turn(self) -> None:
        """Starts handlers for one turn of the loop; comes again once they have begun.

        Async ones begin in tasks of their own, as many in a turn as keep the loop for `_TURN_S`.
        """
        core, locks, now = self._rules, self._locks, monotonic()
        if locks.lines:
            core.peek_lines(now)
        self._learn_turn(now)
        # Handlers that begin at once must not start others in turn.
        self._turn_set = True
        made, self._turn_jobs = 0, locks.jobs
        if self._next() is not None:
            room = locks.startable if self._are_straight else min(core.free, locks.startable)
            made = min(room, self._turn_most)
            for _ in range(made):
                self._begin_call(_EAGER)
        if made:
            self._turn_began = now
            self._loop.call_soon(self._turn)
        else:
            self._turn_set = False

    def _begin_call(self, how: dict[str, Any]) -> None:
        """Starts a task in a context of its own, as the application's was at the start."""
        context = self._context.copy()
        task = asyncio.Task(
            self._call(), loop=self._loop, name="sharecoord-handler", context=context, **how
        )
        if not task.done():
            self._tasks.add(task)

    def _learn_turn(self, now: float) -> None:
        """Learns from the last turn: how long it took, and whether handlers suspend."""
        if self._turn_began is None:
            return
        core, locks, took_s = self._rules, self._locks, now - self._turn_began
        self._turn_began = None
        self._are_straight = locks.jobs <= self._turn_jobs
        if took_s >= _TURN_S:
            self._turn_most = max(1, self._turn_most // 2)
            if locks.startable and core.free:
                # Handlers that compute used the turn up.
                core.demand.computing(locks.running)
        elif 2 * took_s < _TURN_S:
            self._turn_most = min(_TURN_TASKS_MAX, 2 * self._turn_most)

    def _next(self) -> Lease | None:
        """The next record for an async handler; gives those before it to threads."""
        core = self._rules
        if self._cancelling:
            return None
        while (lease := core.head(now := monotonic())) is not None:
            handler = lease.handler
            if handler.is_async:
                return lease
            if handler.batch:
                parts = core.start_batch(lease, now)
                argument: object = _messages(parts)
            else:
                row = self._locks.start(lease)
                parts = [Part(lease, row, row + 1)]
                argument = message_at(lease.columns, row)
            function = handler.function
            error = unopened_in(parts)
            if error is not None:
                function = functools.partial(_refuse, error)
            context = self._context.copy()
            self._threads.submit(Job(function, argument, parts, context))
        return None

    async def _call(self) -> None:
        """The body of a task: calls an async handler with the next record or batch."""
        try:
            await self._call_next()
        except Exception as error:  # noqa: BLE001 - not of the handler, whose errors are settled
            self._failed(error)
        finally:
            self._tasks.discard(asyncio.current_task(self._loop))

    async def _call_next(self) -> None:
        lease = self._next()
        if lease is not None:
            if lease.handler.batch:
                await self._call_batch(lease)
            else:
                row = self._locks.start(lease)
                try:
                    message = message_at(lease.columns, row)
                    if lease.columns.errors:
                        refuse_unopened([Part(lease, row, row + 1)])
                    result = await lease.handler.function(message)
                except BaseException as error:  # noqa: BLE001 - what it raises is its outcome
                    self._raised([Part(lease, row, row + 1)], error)
                else:
                    if result is None and row != lease.probe:
                        self._locks.accept(lease, row)
                    else:
                        self._rules.finish([Part(lease, row, row + 1)], result, monotonic())
            if not self._flush_set:
                self._flush_later()
            if not self._turn_set and self._next() is not None:
                # A new task takes the place of this one, which it must not begin inside.
                self._begin_call({})

    async def _call_batch(self, lease: Lease) -> None:
        parts = self._rules.start_batch(lease, monotonic())
        try:
            messages = _messages(parts)
            refuse_unopened(parts)
            result = await lease.handler.function(messages)
        except BaseException as error:  # noqa: BLE001 - what it raises is its outcome
            self._raised(parts, error)
            return
        self._rules.finish(parts, result, monotonic())

    def _raised(self, parts: list[Part], error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError) and self._cancelling:
            return
        if self.is_hurried and isinstance(error, KeyboardInterrupt | SystemExit):
            # A second signal has raised it, not the handler.
            raise error
        self._settle(parts, error)

    def _settle(self, parts: Iterable[Part], error: BaseException | None) -> None:
        self._rules.settle(list(parts), error, monotonic())
        if error is not None:
            self.end_by(error)

    @_guarded
    def _jobs_done(self) -> None:
        for job in self._threads.take_done():
            if job.future is not None:
                if job.future.cancelled():
                    self._rules.stuck_returned()
                    if job.error is not None:
                        self.end_by(job.error)
                else:
                    job.complete()
            elif job.error is None:
                self._rules.finish(job.parts, job.result, monotonic())
            else:
                self._settle(job.parts, job.error)
        if not self._closed:
            self._fill()
            self._flush_later()
            if self._rules.is_stopping:
                self._soon()

    def _threads_refused(self, error: Exception) -> None:
        """Warns once that the system gives no more threads; they are tried again all the time."""
        if not self._is_short:
            self._is_short = True
            text = (
                f"the system gives no thread for a plain handler ({error}): {self._threads.count}"
                f" of {self._options.concurrency} run, records wait; raise its limit of processes"
                " and threads (ulimit -u, pids.max), or lower concurrency"
            )
            self._warn(text)

    def _got_stuck(self, handler: Handler, argument: Any) -> None:
        if self._cancelling:
            return
        first = argument[0] if handler.batch else argument
        where = f"{first.topic()} [{first.partition()}] offset {first.offset()}"
        self._rules.got_stuck(handler, where)

    # -- what the application hears -----------------------------------------------------------

    def _report(self, outcome: AckOutcome) -> None:
        """Logs results that the coordinator did not take."""
        if outcome.error is None:
            return
        key, offsets = outcome.key, ", ".join(map(_offsets, outcome.spans))
        self._warn(
            f"the result of handler {self._handlers[key.served].name} of {key.topic}"
            f" [{key.partition}] offsets {offsets} is dropped: {outcome.error.str()}"
        )


def _messages(parts: Iterable[Part]) -> list[Message]:
    found: list[Message] = []
    for lease, start, stop in parts:
        found += messages_of(lease.columns, start, stop)
    return found


def _refuse(error: KafkaException, _: object) -> None:
    """Takes the place of a plain handler."""
    raise error


def _offsets(span: Span) -> str:
    first, last = span.columns.offset_at(span.start), span.columns.offset_at(span.stop - 1)
    return str(first) if first == last else f"{first}..{last}"
