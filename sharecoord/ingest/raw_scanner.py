"""Reads stretches of logs once, for people: each scan has a fetcher of its own.

So a scan takes neither position nor cache from the readers of share-partitions.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import partial
from typing import Final

from sharecoord.core.records import RecordChunk
from sharecoord.ingest.fetched_range import FetchedRange, LogAt, NewFetcher, end_of
from sharecoord.ingest.scans import CHUNK_RECORDS_MAX, SCANS_MAX, SILENCE_S, too_many_scans
from sharecoord.kafka.wire.fetcher import Fetcher
from sharecoord.kafka.wire.keys import Settings
from sharecoord.ports import Stretch

SCAN_FETCH: Final[dict[str, str | int]] = {
    "fetch.message.max.bytes": 1 << 20,
    "fetch.wait.max.ms": 10,
}


class RawScanner:
    """Makes scans; see `ports.LogReader.scan`."""

    def __init__(self, new_fetcher: NewFetcher, settings: Settings, log_at: LogAt) -> None:
        self._new_fetcher = new_fetcher
        self._settings: Settings = {**settings, **SCAN_FETCH}
        self._log_at = log_at
        self._running: set[Fetcher] = set()

    async def scan(
        self, topic: str, stretches: Sequence[Stretch]
    ) -> AsyncGenerator[tuple[int, RecordChunk], None]:
        """Reads stretches of a topic once."""
        if len(self._running) >= SCANS_MAX:
            raise too_many_scans()
        fetcher = self._new_fetcher(self._settings, committed=True)
        self._running.add(fetcher)
        try:
            for stretch in stretches:
                async for chunk in self._read(fetcher, topic, stretch):
                    yield stretch.partition, chunk
        finally:
            if fetcher in self._running:
                self._running.discard(fetcher)
                await fetcher.close()

    async def _read(
        self, fetcher: Fetcher, topic: str, stretch: Stretch
    ) -> AsyncGenerator[RecordChunk, None]:
        if stretch.first >= stretch.end:
            return
        place = topic, stretch.partition
        log = self._log_at(place, stretch.first, committed=True)
        wanted = FetchedRange(place, log, stretch.end - 1, partial(end_of, committed=True))
        wanted.begin(fetcher)
        try:
            while (chunks := await wanted.take(SILENCE_S)) is not None:
                for chunk in chunks:
                    for part in _small_parts(chunk):
                        yield part
        finally:
            wanted.close()

    async def close(self) -> None:
        """Ends every scan."""
        running, self._running = list(self._running), set()
        for fetcher in running:
            await fetcher.close()


def _small_parts(chunk: RecordChunk) -> Iterator[RecordChunk]:
    covers_from = chunk.covers_from
    for start in range(0, chunk.count, CHUNK_RECORDS_MAX):
        last = chunk.offset(min(start + CHUNK_RECORDS_MAX, chunk.count) - 1)
        part = chunk.part(covers_from, last)
        assert part is not None, "it has records"
        yield part
        covers_from = last + 1
