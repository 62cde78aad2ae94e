"""Reads ranges again for redelivery: many partitions at a time, on one consumer and one thread.

A partition that does not answer holds up requests for the same partition only.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from typing import Final

import structlog

from sharecoord.core.changes import Place
from sharecoord.core.records import RecordChunk
from sharecoord.errors import KafkaUnavailableError, SharecoordError
from sharecoord.ingest.columns import build_chunks, is_end
from sharecoord.kafka.client import (
    Consumer,
    KafkaException,
    Message,
    Settings,
    TopicPartition,
    make_consumer,
)

log = structlog.get_logger(__name__)

REREAD_TIMEOUT_S: Final = 10.0
"""A range of which nothing came for this time has failed; the caller tries again later."""

PLACES_MAX: Final = 100
"""Partitions that are read at a time: each may fetch 1 MiB ahead into the one queue. Other requests
wait only when as many partitions are without a leader."""

WAIT_S: Final = 0.05
"""Time that the thread waits for messages before it looks for new requests."""

CONSUME_RECORDS_MAX: Final = 500

REREAD_FETCH: Final = {
    # Small queues: a re-read wants one range, not everything behind it.
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.wait.max.ms": 10,
}


class _Request:
    """A range to be read again; used by the thread alone, except for `answer`."""

    def __init__(self, place: Place, first: int, last: int) -> None:
        self.place = place
        self.first = self.position = first
        self.last = last
        self.heard_s = 0.0
        """When a message of it came last."""
        self._messages: list[Message] = []
        self.answer: Future[list[RecordChunk]] = Future()

    @property
    def where(self) -> str:
        return f"{self.place[0]}[{self.place[1]}]"

    def take(self, message: Message) -> list[RecordChunk] | None:
        """The chunks that cover the range, as soon as all of it is known.

        Raises:
            SharecoordError: It can not be read.
        """
        offset = message.offset() or 0
        if message.error() is not None:
            if is_end(message, self.where, self.position):
                return self._chunks(max(self.last, offset - 1))
        elif self.position <= offset <= self.last:
            self._messages.append(message)
            self.position = offset + 1
        elif offset > self.last:
            self.position = offset
        return self._chunks(self.last) if self.position > self.last else None

    def _chunks(self, last: int) -> list[RecordChunk]:
        """Chunks that cover the range; none when there is no record left in it."""
        chunks = build_chunks(self._messages, self.first)
        assert not chunks or chunks[-1].last <= last, "read beyond the range"
        return chunks

    def late(self) -> SharecoordError:
        """The error for a range of which nothing came for too long."""
        return KafkaUnavailableError(
            f"could not read {self.where} at {self.position} again within {REREAD_TIMEOUT_S:.0f} s",
            retry_after_ms=1000,
        )

    def end(self, result: list[RecordChunk] | Exception) -> None:
        """Answers; who asked may have given up, or its loop may have been closed meanwhile."""
        with contextlib.suppress(InvalidStateError):
            if isinstance(result, Exception):
                self.answer.set_exception(result)
            else:
                self.answer.set_result(result)


class Rereader:
    """A consumer that is positioned anew for each range."""

    def __init__(self, settings: Settings, *, committed: bool) -> None:
        self._consumer: Consumer = make_consumer({**settings, **REREAD_FETCH}, committed=committed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sharecoord-reread")
        self._lock = threading.Lock()
        """Guards `_waiting` and `_serving`."""
        self._waiting: deque[_Request] = deque()
        self._serving = False
        self._reading: dict[Place, _Request] = {}
        """Assigned requests; used by the thread alone."""
        self._closed = False

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[RecordChunk]:
        """The chunks that cover [first, last]; see `ports.LogReader.reread`."""
        request = _Request((topic, partition), first, last)
        with self._lock:
            self._waiting.append(request)
            if not self._serving:
                self._serving = True
                self._thread.submit(self._serve)
        return await asyncio.wrap_future(request.answer)

    def _serve(self) -> None:
        """In the thread: reads until no request is left."""
        while self._begin():
            try:
                for message in self._consume():
                    self._take(message)
                self._end_late()
            except Exception as error:
                # Every waiting request hears of the error, and is asked again.
                log.exception("re-reads failed")
                self._fail_all(error)

    def _begin(self) -> bool:
        """Assigns the next requests, one range of a partition at a time; whether there are any."""
        begun: list[_Request] = []
        with self._lock:
            left: deque[_Request] = deque()
            while self._waiting:
                request = self._waiting.popleft()
                if request.answer.done():
                    continue
                if request.place in self._reading or len(self._reading) >= PLACES_MAX:
                    left.append(request)
                    continue
                request.heard_s = time.monotonic()
                self._reading[request.place] = request
                begun.append(request)
            self._waiting = left
            self._serving = bool(self._reading)
        if begun:
            try:
                self._consumer.incremental_assign(
                    [TopicPartition(*each.place, each.position) for each in begun]
                )
            except KafkaException as error:
                self._fail_all(error)
                return self._begin()
        return self._serving

    def _consume(self) -> list[Message]:
        messages = self._consumer.consume(1, WAIT_S)
        return messages + self._consumer.consume(CONSUME_RECORDS_MAX, 0) if messages else messages

    def _take(self, message: Message) -> None:
        request = self._reading.get((message.topic() or "", message.partition() or 0))
        if request is None:
            # The message is behind a range that is done, or of no partition.
            return
        request.heard_s = time.monotonic()
        try:
            found = request.take(message)
        except Exception as error:  # noqa: BLE001 - it is this request's alone
            self._end(request, error)
        else:
            if found is not None:
                self._end(request, found)

    def _end_late(self) -> None:
        now_s = time.monotonic()
        for request in list(self._reading.values()):
            if request.answer.done() or self._closed or now_s - request.heard_s > REREAD_TIMEOUT_S:
                self._end(request, request.late())

    def _end(self, request: _Request, result: list[RecordChunk] | Exception) -> None:
        del self._reading[request.place]
        try:
            self._consumer.incremental_unassign([TopicPartition(*request.place)])
        finally:
            request.end(result)

    def _fail_all(self, error: Exception) -> None:
        """Fails every assigned request, so that nothing is assigned."""
        failed, self._reading = list(self._reading.values()), {}
        for request in failed:
            said = f"reading {request.where} failed: {error}"
            request.end(KafkaUnavailableError(said, retry_after_ms=500))
        with contextlib.suppress(KafkaException):
            self._consumer.unassign()

    async def retire(self) -> None:
        """Ends the consumer once all ranges are read; no more may be asked for."""
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self._consumer.close)

    async def close(self) -> None:
        """Ends the consumer at once."""
        self._closed = True
        await self.retire()
