"""`AsyncShareConsumer`: `ShareConsumer` for asyncio."""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, ClassVar, Self, TypeVar

from sharecoord_sdk._core.base import Arrival, BaseShareConsumer, Steps
from sharecoord_sdk._core.config import SaslConfig
from sharecoord_sdk._core.core import Connection
from sharecoord_sdk._core.errors import KafkaException
from sharecoord_sdk._core.records import Message, Messages, TopicPartition
from sharecoord_sdk._grpc import authorization
from sharecoord_sdk._proto import share_service_pb2 as service_pb

from .stream import AsyncStream, Mailbox

T = TypeVar("T")


class _StreamSlot:
    """Holds the current stream for the consumer and for its finalizer."""

    __slots__ = ("stream",)

    def __init__(self) -> None:
        self.stream: AsyncStream | None = None


def _abandon(slot: _StreamSlot, pid: int) -> None:
    """Ends the stream of a consumer that was dropped without `close`."""
    if slot.stream is not None and os.getpid() == pid:
        slot.stream.abandon()
        slot.stream = None


class AsyncShareConsumer(BaseShareConsumer):
    """A consumer of a share group (KIP-932) for asyncio.

    The names of `ShareConsumer`; those that wait are awaited: `subscribe`, `unsubscribe`, `poll`,
    `commit_sync`, `close`. The others are plain calls. `async for message in consumer` polls for
    ever. Consumers of one event loop share their channels, so a thousand of them are cheap. Use
    in one event loop, by one task at a time.

    Args:
        config: As of `ShareConsumer`.

    Raises:
        TypeError: Not a dict.
        ValueError: No `group.id`, or a key that share consumers do not have.
        KafkaException: _INVALID_ARG: an unknown key, or a value out of bounds.
    """

    # A thousand idle consumers must not wake the loop all the time.
    _slice_s: ClassVar[float] = 1.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._inbox: Mailbox[Arrival] = Mailbox()
        self._slot = _StreamSlot()
        self._finalizer = weakref.finalize(self, _abandon, self._slot, self._pid)

    async def subscribe(self, topics: list[str]) -> None:
        """See `ShareConsumer.subscribe`."""
        self._subscribe_now(topics)

    async def unsubscribe(self) -> None:
        """See `ShareConsumer.unsubscribe`."""
        self._subscribe_now([])

    async def poll(self, timeout: float = -1) -> Messages:
        """See `ShareConsumer.poll`. A cancelled poll loses no records."""
        return await self._run(self._poll_steps(timeout))

    async def commit_sync(self, timeout: float = 60) -> dict[TopicPartition, KafkaException | None]:
        """See `ShareConsumer.commit_sync`. When cancelled, what was sent stays sent."""
        return await self._run(self._commit_steps(timeout))

    async def checkpoint(self, message: Message, data: bytes, timeout: float = 60) -> None:
        """See `ShareConsumer.checkpoint`."""
        await self._run(self._checkpoint_steps(message, data, timeout))

    async def close(self) -> None:
        """See `ShareConsumer.close`."""
        try:
            await self._run(self._close_steps())
        finally:
            await self._end()

    async def _end(self) -> None:
        if self._core is None or not self._closed:
            return
        self._finalizer.detach()
        stream, self._slot.stream = self._slot.stream, None
        if stream is not None:
            await stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in await self.poll():
                yield message

    # -- the shell ----------------------------------------------------------------------------

    async def _run(self, steps: Steps[T]) -> T:
        """Runs the steps of a call, awaiting in between."""
        try:
            while True:
                await self._inbox.wait(next(steps))
        except StopIteration as stop:
            result: T = stop.value
            return result
        finally:
            steps.close()

    def _arrivals(self) -> Iterator[Arrival]:
        return iter(self._inbox.take_all())

    def _open_stream(self, connection: Connection, metadata: list[tuple[str, str]]) -> None:
        if self._slot.stream is not None:
            self._slot.stream.cancel()
        self._slot.stream = None
        self._slot.stream = AsyncStream(connection, self._config.tls, metadata, self._inbox)

    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        if self._slot.stream is not None:
            self._slot.stream.send(requests)

    def _authorization(self, sasl: SaslConfig) -> list[tuple[str, str]]:
        return authorization(sasl)

    def _caller_id(self) -> int:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return threading.get_ident() if task is None else id(task)
