"""Offsets beyond the window that are never to be delivered: an operator has settled them already.

To whoever reads the log they are as gaps: the window moves over them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sharecoord.core.records import RecordChunk
from sharecoord.errors import LimitExceededError

Ranges = tuple[tuple[int, int], ...]
"""(first, last), ascending, disjoint and apart."""

PASSED_OVER_MAX = 1_000
"""Ranges of one share-partition: they stand in its row, and every chunk is looked through."""


def added(ranges: Ranges, first: int, last: int, *, end_offset: int) -> Ranges:
    """With [first, last]; what the window has passed is forgotten.

    Raises:
        LimitExceededError: It would be more than `PASSED_OVER_MAX` ranges.
    """
    made: list[tuple[int, int]] = []
    for start, end in sorted([*ranges, (first, last)]):
        if end < end_offset:
            continue
        if made and start <= made[-1][1] + 1:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((start, end))
    if len(made) > PASSED_OVER_MAX:
        raise LimitExceededError(
            f"{len(made)} ranges of records that were not read yet are to be passed over in one "
            f"partition, {PASSED_OVER_MAX} is the most; let members come nearer, or reset the "
            "group's offset behind them"
        )
    return tuple(made)


def cut(ranges: Ranges, offset: int) -> Ranges:
    """The log was truncated at `offset`: what comes there is other records."""
    return tuple((first, min(last, offset - 1)) for first, last in ranges if first < offset)


def without(chunk: RecordChunk, ranges: Ranges) -> RecordChunk | None:
    """A chunk without these offsets, which become gaps; None = nothing is left of it."""
    found = [each for each in ranges if each[0] <= chunk.last and each[1] >= chunk.first]
    if not found:
        return chunk
    offsets = chunk.offsets or range(chunk.first, chunk.last + 1)
    kept = [at for at, offset in enumerate(offsets) if not _covers(found, offset)]
    if not kept:
        return None
    at_new = {old: new for new, old in enumerate(kept)}
    return replace(
        chunk,
        first=offsets[kept[0]],
        last=offsets[kept[-1]],
        offsets=[offsets[at] for at in kept],
        timestamps=[chunk.timestamps[at] for at in kept],
        keys=None if chunk.keys is None else [chunk.keys[at] for at in kept],
        values=[chunk.values[at] for at in kept],
        headers={at_new[at]: said for at, said in chunk.headers.items() if at in at_new},
        size_bytes=max(1, chunk.size_bytes * len(kept) // chunk.count),
        due_times={at_new[at]: due for at, due in chunk.due_times.items() if at in at_new},
        _hashes=None,
    )


def _covers(ranges: Iterable[tuple[int, int]], offset: int) -> bool:
    return any(first <= offset <= last for first, last in ranges)
