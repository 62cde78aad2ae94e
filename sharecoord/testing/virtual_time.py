"""An asyncio loop whose clock jumps to the next timer instead of waiting.

A million simulated seconds take milliseconds, the same program runs the same way each time, and a
program that waits for nothing is reported as stuck.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "StuckError",
    "VirtualTimeLoop",
    "run_virtual",
    "virtual",
]

P = ParamSpec("P")
T = TypeVar("T")


class StuckError(RuntimeError):
    """Nothing is left to wait for: the program can not go on."""


class _JumpingSelector(selectors.SelectSelector):
    """Turns each wait of the loop into a jump of the virtual clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Most programs wait for no file: then the only one is the loop's own, of other threads.
        ready = super().select(0) if len(self.get_map()) > 1 else []
        if not ready:
            if timeout is None:
                raise StuckError("nothing left to wait for")
            self.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop on virtual time; threads must not be used with it."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._jumping.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs `main` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def virtual(
    test: Callable[P, Coroutine[Any, Any, None]],
) -> Callable[P, None]:
    """Makes a coroutine function a plain test that runs on virtual time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run
