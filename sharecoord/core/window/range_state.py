"""The state that the records of a range share, edits of it, and followers of edits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from sharecoord.core.records import KEY_HASH_BYTES
from sharecoord.core.states import RecordState
from sharecoord.core.window.history import History


class Keys(NamedTuple):
    """The key hashes of a batch, shared by all ranges that were cut from it."""

    base_offset: int
    hashes: bytes
    """8 bytes per offset from base_offset on, big-endian; all zero = no key."""

    def slice(self, first: int, last: int) -> bytes:
        """The hashes of [first, last]."""
        start = (first - self.base_offset) * KEY_HASH_BYTES
        return self.hashes[start : start + (last - first + 1) * KEY_HASH_BYTES]

    def at(self, offset: int) -> bytes:
        """The hash of one offset."""
        return self.slice(offset, offset)


class RangeState(NamedTuple):
    """The state of all records of a range; the pieces of a split range share one object."""

    state: RecordState
    delivery_count: int = 0
    hand_outs: int = 0
    member_id: str | None = None
    lock_token: int = 0
    deadline_ms: int = 0
    granted_ms: int = 0
    available_at_ms: int = 0
    batch_base: int = 0
    batch_size: int = 0
    reason: str | None = None
    keys: Keys | None = None
    history: History | None = None
    """None until the first delivery that failed."""


Range = tuple[int, int, RangeState]
"""First offset, last offset, and the state of the records from one to the other."""


class Edit(NamedTuple):
    """[first, last] gets `value`; None = finished (ACKNOWLEDGED or a gap).

    Lies inside one existing range, or where no range is and at or beyond end_offset.
    """

    first: int
    last: int
    value: RangeState | None


class WindowFollower(ABC):
    """An index of a window's records, such as order by key; it hears of every change."""

    @abstractmethod
    def note(self, edits: Sequence[Edit]) -> None:
        """The window is about to carry out these edits."""

    @abstractmethod
    def drop(self, first: int, last: int, old: RangeState) -> None:
        """[first, last], which is `old`, is about to leave the window."""

    @abstractmethod
    def became_due(self, first: int, last: int, value: RangeState) -> None:
        """The wait of a delayed range is over."""

    @abstractmethod
    def settle(self) -> None:
        """The change is carried out."""
