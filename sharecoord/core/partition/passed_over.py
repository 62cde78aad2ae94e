"""Offsets beyond the window that are never delivered: an operator has settled them already.

They are taken out of the chunks that are read, so they are gaps, and the window moves over them.
"""

from __future__ import annotations

from sharecoord.core.records import ColumnChunk, RecordChunk
from sharecoord.core.spans import Spans, covers, union, within
from sharecoord.errors import LimitExceededError

PASSED_OVER_MAX = 1_000
"""Ranges of one share-partition: they stand in its row, and every chunk is looked through."""


def added(ranges: Spans, first: int, last: int, *, end_offset: int) -> Spans:
    """The spans with [first, last], less those that the window has passed.

    Raises:
        LimitExceededError: They would be more than `PASSED_OVER_MAX`.
    """
    made = [each for each in union([*ranges, (first, last)]) if each[1] >= end_offset]
    if len(made) > PASSED_OVER_MAX:
        raise LimitExceededError(
            f"{len(made)} ranges of records that were not read yet are to be passed over in one "
            f"partition, {PASSED_OVER_MAX} is the most; let members come nearer, or reset the "
            "group's offset behind them"
        )
    return tuple(made)


def cut(ranges: Spans, offset: int) -> Spans:
    """The spans below `offset`, where the log was truncated: other records come there."""
    return tuple(within(ranges, 0, offset - 1))


def without(chunk: RecordChunk, ranges: Spans) -> RecordChunk | None:
    """A chunk without these offsets, which become gaps; None = nothing is left of it."""
    if not any(within(ranges, chunk.first, chunk.last)):
        return chunk
    offsets = chunk.offsets or range(chunk.first, chunk.last + 1)
    kept = [at for at, offset in enumerate(offsets) if not covers(ranges, offset)]
    if not kept:
        return None
    columns = chunk.columns(0, chunk.count)
    at_new = {old: new for new, old in enumerate(kept)}
    return ColumnChunk(
        covers_from=chunk.covers_from,
        first=offsets[kept[0]],
        last=offsets[kept[-1]],
        offsets=[offsets[at] for at in kept],
        timestamps=[columns.timestamps[at] for at in kept],
        keys=None if columns.keys is None else [columns.keys[at] for at in kept],
        values=[columns.values[at] for at in kept],
        headers={at_new[at]: said for at, said in columns.headers.items() if at in at_new},
        size_bytes=max(1, chunk.payload_bytes(0, chunk.count) * len(kept) // chunk.count),
        due_times={at_new[at]: due for at, due in chunk.due_times.items() if at in at_new},
        timestamp_type=chunk.timestamp_type,
        leader_epoch=chunk.leader_epoch,
    )
