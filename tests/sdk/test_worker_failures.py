"""What goes wrong beside a handler: no threads, errors of the worker and of callbacks, signals."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from sharecoord_sdk import KafkaError, KafkaException, Message, Worker
from sharecoord_sdk._core.columns import IN_FLIGHT
from sharecoord_sdk._worker import checkpoints, threads
from sharecoord_sdk._worker.checkpoints import WorkerCheckpoints
from sharecoord_sdk._worker.core import WorkerCore
from sharecoord_sdk.testing import make_message, run_handler

from tests.sdk.fake_coordinator import make_batch
from tests.sdk.worker_running import PATIENCE_S, Gate, Make, values, wait_covered
from tests.support import eventually

CONF = {"bootstrap.servers": "localhost:7070", "group.id": "g"}


# -- threads ------------------------------------------------------------------------------------


class Scarce:
    """A system that gives so many threads, and one more with each refusal."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.most, self.given, self.refused = most, 0, 0
        monkeypatch.setattr(threads, "threading", SimpleNamespace(Thread=self._make))

    def _make(self, **arguments: Any) -> Any:
        return SimpleNamespace(start=lambda: self._start(threading.Thread(**arguments)))

    def _start(self, thread: threading.Thread) -> None:
        if self.given >= self.most:
            self.refused += 1
            raise RuntimeError("can't start new thread")
        self.given += 1
        thread.start()


