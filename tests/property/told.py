"""What the event log says of a share-partition, offset by offset."""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.core.partition.decisions import Decision
from sharecoord.core.states import ForceAction, RecordState
from sharecoord.core.window.window import Window
from sharecoord.eventlog.ranges import changes_of
from sharecoord.eventlog.schema import RangeEvent
from tests.property.conversions import Found

ACQUIRED, AVAILABLE = RecordState.ACQUIRED, RecordState.AVAILABLE
ARCHIVED_STATES = frozenset({RecordState.ARCHIVING, RecordState.ARCHIVED})
STATES_AFTER: dict[RangeEvent, frozenset[RecordState | None]] = {
    RangeEvent.ENTERED: frozenset({AVAILABLE}),
    RangeEvent.ACQUIRED: frozenset({ACQUIRED}),
    RangeEvent.RENEWED: frozenset({ACQUIRED}),
    RangeEvent.ACCEPTED: frozenset({None}),
    RangeEvent.RETURNED: frozenset({AVAILABLE}),
    RangeEvent.REJECTED: ARCHIVED_STATES,
    RangeEvent.WORN_OUT: ARCHIVED_STATES,
    RangeEvent.GAP: frozenset({None}),
    RangeEvent.LOG_START: frozenset({RecordState.ARCHIVED}),
    RangeEvent.TRUNCATED: frozenset({None}),
    RangeEvent.ARCHIVED_BY_ADMIN: frozenset({RecordState.ARCHIVED}),
    RangeEvent.FINISHED_BY_ADMIN: frozenset({None}),
    RangeEvent.DEAD_LETTERED: frozenset({RecordState.ARCHIVED}),
    **dict.fromkeys(
        (
            RangeEvent.RELEASED,
            RangeEvent.EXPIRED,
            RangeEvent.DEPARTED,
            RangeEvent.RELEASED_BY_ADMIN,
        ),
        ARCHIVED_STATES | {AVAILABLE},
    ),
}
"""What a range can be after each event."""

NOT_BY_THEMSELVES = (RangeEvent.RETURNED, RangeEvent.LOG_START)
"""What may follow from the end of any lock: its chain goes back, or it is gone from the log."""

BY_ACQUIRING = frozenset(
    {RangeEvent.ACQUIRED, RangeEvent.ENTERED, RangeEvent.GAP, RangeEvent.WORN_OUT}
)

BY_FORCE = {
    ForceAction.RELEASE: RangeEvent.RELEASED_BY_ADMIN,
    ForceAction.SKIP: RangeEvent.ARCHIVED_BY_ADMIN,
    ForceAction.FINISH: RangeEvent.FINISHED_BY_ADMIN,
}

BY_ACKNOWLEDGING = (
    RangeEvent.ACCEPTED,
    RangeEvent.RELEASED,
    RangeEvent.REJECTED,
    RangeEvent.RENEWED,
)


class Told:
    """Keeps, from events alone, the state (None = finished) and the count of each offset."""

    def __init__(self) -> None:
        self._told: dict[int, tuple[RecordState | None, int]] = {}

    def note(self, window: Window, decision: Decision, ended_by: RangeEvent) -> set[RangeEvent]:
        """A decision is about to be applied; returns its events."""
        changes = changes_of(window, decision, ended_by)
        assert bool(changes) == decision.changes_anything
        previous = -1
        for first, last, event, old, new in changes:
            assert previous < first <= last
            previous = last
            state = new.state if new else None
            assert state in STATES_AFTER[event]
            for offset in range(first, last + 1):
                if event is RangeEvent.TRUNCATED:
                    self._told.pop(offset, None)
                    continue
                known = None if old is None else (old.state, old.delivery_count)
                assert self._told.get(offset) == known
                self._told[offset] = (state, new.delivery_count if new else 0)
        return {change.event for change in changes}

    def check(self, ranges: Sequence[Found], base: int, end: int) -> None:
        """Compares all of it, of [base, end), with all ranges."""
        unfinished = {
            offset: (value.state, value.delivery_count)
            for first, last, value in ranges
            for offset in range(first, last + 1)
        }
        for offset in range(base, end):
            told = self._told[offset]
            if offset in unfinished:
                assert told == unfinished[offset]
            else:
                assert told[0] in (None, RecordState.ARCHIVED)
