"""Kafka's logs in memory: a `LogReader` and a `TopicCatalog` whose world a test can change.

Records can be appended, compacted away, deleted from the start, truncated; topics can be deleted,
re-created and grown; the whole cluster can go away and come back.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from sharecoord.core.dispatch.schedule import due_times
from sharecoord.core.records import ColumnChunk, Headers, RecordChunk
from sharecoord.errors import (
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)
from sharecoord.kafka.looks import SharedLooks
from sharecoord.ports import EARLIEST, LATEST, FoundOffset, LogSink, OffsetQuery, Stretch, TopicInfo

__all__ = [
    "FakeLog",
    "FakePartition",
    "FakeReading",
    "FakeRecord",
    "build_chunk",
]

EPOCH_MS = 1_700_000_000_000
"""Time of wall clocks when virtual time begins."""

CHUNK_RECORDS_MAX = 500

SCAN_RECORDS_MAX = 20
"""Most records of one chunk of a scan."""


@dataclass(slots=True)
class FakeRecord:
    """A record of a fake log."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    leader_epoch: int = 0


@dataclass
class FakePartition:
    """The log of one partition."""

    records: list[FakeRecord] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0
    stable_end: int | None = None
    """Last stable offset while a transaction is open; None = log end."""
    shown_end: int | None = None
    """End that a new leader shows until its followers are there; None = log end."""
    aborted: set[int] = field(default_factory=set)
    """Offsets that read_committed leaves out."""
    epochs: list[tuple[int, int]] = field(default_factory=lambda: [(0, 0)])
    """Leader epochs with their first offsets, ascending both; the last is the present leader's."""

    def end(self, *, committed: bool) -> int:
        """The offset at which a reader stops."""
        ends = (self.shown_end, self.stable_end if committed else None)
        return min((end for end in ends if end is not None), default=self.log_end)

    @property
    def leader_epoch(self) -> int:
        """The present leader's epoch."""
        return self.epochs[-1][0]

    def epoch_before(self, offset: int) -> int:
        """The epoch of what was written last below an offset; -1 = nothing was."""
        below = [epoch for epoch, first in self.epochs if first < offset]
        return below[-1] if below else -1

    def elect(self) -> None:
        """Another leader, with the log as it is."""
        start = self.log_end
        kept = [each for each in self.epochs if each[1] < start]
        self.epochs = [*kept, (self.leader_epoch + 1, start)]

    def end_of(self, epoch: int) -> tuple[int, int] | None:
        """As Kafka's `endOffsetFor`: the highest epoch up to this one, and where it ends.

        None when no epoch as high was ever known.
        """
        if epoch == self.leader_epoch:
            return epoch, self.log_end
        later = [first for known, first in self.epochs if known > epoch]
        if not later:
            return None
        until = [known for known, first in self.epochs if known <= epoch and first < later[0]]
        return (until[-1] if until else epoch), max(later[0], self.log_start)

    def visible(self, offset: int, *, committed: bool) -> list[FakeRecord]:
        """Records from `offset` on that a reader gets."""
        end = self.end(committed=committed)
        return [
            r
            for r in self.records
            if offset <= r.offset < end and not (committed and r.offset in self.aborted)
        ]


