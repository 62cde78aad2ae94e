"""The coordinator's end of its process of producers: started at the first call, gone when idle.

librdkafka's threads and queues are in that process, not in the one that serves records. A call that
the process did not answer, for it has died, ends with KafkaUnavailableError: whoever called tries
again, for nothing counts as sent that was not confirmed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from sharecoord.core.letters.dead_letters import OutboxMark
from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthorizedError
from sharecoord.kafka.refusals import COMMIT, Refusals
from sharecoord.ports import CommittedOffset, OutgoingMessage, ProducerFigures
from sharecoord.producing import frames
from sharecoord.producing.frames import (
    Answer,
    FrameWriter,
    ProducerSettings,
    error_of,
    frame,
    read_frame,
)

log = structlog.get_logger(__name__)

UNSENT_BYTES_MAX: Final = 16 << 20
"""Bytes that the process has not taken yet; beyond it, messages are refused, and come again."""

RESTART_S: Final = 1.0
"""Pause before a process that died is started again; doubles."""

RESTART_MAX_S: Final = 30.0
"""Longest such pause. After a process that lived as long, pauses begin with the shortest again."""

IDLE_S: Final = 600.0
"""A process that nobody has called for so long is ended."""

CLOSE_TIMEOUT_S: Final = 10.0
"""Time for what is under way at the end; the next owner sends the rest again."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

Done = Callable[[SharecoordError | None, Any], None]


