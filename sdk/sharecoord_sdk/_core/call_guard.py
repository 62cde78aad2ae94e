"""Exclusive use of a consumer by one thread or task, and its repair after an interrupted call."""

from __future__ import annotations

import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .core import ConsumerCore
from .errors import ConcurrentModificationException, IllegalStateException

# Owns no record: see `CallGuard._quick`.
_NOBODY: Final = object()
# Every consumer of this process.
_OPENED: Final[weakref.WeakSet[CallGuard]] = weakref.WeakSet()


class CallGuard(ABC):
    """The frame around every call of a consumer's methods."""

    # Without a run of the constructor an object counts as closed, as the twin's does.
    _closed = True
    _core: ConsumerCore | None = None

    def _open(self, *, explicit: bool) -> None:
        self._explicit = explicit
        self._in_callback = False
        # Held while somebody enters, and while `_hand_back_unseen` is at work.
        self._guard = threading.RLock()
        self._is_hand_back_due = False
        # Whether a token has come that the stream may not have been shown yet.
        self._is_token_due = False
        # The thread or task that is inside a call, and how deep.
        self._user: int | None = None
        self._depth = 0
        # Set while something is done that an exception must not leave half done; see `_as_a_whole`.
        self._is_half_done = False
        # Shown by records that this consumer may acknowledge. No reference to the consumer.
        self._token = object()
        self._pid = os.getpid()
        self._closed = False
        # The token while `acknowledge` may take its short way: explicit mode, open, nobody inside,
        # and not in a forked child.
        self._quick: object = self._token if explicit else _NOBODY
        _OPENED.add(self)

    @abstractmethod
    def _schedule_hand_back(self, at: float) -> None:
        """Schedules `_hand_back_unseen`, for a time when nobody is inside a call; inf = never."""

    @abstractmethod
    def _show_token(self) -> None:
        """Passes a token on that has come, unless somebody is inside a call."""

    @abstractmethod
    def _caller_id(self) -> int:
        """The id of the thread or task that calls."""

    @staticmethod
    def _now() -> float:
        return time.monotonic()

    def _check_open(self) -> None:
        if self._closed:
            raise IllegalStateException("Share consumer closed")
        if os.getpid() != self._pid:
            raise IllegalStateException(
                "This share consumer was made before a fork: gRPC connections do not survive one."
                " Make a new consumer in the child process"
            )
        if self._in_callback:
            raise IllegalStateException(
                "Consumer methods must not be called from the acknowledgement commit callback"
            )

    @contextmanager
    def _use(self) -> Iterator[ConsumerCore]:
        """Enters a call: one thread or task at a time, which may enter again (signal handlers)."""
        self._check_open()
        core = self._core
        assert core is not None, "an open consumer has a core"
        me = self._caller_id()
        with self._guard:
            if self._user not in (None, me):
                raise ConcurrentModificationException(
                    "Share consumer is not safe for multi-threaded access."
                    f" currentThread(id: {me}) otherThread(id: {self._user})"
                )
            self._user = me
        self._quick = _NOBODY
        self._depth += 1
        try:
            self._enter(core)
            yield core
        finally:
            self._depth -= 1
            if self._depth == 0:
                self._user = None
                if self._is_hand_back_due:
                    self._is_hand_back_due = False
                    self._schedule_hand_back(core.hand_back_unseen_at)
                if self._is_token_due:
                    self._show_token()
                if self._explicit and not self._closed:
                    self._quick = self._token

    def _enter(self, core: ConsumerCore) -> None:
        """Notes what earlier calls returned; joins anew after one that was left half done."""
        broke_off = self._is_half_done and self._depth == 1
        with self._as_a_whole():
            core.locks.note_given(at_rest=self._depth == 1)
            if broke_off:
                core.join_anew(self._now())
        if broke_off:
            self._is_half_done = False

    def _as_a_whole(self) -> _Whole:
        """Marks the block as half done while it runs.

        A signal's handler raises anywhere, and a thread can not always be started. The next call
        finds the mark that is left then, and has the coordinator compare locks anew.
        """
        return _Whole(self)


class _Whole:
    """The block of `_as_a_whole`. No generator, because a poll has several."""

    __slots__ = ("_before", "_guarded")

    def __init__(self, guarded: CallGuard) -> None:
        self._guarded = guarded

    def __enter__(self) -> None:
        self._before = self._guarded._is_half_done
        self._guarded._is_half_done = True

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is None:
            self._guarded._is_half_done = self._before


def _after_fork() -> None:
    """Sends every call in a forked child the long way, where it is refused."""
    for each in list(_OPENED):
        each._quick = _NOBODY


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
