"""Follows the log of a share-partition from the end of its window on.

Records pass the guard of the topic's life (`topic_life`), then the bound of lanes and replays
(`bounds`). Offsets that an operator has settled are taken out; all others are at hand for members.
Reading stops while enough is read ahead, while memory is short, and while no member wants the
share-partition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

import structlog

from sharecoord.core.changes import LoadedPartition, PartitionKey
from sharecoord.core.partition import passed_over
from sharecoord.core.partition.leader_epochs import UNKNOWN
from sharecoord.core.records import RecordChunk
from sharecoord.errors import SharecoordError
from sharecoord.ports import LogReader, LogReading, LogSink, TopicInfo
from sharecoord.runtime.partition.books import Books
from sharecoord.runtime.partition.bounds import UNBOUNDED, Bound, BoundedSink
from sharecoord.runtime.partition.claimed import ActorState, ClaimedPartition
from sharecoord.runtime.partition.record_cache import ReadAhead
from sharecoord.runtime.partition.topic_life import GuardedReading, TopicLife

log = structlog.get_logger(__name__)

REFUSAL_TIMEOUT_S: Final = 2.0
"""Wait for the leader's first answer, which refuses a read beyond its records."""


class LogFollower:
    """The log of one share-partition, in one incarnation after the other: a `ports.LogSink`."""

    def __init__(
        self,
        part: ClaimedPartition,
        books: Books,
        on_other_topic: Callable[[str, TopicInfo], None],
        on_arrival: Callable[[int], None] | None,
    ) -> None:
        """Reads nothing yet.

        `on_other_topic` is called when the topic was made again, `on_arrival` with the last offset
        of records that arrived, for the event log.
        """
        self._part = part
        self.books = books
        self._on_other_topic = on_other_topic
        self._on_arrival = on_arrival
        self.reading: LogReading | None = None
        self.life: TopicLife | None = None
        """The guard that lets records pass while the topic is the same."""
        self.bound = UNBOUNDED
        self.fresh = ReadAhead(part.cache)
        self.end_offset: int | None = None
        """The log's end; None until it is known."""
        self.proven_end = 0
        """Below this offset every record is in the window or at hand; all else are gaps."""
        self.held_back = False
        """Whether nothing new is read because of the memory limit."""
        self.given_up = False
        """Whether reading was closed because of memory: it starts anew at the window's end."""
        self.resting = False
        """Whether nothing is read because no member wants the share-partition."""
        self.shorter_log: ShorterLog | None = None
        self.diverged: Divergence | None = None
        self.unknown_epochs = 0
        """How many reads in a row that showed a leader epoch Kafka refused as out of range."""
        self._shown_epoch = UNKNOWN

    # -- life -----------------------------------------------------------------------------------

    def begin(self, loaded: LoadedPartition, end_offset: int) -> None:
        """An incarnation begins, with a window that ends at `end_offset`."""
        row = loaded.row
        self.fresh.clear()
        self.proven_end = end_offset
        self.given_up = self.resting = False
        self.life = TopicLife(self._part, self._on_other_topic)
        # A lane has selected letters and reads nothing, even if its row was emptied or made anew.
        stops_at = end_offset if row.key.lane else row.stops_at
        if stops_at is not None or row.rate_limit:
            self.bound = Bound(stops_at, row.rate_limit, now_ms=self._part.clock.now_ms())

    def close(self) -> None:
        """The incarnation has ended."""
        if self.reading is not None:
            self.reading.close()
            self.reading = None
        self._part.cache.clear()
        self.fresh.clear()

    def start(self, *, committed: bool) -> None:
        """Reads from the window's end on, unless nothing is to be read there."""
        partition, life, stops_at = self._part.partition, self.life, self.bound.stops_at
        assert partition is not None, "active"
        assert life is not None, "begun"
        if stops_at is not None and partition.window.end_offset >= stops_at:
            return
        end_offset = partition.window.end_offset
        # What was read ahead before may be in the log no more.
        partition.epochs.cut(end_offset)
        self._shown_epoch = partition.end_leader_epoch
        sink: LogSink = _PassingOver(self) if self.books.passed_over.ranges else self
        bounded = None if stops_at is None else BoundedSink(sink, stops_at)
        guarded = GuardedReading(life, bounded or sink)
        key = self._part.key
        reading = self._part.context.reader.read(
            key.topic,
            key.partition,
            end_offset,
            last_epoch=self._shown_epoch,
            committed=committed,
            sink=guarded,
        )
        self.reading = guarded.over(reading)
        if bounded is not None:
            bounded.over(self.reading)

    # -- ports.LogSink --------------------------------------------------------------------------

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Records arrived."""
        part, partition = self._part, self._part.partition
        if partition is None:
            return
        end = partition.window.end_offset
        if chunk.covers_from > max(self.proven_end, end):
            # The offsets between would pass for a gap.
            part.drop(SharecoordError(f"the read left out {self.proven_end} ff."))
            return
        self.unknown_epochs = 0
        partition.epochs.read(chunk.last + 1, chunk.leader_epoch, window_end=end)
        part.cache.add(chunk)
        if chunk.first < end:
            # The log's start moved over a part of the chunk since it was read.
            assert end <= partition.log_start_offset, "the window passed what was not read"
            self.recount()
        else:
            self.fresh.add(chunk)
        if self._on_arrival is not None:
            self._on_arrival(chunk.last)
        self.proven_end = max(self.proven_end, chunk.last + 1)
        if self.end_offset is None or self.end_offset < self.proven_end:
            self.end_offset = self.proven_end
        self.adjust_appetite()
        part.cache.evict(end, part.budget.excess_bytes)
        part.wake()

    def on_end(self, end_offset: int, last_epoch: int = UNKNOWN) -> None:
        """The end of the log was reached; trailing gaps are proven up to it."""
        self.unknown_epochs = 0
        self.end_offset = end_offset
        self.nothing_before(end_offset, last_epoch)

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut: resolved by loading anew, before anything else leaves.

        Also called when a re-read finds a record that can not be the one that was read.
        """
        part = self._part
        if self.reading is not None:
            self.reading.close()
            self.reading = None
        if part.state is ActorState.ACTIVE:
            self.diverged = Divergence(part.state_epoch, epoch, end_offset)
            part.drop(SharecoordError(f"the log has other records from {end_offset} on"))

    def on_out_of_range(self) -> None:
        """The position is not in the log (any more): resolved by loading anew."""
        self.reading = None
        self.unknown_epochs += self._shown_epoch != UNKNOWN
        if self._part.state is ActorState.ACTIVE:
            self._part.drop(SharecoordError("position out of range"))

    def on_gone(self) -> None:
        """The partition was deleted."""
        self.reading = None
        key = self._part.key
        log.warning("partition is gone", topic=key.topic, partition=key.partition)

    def nothing_before(self, offset: int, last_epoch: int = UNKNOWN) -> None:
        """Records before `offset` that were not passed on are not to be handed out."""
        partition = self._part.partition
        if partition is not None:
            partition.epochs.read(offset, last_epoch, window_end=partition.window.end_offset)
            self.proven_end = max(self.proven_end, offset)
            self.skip_gap()

    def skip_gap(self) -> None:
        """Moves the window over a proven gap when no record is left before its end."""
        partition = self._part.partition
        if partition and not self.fresh.records and partition.window.end_offset < self.proven_end:
            self._part.commit(partition.decide_gap_ahead(self.proven_end))

    # -- how much is read -----------------------------------------------------------------------

    def adjust_appetite(self) -> None:
        """Reads on or pauses, by what was read ahead and by what memory allows."""
        if self.reading is None:
            return
        if self.held_back or not self._part.budget.may_read() or self.fresh.is_full:
            self.reading.want_more(wanted=False)
        elif self.fresh.is_low:
            self.reading.want_more(wanted=True)

    def took(self, end_before: int, end: int) -> None:
        """An acquisition moved the window's end over what was read ahead."""
        self.fresh.take(end_before, end)
        self.adjust_appetite()

    def recount(self) -> None:
        """Counts what was read ahead anew, after the window's end moved by itself."""
        assert self._part.partition is not None, "active"
        self.fresh.recount(self._part.partition.window.end_offset)
        self.adjust_appetite()

    def hold_back(self, *, held: bool) -> None:
        """Stops reading because of memory, or lets it go on; also reading that starts later."""
        if held or self.held_back:
            self.held_back = held
            self.adjust_appetite()

    def give_up(self) -> int:
        """Forgets all payloads and stops reading; returns how many bytes that makes free.

        Reading that goes on later starts anew at the window's end (`given_up`).
        """
        partition = self._part.partition
        if partition is None:
            return 0
        freed = self._part.cache.size_bytes
        self.close()
        self.given_up = True
        self.proven_end = partition.window.end_offset
        return freed

    def rest(self) -> None:
        """Reads nothing and holds no payloads until a member wants them."""
        self.resting = True
        self.give_up()

    # -- changes of the log ---------------------------------------------------------------------

    def start_moved(self, log_start_offset: int) -> None:
        """Records below the log start are gone."""
        partition = self._part.partition
        if partition is None:
            return
        log_start_offset = self.bound.cap(log_start_offset)
        self.books.kept.before_log_start(partition, log_start_offset)
        self._part.commit(partition.decide_log_start(log_start_offset))
        self.books.parking.log_start_moved(partition)
        self.recount()
        # What was read ahead may have been the last records before a gap that is proven already.
        self.skip_gap()

    def ends_at(self, log_end: int) -> None:
        """The log was found to end here.

        Passed-over offsets from here on existed when they were settled: the log was truncated, and
        other records come there.
        """
        if self.books.passed_over.cut(log_end):
            self._part.context.committer.add(self._part)

    def truncated(self, offset: int, epoch: int | None = None) -> None:
        """The log was truncated: state and locks from `offset` on are void.

        Below `offset` the log has no leader epoch above `epoch` (None = not known).
        """
        part = self._part
        assert part.partition is not None, "active"
        if epoch is not None:
            part.partition.epochs.cap(epoch)
        if offset >= part.partition.window.end_offset:
            # Only what was read ahead had gone, with the incarnation that read it.
            self.diverged = None
            self.ends_at(offset)
            return
        log.warning("log truncated", partition=part.key, offset=offset)
        part.begin_state_epoch()
        self.proven_end = offset
        self.books.passed_over.cut(offset)
        self.bound.ends_at(offset)
        self.books.letters.cut(offset)
        part.commit(part.partition.decide_truncate(offset))
        self.recount()


