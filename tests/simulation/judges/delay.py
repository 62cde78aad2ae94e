"""Judges that nothing is handed out before its time: delays, back-off, schedules of producers.

It goes by what members said and what headers say, and by the times that the database has; both
bind. What is due is not judged here: in the end everything must be worked off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from sharecoord.core.changes import InFlightRow
from sharecoord.core.states import AcknowledgeType, RecordState
from tests.simulation.judges.shadow import (
    RecordLife,
    RecordLog,
    Shadow,
    Wait,
    goes_on,
    name_of,
    text_of,
)

__all__ = ["DelayJudge"]

AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
RELEASE = AcknowledgeType.RELEASE

EARLY_MS = 50
"""The decision is exact to so much (design 5.5)."""


class Clocks(NamedTuple):
    """What the judge knows of time."""

    now_ms: Callable[[], int]
    store_now_ms: Callable[[], int]
    """The store's clock, of which headers and rows speak."""
    jumped_ms: Callable[[int], int]
    """By how much owners may be wrong about a time that was stored then: it was set since."""


class DelayJudge:
    """Of all share-partitions.

    Args:
        log: What was ever written.
        clocks: See there.
        holds: Whether a member may still believe in a lock until then: nothing has ended it but
            what the member itself said.
        broken: Hears of each promise that was not kept.
    """

    def __init__(
        self,
        log: RecordLog,
        clocks: Clocks,
        holds: Callable[[Shadow, str | None, int], bool],
        broken: Callable[[str], None],
    ) -> None:
        self._log = log
        self._clocks = clocks
        self._holds = holds
        self._broken = broken
        self.backoff_ms: Callable[[int], int] = lambda failures: 0
        """The least that a group waits after so many failures, where nobody asks for a delay."""

    def committed(
        self, shadow: Shadow, before: Mapping[int, InFlightRow], after: Mapping[int, InFlightRow]
    ) -> None:
        """A commit of one share-partition; lives are as they were before it."""
        for offset, new in after.items():
            old = before.get(offset)
            if new.state == ACQUIRED:
                self._granted(shadow, offset, old, new)
            elif new.state == AVAILABLE and (old is None or old.state == ACQUIRED):
                shadow.waits[offset] = self._wait(shadow, offset, old, new)
            elif new.state != AVAILABLE:
                shadow.waits.pop(offset, None)

    def _granted(
        self, shadow: Shadow, offset: int, old: InFlightRow | None, new: InFlightRow
    ) -> None:
        if goes_on(old, new):
            return
        now_ms = self._clocks.now_ms()
        wait = shadow.waits.pop(offset, None)
        if old is None:
            wait = Wait(self._scheduled_ms(shadow, offset), now_ms)
        if wait is not None and wait.due_ms:
            left_ms = wait.due_ms - now_ms - self._clocks.jumped_ms(wait.since_ms)
            if left_ms > EARLY_MS:
                where = f"{name_of(shadow)}@{offset}"
                self._broken(f"{where}: {text_of(new)} is handed out {left_ms} ms before its time")
        shadow.granted_at_ms[offset] = now_ms

    def _wait(self, shadow: Shadow, offset: int, old: InFlightRow | None, new: InFlightRow) -> Wait:
        """Until when what became AVAILABLE must not be handed out."""
        now_ms = self._clocks.now_ms()
        due_ms = 0
        if new.available_at_ms:
            due_ms = new.available_at_ms - self._clocks.store_now_ms() + now_ms
        if old is None:
            due_ms = max(due_ms, self._scheduled_ms(shadow, offset))
        elif new.delivery_count == old.delivery_count:
            due_ms = max(due_ms, self._asked_ms(shadow, offset, old))
        return Wait(due_ms, now_ms)

    def _scheduled_ms(self, shadow: Shadow, offset: int) -> int:
        """The time that a record's header asks for, on the judge's clock; 0 = none."""
        place = shadow.key.topic_id, shadow.key.partition
        at_ms = self._log.scheduled.get(place, {}).get(offset, 0)
        return at_ms - self._clocks.store_now_ms() + self._clocks.now_ms() if at_ms else 0

    def _asked_ms(self, shadow: Shadow, offset: int, old: InFlightRow) -> int:
        """When a record may come again after a failure, by what its holder said and the group."""
        life = shadow.life(offset)
        token = old.lock_token
        backoff_ms = self.backoff_ms(old.delivery_count)
        earliest_ms = shadow.granted_at_ms.get(offset, 0) + backoff_ms
        asked = [ask for ask in life.asked if ask.token == token]
        releases = [ask.sent_ms + (ask.delay_ms or backoff_ms) for ask in asked]
        if self._released_it(shadow, life, old):
            return min(releases)
        return min([earliest_ms, *releases])

    def _released_it(self, shadow: Shadow, life: RecordLife, old: InFlightRow) -> bool:
        """Whether its holder's release is the only thing that can have ended the lock."""
        token = old.lock_token
        kinds = {kind for said, kind in life.said if said == token}
        in_time = token >> 32 == shadow.owner_epoch and token not in life.excused
        is_last = life.token == token and self._holds(shadow, old.member_id, life.told_ms)
        return kinds == {RELEASE} and in_time and is_last
