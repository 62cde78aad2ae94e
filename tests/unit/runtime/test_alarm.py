"""The one timer of a share-partition."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.runtime.kernel.alarm import AGAIN_MS, Alarm
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.testing.virtual_time import virtual

from .worlds import now_s


@virtual
async def test_a_call_that_fails_is_made_again() -> None:
    loop = asyncio.get_running_loop()
    problems: list[object] = []
    loop.set_exception_handler(lambda _, context: problems.append(context["exception"]))
    rung_s: list[float] = []

    def on_time() -> None:
        rung_s.append(now_s())
        if len(rung_s) == 1:
            raise ValueError("unforeseen")

    alarm = Alarm(RuntimeClock(loop), on_time)
    alarm.ask(500)
    await asyncio.sleep(5)
    assert rung_s == pytest.approx([0.501, 0.501 + AGAIN_MS / 1000], abs=0.005)
    assert [type(problem) for problem in problems] == [ValueError]
    assert not alarm.is_set
