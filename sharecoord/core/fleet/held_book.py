"""Lock books: the records that members hold, as the gateways of their streams know them (design 9).

Ranges enter with the deliveries that go onto the stream. They leave when their settlement is
confirmed, or long after their lock can have ended. So the book always has what the member itself
would show at a join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from sharecoord.core.changes import LogId, PartitionKey
from sharecoord.core.partition.decisions import HeldRange
from sharecoord.core.window.range_map import RangeMap

REMEMBERED_MS: Final = 3_600_000
"""A lock is shown for this time after its last possible end: that end is not known well when the
store's clock was set, and a lock that is not shown counts as never received."""

LockBook = Mapping[LogId, Sequence[HeldRange]]
"""The locks that a member shows; topic id "" = the member did not name a life of the topic."""


def lock_book_of(entries: Iterable[tuple[LogId, HeldRange]]) -> dict[LogId, list[HeldRange]]:
    """The lock book with these entries."""
    found: dict[LogId, list[HeldRange]] = {}
    for log_id, held in entries:
        found.setdefault(log_id, []).append(held)
    return found


def held_of(book: LockBook, key: PartitionKey) -> list[HeldRange]:
    """The entries of a lock book for a share-partition."""
    return [held for log_id in log_ids_of(key) for held in book.get(log_id, ())]


def log_ids_of(key: PartitionKey) -> set[LogId]:
    """The ids under which a lock book may have a share-partition."""
    return {key.log_id, (key.name, "", key.partition)}


class _Lock(NamedTuple):
    token: int
    ends_ms: int
    is_over: bool = False


class HeldBook:
    """Ranges with the token of the lock under which each was delivered."""

    __slots__ = ("_ranges", "records")

    def __init__(self) -> None:
        self._ranges: RangeMap[_Lock] = RangeMap()
        self.records = 0
        """Number of held records; records whose lock is over do not count."""

    def __bool__(self) -> bool:
        """Whether the book has a range to show."""
        return len(self._ranges) > 0

    def put(self, first: int, last: int, lock_token: int, ends_ms: int) -> None:
        """The member has records; a former lock on them has ended.

        No lock of this token can be left at `ends_ms`, whatever recoveries add to it.
        """
        self._cut(first, last, None)
        self._ranges.insert(first, last, _Lock(lock_token, ends_ms))
        self.records += last - first + 1

    def settled(self, first: int, last: int, lock_token: int) -> None:
        """Records are not held any more, unless under another token."""
        self._cut(first, last, lock_token)

    def renewed(self, first: int, last: int, lock_token: int, ends_ms: int) -> None:
        """Locks start again."""
        for start, end, lock in list(self._ranges.within(first, last)):
            if lock.token == lock_token:
                self.put(start, end, lock_token, ends_ms)

    def prune(self, now_ms: int) -> None:
        """Locks that have ended for certain do not hold any more, and are forgotten later."""
        for first, last, lock in list(self._ranges):
            if lock.ends_ms + REMEMBERED_MS <= now_ms:
                self._cut(first, last, None)
            elif lock.ends_ms <= now_ms:
                self.ended(first, last, lock.token)

    def ended(self, first: int, last: int, lock_token: int) -> None:
        """Locks are over; they are shown on, as their owner may not have stored the end yet."""
        for start, end, lock in list(self._ranges.within(first, last)):
            if lock.token == lock_token and not lock.is_over:
                self._cut(start, end, lock_token)
                self._ranges.insert(start, end, lock._replace(is_over=True))

    def held(self) -> list[HeldRange]:
        """All ranges that the book shows, in order."""
        return [HeldRange(first, last, lock.token) for first, last, lock in self._ranges]

    def held_within(self, first: int, last: int) -> list[HeldRange]:
        """The locks of the member on [first, last], cut to it; locks that are over do not count."""
        return [
            HeldRange(max(low, first), min(high, last), lock.token)
            for low, high, lock in self._ranges.overlapping(first, last)
            if not lock.is_over
        ]

    def _cut(self, first: int, last: int, only_token: int | None) -> None:
        for low, high, lock in list(self._ranges.overlapping(first, last)):
            if only_token is not None and lock.token != only_token:
                continue
            left = [(low, first - 1, lock)] if low < first else []
            right = [(last + 1, high, lock)] if high > last else []
            self._ranges.replace(low, left + right)
            if not lock.is_over:
                self.records -= min(high, last) - max(low, first) + 1
