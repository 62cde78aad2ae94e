"""Records below the log's start, which retention has taken away (design 5.12).

They can not be read any more, so records there that would be due are archived, and counted. A
record whose payload is kept in the store (docs/decisions/0027) does not need the log, and stays.
"""

from __future__ import annotations

from sharecoord.core.offset_set import OffsetSet
from sharecoord.core.partition import outcomes
from sharecoord.core.spans import Span, split, uncovered
from sharecoord.core.states import ArchiveReason, RecordState
from sharecoord.core.window.window import Edit, Range, Window


def gone(window: Window, log_start_offset: int, kept: OffsetSet) -> list[Edit]:
    """Archives AVAILABLE records below the log's start, without dead letters."""
    last = log_start_offset - 1
    return [
        Edit(start, end, outcomes.forced(value, ArchiveReason.LOG_START))
        for start, end, value in available_in(window, window.start_offset, last, kept)
    ]


def available_in(window: Window, first: int, last: int, kept: OffsetSet) -> list[Range]:
    """The AVAILABLE records in [first, last] that can be read from the log alone."""
    return [
        (left, right, value)
        for start, end, value in window.ranges.within(first, last)
        if value.state is RecordState.AVAILABLE
        for left, right in _not_kept(kept, start, end)
    ]


def cut_off(edits: list[Edit], log_start_offset: int, kept: OffsetSet) -> list[Edit]:
    """Edits, in order, that archive records below the log's start instead of making them due."""
    if not edits or edits[0].first >= log_start_offset:
        return edits
    found: list[Edit] = []
    for first, last, value in edits:
        if value is None or value.state is not RecordState.AVAILABLE:
            found.append(Edit(first, last, value))
            continue
        archived = outcomes.forced(value, ArchiveReason.LOG_START)
        below = _not_kept(kept, first, min(last, log_start_offset - 1))
        for start, end, inside in split(below, first, last):
            found.append(Edit(start, end, archived if inside else value))
    return found


def _not_kept(kept: OffsetSet, first: int, last: int) -> list[Span]:
    """The offsets of [first, last] that only the log has."""
    return list(uncovered(kept.spans(first, last), first, last))
