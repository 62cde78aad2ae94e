"""The fetches of tokens of a consumer on threads.

librdkafka calls an application's `oauth_cb` in a thread of its own, and so does this: a poll waits
for nothing but its own time, and a stream gets its new token while nobody polls.
"""

from __future__ import annotations

import math
import time
import weakref
from threading import Timer, current_thread
from typing import Protocol

from sharecoord_sdk._core.credentials import TokenOutcome
from sharecoord_sdk._tokens import TokenSource, outcome_of

from . import timers


class Fetches(Protocol):
    """What is asked of the consumer."""

    _token_source: TokenSource

    def _begin_fetch(self) -> bool:
        """Whether to fetch a token now."""

    def _token_came(self, outcome: TokenOutcome) -> None:
        """Takes what the fetch has brought."""


class TokenTimer:
    """Fetches one consumer's next token at its time. Holds no consumer, nor its callback."""

    def __init__(self, consumer: Fetches) -> None:
        self._consumer = weakref.ref(consumer)
        self._timer: Timer | None = None
        self._at = math.inf

    def schedule(self, at: float) -> None:
        """Fetches at a time (monotonic), in place of a later one; under the consumer's guard."""
        if self._at <= at:
            return
        self.cancel()
        wait_s = at - time.monotonic()
        self._timer, self._at = timers.make("sharecoord-token", wait_s, _fetch, self), at
        try:
            timers.start(self._timer)
        except BaseException:
            self._timer, self._at = None, math.inf
            raise

    def cancel(self) -> None:
        """Schedules nothing more; a fetch that is under way goes on. Never blocks."""
        timers.cancel(self._timer)
        self._timer, self._at = None, math.inf

    def fired(self) -> None:
        """Notes that the next fetch is to be scheduled anew."""
        self._at = math.inf

    def consumer(self) -> Fetches | None:
        """The consumer, unless it was dropped."""
        return self._consumer()


def _fetch(timer: TokenTimer) -> None:
    try:
        _fetch_with(timer)
    finally:
        timers.forget(current_thread())


def _fetch_with(timer: TokenTimer) -> None:
    timer.fired()
    consumer = timer.consumer()
    if consumer is None or not consumer._begin_fetch():
        return
    source = consumer._token_source
    # Whoever drops the consumer meanwhile wants it collected.
    del consumer
    try:
        outcome = outcome_of(source)
    except BaseException as error:  # noqa: BLE001 - sys.exit ends this thread at the most
        outcome = RuntimeError(f"oauth_cb raised {type(error).__name__}")
    consumer = timer.consumer()
    if consumer is not None:
        consumer._token_came(outcome)