class _Process:
    """A process, from its start to its end."""

    def __init__(
        self,
        settings: ProducerSettings,
        heard_closed: Callable[[int], None],
        ended: Callable[[bool], None],
    ) -> None:
        """Starts it; `ended` is told that it ended by itself, and whether somebody waited."""
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        # Blocked until the child ignores them: it ends when the socket does.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self.process = subprocess.Popen(
                # -P: no module is imported from the working directory, as in the coordinator.
                [sys.executable, "-P", "-m", "sharecoord.producing.process"],
                stdin=theirs.fileno(),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            theirs.close()
        self._heard_closed = heard_closed
        self._ended = ended
        self._has_answered = False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Done] = {}
        self._frames = FrameWriter()
        self._frames.send(settings.frame())
        self._began_s = self.used_s = self._loop.time()
        self.ending = False
        self.gone_s: float | None = None
        """When it ended; None = it lives."""
        self.run = asyncio.create_task(self._run(ours), name="producers")

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the process has not taken yet."""
        return self._frames.unsent_bytes

    @property
    def idle_s(self) -> float:
        """For how long nobody has called; 0 while somebody waits."""
        return 0.0 if self._waiting else self._loop.time() - self.used_s

    @property
    def lived_s(self) -> float:
        """How old it is, or was."""
        return (self.gone_s or self._loop.time()) - self._began_s

    @property
    def is_proven(self) -> bool:
        """Whether it lives, and is not one of those that end again and again."""
        return self.gone_s is None and (self._has_answered or self.lived_s >= RESTART_MAX_S)

    def post(self, name: str, arguments: Sequence[Any], done: Done) -> None:
        """Sends a call; `done` is told the answer, in a later turn of the loop."""
        self.used_s = self._loop.time()
        number = next(self._numbers)
        call = frame((number, name, *arguments))
        self._waiting[number] = done
        self._frames.send(call)

    def end(self) -> None:
        """Lets it finish what is under way, and go."""
        self.ending = True
        self._frames.send(frame((0, frames.CLOSE)))

    async def _run(self, ours: socket.socket) -> None:
        try:
            reader, writer = await asyncio.open_connection(sock=ours)
            self._frames.begin(writer)
            while (answer := await read_frame(reader)) is not None:
                self._hear(answer)
            writer.close()
        finally:
            self.gone_s = self._loop.time()
            self.process.kill()
            code = await asyncio.to_thread(self.process.wait)
            if not self.ending:
                log.error("the process of producers ended; it is started again", exit_code=code)
                self._ended(bool(self._waiting))
            waiting, self._waiting = self._waiting, {}
            for done in waiting.values():
                self._loop.call_soon(done, _died(), None)

    def _hear(self, answer: Answer) -> None:
        number, error, value, closed = answer
        self._has_answered = True
        for outbox in closed:
            self._heard_closed(outbox)
        done = self._waiting.pop(number)
        self._loop.call_soon(done, None if error is None else error_of(error), value)


class Producers:
    """The process of producers of a coordinator, and what can be asked of it."""

    def __init__(self, settings: ProducerSettings, refusals: Refusals | None = None) -> None:
        """Starts nothing; `refusals` are shared with the catalog of the same cluster."""
        self._settings = settings
        self._process: _Process | None = None
        self._ending: set[asyncio.Task[None]] = set()
        self._opened: dict[int, ProcessTransactions] = {}
        self._not_before_s = 0.0
        self._pause_s = 0.0
        self._closing = False
        self._restarts = 0
        self._failed = False
        """Whether the last process ended while somebody waited, or could not be started."""
        self._timer: asyncio.TimerHandle | None = None
        self.dead_letters = ProcessDeadLetters(self)
        self.offsets_export = ProcessOffsetsExport(
            self, Refusals() if refusals is None else refusals
        )

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        found = self._process
        return None if found is None or found.gone_s is not None else found.process.pid

    @property
    def unsent_bytes(self) -> int:
        """Memory of messages that the process has not taken yet."""
        return 0 if self._process is None else self._process.unsent_bytes

    @property
    def figures(self) -> ProducerFigures:
        """For metrics."""
        found = self._process
        return ProducerFigures(
            is_running=self.pid is not None,
            is_down=self._failed and not (found is not None and found.is_proven),
            restarts=self._restarts,
            waiting_bytes=self.unsent_bytes,
        )

    async def check(self) -> None:
        """Lets librdkafka look at all settings, also those that only producers need.

        Raises:
            InvalidConfigError: librdkafka does not have a key, or not with this value.
        """
        await self.call(frames.CHECK)
        self._end_process()

    def renew(self, files: Mapping[str, bytes]) -> None:
        """Lets the next call start a process whose clients have these files of certificates.

        The one before finishes what is under way, as when it is idle. What it does not finish is
        not confirmed, and comes again.

        Args:
            files: Contents, by librdkafka's keys.
        """
        self._settings = replace(self._settings, files=dict(files))
        self._end_process()

    def post(self, name: str, arguments: Sequence[Any], done: Done) -> None:
        """Sends a call; `done` is told the answer, in a later turn of the loop."""
        try:
            self._running().post(name, arguments, done)
        except SharecoordError as error:
            asyncio.get_running_loop().call_soon(done, error, None)

    async def call(self, name: str, *arguments: Any) -> Any:
        """The answer to a call."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(error: SharecoordError | None, value: Any) -> None:
            if answer.done():
                return
            if error is None:
                answer.set_result(value)
            else:
                answer.set_exception(error)

        self.post(name, arguments, done)
        return await answer

    def opened(self, outbox: int, transactions: ProcessTransactions) -> None:
        """Keeps what is to hear when its outbox is not open any more."""
        self._opened[outbox] = transactions

    async def close(self) -> None:
        """Ends the process, which has `CLOSE_TIMEOUT_S` for what is under way."""
        self._closing = True
        self._end_process()
        if self._ending:
            await asyncio.wait(self._ending)

    def _running(self) -> _Process:
        """The process, started when there is none."""
        loop = asyncio.get_running_loop()
        found = self._process
        if found is not None and found.gone_s is not None:
            self._bury(found, found.gone_s)
        if self._process is None:
            if self._closing:
                raise KafkaUnavailableError("this coordinator is shutting down")
            if loop.time() < self._not_before_s:
                raise _died()
            try:
                self._process = _Process(self._settings, self._heard_closed, self._note_end)
            except OSError as error:
                self._note_end(somebody_waited=True)
                self._not_before_s = loop.time() + RESTART_S
                raise KafkaUnavailableError(
                    f"the process that produces dead letters can not be started: {error}",
                    retry_after_ms=1000,
                ) from error
            self._look_later()
        return self._process

    def _note_end(self, somebody_waited: bool) -> None:  # noqa: FBT001 - a callback
        """A process ended by itself, or could not be started."""
        self._restarts += 1
        self._failed = somebody_waited

    def _bury(self, found: _Process, gone_s: float) -> None:
        """A process has died: the next one comes after a pause."""
        self._process = None
        is_old = found.lived_s >= RESTART_MAX_S
        self._pause_s = RESTART_S if is_old else min(RESTART_MAX_S, 2 * self._pause_s or RESTART_S)
        self._not_before_s = gone_s + self._pause_s
        for outbox in list(self._opened):
            self._heard_closed(outbox)

    def _heard_closed(self, outbox: int) -> None:
        transactions = self._opened.pop(outbox, None)
        if transactions is not None:
            transactions.is_open = False

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(IDLE_S, self._look_idle)

    def _look_idle(self) -> None:
        self._timer = None
        if self._process is not None:
            if self._process.idle_s >= IDLE_S:
                self._end_process()
            else:
                self._look_later()

    def _end_process(self) -> None:
        found, self._process = self._process, None
        self._failed = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for outbox in list(self._opened):
            self._heard_closed(outbox)
        if found is not None:
            task = asyncio.create_task(_ended(found), name="producers-end")
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


