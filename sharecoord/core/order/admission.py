"""Admission of records by order, before anything is taken."""

from __future__ import annotations

from collections.abc import Iterator

from sharecoord.core.order.key_order import NO_KEY, KeyOrder
from sharecoord.core.window.range_state import Keys


class Admission:
    """The records that order admits for one member in one plan, asked for in ascending order."""

    def __init__(self, order: KeyOrder, member_id: str) -> None:
        self.order = order
        self._member_id = member_id
        self._stopped: set[int] = set(order.blocked_keys)
        self._next: dict[int, tuple[int, Iterator[int]]] = {}
        self._room: dict[int, int] = {}
        """How many more records of a key may go out."""
        self._barrier = order.barrier
        self._took_keyed = False

    def split(
        self,
        first: int,
        last: int,
        keys: Keys | None,
        *,
        new: bool = False,
        most: int | None = None,
    ) -> Iterator[tuple[int, int, bool]]:
        """Cuts [first, last] into pieces that the member may have (True) and that it may not.

        All offsets lie beyond those of former calls. `new` records come from beyond the window.
        The pieces end after `most` records that the member may have; None = at `last`.
        """
        start, before = first, False
        left = last - first + 1 if most is None else most
        admits = self._admits_new if new else self._admits_waiting
        for at, key in enumerate(self.order.keys_of(first, last, keys), first):
            admitted = key == NO_KEY or admits(at, key)
            if at == first:
                before = admitted
            elif admitted is not before:
                yield start, at - 1, before
                start, before = at, admitted
            left -= admitted
            if not left:
                yield start, at, before
                return
        yield start, last, before

    def finish(self, first: int, last: int, keys: Keys | None) -> None:
        """The plan finishes [first, last]: later records of their keys may follow."""
        for at, key in enumerate(self.order.keys_of(first, last, keys), first):
            if key:
                self._take_next(at, key)

    def stop(self, first: int, last: int, keys: Keys | None) -> None:
        """New records [first, last] wait: no later record of their keys follows in this plan."""
        for at, key in enumerate(self.order.keys_of(first, last, keys), first):
            if key is not None:
                self._stopped.add(key)
            elif self._barrier is None:
                self._barrier = at

    def _admits_waiting(self, offset: int, key: int | None) -> bool:
        """Whether a waiting record of the window may go out."""
        barrier = self._barrier
        if key is None:
            return offset == barrier and not self._took_keyed and self.order.barrier_is_free()
        if (barrier is not None and offset > barrier) or not self._is_open(key):
            return False
        if not self._take_next(offset, key) or not self._has_room(key):
            return False
        self._took_keyed = True
        return True

    def _admits_new(self, offset: int, key: int | None) -> bool:
        """Whether a record from beyond the window may go out."""
        if key is None:
            free = self._barrier is None and not self._took_keyed and not self.order.queues
            if self._barrier is None:
                self._barrier = offset
            return free
        if self._barrier is not None or not self._is_open(key):
            self._stopped.add(key)
            return False
        queue = self.order.queues.get(key)
        if queue is not None and queue.waiting and not self._took_all(key):
            self._stopped.add(key)
            return False
        if not self._has_room(key):
            return False
        self._took_keyed = True
        return True

    def _has_room(self, key: int) -> bool:
        """Takes a place in the chain of a key, if there is one left."""
        room = self._room.get(key)
        if room is None:
            queue = self.order.queues.get(key)
            room = self.order.chain_max - (len(queue.held) if queue is not None else 0)
        if room <= 0:
            self._stopped.add(key)
            return False
        self._room[key] = room - 1
        return True

    def _is_open(self, key: int) -> bool:
        """Whether no other member holds the key, and this plan left out no record of it."""
        if key in self._stopped:
            return False
        queue, shared = self.order.queues.get(key), self.order.shared
        held = queue is not None and bool(queue.holders)
        if shared is not None and (
            shared.ends_chain(key, self.order) if held else shared.bars(key, self.order)
        ):
            self._stopped.add(key)
            return False
        return queue is None or not queue.holders or [*queue.holders] == [self._member_id]

    def _take_next(self, offset: int, key: int) -> bool:
        """Takes the record if it is the next of its key that waits; else closes the key."""
        known = self._next.get(key)
        if known is None:
            following = iter(self.order.queues[key].waiting)
            expected = next(following, -1)
        else:
            expected, following = known
        if expected != offset:
            self._stopped.add(key)
            return False
        self._next[key] = (next(following, -1), following)
        return True

    def _took_all(self, key: int) -> bool:
        return key in self._next and self._next[key][0] == -1
