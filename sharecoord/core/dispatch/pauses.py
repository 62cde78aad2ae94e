"""Pauses of a group: nothing new is handed out of what is paused, or to it. All else goes on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sharecoord.errors import LimitExceededError

PAUSES_MAX = 1_000
"""Pauses of one group: they stand in one row, which every coordinator reads whole."""

OPERATOR = "operator"
FLOOD_BREAKER = "flood breaker"


class PauseScope(NamedTuple):
    """The scope of a pause: a topic, one partition, a member, or else the whole group."""

    topic: str = ""
    partition: int | None = None
    """None = all partitions of the topic, those that are added later too."""
    member_id: str = ""

    def __str__(self) -> str:
        if self.member_id:
            return f"member {self.member_id!r}"
        if not self.topic:
            return "the group"
        return self.topic if self.partition is None else f"{self.topic}[{self.partition}]"


WHOLE_GROUP = PauseScope()


class Pause(NamedTuple):
    """A pause of one scope."""

    scope: PauseScope
    since_ms: int
    """By the store's clock."""
    by: str
    """The principal (`User:alice`), OPERATOR where it is not known, or FLOOD_BREAKER."""
    reason: str = ""
    """The cause in words; "" = none given."""

    def __str__(self) -> str:
        return f"{self.by}: {self.reason}" if self.reason else self.by


class Pauses:
    """The pauses of one group, by scope."""

    def __init__(self, pauses: Iterable[Pause] = ()) -> None:
        self._by_scope = {pause.scope: pause for pause in pauses}

    @property
    def group(self) -> Pause | None:
        """The pause of the whole group."""
        return self._by_scope.get(WHOLE_GROUP)

    def of_place(self, topic: str, partition: int) -> Pause | None:
        """The pause of a partition, or of its topic."""
        find = self._by_scope.get
        return find(PauseScope(topic)) or find(PauseScope(topic, partition))

    def of_member(self, member_id: str) -> Pause | None:
        """The pause of a member."""
        return self._by_scope.get(PauseScope(member_id=member_id))


def changed(
    present: Iterable[Pause], pause: Sequence[Pause], resume: Sequence[PauseScope]
) -> tuple[Pause, ...]:
    """The pauses after a change, by scope; pauses that exist keep their time and reason.

    Raises:
        LimitExceededError: They would be more than `PAUSES_MAX`.
    """
    after = {each.scope: each for each in present}
    for each in pause:
        after.setdefault(each.scope, each)
    for scope in resume:
        after.pop(scope, None)
    if pause and len(after) > PAUSES_MAX:
        raise LimitExceededError(
            f"{len(after)} pauses in one group, {PAUSES_MAX} is the most; pause topics or the "
            "group, or resume what is not needed any more"
        )
    return tuple(sorted(after.values(), key=_order))


def _order(pause: Pause) -> tuple[str, str, int]:
    scope = pause.scope
    return scope.member_id, scope.topic, -1 if scope.partition is None else scope.partition
