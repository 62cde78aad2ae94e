"""The audit trail: who asked for what, from where, and what became of it, one line of JSON each.

Nobody waits for the trail. A bounded queue takes the lines, a thread of its own writes them; what
finds no room is dropped and counted, and the next line that is queued says how many are missing
before it. Lines are written in the order of `AuditLog.write`.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import structlog

from sharecoord.config.endpoints import AuditSink, AuditSinkKind
from sharecoord.errors import InvalidConfigError, LimitExceededError, SharecoordError
from sharecoord.security.principals import Mechanism

log = structlog.get_logger(__name__)

TEXT_CHARS_MAX: Final = 1_000
"""Most characters of one text of an entry: a reason that an operator gives has as many."""

ENTRY_CHARS_MAX: Final = 5_000
"""Most characters of all texts of an entry. As JSON with escapes they are 60 KB at the most, which
the smallest queue holds and every topic takes."""

VALUE_CHARS: Final = 10
"""What each value counts for beside its text, so that a long list of numbers is bounded, too."""

BATCH_BYTES_MAX: Final = 256 << 10
"""Lines that are handed to the sink at once."""

RETRY_S: Final = 1.0
"""How long to wait before a sink that took nothing is tried again."""

STALLED_S: Final = 5.0
"""A sink that has not finished one batch for so long takes nothing: a disk or a broker that is slow
has done so by then."""

CLOSE_S: Final = 2.0
"""How long the end of the process waits for lines to be written; a drain takes as long."""

LOG_AGAIN_S: Final = 10.0
"""The process's own log tells of dropped entries at most so often."""

FILE_MODE: Final = 0o600
"""Mode of a file that is made: names and addresses are nobody else's business."""

_FILE_FLAGS: Final = (
    # Not blocking: a named pipe without a reader is an error at once, in place of a wait.
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK
)

_STANDARD_OUTPUT: Final = 1

Values = Mapping[str, object]
"""Small values by name: texts, numbers, and lists and mappings of them."""


class Outcome(StrEnum):
    """What became of a call."""

    OK = "ok"
    REFUSED = "refused"
    """The credentials, the rules or a quota are against it."""
    FAILED = "failed"
    """It was allowed, and ended with an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One call of one principal. Its texts may be of any length, and have any character."""

    time_ms: int
    """Since the epoch."""
    principal: str
    mechanism: Mechanism
    address: str
    """Where the caller is."""
    call: str
    outcome: Outcome
    coordinator_id: str
    resources: Sequence[str] = ()
    """What the call is about, such as `group:orders`."""
    asked: Values = field(default_factory=dict)
    """What the caller asked for; the only trace of the values of a call that was refused."""
    before: Values = field(default_factory=dict)
    """What the call changed, as it was."""
    after: Values = field(default_factory=dict)
    """What the call changed, as it is now."""
    reason: str = ""
    """Of the error: `AUTHORIZATION_FAILED` and so on."""
    why: str = ""
    """The line of the rules that decided, or the error's text."""


class AuditFigures(NamedTuple):
    """Numbers of lines since the process started."""

    written: int
    dropped: int
    is_failing: bool
    """Whether the sink takes nothing at the moment."""


# -- lines ----------------------------------------------------------------------------------------

_JSON: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"))


class _Texts:
    """Cuts the texts of one entry, each and all together."""

    def __init__(self) -> None:
        self._left = ENTRY_CHARS_MAX

    def cut(self, text: str) -> str:
        """The text, or its beginning with the number of characters that are missing."""
        kept = text[: min(TEXT_CHARS_MAX, self._left)]
        self._left -= len(kept)
        more = len(text) - len(kept)
        return f"{kept} ... ({more} characters more)" if more else kept

    def plain(self, value: object) -> object:
        """A value as JSON has it, with cut texts and with as many entries as there is room for."""
        self._left = max(0, self._left - VALUE_CHARS)
        if isinstance(value, str):
            return self.cut(value)
        if value is None or isinstance(value, int):
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if isinstance(value, Mapping):
            found: dict[str, object] = {}
            for number, (name, each) in enumerate(value.items()):
                if not self._left:
                    return found | {"...": f"{len(value) - number} more"}
                shown = self.cut(str(name))
                found[shown] = self.plain(each)
            return found
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            items: list[object] = []
            for number, each in enumerate(value):
                if not self._left:
                    return [*items, f"... {len(value) - number} more"]
                items.append(self.plain(each))
            return items
        return self.cut(str(value))


