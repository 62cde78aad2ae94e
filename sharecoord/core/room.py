"""How much a window has room for (design 5.4)."""

from __future__ import annotations

from sharecoord.core import limits
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.window import Window


def room_of(window: Window, settings: PartitionSettings) -> int:
    """How many new records may enter."""
    if _is_full(window, settings):
        return 0
    if window.order is None:
        return max(0, settings.record_locks_max - window.acquired - window.due)
    free = settings.record_locks_max - window.acquired - window.ready
    # What a blocked key holds back is bounded by ranges alone, as are delayed records.
    unfinished = window.acquired + window.due + window.delayed - window.order.parked
    return max(0, min(free, limits.WINDOW_RECORDS_MAX - unfinished))


def full_at(window: Window, settings: PartitionSettings) -> int | None:
    """The offset that must be finished before anything new is read, if the window is full."""
    if not _is_full(window, settings):
        return None
    parked = None if window.order is None else window.order.first_parked()
    return window.start_offset if parked is None else parked


def _is_full(window: Window, settings: PartitionSettings) -> bool:
    return len(window.ranges) + window.parked.segments >= settings.window_ranges_max
