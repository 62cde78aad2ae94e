"""Reads stretches of logs once, for people: each scan has a consumer and a thread of its own.

So a scan takes neither position nor cache from the readers of share-partitions. It fetches a little
ahead, and its thread only waits: columns are made on the loop, a few at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sharecoord.core.records import RecordChunk
from sharecoord.errors import KafkaUnavailableError
from sharecoord.ingest.columns import build_chunks, is_end
from sharecoord.ingest.scans import CHUNK_RECORDS_MAX, SCANS_MAX, SILENCE_S, too_many_scans
from sharecoord.kafka.client import (
    Consumer,
    Message,
    Settings,
    TopicPartition,
    make_consumer,
    refusal,
)
from sharecoord.ports import Stretch

WAIT_S: Final = 0.2
SCAN_FETCH: Final = {
    "queued.min.messages": 5_000,
    "queued.max.messages.kbytes": 8_192,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.wait.max.ms": 10,
}


class Scanner:
    """Makes scans; see `ports.LogReader.scan`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        """For scans that begin from now on."""
        self._running: set[_Scan] = set()

    async def scan(
        self, topic: str, stretches: Sequence[Stretch]
    ) -> AsyncGenerator[tuple[int, RecordChunk], None]:
        """Reads stretches of a topic once."""
        if len(self._running) >= SCANS_MAX:
            raise too_many_scans()
        scan = _Scan(make_consumer({**self.settings, **SCAN_FETCH}, committed=True), topic)
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
    """A scan: its consumer reads one partition after the other."""

    def __init__(self, consumer: Consumer, topic: str) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="sharecoord-scan")
        self._consumer = consumer
        self._topic = topic
        self._at = -1
        """The partition that is assigned."""
        self._closed = False

    async def take(self, stretch: Stretch, position: int) -> tuple[list[Message], int]:
        """The next records of a stretch, perhaps none, and the offset to go on at."""
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
            error = message.error()
            if error is not None:
                if (refused := refusal(self._topic, error)) is not None:
                    raise refused
                if is_end(message, f"{self._topic}[{stretch.partition}]", position):
                    return found, stretch.end
            elif position <= offset < stretch.end:
                found.append(message)
                position = offset + 1
            elif offset >= stretch.end:
                return found, stretch.end
        return found, position

    def close(self) -> None:
        """Ends the consumer once its thread is done; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.thread.submit(self._consumer.close)
            self.thread.shutdown(wait=False)
