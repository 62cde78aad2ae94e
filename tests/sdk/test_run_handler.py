"""`run_handler` answers as a worker does: every case runs in both, and must become the same."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from sharecoord_sdk import AcknowledgeType, Backoff, BatchOutcome, Message, Reject, Retry, Worker
from sharecoord_sdk.testing import make_message, make_messages, run_handler, run_handler_async

from tests.sdk.fake_coordinator import make_batch
from tests.sdk.worker_running import Make

CONF = {"bootstrap.servers": "localhost:7070", "group.id": "g"}
FOREVER = threading.Event()
Next = Callable[[Any], Awaitable[Any]]


@dataclass
class Order:
    id: int


async def shout(message: Message, call_next: Next) -> Any:
    message.set_value(message.value().upper())
    return await call_next(message)


async def forgive(message: Message, call_next: Next) -> Any:
    try:
        return await call_next(message)
    except KeyError:
        return None


async def forbid(message: Message, call_next: Next) -> Any:
    raise PermissionError("not you")


async def convert(message: Message, call_next: Next) -> Any:
    try:
        return await call_next(message)
    except TimeoutError as error:
        raise Reject("too slow") from error


async def decode(message: Message, call_next: Next) -> Any:
    message.set_value(json.loads(message.value()))
    return await call_next(message)


def fails(error: BaseException | type[BaseException]) -> Callable[[Message], None]:
    def handle(message: Message) -> None:
        raise error

    return handle


def returns(result: object) -> Callable[[Message], object]:
    return lambda message: result


def needs_text(message: Message) -> None:
    if message.value() != b"VALUE":
        raise ValueError(message.value())


def takes_order(order: Order) -> None:
    if order.id != 7:
        raise ValueError("not seven")


async def sleeps(message: Message) -> None:
    await asyncio.sleep(60)


def hangs(message: Message) -> None:
    FOREVER.wait(5)


async def is_cancelled(message: Message) -> None:
    raise asyncio.CancelledError


def by_attempt(message: Message, attempt: int) -> Any:
    return Reject("worn out") if attempt >= 3 else attempt * 10


def broken_rule(message: Message, attempt: int) -> Any:
    raise ZeroDivisionError


STEADY = Backoff(first_s=2, multiplier=3, max_s=60, jitter=0)
CASES: dict[str, tuple[Callable[..., Any], dict[str, Any], bytes]] = {
    "accepted": (needs_text, {}, b"VALUE"),
    "released": (needs_text, {}, b"value"),
    "on_error": (fails(ValueError("bad")), {"on_error": {ValueError: Reject}}, b""),
    "on_error by class": (
        fails(FileNotFoundError("x")),
        {"on_error": {OSError: Retry(7), FileNotFoundError: Reject("gone"), Exception: Retry}},
        b"",
    ),
    "on_error of others": (fails(KeyError("x")), {"on_error": {ValueError: Reject}}, b""),
    "retry": (fails(OSError("down")), {"retry": STEADY}, b""),
    "retry by function": (fails(OSError("down")), {"retry": by_attempt}, b""),
    "retry that fails": (fails(OSError("down")), {"retry": broken_rule}, b""),
    "retry after on_error": (
        fails(OSError("down")),
        {"retry": STEADY, "on_error": {OSError: Retry(1)}},
        b"",
    ),
    "raised outcomes": (fails(Retry(5, "busy")), {"retry": STEADY}, b""),
    "returned outcomes": (returns(Reject("no")), {"retry": STEADY}, b""),
    "returned errors": (returns(OSError("x")), {"retry": STEADY}, b""),
    "returned coroutines": (lambda message: sleeps(message), {}, b""),
    "returned generators": (returns(each for each in ()), {}, b""),
    "cancelled": (is_cancelled, {}, b""),
    "a long reason": (fails(ValueError("x" * 1000)), {}, b""),
    "a surrogate": (fails(Reject("caf\udce9")), {}, b""),
    "timeout": (sleeps, {"timeout": 0.05}, b""),
    "timeout of a thread": (hangs, {"timeout": 0.05, "on_error": {TimeoutError: Reject}}, b""),
    "timeout and retry": (sleeps, {"timeout": 0.05, "retry": STEADY}, b""),
    "middleware": (needs_text, {"middleware": [shout]}, b"value"),
    "middleware catches": (fails(KeyError("x")), {"middleware": [shout, forgive]}, b""),
    "middleware refuses": (
        needs_text,
        {"middleware": [forgive, forbid], "on_error": {PermissionError: Reject}},
        b"",
    ),
    "middleware and timeout": (sleeps, {"middleware": [convert], "timeout": 0.05}, b""),
    "a value": (takes_order, {"on_error": {ValueError: Retry(3)}}, b'{"id": 8, "new": 1}'),
    "a bad value": (takes_order, {"on_error": {ValueError: Retry(3)}}, b"{}"),
    "on_bad_value": (takes_order, {"on_bad_value": Retry(9)}, b"{}"),
    "a value of middleware": (takes_order, {"middleware": [decode]}, b'{"id": 7}'),
}


def registered(worker: Worker, function: Any, settings: dict[str, Any]) -> None:
    options = dict(settings)
    for each in options.pop("middleware", ()):
        worker.middleware(each)
    worker.handler("t", **options)(function)


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_it_answers_as_a_worker_does(case: str, attempt: int, make: Make) -> None:
    function, settings, value = CASES[case]
    running = make()
    registered(running.worker, function, settings)
    stream = running.start()
    stream.send(make_batch([value], delivery_count=attempt))
    (ack,) = stream.wait_acks(1)
    running.stop()

    def message() -> Message:
        return make_message(value, topic="t", delivery_count=attempt)

    for outcome in (
        run_handler(function, message(), **settings),
        run_handler(function, message(), worker=running.worker),
        asyncio.run(run_handler_async(function, message(), **settings)),
    ):
        found = (outcome.type.name, outcome.delay_ms, outcome.reason)
        assert found == (ack.kind, ack.delay_ms, ack.reason)


def test_what_was_raised_is_told_with_what_it_becomes() -> None:
    outcome = run_handler(fails(OSError("down")), make_message(), on_error={OSError: Reject("off")})
    assert (outcome.type, outcome.reason) == (AcknowledgeType.REJECT, "off")
    assert isinstance(outcome.error, OSError)
    with pytest.raises(SystemExit):
        run_handler(fails(SystemExit), make_message())


def test_a_back_off_is_told_without_jitter() -> None:
    retry = Backoff(first_s=2, jitter=0.5)
    delays = [
        run_handler(fails(OSError()), make_message(delivery_count=at), retry=retry).delay_ms
        for at in (1, 2, 3)
    ]
    assert delays == [2000, 4000, 8000]


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_batches_are_lists_with_retry_by_record(kind: str) -> None:
    seen: list[Any] = []

    def handle(messages: list[Message]) -> BatchOutcome:
        seen.append(type(messages))
        return BatchOutcome({1: OSError("down")})

    async def handle_async(messages: list[Message]) -> BatchOutcome:
        return handle(messages)

    batch = make_messages([b"a", b"b"])
    outcome = run_handler(handle if kind == "plain" else handle_async, batch, retry=STEADY)
    assert (outcome.type, outcome.delay_ms) == (AcknowledgeType.RELEASE, 2000)
    assert seen == [list]


def test_the_handler_of_a_worker_is_found_by_function_and_topic() -> None:
    worker = Worker(CONF)

    @worker.handler("orders", on_error={ValueError: Reject})
    @worker.handler("returns", on_error={ValueError: Retry(4)})
    async def handle(order: Order) -> None:
        raise ValueError(order.id)

    @worker.handler("bills", batch=10)
    def store(orders: list[Order]) -> Any:
        return [Reject("no")] * len(orders)

    body = b'{"id": 7}'
    orders, returns = (make_message(body, topic=topic) for topic in ("orders", "returns"))
    assert run_handler(handle, orders, worker=worker).type is AcknowledgeType.REJECT
    assert run_handler(handle, returns, worker=worker).delay_ms == 4000
    with pytest.raises(ValueError, match=r"no handler .*handle \(topic 'bills'\)"):
        run_handler(handle, make_message(body, topic="bills"), worker=worker)
    with pytest.raises(ValueError, match="no handler needs_text"):
        run_handler(needs_text, orders, worker=worker)
    # The only one needs no topic.
    assert run_handler(store, make_messages([body]), worker=worker).reason == "no"
    with pytest.raises(TypeError, match="store takes batches: give make_messages"):
        run_handler(store, orders, worker=worker)
    with pytest.raises(TypeError, match="handle takes one: make_message"):
        run_handler(handle, make_messages([body], topic="orders"), worker=worker)
    for wrong in ({"timeout": 5}, {"middleware": [shout]}):
        with pytest.raises(TypeError, match=f"{next(iter(wrong))} and worker= do not go together"):
            run_handler(handle, orders, worker=worker, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"timeout": -1}, {"retry": 5}, {"on_error": {ValueError: 5}}])
def test_wrong_arguments_are_told(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(wrong))):
        run_handler(needs_text, make_message(), **wrong)


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_tracing_of_the_worker_is_on(kind: str) -> None:
    provider = TracerProvider(shutdown_on_exit=False)
    worker, names = Worker(CONF, tracing=provider), list[str]()

    def handle(message: Message) -> None:
        names.append(trace.get_current_span().name)  # type: ignore[attr-defined]

    async def handle_async(message: Message) -> None:
        handle(message)

    function = handle if kind == "plain" else handle_async
    worker.handler("t")(function)
    assert run_handler(function, make_message(5), worker=worker).error is None  # type: ignore[arg-type]
    provider.shutdown()
    assert names == ["process t"]
