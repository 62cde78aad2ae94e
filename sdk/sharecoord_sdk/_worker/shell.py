"""The loop of a worker: stream, timers, slots. The rules are in `core`.

Async handlers run in *slots*: tasks that take record after record as long as something waits, so a
handler that does not suspend costs no task, and one that does frees the loop for the others. A slot
starts others before it calls a handler, so that slots fill up in few turns of the loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Mapping
from contextvars import Context, copy_context
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any, Final

from sharecoord_sdk._async.consumer import AsyncShareConsumer
from sharecoord_sdk._async.stream import Mailbox
from sharecoord_sdk._core.acks import Outcome
from sharecoord_sdk._core.base import Arrival
from sharecoord_sdk._core.columns import Span
from sharecoord_sdk._core.config_table import POLL_RECORDS_MAX
from sharecoord_sdk._core.errors import KafkaException
from sharecoord_sdk._core.records import Message, message_class
from sharecoord_sdk._core.status import StreamFailure

from .calls import Middleware, dressed
from .checkpoints import WorkerKeeper
from .core import WorkerCore
from .handlers import Handler
from .leases import Lease, Part
from .threads import Job, Threads

# Results wait so long for others, when some were sent just before.
_FLUSH_S: Final = 0.005
# Handlers that do not suspend keep the loop for so long at a time.
_TURN_S: Final = 0.003
# A worker that has nothing to say gives a sign of life so often, at most and at least.
_SIGN_S: Final = (0.5, 5.0)
# Handlers that were cancelled have so long to clean up.
_CANCEL_S: Final = 1.0
# The coordinator has so long to confirm before the leave; the leave waits for it once more.
_SETTLE_S: Final = 5.0
# When a handler ends the program the whole drain has so long; handlers that run have half of it.
_EXIT_DRAIN_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker was told beside the configuration of its consumer. Times in seconds."""

    concurrency: int
    renew_max_s: float
    drain_timeout_s: float
    #: Outermost first.
    middleware: tuple[Middleware, ...] = ()


class _Inbox(Mailbox[Arrival]):
    """Hands over what arrives at once: a worker never polls."""

    def __init__(self, shell: Shell) -> None:
        super().__init__()
        self._shell = shell

    def put(self, item: Arrival) -> None:
        self._shell._arrived(item)


