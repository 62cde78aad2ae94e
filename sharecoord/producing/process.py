"""The process that produces: `python -m sharecoord.producing.process`, started by a coordinator.

Its standard input is a socket to the coordinator, and it ends with it: at once when the coordinator
has died, so that it sends nothing beside the next owner, and in good order when it is told to.
Signals to the process group are for the coordinator.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import structlog

from sharecoord.core.letters.dead_letters import OutboxMark
from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthorizedError
from sharecoord.kafka.dead_letter_producer import KafkaDeadLetters
from sharecoord.kafka.dead_letter_transactions import KafkaLetterTransactions
from sharecoord.kafka.offsets_export import KafkaOffsetsExport
from sharecoord.kafka.refusals import Refusals
from sharecoord.kafka.wire.held_files import HeldFiles
from sharecoord.observability.logs import configure_logging
from sharecoord.observability.standard_error import guard_standard_error
from sharecoord.ports import CommittedOffset, OutgoingMessage
from sharecoord.producing import frames
from sharecoord.producing.frames import FrameWriter, ProducerSettings, frame, read_frame

log = structlog.get_logger(__name__)

_IGNORED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Heard(Refusals):
    """Topics that Kafka refused; the coordinator logs them."""

    def add(self, topic: str, asked_for: str, why: UnauthorizedError) -> None:
        """Notes it without a word."""
        self._known[topic] = {asked_for: why}

    def answered(self, topic: str, asked_for: str) -> None:
        """Notes it without a word."""
        self._known.pop(topic, None)


class Served:
    """The calls of one coordinator."""

    def __init__(self, settings: ProducerSettings, say: Callable[[bytes], None]) -> None:
        """Starts nothing; `say` sends frames back."""
        self._say = say
        self._held = HeldFiles(settings.kafka, settings.files)
        kafka = self._held.settings
        self._letters = KafkaDeadLetters(
            kafka, transactional_producers_max=settings.transactional_producers_max
        )
        self._refusals = _Heard()
        self._export = KafkaOffsetsExport(kafka, self._refusals)
        self._opened: dict[int, KafkaLetterTransactions] = {}
        self._at_work: set[int] = set()
        """Numbers of outboxes whose transaction is under way."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Callable[..., Awaitable[Any]]] = {
            frames.CHECK: self._check,
            frames.ENSURE: lambda topic, create: self._letters.ensure(topic, create=create),
            frames.OPEN: self._open,
            frames.TRANSACT: self._transact,
            frames.READ: self._read,
            frames.WRITE: self._write,
        }

    async def serve(self, reader: asyncio.StreamReader) -> bool:
        """Answers calls to their end; returns whether it is to end in good order."""
        while (call := await read_frame(reader)) is not None:
            number, name, *arguments = call
            if name == frames.CLOSE:
                return True
            if name == frames.SEND:
                topic, key, value, headers = arguments
                message = OutgoingMessage(key, value, headers)
                try:
                    self._letters.send(topic, message, partial(self._answer, number))
                except Exception as error:
                    log.exception("a dead letter could not be handed over")
                    self._answer(number, error)
            else:
                task = asyncio.create_task(self._run(number, self._calls[name](*arguments)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        return False

    async def close(self) -> None:
        """Gives what is under way its time."""
        await self._letters.close()
        await self._export.close()

    def _answer(self, number: int, error: Exception | None, value: Any = None) -> None:
        closed = [
            outbox
            for outbox, found in self._opened.items()
            if not found.is_open and outbox not in self._at_work
        ]
        for outbox in closed:
            del self._opened[outbox]
        said = None if error is None else frames.told(error)
        self._say(frame((number, said, value, closed)))

    async def _run(self, number: int, call: Awaitable[Any]) -> None:
        try:
            value = await call
        except SharecoordError as error:
            self._answer(number, error)
        except Exception as error:
            log.exception("a call of the coordinator failed")
            self._answer(number, error)
        else:
            self._answer(number, None, value)

    async def _check(self) -> None:
        self._letters.check()

    async def _open(self, number: int, outbox: str, topic: str) -> tuple[Any, ...] | None:
        found = self._opened[number] = await self._letters.open(outbox, topic)
        return None if found.mark is None else tuple(found.mark)

    async def _transact(
        self, outbox: int, topic: str, messages: list[Any], mark: tuple[int, str]
    ) -> None:
        found = self._opened.get(outbox)
        if found is None:
            raise KafkaUnavailableError("the outbox was closed for others", retry_after_ms=100)
        self._at_work.add(outbox)
        try:
            letters = [OutgoingMessage(*message) for message in messages]
            await found.send(topic, letters, OutboxMark(*mark))
        finally:
            self._at_work.discard(outbox)

    async def _read(self, group_id: str, even_with_members: bool) -> list[Any]:  # noqa: FBT001
        found = await self._export.read(group_id, even_with_members=even_with_members)
        return [(*place, *committed) for place, committed in found.items()]

    async def _write(self, group_id: str, offsets: list[Any]) -> tuple[list[Any], dict[str, str]]:
        wanted = {(topic, at): CommittedOffset(*given) for topic, at, *given in offsets}
        written = await self._export.write(group_id, wanted)
        refused = {topic: why.message for topic, why in self._refusals.items()}
        return list(written), refused


async def _main(link: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=link)
    first = await read_frame(reader)
    if first is None:
        return
    settings = ProducerSettings(**first)
    guard_standard_error()
    configure_logging(level=settings.log_level, json=settings.log_json)
    answers = FrameWriter(writer)
    served = Served(settings, answers.send)
    if not await served.serve(reader):
        os._exit(0)
    await served.close()
    answers.flush()
    writer.close()


def main() -> None:
    """Serves until the coordinator ends the connection."""
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    # The coordinator has blocked these signals until now.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
    link = socket.socket(fileno=os.dup(0))
    # What librdkafka prints is no answer.
    os.dup2(2, 1)
    asyncio.run(_main(link))


if __name__ == "__main__":
    main()
