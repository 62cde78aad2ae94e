"""Both readers of Kafka, and a sink that notes all that it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from sharecoord.core.records import Record, RecordChunk
from sharecoord.ingest.log_reader import KafkaLogReader
from sharecoord.ingest.raw_reader import RawLogReader
from sharecoord.kafka.refusals import Refusals
from sharecoord.ports import LogReading
from tests.support import eventually_async

READERS = ("raw", "librdkafka")

Reader = RawLogReader | KafkaLogReader

PATIENCE_S = 30.0


def make(
    kind: str, bootstrap_servers: str, refusals: Refusals | None = None, **settings: Any
) -> Reader:
    """A reader; `settings` are librdkafka's, with `_` for `.`."""
    found = {"bootstrap.servers": bootstrap_servers}
    found |= {key.replace("_", "."): value for key, value in settings.items()}
    return (RawLogReader if kind == "raw" else KafkaLogReader)(found, refusals)


@asynccontextmanager
async def reading(kind: str, bootstrap_servers: str, **settings: Any) -> AsyncIterator[Reader]:
    """A reader that is closed at the end."""
    reader = make(kind, bootstrap_servers, **settings)
    try:
        yield reader
    finally:
        await reader.close()


class Noted:
    """All that a reading said of a partition, checked for order and coverage."""

    def __init__(self, offset: int = 0) -> None:
        self.chunks: list[RecordChunk] = []
        self.covered = offset
        self.ends: list[int] = []
        self.out_of_range = self.gone = False
        self.reading: LogReading | None = None

    def on_chunk(self, chunk: RecordChunk) -> None:
        assert chunk.covers_from == self.covered
        assert chunk.covers_from <= chunk.first <= chunk.last
        self.covered = chunk.last + 1
        self.chunks.append(chunk)

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        assert end_offset >= self.covered
        self.ends.append(end_offset)

    def on_out_of_range(self) -> None:
        self.out_of_range = True

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        self.out_of_range = True

    def on_gone(self) -> None:
        self.gone = True

    @property
    def records(self) -> dict[int, Record]:
        """All records by offset."""
        return records_of(self.chunks)

    async def until(self, what: Callable[[], object]) -> None:
        """Waits until something is so."""
        await eventually_async(lambda: bool(what()), PATIENCE_S, "what the reader is to say")

    async def until_end(self, end_offset: int) -> None:
        """Waits for the news that all below is read."""
        await self.until(lambda: self.ends and self.ends[-1] >= end_offset)
        assert self.ends[-1] == end_offset
        # Nothing comes on its heels.
        await asyncio.sleep(0)


def records_of(chunks: list[RecordChunk]) -> dict[int, Record]:
    """The records of chunks by offset."""
    return {chunk.offset(at): chunk.record(at) for chunk in chunks for at in range(chunk.count)}


def follow(
    reader: Reader, topic: str, offset: int = 0, *, partition: int = 0, committed: bool = True
) -> Noted:
    """Reads a partition."""
    noted = Noted(offset)
    noted.reading = reader.read(
        topic, partition, offset, last_epoch=-1, committed=committed, sink=noted
    )
    return noted