def line_of(entry: AuditEntry, *, dropped: int = 0) -> bytes:
    """The line of an entry, with its line end; empty fields are left out.

    JSON in ASCII: no name can end the line, hide a part of it or move a terminal's cursor.

    Args:
        entry: What happened.
        dropped: How many entries before it were dropped.
    """
    texts = _Texts()
    fields: dict[str, object] = {
        "time_ms": entry.time_ms,
        "outcome": entry.outcome,
        "principal": entry.principal,
        "mechanism": entry.mechanism,
        "address": entry.address,
        "call": entry.call,
        "reason": entry.reason,
        "why": entry.why,
        "coordinator_id": entry.coordinator_id,
        "resources": entry.resources,
        "before": entry.before,
        "after": entry.after,
        "asked": entry.asked,
    }
    said = {name: texts.plain(value) for name, value in fields.items() if value or value == 0}
    if dropped:
        said["dropped"] = dropped
    return _JSON.encode(said).encode("ascii") + b"\n"


# -- sinks ----------------------------------------------------------------------------------------


class LineSink(Protocol):
    """Takes lines, in the thread of an `AuditLog`."""

    def write(self, lines: Sequence[bytes]) -> int:
        """Writes lines, and waits for that; returns how many, from the first on: one at least.

        Raises:
            LimitExceededError: The sink never takes the first line, but maybe those behind it.
            OSError: Nothing was written; the same lines come again.
            SharecoordError: As OSError.
        """

    def close(self) -> None:
        """Nothing comes any more."""


