"""Keys that several share-partitions have in common: a topic, and the lanes of its dead letters.

Each keeps its own order; here is only which key is out where, so that no two records of one key
are out at once. Whoever had to wait for a key comes next: a topic with much traffic of a key would
keep it for ever otherwise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sharecoord.core.ordering import KeyOrder

TURN_LOOKS: Final = 32
"""So often others are turned away for the sake of whose turn it is, and does not come: it may be
held back by a rate, or a payload that can not be read."""


@dataclass(slots=True)
class _Turn:
    order: KeyOrder
    looks_left: int = TURN_LOOKS


class SharedKeys:
    """See the module. Costs nothing where there is no lane: then there is none of it."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        """Begins with no key out.

        Args:
            on_free: Hears that a key came back for which another share-partition waits.
        """
        self._on_free = on_free
        self._out: dict[int, set[KeyOrder]] = {}
        self._wanted: dict[int, KeyOrder] = {}
        self._turns: dict[int, _Turn] = {}

    def bars(self, key: int, order: KeyOrder) -> bool:
        """Whether a key may not go out of `order` now; then it is told when that has changed."""
        holders = self._out.get(key)
        if holders is not None and holders != {order}:
            self._wanted.setdefault(key, order)
            return True
        turn = self._turns.get(key)
        if turn is None or turn.order is order:
            return False
        turn.looks_left -= 1
        # Who has nothing to hand out by now gives no sign after which others would look again.
        if turn.looks_left <= 0 or not turn.order.is_free(key):
            del self._turns[key]
            return False
        self._wanted.setdefault(key, order)
        return True

    def ends_chain(self, key: int, order: KeyOrder) -> bool:
        """Whether no more records of a key that is out of `order` follow: another one waits."""
        return self._wanted.get(key, order) is not order

    def note(self, key: int, order: KeyOrder, *, is_out: bool) -> None:
        """Records of a key are out of `order`, or none any more."""
        holders = self._out.get(key)
        if is_out:
            if holders is None:
                holders = self._out[key] = set()
            holders.add(order)
            turn = self._turns.get(key)
            if turn is not None and turn.order is order:
                del self._turns[key]
            if self._wanted.get(key) is order:
                del self._wanted[key]
        elif holders is not None:
            holders.discard(order)
            if not holders:
                del self._out[key]
                self._came_back(key)

    def leave(self, order: KeyOrder) -> None:
        """A share-partition is not served any more: what was out of it is another's business."""
        for key in [key for key, turn in self._turns.items() if turn.order is order]:
            del self._turns[key]
        for key in [key for key, wanting in self._wanted.items() if wanting is order]:
            del self._wanted[key]
        for key in [key for key, holders in self._out.items() if order in holders]:
            self.note(key, order, is_out=False)
        self._on_free()

    def _came_back(self, key: int) -> None:
        wanting = self._wanted.pop(key, None)
        if wanting is not None:
            self._turns[key] = _Turn(wanting)
            self._on_free()
