"""A member of a group as this coordinator knows it: credit, pace, and the way to it.

A broken stream is not a departure: the session stays until its timeout, locks until they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from sharecoord.core.changes import LogId, MemberRow, PartitionKey
from sharecoord.core.decisions import AcknowledgedRange, AcquiredRange, HeldRange, RangeOutcome
from sharecoord.core.delivery import LostRange
from sharecoord.core.held_book import HeldBook, LockBook, log_ids_of
from sharecoord.core.lending import Purse
from sharecoord.core.pace import PREFETCH_RECORDS_MAX, Pace, prefetch_max
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, AcquireMode
from sharecoord.runtime.channel import MemberChannel

BATCH_RECORDS_DEFAULT = 1_000
"""Records of one message to a member that gave no max.poll.records; its SDK splits them again. 5%
more throughput than with 500, measured."""


@dataclass(slots=True)
class JoinCommand:
    """Who joins, in the runtime's words."""

    member_id: str
    client_id: str
    host: str
    topics: tuple[str, ...]
    mode: AcquireMode
    max_poll_records: int
    max_poll_interval_ms: int
    credit_records: int
    credit_bytes: int
    lock_book: LockBook = field(default_factory=dict)
    join_number: int = 0
    """Grows with each stream of the member; 0 = not given."""
    book_epochs: dict[LogId, int] | None = None
    """The owner epochs of the share-partitions for which the lock book is true: what another
    coordinator served when its gateway wrote the book may be missing in it. None = everywhere."""


@dataclass(slots=True)
class Share:
    """What a member wanted and got in the present interval (design 5, "Measured").

    Demand is summed over refills: what it could take when the interval began, and each time what
    it can take more than what it still waits for.
    """

    demand: int = 0
    got: int = 0
    waits_for: int = 0
    ratio: float | None = None
    """What it got in the last interval against its fair part; None = it wanted nothing."""

    def wants(self, records: int) -> None:
        """It can take so many now."""
        records = max(records, 0)
        self.demand = max(self.got, self.demand + records - self.waits_for)
        self.waits_for = records

    def gets(self, records: int) -> None:
        """It was given so many."""
        self.got += records
        self.waits_for = max(0, self.waits_for - records)
        self.demand = max(self.demand, self.got)

    def next_interval(self) -> None:
        """What it still waits for is wanted in the next one too."""
        self.demand, self.got = self.waits_for, 0


@dataclass(slots=True)
class Away:
    """What the gateway of a member knows of it, in a fleet (design 9)."""

    purse: Purse = field(default_factory=Purse)
    books: dict[LogId, HeldBook] = field(default_factory=dict)
    """What it holds, whoever the owner is."""
    told: set[str] = field(default_factory=set)
    """Owners that know of it, by this stream or a former one: they may count on records which it
    never got."""

    def held(self, places: Container[tuple[str, int]]) -> int:
        """Records that it holds of some share-partitions."""
        return sum(
            book.records
            for (name, _, partition), book in self.books.items()
            if (name, partition) in places
        )

    def book(self, log_id: LogId) -> HeldBook:
        """The book of a share-partition."""
        return self.books.setdefault(log_id, HeldBook())

    def shown(self) -> LockBook:
        """All that it holds."""
        return {log_id: book.held() for log_id, book in self.books.items()}

    def held_of(self, key: PartitionKey) -> list[HeldRange]:
        """What it holds of a share-partition."""
        books = [self.books[each] for each in log_ids_of(key) if each in self.books]
        return [held for book in books for held in book.held()]

    def received(self, log_id: LogId, ranges: Iterable[AcquiredRange], ends_ms: int) -> None:
        """A delivery goes onto the member's stream; see `HeldBook.put`."""
        book = self.book(log_id)
        for each in ranges:
            book.put(each.first, each.last, each.lock_token, ends_ms)

    def settled(
        self,
        log_id: LogId,
        ranges: Iterable[AcknowledgedRange],
        exceptions: Sequence[RangeOutcome],
        *,
        renewed_until_ms: int,
    ) -> None:
        """Acknowledgements are confirmed, with any outcome that the member goes by too."""
        book = self.book(log_id)
        for each in ranges:
            if _is_refused(each, exceptions):
                continue
            if each.type is AcknowledgeType.RENEW:
                book.renewed(each.first, each.last, each.lock_token, renewed_until_ms)
            else:
                book.settled(each.first, each.last, each.lock_token)
        if not book:
            del self.books[log_id]

    def lost(self, entries: Iterable[LostRange]) -> None:
        """The member hears that locks are not its own any more."""
        for entry in entries:
            for log_id in log_ids_of(entry.key) & self.books.keys():
                self.books[log_id].ended(*entry.held)

    def prune(self, now_ms: int) -> int:
        """Looks for what no lock can be left on; returns how many records that frees."""
        freed = 0
        for log_id, book in list(self.books.items()):
            before = book.records
            book.prune(now_ms)
            freed += before - book.records
            if not book:
                del self.books[log_id]
        return freed


def _is_refused(said: AcknowledgedRange, exceptions: Sequence[RangeOutcome]) -> bool:
    """Whether an acknowledgement made no sense to the owner: what its member has, it has still."""
    return any(
        each.outcome is AcknowledgeOutcome.INVALID_REQUEST
        and said.first <= each.first <= each.last <= said.last
        for each in exceptions
    )


