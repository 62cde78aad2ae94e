"""Keys that several share-partitions have in common: a topic, and the lanes of its dead letters.

Each share-partition keeps its own order. `SharedKeys` knows which of them has which keys out, so
that no two hand out records of one key at once. A share-partition that had to wait for a key comes
next: else one with much traffic of a key would keep it for ever.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TURN_LOOKS: Final = 32
"""A turn ends after this many looks of others: the share-partition whose turn it is may be held
back by a rate, or by a payload that can not be read."""


class KeyUser(ABC):
    """The order of one share-partition among those that have keys in common."""

    @abstractmethod
    def is_free(self, key: int) -> bool:
        """Whether the next record of a key could go out: it waits, is due, and nobody holds one."""


@dataclass(slots=True)
class _Turn:
    user: KeyUser
    looks_left: int = TURN_LOOKS


class SharedKeys:
    """The keys of a topic and its lanes that are out; a topic without lanes has none."""

    def __init__(self, on_free: Callable[[], None]) -> None:
        """Begins with no key out; `on_free` is called when a wanted key came back."""
        self._on_free = on_free
        self._out: dict[int, set[KeyUser]] = {}
        self._wanted: dict[int, KeyUser] = {}
        self._turns: dict[int, _Turn] = {}

    def bars(self, key: int, user: KeyUser) -> bool:
        """Whether a key may not go out of `user` now; `on_free` is called when that has changed."""
        holders = self._out.get(key)
        if holders is not None and holders != {user}:
            self._wanted.setdefault(key, user)
            return True
        turn = self._turns.get(key)
        if turn is None or turn.user is user:
            return False
        turn.looks_left -= 1
        # A user without records of the key gives no sign after which others would look again.
        if turn.looks_left <= 0 or not turn.user.is_free(key):
            del self._turns[key]
            return False
        self._wanted.setdefault(key, user)
        return True

    def ends_chain(self, key: int, user: KeyUser) -> bool:
        """Whether `user` hands out no more of a key that it has out: another user waits for it."""
        return self._wanted.get(key, user) is not user

    def note(self, key: int, user: KeyUser, *, is_out: bool) -> None:
        """Says whether records of a key are out of `user`."""
        holders = self._out.get(key)
        if is_out:
            if holders is None:
                holders = self._out[key] = set()
            holders.add(user)
            turn = self._turns.get(key)
            if turn is not None and turn.user is user:
                del self._turns[key]
            if self._wanted.get(key) is user:
                del self._wanted[key]
        elif holders is not None:
            holders.discard(user)
            if not holders:
                del self._out[key]
                self._came_back(key)

    def leave(self, user: KeyUser) -> None:
        """A share-partition is not served here any more: it has no keys out, and wants none."""
        for key in [key for key, turn in self._turns.items() if turn.user is user]:
            del self._turns[key]
        for key in [key for key, wanting in self._wanted.items() if wanting is user]:
            del self._wanted[key]
        for key in [key for key, holders in self._out.items() if user in holders]:
            self.note(key, user, is_out=False)
        self._on_free()

    def _came_back(self, key: int) -> None:
        wanting = self._wanted.pop(key, None)
        if wanting is not None:
            self._turns[key] = _Turn(wanting)
            self._on_free()
