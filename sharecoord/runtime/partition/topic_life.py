"""The life of a share-partition's topic: guards against records of a topic that was made again.

Kafka's clients follow a topic by its name: one that was deleted and made again is read on at the
old position. Records tell nothing about that, but the id of their topic does: a look at it that
begins after they arrived and shows the known id proves that they are of the known life.

A look for each chunk would cost a round trip for each. So a chunk passes without one when the life
was known a moment before the chunk was fetched, shorter than a topic takes to be made again
(`SILENCE_S`). "Known" is the begin of the last good look, or the latest time after which a record
that passed was certainly fetched. So records that flow prove each other. The first record after a
silence waits for a look; for a reader with a backlog, whose records were fetched some time before
they arrive here, looks are made in time. docs/decisions/0006 has the figures.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import structlog

from sharecoord.core.records import RecordChunk
from sharecoord.errors import SharecoordError
from sharecoord.ports import LogReading, LogSink, TopicInfo
from sharecoord.runtime.partition.claimed import ClaimedPartition

log = structlog.get_logger(__name__)

SILENCE_S = 0.125
"""A topic takes longer to be made again, filled and read: 0.237 s at least on Kafka 4.3.1 with the
reader's `fetch.error.backoff.ms`, 0.143 s without it."""

LOOK_AGAIN_S = 0.05
"""First wait after a look that proved nothing; doubles."""

LOOK_AGAIN_MAX_S = 0.5

HELD_BYTES_HIGH = 256 << 10
"""With more bytes held, no more is read until a look has come back."""


class _Held(NamedTuple):
    """Records that wait for a look."""

    arrived_s: float
    fetched_after_s: float
    size_bytes: int
    use: Callable[[], None]


class TopicLife:
    """The knowledge about a share-partition's topic, for one incarnation."""

    def __init__(
        self, part: ClaimedPartition, on_other_topic: Callable[[str, TopicInfo], None]
    ) -> None:
        """Knows nothing yet; `on_other_topic` is called for another topic of the same name."""
        self._context = part.context
        self._on_other_topic = on_other_topic
        self._part = part
        self._generation = part.generation
        self._loop = asyncio.get_running_loop()
        # A cluster without topic ids can not tell: everything passes.
        self._known_s = -math.inf if part.key.topic_id else math.inf
        self._held: deque[_Held] = deque()
        self._looking = False

    @property
    def _ended(self) -> bool:
        return self._part.generation != self._generation

    def expect(self) -> None:
        """Looks in advance: records will come soon, and need not wait then."""
        if not self._looking and self._loop.time() - self._known_s > SILENCE_S / 2:
            self._looking = True
            name = f"look-{self._part.key.topic}-{self._part.key.partition}"
            self._context.tasks.spawn(self._look(), name)

    def confirm(self, use: Callable[[], None]) -> None:
        """Calls `use` once records that were read until now are known to be of this life."""
        self.admit(-math.inf, 0, use)

    def admit(self, fetched_after_s: float, size_bytes: int, use: Callable[[], None]) -> None:
        """Lets records pass, or holds them in order until a look shows that they may.

        They were certainly fetched after `fetched_after_s` (loop time), and take `size_bytes` while
        they are held. `use` takes them; it is never called when this incarnation ends before.
        """
        now_s = self._loop.time()
        if self._held or now_s - self._known_s > SILENCE_S:
            self._held.append(_Held(now_s, fetched_after_s, size_bytes, use))
            self._part.budget.grew(size_bytes)
        else:
            self._known_s = max(self._known_s, fetched_after_s)
            use()
        self.expect()

    async def _look(self) -> None:
        """Looks until no record is held any more."""
        delay_s = LOOK_AGAIN_S
        try:
            while not self._ended:
                began_s = self._loop.time()
                known = await self._is_known()
                if known:
                    self._known_s = max(self._known_s, began_s)
                    self._let_pass()
                if not self._held:
                    return
                if not known:
                    await asyncio.sleep(delay_s)
                    delay_s = min(delay_s * 2, LOOK_AGAIN_MAX_S)
        finally:
            self._looking = False
            self._drop_held()

    async def _is_known(self) -> bool:
        """Whether a look shows the known topic; another one of its name is opened."""
        key = self._part.key
        try:
            info = await self._context.catalog.look(key.topic)
        except SharecoordError as error:
            if self._held:
                log.warning("records wait for a look at their topic", place=key, why=error.message)
            return False
        except Exception:
            log.exception("records wait for a look at their topic", place=key)
            return False
        if self._ended:
            return False
        if info is not None and info.topic_id == key.topic_id:
            return True
        self._known_s = -math.inf
        if info is not None and not key.lane:
            self._on_other_topic(key.topic, info)
        return False

    def _let_pass(self) -> None:
        while self._held and self._held[0].arrived_s - self._known_s <= SILENCE_S:
            held = self._held.popleft()
            self._part.budget.shrank(held.size_bytes)
            self._known_s = max(self._known_s, held.fetched_after_s)
            held.use()
            if self._ended:
                return

    def _drop_held(self) -> None:
        """Drops held records when looking ends: their incarnation is gone."""
        self._part.budget.shrank(sum(held.size_bytes for held in self._held))
        self._held.clear()


