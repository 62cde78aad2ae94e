"""How much a window has room for (design 5.4)."""

from __future__ import annotations

from sharecoord.core import limits
from sharecoord.core.order.key_order import KeyOrder
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.window.window import Window


def room_of(window: Window, order: KeyOrder | None, settings: PartitionSettings) -> int:
    """How many new records may enter."""
    if _is_full(window, settings):
        return 0
    if order is None:
        return max(0, settings.record_locks_max - window.acquired - window.due)
    free = settings.record_locks_max - window.acquired - order.ready
    # What a blocked key holds back is bounded by ranges alone, as are delayed records.
    unfinished = window.acquired + window.due + window.delayed - order.blocked_records
    return max(0, min(free, limits.WINDOW_RECORDS_MAX - unfinished))


def full_at(window: Window, order: KeyOrder | None, settings: PartitionSettings) -> int | None:
    """The offset that must be finished before anything new is read, if the window is full."""
    if not _is_full(window, settings):
        return None
    blocked = None if order is None else order.first_blocked()
    return window.start_offset if blocked is None else blocked


def _is_full(window: Window, settings: PartitionSettings) -> bool:
    return len(window.ranges) + window.parked.segments >= settings.window_ranges_max
