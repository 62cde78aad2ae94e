"""The mark of a dead letter: the newest of the marks that cover its offset."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop, heappush

from sharecoord.core.letters.lanes import Mark


class MarkReader:
    """The marks of one partition, read in order of offset, so that each mark is read once."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._ahead = sorted(marks, reverse=True)
        self._covering: list[tuple[int, int, Mark]] = []
        """A heap, the newest mark first; some may end before the present offset."""
        self._number = 0

    def at(self, offset: int) -> Mark | None:
        """The newest mark of a letter; `offset` never goes back."""
        while self._ahead and self._ahead[-1].first_offset <= offset:
            mark = self._ahead.pop()
            self._number += 1
            heappush(self._covering, (-mark.at_ms, -self._number, mark))
        while self._covering and self._covering[0][2].last_offset < offset:
            heappop(self._covering)
        return self._covering[0][2] if self._covering else None
