"""The unfinished records of one key, in order."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from sharecoord.core.counts import add_to
from sharecoord.core.states import RecordState

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED


class Lane:
    """The unfinished records of one key: those that wait, and those that are held."""

    __slots__ = ("counted", "extender", "held", "holders", "listed", "parked", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        """AVAILABLE offsets, ascending."""
        self.held: deque[int] = deque()
        """ACQUIRED offsets, ascending."""
        self.holders: dict[str, int] = {}
        """Records held by member; more than one only after order was switched on."""
        self.counted = 0
        """Its part of `KeyOrder.ready`; above 0 = nobody holds it and its head is due."""
        self.parked = 0
        """Its part of `KeyOrder.parked`; above 0 = its key is blocked."""
        self.extender: str | None = None
        """The only holder, while something waits for it, and it may have more."""
        self.listed = -1
        """Offset under which it stands in the heap of free lanes."""


def leave(
    lane: Lane,
    offset: int,
    was: RecordState | None,
    member_id: str | None,
    chained: dict[str, int] | None,
) -> None:
    """A record is not in a state any more; see `enter`."""
    if was is AVAILABLE:
        _remove(lane.waiting, offset)
    elif was is ACQUIRED:
        _remove(lane.held, offset)
        assert member_id is not None, "an acquired range has a holder"
        left = lane.holders[member_id] - 1
        if left:
            lane.holders[member_id] = left
            if chained is not None:
                add_to(chained, member_id, -1)
        else:
            del lane.holders[member_id]


def enter(
    lane: Lane,
    offset: int,
    now: RecordState | None,
    member_id: str | None,
    chained: dict[str, int] | None,
) -> None:
    """A record comes into a state.

    Args:
        lane: Of its key.
        offset: Its own.
        now: AVAILABLE or ACQUIRED; others are not in the lane.
        member_id: Who holds it.
        chained: Counts what members hold behind earlier records of its key; None = nobody does.
    """
    if now is AVAILABLE:
        _insert(lane.waiting, offset)
    elif now is ACQUIRED:
        _insert(lane.held, offset)
        assert member_id is not None, "an acquired range has a holder"
        held = lane.holders[member_id] = lane.holders.get(member_id, 0) + 1
        if held > 1 and chained is not None:
            add_to(chained, member_id, 1)


def _remove(offsets: deque[int], offset: int) -> None:
    if offsets[0] == offset:
        offsets.popleft()
    elif offsets[-1] == offset:
        offsets.pop()
    else:
        offsets.remove(offset)


def _insert(offsets: deque[int], offset: int) -> None:
    if not offsets or offset > offsets[-1]:
        offsets.append(offset)
    elif offset < offsets[0]:
        offsets.appendleft(offset)
    else:
        offsets.insert(bisect_left(offsets, offset), offset)
