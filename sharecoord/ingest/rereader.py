"""Reads ranges again for redelivery: one request after the other on a consumer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from sharecoord.core.records import RecordChunk
from sharecoord.errors import (
    KafkaUnavailableError,
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

REREAD_TIMEOUT_S = 10.0
"""Longest wait for one range; the caller tries again later."""

REREAD_FETCH = {
    # Small queues: a re-read wants one range, not everything behind it.
    "queued.min.messages": 1_000,
    "queued.max.messages.kbytes": 4_096,
    "fetch.message.max.bytes": 1 << 20,
    "fetch.wait.max.ms": 10,
}


class Rereader:
    """One consumer that is positioned anew for each range."""

    def __init__(
        self, settings: Mapping[str, str | int | float | bool], *, committed: bool
    ) -> None:
        self._consumer: Consumer = make_consumer({**settings, **REREAD_FETCH}, committed=committed)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="sharecoord-reread")
        self._closed = False

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[RecordChunk]:
        """The chunks that cover [first, last]; see `ports.LogReader.reread`."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, topic, partition, first, last)

    def _read(self, topic: str, partition: int, first: int, last: int) -> list[RecordChunk]:
        place = TopicPartition(topic, partition, first)
        self._consumer.assign([place])
        try:
            return self._collect(place, first, last)
        finally:
            self._consumer.unassign()

    def _collect(self, place: TopicPartition, first: int, last: int) -> list[RecordChunk]:
        kept: list[Message] = []
        position, idle_s = first, 0.0
        while position <= last:
            if idle_s >= REREAD_TIMEOUT_S or self._closed:
                raise KafkaUnavailableError(
                    f"could not read {place.topic}[{place.partition}] at {position} again within "
                    f"{REREAD_TIMEOUT_S:.0f} s",
                    retry_after_ms=1000,
                )
            messages = self._consumer.consume(500, 0.2)
            idle_s = 0.0 if messages else idle_s + 0.2
            for message in messages:
                if message.topic() != place.topic or message.partition() != place.partition:
                    continue
                offset = message.offset() or 0
                if message.error() is not None:
                    if self._ends(message, place, position):
                        return self._chunks(kept, first, max(last, offset - 1))
                elif position <= offset <= last:
                    kept.append(message)
                    position = offset + 1
                elif offset > last:
                    position = offset
        return self._chunks(kept, first, last)

    @staticmethod
    def _ends(message: Message, place: TopicPartition, position: int) -> bool:
        """True at the end of the partition; raises for what can not be read."""
        error = message.error()
        assert error is not None, "only events come here"
        where = f"{place.topic}[{place.partition}]"
        if error.code() == END_OF_PARTITION:
            return (message.offset() or 0) >= position
        if error.code() in OUT_OF_RANGE:
            raise OffsetOutOfRangeError(f"offset {position} of {where} is not in the log any more")
        if error.code() in GONE:
            raise UnknownTopicOrPartitionError(f"{where} does not exist any more")
        raise KafkaUnavailableError(f"reading {where} failed: {error.str()}", retry_after_ms=500)

    @staticmethod
    def _chunks(messages: list[Message], first: int, last: int) -> list[RecordChunk]:
        """Chunks that cover [first, last]; none when there is no record left in it."""
        chunks = build_chunks(messages, first)
        assert not chunks or chunks[-1].last <= last, "read beyond the range"
        return chunks

    async def close(self) -> None:
        """Ends the consumer."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown)
        await asyncio.to_thread(self._consumer.close)
