"""What is around a handler: time limits, middleware, threads that do not come back, its state."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sharecoord_sdk import (
    Backoff,
    Breaker,
    IllegalStateException,
    Message,
    Reject,
    Retry,
    Worker,
    WorkerState,
)

from tests.sdk.fake_coordinator import Ack, make_batch
from tests.sdk.worker_running import PATIENCE_S, Gate, Make, values, wait_covered
from tests.support import eventually

CONF = {"bootstrap.servers": "a:1", "group.id": "g"}
CallNext = Callable[[Any], Awaitable[Any]]


def plain_or_async(kind: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The function, or a coroutine function that calls it."""

    async def call(argument: Any) -> Any:
        return function(argument)

    return call if kind == "async" else function


# -- time limits ------------------------------------------------------------------------------


def test_an_async_handler_that_takes_too_long_is_cancelled(make: Make) -> None:
    running = make(concurrency=1)
    ended: list[str] = []

    @running.worker.handler("t", timeout=0.02)
    async def handle(message: Message) -> None:
        if message.value() == b"0":
            try:
                await asyncio.sleep(PATIENCE_S)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

    stream = running.start()
    stream.send(make_batch(values(2)))
    assert wait_covered(stream, 2) == [0, 1]
    first = min(stream.acks(), key=lambda ack: ack.first)
    assert first.kind == "RELEASE"
    assert first.reason.startswith("TimeoutError: handler ")
    assert first.reason.endswith("handle took longer than timeout = 0.02 s")
    assert ended == ["cancelled"]
    assert running.worker.state().stuck == 0


def test_a_time_limit_of_the_handler_itself_is_its_own(make: Make) -> None:
    running = make()

    @running.worker.handler("t", timeout=PATIENCE_S, on_error={TimeoutError: Retry(3)})
    async def handle(message: Message) -> None:
        raise TimeoutError("of a socket")

    stream = running.start()
    stream.send(make_batch([b"a"]))
    (ack,) = stream.wait_acks(1)
    assert (ack.kind, ack.delay_ms, ack.reason) == ("RELEASE", 3000, "TimeoutError: of a socket")


def test_a_plain_handler_that_takes_too_long_keeps_its_slot_and_no_more(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    running = make(concurrency=2)
    gate = threading.Event()
    ran: list[bytes | None] = []

    @running.worker.handler("t", timeout=0.05)
    def handle(message: Message) -> None:
        if message.value() == b"0":
            gate.wait(PATIENCE_S)
        ran.append(message.value())

    stream = running.start()
    stream.send(make_batch(values(4)))
    assert wait_covered(stream, 4) == [0, 1, 2, 3]
    kinds = {ack.first: ack.kind for ack in stream.acks()}
    assert kinds[0] == "RELEASE"
    assert running.worker.state() == WorkerState(handlers=0, records=0, waiting=0, stuck=1)
    (error,) = [r.message for r in caplog.records if "does not return" in r.message]
    assert "handle of t [0] offset 0" in error
    assert "1 of 2 slots are lost" in error
    gate.set()
    eventually(lambda: running.worker.state().stuck == 0, PATIENCE_S)
    stream.send(make_batch(values(2), base=4, token=2))
    assert wait_covered(stream, 6) == [0, 1, 2, 3, 4, 5]
    assert sorted(filter(None, ran)) == [b"0", b"0", b"1", b"1", b"2", b"3"]


def test_a_drain_does_not_wait_for_a_handler_that_was_given_up(make: Make) -> None:
    running = make(concurrency=1, drain_timeout_s=PATIENCE_S)
    gate = threading.Event()

    @running.worker.handler("t", timeout=0.02)
    def handle(message: Message) -> None:
        gate.wait(PATIENCE_S)

    stream = running.start()
    stream.send(make_batch([b"a"]))
    assert wait_covered(stream, 1) == [0]
    running.stop()
    assert stream.requests[-1].leave
    gate.set()


# -- middleware -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_middleware_is_called_in_the_order_in_which_it_was_registered(
    kind: str, make: Make
) -> None:
    running = make(concurrency=1)
    seen: list[str] = []
    outer: contextvars.ContextVar[str] = contextvars.ContextVar("outer", default="nothing")

    @running.worker.middleware
    async def first(message: Message, call_next: CallNext) -> Any:
        seen.append("first in")
        outer.set("set by first")
        try:
            return await call_next(message)
        finally:
            seen.append("first out")

    @running.worker.middleware
    async def second(message: Message, call_next: CallNext) -> Any:
        seen.append("second in")
        result = await call_next(message)
        seen.append("second out")
        return result

    def handle(message: Message) -> None:
        seen.append(f"handler, {outer.get()}")

    running.worker.handler("t")(plain_or_async(kind, handle))
    stream = running.start()
    stream.send(make_batch([b"a"]))
    (ack,) = stream.wait_acks(1)
    assert ack.kind == "ACCEPT"
    assert seen == [
        "first in",
        "second in",
        "handler, set by first",
        "second out",
        "first out",
    ]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_middleware_sees_errors_and_what_it_raises_is_the_outcome(kind: str, make: Make) -> None:
    running = make()

    @running.worker.middleware
    async def translate(message: Message, call_next: CallNext) -> Any:
        try:
            return await call_next(message)
        except KeyError as error:
            raise Reject(f"no {error}") from error

    def handle(message: Message) -> None:
        raise KeyError("customer")

    running.worker.handler("t")(plain_or_async(kind, handle))
    stream = running.start()
    stream.send(make_batch([b"a"]))
    (ack,) = stream.wait_acks(1)
    assert (ack.kind, ack.reason) == ("REJECT", "no 'customer'")


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_middleware_of_a_batch_gets_the_list_and_passes_outcomes_on(kind: str, make: Make) -> None:
    running = make(concurrency=1)
    sizes: list[int] = []

    @running.worker.middleware
    async def count(messages: list[Message], call_next: CallNext) -> Any:
        sizes.append(len(messages))
        return await call_next(messages)

    def handle(messages: list[Message]) -> Any:
        return [None, Reject("second"), None]

    running.worker.handler("t", batch=3)(plain_or_async(kind, handle))
    stream = running.start()
    stream.send(make_batch(values(3)))
    assert wait_covered(stream, 3) == [0, 1, 2]
    assert sorted(stream.acks(), key=lambda ack: ack.first) == [
        Ack("t", 0, 0, 0, "ACCEPT", 1),
        Ack("t", 0, 1, 1, "REJECT", 1, 0, "second"),
        Ack("t", 0, 2, 2, "ACCEPT", 1),
    ]
    assert sizes == [3]


