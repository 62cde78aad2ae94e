"""`AsyncShareConsumer`: `ShareConsumer` for asyncio."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, ClassVar, Final, Self, TypeVar

from sharecoord_sdk._core.base import BaseShareConsumer, Steps
from sharecoord_sdk._core.core import Arrival, Connection
from sharecoord_sdk._core.errors import KafkaException
from sharecoord_sdk._core.records import Message, Messages, TopicPartition
from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._tokens import async_token_source

from .stream import AsyncStream, Mailbox
from .tokens import TokenTask

T = TypeVar("T")
# Seconds between two sends (and signs of life) of a loop over records that are at hand.
_STEP_EVERY_S: Final = 1.0


class _StreamSlot:
    __slots__ = ("stream",)

    def __init__(self) -> None:
        self.stream: AsyncStream | None = None


def _abandon(slot: _StreamSlot, pid: int) -> None:
    """Ends the stream of a consumer that was dropped without `close`."""
    if slot.stream is not None and os.getpid() == pid:
        slot.stream.abandon()
        slot.stream = None


class _Inbox(Mailbox[Arrival]):
    """Arrivals of a stream; a message with records also schedules their hand-back."""

    def __init__(self, consumer: AsyncShareConsumer) -> None:
        super().__init__()
        self._consumer = weakref.ref(consumer)

    def put(self, item: Arrival) -> None:
        super().put(item)
        consumer = self._consumer()
        if consumer is not None:
            consumer._schedule_hand_back(item.hand_back_unseen_at)


def _hand_back_unseen_of(consumer: weakref.ref[AsyncShareConsumer]) -> None:
    found = consumer()
    if found is not None:
        found._is_hand_back_scheduled = False
        if found._user is None and found._core is not None:
            # Records that the loop did not yield yet are unseen: no call is returning here.
            found._core.locks.note_given(at_rest=True)
        found._hand_back_unseen()


def _send_held_of(consumer: weakref.ref[AsyncShareConsumer]) -> None:
    found = consumer()
    if found is not None:
        at = found._send_held()
        if at < math.inf:
            found._send_held_at(at)


class _Iteration:
    """The iterator over a consumer: each step gives one record, and no other is given yet.

    So whatever ends the loop, and whenever: what it did not yield waits for the next poll. A poll
    lasts for up to `max.poll.records` steps, or until nothing is at hand.
    """

    def __init__(self, consumer: AsyncShareConsumer) -> None:
        self._consumer = consumer
        # How many more records the poll that goes on may give.
        self._left = 0
        self._found = Messages()
        self._next = 0
        # A step within this time needs no look at what has come, unless something has.
        self._good_until = 0.0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        if not self._is_at_hand():
            await self._take()
        found, at = self._found, self._next
        message = found[at]
        self._next = at + 1
        self._left -= 1
        found._hand_out.given = at + 1
        return message

    def _is_at_hand(self) -> bool:
        consumer, found = self._consumer, self._found
        now = consumer._now()
        if (
            self._next == found._count
            or not found._hand_out.is_open
            or not consumer._inbox.is_empty
            or now >= self._good_until
            or consumer._core is None
        ):
            return False
        # Each step is a sign of the program, as a poll is.
        consumer._core.called_at = now
        return True

    async def _take(self) -> None:
        consumer = self._consumer
        goes_on = self._left > 0
        limit = self._left or consumer._config.max_poll_records
        found = await consumer._run(consumer._poll_steps(-1, limit, goes_on=goes_on))
        # A poll that could not go on has begun anew, which `limit` need not know.
        self._left, self._found, self._next = limit, found, 0
        spans, core = found._hand_out.spans, consumer._core
        self._good_until = min([consumer._now() + _STEP_EVERY_S, *(s.lock.deadline for s in spans)])
        if core is not None:
            # Records that the loop does not reach go back in time, as buffered ones do.
            consumer._schedule_hand_back(min(map(core.locks._hand_back_at, spans)))


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
        self._inbox: Mailbox[Arrival] = _Inbox(self)
        # At most one hand-back is scheduled at a time.
        self._is_hand_back_scheduled = False
        self._token_source = async_token_source(self._config.sasl)
        self._tokens = TokenTask(self)
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
        messages = await self._run(self._poll_steps(timeout))
        # The last step before the return: from here on the records are the application's.
        messages._hand_out.given = messages._count
        return messages

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
        await self._tokens.close()
        stream, self._slot.stream = self._slot.stream, None
        if stream is not None:
            await stream.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[Message]:
        return _Iteration(self)

    # -- the shell ----------------------------------------------------------------------------

    async def _run(self, steps: Steps[T]) -> T:
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

    def _open_stream(self, connection: Connection) -> None:
        if self._slot.stream is not None:
            self._slot.stream.cancel()
        self._slot.stream = None
        tls = self._config.tls
        material = None if tls is None else tls.current()
        self._slot.stream = AsyncStream(connection, material, self._inbox)

    def _send(self, requests: Iterable[service_pb.ConsumeRequest]) -> None:
        if self._slot.stream is not None:
            self._slot.stream.send(requests)

    def _schedule_hand_back(self, at: float) -> None:
        if at < math.inf and not self._is_hand_back_scheduled:
            self._is_hand_back_scheduled = True
            delay_s = max(0.0, at - time.monotonic())
            asyncio.get_running_loop().call_later(delay_s, _hand_back_unseen_of, weakref.ref(self))

    def _send_held_at(self, at: float) -> None:
        delay_s = max(0.0, at - time.monotonic())
        asyncio.get_running_loop().call_later(delay_s, _send_held_of, weakref.ref(self))

    def _fetch_token_at(self, at: float) -> None:
        self._tokens.schedule(at)

    def _arrived(self, arrival: Arrival) -> None:
        self._inbox.put(arrival)

    def _caller_id(self) -> int:
        try:
            task = asyncio.current_task()
        except RuntimeError:
            task = None
        return threading.get_ident() if task is None else id(task)
