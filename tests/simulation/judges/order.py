"""What the judge checks where a group keeps order by key (design 5.6).

Of the records of a key, one is handed out only when every earlier one is finished, or ahead of it
in the hands of the same member. When one of these comes back, the later ones go back with it, as
if nobody had seen them. Nothing of a blocked key is handed out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping

from sharecoord.core.changes import InFlightRow
from sharecoord.core.states import AcknowledgeType, RecordState
from tests.simulation.judges.shadow import RecordLife, RecordLog, Shadow, goes_on

__all__ = ["OrderJudge"]

ACCEPT, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.REJECT
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED

KNOWN_MS = 60_000
"""A change of order, or of blocked keys, is known to every coordinator after so long."""


class OrderJudge:
    """See the module.

    Args:
        log: What the logs hold.
        now_ms: The judge's clock.
        broken: Notes a broken promise.
        holds: Whether a member may still believe in its lock.
    """

    def __init__(
        self,
        log: RecordLog,
        now_ms: Callable[[], int],
        broken: Callable[[str], None],
        holds: Callable[[Shadow, RecordLife], bool],
    ) -> None:
        self._log = log
        self._holds = holds
        self._now_ms = now_ms
        self._broken = broken
        self._kept_since_ms: int | None = None
        self._blocked_since_ms: dict[bytes, int] = {}
        self._granted: list[tuple[Shadow, set[bytes]]] = []
        """Keys that the transaction under way has handed out so far."""

    def always_kept(self) -> None:
        """The group has kept order from the beginning."""
        self._kept_since_ms = self._now_ms() - KNOWN_MS

    def switched(self, *, kept: bool) -> None:
        """An operator switched order on or off."""
        if not kept:
            self._kept_since_ms = None
        elif self._kept_since_ms is None:
            self._kept_since_ms = self._now_ms()

    def blocked(self, keys: Iterable[bytes]) -> None:
        """An operator blocked these keys and no others."""
        now_ms = self._now_ms()
        self._blocked_since_ms = {key: self._blocked_since_ms.get(key, now_ms) for key in keys}

    @property
    def is_kept(self) -> bool:
        """Whether every coordinator keeps order now."""
        since_ms = self._kept_since_ms
        return since_ms is not None and self._now_ms() - since_ms >= KNOWN_MS

    def excuse_broken_chains(
        self, shadow: Shadow, before: Mapping[int, InFlightRow], after: Mapping[int, InFlightRow]
    ) -> None:
        """Takes in which records go back unseen because an earlier one of their key came back."""
        keys = self._log.keys_of(shadow.key)
        broken: dict[bytes, int] = {}
        for offset, old in sorted(before.items()) if keys else ():
            key = keys.get(offset)
            if key is None:
                continue
            new = after.get(offset)
            if goes_on(old, new):
                # It stays: what came before it was accepted, or its chain is another one.
                continue
            if old.state == ACQUIRED and broken.get(key, offset) < offset:
                life = shadow.life(offset)
                life.excused.add(old.lock_token)
                life.taken_back.add(old.lock_token)
                if life.token == old.lock_token:
                    life.ends()
                continue
            life = shadow.life(offset)
            if key not in broken and _came_back(life, old, new, self._now_ms()):
                broken[key] = offset

    def check(
        self, shadow: Shadow, before: Mapping[int, InFlightRow], after: Mapping[int, InFlightRow]
    ) -> None:
        """Checks what a commit hands out; `shadow` is as the commit leaves it."""
        keys = self._log.keys_of(shadow.key)
        if not keys:
            return
        granted: set[bytes] = set()
        for offset, new in after.items():
            old = before.get(offset)
            key = keys.get(offset)
            if new.state != ACQUIRED or key is None:
                continue
            if goes_on(old, new):
                continue
            granted.add(key)
            if self.is_kept:
                shadow.in_order.add((offset, new.lock_token))
            # What entered the window before order was kept has no known key.
            known = new.key_hashes is not None
            since_ms = self._blocked_since_ms.get(key, self._now_ms())
            if known and self._now_ms() - since_ms >= KNOWN_MS:
                self._broken(f"{_place(shadow, offset)}: {key!r} is blocked, and handed out")
        if granted:
            self._check_chains(shadow, keys, granted)
            if self.is_kept:
                self._granted.append((shadow, granted))

    def check_apart(self, shadows: Collection[Shadow]) -> None:
        """Checks what a transaction has handed out, when all of it is known."""
        granted, self._granted = self._granted, []
        for shadow, keys in granted:
            for other in shadows:
                if other is not shadow and self._are_counterparts(shadow, other):
                    self._check_apart(shadow, other, keys)

    def _are_counterparts(self, shadow: Shadow, other: Shadow) -> bool:
        """Whether records of one partition come from both; with a deleted topic its order ends."""
        key, kept = shadow.key, other.key
        same = (kept.group_id, kept.home) == (key.group_id, key.home) and key.home[1] >= 0
        is_over = other.closed or not self._log.ended.isdisjoint((key.topic_id, kept.topic_id))
        return same and not is_over

    def _check_apart(self, shadow: Shadow, other: Shadow, granted: Container[bytes]) -> None:
        """Of a partition and its letters only one may have a key out."""
        for offset, key in self._log.keys_of(other.key).items():
            life = other.lives.get(offset)
            if key not in granted or life is None or not self._holds(other, life):
                continue
            row = other.row_at(offset)
            if row is None or (row.state, row.lock_token) != (ACQUIRED, life.token):
                continue
            if not any(token == life.token for token, _ in life.said):
                self._broken(
                    f"{shadow.key.place}: {key!r} goes out, and {life.holder} has it of "
                    f"{_place(other, offset)}"
                )

    def _check_chains(
        self, shadow: Shadow, keys: Mapping[int, bytes], granted: Container[bytes]
    ) -> None:
        chains: dict[bytes, list[tuple[int, InFlightRow]]] = defaultdict(list)
        for row in sorted(shadow.rows.values()):
            if row.state in (AVAILABLE, ACQUIRED):
                for offset in range(row[0], row[1] + 1):
                    key = keys.get(offset)
                    if key is not None and key in granted:
                        chains[key].append((offset, row))
        for chain in chains.values():
            for at, (later, row) in enumerate(chain):
                if row.state != ACQUIRED or (later, row.lock_token) not in shadow.in_order:
                    continue
                for earlier, other in chain[:at]:
                    if (
                        other.state == AVAILABLE
                        or other.member_id != row.member_id
                        or other.lock_token > row.lock_token
                    ):
                        self._broken(
                            f"{_place(shadow, later)}: handed out to {row.member_id} before "
                            f"{earlier} of its key"
                        )


def _came_back(life: RecordLife, old: InFlightRow, new: InFlightRow | None, now_ms: int) -> bool:
    """Whether a lock ended, or came and went, without being accepted or rejected."""
    if old.state != ACQUIRED:
        return new is not None and new.state == AVAILABLE and new.hand_outs > old.hand_outs
    if new is None:
        # Worn out at the front of the window: its row is dropped at once. What was said of it may
        # have been refused.
        over = life.token == old.lock_token and life.deadline_ms <= now_ms
        return over or not {(old.lock_token, ACCEPT), (old.lock_token, REJECT)} & life.said
    return new.state in (AVAILABLE, ACQUIRED) or not (new.reason or "").startswith("REJECTED")


def _place(shadow: Shadow, offset: int) -> str:
    return f"{shadow.key.topic}[{shadow.key.partition}]@{offset}"