def test_a_plain_batch_handler_returns_outcomes_without_middleware(make: Make) -> None:
    running = make(concurrency=1)
    running.worker.handler("t", batch=3)(lambda messages: [None, Retry(1), None])
    stream = running.start()
    stream.send(make_batch(values(3)))
    assert wait_covered(stream, 3) == [0, 1, 2]
    assert {ack.first: ack.kind for ack in stream.acks()}[1] == "RELEASE"


@pytest.mark.parametrize("error", [StopIteration(), asyncio.CancelledError(), GeneratorExit()])
def test_what_no_loop_takes_from_a_thread_is_a_failure_of_its_record(
    error: BaseException, make: Make
) -> None:
    running = make(concurrency=1)

    def handle(message: Message) -> None:
        if message.value() == b"0":
            raise error

    running.worker.handler("t", timeout=PATIENCE_S)(handle)
    stream = running.start()
    stream.send(make_batch(values(2)))
    assert wait_covered(stream, 2) == [0, 1]
    first = min(stream.acks(), key=lambda ack: ack.first)
    assert first.kind == "RELEASE"
    assert f"raised {type(error).__name__}" in first.reason


def test_middleware_that_can_not_be_is_refused(make: Make) -> None:
    worker = Worker(CONF)
    for wrong in (lambda message, call_next: None, 5, "f"):
        with pytest.raises(TypeError, match="must be an `async def` function"):
            worker.middleware(wrong)  # type: ignore[type-var]
    running = make()
    running.worker.handler("t")(Gate.pass_through)
    running.start()

    async def late(message: Message, call_next: CallNext) -> Any:
        return await call_next(message)

    with pytest.raises(IllegalStateException, match="before the worker runs"):
        running.worker.middleware(late)


def test_an_async_handler_that_forgets_to_await_is_told_so(make: Make) -> None:
    async def inner(message: Message) -> None:
        raise AssertionError("never awaited")

    running = make()

    @running.worker.handler("t")
    async def handle(message: Message) -> Any:
        return inner(message)

    stream = running.start()
    stream.send(make_batch([b"a"]))
    (ack,) = stream.wait_acks(1)
    assert ack.kind == "RELEASE"
    assert "that nobody runs" in ack.reason


