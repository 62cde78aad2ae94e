"""Kafka's own share groups: ShareFetch, fetch lock, purgatory, and a client that polls.

The rules are those of Kafka 4.2 to 4.4 and of librdkafka 2.15 (docs/what-if.md names them one by
one, and says which of the constants were measured).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sharecoord.analytics.whatif.world import (
    NETWORK_MS,
    Acknowledgements,
    HandedRange,
    Member,
    Share,
    World,
)
from sharecoord.core.partition.acquire import Run
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcquireMode

MAX_WAIT_MS: Final = 500.0
"""`fetch.max.wait.ms`: how long a fetch waits at the broker that can not serve it."""
CLIENT_TURN_MS: Final = 1.0
"""Time from an answer to the next request or to the first handler, in the client's threads."""
WRITE_MS: Final = 4.0
"""Time from an acknowledgement to its record in `__share_group_state`, when the window moves."""
READ_MS: Final = 1.0
"""Time for which a fetch holds the fetch lock, without records: reading the log, acquiring."""
READ_RECORD_MS: Final = 0.004
"""Further time with the fetch lock for each record, in producer batches of 16."""


@dataclass(eq=False, slots=True)
class Fetch:
    """A ShareFetch request."""

    member: Member
    places: Sequence[Share]
    """The share-partitions that it asks, in order."""
    writing: int = 0
    """Number of its acknowledgements that are not stored yet: the answer waits for them."""
    is_parked: bool = False
    is_over: bool = False
    """Whether records were read, or the wait for them is over."""
    handed: list[HandedRange] = field(default_factory=list)


class KafkaWorld(World):
    """A group whose records Kafka's own broker hands out.

    Its `record_locks` bound the offsets from the oldest unfinished record to the newest acquired
    one.
    """

    def __init__(
        self, *, mode: AcquireMode, poll_records: int, record_locks: int, **common: Any
    ) -> None:
        super().__init__(**common)
        self._mode = mode
        self._poll_records = poll_records
        self._record_locks = record_locks
        self._parked: dict[Share, OrderedDict[Fetch, None]] = {
            share: OrderedDict() for share in self.shares
        }
        self._locked: set[Share] = set()
        self._fetches = [0] * len(self.members)

    def begin(self, member: Member) -> None:
        """A member fetches for the first time."""
        self._poll(member, {})

    def has_more(self, share: Share) -> None:
        """Wakes fetches that wait for this share-partition, the one that waits longest first."""
        parked = self._parked[share]
        while parked and self._may_fetch(share):
            self._try(next(iter(parked)))

    # -- the client -----------------------------------------------------------------------------

    def _poll(self, member: Member, acknowledgements: Acknowledgements) -> None:
        """Sends a fetch, with acknowledgements of the records of the last one."""
        fetch = Fetch(member, self._places(member), writing=len(acknowledgements))
        self.clock.after(self.delay(NETWORK_MS), self._arrives, fetch, acknowledgements)

    def _receives(self, fetch: Fetch) -> None:
        """An answer came: handlers work on its records; without any the next fetch is sent."""
        member, handed = fetch.member, fetch.handed
        if handed:
            self.clock.after(self.work(member, handed), self._finished, member, handed)
        else:
            self._poll(member, {})

    def _finished(self, member: Member, handed: Sequence[HandedRange]) -> None:
        """All records of a poll are handled: the next poll acknowledges them."""
        self._poll(member, self.failures.acknowledge(handed))

    # -- the broker -----------------------------------------------------------------------------

    def _arrives(self, fetch: Fetch, acknowledgements: Acknowledgements) -> None:
        for share, ranges in acknowledgements.items():
            self.clock.after(self.delay(WRITE_MS), self._written, fetch, share, ranges)
        if not self._try(fetch):
            self._park(fetch)

    def _written(self, fetch: Fetch, share: Share, ranges: Sequence[AcknowledgedRange]) -> None:
        """Acknowledgements are stored: the window may move, and other fetches may be served."""
        self.settle(fetch.member, share, ranges)
        fetch.writing -= 1
        self._answer(fetch)
        self.has_more(share)

    def _places(self, member: Member) -> list[Share]:
        """The share-partitions that the assignor gives a member, rotated from fetch to fetch.

        With more members than partitions each has one; otherwise each partition has one member.
        """
        count, members = len(self.shares), len(self.members)
        if members >= count:
            return [self.shares[member.number % count]]
        own = self.shares[member.number :: members]
        cut = self._fetches[member.number] % len(own)
        self._fetches[member.number] += 1
        return own[cut:] + own[:cut]

    def _may_fetch(self, share: Share) -> bool:
        """Whether a fetch of this share-partition may begin now (KIP-932, specification 2.4)."""
        return share not in self._locked and (
            share.window.due > 0 or (self._room(share) > 0 and share.fresh > 0)
        )

    def _room(self, share: Share) -> int:
        """New records that the window takes: all offsets from its start to its end count."""
        return self._record_locks - (share.window.end_offset - share.window.start_offset)

    def _try(self, fetch: Fetch) -> bool:
        """Takes the fetch locks of share-partitions that allow it, and reads; False without any."""
        open_now = [share for share in fetch.places if self._may_fetch(share)]
        if not open_now:
            return False
        self._unpark(fetch)
        self._locked.update(open_now)
        likely = sum(
            share.window.due + max(min(self._room(share), share.fresh), 0) for share in open_now
        )
        read_ms = READ_MS + READ_RECORD_MS * min(likely, self._poll_records)
        self.clock.after(self.delay(read_ms), self._read, fetch, open_now)
        return True

    def _park(self, fetch: Fetch) -> None:
        fetch.is_parked = True
        for share in fetch.places:
            self._parked[share][fetch] = None
        self.clock.after(MAX_WAIT_MS, self._waited, fetch)

    def _unpark(self, fetch: Fetch) -> None:
        if fetch.is_parked:
            fetch.is_parked = False
            for share in fetch.places:
                del self._parked[share][fetch]

    def _waited(self, fetch: Fetch) -> None:
        """A fetch has waited as long as it may: the answer has no records."""
        if fetch.is_parked:
            self._unpark(fetch)
            self._over(fetch)

    def _read(self, fetch: Fetch, shares: Sequence[Share]) -> None:
        left = self._poll_records
        for share in shares:
            handed = self._acquire(fetch.member, share, left) if left > 0 else []
            left -= sum(part.records for part in handed)
            fetch.handed += handed
        self._locked.difference_update(shares)
        self._over(fetch)
        for share in shares:
            self.has_more(share)

    def _over(self, fetch: Fetch) -> None:
        fetch.is_over = True
        self._answer(fetch)

    def _answer(self, fetch: Fetch) -> None:
        if fetch.is_over and not fetch.writing:
            way_ms = self.delay(NETWORK_MS) + self.delay(CLIENT_TURN_MS)
            self.clock.after(way_ms, self._receives, fetch)

    def _acquire(self, member: Member, share: Share, budget: int) -> list[HandedRange]:
        """Acquires by the coordinator's core, in Kafka's window (specification 2.5, 2.6)."""
        window = share.window
        due = window.due_ranges(budget)
        new = min(budget - sum(last - first + 1 for first, last, _ in due), self._room(share))
        fresh: list[Run] = []
        if new > 0 and share.fresh > 0:
            first = window.end_offset
            last = min(first + new, share.log.end_offset) - 1
            if self._mode is AcquireMode.BATCH_OPTIMIZED:
                last = share.log.batch_end(last)
            fresh.append(Run(first, last))
        return self.acquire(share, member.member_id, budget, self._mode, due, fresh)
