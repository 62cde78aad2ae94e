"""One call for many arguments: single calls would take a fleet or a wide topic minutes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Generic, TypeVar

from sharecoord.errors import InternalError, SharecoordError

CALLS_MAX = 200
"""Most arguments of one call: commits of records wait for it, 20 ms at most."""

T = TypeVar("T")
R = TypeVar("R")


class Gatherer(Generic[T, R]):
    """Gathers arguments while a call runs; the next call takes them along, in their order.

    The callers bound the number of arguments: members by the sizes of their groups,
    share-partitions by those of topics. `call` returns as many results as it got arguments, in
    their order. Arguments with equal keys never stand in one call.
    """

    def __init__(
        self,
        call: Callable[[list[T]], Awaitable[Sequence[R]]],
        *,
        name: str,
        key: Callable[[T], Hashable] | None = None,
        calls_max: int = CALLS_MAX,
    ) -> None:
        self._call = call
        self._key = key
        self._name = name
        self._calls_max = calls_max
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._calling: asyncio.Task[None] | None = None

    async def ask(self, argument: T) -> R:
        """The result for one argument.

        Raises:
            SharecoordError: The error of the call.
        """
        result: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((argument, result))
        if self._calling is None:
            self._calling = asyncio.create_task(self._call_all(), name=self._name)
        return await result

    async def close(self) -> None:
        """Ends what still waits."""
        if self._calling is not None:
            self._calling.cancel()
            await asyncio.wait([self._calling])

    async def _call_all(self) -> None:
        batch: list[tuple[T, asyncio.Future[R]]] = []
        try:
            while batch := self._take():
                await self._make(batch)
        finally:
            self._calling = None
            for _, result in [*batch, *self._waiting]:
                result.cancel()
            self._waiting.clear()

    def _take(self) -> list[tuple[T, asyncio.Future[R]]]:
        """The arguments of the next call, in order of arrival; cancelled ones are left out."""
        batch: list[tuple[T, asyncio.Future[R]]] = []
        later: list[tuple[T, asyncio.Future[R]]] = []
        keys: set[Hashable] = set()
        for argument, result in self._waiting:
            if result.cancelled():
                continue
            key = result if self._key is None else self._key(argument)
            if len(batch) < self._calls_max and key not in keys:
                keys.add(key)
                batch.append((argument, result))
            else:
                later.append((argument, result))
        self._waiting = later
        return batch

    async def _make(self, batch: list[tuple[T, asyncio.Future[R]]]) -> None:
        try:
            answers = await self._call([argument for argument, _ in batch])
        except Exception as error:  # noqa: BLE001 - each that asked raises it
            # A row that is refused, or can not be read, may be the fault of one argument.
            may_be_of_one = isinstance(error, InternalError) or not isinstance(
                error, SharecoordError
            )
            if len(batch) > 1 and may_be_of_one:
                for one in batch:
                    await self._make([one])
            else:
                _fail(batch, error)
        else:
            for (_, result), answer in zip(batch, answers, strict=True):
                if not result.done():
                    result.set_result(answer)


def _fail(batch: list[tuple[T, asyncio.Future[R]]], error: Exception) -> None:
    for _, result in batch:
        if not result.done():
            result.set_exception(error)