class DescriptorSink:
    """Writes to a descriptor; who reads the other end of a pipe may take any time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_torn = False
        """Whether a line was written in part: it comes again, whole, on a line of its own."""

    def write(self, lines: Sequence[bytes]) -> int:
        """Writes lines."""
        before = b"\n" if self._is_torn else b""
        data = memoryview(before + b"".join(lines))
        done = 0
        try:
            while done < len(data):
                try:
                    done += os.write(self._descriptor, data[done:])
                except BlockingIOError:
                    ready = select.poll()
                    ready.register(self._descriptor, select.POLLOUT)
                    ready.poll()
        except OSError:
            whole, is_torn = _whole(lines, done - len(before))
            self._is_torn = is_torn or done < len(before)
            if not whole:
                raise
            return whole
        self._is_torn = False
        return len(lines)

    def close(self) -> None:
        """Leaves the descriptor open."""


def _whole(lines: Sequence[bytes], count: int) -> tuple[int, bool]:
    """How many lines the first `count` bytes hold, and whether a line end is missing behind them.

    The line end comes with the next line. So a line of which it alone is missing is whole.
    """
    for number, line in enumerate(lines):
        if count < len(line) - 1:
            return number, count > 0
        if count < len(line):
            return number + 1, True
        count -= len(line)
    return len(lines), False


class FileSink(DescriptorSink):
    """Appends to a file, and to another one of that name when the file was moved away.

    Lines are not forced to the disk. What was written survives the end of this process, whatever
    ends it. A loss of power may take the lines of the last seconds; to force each to the disk
    would slow down the commits of a store on the same disk. Who needs more has a topic.
    """

    def __init__(self, path: str) -> None:
        """Opens the file, which is made when there is none.

        Raises:
            OSError: That is not possible.
        """
        self._path = path
        super().__init__(self._open())

    def write(self, lines: Sequence[bytes]) -> int:
        """Writes lines to the file that has the name now."""
        if self._was_moved():
            descriptor = self._open()
            os.close(self._descriptor)
            self._descriptor, self._is_torn = descriptor, False
        return super().write(lines)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)

    def _open(self) -> int:
        return os.open(self._path, _FILE_FLAGS, FILE_MODE)

    def _was_moved(self) -> bool:
        try:
            there = Path(self._path).stat()
        except OSError:
            return True
        return not os.path.samestat(there, os.fstat(self._descriptor))


Done = Callable[[SharecoordError | None], None]
"""Called on the loop: None = the message is safe."""

Send = Callable[[str, bytes, Done], None]
"""Hands a message to a topic without waiting: topic, value, and what is called afterwards."""


class TopicSink:
    """Produces to a topic, one message a line. After an error, messages may come again."""

    def __init__(self, topic: str, send: Send, loop: asyncio.AbstractEventLoop) -> None:
        """Starts nothing; `send` is called on the loop."""
        self._topic = topic
        self._send = send
        self._loop = loop

    def write(self, lines: Sequence[bytes]) -> int:
        """Sends lines, and waits until all have an answer."""
        answers: list[Future[SharecoordError | None]] = [Future() for _ in lines]
        self._loop.call_soon_threadsafe(self._send_all, lines, answers)
        errors = [answer.result() for answer in answers]
        for number, error in enumerate(errors):
            if error is not None:
                if number:
                    return number
                raise error
        return len(lines)

    def _send_all(
        self, lines: Sequence[bytes], answers: Sequence[Future[SharecoordError | None]]
    ) -> None:
        for line, answer in zip(lines, answers, strict=True):
            try:
                self._send(self._topic, line.removesuffix(b"\n"), answer.set_result)
            except Exception as error:  # noqa: BLE001 - the thread waits for an answer
                answer.set_exception(error)

    def close(self) -> None:
        """Leaves the producer to its owner."""


def make_audit_log(sink: AuditSink, *, queue_max_bytes: int, send: Send) -> AuditLog | None:
    """The audit trail that the settings ask for; None = none. Called on the loop.

    Args:
        sink: `security.audit.sink`.
        queue_max_bytes: `security.audit.queue.max.bytes`.
        send: Produces to a topic. All messages of a process have one key: a partition keeps them
            in order.

    Raises:
        InvalidConfigError: Nothing can be written there.
    """
    found: LineSink
    if sink.kind is AuditSinkKind.OFF:
        return None
    if sink.kind is AuditSinkKind.KAFKA:
        found = TopicSink(sink.target, send, asyncio.get_running_loop())
    elif sink.kind is AuditSinkKind.STDOUT:
        # Its number may be of another file: of the store, or of a connection.
        if sys.__stdout__ is None:
            raise InvalidConfigError(
                "security.audit.sink=stdout: standard output is closed; use file:PATH"
            )
        found = DescriptorSink(_STANDARD_OUTPUT)
    else:
        try:
            found = FileSink(sink.target)
        except OSError as error:
            raise InvalidConfigError(
                f"security.audit.sink={sink}: can not append to {sink.target!r}: {error.strerror}. "
                "Name a file in a folder that this user may write to, or stdout"
            ) from error
    return AuditLog(found, queue_max_bytes=queue_max_bytes, name=str(sink))


# -- the queue ------------------------------------------------------------------------------------


class AuditLog:
    """The queue before a sink, and the thread that empties it."""

    def __init__(
        self,
        sink: LineSink,
        *,
        queue_max_bytes: int,
        name: str = "",
        retry_s: float = RETRY_S,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Starts the thread.

        Args:
            sink: Takes the lines.
            queue_max_bytes: Most bytes of lines that wait or are being written.
            name: The sink as the settings name it, for the process's own log.
            retry_s: As `RETRY_S`.
            now_s: A clock that never goes back, in seconds.
        """
        self._sink = sink
        self._queue_max_bytes = queue_max_bytes
        self._name = name
        self._retry_s = retry_s
        self._now_s = now_s
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._written = self._dropped = 0
        self._unsaid = 0
        """Dropped entries of which no line tells yet."""
        self._problem = ""
        """Why the sink took nothing at the last attempt; "" = it did."""
        self._began_s: float | None = None
        """When the batch that is being written was handed to the sink."""
        self._log_from_s = -math.inf
        self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="sharecoord-audit", daemon=True)
        self._thread.start()

    @property
    def figures(self) -> AuditFigures:
        """For metrics."""
        began_s = self._began_s
        stalled = began_s is not None and self._now_s() - began_s >= STALLED_S
        return AuditFigures(self._written, self._dropped, bool(self._problem) or stalled)

    def write(self, entry: AuditEntry) -> None:
        """Queues an entry, or drops it; never waits for the sink, never raises."""
        with self._changed:
            try:
                line = line_of(entry, dropped=self._unsaid)
            except Exception:
                # A value without a text must not fail the call that it is about.
                log.exception("audit: an entry could not be written down", call=entry.call)
                self._drop(1)
                return
            if self._has_room(entry, len(line)) and not self._is_closing:
                self._lines.append(line)
                self._waiting_bytes += len(line)
                self._unsaid = 0
                self._changed.notify_all()
                return
            self._drop(1)
        self._say_dropped()

    def _has_room(self, entry: AuditEntry, size_bytes: int) -> bool:
        """Whether an entry may wait. Refusals get into a queue that is half empty only.

        So nobody without rights can push out the traces of those who have some.
        """
        is_refusal = entry.outcome is Outcome.REFUSED
        if is_refusal and self._waiting_bytes > self._queue_max_bytes // 2:
            return False
        return self._waiting_bytes + size_bytes <= self._queue_max_bytes

    async def close(self) -> None:
        """Writes the lines that wait, within `CLOSE_S`; drops the others."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        await asyncio.to_thread(self._thread.join, CLOSE_S)
        with self._changed:
            self._drop(len(self._lines))
            self._lines.clear()
        if self._dropped:
            log.error("audit: entries were dropped", in_all=self._dropped, sink=self._name)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        while lines := self._next():
            try:
                taken = self._sink.write(lines)
            except LimitExceededError as error:
                log.error("audit: the sink refuses a line", why=error.message, sink=self._name)
                self._took(1, refused=True)
            except Exception as error:  # noqa: BLE001 - without its thread nothing more is written
                if self._gives_up(error):
                    break
            else:
                self._took(taken)
        self._sink.close()

    def _next(self) -> list[bytes]:
        """The next lines, which stay in the queue until they are written; none = the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_closing)
            batch: list[bytes] = []
            size_bytes = 0
            for line in self._lines:
                size_bytes += len(line)
                if batch and size_bytes > BATCH_BYTES_MAX:
                    break
                batch.append(line)
            self._began_s = self._now_s() if batch else None
            return batch

    def _took(self, count: int, *, refused: bool = False) -> None:
        with self._changed:
            # None when the end of the process has dropped them meanwhile.
            for _ in range(min(count, len(self._lines))):
                self._waiting_bytes -= len(self._lines.popleft())
                self._written += not refused
                self._drop(int(refused))
            self._began_s = None
            problem, self._problem = self._problem, ""
        if problem:
            log.warning("audit: lines are written again", sink=self._name)

    def _gives_up(self, error: Exception) -> bool:
        """Waits before the next attempt; returns whether there is none, for it is the end."""
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        with self._changed:
            problem, self._problem = self._problem, why
            self._began_s = None
        if not problem:
            log.error(
                "audit: nothing can be written; lines wait, and it is tried again",
                sink=self._name,
                why=why,
            )
        with self._changed:
            if self._is_closing:
                return True
            self._changed.wait_for(lambda: self._is_closing, self._retry_s)
            return False

    # -- what is lost ---------------------------------------------------------------------------

    def _drop(self, count: int) -> None:
        self._dropped += count
        self._unsaid += count

    def _say_dropped(self) -> None:
        now_s = self._now_s()
        if now_s >= self._log_from_s:
            self._log_from_s = now_s + LOG_AGAIN_S
            why = self._problem or "lines come faster than they are written"
            log.error("audit: entries are dropped", in_all=self._dropped, why=why, sink=self._name)
