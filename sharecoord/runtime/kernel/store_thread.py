"""The store's thread, in which all blocking calls to the store run, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class StoreCaller(Protocol):
    """Runs store calls in order; the simulator has one without a thread."""

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function of the store; returns its result, or raises its error."""

    def close(self) -> None:
        """Ends the caller; no calls come after this."""


class StoreThread:
    """One thread, so that calls never overlap."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="sharecoord-store")

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a blocking call in the thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: function(*args, **kwargs))

    def close(self) -> None:
        """Waits for the running call."""
        self._executor.shutdown()
