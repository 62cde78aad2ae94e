"""Share-partitions that have a part of their log only, or may not hand out all at once.

Lanes and replays (docs/decisions/0019). An ordinary share-partition is `UNBOUNDED`.
"""

from __future__ import annotations

from sharecoord.core.dispatch.rate import RateLimit
from sharecoord.core.records import RecordChunk
from sharecoord.ports import LogReading, LogSink
from sharecoord.runtime.partition.record_cache import part_of


class Bound:
    """What one incarnation of a share-partition keeps to."""

    def __init__(
        self, stops_at: int | None = None, rate_per_s: int = 0, *, now_ms: int = 0
    ) -> None:
        """Sets the limits.

        Args:
            stops_at: Nothing from this offset on is read; None = no end.
            rate_per_s: Records that may go out in a second; 0 = any.
            now_ms: The clock of `allows`.
        """
        self.stops_at = stops_at
        self._rate = RateLimit(rate_per_s, now_ms) if rate_per_s else None

    @property
    def rate_per_s(self) -> int:
        """Records that may go out in a second; 0 = any."""
        return 0 if self._rate is None else self._rate.rate_per_s

    def cap(self, offset: int) -> int:
        """An offset of the log, not beyond the end of what is read."""
        return offset if self.stops_at is None else min(offset, self.stops_at)

    def ends_at(self, offset: int) -> None:
        """The log lost its end: what is written there anew is not part of what was asked for."""
        if self.stops_at is not None:
            self.stops_at = min(self.stops_at, offset)

    def allows(self, records: int, now_ms: int) -> int:
        """How many of so many records may go out now."""
        return records if self._rate is None else min(records, self._rate.available(now_ms))

    def took(self, records: int) -> None:
        """So many go out."""
        if self._rate is not None:
            self._rate.take(records)

    def waits_until_ms(self, now_ms: int) -> list[int]:
        """When more may go out; [] = now, so it is members that are waited for."""
        if self._rate is None or self._rate.available(now_ms):
            return []
        return [self._rate.next_ms()]


UNBOUNDED = Bound()


class BoundedSink:
    """Takes what is read up to an offset, and ends the reading there."""

    def __init__(self, sink: LogSink, stops_at: int) -> None:
        self._sink = sink
        self._stops_at = stops_at
        self._reading: LogReading | None = None
        self._done = False

    def over(self, reading: LogReading) -> None:
        """This reading is to end."""
        self._reading = reading
        if self._done:
            reading.close()

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Passes on what lies before the end."""
        if self._done:
            return
        if chunk.last >= self._stops_at:
            whole, chunk_before = chunk, part_of(chunk, chunk.covers_from, self._stops_at - 1)
            if chunk_before is not None:
                self._sink.on_chunk(chunk_before)
            if whole.covers_from <= self._stops_at:
                self._end()
            return
        self._sink.on_chunk(chunk)

    def on_end(self, end_offset: int) -> None:
        """The log's end may come before ours."""
        if self._done:
            return
        if end_offset >= self._stops_at:
            self._end()
        else:
            self._sink.on_end(end_offset)

    def _end(self) -> None:
        self._done = True
        self._sink.on_end(self._stops_at)
        if self._reading is not None:
            self._reading.close()

    def on_out_of_range(self) -> None:
        """Passes it on, unless all was read."""
        if not self._done:
            self._sink.on_out_of_range()

    def on_gone(self) -> None:
        """Passes it on, unless all was read."""
        if not self._done:
            self._sink.on_gone()