async def _ended(found: _Process) -> None:
    """Ends a process in good order, or after `CLOSE_TIMEOUT_S` in the other."""
    found.end()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await asyncio.shield(found.run)
    found.process.kill()
    await found.run


def _died() -> KafkaUnavailableError:
    return KafkaUnavailableError(
        "the process that produces dead letters and exports offsets has ended; it is started again",
        retry_after_ms=1000,
    )


class ProcessTransactions:
    """The `ports.LetterTransactions` of an outbox that the process has opened."""

    def __init__(self, producers: Producers, outbox: int, mark: OutboxMark | None) -> None:
        self._producers = producers
        self._outbox = outbox
        self.mark = mark
        self.is_open = True

    async def send(self, topic: str, messages: Sequence[OutgoingMessage], mark: OutboxMark) -> None:
        """Sends letters and the outbox's mark in one transaction."""
        if not self.is_open:
            raise KafkaUnavailableError("the outbox is not open any more", retry_after_ms=100)
        try:
            letters = [_plain(message) for message in messages]
            call = (self._outbox, topic, letters, tuple(mark))
            await self._producers.call(frames.TRANSACT, *call)
        except BaseException:
            # Opening the outbox anew shows the outcome.
            self.is_open = False
            raise


class ProcessDeadLetters:
    """The `DeadLetterSink` of a coordinator."""

    def __init__(self, producers: Producers) -> None:
        self._producers = producers
        self._numbers = itertools.count(1)

    @property
    def unsent_bytes(self) -> int:
        """Memory of messages that the process has not taken yet."""
        return self._producers.unsent_bytes

    def send(
        self, topic: str, message: OutgoingMessage, done: Callable[[SharecoordError | None], None]
    ) -> None:
        """Hands a message over."""
        if self._producers.unsent_bytes > UNSENT_BYTES_MAX:
            full = KafkaUnavailableError("more dead letters wait for Kafka than may wait")
            asyncio.get_running_loop().call_soon(done, full)
            return
        call = (topic, *_plain(message))
        self._producers.post(frames.SEND, call, lambda error, _: done(error))

    async def open(self, outbox: str, topic: str) -> ProcessTransactions:
        """Takes an outbox from its former user."""
        # A number is of one process: the next one knows nothing of what is open.
        number = next(self._numbers)
        mark = await self._producers.call(frames.OPEN, number, outbox, topic)
        found = ProcessTransactions(
            self._producers, number, None if mark is None else OutboxMark(*mark)
        )
        self._producers.opened(number, found)
        return found

    async def ensure(self, topic: str, *, create: bool) -> None:
        """Makes sure that a topic exists."""
        await self._producers.call(frames.ENSURE, topic, create)

    async def close(self) -> None:
        """Ends the process."""
        await self._producers.close()


class ProcessOffsetsExport:
    """The `OffsetsExport` of a coordinator."""

    def __init__(self, producers: Producers, refusals: Refusals) -> None:
        self._producers = producers
        self._refusals = refusals

    async def read(
        self, group_id: str, *, even_with_members: bool = False
    ) -> dict[tuple[str, int], CommittedOffset]:
        """The offsets that the group has committed, by topic and partition."""
        found = await self._producers.call(frames.READ, group_id, even_with_members)
        return {(topic, at): CommittedOffset(*committed) for topic, at, *committed in found}

    async def write(
        self, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> set[tuple[str, int]]:
        """Commits for the group."""
        call = [(*place, *committed) for place, committed in offsets.items()]
        written, refused = await self._producers.call(frames.WRITE, group_id, call)
        for topic, _ in written:
            self._refusals.answered(topic, COMMIT)
        for topic, why in refused.items():
            self._refusals.add(topic, COMMIT, UnauthorizedError(why))
        return set(written)

    async def close(self) -> None:
        """Ends with the dead letters."""


def _plain(message: OutgoingMessage) -> tuple[Any, ...]:
    """A message as marshal takes it: no subclasses of plain types."""
    return message.key, message.value, list(message.headers)
