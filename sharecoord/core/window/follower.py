"""The interface of an index that follows the changes of a window, such as order by key."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from sharecoord.core.window.range_state import Edit, RangeState


class WindowFollower(ABC):
    """Hears of every change of a window; after each change the window calls `settle`."""

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
