"""What tests of all suites share: waiting for a condition, unique names, the Kafka under test."""

from __future__ import annotations

import asyncio
import inspect
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from sharecoord.devenv.broker import KafkaBroker

T = TypeVar("T")

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class KafkaUnderTest:
    """The cluster of this test run.

    Attributes:
        bootstrap_servers: `host:port`, several with commas between them.
        source: Where it comes from: `environment`, `docker` or `local`.
        broker: The process, which a test may kill and restart (it must be up again when the test
            ends); None when it is not ours.
    """

    bootstrap_servers: str
    source: str
    broker: KafkaBroker | None = None


def unique_name(prefix: str) -> str:
    """A name that no other test and no other run has; not from the seeded generator."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


class _Attempts:
    """Remembers what the last probe gave, and how long to pause before the next one."""

    def __init__(self, deadline_s: float, what: str) -> None:
        self._what = what
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s
        self._pause_s = FIRST_PAUSE_S
        self._count = 0
        self._error: Exception | None = None
        self._value: object = None

    def failed(self, value: object, error: Exception | None) -> float:
        """Notes a failed probe; returns the pause, or raises AssertionError when time is over."""
        self._count += 1
        self._value, self._error = value, error
        if time.monotonic() >= self._end:
            raise AssertionError(self._text()) from error
        pause_s = min(self._pause_s, max(0.0, self._end - time.monotonic()))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def _text(self) -> str:
        error = self._error
        last = f"value {self._value!r}" if error is None else f"{type(error).__name__}: {error}"
        tries = f"{self._count} probe{'s' if self._count > 1 else ''}"
        return f"not within {self._deadline_s} s ({tries}): {self._what}; last {last}"


def eventually(
    probe: Callable[[], T | None], deadline_s: float = 10.0, what: str | None = None
) -> T:
    """Calls a probe until it returns something truthy, and returns that.

    An exception of the probe (a failed assert too) counts as not yet. The probe is called at least
    once, and once more when the time is over.

    Args:
        probe: What to try.
        deadline_s: How long to try.
        what: What is waited for, in words, for the message; the probe's name by default.

    Raises:
        AssertionError: Time is over; names the last value or exception.
    """
    attempts = _Attempts(deadline_s, what or _name(probe))
    while True:
        value: T | None = None
        error: Exception | None = None
        try:
            value = probe()
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is reported at the end
            error = raised
        if value:
            return value
        time.sleep(attempts.failed(value, error))


@overload
async def eventually_async(
    probe: Callable[[], Awaitable[T | None]], deadline_s: float = ..., what: str | None = ...
) -> T: ...
@overload
async def eventually_async(
    probe: Callable[[], T | None], deadline_s: float = ..., what: str | None = ...
) -> T: ...
async def eventually_async(
    probe: Callable[[], Any], deadline_s: float = 10.0, what: str | None = None
) -> Any:
    """The same as `eventually` on the running loop; the probe is a function or a coroutine one.

    A coroutine that does not return is cancelled when the time is over.
    """
    attempts = _Attempts(deadline_s, what or _name(probe))
    end = time.monotonic() + deadline_s
    while True:
        value: Any = None
        error: Exception | None = None
        try:
            answer = probe()
            if inspect.isawaitable(answer):
                # Never less than a moment: the last probe has to have a chance.
                async with asyncio.timeout(max(LONGEST_PAUSE_S, end - time.monotonic())):
                    value = await answer
            else:
                value = answer
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is reported at the end
            error = raised
        if value:
            return value
        await asyncio.sleep(attempts.failed(value, error))


def _name(probe: Callable[[], object]) -> str:
    return getattr(probe, "__qualname__", None) or repr(probe)
