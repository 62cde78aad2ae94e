"""Arguments of commands, and the decisions that answer them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sharecoord.core.states import (
    AcknowledgeOutcome,
    AcknowledgeType,
    RecordState,
    TakenBackReason,
)
from sharecoord.core.window.window import Edit


class AcquiredRange(NamedTuple):
    """Consecutive offsets that went to a member under one token."""

    first: int
    last: int
    delivery_count: int
    lock_token: int
    deadline_ms: int


class AcknowledgedRange(NamedTuple):
    """An acknowledgement of [first, last] by a member."""

    first: int
    last: int
    type: AcknowledgeType
    lock_token: int
    delay_ms: int = 0
    reason: str | None = None
    checkpoint: bytes | None = None
    """State that the member stores with the record; only with RENEW of one record."""


Acknowledgements = Sequence[tuple[str, str, int, Sequence[AcknowledgedRange]]]
"""(topic or lane, topic id, partition, ranges) of one request."""


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
    """Acknowledgements that hand ranges back, in order, as never seen by their member."""
    return [
        AcknowledgedRange(each.first, each.last, AcknowledgeType.RETURN, each.lock_token)
        for each in sorted(ranges)
    ]


class TakenBack(NamedTuple):
    """Locks on [first, last] that end without a word of their holder, which must be told."""

    member_id: str
    first: int
    last: int
    lock_token: int
    reason: TakenBackReason = TakenBackReason.CHAIN_BROKE


class Isolation(NamedTuple):
    """A member that is to hold nothing, so that a last-attempt record can go to it alone.

    One member at a time, so that not all of them drain.
    """

    member_id: str | None = None
    until_ms: int = 0
    """After a lock's duration another member may take its place, so that no record starves."""

    def allows(self, member_id: str, held: Mapping[str, int], now_ms: int) -> bool:
        """Whether a last-attempt record may wait for this member to hold nothing.

        A member that holds nothing, and asks for nothing, does not stand in the way of another.
        """
        other = self.member_id
        return other in (None, member_id) or other not in held or now_ms >= self.until_ms


@dataclass(slots=True)
class Decision:
    """The changes of a command, and its answer once they are durable."""

    edits: list[Edit] = field(default_factory=list)
    end_offset: int | None = None
    tokens_used: int = 0
    acquired: list[AcquiredRange] = field(default_factory=list)
    exceptions: list[RangeOutcome] = field(default_factory=list)
    """Outcomes other than OK, in order."""
    unseen: list[HeldRange] = field(default_factory=list)
    """Ranges that the member holds and never received, by its lock book."""
    lost: list[HeldRange] = field(default_factory=list)
    """Lock-book entries that are no longer the member's."""
    isolate: bool = False
    """The member must hold nothing before it gets the last-attempt record that waits for this."""
    taken_back: Sequence[TakenBack] = ()
    """Locks that end although their holders did not ask for it."""
    timed_out: Collection[str] = ()
    """Members whose locks ran out."""
    isolation: Isolation | None = None
    """Which member is to hold nothing from now on; None = as before."""
    log_start_offset: int | None = None
    """Where the log starts now; None = as before."""
    truncate_to: int | None = None
    """New, lower end of the window: all ranges from here on are dropped."""

    @property
    def changes_anything(self) -> bool:
        """Whether the decision has changes to apply and to store."""
        return bool(self.edits) or self.end_offset is not None or self.truncate_to is not None


def taken_back_of(held: Sequence[Edit], reason: TakenBackReason) -> list[TakenBack]:
    """The locks that end when ranges are taken back, for their holders."""
    return [
        TakenBack(value.member_id, first, last, value.lock_token, reason)
        for first, last, value in held
        if value is not None and value.state is RecordState.ACQUIRED and value.member_id
    ]
