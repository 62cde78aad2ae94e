"""Payloads of records that wait, in the store: `share.retry.keep.payload` (docs/decisions/0027).

The commit that makes a record wait stores its payload, too, and the commit that finishes the record
deletes it. In between the record does not need its topic: it is delivered from the store, also
after retention or compaction has taken it. Memory has the offsets and sizes of these records;
payloads are read when they are due.

A payload that memory does not have at that moment is read from the topic by side work and stored
after the fact. A record that does not fit into the group's limit waits without, and is counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from typing import Final

import structlog

from sharecoord.core.changes import KeptPayload, LoadedPartition, PartitionCommit, payload_parts
from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.partition.decisions import Decision
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.records import ColumnChunk, RecordChunk
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.spans import offsets_of
from sharecoord.core.states import RecordState
from sharecoord.errors import (
    InternalError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnreadableRecordsError,
)
from sharecoord.ports import EARLIEST, OffsetQuery
from sharecoord.runtime.kernel.committer import CallbackEffect
from sharecoord.runtime.partition.checkpoints import ended_by
from sharecoord.runtime.partition.claimed import Book, ClaimedPartition

log = structlog.get_logger(__name__)

READ_RECORDS_MAX: Final = 500
"""Most payloads of one read, from the store or from the topic."""

READ_BYTES_MAX: Final = 4 << 20
"""Most bytes of one read from the store, but at least one payload."""

LACKING_MAX: Final = 10_000
"""Most records whose payload waits to be read from the topic; further ones are not kept."""

AGAIN_S: Final = 0.5
"""Wait after the store or Kafka did not answer."""


class KeptPayloads(Book):
    """The kept payloads of one share-partition, in one incarnation after the other."""

    def __init__(self, part: ClaimedPartition, lacking: Callable[[], Container[int]]) -> None:
        """Keeps nothing yet; `lacking` has the records whose dead letters lack their payload."""
        self._context = part.context
        self._part = part
        self._letters_lacking = lacking
        self.offsets = OffsetSet()
        """Records with a kept payload."""
        self._sizes: dict[int, int] = {}
        """Sizes as they count, by offset."""
        self._new: dict[int, KeptPayload] = {}
        """Rows for the next commit."""
        self._unsafe: dict[int, KeptPayload] = {}
        """Rows for the next commit, and rows in the commit that runs."""
        self._gone: set[int] = set()
        """Offsets whose rows go with the next commit."""
        self._lacking = OffsetSet()
        """Records whose payload is being read from the topic."""
        self._reading: asyncio.Task[None] | None = None
        self._completing: asyncio.Task[None] | None = None
        self.not_kept = 0
        """Records that wait without a kept payload for good, since the process began."""

    def __bool__(self) -> bool:
        """Whether finished records may have a payload here."""
        return bool(self._sizes or self._lacking.records)

    # -- life -----------------------------------------------------------------------------------

    def begin(self, loaded: LoadedPartition) -> None:
        """Takes over the stored offsets and sizes."""
        self._sizes = dict(loaded.kept)
        for offset in self._sizes:
            self.offsets.add(offset, offset)
        self._part.budget.keeps(sum(self._sizes.values()), len(self._sizes))

    def end(self) -> None:
        """See `Book`."""
        for task in (self._reading, self._completing):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._reading = self._completing = None
        self._part.budget.keeps(-sum(self._sizes.values()), -len(self._sizes))
        self.offsets, self._lacking = OffsetSet(), OffsetSet()
        for each in (self._sizes, self._new, self._unsafe, self._gone):
            each.clear()

    def into(self, commit: PartitionCommit) -> None:
        """See `Book`."""
        if self._new or self._gone:
            commit.kept, self._new = list(self._new.values()), {}
            commit.kept_done, self._gone = sorted(self._gone), set()

    # -- storing --------------------------------------------------------------------------------

    def note(self, decision: Decision) -> None:
        """Keeps payloads of records that a decision makes wait; forgets those that it finishes."""
        settings = self._part.settings
        for first, last, value in decision.edits if settings.retry_keep_payload else ():
            if value is not None and value.available_at_ms:
                self._keep_range(first, last, settings, may_read=True)
        if self:
            self._finish(decision)

    def before_log_start(self, partition: SharePartition, log_start_offset: int) -> None:
        """Keeps payloads in memory that retention has just taken, of unfinished records."""
        settings, before = partition.settings, partition.log_start_offset
        if not settings.retry_keep_payload or log_start_offset <= before or not self._part.cache:
            return
        for first, last, value in partition.window.ranges.overlapping(before, log_start_offset - 1):
            if value.state in (RecordState.AVAILABLE, RecordState.ACQUIRED):
                end = min(last, log_start_offset - 1)
                self._keep_range(first, end, settings, may_read=False)

    def _keep_range(
        self, first: int, last: int, settings: PartitionSettings, *, may_read: bool
    ) -> None:
        made: list[KeptPayload] = []
        for offset in range(first, last + 1):
            if offset in self._sizes:
                continue
            payload = payload_in(self._part.cache.find(offset), offset)
            if payload is not None:
                made.append(payload)
            elif may_read and not self._lacking.covers(offset, offset):
                self._lack(offset)
        self._put(made, settings)

    def _put(self, made: Iterable[KeptPayload], settings: PartitionSettings) -> None:
        """Stores payloads in the next commit, as far as there is room."""
        taken: list[KeptPayload] = []
        budget = self._part.budget
        for payload in made:
            has_room = budget.kept_bytes + payload.size_bytes <= settings.kept_max_bytes
            if not has_room or not self._context.store.fits(payload_parts(payload)):
                self._is_not_kept(1)
                continue
            taken.append(payload)
            self._lacking.discard(payload.offset, payload.offset)
            self._sizes[payload.offset] = payload.size_bytes
            self.offsets.add(payload.offset, payload.offset)
            self._new[payload.offset] = self._unsafe[payload.offset] = payload
            budget.keeps(payload.size_bytes, 1)
        if taken:
            effect = CallbackEffect(partial(self._stored, taken))
            self._context.committer.add(self._part, effect)

    def _stored(self, payloads: Sequence[KeptPayload], error: SharecoordError | None) -> None:
        for payload in payloads if error is None else ():
            if self._unsafe.get(payload.offset) is payload:
                del self._unsafe[payload.offset]

    def _is_not_kept(self, records: int) -> None:
        if records and not self.not_kept:
            log.warning(
                "payloads of delayed records are not kept: see "
                "share.retry.keep.payload.max.bytes, or the topic has them no more, or the store "
                "takes no row of this size (MySQL: max_allowed_packet)",
                partition=self._part.key,
            )
        self.not_kept += records

    # -- until the record is finished -----------------------------------------------------------

    def _finish(self, decision: Decision) -> None:
        """Deletes payloads of records that a decision finishes or drops.

        The payload of a record whose dead letter lacks it stays until the letter has it.
        """
        for first, last in ended_by(decision):
            self.drop(first, last, but=self._letters_lacking())
        if decision.truncate_to is not None:
            self.drop(decision.truncate_to, 2**63 - 1)

    def drop(self, first: int, last: int, *, but: Container[int] = ()) -> None:
        """Deletes the payloads of [first, last], but these."""
        self._lacking.discard(first, last)
        for offset in list(offsets_of(self.offsets.spans(first, last))):
            if offset not in but:
                self.offsets.discard(offset, offset)
                self._part.budget.keeps(-self._sizes.pop(offset), -1)
                self._new.pop(offset, None)
                self._unsafe.pop(offset, None)
                self._gone.add(offset)

    # -- reading --------------------------------------------------------------------------------

    def bring(self, offsets: Sequence[int]) -> None:
        """Starts to read payloads of due records into the cache."""
        if self._reading is None and offsets:
            name = f"kept-{self._part.key.topic}"
            self._reading = self._context.tasks.spawn(self._bring(offsets), name)

    async def _bring(self, offsets: Sequence[int]) -> None:
        part, generation = self._part, self._part.generation
        try:
            chunks = await self.read(offsets)
        except InternalError as error:
            if part.generation == generation:
                part.drop(error)
            return
        except SharecoordError as error:
            log.warning("kept payloads not read", partition=part.key, why=error.message)
            await asyncio.sleep(AGAIN_S)
            chunks = []
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None
        if part.partition is None or part.generation != generation:
            return
        part.cache.evict(part.partition.window.end_offset, part.budget.excess_bytes)
        for chunk in chunks:
            part.cache.add(chunk)
        part.on_time()

    async def read(self, offsets: Sequence[int]) -> list[RecordChunk]:
        """The payloads of as many of these ascending offsets as one read takes, the first included.

        Raises:
            InternalError: A payload is not in the store any more.
            SharecoordError: The store does not answer.
        """
        wanted = self._some_of(offsets)
        found = {offset: self._unsafe[offset] for offset in wanted if offset in self._unsafe}
        asked = [offset for offset in wanted if offset not in found]
        rows = await self._context.caller.call(
            self._context.store.read_kept, self._part.partition_id, asked
        )
        found |= {row.offset: row for row in rows}
        missing = [each for each in wanted if each not in found and each in self._sizes]
        if missing:
            raise InternalError(f"the kept payload of offset {missing[0]} is not in the store")
        return chunks_of(found[offset] for offset in wanted if offset in found)

    def _some_of(self, offsets: Sequence[int]) -> list[int]:
        wanted: list[int] = []
        size = 0
        for offset in offsets[:READ_RECORDS_MAX]:
            size += self._sizes.get(offset, 0)
            if wanted and size > READ_BYTES_MAX:
                break
            wanted.append(offset)
        return wanted

    # -- payloads that memory did not have ------------------------------------------------------

    def _lack(self, offset: int) -> None:
        if self._lacking.records >= LACKING_MAX:
            self._is_not_kept(1)
            return
        self._lacking.add(offset, offset)
        if self._completing is None:
            name = f"keep-{self._part.key.topic}"
            self._completing = self._context.tasks.spawn(self._complete(), name)

    async def _complete(self) -> None:
        """Reads payloads from the topic until all that can be kept are."""
        try:
            while (first := self._lacking.lowest) is not None:
                last = next(self._lacking.spans(first, first + READ_RECORDS_MAX - 1))[1]
                try:
                    await self._complete_range(first, last)
                except SharecoordError as error:
                    log.warning("payloads to keep not read", partition=self._part.key, why=error)
                    await asyncio.sleep(AGAIN_S)
        finally:
            if self._completing is asyncio.current_task():
                self._completing = None

    async def _complete_range(self, first: int, last: int) -> None:
        part, key = self._part, self._part.key
        chunks: list[RecordChunk] = []
        try:
            # Uncommitted as well: these records were there before.
            chunks = await self._context.reader.reread(
                key.topic, key.partition, first, last, committed=False
            )
        except OffsetOutOfRangeError:
            # Retention was faster.
            start = await self._context.calls.offset(
                OffsetQuery(key.topic, key.partition, EARLIEST)
            )
            last = max(first, start - 1)
        await part.confirmed()
        if part.partition is None:
            return
        cache = part.cache
        found = {
            offset: payload
            for chunk in chunks
            if part.partition.may_have(chunk.leader_epoch)
            for offset in offsets_of(self._lacking.spans(chunk.first, min(chunk.last, last)))
            # The cache is newer: it may have a gap there by now.
            if (payload := payload_in(cache.find(offset) or chunk, offset)) is not None
        }
        self._is_not_kept(self._lacking.discard(first, last) - len(found))
        self._put(found.values(), part.partition.settings)


def payload_in(chunk: RecordChunk | None, offset: int) -> KeptPayload | None:
    """The payload of a record in a chunk; None = the chunk does not have it, or can not open it."""
    if chunk is None:
        return None
    at, stop = chunk.span(offset, offset)
    if at >= stop:
        return None
    try:
        key, value, headers, timestamp_ms = chunk.record(at)
    except UnreadableRecordsError as error:
        log.error("a payload can not be opened", offset=offset, why=error.message)
        return None
    times = (timestamp_ms, chunk.timestamp_type)
    return KeptPayload.of(offset, key, value, tuple(headers), times)


def chunks_of(payloads: Iterable[KeptPayload]) -> list[RecordChunk]:
    """Records in order of offset as chunks, which prove no gaps between them."""
    runs: list[list[KeptPayload]] = []
    for payload in payloads:
        before = runs[-1][-1] if runs else None
        if (
            before is not None
            and before.offset + 1 == payload.offset
            and before.timestamp_type == payload.timestamp_type
        ):
            runs[-1].append(payload)
        else:
            runs.append([payload])
    return [_chunk_of(run) for run in runs]


def _chunk_of(run: Sequence[KeptPayload]) -> RecordChunk:
    first, last = run[0].offset, run[-1].offset
    return ColumnChunk(
        covers_from=first,
        first=first,
        last=last,
        offsets=None,
        timestamps=[each.timestamp_ms for each in run],
        timestamp_type=run[0].timestamp_type,
        keys=[each.key for each in run],
        values=[each.value for each in run],
        headers={at: list(each.headers) for at, each in enumerate(run) if each.headers},
        size_bytes=sum(each.size_bytes for each in run),
    )
