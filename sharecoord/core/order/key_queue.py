"""The unfinished records of one key, in order."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque

from sharecoord.core.counts import add_to
from sharecoord.core.states import RecordState

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED


class KeyQueue:
    """The unfinished records of one key: those that wait, and those that are held."""

    __slots__ = ("blocked", "extender", "held", "holders", "listed", "ready", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[int] = deque()
        """AVAILABLE offsets, ascending."""
        self.held: deque[int] = deque()
        """ACQUIRED offsets, ascending."""
        self.holders: dict[str, int] = {}
        """Records held by member; more than one only after order was switched on."""
        self.ready = 0
        """The queue's part of `KeyOrder.ready`; above 0 = nobody holds a record of the key and the
        first that waits is due."""
        self.blocked = 0
        """The queue's part of `KeyOrder.blocked_records`; above 0 = the key is blocked."""
        self.extender: str | None = None
        """The only holder, while records wait behind its chain and the chain may get longer."""
        self.listed = -1
        """The offset under which the queue stands in the heap of free queues."""

    def leave(
        self,
        offset: int,
        was: RecordState | None,
        member_id: str | None,
        chained: dict[str, int] | None,
    ) -> None:
        """A record is not in a state any more; see `enter`."""
        if was is AVAILABLE:
            _remove(self.waiting, offset)
        elif was is ACQUIRED:
            _remove(self.held, offset)
            assert member_id is not None, "an acquired range has a holder"
            left = self.holders[member_id] - 1
            if left:
                self.holders[member_id] = left
                if chained is not None:
                    add_to(chained, member_id, -1)
            else:
                del self.holders[member_id]

    def enter(
        self,
        offset: int,
        now: RecordState | None,
        member_id: str | None,
        chained: dict[str, int] | None,
    ) -> None:
        """A record comes into a state; only AVAILABLE and ACQUIRED ones are in the queue.

        `member_id` is the holder of an ACQUIRED record. `chained` counts records that members hold
        behind earlier ones of their keys; None = uncounted.
        """
        if now is AVAILABLE:
            _insert(self.waiting, offset)
        elif now is ACQUIRED:
            _insert(self.held, offset)
            assert member_id is not None, "an acquired range has a holder"
            held = self.holders[member_id] = self.holders.get(member_id, 0) + 1
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