class Shell(AsyncShareConsumer):
    """One run of a worker, in the running loop.

    Args:
        conf: As of a consumer.
        handlers: By topic.
        options: See `Options`.
    """

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
        self._threads = Threads(options.concurrency, self._jobs_done)
        handlers = dressed(handlers, options.middleware, self._threads, self._got_stuck)
        self._rules = WorkerCore(
            config,
            self._core.member_id,
            self._core.link._chance,
            handlers=handlers,
            concurrency=options.concurrency,
            renew_max_s=options.renew_max_s,
        )
        self._core = self._rules
        self._hands = self._rules.hands
        self._keeper = WorkerKeeper(self._rules, self._soon)
        self._hands.owner = self._keeper
        self._handlers = handlers
        self._options = options
        self._inbox = _Inbox(self)
        self._context: Context = copy_context()
        self._slots: set[asyncio.Task[None]] = set()
        # Slots that were made and have not run yet.
        self._starting = 0
        # The slot that ran last: a slot that still is has not suspended.
        self._last_slot: object = None
        self._turn_ends = 0.0
        self._cycle_set = False
        self._timer: asyncio.TimerHandle | None = None
        self._flush_set = False
        self._flushed_at = -math.inf
        self._cancelling = False
        self._changed = asyncio.Event()
        self._stop_asked = False
        # What a handler raised to end the program.
        self._exit: BaseException | None = None
        #: Whether to end without a drain.
        self.is_hurried = False

    def state(self) -> dict[str, Any]:
        """What is done right now, as `WorkerState` has it."""
        hands = self._hands
        return {
            "handlers": hands.jobs - hands.stuck,
            "records": hands.running,
            "waiting": hands.waiting,
            "stuck": hands.stuck,
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
        """Ends by what ends the program: drains, and `run` raises it. In the loop, or beside it."""
        if self._exit is not None or not isinstance(error, KeyboardInterrupt | SystemExit):
            return
        self._exit = error
        name = type(error).__name__
        text = f"a handler raised {name}: this worker hands back its records, leaves, and raises it"
        self._warn(text)
        self._rules.begin_stop(monotonic())
        self._soon()

    async def run(self) -> None:
        """Works until `stop` or until a handler ends the program, then drains and leaves.

        Raises:
            KafkaException: The coordinator refused this worker.
            KeyboardInterrupt: A handler raised it.
            SystemExit: A handler raised it.
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
            await self._drain()
            for why in (self._exit, refused, cancelled):
                if why is not None:
                    raise why
        finally:
            self._end_now()
            await self._end()

    async def _work(self) -> asyncio.CancelledError | None:
        """Until somebody asks to stop, in whichever way."""
        try:
            while self._exit is None and not (self._stop_asked or self._rules.failure):
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError as error:
            return error
        return None

    async def _drain(self) -> None:
        core, hands = self._rules, self._hands
        if self.is_hurried:
            return
        ends_at, handlers_s = math.inf, self._options.drain_timeout_s
        limit = f"drain_timeout_s = {handlers_s:g} s"
        if self._exit is not None:
            ends_at = monotonic() + _EXIT_DRAIN_S
            handlers_s = min(handlers_s, _EXIT_DRAIN_S / 2)
            limit = f"{handlers_s:g} s"
        core.begin_stop(monotonic())
        self._cycle()
        # Who was given up is not waited for.
        if not await self._until(lambda: hands.jobs <= hands.stuck, handlers_s):
            text = (
                f"{hands.jobs - hands.stuck} handlers with {hands.running} records did not finish"
                f" within {limit}; their records come again"
            )
            self._warn(text)
            await self._cancel_slots()
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
                while not what():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return bool(what())
        return True

    async def _cancel_slots(self) -> None:
        self._cancelling = True
        slots = list(self._slots)
        for slot in slots:
            slot.cancel()
        if slots:
            await asyncio.wait(slots, timeout=_CANCEL_S)

    def _end_now(self) -> None:
        """Nothing runs after this but what can not be stopped."""
        self._closed = True
        self._cancelling = True
        for slot in self._slots:
            slot.cancel()
        self._threads.stop()
        self._keeper.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- the cycle ----------------------------------------------------------------------------

    def _arrived(self, arrival: Arrival) -> None:
        core = self._rules
        if isinstance(arrival.content, StreamFailure):
            core.stream_ended(arrival.generation, arrival.content, arrival.received_at)
        else:
            core.received(arrival.generation, arrival.content, arrival.received_at)
        self._soon()

    def _soon(self) -> None:
        """Runs a cycle in the next turn of the loop."""
        if not self._cycle_set:
            self._cycle_set = True
            self._loop.call_soon(self._cycle)

    def _cycle(self) -> None:
        """Everything that is due: starts handlers, sends results, opens streams, logs."""
        self._cycle_set = False
        if self._closed:
            return
        core = self._rules
        now = monotonic()
        self._fill(now)
        self._drive(core)
        if now >= self._flushed_at + _FLUSH_S:
            core.publish(now)
            self._flush_set = False
            self._flushed_at = now
            self._drive(core)
        elif self._hands.has_results:
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
        """Sets the timer for what time alone brings about."""
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

    # -- slots --------------------------------------------------------------------------------

    def _fill(self, now: float) -> None:
        """Starts what can be started, for one turn of the loop."""
        if self._hands.lines:
            self._rules.look(now)
        waits = self._hands.startable and self._rules.free
        if self._turn_ends and now >= self._turn_ends and waits:
            # The last turn was used up by handlers that compute.
            self._rules.demand.computing(self._hands.running)
        self._turn_ends = now + _TURN_S
        self._spread(1)

    def _spread(self, most: int) -> None:
        """Makes slots for what waits."""
        starting = self._starting
        wanted = min(most, self._rules.free - starting, self._hands.startable - starting)
        for _ in range(wanted):
            self._starting += 1
            # In a context of its own, as the application's was at the start.
            slot = self._loop.create_task(self._work_slot(), context=self._context.copy())
            self._slots.add(slot)
            slot.add_done_callback(self._slots.discard)

    def _next(self) -> Lease | None:
        """The next record for an async handler; gives those before it to threads."""
        core = self._rules
        while (lease := core.head(now := monotonic())) is not None:
            handler = lease.handler
            if handler.is_async:
                return lease
            if handler.batch:
                parts = core.start_batch(lease, now)
                argument: object = _messages(parts)
            else:
                row = core.start(lease)
                parts = [Part(lease, row, row + 1)]
                argument = message_class(lease.columns)(lease.columns, row)
            self._threads.submit(Job(handler.function, argument, parts))
        return None

    async def _work_slot(self) -> None:
        """Runs async handlers until nothing waits, or the turn is over."""
        self._starting -= 1
        self._spread(2)
        hands = self._hands
        accept, start = hands.accept, hands.start
        clean = copy_context()
        me = object()
        while (lease := self._next()) is not None:
            if not self._starting:
                self._spread(1)
            self._last_slot = me
            if lease.handler.batch:
                if not await self._run_batch(lease):
                    return
            else:
                row = start(lease)
                try:
                    message = message_class(lease.columns)(lease.columns, row)
                    result = await lease.handler.function(message)
                except BaseException as error:  # noqa: BLE001 - what it raises is its outcome
                    if not self._raised([Part(lease, row, row + 1)], error):
                        return
                else:
                    if result is None and row != lease.probe:
                        accept(lease, row)
                    else:
                        self._rules.finish([Part(lease, row, row + 1)], result, monotonic())
            if not self._flush_set:
                self._flush_later()
            if copy_context() != clean:
                # What a handler left in the context is not for the next record.
                self._soon()
                return
            if self._last_slot is me and monotonic() >= self._turn_ends:
                self._soon()
                return

    async def _run_batch(self, lease: Lease) -> bool:
        """Runs a handler of batches; False when this slot is to end."""
        parts = self._rules.start_batch(lease, monotonic())
        try:
            result = await lease.handler.function(_messages(parts))
        except BaseException as error:  # noqa: BLE001 - what it raises is its outcome
            return self._raised(parts, error)
        self._rules.finish(parts, result, monotonic())
        return True

    def _raised(self, parts: list[Part], error: BaseException) -> bool:
        """An async handler raised; False when this slot is to end."""
        if isinstance(error, asyncio.CancelledError) and self._cancelling:
            return False
        if self.is_hurried and isinstance(error, KeyboardInterrupt | SystemExit):
            # Of a signal, and not of the handler.
            raise error
        self._settle(parts, error)
        return True

    def _settle(self, parts: Iterable[Part], error: BaseException | None) -> None:
        self._rules.settle(list(parts), error, monotonic())
        if error is not None:
            self._config.logger.log(logging.DEBUG, "traceback of a handler", exc_info=error)
            self.end_by(error)

    def _jobs_done(self) -> None:
        """Threads finished handlers."""
        for job in self._threads.take_done():
            if job.future is not None:
                if job.future.cancelled():
                    self._rules.came_back()
                    if job.error is not None:
                        self.end_by(job.error)
                else:
                    job.tell()
            elif job.error is None:
                self._rules.finish(job.parts, job.result, monotonic())
            else:
                self._settle(job.parts, job.error)
        if not self._closed:
            self._fill(monotonic())
            self._flush_later()
            if self._rules.is_stopping:
                self._soon()

    def _got_stuck(self, handler: Handler, argument: Any) -> None:
        """A plain handler is not waited for any more."""
        if self._cancelling:
            return
        first = argument[0] if handler.batch else argument
        where = f"{first.topic()} [{first.partition()}] offset {first.offset()}"
        self._rules.got_stuck(handler, where)

    # -- what the application hears -----------------------------------------------------------

    def _report(self, outcome: Outcome) -> None:
        """Results that the coordinator did not take."""
        if outcome.error is None:
            return
        key = outcome.key
        name = self._handlers[key.served].name
        offsets = ", ".join(map(_offsets, outcome.spans))
        self._config.logger.log(
            logging.WARNING,
            "the result of handler %s of %s [%d] offsets %s is dropped: %s",
            name,
            key.topic,
            key.partition,
            offsets,
            outcome.error.str(),
        )


def _messages(parts: Iterable[Part]) -> list[Message]:
    return [
        make(columns, row)
        for lease, start, stop in parts
        for columns, make in ((lease.columns, message_class(lease.columns)),)
        for row in range(start, stop)
    ]


def _offsets(span: Span) -> str:
    first, last = span.columns.offset_at(span.start), span.columns.offset_at(span.stop - 1)
    return str(first) if first == last else f"{first}..{last}"
