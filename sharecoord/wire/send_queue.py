"""A queue before a stream: items that came together go out as one message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

MESSAGE_ITEMS_MAX = 1_000
MESSAGE_BYTES_MAX = 4 << 20
"""Most items and bytes of a message: few messages, and none that others wait long for."""


class SendQueue(Generic[T]):
    """Sends in order, on the loop; `say` does not wait.

    Args:
        write: Sends items as one message, or raises when the stream is gone.
        size_of: Payload bytes of an item.
        broken: Called once when a write failed; what waits is forgotten.
        bytes_max: Most payload bytes of one message, unless its first item alone has more.
    """

    def __init__(
        self,
        write: Callable[[Sequence[T]], Awaitable[None]],
        *,
        size_of: Callable[[T], int],
        broken: Callable[[Exception], None],
        bytes_max: int = MESSAGE_BYTES_MAX,
    ) -> None:
        self.unsent_bytes = 0
        self._write = write
        self._size_of = size_of
        self._broken = broken
        self._bytes_max = bytes_max
        self._items: list[T] = []
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def say(self, item: T) -> None:
        """Queues an item; after `close` it is dropped."""
        if self._closed:
            return
        self._items.append(item)
        self.unsent_bytes += self._size_of(item)
        if self._task is None:
            self._task = asyncio.create_task(self._send(), name="sharecoord-peer-send")

    def close(self) -> None:
        """Forgets what waits; nothing is sent any more."""
        self._closed = True
        self._items.clear()
        self.unsent_bytes = 0
        if self._task is not None:
            self._task.cancel()

    async def _send(self) -> None:
        try:
            while self._items:
                items, size = self._next_message()
                await self._write(items)
                self.unsent_bytes -= size
        except Exception as error:  # noqa: BLE001 - gRPC has no type for it
            if not self._closed:
                self.close()
                self._broken(error)
        finally:
            self._task = None

    def _next_message(self) -> tuple[list[T], int]:
        size = count = 0
        for item in self._items[:MESSAGE_ITEMS_MAX]:
            if count and size + self._size_of(item) > self._bytes_max:
                break
            size += self._size_of(item)
            count += 1
        items, self._items = self._items[:count], self._items[count:]
        return items, size