def test_records_wait_for_a_thread_when_the_system_gives_none(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_RETRY_S", 0.01)
    system, running = Scarce(monkeypatch, 0), make(concurrency=4)
    running.worker.handler("t")(lambda message: None)
    stream = running.start()
    stream.send(make_batch(values(10)))
    eventually(lambda: system.refused > 1, PATIENCE_S)
    system.most = 1
    assert wait_covered(stream, 10) == list(range(10))
    assert {ack.kind for ack in stream.acks()} == {"ACCEPT"}
    running.stop()
    assert system.given == 1
    said = [record.message for record in caplog.records if "gives no thread" in record.message]
    assert len(said) == 1, "once"
    assert "0 of 4 run" in said[0]
    assert "pids.max" in said[0]


def test_the_threads_that_there_are_do_all_the_work(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, running, gate = Scarce(monkeypatch, 2), make(concurrency=5), Gate()
    running.worker.handler("t")(gate.plain)
    stream = running.start()
    stream.send(make_batch(values(7)))
    gate.wait_inside(2)
    gate.let_all()
    assert wait_covered(stream, 7) == list(range(7))
    assert system.refused >= 1
    assert gate.most == 2
    assert running.worker.state().handlers == 0
    running.stop()


# -- errors of the worker, and of callbacks -----------------------------------------------------


def handler_of(kind: str) -> Callable[[Message], Any]:
    async def coroutine(message: Message) -> int:
        return 5

    return coroutine if kind == "async" else lambda message: 5


@pytest.mark.parametrize("kind", ["async", "plain"])
@pytest.mark.parametrize("step", ["received", "head", "finish", "publish", "tick"])
def test_an_error_of_the_worker_ends_it_and_is_raised(
    step: str, kind: str, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not live on and take no records."""
    running, is_on, original = make(), threading.Event(), getattr(WorkerCore, step)

    def broken(core: WorkerCore, *arguments: Any) -> Any:
        if is_on.is_set():
            raise ZeroDivisionError(step)
        return original(core, *arguments)

    monkeypatch.setattr(WorkerCore, step, broken)
    running.worker.handler("t")(handler_of(kind))
    stream = running.start()
    is_on.set()
    stream.send(make_batch(values(3)))
    running.join()
    assert isinstance(running.error, ZeroDivisionError)
    assert running.worker.state().handlers == 0


def test_what_error_cb_raises_ends_the_worker(make: Make) -> None:
    """As it comes out of a consumer's poll; a handler that runs finishes before."""

    def on_error(error: KafkaError) -> None:
        raise PermissionError(error.str())

    gate = Gate()
    conf = {"error_cb": on_error, "socket.connection.setup.timeout.ms": 1000}
    running = make(conf=conf)
    running.worker.handler("t")(gate.coroutine)
    stream = running.start()
    stream.send(make_batch(values(1)))
    gate.wait_inside(1)
    running.coordinator.stop()
    gate.let_all()
    running.join()
    assert isinstance(running.error, PermissionError)
    assert running.worker.state().records == 0


# -- checkpoints of plain handlers --------------------------------------------------------------


def keep_beside(loop: asyncio.AbstractEventLoop) -> BaseException | None:
    """What a plain handler on a thread is told by a keeper whose loop does not turn."""
    core: Any = SimpleNamespace(config=SimpleNamespace(api_timeout_s=0.0))
    columns: Any = SimpleNamespace(states=[IN_FLIGHT], span_at=lambda row: None)

    async def made() -> WorkerCheckpoints:
        return WorkerCheckpoints(core, lambda: None)

    keeper, told = loop.run_until_complete(made()), list[BaseException]()

    def handle() -> None:
        try:
            keeper.keep(columns, 0, b"x")
        except Exception as error:  # noqa: BLE001 - looked at by the test
            told.append(error)

    thread = threading.Thread(target=handle, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it must not wait for ever"
    return next(iter(told), None)


def test_a_checkpoint_does_not_wait_for_ever_for_a_loop_that_is_blocked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(checkpoints, "_LOOP_S", 0.01)
    loop = asyncio.new_event_loop()
    try:
        error = keep_beside(loop)
        # What was queued is cancelled, and ends.
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    assert isinstance(error, KafkaException)
    assert error.args[0] == KafkaError._TIMED_OUT


# -- signals ------------------------------------------------------------------------------------


def test_a_signal_that_is_handled_outside_of_python_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As where Python is embedded: it can not be given back, `signal.signal(n, None)` raises."""
    getsignal, set_signal, touched = signal.getsignal, signal.signal, list[int]()
    theirs = signal.SIGTERM

    def fake_signal(number: int, handler: Any) -> Any:
        if handler is None:
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or callable")
        touched.append(number)
        return None if number == theirs else set_signal(number, handler)

    monkeypatch.setattr(signal, "signal", fake_signal)
    monkeypatch.setattr(signal, "getsignal", lambda n: None if n == theirs else getsignal(n))
    worker = Worker(CONF)
    worker.handler("t")(lambda message: None)
    worker.stop()
    worker.run()
    assert touched == [signal.SIGINT, signal.SIGINT], "set and given back"
    assert "SIGTERM is handled outside of Python" in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


# -- methods without their object ---------------------------------------------------------------


def test_methods_without_their_object_are_refused() -> None:
    worker = Worker(CONF)
    hint = r"'self' would be the message; register it of an object, outside of the class"

    with pytest.raises(TypeError, match=rf"handler .*Shop.handle is a method .*{hint}"):

        class Shop:
            @worker.handler("orders")
            async def handle(self, order: dict[str, Any]) -> None: ...

    with pytest.raises(TypeError, match=hint):

        class Other:
            @worker.handler("orders")
            def handle(self) -> None: ...

    with pytest.raises(TypeError, match=rf"middleware .*{hint}"):

        class Third:
            @worker.middleware
            async def around(self, message: Message, call_next: Any) -> None: ...

    with pytest.raises(TypeError, match="a handler must not be a classmethod"):

        class Fourth:
            @worker.handler("orders")
            @classmethod
            def handle(cls, message: Message) -> None: ...

    class Rules:
        def rule(self, message: Message, attempt: int) -> float:
            return 5.0

        def bad(self, message: Message, error: Exception) -> type[BaseException]:
            return KeyError

        def read(self, data: bytes) -> str:
            return "read"

    with pytest.raises(TypeError, match=f"retry .*{hint}"):
        worker.handler("orders", retry=Rules.rule)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"on_bad_value .*{hint}"):
        worker.handler("orders", on_bad_value=Rules.bad)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=f"value= .*{hint}"):
        worker.handler("orders", value=Rules.read)(lambda value: None)
    with pytest.raises(TypeError, match=hint):
        run_handler(Rules.read, make_message())
    assert worker.describe()["handlers"] == []


def test_bound_and_static_methods_are_handlers() -> None:
    worker, seen = Worker(CONF), list[Any]()

    class Shop:
        def handle(self, order: dict[str, Any]) -> None:
            seen.append((self, order))

        @worker.handler("bills")
        @staticmethod
        def store(message: Message) -> None:
            seen.append(message.value())

        @classmethod
        def count(cls, message: Message) -> None:
            seen.append(cls)

    shop = Shop()
    worker.handler("orders")(shop.handle)
    worker.handler("counts")(Shop.count)
    run_handler(shop.handle, make_message(b"{}"), worker=worker)
    run_handler(Shop.store, make_message(b"x"), worker=worker)
    run_handler(Shop.count, make_message(b"x"), worker=worker)
    assert seen == [(shop, {}), b"x", Shop]