class FakeReading:
    """A running read; see `ports.LogReading`."""

    def __init__(
        self,
        log: FakeLog,
        topic: str,
        partition: int,
        offset: int,
        sink: LogSink,
        *,
        last_epoch: int,
        committed: bool,
    ) -> None:
        self.last_epoch = last_epoch
        self.topic, self.partition, self.position = topic, partition, offset
        self.sink, self.committed = sink, committed
        self.wanted, self.closed = True, False
        self._log = log
        self._end_told = -1
        self._scheduled = False
        self.kick()

    @property
    def drained_s(self) -> float:
        """Moment at which all records had been read: now, or as the log says."""
        now_s = asyncio.get_running_loop().time()
        return now_s if self._log.drained_s is None else self._log.drained_s

    def want_more(self, *, wanted: bool) -> None:
        """Stops reading, or goes on."""
        self.wanted = wanted
        self.kick()

    def close(self) -> None:
        """Stops for good."""
        self.closed = True
        self._log.readings.pop(self, None)

    def kick(self) -> None:
        """Looks for records in the next turn of the loop."""
        if not self._scheduled and not self.closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        if self.closed or not self.wanted or self._log.down or self.topic in self._log.refusals:
            return
        found = self._log.find(self.topic, self.partition)
        if found is None:
            self.close()
            self.sink.on_gone()
            return
        if not self._is_valid(found):
            return
        records = found.visible(self.position, committed=self.committed)[:CHUNK_RECORDS_MAX]
        if records:
            chunk = build_chunks(records, self.position)[0]
            self.position, self.last_epoch = chunk.last + 1, chunk.leader_epoch
            self.sink.on_chunk(chunk)
            self.kick()
            return
        end = found.end(committed=self.committed)
        if end >= self.position and end != self._end_told:
            self._end_told = self.position = end
            self.last_epoch = found.epoch_before(end)
            self.sink.on_end(end, self.last_epoch)

    def _is_valid(self, found: FakePartition) -> bool:
        """Whether the log has the position, as a broker checks it; else reading ends."""
        is_there = found.log_start <= self.position <= found.log_end
        if self._log.compares_epochs and self.last_epoch >= 0 and found.log_start <= self.position:
            end = found.end_of(self.last_epoch)
            if end is not None and (end[0] < self.last_epoch or end[1] < self.position):
                self.close()
                self.sink.on_diverged(*end)
                return False
            is_there = is_there and end is not None
        if not is_there:
            self.close()
            self.sink.on_out_of_range()
        return is_there


def build_chunks(records: Sequence[FakeRecord], covers_from: int) -> list[RecordChunk]:
    """Columns of fake records: a chunk for each leader epoch."""
    chunks: list[RecordChunk] = []
    for _, run in itertools.groupby(records, key=lambda record: record.leader_epoch):
        chunks.append(build_chunk(list(run), covers_from))
        covers_from = chunks[-1].last + 1
    return chunks


def build_chunk(records: Sequence[FakeRecord], covers_from: int) -> RecordChunk:
    """Columns of fake records of one leader epoch."""
    offsets = [r.offset for r in records]
    contiguous = offsets[-1] - offsets[0] + 1 == len(offsets)
    keys = [r.key for r in records]
    headers = {i: r.headers for i, r in enumerate(records) if r.headers}
    timestamps = [r.timestamp_ms for r in records]
    return ColumnChunk(
        covers_from=covers_from,
        first=offsets[0],
        last=offsets[-1],
        offsets=None if contiguous else offsets,
        timestamps=timestamps,
        timestamp_type=1,
        keys=keys if any(k is not None for k in keys) else None,
        values=[r.value for r in records],
        headers=headers,
        due_times=due_times(headers, timestamps, now_ms=EPOCH_MS)[0],
        size_bytes=sum(100 + len(r.value or b"") for r in records),
        leader_epoch=records[-1].leader_epoch,
    )


