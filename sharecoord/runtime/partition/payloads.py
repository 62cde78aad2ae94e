"""Payloads of the records that a share-partition may hand out next.

The log's follower reads new records ahead. Of records that are due again the cache may have
forgotten the payload: it is read again from Kafka, or from the store where the group keeps it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Final

import structlog

from sharecoord.core.records import RecordChunk, gaps_in
from sharecoord.errors import OffsetOutOfRangeError, SharecoordError, UnreadableRecordsError
from sharecoord.runtime.partition.candidates import (
    DUE_LOOKAHEAD_RECORDS,
    LIFELINE_RECORDS,
    Candidates,
    candidates,
)
from sharecoord.runtime.partition.claimed import ClaimedPartition
from sharecoord.runtime.partition.kept_payloads import KeptPayloads
from sharecoord.runtime.partition.log import LogFollower
from sharecoord.runtime.partition.record_cache import parts_without

log = structlog.get_logger(__name__)

REREAD_AGAIN_S: Final = 0.5
"""Wait after a re-read that failed."""

OPEN_AGAIN_S: Final = 10.0
"""Wait after new records could not be opened: their share-partition stands still before them until
an operator resets the group's offset; the log says so each time."""


class Payloads:
    """The payloads of one share-partition."""

    def __init__(self, part: ClaimedPartition, log: LogFollower, kept: KeptPayloads) -> None:
        self._part = part
        self._log = log
        self._kept = kept
        self.rereading = False
        """Whether a re-read is under way, or waits to be tried again."""
        self._unreadable_until_s = -math.inf
        """Loop time before which new records are not looked at: they can not be opened."""

    def candidates(
        self, member_id: str, max_records: int, *, short: bool, whole: bool, soft: bool
    ) -> Candidates:
        """Finds records for a member; asks for payloads that must be read again first.

        With `short` memory only few due records are taken, and no new ones. With `whole` the member
        may get raw batches as they are, and with `soft` more than `max_records`, up to the end of a
        batch.
        """
        part = self._part
        assert part.partition is not None, "active"
        found = candidates(
            part.partition,
            part.cache,
            part.clock,
            member_id=member_id,
            max_records=max_records,
            lookahead=LIFELINE_RECORDS if short else DUE_LOOKAHEAD_RECORDS,
            with_fresh=bool(self._log.fresh.records) and not short and self._may_open(),
            whole=whole,
            soft=soft,
        )
        if found.unreadable is not None:
            self._stands_still(found.unreadable)
        for first, last in found.gaps:
            part.commit(part.partition.decide_gap(first, last))
        self._kept.bring(found.stored)
        if found.missing is not None and not self.rereading:
            self.rereading = True
            part.context.tasks.spawn(self._reread(*found.missing), f"reread-{part.key.name}")
        return found

    def _may_open(self) -> bool:
        return asyncio.get_running_loop().time() >= self._unreadable_until_s

    def _stands_still(self, why: UnreadableRecordsError) -> None:
        """Leaves new records alone for a while; what is due goes on."""
        log.error("new records can not be opened", partition=self._part.key, why=why.message)
        loop = asyncio.get_running_loop()
        self._unreadable_until_s = loop.time() + OPEN_AGAIN_S
        loop.call_at(self._unreadable_until_s, self._part.wake)

    async def _reread(self, first: int, last: int) -> None:
        """Reads [first, last] again, unless its incarnation has ended meanwhile."""
        part, generation = self._part, self._part.generation
        chunks: list[RecordChunk] | None = None
        why: SharecoordError | None = None
        try:
            chunks = await part.context.reader.reread(
                part.key.topic, part.key.partition, first, last, committed=part.reads_committed
            )
        except SharecoordError as error:
            log.warning("re-read failed", partition=part.key, why=error.message)
            why = error
        except Exception:
            log.exception("re-read failed", partition=part.key)
        if part.generation != generation or part.partition is None:
            return
        if chunks is not None:
            assert self._log.life is not None, "active"
            self._log.life.confirm(lambda: self._use(first, last, chunks))
        elif isinstance(why, OffsetOutOfRangeError):
            part.drop(why)
        else:
            asyncio.get_running_loop().call_later(REREAD_AGAIN_S, self._try_again, generation)

    def _try_again(self, generation: int) -> None:
        if self._part.generation == generation:
            self.rereading = False
            self._part.wake()

    def _use(self, first: int, last: int, chunks: Sequence[RecordChunk]) -> None:
        """Takes re-read records into the cache; offsets without a record are gaps."""
        part = self._part
        self.rereading, part.cache.reread_end = False, last + 1
        if part.partition is None:
            return
        for chunk in chunks:
            if not part.partition.may_have(chunk.leader_epoch):
                self._log.on_diverged(part.partition.end_leader_epoch, chunk.first)
                return
        part.cache.evict(part.partition.window.end_offset, part.budget.excess_bytes)
        for chunk in chunks:
            for piece in parts_without(chunk, self._kept.offsets):
                part.cache.add(piece)
        for gap in gaps_in(chunks, first, last):
            part.commit(part.partition.decide_gap(*gap))
        part.wake()
