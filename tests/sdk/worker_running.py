"""A worker in a thread of its own, and handlers that wait until a test lets them go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from sharecoord_sdk import Message, Worker

from tests.sdk.fake_coordinator import Ack, FakeCoordinator, FakeStream, make_batch

PATIENCE_S = 20.0


class Running:
    """A worker in a thread of its own."""

    def __init__(self, coordinator: FakeCoordinator, **settings: Any) -> None:
        self.coordinator = coordinator
        conf = {
            "bootstrap.servers": coordinator.address,
            "group.id": "g",
            "reconnect.backoff.ms": 1,
            **settings.pop("conf", {}),
        }
        self.worker = Worker(conf, **settings)
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.worker.run()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.error = error

    def start(self) -> FakeStream:
        """Starts it and returns the stream that it opened."""
        self._thread.start()
        return self.coordinator.stream()

    def stop(self) -> None:
        """Stops it and waits for its end."""
        self.worker.stop()
        self.join()

    def join(self) -> None:
        """Waits for its end."""
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


Make = Callable[..., Running]


def values(count: int) -> list[bytes | None]:
    return [b"%d" % i for i in range(count)]


def covered(acks: list[Ack]) -> list[int]:
    return sorted(at for ack in acks for at in range(ack.first, ack.last + 1))


def wait_covered(stream: FakeStream, count: int) -> list[int]:
    """Waits until so many offsets were acknowledged."""
    stream.wait_for(lambda s: len(covered(s.acks())) >= count)
    return covered(stream.acks())


class Gate:
    """Handlers that wait inside until the test lets them go on, and who is inside."""

    def __init__(self) -> None:
        self.inside: list[bytes] = []
        self.most = 0
        self._changed = threading.Condition()
        self._open: set[bytes] = set()
        self._all_open = False
        self._futures: dict[bytes, tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = {}

    def _enter(self, value: bytes) -> None:
        with self._changed:
            self.inside.append(value)
            self.most = max(self.most, len(self.inside))
            self._changed.notify_all()

    def _leave(self, value: bytes) -> None:
        with self._changed:
            self.inside.remove(value)
            self._changed.notify_all()

    def plain(self, message: Message) -> None:
        value = message.value()
        self._enter(value)
        with self._changed:
            self._changed.wait_for(lambda: self._all_open or value in self._open, PATIENCE_S)
        self._leave(value)

    async def coroutine(self, message: Message) -> None:
        value = message.value()
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._changed:
            self._futures[value] = loop, future
        self._enter(value)
        try:
            if not self._all_open:
                await future
        finally:
            self._leave(value)

    @staticmethod
    def pass_through(message: Message) -> None:
        """A handler that waits for nothing."""

    def wait_inside(self, count: int) -> list[bytes]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.inside) >= count, PATIENCE_S)
            return list(self.inside)

    def wait_for(self, value: bytes) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: value in self.inside, PATIENCE_S)

    def let(self, value: bytes) -> None:
        with self._changed:
            self._open.add(value)
            self._changed.notify_all()
            found = self._futures.pop(value, None)
        if found is not None:
            loop, future = found
            loop.call_soon_threadsafe(_finish, future)

    def let_all(self) -> None:
        with self._changed:
            self._all_open = True
            self._changed.notify_all()
            waiting = list(self._futures)
        for value in waiting:
            self.let(value)


def gated(running: Running, kind: str, count: int) -> tuple[Gate, FakeStream]:
    """Starts it with a handler (`plain` or `coroutine`) at a gate, and so many records for it."""
    gate = Gate()
    running.worker.handler("t")(getattr(gate, kind))
    stream = running.start()
    stream.send(make_batch(values(count)))
    return gate, stream


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