class FakeLog:
    """All topics of a fake cluster."""

    def __init__(self, cluster: str = "fake-cluster") -> None:
        self.cluster = cluster
        self.down = False
        self.is_shared = False
        """Whether several coordinators read it: then one that goes ends nothing here."""
        self.compares_epochs = False
        """Whether reads tell of a log that was cut by its leader epochs, as the reader of raw
        batches; the one over librdkafka does not."""
        self.describes: list[tuple[str, ...]] = []
        """Topics of each request for a description."""
        self.describe_s = 0.001
        """How long a description takes."""
        self.describe_failures = 0
        """Number of next descriptions that fail."""
        self.refusals: dict[str, UnauthorizedError] = {}
        self.brokers = 1
        """Topics that nobody may describe or read; see `refuse`."""
        self.leaderless: set[tuple[str, int]] = set()
        """Partitions that tell no offsets."""
        self.drained_s: float | None = None
        """Since when the readers' queues are never empty; None = they are."""
        self._looks = SharedLooks(self.describe)
        self.readings: dict[FakeReading, None] = {}
        self.scans = 0
        """Number of scans that run."""
        self._ids = itertools.count(1)
        self._topics: dict[str, tuple[str, dict[int, FakePartition]]] = {}

    # -- the world ------------------------------------------------------------------------------

    def create(self, topic: str, partitions: int = 1) -> None:
        """Makes a topic (again, with a new id), or adds partitions to it."""
        if topic in self._topics:
            logs = self._topics[topic][1]
            for partition in range(len(logs), partitions):
                logs[partition] = FakePartition()
            return
        logs = {partition: FakePartition() for partition in range(partitions)}
        self._topics[topic] = (f"{next(self._ids):032x}", logs)

    def delete(self, topic: str) -> None:
        """Deletes a topic."""
        del self._topics[topic]
        self._changed()

    def find(self, topic: str, partition: int) -> FakePartition | None:
        """The log of a partition."""
        known = self._topics.get(topic)
        return None if known is None else known[1].get(partition)

    def topic_id(self, topic: str) -> str:
        """The id of a topic that exists."""
        return self._topics[topic][0]

    def log(self, topic: str, partition: int = 0) -> FakePartition:
        """The log of a partition that exists."""
        found = self.find(topic, partition)
        assert found is not None, f"no partition {topic}[{partition}]"
        return found

    def append(
        self,
        topic: str,
        count: int = 1,
        *,
        partition: int = 0,
        key: bytes | None = None,
        value: bytes | None = None,
        headers: Headers | None = None,
    ) -> int:
        """Appends records (value: their offset as text); returns the first offset."""
        log = self.log(topic, partition)
        first = log.log_end
        for offset in range(first, first + count):
            body = value if value is not None else str(offset).encode()
            place = 1_000 + offset, log.leader_epoch
            log.records.append(FakeRecord(offset, key, body, headers or [], *place))
        log.log_end += count
        self._changed()
        return first

    def skip(self, topic: str, count: int = 1, *, partition: int = 0) -> None:
        """Adds offsets without records at the end, as control records do."""
        self.log(topic, partition).log_end += count
        self._changed()

    def compact(self, topic: str, offsets: Sequence[int], *, partition: int = 0) -> None:
        """Removes records."""
        log = self.log(topic, partition)
        gone = set(offsets)
        log.records = [r for r in log.records if r.offset not in gone]

    def move_log_start(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Deletes records from the start."""
        log = self.log(topic, partition)
        log.log_start = offset
        log.records = [r for r in log.records if r.offset >= offset]
        self._changed()

    def truncate(self, topic: str, offset: int, *, partition: int = 0) -> None:
        """Loses the records from an offset on, to an unclean election."""
        log = self.log(topic, partition)
        log.log_end = offset
        log.records = [r for r in log.records if r.offset < offset]
        log.elect()
        self._changed()

    def refuse(self, topic: str) -> None:
        """Refuses a topic until it is taken out of `refusals`."""
        self.refusals[topic] = UnauthorizedError(f"Kafka refuses topic {topic!r}; allow READ")

    def set_down(self, *, down: bool) -> None:
        """Takes the cluster away, or brings it back."""
        self.down = down
        self._changed()

    def _changed(self) -> None:
        for reading in list(self.readings):
            reading.kick()

    # -- ports.LogReader ------------------------------------------------------------------------

    @property
    def open_bytes(self) -> int:
        """See `ports.LogReader`: its records are open."""
        return 0

    def read(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        last_epoch: int,
        committed: bool,
        sink: LogSink,
    ) -> FakeReading:
        """Reads from `offset` on."""
        reading = FakeReading(
            self, topic, partition, offset, sink, last_epoch=last_epoch, committed=committed
        )
        self.readings[reading] = None
        return reading

    async def reread(
        self, topic: str, partition: int, first: int, last: int, *, committed: bool
    ) -> list[RecordChunk]:
        """Reads a range again."""
        await asyncio.sleep(0.002)
        self._check_up()
        log = self.find(topic, partition)
        if log is None:
            raise UnknownTopicOrPartitionError(f"{topic}[{partition}] does not exist any more")
        if first < log.log_start:
            raise OffsetOutOfRangeError(f"{first} is below the log start {log.log_start}")
        records = [r for r in log.visible(first, committed=committed) if r.offset <= last]
        return build_chunks(records, first)

    async def scan(
        self, topic: str, stretches: Sequence[Stretch]
    ) -> AsyncGenerator[tuple[int, RecordChunk], None]:
        """Reads stretches once."""
        self.scans += 1
        try:
            for partition, first, end in stretches:
                while first < end:
                    last = min(first + SCAN_RECORDS_MAX, end) - 1
                    for chunk in await self.reread(topic, partition, first, last, committed=True):
                        yield partition, chunk
                    first = last + 1
        finally:
            self.scans -= 1

    # -- ports.TopicCatalog ---------------------------------------------------------------------

    def _check_up(self) -> None:
        if self.down:
            raise KafkaUnavailableError("the fake cluster is down", retry_after_ms=100)

    async def cluster_id(self) -> str:
        """The cluster's id."""
        self._check_up()
        return self.cluster

    async def names(self) -> list[str]:
        """All topics that are shown."""
        self._check_up()
        return sorted(topic for topic in self._topics if topic not in self.refusals)

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The topics that exist."""
        self.describes.append(tuple(topics))
        await asyncio.sleep(self.describe_s)
        self._check_up()
        if self.describe_failures:
            self.describe_failures -= 1
            raise KafkaUnavailableError("no description this time", retry_after_ms=100)
        return {
            topic: TopicInfo(self._topics[topic][0], tuple(sorted(self._topics[topic][1])))
            for topic in topics
            if topic in self._topics and topic not in self.refusals
        }

    async def look(self, topic: str) -> TopicInfo | None:
        """A topic as it is now, by a request shared with others."""
        info = await self._looks.look(topic)
        if topic in self.refusals:
            raise self.refusals[topic]
        return info

    async def offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, int]:
        """Log start, log end, or the first offset at a time."""
        answers = await self.find_offsets(queries, committed=committed)
        return {
            query: self.log(query.topic, query.partition).log_end
            if each.offset < 0
            else each.offset
            for query, each in answers.items()
        }

    async def find_offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, FoundOffset]:
        """As `offsets`, with the record's time."""
        await asyncio.sleep(0.001)
        self._check_up()
        found: dict[OffsetQuery, FoundOffset] = {}
        problem: SharecoordError | None = None
        for query in queries:
            log = self.find(query.topic, query.partition)
            if query.topic in self.refusals:
                problem = self.refusals[query.topic]
                continue
            if (query.topic, query.partition) in self.leaderless:
                problem = KafkaUnavailableError("the partition has no leader")
                continue
            if log is None:
                continue
            if query.timestamp_ms == EARLIEST:
                found[query] = FoundOffset(log.log_start, -1, log.leader_epoch)
            elif query.timestamp_ms == LATEST:
                found[query] = FoundOffset(log.end(committed=committed), -1, log.leader_epoch)
            else:
                later = (r for r in log.records if r.timestamp_ms >= query.timestamp_ms)
                first = next(later, None)
                found[query] = (
                    FoundOffset(-1, -1, -1)
                    if first is None
                    else FoundOffset(first.offset, first.timestamp_ms, log.leader_epoch)
                )
        if problem is not None and not found:
            raise problem
        return found

    async def close(self) -> None:
        """Stops every read, unless they are of several coordinators."""
        if self.is_shared:
            return
        await self._looks.close()
        for reading in list(self.readings):
            reading.close()
