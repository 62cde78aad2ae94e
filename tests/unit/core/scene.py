"""A share-partition with short commands, for tests that read like the specification's tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sharecoord.core.changes import PartitionHead
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.share_partition import (
    AcknowledgedRange,
    AcquiredRange,
    Decision,
    HeldRange,
    RangeOutcome,
    SharePartition,
)
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeType, AcquireMode, ForceAction, RecordState
from sharecoord.core.window.window import Keys, RangeState
from tests.invariants import check_decision, check_partition
from tests.support import columns_of

ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE
REJECT, RENEW, RETURN = AcknowledgeType.REJECT, AcknowledgeType.RENEW, AcknowledgeType.RETURN
AVAILABLE, ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
ARCHIVING, ARCHIVED = RecordState.ARCHIVING, RecordState.ARCHIVED
FINISHED = None
"""The state of an offset that no range covers: ACKNOWLEDGED, or a gap."""


class Scene:
    """One share-partition, a clock, and a log whose records all exist unless said otherwise."""

    def __init__(self, start: int = 0, **settings: Any) -> None:
        self.now = 1_000
        self.partition = SharePartition(
            PartitionHead(start, start, -1, 0, 0),
            owner_epoch=1,
            settings=PartitionSettings(**settings),
        )
        self.window.advance(self.now)

    @property
    def window(self) -> Any:
        """The window in its present state."""
        return self.partition.window

    def set(self, **settings: Any) -> None:
        """Changes settings at run time."""
        self.partition.settings = self.partition.settings._replace(**settings)

    def apply(self, decision: Decision) -> Decision:
        """Checks, applies, checks again."""
        check_decision(self.partition, decision)
        self.partition.apply(decision)
        check_partition(self.partition)
        return decision

    def acquire(
        self,
        member: str = "ann",
        records: int = 500,
        *,
        new: Sequence[tuple[int, int]] = (),
        keys: Sequence[int] | None = None,
        mode: AcquireMode = AcquireMode.FAIR,
        due: Iterable[tuple[int, int, RangeState]] | None = None,
    ) -> list[tuple[int, int, int]]:
        """Acquires; returns (first, last, delivery count) of what went out, joined."""
        runs, at = [], 0
        for first, last in new:
            size = last - first + 1
            hashes = None
            if keys is not None:
                part = keys[at : at + size]
                hashes = Keys(first, b"".join(key.to_bytes(8, "big") for key in part))
            runs.append(Run(first, last, hashes))
            at += size
        found = self.partition.due_ranges(100_000, member) if due is None else list(due)
        self.last = self.apply(
            self.partition.decide_acquire(
                self.now, member, max_records=records, mode=mode, due=found, fresh=runs
            )
        )
        return joined(self.last.acquired)

    def tokens(self, member: str = "ann") -> dict[int, int]:
        """Lock tokens by offset."""
        return {
            at: value.lock_token
            for first, last, value in self.window.held_by(member)
            for at in range(first, last + 1)
        }

    def acknowledge(
        self,
        kind: AcknowledgeType,
        first: int,
        last: int | None = None,
        *,
        member: str = "ann",
        token: int | None = None,
        delay_ms: int = 0,
        reason: str | None = None,
    ) -> list[RangeOutcome]:
        """Acknowledges [first, last] piece by piece under the tokens that the member holds."""
        last = first if last is None else last
        items: list[AcknowledgedRange] = []
        tokens = self.tokens(member)
        for at in range(first, last + 1):
            mine = tokens.get(at, 0) if token is None else token
            if items and items[-1].last + 1 == at and items[-1].lock_token == mine:
                items[-1] = items[-1]._replace(last=at)
            else:
                items.append(AcknowledgedRange(at, at, kind, mine, delay_ms, reason))
        return self.send(*items, member=member)

    def send(
        self, *items: AcknowledgedRange, member: str = "ann", is_atomic: bool = False
    ) -> list[RangeOutcome]:
        """Acknowledges exactly these ranges; returns the outcomes other than OK."""
        decision = self.partition.decide_acknowledge(self.now, member, items, is_atomic=is_atomic)
        self.last = self.apply(decision)
        return self.last.exceptions

    def release_all(self, member: str = "ann") -> None:
        """Releases all that a member holds, in one request."""
        held = sorted(self.window.held_by(member))
        self.send(
            *[AcknowledgedRange(a, b, RELEASE, v.lock_token) for a, b, v in held], member=member
        )

    def pass_time(self, ms: int) -> None:
        """Time goes on: delayed records become due, locks end."""
        self.now += ms
        self.window.advance(self.now)
        self.apply(self.partition.decide_expire(self.now))

    def leave(self, member: str = "ann") -> None:
        """The member departs."""
        self.apply(self.partition.decide_release_member(self.now, member))

    def join(self, *book: HeldRange, member: str = "ann") -> list[HeldRange]:
        """The member joins again with its lock book."""
        self.last = self.apply(self.partition.decide_lock_book(self.now, member, book))
        return self.last.lost

    def log_start(self, offset: int) -> None:
        """The log start moves."""
        self.apply(self.partition.decide_log_start(offset))

    def force(self, action: ForceAction, first: int, last: int) -> None:
        """An operator acts."""
        self.apply(self.partition.decide_force(self.now, first, last, action))

    def load(self, *ranges: tuple[int, int, RangeState], end: int | None = None) -> None:
        """Starts again from stored ranges."""
        start = ranges[0][0]
        end = ranges[-1][1] + 1 if end is None else end
        self.partition = SharePartition(
            PartitionHead(start, end, -1, 0, 0), owner_epoch=2, settings=self.partition.settings
        )
        self.partition.load(*columns_of(ranges))
        self.window.advance(self.now)
        check_partition(self.partition)

    def recover(self) -> None:
        """Another owner takes over what is in the window."""
        epoch = self.partition.owner_epoch + 1
        ranges = list(self.window.ranges)
        self.partition = SharePartition(
            self.partition.head, owner_epoch=epoch, settings=self.partition.settings
        )
        self.partition.load(*columns_of(ranges))
        self.window.advance(self.now)
        check_partition(self.partition)

    def at(self, offset: int) -> RangeState | None:
        """The state of one offset; None = finished."""
        found = self.window.ranges.get(offset)
        return found[2] if found else None

    def state(self, offset: int) -> RecordState | None:
        """The record state of one offset; None = finished."""
        value = self.at(offset)
        return value.state if value else None

    def states(self) -> list[tuple[int, int, str, int]]:
        """(first, last, state, delivery count) of all ranges."""
        return [(a, b, v.state.name, v.delivery_count) for a, b, v in self.window.ranges]

    def span(self) -> tuple[int, int]:
        """SPSO, and one past SPEO."""
        return self.window.start_offset, self.window.end_offset


def joined(ranges: Sequence[AcquiredRange]) -> list[tuple[int, int, int]]:
    """Neighbours of equal delivery count as one."""
    found: list[tuple[int, int, int]] = []
    for first, last, count, _, _ in ranges:
        if found and found[-1][1] + 1 == first and found[-1][2] == count:
            found[-1] = (found[-1][0], last, count)
        else:
            found.append((first, last, count))
    return found
