"""`Worker` from outside: handlers, slots, wrong arguments; a test plays the coordinator."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import threading
from typing import Any

import pytest
from sharecoord_sdk import (
    IllegalStateException,
    KafkaException,
    Message,
    Reject,
    Retry,
    Worker,
)

from tests.sdk.fake_coordinator import Ack, make_batch
from tests.sdk.worker_running import PATIENCE_S, Gate, Make, covered, gated, values, wait_covered
from tests.support import eventually

# -- handlers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_what_handlers_do_is_acknowledged(
    kind: str, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "sharecoord_sdk")
    running = make()

    def handle(message: Message) -> None:
        match message.value():
            case b"1":
                raise Retry(after_s=5)
            case b"2":
                raise Reject("not an order")
            case b"3":
                raise RuntimeError("bug")
            case _:
                return

    async def handle_async(message: Message) -> None:
        handle(message)

    running.worker.handler("t")(handle if kind == "plain" else handle_async)
    stream = running.start()
    assert list(stream.join.topics) == ["t"]
    stream.send(make_batch(values(5), token=3))
    assert wait_covered(stream, 5) == [0, 1, 2, 3, 4]
    by_offset = sorted(stream.acks(), key=lambda ack: ack.first)
    assert by_offset == [
        Ack("t", 0, 0, 0, "ACCEPT", 3),
        Ack("t", 0, 1, 1, "RELEASE", 3, 5000),
        Ack("t", 0, 2, 2, "REJECT", 3, 0, "not an order"),
        Ack("t", 0, 3, 3, "RELEASE", 3, 0, "RuntimeError: bug"),
        Ack("t", 0, 4, 4, "ACCEPT", 3),
    ]
    running.stop()
    errors = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert len(errors) == 1
    assert "handle" in errors[0].message
    assert "t [0] offset 3" in errors[0].message
    assert errors[0].exc_info is not None
    assert errors[0].exc_info[2] is not None, "the stack is there by default"
    traces = [r.exc_info[0] for r in caplog.records if r.exc_info]
    assert sorted(t.__name__ for t in traces if t) == ["Reject", "Retry", "RuntimeError"]
    assert stream.requests[-1].leave


@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_batch_handler_gets_lists(kind: str, make: Make) -> None:
    running = make(concurrency=1)
    sizes: list[int] = []

    def handle(messages: list[Message]) -> None:
        assert isinstance(messages, list)
        sizes.append(len(messages))
        if any(message.value() == b"7" for message in messages):
            raise Reject("one of them")

    async def handle_async(messages: list[Message]) -> None:
        handle(messages)

    running.worker.handler("t", batch=4)(handle if kind == "plain" else handle_async)
    stream = running.start()
    stream.send(make_batch(values(10)))
    assert wait_covered(stream, 10) == list(range(10))
    assert sizes == [4, 4, 2]
    rejected = [ack for ack in stream.acks() if ack.kind == "REJECT"]
    assert covered(rejected) == [4, 5, 6, 7]


def test_partials_and_callable_objects_are_handlers(make: Make) -> None:
    class Handler:
        async def __call__(self, message: Message) -> None:
            await asyncio.sleep(0)

    async def with_prefix(prefix: str, message: Message) -> None:
        await asyncio.sleep(0)

    running = make()
    running.worker.handler("t")(Handler())
    running.worker.handler("u")(functools.partial(with_prefix, "x"))
    stream = running.start()
    stream.send(make_batch(values(2)), make_batch(values(2), topic="u"))
    stream.wait_for(lambda s: len({ack.topic for ack in s.acks()}) == 2)
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}


def test_a_plain_function_that_returns_an_awaitable_is_told_so(make: Make) -> None:
    async def inner() -> None:
        raise AssertionError("never awaited")

    running = make()
    running.worker.handler("t")(lambda message: inner())
    stream = running.start()
    stream.send(make_batch([b"a"]))
    (ack,) = stream.wait_acks(1)
    assert ack.kind == "RELEASE"
    assert "async def" in ack.reason


def test_async_handlers_have_a_task_of_asyncio(make: Make) -> None:
    """Time limits and task groups work from the first line of a handler on."""
    running = make(concurrency=5)

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))
        try:
            async with asyncio.timeout(0):
                await asyncio.sleep(PATIENCE_S)
        except TimeoutError:
            return
        raise AssertionError("no time limit")

    stream = running.start()
    stream.send(make_batch(values(20)))
    assert wait_covered(stream, 20) == list(range(20))
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}


@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("kind", ["async", "plain"])
def test_a_handler_finds_nothing_of_the_last_one_in_its_context(
    make: Make, kind: str, *, suspends: bool
) -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="")
    seen: list[str] = []
    running = make(concurrency=1)

    def handle(message: Message) -> None:
        seen.append(variable.get())
        variable.set(str(message.value()))

    async def handle_async(message: Message) -> None:
        handle(message)
        if suspends:
            await asyncio.sleep(0)

    running.worker.handler("t")(handle if kind == "plain" else handle_async)
    stream = running.start()
    stream.send(make_batch(values(5)))
    wait_covered(stream, 5)
    assert seen == [""] * 5


def test_a_handler_that_is_cancelled_from_inside_has_failed(make: Make) -> None:
    running = make()

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        raise asyncio.CancelledError

    stream = running.start()
    stream.send(make_batch([b"a"]))
    (ack,) = stream.wait_acks(1)
    assert ack.kind == "RELEASE"


# -- slots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_a_free_slot_is_filled_while_the_others_go_on(kind: str, make: Make) -> None:
    gate, stream = gated(make(concurrency=3), kind, 6)
    assert sorted(gate.wait_inside(3)) == [b"0", b"1", b"2"]
    gate.let(b"1")
    gate.wait_for(b"3")
    assert stream.wait_acks(1) == [Ack("t", 0, 1, 1, "ACCEPT", 1)], "before the others end"
    gate.let(b"3")
    gate.wait_for(b"4")
    assert set(gate.wait_inside(3)) == {b"0", b"2", b"4"}
    gate.let_all()
    assert wait_covered(stream, 6) == list(range(6))
    assert gate.most == 3


def test_slots_are_shared_by_async_and_plain_handlers(make: Make) -> None:
    gate = Gate()
    running = make(concurrency=4)
    running.worker.handler("t")(gate.plain)
    running.worker.handler("u")(gate.coroutine)
    stream = running.start()
    for number in range(6):
        stream.send(
            make_batch([b"t%d" % number], base=number),
            make_batch([b"u%d" % number], topic="u", base=number),
        )
    gate.wait_inside(4)
    gate.let_all()
    assert len(wait_covered(stream, 12)) == 12
    assert gate.most == 4


def test_threads_are_made_when_they_are_needed(make: Make) -> None:
    gate = Gate()
    running = make(concurrency=50)
    running.worker.handler("t")(gate.plain)
    stream = running.start()

    def threads() -> int:
        return sum(t.name.startswith("sharecoord-handler") for t in threading.enumerate())

    before = threads()
    stream.send(make_batch(values(3)))
    gate.wait_inside(3)
    assert threads() - before == 3
    gate.let_all()
    wait_covered(stream, 3)
    running.stop()
    eventually(lambda: threads() == before, PATIENCE_S)


def test_ten_thousand_async_handlers_at_a_time(make: Make) -> None:
    gate = Gate()
    running = make(concurrency=10_000)
    running.worker.handler("t")(gate.coroutine)
    stream = running.start()
    for base in range(0, 10_500, 500):
        stream.send(make_batch([b"%d" % (base + i) for i in range(500)], base=base, token=base + 1))
    gate.wait_inside(10_000)
    assert stream.acks() == []
    gate.let_all()
    assert wait_covered(stream, 10_500) == list(range(10_500))
    assert gate.most == 10_000


def test_handlers_that_never_suspend_leave_the_loop_to_others(make: Make) -> None:
    """Others have their turns while a backlog is worked off."""
    running = make()
    turns = 0
    told: list[int] = []

    def take_a_turn() -> None:
        nonlocal turns
        turns += 1
        asyncio.get_running_loop().call_later(0.001, take_a_turn)

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        if not told:
            take_a_turn()
        told.append(turns)

    stream = running.start()
    stream.send(*(make_batch(values(1000), base=base) for base in range(0, 20_000, 1000)))
    stream.wait_for(lambda s: len(told) == 20_000)
    assert told[-1] > 2, "20,000 handlers take many times 3 ms"


# -- what can not be --------------------------------------------------------------------------


def new_worker(conf: dict[str, Any] | None = None, **settings: Any) -> Worker:
    return Worker({"group.id": "g", **(conf or {})}, **settings)


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"concurrency": 0}, ValueError, "concurrency must be 1 to"),
        ({"concurrency": 2.0}, TypeError, "concurrency must be int"),
        ({"concurrency": True}, TypeError, "concurrency must be int"),
        ({"renew_max_s": -1}, ValueError, "renew_max_s"),
        ({"renew_max_s": float("inf")}, ValueError, "renew_max_s"),
        ({"drain_timeout_s": "1"}, TypeError, "drain_timeout_s"),
        ({"parallel": 3}, TypeError, "parallel"),
        ({"conf": {"max.poll.records": 5}}, ValueError, "max.poll.records.*concurrency"),
        ({"conf": {"share.acknowledgement.mode": "implicit"}}, ValueError, "acknowledgement.mode"),
        ({"conf": {"concurrency": 5}}, KafkaException, "concurrency"),
    ],
)
def test_arguments_that_can_not_be(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        new_worker(**settings)


def test_a_worker_needs_a_group_and_a_handler() -> None:
    with pytest.raises(ValueError, match=r"group\.id"):
        Worker({})
    with pytest.raises(IllegalStateException, match="needs a handler"):
        new_worker().run()


@pytest.mark.parametrize(
    ("topic", "settings", "error", "text"),
    [
        (5, {}, TypeError, "topic must be str"),
        ("", {}, ValueError, "is empty"),
        ("t", {"batch": 0}, ValueError, "batch must be 1 to"),
        ("t", {"batch": 1.5}, TypeError, "batch must be int"),
        ("t", {"batch": True}, TypeError, "batch must be int"),
        ("t", {"ordring": "key"}, TypeError, "ordring"),
    ],
)
def test_handlers_that_can_not_be(
    topic: Any, settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        new_worker().handler(topic, **settings)


def test_a_topic_has_one_handler() -> None:
    worker = new_worker()

    @worker.handler("u")
    @worker.handler("t")
    def handle_it(message: Message) -> None: ...

    assert handle_it.__name__ == "handle_it", "the function itself"
    with pytest.raises(ValueError, match=r"'t' has a handler already: .*handle_it"):
        worker.handler("t")(print)
    with pytest.raises(TypeError, match="callable"):
        worker.handler("v")("no function")  # type: ignore[type-var]


def test_no_handler_comes_late(make: Make) -> None:
    running = make()
    running.worker.handler("t")(print)
    running.start()
    with pytest.raises(IllegalStateException, match="before the worker runs"):
        running.worker.handler("u")(print)
