"""The coordinator's end of the event log: rows leave through a pipe to a process of their own.

All that the loop does is to marshal rows, ten times a second, and to write what the pipe takes at
once. What does not fit into `events.pipe.max.bytes` is dropped and counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Final

import structlog

from sharecoord.config.endpoints import EventsSinkKind
from sharecoord.config.process import ProcessConfig
from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    SharecoordError,
    UnauthorizedError,
)
from sharecoord.eventlog.schema import EventBlock
from sharecoord.events.counts import LOG_AGAIN_S
from sharecoord.events.frames import WriterSettings, frame_of_blocks, lost_block
from sharecoord.ports import EventFigures

log = structlog.get_logger(__name__)

FLUSH_S: Final = 0.1
"""Time that rows wait to be marshalled together: texts that repeat are written once."""

FLUSH_ROWS: Final = 512
"""Rows that are marshalled at once: the loop is to be held for less than a millisecond."""

FRAMES_PER_WRITE: Final = 256
"""Frames of one call of `writev`, which takes 1,024."""

PIPE_BYTES: Final = 1 << 20
"""Wanted size of the pipe, all that Linux allows: fewer turns of the loop while much is written."""

START_TIMEOUT_S: Final = 60.0
"""Longest start of a writer: Python, pyarrow from a cold disk, the answers of a slow broker."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Time for a writer to finish its files; rows in its spool then wait for the next writer."""

RESTART_S: Final = 1.0
"""Pause before a writer that died is started again; doubles."""

RESTART_MAX_S: Final = 30.0
"""Longest such pause. After a writer that lived as long, pauses begin with the shortest again."""

_ERRORS: Final[dict[str, type[SharecoordError]]] = {
    each.reason: each for each in (InvalidConfigError, KafkaUnavailableError, UnauthorizedError)
}
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def settings_of(config: ProcessConfig, coordinator_id: str, *, log_json: bool) -> WriterSettings:
    """The writer's settings out of a process's configuration."""
    events = config.events
    is_kafka = events.sink.kind is EventsSinkKind.KAFKA
    return WriterSettings(
        kind=events.sink.kind.value,
        target=events.sink.target,
        coordinator_id=coordinator_id,
        file_max_bytes=events.file_max_bytes,
        file_max_age_ms=events.file_max_age_ms,
        kafka=dict(config.kafka) if is_kafka else {},
        log_level=config.log.level.value,
        log_json=log_json,
    )


