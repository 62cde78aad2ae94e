"""Bounds of lanes and replays (docs/decisions/0019): the end of their part of the log, their rate.

An ordinary share-partition is `UNBOUNDED`.
"""

from __future__ import annotations

from sharecoord.core.dispatch.rate import RateLimit
from sharecoord.core.records import RecordChunk
from sharecoord.ports import LogReading, LogSink


class Bound:
    """The end offset and the rate of one incarnation of a share-partition."""

    def __init__(
        self, stops_at: int | None = None, rate_per_s: int = 0, *, now_ms: int = 0
    ) -> None:
        """Nothing from `stops_at` on is read (None = no end); `rate_per_s` 0 = any."""
        self.stops_at = stops_at
        self._rate = RateLimit(rate_per_s, now_ms) if rate_per_s else None

    @property
    def rate_per_s(self) -> int:
        """Records that may go out in a second; 0 = any."""
        return 0 if self._rate is None else self._rate.rate_per_s

    def cap(self, offset: int) -> int:
        """The offset, or the bound's end when that is lower."""
        return offset if self.stops_at is None else min(offset, self.stops_at)

    def ends_at(self, offset: int) -> None:
        """The log lost its end: records that are written there anew are out of bounds."""
        if self.stops_at is not None:
            self.stops_at = min(self.stops_at, offset)

    def allows(self, records: int, now_ms: int) -> int:
        """How many of these records may go out now."""
        return records if self._rate is None else min(records, self._rate.available(now_ms))

    def took(self, records: int) -> None:
        """Takes outgoing records from the rate."""
        if self._rate is not None:
            self._rate.take(records)

    def waits_until_ms(self, now_ms: int) -> list[int]:
        """When more records may go out; [] = now: only members are missing."""
        if self._rate is None or self._rate.available(now_ms):
            return []
        return [self._rate.next_ms()]


UNBOUNDED = Bound()


class BoundedSink:
    """A sink that takes records up to an offset, and ends the reading there."""

    def __init__(self, sink: LogSink, stops_at: int) -> None:
        self._sink = sink
        self._stops_at = stops_at
        self._reading: LogReading | None = None
        self._done = False

    def over(self, reading: LogReading) -> None:
        """Takes charge of the reading that is to end."""
        self._reading = reading
        if self._done:
            reading.close()

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Passes on the records before the end."""
        if self._done:
            return
        if chunk.last >= self._stops_at:
            whole, chunk_before = chunk, chunk.part(chunk.covers_from, self._stops_at - 1)
            if chunk_before is not None:
                self._sink.on_chunk(chunk_before)
            if whole.covers_from <= self._stops_at:
                self._end()
            return
        self._sink.on_chunk(chunk)

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        """Passes the end on, the log's or the bound's."""
        if self._done:
            return
        if end_offset >= self._stops_at:
            self._end()
        else:
            self._sink.on_end(end_offset, last_epoch)

    def _end(self) -> None:
        self._done = True
        self._sink.on_end(self._stops_at)
        if self._reading is not None:
            self._reading.close()

    def on_out_of_range(self) -> None:
        """Passes it on, unless all was read."""
        if not self._done:
            self._sink.on_out_of_range()

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """Passes it on, unless all was read."""
        if not self._done:
            self._sink.on_diverged(epoch, end_offset)

    def on_gone(self) -> None:
        """Passes it on, unless all was read."""
        if not self._done:
            self._sink.on_gone()
