"""Reads Kafka on connections of our own: batches stay as they came until somebody needs a record.

A fetcher has one position per partition (see `pool`). It fetches for all its partitions of a broker
at a time; here its bytes become chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final
from weakref import WeakSet

import structlog

from sharecoord.core.changes import Place
from sharecoord.core.records import RecordChunk
from sharecoord.errors import UnauthorizedError
from sharecoord.ingest.batch_chunk import Source
from sharecoord.ingest.fetched_range import end_of
from sharecoord.ingest.log_bytes import LogBytes
from sharecoord.ingest.notes import UNREADABLE
from sharecoord.ingest.open_batches import OpenBatches
from sharecoord.ingest.pool import Pool, Waiting
from sharecoord.ingest.raw_rereader import RawRereader
from sharecoord.ingest.raw_scanner import RawScanner
from sharecoord.kafka.refusals import READ, Refusals
from sharecoord.kafka.wire.cluster import Cluster
from sharecoord.kafka.wire.fetch import Found
from sharecoord.kafka.wire.fetcher import Fetcher, Fetching
from sharecoord.kafka.wire.keys import Settings
from sharecoord.kafka.wire.options import FetchOptions
from sharecoord.kafka.wire.security import security_of
from sharecoord.kafka.wire.tls import Tls
from sharecoord.ports import LogSink

log = structlog.get_logger(__name__)

UNREADABLE_AGAIN_S: Final = 5.0
"""How often a batch is fetched again that can not be read: damage on the way passes, other damage
waits for an operator."""

CHECK_CRCS: Final = "check.crcs"
"""librdkafka's setting, which checks nothing unless told to. Here checksums are checked unless told
not to, as by Kafka's own consumer: 0.05 µs for a record of 1 kB."""


def checks_crcs(settings: Settings) -> bool:
    """Whether checksums of batches are checked."""
    return str(settings.get(CHECK_CRCS, "true")).lower() != "false"


