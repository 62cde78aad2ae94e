"""What retention takes away: records below the log's start (design 5.12).

Nobody can read them there any more, so what would be due is archived, and counted. What has a
payload of its own in the store (docs/decisions/0027) does not need the log, and stays.
"""

from __future__ import annotations

from sharecoord.core import outcomes
from sharecoord.core.parked import ParkedOffsets
from sharecoord.core.range_map import uncovered
from sharecoord.core.states import ArchiveReason, RecordState
from sharecoord.core.window import Edit, RangeState, Window


def gone(window: Window, log_start_offset: int, kept: ParkedOffsets) -> list[Edit]:
    """Archives what is AVAILABLE below the log's start, whatever its count; no dead letter."""
    last = log_start_offset - 1
    return [
        Edit(start, end, outcomes.forced(value, ArchiveReason.LOG_START))
        for start, end, value in available_in(window, window.start_offset, last, kept)
    ]


def available_in(
    window: Window, first: int, last: int, kept: ParkedOffsets
) -> list[tuple[int, int, RangeState]]:
    """What is AVAILABLE in [first, last] and has nothing but the log to be read from."""
    return [
        (left, right, value)
        for start, end, value in window.ranges.overlapping(first, last)
        if value.state is RecordState.AVAILABLE
        for left, right in _without(kept, max(start, first), min(end, last))
    ]


def cut_off(edits: list[Edit], log_start_offset: int, kept: ParkedOffsets) -> list[Edit]:
    """Edits, in order, with what they make due below the log's start archived instead."""
    if not edits or edits[0].first >= log_start_offset:
        return edits
    found: list[Edit] = []
    for first, last, value in edits:
        position = first
        if value is not None and value.state is RecordState.AVAILABLE:
            archived = outcomes.forced(value, ArchiveReason.LOG_START)
            for start, end in _without(kept, first, min(last, log_start_offset - 1)):
                if start > position:
                    found.append(Edit(position, start - 1, value))
                found.append(Edit(start, end, archived))
                position = end + 1
        if position <= last:
            found.append(Edit(position, last, value))
    return found


def _without(kept: ParkedOffsets, first: int, last: int) -> list[tuple[int, int]]:
    if not kept.records:
        return [(first, last)] if first <= last else []
    return list(uncovered(kept.runs(first, last), first, last))