class _Writer:
    """A child process that writes, from its start to its end."""

    def __init__(self, sink: PipeSink) -> None:
        self._loop = asyncio.get_running_loop()
        # Blocked until the child ignores them: it ends when the pipe does.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process = subprocess.Popen(
                # -P: no module is imported from the working directory, as in the coordinator.
                [sys.executable, "-P", "-m", "sharecoord.events.writer"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        self.source = self._stdin.fileno()
        os.set_blocking(self.source, False)
        os.set_blocking(self._stdout.fileno(), False)
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self.source, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._began_s = self._loop.time()
        self.lived_s = 0.0
        self.is_renewed = False
        """Whether the writer ends because another one is to take its place."""
        self.answer: asyncio.Future[None] = self._loop.create_future()
        """Done when the writer can write, or fails with the reason why it can not."""
        self.problem = ""
        """Why the writer can not write, in its own words."""
        self.gone = asyncio.Event()
        self.settled = self.written = self.lost = 0
        self.sent = 0
        """Rows in frames that the pipe took."""
        self._text = b""
        self._sink = sink
        self._loop.add_reader(self._stdout.fileno(), self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, self._text = (self._text + data).split(b"\n")
        for line in lines:
            self._hear(json.loads(line))
        if not data:
            self._end()

    def _hear(self, said: Any) -> None:
        if isinstance(said, list):
            self.settled, self.written, self.lost = said
            self._sink.counted()
        elif "error" in said:
            self.problem = said["text"]
            self._can_not(_ERRORS.get(said["error"], InvalidConfigError)(self.problem))
        else:
            self.answer.set_result(None)
            self._sink.ready()

    def _can_not(self, error: SharecoordError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # marked as seen: nobody may wait for it

    def _end(self) -> None:
        """Handles the end of the writer's output: the process is gone, or about to end."""
        self._loop.remove_reader(self._stdout.fileno())
        self.close_pipe()
        self.lived_s = self._loop.time() - self._began_s
        self._can_not(
            InvalidConfigError("events.sink: the writer ended at once; see what it has logged")
        )
        self._sink.ended()
        self.gone.set()

    @property
    def is_open(self) -> bool:
        """Whether the pipe to the writer is open; later its descriptor may be of another file."""
        return not self._stdin.closed

    def close_pipe(self) -> None:
        """Lets the writer finish its work and end."""
        if self.is_open:
            self._loop.remove_writer(self.source)
            self._stdin.close()

    async def reap(self) -> int:
        """Kills the writer if it lives; returns its exit code (negative: a signal)."""
        self.process.kill()
        await self.gone.wait()  # its last answers may still be in the pipe
        code = await asyncio.to_thread(self.process.wait)
        self._stdout.close()
        return code


class PipeSink:
    """The `EventSink` of a coordinator; called on its loop."""

    def __init__(
        self, settings: WriterSettings, *, pipe_max_bytes: int, now_us: Callable[[], int]
    ) -> None:
        """Starts nothing.

        Args:
            settings: For the writer.
            pipe_max_bytes: Most bytes that may wait for the pipe.
            now_us: The store's clock, microseconds since the epoch.
        """
        self._settings = settings
        self._pipe_max_bytes = pipe_max_bytes
        self._now_us = now_us
        self._blocks: list[EventBlock] = []
        self._rows = 0
        self._timer: asyncio.TimerHandle | None = None
        self._frames: deque[tuple[bytes, int]] = deque()
        """Frames that the pipe has not taken, or only in part, each with its number of rows."""
        self._taken_bytes = 0
        """Bytes of the first frame that the pipe has taken."""
        self._waiting_bytes = 0
        self._unsaid = 0
        """Lost rows of which no row of kind `lost` tells yet."""
        self._said: deque[tuple[int, int]] = deque()
        """Rows of kind `lost` under way: rows sent up to each, and how many rows it tells of."""
        self._written = 0
        self._lost = 0
        """Rows written and lost by former writers."""
        self._writer: _Writer | None = None
        """The writer that lives."""
        self._newest: _Writer | None = None
        """The writer that lives, or else the one that lived last."""
        self._is_ready = False
        self._is_closing = False
        self._supervisor: asyncio.Task[None] | None = None
        self._log_from_s = 0.0

    async def start(self) -> None:
        """Starts the writer, and waits until it can write.

        Raises:
            InvalidConfigError: pyarrow is not installed, the directory can not be written, Kafka
                refuses the topic.
            KafkaUnavailableError: Kafka does not answer.
        """
        try:
            writer = self._spawn()
            async with asyncio.timeout(START_TIMEOUT_S):
                await asyncio.shield(writer.answer)
        except BaseException as error:
            self._is_closing = True
            await self._stop(0)
            if isinstance(error, TimeoutError):
                raise InvalidConfigError(
                    f"events.sink: the writer was not ready within {START_TIMEOUT_S:.0f} s"
                ) from error
            raise
        self._supervisor = asyncio.create_task(self._supervise(), name="event writer")

    @property
    def writer_pid(self) -> int | None:
        """The process id of the writer; None while there is none."""
        return None if self._writer is None else self._writer.process.pid

    @property
    def figures(self) -> EventFigures:
        """Rows written, rows lost, and bytes that wait."""
        writer = self._writer
        written, lost = (writer.written, writer.lost) if writer is not None else (0, 0)
        return EventFigures(self._written + written, self._lost + lost, self._waiting_bytes)

    # -- rows in --------------------------------------------------------------------------------

    def put(self, block: EventBlock) -> None:
        """Takes rows."""
        count = len(block.rows)
        if not count or self._is_closing:
            self._drop(count)
            return
        self._blocks.append(block)
        self._rows += count
        if self._rows >= FLUSH_ROWS:
            self._flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _drop(self, rows: int) -> None:
        self._lost += rows
        self._unsaid += rows

    def _flush(self) -> None:
        """Marshals the rows of all groups; the writer has the time to sort them."""
        self._cancel_timer()
        if self._unsaid and self._waiting_bytes <= self._pipe_max_bytes // 2:
            self._say_lost()
        if self._blocks:
            self._queue()
        self._write()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _queue(self) -> None:
        """Lets the blocks wait for the pipe, or drops them."""
        blocks, self._blocks = self._blocks, []
        rows, self._rows = self._rows, 0
        try:
            data = frame_of_blocks(blocks)
        except ValueError:
            log.exception("event log: values of a type that no column has", rows=rows)
            self._drop(rows)
            return
        if self._waiting_bytes + len(data) > self._pipe_max_bytes:
            self._drop(rows)
            return
        self._frames.append((data, rows))
        self._waiting_bytes += len(data)

    def _say_lost(self) -> None:
        """Queues a row that tells how many rows were dropped; half of the room is free again."""
        unsaid, self._unsaid = self._unsaid, 0
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._log_from_s:
            self._log_from_s = now_s + LOG_AGAIN_S
            log.warning("event log: rows were lost", in_all=self.figures.lost)
        self._frames.append((frame_of_blocks([lost_block(self._now_us(), unsaid)]), 1))
        self._waiting_bytes += len(self._frames[-1][0])
        sent = 0 if self._writer is None else self._writer.sent
        self._said.append((sent + sum(rows for _, rows in self._frames), unsaid))

    # -- the pipe -------------------------------------------------------------------------------

    def _write(self) -> None:
        """Writes as many frames as the pipe takes at once."""
        writer = self._writer
        if writer is None or not self._is_ready or not writer.is_open:
            return
        frames = self._frames
        while frames:
            parts = [data for data, _ in islice(frames, FRAMES_PER_WRITE)]
            parts[0] = parts[0][self._taken_bytes :]
            try:
                taken = os.writev(writer.source, parts)
            except BlockingIOError:
                break
            except BrokenPipeError:
                return  # it is about to end
            self._took(writer, taken)
        loop = asyncio.get_running_loop()
        if frames:
            loop.add_writer(writer.source, self._write)
            return
        loop.remove_writer(writer.source)
        if self._unsaid:
            self._timer = self._timer or loop.call_later(FLUSH_S, self._flush)
        if self._is_closing:
            writer.close_pipe()

    def _took(self, writer: _Writer, count: int) -> None:
        """Notes that the pipe took `count` bytes."""
        self._waiting_bytes -= count
        count += self._taken_bytes
        while self._frames and count >= len(self._frames[0][0]):
            data, rows = self._frames.popleft()
            count -= len(data)
            writer.sent += rows
        self._taken_bytes = count

    # -- the writer -----------------------------------------------------------------------------

    def _spawn(self) -> _Writer:
        """Starts a writer; raises OSError when that is not possible."""
        writer = self._writer = self._newest = _Writer(self)
        with contextlib.suppress(BrokenPipeError):  # the writer has ended; `_read` handles it
            os.write(writer.source, self._settings.frame())  # fits into the empty pipe
        return writer

    def ready(self) -> None:
        """Called when the writer can write."""
        self._is_ready = True
        self._write()

    def counted(self) -> None:
        """Called when the writer has sent its counts."""
        writer = self._writer
        while writer is not None and self._said and self._said[0][0] <= writer.settled:
            self._said.popleft()

    def ended(self) -> None:
        """Called when the writer is gone: rows that it has not confirmed count as lost."""
        writer = self._writer
        assert writer is not None, "it ends once"
        self._writer, self._is_ready = None, False
        self._waiting_bytes += self._taken_bytes
        self._taken_bytes = 0
        self._written += writer.written
        self._lost += writer.lost
        self._drop(writer.sent - writer.settled)
        still: deque[tuple[int, int]] = deque()
        for rows, records in self._said:
            if rows > writer.sent:
                still.append((rows - writer.sent, records))
            else:
                self._unsaid += records
        self._said = still

    def renew(self, files: Mapping[str, bytes]) -> None:
        """Lets another writer go on, whose client has these files of Kafka's certificates.

        The one before writes what it has taken, and ends. A writer of Parquet files stays.

        Args:
            files: Contents, by librdkafka's keys.
        """
        self._settings = replace(self._settings, files=dict(files))
        if self._settings.kafka and self._writer is not None and not self._is_closing:
            self._writer.is_renewed = True
            self._writer.close_pipe()

    async def _supervise(self) -> None:
        """Starts a writer again when it has died, or is renewed."""
        pause_s = RESTART_S
        while self._newest is not None:
            writer = self._newest
            await writer.gone.wait()
            code = await writer.reap()
            if writer.lived_s >= RESTART_MAX_S:
                pause_s = RESTART_S
            if not writer.is_renewed:
                log.error(
                    "event log: the writer ended; it is started again",
                    exit_code=code,
                    reason=writer.problem,
                    pause_s=pause_s,
                    rows_lost=self._unsaid,
                )
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, RESTART_MAX_S)
            try:
                self._spawn()
            except Exception:
                # Without the next attempt no row would ever be written again.
                log.exception("event log: the writer can not be started")

    async def close(self) -> None:
        """Writes the rows that wait, then ends the writer; gives up after `CLOSE_TIMEOUT_S`."""
        if self._is_closing:
            return
        self._flush()
        self._is_closing = True
        if self._supervisor is not None:
            self._supervisor.cancel()
        self._write()
        await self._stop(CLOSE_TIMEOUT_S)
        self._cancel_timer()
        self._drop(sum(rows for _, rows in self._frames))
        self._frames.clear()
        self._waiting_bytes = 0
        if self._unsaid:
            log.warning("event log: rows were lost", rows=self._unsaid, in_all=self.figures.lost)

    async def _stop(self, timeout_s: float) -> None:
        """Waits for the writer's end, then kills it."""
        if self._writer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._writer.gone.wait()
        if self._newest is not None:
            await self._newest.reap()
