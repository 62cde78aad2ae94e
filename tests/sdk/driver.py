"""Both consumers behind one blocking face, so that one suite tells whether they behave alike."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from sharecoord_sdk import AsyncShareConsumer, ShareConsumer
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from tests.sdk.fake_coordinator import FakeCoordinator, FakeStream, make_batch

T = TypeVar("T")
#: Configuration of the explicit mode, as keywords of `joined`.
EXPLICIT: dict[str, Any] = {"share_acknowledgement_mode": "explicit"}
AWAITED = ("subscribe", "unsubscribe", "poll", "commit_sync", "checkpoint", "close")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine there and waits for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def stop(self) -> None:
        """Ends the loop and its thread, and what tests left running there, as asyncio.run does."""
        self.run(_cancel_others())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class AsyncDriver:
    """`AsyncShareConsumer` with blocking methods."""

    def __init__(self, thread: LoopThread, config: dict[str, Any]) -> None:
        self._thread = thread

        async def make() -> AsyncShareConsumer:
            return AsyncShareConsumer(config)

        self.consumer = thread.run(make())

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.consumer, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            async def run() -> Any:
                result = method(*args, **kwargs)
                return await result if name in AWAITED else result

            return self._thread.run(run())

        return call


Driver = Any


class Drivers:
    """Makes drivers of one kind, and closes what a test left open."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._thread = LoopThread() if kind == "async" else None
        self._made: list[Any] = []

    def make(self, address: str, **config: Any) -> Driver:
        """A consumer of group "g" at an address; `a_b=` stands for the key "a.b"."""
        full = {"bootstrap.servers": address, "group.id": "g", "reconnect.backoff.ms": 1}
        full.update({name.replace("_", "."): value for name, value in config.items()})
        return self.make_with(full)

    def make_with(self, config: dict[str, Any]) -> Driver:
        """A consumer with this configuration."""
        made: Any = (
            ShareConsumer(config) if self._thread is None else AsyncDriver(self._thread, config)
        )
        self._made.append(made)
        return made

    def call_in_thread(self, work: Callable[[], T]) -> T:
        """Runs work where the consumers live."""
        if self._thread is None:
            return work()

        async def run() -> T:
            return work()

        return self._thread.run(run())

    def forget(self, made: Driver) -> None:
        """Leaves a consumer to the garbage collector."""
        self._made.remove(made)

    def finish(self) -> None:
        """Closes everything."""
        for made in self._made:
            made.close()
        if self._thread is not None:
            self._thread.stop()


def joined(
    drivers: Drivers, coordinator: FakeCoordinator, *topics: str, **config: Any
) -> tuple[Driver, FakeStream]:
    """A consumer that has subscribed (to "t" by default), and the stream that it opened."""
    consumer = drivers.make(coordinator.address, **config)
    consumer.subscribe(list(topics) or ["t"])
    return consumer, coordinator.stream()


def served(
    drivers: Drivers, coordinator: FakeCoordinator, *batches: types_pb.RecordBatch, **config: Any
) -> tuple[Driver, FakeStream, Any]:
    """A consumer that was sent batches of topic "t", its stream, and what its first poll gave."""
    consumer, stream = joined(drivers, coordinator, **config)
    stream.send(*batches)
    return consumer, stream, consumer.poll(10)


def with_a_record(
    drivers: Drivers, coordinator: FakeCoordinator, **config: Any
) -> tuple[Driver, FakeStream]:
    """A consumer whose application has one record, with the value "a", and its stream."""
    consumer, stream, _ = served(drivers, coordinator, make_batch([b"a"]), **config)
    return consumer, stream


def inner(consumer: Driver) -> Any:
    """The consumer itself, without the driver around it."""
    return consumer.consumer if isinstance(consumer, AsyncDriver) else consumer
