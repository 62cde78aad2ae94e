"""Reads ranges again for redelivery, as raw batches: many partitions at a time.

A partition that does not answer holds up requests for the same partition only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from sharecoord.core.changes import Place
from sharecoord.core.records import RecordChunk
from sharecoord.ingest.fetched_range import FetchedRange, LogAt, NewFetcher, end_of
from sharecoord.kafka.wire.fetcher import Fetcher
from sharecoord.kafka.wire.keys import Settings

REREAD_TIMEOUT_S: Final = 10.0
"""A range of which nothing came for this time has failed; the caller tries again later."""

PLACES_MAX: Final = 100
"""Partitions that are read at a time: each may have one answer under way."""

REREAD_FETCH: Final[dict[str, str | int]] = {
    # A re-read wants one range, not everything behind it; a larger batch comes whole all the same.
    "fetch.message.max.bytes": 256 << 10,
    "fetch.wait.max.ms": 10,
}


class RawRereader:
    """A fetcher for committed records, one for all, each made at first use."""

    def __init__(self, new_fetcher: NewFetcher, settings: Settings, log_at: LogAt) -> None:
        self._new_fetcher = new_fetcher
        self._settings: Settings = {**settings, **REREAD_FETCH}
        self._log_at = log_at
        self._fetchers: dict[bool, Fetcher] = {}
        self._places = asyncio.Semaphore(PLACES_MAX)
        self._locks: dict[tuple[Place, bool], tuple[asyncio.Lock, list[None]]] = {}
        """Of the partitions that are read, each with its users: one range at a time."""

    async def read(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> list[RecordChunk]:
        """The chunks that cover [first, last]; see `ports.LogReader.reread`."""
        place = topic, partition
        async with self._turn(place, committed=committed), self._places:
            log = self._log_at(place, first, committed=committed)
            wanted = FetchedRange(place, log, last, partial(end_of, committed=committed))
            wanted.begin(self._fetcher(committed=committed))
            try:
                found: list[RecordChunk] = []
                while (chunks := await wanted.take(REREAD_TIMEOUT_S)) is not None:
                    found += chunks
                return found
            finally:
                wanted.close()

    @asynccontextmanager
    async def _turn(self, place: Place, *, committed: bool) -> AsyncGenerator[None]:
        """A fetcher has one position per partition."""
        lock, users = self._locks.setdefault((place, committed), (asyncio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[place, committed]

    def _fetcher(self, *, committed: bool) -> Fetcher:
        found = self._fetchers.get(committed)
        if found is None:
            found = self._new_fetcher(self._settings, committed=committed)
            self._fetchers[committed] = found
        return found

    async def close(self) -> None:
        """Ends the fetchers."""
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        for fetcher in fetchers:
            await fetcher.close()
