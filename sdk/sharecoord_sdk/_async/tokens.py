"""The fetches of tokens of a consumer in a loop."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from typing import Protocol

from sharecoord_sdk._core.credentials import TokenOutcome
from sharecoord_sdk._tokens import AsyncTokenSource, outcome_of_async


class Fetches(Protocol):
    """What is asked of the consumer."""

    _token_source: AsyncTokenSource

    def _begin_fetch(self) -> bool:
        """Whether to fetch a token now."""

    def _token_came(self, outcome: TokenOutcome) -> None:
        """Takes what the fetch has brought."""


class TokenTask:
    """Fetches one consumer's next token at its time. Holds no consumer."""

    def __init__(self, consumer: Fetches) -> None:
        self._consumer = weakref.ref(consumer)
        self._timer: asyncio.TimerHandle | None = None
        self._at = math.inf
        self._task: asyncio.Task[None] | None = None

    def schedule(self, at: float) -> None:
        """Fetches at a time (monotonic), in place of a later one; in the loop."""
        if self._at <= at:
            return
        self._cancel_timer()
        wait_s = max(0.0, at - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._begin)
        self._at = at

    async def close(self) -> None:
        """Schedules nothing more, and ends a fetch that is under way."""
        self._cancel_timer()
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait((self._task,))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._at = None, math.inf

    def _begin(self) -> None:
        self._timer, self._at = None, math.inf
        consumer = self._consumer()
        if consumer is not None and consumer._begin_fetch():
            fetching = _fetch(self._consumer, consumer._token_source)
            self._task = asyncio.get_running_loop().create_task(fetching, name="sharecoord-token")


async def _fetch(of: weakref.ref[Fetches], source: AsyncTokenSource) -> None:
    outcome = await outcome_of_async(source)
    consumer = of()
    if consumer is not None:
        consumer._token_came(outcome)
