"""A thread that runs a relay until it is stopped."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from typing import Self

from sharecoord_sdk._core.errors import IllegalStateException

_log = logging.getLogger("sharecoord_sdk")


class RelayThread(ABC):
    """A relay from `start` to `stop`, or for the length of a `with` block."""

    def __init__(self, thread_name: str) -> None:
        self._thread_name = thread_name
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._last_text = ""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the thread; the first look comes at once.

        Raises:
            IllegalStateException: It was started before.
        """
        if self._thread is not None:
            raise IllegalStateException("a relay runs once; make a new one")
        self._thread = threading.Thread(target=self._run, name=self._thread_name, daemon=True)
        self._thread.start()

    @abstractmethod
    def stop(self) -> None: ...

    def _join(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    @abstractmethod
    def _run(self) -> None:
        """Runs the relay until `_stop` is set."""

    def _log_once(self, text: str) -> None:
        """Logs a problem, once while it is the same."""
        if text != self._last_text:
            self._last_text = text
            _log.warning(text)
