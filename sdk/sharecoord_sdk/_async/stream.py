"""A Consume stream on grpc.aio, with a task that reads it and a task that writes it."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Generic, TypeVar

# Before grpc: it sets what grpc reads when it is imported.
from sharecoord_sdk._grpc import CONSUME, encode, failure_of, open_aio_channel  # isort: skip
from grpc import aio

from sharecoord_sdk._core import frames
from sharecoord_sdk._core.core import Arrival, Connection
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._core.tls_files import TlsMaterial
from sharecoord_sdk._proto import share_service_pb2 as service_pb

T = TypeVar("T")


class SharedChannel:
    """A channel to an address that the streams of one loop share; the last one closes it.

    gRPC connects it again and again with the certificates that it was made with, so it is shared by
    streams that were opened with the same ones: after a rotation new streams get a new channel.
    """

    def __init__(self, channel: aio.Channel, forget: Callable[[], object]) -> None:
        self.channel = channel
        self._forget = forget
        self._users = 0

    @classmethod
    def take(cls, address: str, tls: TlsMaterial | None) -> SharedChannel:
        """Takes the channel for a stream, which releases it once, in the same loop."""
        channels, key = _BY_LOOP.setdefault(asyncio.get_running_loop(), {}), (address, tls)
        shared = channels.get(key)
        if shared is None:
            channel = open_aio_channel(address, tls)
            shared = channels[key] = cls(channel, partial(channels.pop, key))
        shared._users += 1
        return shared

    async def release(self) -> None:
        self._users -= 1
        if self._users == 0:
            self._forget()
            await self.channel.close(None)


_BY_LOOP: weakref.WeakKeyDictionary[
    asyncio.AbstractEventLoop, dict[tuple[str, TlsMaterial | None], SharedChannel]
] = weakref.WeakKeyDictionary()


class Mailbox(Generic[T]):
    """A queue inside one loop, with one reader that may wait for so long."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: T) -> None:
        self._items.append(item)
        _wake(self._waiter)

    @property
    def is_empty(self) -> bool:
        return not self._items

    def take_all(self) -> list[T]:
        items = list(self._items)
        self._items.clear()
        return items

    async def wait(self, wait_s: float | None) -> None:
        """Returns when there is an item, or after `wait_s` seconds."""
        if self._items:
            return
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        self._waiter = waiter
        timer = None if wait_s is None else loop.call_later(wait_s, _wake, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


class AsyncStream:
    """A call of Consume. Knows nothing of the consumer, so that the consumer can be collected."""

    def __init__(
        self,
        connection: Connection,
        tls: TlsMaterial | None,
        inbox: Mailbox[Arrival],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outbox: Mailbox[service_pb.ConsumeRequest] = Mailbox()
        self.send(connection.requests)
        shared = SharedChannel.take(connection.address, tls)
        method: Any = shared.channel.stream_stream(
            CONSUME,
            request_serializer=encode,
            response_deserializer=frames.read,
        )
        self._call: Any = method(metadata=connection.metadata)
        name = f"sharecoord-{connection.generation}"
        answered = asyncio.Event()
        self._writer = self._loop.create_task(
            _write(self._call, self._outbox, answered), name=f"{name}-writer"
        )
        reading = _read(self._call, connection.generation, inbox, answered, self._writer, shared)
        self._reader = self._loop.create_task(reading, name=f"{name}-reader")

    def send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        for request in requests:
            self._outbox.put(request)

    def cancel(self) -> None:
        """Ends the call; the reader gives the channel up. Inside the loop."""
        self._call.cancel()

    def abandon(self) -> None:
        """Ends the call from wherever the garbage collector runs."""
        try:
            self._loop.call_soon_threadsafe(self.cancel)
        except RuntimeError:
            # The loop is closed, and the call with it.
            pass

    async def close(self) -> None:
        """Ends the call and waits for both tasks."""
        self.cancel()
        await asyncio.wait((self._reader, self._writer))


async def _write(
    call: Any, outbox: Mailbox[service_pb.ConsumeRequest], answered: asyncio.Event
) -> None:
    """Sends what is queued until the stream ends; the reader tells how it ended."""
    try:
        first, *others = outbox.take_all()
        await call.write(first)
        # grpc.aio turns a write that meets the end of the stream into INTERNAL, whatever the
        # coordinator said. Nothing is under way while it may still refuse the join.
        await answered.wait()
        for request in others:
            await call.write(request)
        while True:
            await outbox.wait(None)
            for request in outbox.take_all():
                await call.write(request)
    except (aio.AioRpcError, asyncio.InvalidStateError):
        pass


async def _read(
    call: Any,
    generation: int,
    inbox: Mailbox[Arrival],
    answered: asyncio.Event,
    writer: asyncio.Task[None],
    shared: SharedChannel,
) -> None:
    """Moves what arrives into the inbox until the stream ends, and says how it ended."""
    try:
        while (response := await call.read()) is not aio.EOF:  # type: ignore[attr-defined]
            inbox.put(Arrival(generation, response, time.monotonic()))
            answered.set()
        failure = StreamFailure("OK", "the coordinator ended the stream")
    except asyncio.CancelledError:
        failure = StreamFailure("CANCELLED", "ended by this process")
    except Exception as error:  # noqa: BLE001 - however it ended, the consumer must hear of it
        failure = failure_of(error)
    inbox.put(Arrival(generation, failure, time.monotonic()))
    writer.cancel()
    await shared.release()
