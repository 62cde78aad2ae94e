"""A handler that ends the program (`SystemExit`, `KeyboardInterrupt`): the worker leaves first."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import pytest
from sharecoord_sdk import Message, Reject, Worker
from sharecoord_sdk._worker import shell

from tests.sdk.fake_coordinator import Ack, FakeCoordinator, FakeStream, make_batch
from tests.sdk.test_worker_end import start_program
from tests.sdk.worker_running import PATIENCE_S, Gate, Make, Running, covered, values, wait_covered

CallNext = Callable[[Any], Awaitable[Any]]
Register = Callable[[Worker, BaseException], None]


# -- ways to raise: record 0 is handled, record 1 raises -----------------------------------------


def plain(worker: Worker, error: BaseException) -> None:
    @worker.handler("t")
    def handle(message: Message) -> None:
        if message.value() == b"1":
            raise error


def coroutine(worker: Worker, error: BaseException) -> None:
    @worker.handler("t")
    async def handle(message: Message) -> None:
        if message.value() == b"1":
            raise error


def plain_with_timeout(worker: Worker, error: BaseException) -> None:
    @worker.handler("t", timeout=PATIENCE_S)
    def handle(message: Message) -> None:
        if message.value() == b"1":
            raise error


def coroutine_at_its_timeout(worker: Worker, error: BaseException) -> None:
    @worker.handler("t", timeout=0.01)
    async def handle(message: Message) -> None:
        if message.value() == b"1":
            try:
                await asyncio.Event().wait()
            finally:
                raise error


def plain_batch(worker: Worker, error: BaseException) -> None:
    @worker.handler("t", batch=1)
    def handle(messages: list[Message]) -> None:
        if messages[0].value() == b"1":
            raise error


def coroutine_batch(worker: Worker, error: BaseException) -> None:
    @worker.handler("t", batch=1)
    async def handle(messages: list[Message]) -> None:
        if messages[0].value() == b"1":
            raise error


def middleware(worker: Worker, error: BaseException) -> None:
    worker.handler("t")(Gate.pass_through)

    @worker.middleware
    async def end(message: Message, call_next: CallNext) -> Any:
        await call_next(message)
        if message.value() == b"1":
            raise error


def plain_inside_middleware(worker: Worker, error: BaseException) -> None:
    plain(worker, error)

    @worker.middleware
    async def pass_on(message: Message, call_next: CallNext) -> Any:
        return await call_next(message)


def task_of_a_group(worker: Worker, error: BaseException) -> None:
    async def fail() -> NoReturn:
        raise error

    @worker.handler("t")
    async def handle(message: Message) -> None:
        if message.value() == b"1":
            async with asyncio.TaskGroup() as group:
                group.create_task(fail())


def ended_by(error: BaseException, register: Register, make: Make, count: int) -> FakeStream:
    """The stream of a worker with so many records whose handler raised the error at the second."""
    running = make(concurrency=1)
    register(running.worker, error)
    stream = running.start()
    stream.send(make_batch(values(count)))
    running.join()
    assert running.error is error
    assert stream.requests[-1].leave
    return stream


WAYS = (
    plain,
    coroutine,
    plain_with_timeout,
    coroutine_at_its_timeout,
    plain_batch,
    coroutine_batch,
    middleware,
    plain_inside_middleware,
)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
@pytest.mark.parametrize("register", WAYS)
def test_the_worker_hands_back_its_records_and_leaves_before_it_raises(
    register: Register, kind: type[BaseException], make: Make
) -> None:
    stream = ended_by(kind(3), register, make, 5)
    assert sorted(stream.acks(), key=lambda ack: ack.first) == [
        Ack("t", 0, 0, 0, "ACCEPT", 1),
        Ack("t", 0, 1, 1, "RELEASE", 1, 0, kind.__name__),
        Ack("t", 0, 2, 4, "RETURN", 1),
    ]


def test_what_a_task_of_a_handler_raises_ends_the_worker_in_the_same_way(make: Make) -> None:
    """It ends the loop, whoever awaits the task."""
    stream = ended_by(SystemExit(3), task_of_a_group, make, 2)
    assert {ack.first: ack.kind for ack in stream.acks()} == {0: "ACCEPT", 1: "RELEASE"}


def test_no_handler_starts_after_it(make: Make) -> None:
    """Though slots are free, and others have just been made."""
    running = make(concurrency=50)
    started: list[bytes | None] = []

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        started.append(message.value())
        raise SystemExit(len(started))

    stream = running.start()
    stream.send(make_batch(values(200)))
    running.join()
    assert isinstance(running.error, SystemExit)
    assert (running.error.code, len(started)) == (1, 1)
    kinds = {ack.kind: (ack.first, ack.last) for ack in stream.acks()}
    assert kinds == {"RELEASE": (0, 0), "RETURN": (1, 199)}


def test_on_error_says_what_becomes_of_its_record(make: Make) -> None:
    running = make(concurrency=1)

    @running.worker.handler("t", on_error={SystemExit: Reject})
    async def handle(message: Message) -> None:
        raise SystemExit(3)

    stream = running.start()
    stream.send(make_batch(values(1)))
    running.join()
    assert isinstance(running.error, SystemExit)
    assert [ack.kind for ack in stream.acks()] == ["REJECT"]


# -- others that run ------------------------------------------------------------------------------


def exit_beside(make: Make, kind: str, gate: Gate, **settings: Any) -> Running:
    """A worker with one handler that waits at the gate, and one that ends the program at "u"."""
    running = make(concurrency=2, **settings)
    running.worker.handler("t")(getattr(gate, kind))

    @running.worker.handler("u")
    async def end(message: Message) -> None:
        raise SystemExit(3)

    return running


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_others_may_finish(kind: str, make: Make) -> None:
    gate = Gate()
    running = exit_beside(make, kind, gate)
    stream = running.start()
    stream.send(make_batch([b"a"]))
    gate.wait_inside(1)
    stream.send(make_batch([b"b"], topic="u", token=2))
    assert stream.wait_acks(1) == [Ack("u", 0, 0, 0, "RELEASE", 2, 0, "SystemExit")]
    gate.let_all()
    running.join()
    assert stream.acks()[1:] == [Ack("t", 0, 0, 0, "ACCEPT", 1)]
    assert stream.requests[-1].leave
    assert isinstance(running.error, SystemExit)


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_who_does_not_finish_soon_is_given_up(
    kind: str, make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shell, "_EXIT_DRAIN_S", 0.2)
    gate = Gate()
    running = exit_beside(make, kind, gate, drain_timeout_s=1000)
    stream = running.start()
    stream.send(make_batch([b"a"]))
    gate.wait_inside(1)
    stream.send(make_batch([b"b"], topic="u"))
    running.join()
    if kind == "plain":
        gate.let_all()
    assert isinstance(running.error, SystemExit)
    assert "1 handlers with 1 records did not finish within 0.1 s" in caplog.text
    assert [ack.topic for ack in stream.acks()] == ["u"]
    assert stream.requests[-1].leave


def test_the_first_one_counts(make: Make) -> None:
    running = make(concurrency=2)
    ready = threading.Barrier(2, timeout=PATIENCE_S)

    @running.worker.handler("t")
    def handle(message: Message) -> None:
        ready.wait()
        raise SystemExit(int(message.value() or b""))

    stream = running.start()
    stream.send(make_batch(values(2)))
    running.join()
    assert isinstance(running.error, SystemExit)
    assert covered([ack for ack in stream.acks() if ack.kind == "RELEASE"]) == [0, 1]


def test_one_that_was_given_up_still_ends_the_worker(make: Make) -> None:
    running = make(concurrency=1)
    gate = threading.Event()
    error = SystemExit(3)

    @running.worker.handler("t", timeout=0.02)
    def handle(message: Message) -> None:
        gate.wait(PATIENCE_S)
        raise error

    stream = running.start()
    stream.send(make_batch([b"a"]))
    assert wait_covered(stream, 1) == [0]
    gate.set()
    running.join()
    assert running.error is error
    assert len(stream.acks()) == 1
    assert stream.requests[-1].leave


def test_it_is_raised_behind_a_drain_that_has_begun(make: Make) -> None:
    running = make(concurrency=1)
    inside, gate = threading.Event(), threading.Event()
    error = SystemExit(3)

    @running.worker.handler("t")
    def handle(message: Message) -> None:
        inside.set()
        gate.wait(PATIENCE_S)
        raise error

    stream = running.start()
    stream.send(make_batch(values(2)))
    assert inside.wait(PATIENCE_S)
    running.worker.stop()
    assert stream.wait_acks(1) == [Ack("t", 0, 1, 1, "RETURN", 1)]
    gate.set()
    running.join()
    assert running.error is error
    assert stream.acks()[1:] == [Ack("t", 0, 0, 0, "RELEASE", 1, 0, "SystemExit")]
    assert stream.requests[-1].leave


async def test_run_async_raises_it_to_who_awaits(coordinator: FakeCoordinator) -> None:
    worker = Worker({"bootstrap.servers": coordinator.address, "group.id": "g"})
    error = SystemExit(3)
    coroutine(worker, error)

    async def run() -> BaseException | None:
        try:
            await worker.run_async()
        except SystemExit as raised:
            return raised
        return None

    task = asyncio.create_task(run())
    stream = await asyncio.to_thread(coordinator.stream)
    stream.send(make_batch(values(2)))
    assert await asyncio.wait_for(task, PATIENCE_S) is error
    assert covered(stream.acks()) == [0, 1]
    assert stream.requests[-1].leave


# -- when it can not be done ----------------------------------------------------------------------


@pytest.mark.parametrize("away", ["silent", "gone"])
def test_the_log_says_that_records_come_again_when_their_locks_end(
    away: str,
    make: Make,
    coordinator: FakeCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(shell, "_EXIT_DRAIN_S", 0.2)
    coordinator.script.answers_acknowledgements = False
    coordinator.script.answers_leaves = False
    running = make()

    @running.worker.handler("t")
    async def handle(message: Message) -> None:
        if away == "gone":
            await asyncio.to_thread(coordinator.stop)
        raise SystemExit(3)

    stream = running.start()
    stream.send(make_batch(values(1)))
    running.join()
    assert isinstance(running.error, SystemExit)
    (text,) = [r.message for r in caplog.records if "did not confirm" in r.message]
    assert "come again when their locks end" in text
    if away == "silent":
        assert [ack.kind for ack in stream.acks()] == ["RELEASE"]
        assert stream.requests[-1].leave, "in time for a coordinator that is only slow"


def test_a_drain_that_is_confirmed_says_no_such_thing(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    running = make(concurrency=1)
    coroutine(running.worker, SystemExit(3))
    stream = running.start()
    stream.send(make_batch(values(2)))
    running.join()
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]
    assert warnings == [
        "a handler raised SystemExit: this worker hands back its records, leaves, and raises it"
    ]


def test_a_second_signal_inside_a_handler_ends_at_once(coordinator: FakeCoordinator) -> None:
    # It gives way now and then: a signal may have come to a thread of gRPC.
    process = start_program(coordinator, "while True: __import__('time').sleep(0.001)")
    try:
        stream = coordinator.stream()
        stream.send(make_batch([b"short"]))
        assert process.stdout is not None
        process.stdout.readline()
        # Two numbers, because two of one number may arrive as one.
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=PATIENCE_S)
        assert "a handler raised" not in errors
        assert process.returncode in (128 + signal.SIGTERM, -signal.SIGINT)
        assert stream.acks() == []
        assert not any(request.leave for request in stream.requests)
    finally:
        process.kill()
        process.communicate()
