"""The distance to the store's clock, and when it is in doubt."""

from __future__ import annotations

import asyncio
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from sharecoord.runtime.kernel.clock import (
    BEAT_S,
    DOUBT_MS,
    MEASURED_WITHIN_MS,
    STANDSTILL_MS,
    RuntimeClock,
)


class _Loop:
    def __init__(self) -> None:
        self.time_ms = 50_000

    def time(self) -> float:
        return self.time_ms / 1000


def _clock() -> tuple[RuntimeClock, _Loop]:
    loop = _Loop()
    return RuntimeClock(cast("asyncio.AbstractEventLoop", loop)), loop


@given(
    st.integers(-(10**6), 10**12),
    st.lists(st.tuples(st.integers(0, 9_000), st.integers(0, 9_000)), min_size=1, max_size=20),
)
def test_no_answer_makes_the_offset_worse(offset_ms: int, answers: list[tuple[int, int]]) -> None:
    """Wherever on its way an answer stood still, it says no more than when it was asked for."""
    clock, loop = _clock()
    clock.measured(clock.now_ms() + offset_ms)
    for there_ms, back_ms in answers:
        asked_ms = clock.now_ms()
        store_now_ms = asked_ms + there_ms + offset_ms
        loop.time_ms += there_ms + back_ms
        clock.measured(store_now_ms, asked_ms=asked_ms)
        assert clock.to_store(clock.now_ms()) == clock.now_ms() + offset_ms


@given(st.integers(0, 9_000), st.integers(0, 9_000), st.integers(-(10**6), 10**6))
def test_a_clock_that_was_set_is_followed(there_ms: int, back_ms: int, by_ms: int) -> None:
    clock, loop = _clock()
    clock.measured(clock.now_ms() + 10**9)
    asked_ms = clock.now_ms()
    loop.time_ms += there_ms + back_ms
    clock.measured(asked_ms + there_ms + 10**9 + by_ms, asked_ms=asked_ms)
    off_by_ms = clock.to_store(clock.now_ms()) - clock.now_ms() - 10**9 - by_ms
    assert -back_ms <= off_by_ms <= there_ms


def test_a_slow_answer_ends_no_doubt() -> None:
    """It may be one to a question from before this process stood still."""
    clock, loop = _clock()
    clock.beat()
    asked_ms = clock.now_ms()
    loop.time_ms += max(STANDSTILL_MS, MEASURED_WITHIN_MS) + 1
    assert clock.is_doubtful
    clock.measured(1_000_000, asked_ms=asked_ms)
    assert clock.is_doubtful
    clock.measured(1_000_000, asked_ms=clock.now_ms() - MEASURED_WITHIN_MS)
    assert not clock.is_doubtful


def test_who_stood_still_is_in_doubt_until_it_has_measured() -> None:
    clock, loop = _clock()
    assert not clock.is_doubtful, "it never began to beat"
    clock.beat()
    loop.time_ms += int(BEAT_S * 1000)
    assert not clock.is_doubtful
    loop.time_ms += STANDSTILL_MS + 1
    assert clock.is_doubtful, "before the next beat, too"
    clock.beat()
    assert clock.is_doubtful
    clock.measured(1_000_000, asked_ms=clock.now_ms())
    assert not clock.is_doubtful


def test_the_doubt_ends_without_the_store() -> None:
    """Else a gateway that alone does not reach it would send everything back for ever."""
    clock, loop = _clock()
    clock.beat()
    loop.time_ms += STANDSTILL_MS + 1
    assert clock.is_doubtful
    for _ in range(int(DOUBT_MS / BEAT_S / 1000)):
        assert clock.is_doubtful
        loop.time_ms += int(BEAT_S * 1000)
        clock.beat()
    assert not clock.is_doubtful
