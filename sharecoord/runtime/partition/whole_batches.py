"""Whole record batches for members that open them: nobody opens them on the way (decision 0051)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import Final

from sharecoord.core.delivery import Slice
from sharecoord.core.partition.decisions import AcquiredRange
from sharecoord.core.records import RawBatch
from sharecoord.runtime.partition.record_cache import RecordCache

UNWANTED_MAX: Final = 1
"""Records that go along unwanted with each wanted one, on average over a delivery. With more of
them the copies cost more than columns do."""

BYTES_MIN: Final = 32 << 10
"""Least bytes of a batch, on average over a delivery. Columns of many small ones are written by one
call of C here, while the member opens each by itself: at 16 kB that costs it more than it saves. A
compressed batch that nobody opens here pays at any size."""


def whole_batches(
    slices: Iterable[Slice],
    acquired: Iterable[AcquiredRange],
    opens: Set[int],
    *,
    opened: bool,
) -> Sequence[RawBatch]:
    """The batches with the records of a delivery, if they go to the member as they are; else none.

    Records that come again go as columns. So a batch that a member could not open is opened here
    the next time.

    Args:
        slices: The records.
        acquired: Their locks.
        opens: The compressions that the member can undo.
        opened: Whether compressed batches were opened here already, for what the group looks at.
    """
    if not opens or any(each.delivery_count > 1 for each in acquired):
        return ()
    found: list[RawBatch] = []
    wanted = 0
    for chunk, start, stop in slices:
        batches = chunk.whole(start, stop)
        if batches is None:
            return ()
        wanted += stop - start
        for batch in batches:
            if found and batch.first <= found[-1].last:
                if batch[1:] != found[-1][1:]:
                    # Compaction has rewritten the log between two reads.
                    return ()
                continue
            if batch.compression not in opens:
                return ()
            found.append(batch)
    return found if _pays(found, wanted, opened=opened) else ()


def _pays(found: Sequence[RawBatch], wanted: int, *, opened: bool) -> bool:
    if sum(batch.records for batch in found) - wanted > UNWANTED_MAX * wanted:
        return False
    if not opened and any(batch.compression for batch in found):
        return True
    return sum(len(batch.content) for batch in found) >= BYTES_MIN * len(found)


def up_to_a_batch(
    cache: RecordCache, first: int, records: int, held: int, opens: Set[int], *, opened: bool
) -> int:
    """How many of `records` new ones from offset `first` on a member gets that opens batches.

    They end where a batch ends, if one does: what is left of a batch would travel twice. A member
    that holds as many records as the next batch has waits until it has room for all of it. Where
    batches do not go as they are, nothing waits for their ends.

    Args:
        cache: The records at hand.
        first: Offset of the first new one.
        records: Most records.
        held: Records that the member has to work on meanwhile, at most those of one delivery and
            those for which it may wait (`Pace.batch_wait_max`); 0 = it may not wait.
        opens: As of `whole_batches`.
        opened: As of `whole_batches`.
    """
    last = first + records - 1
    chunk = cache.find(last)
    batch = None if chunk is None else chunk.batch_of(last)
    if batch is None or batch.last == last or batch.compression not in opens:
        return records
    if not _pays([batch], batch.records, opened=opened):
        return records
    if batch.first > first:
        return batch.first - first
    left = batch.last - first + 1
    return 0 if records < left <= held else records
