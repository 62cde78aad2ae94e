"""A part of a log that is fetched once: for re-reads and scans."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from sharecoord.core.changes import Place
from sharecoord.core.records import RecordChunk
from sharecoord.errors import (
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.kafka.wire.fetch import Found
from sharecoord.kafka.wire.fetcher import Fetcher, Fetching
from sharecoord.kafka.wire.keys import Settings


class NewFetcher(Protocol):
    """Makes fetchers of one cluster."""

    def __call__(self, settings: Settings, *, committed: bool) -> Fetcher:
        """A fetcher with these settings of librdkafka."""


class LogAt(Protocol):
    """Makes the view of a log for one reader."""

    def __call__(self, place: Place, offset: int, *, committed: bool) -> LogBytes:
        """The log from an offset on."""


def end_of(found: Found, *, committed: bool) -> int:
    """Where the records end that a broker would give."""
    has_stable = committed and found.last_stable_offset >= 0
    return found.last_stable_offset if has_stable else found.high_watermark


class FetchedRange:
    """The records [first, last] of a partition, as they come: a `fetcher.FetchSink`.

    `take` gives the chunks that came since; nothing more is fetched until they were taken.
    """

    def __init__(
        self, place: Place, log: LogBytes, last: int, end_of: Callable[[Found], int]
    ) -> None:
        """Fetches nothing yet; `end_of` tells where a broker's records end."""
        self.where = f"{place[0]}[{place[1]}]"
        self._place = place
        self._log = log
        self._last = last
        self._end_of = end_of
        self._chunks: list[RecordChunk] = []
        self._error: SharecoordError | None = None
        self._is_whole = log.position > last
        self._changed = asyncio.Event()
        self._fetching: Fetching | None = None

    def begin(self, fetcher: Fetcher) -> None:
        """Fetches."""
        self._fetching = fetcher.fetch(*self._place, self._log.position, -1, self)

    @property
    def position(self) -> int:
        """The next offset that is fetched."""
        return self._log.position

    async def take(self, patience_s: float) -> list[RecordChunk] | None:
        """The next chunks, as soon as some came; None = all were taken.

        Raises:
            KafkaUnavailableError: Nothing came for `patience_s`.
            SharecoordError: The records can not be read.
        """
        while not (self._chunks or self._is_whole or self._error is not None):
            self._changed.clear()
            try:
                async with asyncio.timeout(patience_s):
                    await self._changed.wait()
            except TimeoutError:
                raise KafkaUnavailableError(
                    f"nothing came of {self.where} at {self.position} for {patience_s:.0f} s; "
                    "try again",
                    retry_after_ms=1_000,
                ) from None
        chunks, self._chunks = self._chunks, []
        if chunks:
            if self._fetching is not None:
                self._fetching.want_more(wanted=not self._is_whole)
            return chunks
        if self._error is not None:
            raise self._error
        return None

    def close(self) -> None:
        """Fetches nothing more."""
        if self._fetching is not None:
            self._fetching.close()

    # -- kafka.wire.fetcher.FetchSink --------------------------------------------------------------

    def on_fetched(self, found: Found) -> int | None:
        """Batches came, or the end did."""
        assert self._fetching is not None, "begun"
        taken = self._log.take(found.records, found.aborted)
        for chunk in taken.chunks:
            part = chunk if chunk.last <= self._last else chunk.part(chunk.covers_from, self._last)
            if part is not None:
                self._chunks.append(part)
        ends = self._log.position >= self._end_of(found)
        self._is_whole = self._log.position > self._last or ends
        if taken.error is not None and not self._is_whole:
            self._error = taken.error
        self._fetching.advance(self._log.position, self._log.last_epoch)
        if self._chunks or self._is_whole or self._error is not None:
            self._fetching.want_more(wanted=False)
        self._changed.set()
        return None

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut below what was read."""
        self.on_out_of_range()

    def on_out_of_range(self) -> None:
        """The log does not have the position."""
        text = f"offset {self.position} of {self.where} is not in the log any more"
        self._fail(OffsetOutOfRangeError(text))

    def on_gone(self) -> None:
        """There is no such partition."""
        self._fail(UnknownTopicOrPartitionError(f"{self.where} does not exist any more"))

    def on_refused(self, error: UnauthorizedError) -> None:
        """Kafka refuses the topic."""
        self._fail(error)

    def _fail(self, error: SharecoordError) -> None:
        self._error = error
        self._changed.set()