class _PassingOver:
    """A sink that takes out offsets which an operator has settled before they were read."""

    def __init__(self, follower: LogFollower) -> None:
        self._follower = follower
        self.on_out_of_range = follower.on_out_of_range
        self.on_diverged = follower.on_diverged
        self.on_gone = follower.on_gone

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Records arrived."""
        follower = self._follower
        left = passed_over.without(chunk, follower.books.passed_over.ranges)
        if left is not None:
            follower.on_chunk(left)
        if left is not chunk:
            follower.nothing_before(chunk.last + 1, chunk.leader_epoch)

    def on_end(self, end_offset: int, last_epoch: int = UNKNOWN) -> None:
        """The end of the log was reached."""
        self._follower.ends_at(end_offset)
        self._follower.on_end(end_offset, last_epoch)


# -- logs that were cut, as leader epochs tell -----------------------------------------------------


class Divergence(NamedTuple):
    """Where a log leaves what was read of it; a finding that the next load acts on."""

    state_epoch: int
    """State epoch of the share-partition: a durable truncation or reset voids the finding."""
    epoch: int
    """The log has no higher leader epoch below `offset`."""
    offset: int
    """From here on the log has other records."""


# -- logs that end early ---------------------------------------------------------------------------
# The lowest end of all looks is the place of the cut: the log may have grown again since. A read at
# the former end tells whether the log was cut at all: Kafka refuses a read beyond the last record
# of the partition's leader. A new leader that does not show all of its records yet refuses nothing.


class ShorterLog(NamedTuple):
    """The findings of looks at a log that seems to be shorter."""

    state_epoch: int
    """State epoch of the share-partition: a durable truncation or reset voids the findings."""
    lowest_end: int
    is_cut: bool
    """Whether a read at the former end was refused."""

    def and_now(self, log_end: int) -> ShorterLog:
        """The findings with another look."""
        return self._replace(lowest_end=min(self.lowest_end, log_end))


async def is_refused(reader: LogReader, key: PartitionKey, offset: int, *, committed: bool) -> bool:
    """Whether Kafka refuses to read at an offset; False also when it does not say."""
    answer = _Answer()
    # No epoch is shown: the answer is to be about the offset alone.
    reading = reader.read(
        key.topic, key.partition, offset, last_epoch=UNKNOWN, committed=committed, sink=answer
    )
    try:
        async with asyncio.timeout(REFUSAL_TIMEOUT_S):
            return await answer.refused
    except TimeoutError:
        return False
    finally:
        reading.close()


class _Answer:
    """A `ports.LogSink` that waits for the first call."""

    def __init__(self) -> None:
        self.refused: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def on_chunk(self, _: RecordChunk) -> None:
        """There are records."""
        self._heard(refused=False)

    def on_end(self, end_offset: int, last_epoch: int = UNKNOWN) -> None:
        """The log ends there, or later."""
        self._heard(refused=False)

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut below that place."""
        self._heard(refused=True)

    def on_out_of_range(self) -> None:
        """The log does not reach that far."""
        self._heard(refused=True)

    def on_gone(self) -> None:
        """There is no such partition: that tells nothing about its end."""
        self._heard(refused=False)

    def _heard(self, *, refused: bool) -> None:
        if not self.refused.done():
            self.refused.set_result(refused)
