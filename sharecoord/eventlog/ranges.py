"""Turns decisions into events of ranges. Pure, as the decisions are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sharecoord.core.partition import outcomes
from sharecoord.core.partition.decisions import Decision
from sharecoord.core.spans import uncovered
from sharecoord.core.states import ArchiveReason, RecordState
from sharecoord.core.window.window import Edit, RangeState, Window
from sharecoord.eventlog.schema import RangeEvent

ACQUIRED, AVAILABLE = RecordState.ACQUIRED, RecordState.AVAILABLE

STATE_NAMES = {state: state.name.lower() for state in RecordState}
"""Values of column `state`."""

_OF_CAUSE = {
    ArchiveReason.REJECTED: RangeEvent.REJECTED,
    ArchiveReason.GAP: RangeEvent.GAP,
    ArchiveReason.LOG_START: RangeEvent.LOG_START,
    ArchiveReason.TRUNCATED: RangeEvent.TRUNCATED,
    ArchiveReason.ADMIN: RangeEvent.ARCHIVED_BY_ADMIN,
}


class RangeChange(NamedTuple):
    """A row of kind `range`, as far as the state machine knows it."""

    first: int
    last: int
    event: RangeEvent
    old: RangeState | None
    """None = the range was not in the window."""
    new: RangeState | None
    """None = finished (ACKNOWLEDGED or a gap), or no longer known (TRUNCATED)."""


def changes_of(window: Window, decision: Decision, ended_by: RangeEvent) -> list[RangeChange]:
    """The changes of a decision, in order of offset; never empty for one that changes anything.

    Args:
        window: The window before the decision is applied.
        decision: Made on the window's present state.
        ended_by: The event of locks that this decision ends, where the states alone do not tell:
            RELEASED, EXPIRED, DEPARTED, RELEASED_BY_ADMIN or FINISHED_BY_ADMIN.
    """
    if decision.truncate_to is not None:
        lost = decision.truncate_to, window.end_offset - 1
        return [RangeChange(*lost, RangeEvent.TRUNCATED, None, None)]
    get = window.ranges.get
    found: list[RangeChange] = []
    for first, last, new in decision.edits:
        place = get(first)
        old = None if place is None else place[2]
        found.append(RangeChange(first, last, event_of(old, new, ended_by), old, new))
    if decision.end_offset is not None:
        gaps = _gaps(decision.edits, window.end_offset, decision.end_offset)
        if gaps:
            found += gaps
            found.sort(key=lambda change: change.first)
    return found


def event_of(old: RangeState | None, new: RangeState | None, ended_by: RangeEvent) -> RangeEvent:
    """The event of a range that was `old` and became `new`; see `changes_of`."""
    if new is None:
        if ended_by is RangeEvent.FINISHED_BY_ADMIN:
            return ended_by
        return RangeEvent.ACCEPTED if old and old.state is ACQUIRED else RangeEvent.GAP
    if new.state is ACQUIRED:
        return RangeEvent.RENEWED if old and old.state is ACQUIRED else RangeEvent.ACQUIRED
    if new.state is not AVAILABLE:
        return _archived(old, new, ended_by)
    if old is None:
        return RangeEvent.ENTERED
    if old.state is AVAILABLE:
        return RangeEvent.RELEASED_BY_ADMIN
    return RangeEvent.RETURNED if new.delivery_count < old.delivery_count else ended_by


def _archived(old: RangeState | None, new: RangeState, ended_by: RangeEvent) -> RangeEvent:
    if old is not None and old.state is RecordState.ARCHIVING:
        return RangeEvent.DEAD_LETTERED
    event = _OF_CAUSE.get(outcomes.archive_cause(new))
    if event is not None:
        return event
    return ended_by if old is not None and old.state is ACQUIRED else RangeEvent.WORN_OUT


def _gaps(edits: Sequence[Edit], start: int, end: int) -> list[RangeChange]:
    """Gaps: offsets in [start, end) without an edit, which the window moved over."""
    edited = ((first, last) for first, last, _ in edits)
    gaps = uncovered(edited, start, end - 1)
    return [RangeChange(*gap, RangeEvent.GAP, None, None) for gap in gaps]