class RawReading:
    """A partition that is read; see `ports.LogReading`. It listens to its fetcher."""

    def __init__(
        self, waiting: Waiting[RawReading], place: Place, log_bytes: LogBytes, sink: LogSink
    ) -> None:
        """Waits for a fetcher."""
        self.place = place
        self.closed = False
        self.sink = sink
        self._waiting = waiting
        self._slot: RawSlot | None = None
        self._bytes = log_bytes
        self._fetching: Fetching | None = None
        self._hungry = True
        self._stuck: asyncio.TimerHandle | None = None
        """Runs while a batch that can not be read waits to be tried again."""
        self._told_end = -1
        """The offset at which the sink was told of the end last."""
        self._refusals: Refusals | None = None
        """The refusals that name the topic, while Kafka refuses it."""

    @property
    def drained_s(self) -> float:
        """See `ports.LogReading`."""
        return Waiting.drained_s if self._fetching is None else self._fetching.drained_s

    def want_more(self, *, wanted: bool) -> None:
        """Back-pressure."""
        self._hungry = wanted
        self._adjust()

    def _adjust(self) -> None:
        if self._fetching is not None and not self.closed:
            self._fetching.want_more(wanted=self._hungry and self._stuck is None)

    def begin(self, slot: RawSlot) -> None:
        """Lets a fetcher read the partition from now on."""
        self._slot = slot
        slot.readings[self.place] = self
        self._fetching = slot.fetcher.fetch(
            *self.place, self._bytes.position, self._bytes.last_epoch, self
        )
        self._adjust()

    def close(self) -> None:
        """Stops reading."""
        if self.closed:
            return
        self.closed = True
        self._allowed()
        if self._stuck is not None:
            self._stuck.cancel()
        if self._fetching is not None:
            self._fetching.close()
        (self._waiting if self._slot is None else self._slot).remove(self)

    # -- kafka.wire.fetcher.FetchSink --------------------------------------------------------------

    def on_fetched(self, found: Found) -> int | None:
        """Batches came, or the end did."""
        slot, fetching = self._slot, self._fetching
        assert slot is not None, "begun"
        assert fetching is not None, "begun"
        self._allowed()
        taken = self._bytes.take(found.records, found.aborted)
        for chunk in taken.chunks:
            # A sink may close the reading at any chunk.
            if not fetching.closed:
                self._pass_on(chunk)
        if fetching.closed:
            return None
        fetching.advance(self._bytes.position, self._bytes.last_epoch)
        if taken.error is not None:
            UNREADABLE.note(*self.place, self._bytes.position, 1, taken.error.message)
            again = asyncio.get_running_loop().call_later(UNREADABLE_AGAIN_S, self._try_again)
            self._stuck = again
            self._adjust()
        else:
            self._tell_end(end_of(found, committed=slot.committed))
        return None

    def _pass_on(self, chunk: RecordChunk) -> None:
        try:
            self.sink.on_chunk(chunk)
        except BaseException:
            # The fetcher brings the records again.
            self._bytes.back_to(chunk.covers_from)
            raise

    def _try_again(self) -> None:
        self._stuck = None
        self._adjust()

    def _tell_end(self, end_offset: int) -> None:
        """Everything below the position was passed on, or is a proven gap."""
        position = self._bytes.position
        if position >= end_offset and position > self._told_end:
            self._told_end = position
            self.sink.on_end(position, self._bytes.last_epoch)

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut, or has no batch of the epoch that was shown."""
        log.warning("the log was cut", place=self.place, epoch=epoch, end_offset=end_offset)
        if not self.closed:
            self.close()
            self.sink.on_diverged(epoch, end_offset)

    def on_out_of_range(self) -> None:
        """The log does not have the position."""
        if not self.closed:
            self.close()
            self.sink.on_out_of_range()

    def on_gone(self) -> None:
        """There is no such partition any more."""
        if not self.closed:
            self.close()
            self.sink.on_gone()

    def on_refused(self, error: UnauthorizedError) -> None:
        """Kafka refuses the topic; the fetcher goes on asking."""
        if self._slot is not None and not self.closed:
            self._refusals = self._slot.refusals
            self._refusals.add(self.place[0], READ, error)

    def _allowed(self) -> None:
        """Kafka has answered."""
        if self._refusals is not None:
            refusals, self._refusals = self._refusals, None
            refusals.answered(self.place[0], READ)


class RawSlot:
    """A fetcher of the pool: at most one position per partition."""

    def __init__(
        self,
        fetcher: Fetcher,
        refusals: Refusals,
        *,
        committed: bool,
        on_empty: Callable[[RawSlot], None],
    ) -> None:
        self.fetcher = fetcher
        self.refusals = refusals
        self.committed = committed
        self.readings: dict[Place, RawReading] = {}
        self._on_empty = on_empty

    def remove(self, reading: RawReading) -> None:
        """Forgets a partition that is not read any more."""
        if self.readings.get(reading.place) is reading:
            del self.readings[reading.place]
            if not self.readings:
                self._on_empty(self)

    async def close(self) -> None:
        """Ends the fetcher."""
        for reading in list(self.readings.values()):
            reading.close()
        await self.fetcher.close()


class RawLogReader:
    """The `LogReader` of a real cluster that keeps batches as they came."""

    def __init__(
        self,
        settings: Settings,
        refusals: Refusals | None = None,
        *,
        may_open: Callable[[], bool] = lambda: True,
    ) -> None:
        """Reads nothing yet.

        Args:
            settings: Of a Kafka client, by librdkafka's names.
            refusals: Shared with the catalog of the same cluster.
            may_open: Whether another fetcher may be opened; else its partitions wait.

        Raises:
            InvalidConfigError: A setting can not be used.
        """
        self._refusals = Refusals() if refusals is None else refusals
        self._security = security_of(settings)
        self.cluster = Cluster(settings, self._security)
        """Of which others may ask questions, until this reader is closed."""
        self._fetchers: WeakSet[Fetcher] = WeakSet()
        FetchOptions.of(settings)  # refuses what no fetcher could use
        self._settings = dict(settings)
        self._checks_crc = checks_crcs(settings)
        self._open_batches = OpenBatches()
        self._pool: Pool[RawSlot, RawReading] = Pool(
            self._new_slot, RawReading.begin, may_open=may_open
        )
        self._rereader = RawRereader(self._new_fetcher, settings, self.log_at)
        self._scanner = RawScanner(self._new_fetcher, settings, self.log_at)
        self.scan = self._scanner.scan

    def log_at(
        self, place: Place, offset: int, *, committed: bool, last_epoch: int = -1
    ) -> LogBytes:
        """The log of a partition for a reader that begins at an offset; see `LogBytes`."""
        return LogBytes(
            Source(place, self._open_batches),
            offset,
            committed=committed,
            last_epoch=last_epoch,
            checks_crc=self._checks_crc,
        )

    def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        last_epoch: int,
        committed: bool,
        sink: LogSink,
    ) -> RawReading:
        """Reads from `offset` on, until closed."""
        place = topic, partition
        log_bytes = self.log_at(place, offset, committed=committed, last_epoch=last_epoch)
        reading = RawReading(self._pool.waiting, place, log_bytes, sink)
        self._pool.add(reading, committed=committed)
        return reading

    @property
    def files(self) -> Tls | None:
        """The certificates of connections to brokers; None without TLS.

        Each connection is made with the files as they are then, whether they are watched or not.
        """
        return self._security.tls

    @property
    def file_contents(self) -> Mapping[str, bytes]:
        """Contents of the files in force, by librdkafka's keys, for clients of librdkafka."""
        return {} if self._security.tls is None else self._security.tls.contents

    @property
    def certificate_ends_s(self) -> Mapping[str, float]:
        """By setting: when the certificate that brokers are shown ends, in seconds since 1970."""
        return {} if self._security.tls is None else self._security.tls.ends_s

    @property
    def waiting(self) -> int:
        """Partitions that are not read, because that would take too many files."""
        return len(self._pool.waiting.readings)

    @property
    def open_bytes(self) -> int:
        """Memory of compressed batches that are open, and of records on their way here."""
        fetched = sum(fetcher.buffered_bytes for fetcher in self._fetchers)
        return self._open_batches.size_bytes + fetched + self.cluster.receiving_bytes

    def _new_fetcher(self, settings: Settings, *, committed: bool) -> Fetcher:
        fetcher = Fetcher(self.cluster, settings, committed=committed)
        self._fetchers.add(fetcher)
        return fetcher

    def _new_slot(self, _: int, committed: bool) -> RawSlot:  # noqa: FBT001 - Pool's call
        fetcher = self._new_fetcher(self._settings, committed=committed)
        return RawSlot(fetcher, self._refusals, committed=committed, on_empty=self._retire)

    def _retire(self, slot: RawSlot) -> None:
        self._pool.retire(slot, slot.close())

    async def reread(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> list[RecordChunk]:
        """Reads [first, last] again."""
        return await self._rereader.read(topic, partition, first, last, committed=committed)

    async def close(self) -> None:
        """Stops every read."""
        await self._scanner.close()
        await self._rereader.close()
        await self._pool.close(RawSlot.close)
        await self.cluster.close()
        self._security.close()
