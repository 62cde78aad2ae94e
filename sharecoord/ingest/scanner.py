"""Reads stretches of logs once, for people: each scan has a consumer and a thread of its own.

So a scan takes nothing from whoever reads for share-partitions: no position, no cache. What it
fetches ahead is bounded, and the thread only waits: columns are made on the loop, few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sharecoord.core.records import RecordChunk
from sharecoord.errors import (
    KafkaUnavailableError,
    LimitExceededError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ingest.columns import build_chunks
from sharecoord.kafka.client import (
    END_OF_PARTITION,
    GONE,
    OUT_OF_RANGE,
    Consumer,
    Message,
    TopicPartition,
    make_consumer,
)
from sharecoord.kafka.refusals import refusal
from sharecoord.ports import Stretch

SCANS_MAX: Final = 4
"""At once: each has a connection, and fetches `SCAN_FETCH` ahead."""

CHUNK_RECORDS_MAX: Final = 200
"""About a millisecond of work for whoever looks at each record."""

WAIT_S: Final = 0.2
SILENCE_S: Final = 10.0
"""Nothing came for so long: Kafka is not there."""

SCAN_FETCH: Final = {
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 8_192,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.wait.max.ms": 10,
}

Settings = Mapping[str, str | int | float | bool]


class Scanner:
    """Makes scans; see `ports.LogReader.scan`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._running: set[_Scan] = set()

    async def scan(
        self, topic: str, stretches: Sequence[Stretch]
    ) -> AsyncGenerator[tuple[int, RecordChunk], None]:
        """Reads stretches of a topic once."""
        if len(self._running) >= SCANS_MAX:
            raise LimitExceededError(
                f"{SCANS_MAX} scans of topics run already; try again when one has ended",
                retry_after_ms=1_000,
            )
        scan = _Scan(make_consumer({**self._settings, **SCAN_FETCH}, committed=True), topic)
        self._running.add(scan)
        try:
            for stretch in stretches:
                position = stretch.first
                while position < stretch.end:
                    first = position
                    messages, position = await scan.take(stretch, first)
                    for chunk in build_chunks(messages, first) if messages else ():
                        yield stretch.partition, chunk
        finally:
            self._running.discard(scan)
            scan.close()

    async def close(self) -> None:
        """Ends every scan."""
        for scan in list(self._running):
            scan.close()
            await asyncio.to_thread(scan.thread.shutdown)


class _Scan:
    """One consumer, at one partition after the other."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="sharecoord-scan")
        self._consumer = consumer
        self._topic = topic
        self._at = -1
        """The partition that is assigned."""
        self._closed = False

    async def take(self, stretch: Stretch, position: int) -> tuple[list[Message], int]:
        """The next records of a stretch, perhaps none; and where to go on."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.thread, self._take, stretch, position)

    def _take(self, stretch: Stretch, position: int) -> tuple[list[Message], int]:
        if self._at != stretch.partition:
            self._consumer.assign([TopicPartition(self._topic, stretch.partition, position)])
            self._at = stretch.partition
        silent_s = 0.0
        while not self._closed:
            messages = self._consumer.consume(CHUNK_RECORDS_MAX, WAIT_S)
            found, position = self._sorted(messages, stretch, position)
            if found or position >= stretch.end:
                return found, position
            silent_s = 0.0 if messages else silent_s + WAIT_S
            if silent_s >= SILENCE_S:
                break
        raise KafkaUnavailableError(
            f"nothing came of {self._topic}[{stretch.partition}] at {position} for "
            f"{SILENCE_S:.0f} s; try again",
            retry_after_ms=1_000,
        )

    def _sorted(
        self, messages: Sequence[Message], stretch: Stretch, position: int
    ) -> tuple[list[Message], int]:
        found: list[Message] = []
        for message in messages:
            if message.partition() != stretch.partition:
                # Left over from the partition before.
                continue
            offset = message.offset() or 0
            if message.error() is not None:
                if self._ends(message, stretch, position):
                    return found, stretch.end
            elif position <= offset < stretch.end:
                found.append(message)
                position = offset + 1
            elif offset >= stretch.end:
                return found, stretch.end
        return found, position

    def _ends(self, message: Message, stretch: Stretch, position: int) -> bool:
        """Whether the log has ended; raises for what can not be read."""
        error = message.error()
        assert error is not None, "only events come here"
        where = f"{self._topic}[{stretch.partition}]"
        if error.code() == END_OF_PARTITION:
            return (message.offset() or 0) >= position
        if error.code() in OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"offset {position} of {where} is not in the log any more")
        if error.code() in GONE:
            raise UnknownTopicOrPartitionError(f"{where} does not exist any more")
        failed = KafkaUnavailableError(f"reading {where} failed: {error.str()}", retry_after_ms=500)
        raise refusal(self._topic, error) or failed

    def close(self) -> None:
        """Ends the consumer, behind what its thread still does; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.thread.submit(self._consumer.close)
            self.thread.shutdown(wait=False)
