"""Timers, each a thread of its own, that the end of the process waits for: see `stream.py`."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from threading import Thread, Timer
from typing import Any, Final

# Seconds that a thread has for its end.
END_S: Final = 1.0

# Timers whose threads run. A forked child has none.
_TIMERS: Final[set[Timer]] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_TIMERS.clear)


def make(name: str, wait_s: float, function: Callable[..., None], *arguments: Any) -> Timer:
    """A timer that, once started, calls a function in `wait_s` seconds, in a daemon thread.

    The function calls `forget`, first or last.
    """
    timer = Timer(max(0.0, wait_s), function, arguments)
    timer.name, timer.daemon = name, True
    return timer


def start(timer: Timer) -> None:
    """Starts a timer, which may be over when this returns.

    Raises:
        RuntimeError: The system gives no thread.
    """
    _TIMERS.add(timer)
    try:
        timer.start()
    except BaseException:
        _TIMERS.discard(timer)
        raise


def is_known(timer: Timer | None) -> bool:
    """Whether somebody has to end the timer: it was started in this process, and not forgotten."""
    return timer in _TIMERS


def forget(timer: Thread | None) -> None:
    """Leaves a timer that has fired to itself."""
    _TIMERS.discard(timer)


def cancel(timer: Timer | None) -> None:
    """Ends a timer that has not fired; never blocks."""
    if timer is not None and is_known(timer):
        timer.cancel()
        forget(timer)


def end(timer: Timer) -> None:
    """Ends a timer, and waits for its thread."""
    timer.cancel()
    if timer.is_alive():
        timer.join(END_S)
    forget(timer)


@atexit.register
def _end_all() -> None:
    for timer in list(_TIMERS):
        end(timer)
