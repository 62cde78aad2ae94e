"""The loop whose short timers are good to microseconds."""

from __future__ import annotations

import asyncio
import os
import select
import sys

import pytest

from sharecoord.runtime.kernel import precise_loop as module
from sharecoord.runtime.kernel.precise_loop import precise_loop

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="kqueue needs no help")


class Waits:
    """`select.select`, written down; time does not pass in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked_s: list[float] = []
        monkeypatch.setattr(select, "select", self.select)

    def select(
        self, read: tuple[object, ...], write: object, errors: object, timeout: float
    ) -> None:
        """Notes how long it was to wait."""
        self.asked_s.append(timeout)
        assert read


def test_short_timers_are_waited_for_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    selector = module.PreciseSelector()
    assert selector.select(0.0007) == []
    assert selector.select(0) == []
    assert waits.asked_s == [0.0007]
    selector.close()


def test_what_is_ready_is_told_at_once() -> None:
    selector = module.PreciseSelector()
    ours, theirs = os.pipe()
    selector.register(ours, 1, "pipe")
    os.write(theirs, b"x")
    [(key, events)] = selector.select(0.009)
    assert (key.data, events) == ("pipe", 1)
    selector.close()
    os.close(ours)
    os.close(theirs)


def test_a_process_with_many_open_files_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = Waits(monkeypatch)
    monkeypatch.setattr(module, "FD_LIMIT", 0)
    selector = module.PreciseSelector()
    assert selector.select(0.0001) == []
    assert waits.asked_s == []
    selector.close()


def test_the_loop_runs_timers_and_sockets() -> None:
    async def both() -> str:
        ours, theirs = os.pipe()
        loop = asyncio.get_running_loop()
        heard = loop.create_future()
        loop.add_reader(ours, heard.set_result, "heard")
        loop.call_later(0.0005, os.write, theirs, b"x")
        try:
            return str(await heard)
        finally:
            loop.remove_reader(ours)
            os.close(ours)
            os.close(theirs)

    with asyncio.Runner(loop_factory=precise_loop) as runner:
        assert runner.run(both()) == "heard"