# -- order, rates, breakers with threads and tasks --------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_records_of_a_key_run_one_at_a_time(kind: str, make: Make) -> None:
    running = make(concurrency=4)
    gate = Gate()
    handler = gate.plain if kind == "plain" else gate.coroutine
    running.worker.handler("t", ordering="key")(handler)
    stream = running.start()
    stream.send(make_batch(values(4), keys=[b"a", b"b", b"a", b"b"]))
    assert sorted(gate.wait_inside(2)) == [b"0", b"1"]
    gate.let(b"1")
    gate.wait_for(b"3")
    assert sorted(gate.inside) == [b"0", b"3"]
    gate.let(b"0")
    gate.wait_for(b"2")
    gate.let_all()
    assert wait_covered(stream, 4) == [0, 1, 2, 3]
    assert gate.most == 2


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_many_records_of_few_keys_all_run_in_order(kind: str, make: Make) -> None:
    running = make(concurrency=8)
    order: dict[bytes | None, list[int]] = {}

    def handle(message: Message) -> None:
        order.setdefault(message.key(), []).append(message.offset() or 0)

    running.worker.handler("t", ordering="key")(plain_or_async(kind, handle))
    stream = running.start()
    keys: list[bytes | None] = [b"%d" % (at * at % 5) for at in range(300)]
    for base in range(0, 300, 60):
        part = keys[base : base + 60]
        stream.send(make_batch(values(60), keys=part, base=base, token=base + 1))
    assert wait_covered(stream, 300) == list(range(300))
    assert all(offsets == sorted(offsets) for offsets in order.values())
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}


def test_a_rate_is_kept_and_the_rest_comes(make: Make) -> None:
    running = make()
    ran: list[int] = []
    running.worker.handler("t", rate_per_s=200.0)(lambda message: ran.append(message.offset()))
    stream = running.start()
    stream.send(make_batch(values(40)))
    assert wait_covered(stream, 40) == list(range(40))
    assert ran == list(range(40))


def test_a_breaker_opens_is_seen_and_closes(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sharecoord_sdk")
    running = make(concurrency=1)
    is_down = True

    @running.worker.handler("t", breaker=Breaker(failures=2, probe_after_s=0.05))
    async def handle(message: Message) -> None:
        if is_down:
            raise OSError("down")

    stream = running.start()
    stream.send(make_batch(values(6)))
    assert wait_covered(stream, 6) == list(range(6))
    assert [(ack.last, ack.kind) for ack in sorted(stream.acks(), key=lambda a: a.first)] == [
        (1, "RELEASE"),
        (5, "RETURN"),
    ]
    is_down = False
    eventually(lambda: running.worker.state().breakers == {"t": "probing"}, PATIENCE_S)
    stream.send(make_batch(values(3), base=6, token=2))
    assert wait_covered(stream, 9) == list(range(9))
    eventually(lambda: running.worker.state().breakers == {"t": "closed"}, PATIENCE_S)
    texts = [r.message for r in caplog.records if r.message.startswith("the breaker of")]
    assert ["opens" in texts[0], "one record try" in texts[1], "closes" in texts[2]] == [True] * 3


# -- wrong arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"ordering": "topic"}, ValueError, "ordering must be 'key', 'partition' or None"),
        ({"retry": 5}, TypeError, "retry must be Backoff"),
        ({"on_error": {int: Reject}}, TypeError, "on_error has exception classes"),
        ({"timeout": -1}, ValueError, "timeout must be 0.001 to"),
        ({"rate_per_s": "many"}, TypeError, "rate_per_s must be a number"),
        ({"rate_per_key_per_s": 0}, ValueError, "rate_per_key_per_s must be"),
        ({"breaker": True}, TypeError, "breaker must be Breaker"),
        ({"retries": 5}, TypeError, "retries"),
    ],
)
def test_wrong_arguments_are_told_where_they_stand(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        Worker(CONF).handler("t", **arguments)


def test_a_generator_is_no_handler() -> None:
    def plain(message: Message) -> Any:
        yield message

    async def asynchronous(message: Message) -> Any:
        yield message

    for wrong in (plain, asynchronous):
        with pytest.raises(TypeError, match="must not be a generator"):
            Worker(CONF).handler("t")(wrong)


def test_a_worker_that_does_not_run_has_no_state() -> None:
    worker = Worker(CONF)
    worker.handler("t", retry=Backoff(), breaker=Breaker())(Gate.pass_through)
    assert worker.state() == WorkerState()
