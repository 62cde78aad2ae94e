"""What a command asks and what a decision answers: the words between core and runtime."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.core.window import Edit, RangeState


class AcquiredRange(NamedTuple):
    """A run of offsets that went to a member under one token."""

    first: int
    last: int
    delivery_count: int
    lock_token: int
    deadline_ms: int


class AcknowledgedRange(NamedTuple):
    """What a member says of [first, last]."""

    first: int
    last: int
    type: AcknowledgeType
    lock_token: int
    delay_ms: int = 0
    reason: str | None = None
    checkpoint: bytes | None = None
    """RENEW of one record only: what is kept with it."""


class RangeOutcome(NamedTuple):
    """An answer other than OK for [first, last]."""

    first: int
    last: int
    outcome: AcknowledgeOutcome
    final_state: RecordState | None = None


class HeldRange(NamedTuple):
    """An entry of a member's lock book."""

    first: int
    last: int
    lock_token: int


def handed_back(ranges: Iterable[AcquiredRange | HeldRange]) -> list[AcknowledgedRange]:
    """What says of ranges, in order, that their member never saw them."""
    return [
        AcknowledgedRange(each.first, each.last, AcknowledgeType.RETURN, each.lock_token)
        for each in sorted(ranges)
    ]


class TakenBack(NamedTuple):
    """Locks that ended because an earlier record of their chain was not settled (design 5.6)."""

    member_id: str
    first: int
    last: int
    lock_token: int


@dataclass(slots=True)
class Decision:
    """What a command changes, and what its caller is told once that is durable."""

    edits: list[Edit] = field(default_factory=list)
    end_offset: int | None = None
    tokens_used: int = 0
    acquired: list[AcquiredRange] = field(default_factory=list)
    exceptions: list[RangeOutcome] = field(default_factory=list)
    """Outcomes other than OK, in order; empty = everything asked is OK."""
    unseen: list[HeldRange] = field(default_factory=list)
    """Of a lock book: what the member holds and never received."""
    lost: list[HeldRange] = field(default_factory=list)
    """Lock-book entries that are no longer the member's."""
    isolate: bool = False
    """The member must hold nothing before it gets the last-attempt record that waits for it."""
    taken_back: Sequence[TakenBack] = ()
    """What went back unseen because its chain broke; the holders still believe in these locks."""
    timed_out: Collection[str] = ()
    """Members whose locks ended by themselves."""
    truncate_to: int | None = None
    """New, lower end of the window: everything from here on is dropped."""
    truncated: Sequence[tuple[int, int, RangeState]] = ()
    """What a truncation drops: ranges, cut at the new end, with their last state."""

    @property
    def changes_anything(self) -> bool:
        """Whether there is something to apply and to store."""
        return bool(self.edits) or self.end_offset is not None or self.truncate_to is not None

    @property
    def archiving(self) -> list[tuple[int, int, RangeState]]:
        """The ranges that need an outbox row: (first, last, state with its reason)."""
        return [
            (first, last, value)
            for first, last, value in self.edits
            if value is not None and value.state is RecordState.ARCHIVING
        ]