@dataclass(eq=False, slots=True)
class Session:
    """One member's session."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    topics: frozenset[str]
    mode: AcquireMode = AcquireMode.FAIR
    max_poll_records: int = 0
    """0 = not given: batches as large as the learnt prefetch allows."""
    max_poll_interval_ms: int = 300_000
    channel: MemberChannel | None = None
    unsent_max_bytes: int = 0
    """A stream with more than this unsent gets nothing more (design 12)."""
    credit_records: int = 0
    credit_bytes: int = 0
    delivered_records: int = 0
    """On this stream, like the credit."""
    delivered_bytes: int = 0
    delivered_total: int = 0
    acknowledged_total: int = 0
    paused: frozenset[tuple[str, int]] = frozenset()
    pace: Pace = field(default_factory=Pace)
    share: Share = field(default_factory=Share)
    counted: int = 0
    """Its part of `Dispatcher.holds_total`."""
    expiry: asyncio.TimerHandle | None = None
    poll_timer: asyncio.TimerHandle | None = None
    last_poll_ms: int = 0
    comparing: int = 0
    """1 while the lock book waits for partitions to load: nothing is dispatched meanwhile."""
    broken: bool = False
    """A delivery could not be sent: the stream ends and gets nothing more."""
    book: dict[LogId, list[HeldRange]] | None = None
    """What is to be compared of the last join's lock book; None before the first join here."""
    book_epochs: dict[LogId, int] | None = None
    """See `JoinCommand`."""
    compared: set[tuple[str, int]] = field(default_factory=set)
    """Where the book was compared: only from there may the member receive."""
    gateway: str = ""
    """The coordinator that has its stream; "" = this one. Another one lends its credit: that is all
    it may get."""
    stalled: bool = False
    """A lock of it ended by time-out: it gets nothing more until its application gives a sign
    (docs/decisions/0012)."""
    held_up: bool = False
    """An operator paused this member: it gets nothing new."""
    away: Away | None = None
    """In a fleet, for a member with its stream here."""

    @property
    def is_lent(self) -> bool:
        """Whether its stream is at another coordinator."""
        return bool(self.gateway)

    @property
    def batch_records_max(self) -> int:
        """Most records of one batch."""
        return self.max_poll_records or BATCH_RECORDS_DEFAULT

    def wants(self, held: int) -> int:
        """How many records it may get now, given what it holds in all partitions."""
        room = self.room(held)
        return room - self.away.purse.lent if self.away else room

    def room(self, held: int) -> int:
        """How many records it can take from all owners together, given what it holds."""
        if self.channel is None or self.comparing or self.broken:
            return 0
        if self.stalled or self.held_up:
            return 0
        if self.channel.unsent_bytes > self.unsent_max_bytes:
            return 0
        if self.credit_bytes <= self.delivered_bytes:
            return 0
        credit = self.credit_records - self.delivered_records
        if self.is_lent:
            return credit
        ceiling = max(min(self.pace.prefetch, self._prefetch_max), self.max_poll_records)
        return min(credit, ceiling - held)

    @property
    def _prefetch_max(self) -> int:
        if not self.delivered_records:
            return PREFETCH_RECORDS_MAX
        return prefetch_max(self.delivered_bytes // self.delivered_records)

    @property
    def holds_max(self) -> int:
        """How many records it may hold: what it works off in `PREFETCH_MS`, or what it asks for."""
        return max(self.pace.prefetch, self.max_poll_records)

    def pauses(self, key: PartitionKey) -> bool:
        """Whether it gets nothing of a share-partition.

        Letters of a lane may be of any partition of their topic, unless it is for one partition
        alone: one that is paused stops them.
        """
        topic, partition = key.home
        if partition < 0:
            return any(each == topic for each, _ in self.paused)
        return key.home in self.paused

    def timed_out(self) -> None:
        """A lock of it ended by itself.

        Its pace was another one: with the former prefetch a program that polls seldom would let
        most of each delivery run out again, unseen.
        """
        self.stalled = True
        self.pace = Pace()

    def sent(self, records: int, size_bytes: int, now_ms: int) -> None:
        """Takes a delivery from the credit."""
        self.delivered_records += records
        self.delivered_bytes += size_bytes
        self.delivered_total += records
        self.pace.started(now_ms)

    def refund(self, records: int, size_bytes: int) -> None:
        """Gives the credit of a delivery back that was never sent."""
        self.delivered_records -= records
        self.delivered_bytes -= size_bytes
        self.delivered_total -= records

    def cancel_timers(self) -> None:
        """No timer of this session fires after this."""
        for timer in (self.expiry, self.poll_timer):
            if timer is not None:
                timer.cancel()
        self.expiry = self.poll_timer = None


def session_of_row(member: MemberRow, now_ms: int, *, is_here: bool) -> Session:
    """The session of a member that is known from the store alone.

    Args:
        member: Its row.
        now_ms: Monotonic time.
        is_here: Whether its stream would be at this coordinator.
    """
    return Session(
        member.group_id,
        member.member_id,
        member.member_epoch,
        member.client_id,
        member.host,
        frozenset(member.topics),
        last_poll_ms=now_ms,
        gateway="" if is_here else member.gateway,
    )
