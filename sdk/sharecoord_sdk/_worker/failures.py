"""How much of the failures of handlers is logged: all of a few, less of a flood."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

WINDOW_S: Final = 60.0
TRACES_MAX: Final = 10
"""Tracebacks per handler and window: a stack is some kilobytes."""
LINES_MAX: Final = 100
"""Lines per handler and window; what follows is counted."""


class FailureLog:
    """Counts failures by handler."""

    def __init__(self) -> None:
        # By handler: when its window began, and its failures since.
        self._windows: dict[str, tuple[float, int]] = {}

    def count(self, handler: str, now: float) -> int:
        """Counts one failure; returns which one of its window it is, 1 = the first."""
        began, count = self._windows.get(handler, (now, 0))
        self._windows[handler] = began, count + 1
        return count + 1

    def over(self, now: float) -> Iterator[str]:
        """What is to be said of windows that are over; forgets them."""
        for handler, (began, count) in list(self._windows.items()):
            if now >= began + WINDOW_S:
                del self._windows[handler]
                if count > LINES_MAX:
                    yield (
                        f"handler {handler} failed {count - LINES_MAX} more times that were not"
                        " logged"
                    )
