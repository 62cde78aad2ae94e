"""Standard error that never holds up a writer: a bounded queue, and a thread that writes.

A pipe that nobody reads takes 64 KiB, a reader may be gone, the log's disk may be full. The process
goes on in each case; lines that find no room are dropped and counted, and a line says how many as
soon as one can be written again.
"""

from __future__ import annotations

import atexit
import io
import os
import select
import sys
import threading
import time
from collections import deque
from typing import Final, TextIO

import structlog

log = structlog.get_logger(__name__)

QUEUE_CHARS_MAX: Final = 1 << 20
"""Characters that wait for the descriptor: 4,000 usual lines, so that a burst fits."""

LINE_CHARS_MAX: Final = 64 << 10
"""A longer line loses its end: one line must not fill the queue."""

FLUSH_S: Final = 1.0
"""How long the end of the process waits for lines to be written."""

STANDARD_ERROR: Final = 2
"""Number of its descriptor."""

TAKEN_UP_AFTER_S: Final = 1.0
"""How long the thread waits at a time for a descriptor that takes nothing at the moment."""


class LineWriter:
    """Writes lines to a descriptor, from a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        """Starts the thread; the descriptor stays open."""
        self.dropped = 0
        """Lines that were not written since the start."""
        self._descriptor = descriptor
        self._unsaid = 0
        self._problem = ""
        self._is_torn = False
        self._lines: deque[str] = deque()
        self._waiting_chars = 0
        self._is_writing = False
        # Reentrant: a destructor may log while its thread is in here.
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._run, name="sharecoord-log", daemon=True).start()

    def put(self, line: str) -> None:
        """Queues a line with its line end; never waits for the descriptor."""
        if len(line) > LINE_CHARS_MAX:
            line = f"{line[:LINE_CHARS_MAX]} … ({len(line) - LINE_CHARS_MAX} characters more)\n"
        with self._changed:
            if self._waiting_chars + len(line) > QUEUE_CHARS_MAX:
                self._drop("it takes lines more slowly than they come")
                return
            self._lines.append(line)
            self._waiting_chars += len(line)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> None:
        """Waits until all lines are written, at most for `timeout_s`."""
        deadline_s = time.monotonic() + timeout_s
        with self._changed:
            while self._lines or self._is_writing:
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return
                self._changed.wait(left_s)

    def _drop(self, problem: str) -> None:
        self.dropped += 1
        self._unsaid += 1
        self._problem = problem

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_writing = False
                self._changed.notify_all()
                while not self._lines:
                    self._changed.wait()
                line = self._lines.popleft()
                self._waiting_chars -= len(line)
                self._is_writing = True
            self._write(line)

    def _write(self, line: str) -> None:
        data = line.encode("utf-8", "backslashreplace")
        if self._is_torn:
            # The line before it was written in part.
            data = b"\n" + data
        try:
            while data:
                try:
                    data = data[os.write(self._descriptor, data) :]
                    self._is_torn = bool(data)
                except BlockingIOError:
                    select.select((), (self._descriptor,), (), TAKEN_UP_AFTER_S)
        except OSError as error:
            with self._changed:
                self._drop(error.strerror or type(error).__name__)
            return
        self._say_dropped()

    def _say_dropped(self) -> None:
        """Logs how many lines were dropped, once the descriptor takes lines and there is room."""
        with self._changed:
            if not self._unsaid or self._waiting_chars > QUEUE_CHARS_MAX // 2:
                return
            lines, self._unsaid = self._unsaid, 0
        log.error("lines of this log were dropped: standard error", lines=lines, why=self._problem)


class QueuedStream(io.TextIOBase):
    """Takes the place of `sys.stderr`: whole lines go to a `LineWriter`."""

    def __init__(self, plain: TextIO, writer: LineWriter) -> None:
        self._plain = plain
        self._writer = writer
        self._begun = ""
        self._lock = threading.RLock()

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Encoding of the text that is written."""
        return "utf-8"

    @property
    def errors(self) -> str:  # type: ignore[override]
        """Error handler for lone surrogates."""
        return "backslashreplace"

    def writable(self) -> bool:
        """Always."""
        return True

    def isatty(self) -> bool:
        """Whether the stream is a terminal."""
        return self._plain.isatty()

    def fileno(self) -> int:
        """The descriptor, which child processes inherit."""
        return self._plain.fileno()

    def write(self, text: str) -> int:
        """Queues the lines that the text completes."""
        with self._lock:
            begun = self._begun + text
            whole, end, self._begun = begun.rpartition("\n")
        if end:
            self._writer.put(whole + end)
        return len(text)


_writers: list[LineWriter] = []
"""The writer of this process, once there is one."""


def guard_standard_error() -> None:
    """Puts a queue before standard error, so that no Python code waits for it; once per process."""
    if _writers:
        return
    plain: TextIO | None = sys.stderr
    if plain is None:
        # Standard error was closed before the start: the next file to be opened, such as the store,
        # would get its number, and with it the output of libraries.
        while (descriptor := os.open(os.devnull, os.O_RDWR)) < STANDARD_ERROR:
            pass
        plain = os.fdopen(descriptor, "w", encoding="utf-8")
    plain.flush()
    writer = LineWriter(plain.fileno())
    _writers.append(writer)
    sys.stderr = QueuedStream(plain, writer)
    atexit.register(writer.flush, FLUSH_S)


def dropped_lines() -> int:
    """Lines of this process's log that were not written."""
    return sum(writer.dropped for writer in _writers)