class GuardedReading:
    """A reading, and its sink, that lets only records of the known topic pass."""

    def __init__(self, life: TopicLife, sink: LogSink) -> None:
        self._life = life
        self._sink = sink
        self._reading: LogReading | None = None
        self._wanted = True
        self._held_bytes = 0
        self._position = -1
        """The offset behind the last record that arrived."""
        self._closed = False

    def over(self, reading: LogReading) -> GuardedReading:
        """Takes charge of the read that has this as its sink."""
        self._reading = reading
        self._life.expect()
        return self

    # -- ports.LogReading -----------------------------------------------------------------------

    @property
    def drained_s(self) -> float:
        """See `LogReading`."""
        return -math.inf if self._reading is None else self._reading.drained_s

    def want_more(self, *, wanted: bool) -> None:
        """Reads on or pauses; held records pause the reading, too."""
        self._wanted = wanted
        if self._reading is not None and not self._closed:
            self._reading.want_more(wanted=wanted and self._held_bytes < HELD_BYTES_HIGH)

    def close(self) -> None:
        """Stops; held records do not come any more."""
        self._closed = True
        if self._reading is not None:
            self._reading.close()

    # -- ports.LogSink --------------------------------------------------------------------------

    def on_chunk(self, chunk: RecordChunk) -> None:
        """Passes records on, now or after a look."""
        self._position = chunk.last + 1
        self._held_bytes += chunk.size_bytes
        self._life.admit(self.drained_s, chunk.size_bytes, lambda: self._pass_on(chunk))
        if self._held_bytes >= HELD_BYTES_HIGH:
            self.want_more(wanted=self._wanted)

    def _pass_on(self, chunk: RecordChunk) -> None:
        full = self._held_bytes >= HELD_BYTES_HIGH
        self._held_bytes -= chunk.size_bytes
        if self._closed:
            return
        self._sink.on_chunk(chunk)
        if full and self._held_bytes < HELD_BYTES_HIGH:
            self.want_more(wanted=self._wanted)

    def on_end(self, end_offset: int, last_epoch: int = -1) -> None:
        """Passes an end on; its proof of gaps holds for the log of this life only."""
        if self._held_bytes or end_offset > self._position:
            self._life.admit(-math.inf, 0, lambda: self._pass_end(end_offset, last_epoch))
        else:
            self._sink.on_end(end_offset, last_epoch)

    def _pass_end(self, end_offset: int, last_epoch: int) -> None:
        if not self._closed:
            self._sink.on_end(end_offset, last_epoch)

    def on_out_of_range(self) -> None:
        """The position is not in the log: held records may be of another life."""
        self._closed = True
        self._sink.on_out_of_range()

    def on_diverged(self, epoch: int, end_offset: int) -> None:
        """The log was cut: held records are not in it any more, or are read again.

        Whether the log is of this life is looked at before anything is made of it
        (`log_changes.judge_log_end`).
        """
        self._closed = True
        self._sink.on_diverged(epoch, end_offset)

    def on_gone(self) -> None:
        """The partition is not there any more."""
        self._closed = True
        self._sink.on_gone()
