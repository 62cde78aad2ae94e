"""The session of a member at this coordinator: credit, pace, and channel.

A broken stream is not a departure: the session stays until its timeout, locks until they end.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from sharecoord.core.changes import LogId, MemberRow, PartitionKey, Place
from sharecoord.core.delivery import LostRange
from sharecoord.core.dispatch.pace import (
    FIRST_RECORDS_MAX,
    Pace,
    prefetch_max,
)
from sharecoord.core.fleet.held_book import HeldBook, LockBook, log_ids_of
from sharecoord.core.fleet.lending import LentCredit
from sharecoord.core.limits import ACQUIRE_RECORDS_MAX
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    HeldRange,
    RangeOutcome,
    TakenBack,
)
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, AcquireMode
from sharecoord.errors import MemberFencedError, UnauthorizedError
from sharecoord.runtime.member.channel import MemberChannel
from sharecoord.security.actions import group as group_resource
from sharecoord.security.principals import ANONYMOUS, Caller


@dataclass(slots=True)
class JoinCommand:
    """The arguments of a join."""

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
    """A number that grows with each stream of the member; 0 = not given."""
    book_epochs: dict[LogId, int] | None = None
    """The owner epochs for which the lock book is complete: records of a share-partition that
    another coordinator served when the gateway wrote the book may be missing. None = all."""
    opens: frozenset[int] = frozenset()
    """See `Session.opens`."""
    takes_batches: bool = False
    """See `Session.takes_batches`."""
    is_atomic: bool = False
    """See `Session.is_atomic`."""
    caller: Caller | None = None
    """Who joins; None = another coordinator has let the member in."""
    principal: str = ""
    """Whom that other coordinator has let in; "" = it does not say."""
    software: str = ""
    """See `Session.software`."""

    @property
    def stored_principal(self) -> str:
        """The principal that the store binds the member to.

        A member that has shown no credentials is not bound to anybody: it may be one of before
        credentials were asked for, and comes back with some.
        """
        name = self.principal_name
        return "" if name == ANONYMOUS.name else name

    @property
    def principal_name(self) -> str:
        """Name of the principal who joins; "" = not known."""
        return self.principal if self.caller is None else self.caller.principal.name


@dataclass(slots=True)
class Share:
    """Records that a member wanted and got in the present interval (design 5, "Measured").

    Demand is summed over refills: the records that the member could take when the interval began,
    and at each refill the records on top of those that it still waits for.
    """

    demand: int = 0
    got: int = 0
    waits_for: int = 0
    ratio: float | None = None
    """Records got in the last interval against the fair part; None = the member wanted none."""

    def wants(self, records: int) -> None:
        """Notes how many records the member can take now."""
        records = max(records, 0)
        self.demand = max(self.got, self.demand + records - self.waits_for)
        self.waits_for = records

    def gets(self, records: int) -> None:
        """Notes how many records the member was given."""
        self.got += records
        self.waits_for = max(0, self.waits_for - records)
        self.demand = max(self.demand, self.got)

    def next_interval(self) -> None:
        """Begins the next interval: records that are still waited for are wanted in it, too."""
        self.demand, self.got = self.waits_for, 0


@dataclass(slots=True)
class Away:
    """The lent credit and the lock books of a member at its gateway, in a fleet (design 9)."""

    credit: LentCredit = field(default_factory=LentCredit)
    books: dict[LogId, HeldBook] = field(default_factory=dict)
    """The records that the member holds, of all owners."""
    told: set[str] = field(default_factory=set)
    """Owners that know the member, by this stream or a former one: they may count on records that
    it never got."""

    @classmethod
    def after(cls, former: Session | None) -> Away:
        """The state of a new stream; `former` is the session before, if there was one."""
        known = former.away if former is not None else None
        return cls() if known is None else cls(told=set(known.told))

    def held(self, places: Container[Place]) -> int:
        """Records that the member holds of some share-partitions."""
        return sum(
            book.records
            for (name, _, partition), book in self.books.items()
            if (name, partition) in places
        )

    def book(self, log_id: LogId) -> HeldBook:
        """The book of a share-partition; made at its first use."""
        return self.books.setdefault(log_id, HeldBook())

    def shown(self) -> LockBook:
        """The lock book with all records that the member holds."""
        return {log_id: book.held() for log_id, book in self.books.items()}

    def held_of(self, key: PartitionKey) -> list[HeldRange]:
        """The records that the member holds of a share-partition."""
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
        """Acknowledgements are confirmed; the book follows them as the member itself does."""
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
        """Drops records on which no lock can be left; returns how many that frees."""
        freed = 0
        for log_id, book in list(self.books.items()):
            before = book.records
            book.prune(now_ms)
            freed += before - book.records
            if not book:
                del self.books[log_id]
        return freed


def _is_refused(said: AcknowledgedRange, exceptions: Sequence[RangeOutcome]) -> bool:
    """Whether the owner took an acknowledgement for invalid: the member still has the records."""
    return any(
        each.outcome is AcknowledgeOutcome.INVALID_REQUEST
        and said.first <= each.first <= each.last <= said.last
        for each in exceptions
    )


@dataclass(slots=True)
class Credit:
    """Totals that one stream of a member may have been sent, and totals that were sent."""

    records: int = 0
    size_bytes: int = 0
    delivered_records: int = 0
    delivered_bytes: int = 0
    unsent_max_bytes: int = 0
    """A stream with more unsent bytes gets nothing more (design 12)."""

    @property
    def left_records(self) -> int:
        """How many more records may be sent; none once the bytes are used up."""
        if self.size_bytes <= self.delivered_bytes:
            return 0
        return self.records - self.delivered_records

    @property
    def left_bytes(self) -> int:
        """How many more bytes may be sent."""
        return max(0, self.size_bytes - self.delivered_bytes)

    def use_up(self) -> None:
        """Takes back all credit that was not used."""
        self.records, self.size_bytes = self.delivered_records, self.delivered_bytes


@dataclass(slots=True)
class Totals:
    """Records that were sent to members, and records that these settled."""

    delivered: int = 0
    delivered_whole: int = 0
    """Of these: the ones in whole record batches."""
    acknowledged: int = 0


@dataclass(slots=True)
class Comparison:
    """The part of the lock book of a member's last join that was not compared yet."""

    pending: bool = False
    """Whether the join waits for share-partitions to load: nothing is dispatched meanwhile."""
    book: dict[LogId, list[HeldRange]] | None = None
    """Entries that are still to be compared; None before the first join here."""
    epochs: dict[LogId, int] | None = None
    """See `JoinCommand.book_epochs`."""
    done: set[Place] = field(default_factory=set)
    """Share-partitions with which the book was compared: the member receives from them only."""


@dataclass(slots=True)
class Presence:
    """The last sign of a member, and the timers that end its session."""

    max_poll_interval_ms: int = 300_000
    last_poll_ms: int = 0
    expiry: asyncio.TimerHandle | None = None
    """Runs while the member has no stream."""
    poll_timer: asyncio.TimerHandle | None = None

    def cancel_timers(self) -> None:
        """No timer fires after this."""
        for timer in (self.expiry, self.poll_timer):
            if timer is not None:
                timer.cancel()
        self.expiry = self.poll_timer = None


class Hindrance(enum.Enum):
    """A cause for which a member gets nothing, whatever its credit is."""

    TIMED_OUT = "timed out"
    """A lock ended by itself: until the application gives a sign (docs/decisions/0012)."""
    NOT_POLLING = "not polling"
    """The SDK said that the application does not poll: until it does."""
    PAUSED = "paused"
    """An operator paused the member."""
    BROKEN = "broken"
    """A delivery could not be sent: the stream ends."""


@dataclass(eq=False, slots=True)
class Session:
    """The session of one member."""

    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    topics: frozenset[str]
    mode: AcquireMode = AcquireMode.FAIR
    max_poll_records: int = 0
    """0 = not given: batches as large as the learnt prefetch allows."""
    channel: MemberChannel | None = None
    credit: Credit = field(default_factory=Credit)
    totals: Totals = field(default_factory=Totals)
    """Sums over all streams of the member."""
    paused: frozenset[Place] = frozenset()
    """Share-partitions that the member itself paused."""
    pace: Pace = field(default_factory=Pace)
    share: Share = field(default_factory=Share)
    presence: Presence = field(default_factory=Presence)
    comparison: Comparison = field(default_factory=Comparison)
    gateway: str = ""
    """The coordinator that has the stream; "" = this one. Another one lends the credit, and no more
    is handed out."""
    hindrances: set[Hindrance] = field(default_factory=set)
    is_atomic: bool = False
    """Whether what a request acknowledges of one share-partition is settled together or not at all:
    the member is told one outcome for all of it."""
    is_alone: bool = False
    """Whether no other member is connected for its topics, by the dispatcher's last look."""
    away: Away | None = None
    """Set in a fleet, for a member with its stream here."""
    caller: Caller | None = None
    """Who the member is, as it proved last; None = this coordinator has not let it in itself: it is
    known from the store alone, or from its gateway."""
    principal: str = ""
    """Name of the principal that the member is: that of `caller`, or what the store or the gateway
    says. "" = anybody may be it, who may be a member."""
    records_max: int | None = None
    """Its part of its principal's quota of records in flight; None = there is none."""
    software: str = ""
    """Name and version of the member's client, as it gives them itself; "" = not known."""
    opens: frozenset[int] = frozenset()
    """Compressions (Kafka's numbers, 0 = none) of the record batches that the member can open;
    empty = it gets columns only."""
    takes_batches: bool = False
    """Whether the member takes Kafka's record batches alone, and no columns."""

    @property
    def shows_book(self) -> bool:
        """Whether what is missing in the member's lock book at a join never reached it.

        A client that knows record batches alone has no lock tokens: the book has what this
        coordinator has handed to it, and what came by others its program may have seen, too.
        """
        return not self.takes_batches

    @property
    def is_lent(self) -> bool:
        """Whether the stream is at another coordinator."""
        return bool(self.gateway)

    @property
    def batch_records_max(self) -> int:
        """Most records of one batch; the SDK splits those of a member that did not say."""
        return self.max_poll_records or ACQUIRE_RECORDS_MAX

    def wants(self, held: int) -> int:
        """How many records it is worth to send the member now; `held` as of `takes`."""
        taken = self.takes(held)
        return taken if taken <= 0 or self.is_lent or self._is_worth_it(held) else 0

    def lends_more(self, held: int) -> bool:
        """Whether it is worth to lend other owners more for the member; `held` as of `takes`.

        Owners send what they were lent at once, so what is lent decides how large their messages
        are. Some of them have nothing to send: a member that holds little does not wait for them.
        """
        return held <= self._ceiling // 2 or self._is_worth_it(held)

    def _is_worth_it(self, held: int) -> bool:
        ceiling = self._ceiling
        lent = self.away.credit.lent if self.away else 0
        return ceiling - held - lent >= self.pace.refill(ceiling, self._record_bytes)

    def takes(self, held: int) -> int:
        """How many records the member may get now; `held` it holds in all partitions."""
        room = self.room(held)
        return room - self.away.credit.lent if self.away else room

    def room(self, held: int) -> int:
        """How many records the member can take from all owners together."""
        if self.channel is None or self.comparison.pending or self.hindrances:
            return 0
        if self.channel.unsent_bytes > self.credit.unsent_max_bytes:
            return 0
        left = self.credit.left_records
        if self.is_lent:
            return left
        most = self._ceiling if self.records_max is None else min(self._ceiling, self.records_max)
        return min(left, most - held)

    @property
    def _ceiling(self) -> int:
        if self.is_alone and self.pace.is_new and not self.max_poll_records:
            return FIRST_RECORDS_MAX
        return max(min(self.pace.prefetch, self._prefetch_max), self.max_poll_records)

    @property
    def _prefetch_max(self) -> int:
        return prefetch_max(self._record_bytes)

    @property
    def _record_bytes(self) -> int:
        """Mean size of the records that the member got; 0 = unknown."""
        credit = self.credit
        return credit.delivered_bytes // credit.delivered_records if credit.delivered_records else 0

    @property
    def holds_max(self) -> int:
        """How many records the member may hold: its prefetch, or its max.poll.records."""
        return max(self.pace.prefetch, self.max_poll_records)

    def pauses(self, key: PartitionKey) -> bool:
        """Whether the member gets nothing of a share-partition.

        Letters of a lane may come from any partition of their topic, unless the lane is for one: so
        any paused partition of the topic stops the lane. Who takes record batches gets no letters:
        as batches they would have the offsets and the headers of the dead-letter topic.
        """
        if key.lane and self.takes_batches:
            return True
        topic, partition = key.home
        if partition < 0:
            return any(each == topic for each, _ in self.paused)
        return key.home in self.paused

    def hears(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Tells the member of locks that ended without its word."""
        if self.away is not None:
            self.away.lost(LostRange(key, HeldRange(*taken[1:4])) for taken in ranges)
        if self.channel is not None:
            self.channel.taken_back(key, ranges)

    def timed_out(self) -> None:
        """A lock of the member ended by itself: its learnt pace is forgotten.

        With the former prefetch a program that polls seldom would let most of each delivery run out
        again, unseen.
        """
        self.hindrances.add(Hindrance.TIMED_OUT)
        self.pace = Pace(forgotten=True)

    def sent(self, records: int, size_bytes: int, now_ms: int) -> None:
        """Takes a delivery from the credit."""
        self.credit.delivered_records += records
        self.credit.delivered_bytes += size_bytes
        self.totals.delivered += records
        self.pace.started(now_ms)

    def refund(self, records: int, size_bytes: int) -> None:
        """Gives back the credit of a delivery that was never sent."""
        self.credit.delivered_records -= records
        self.credit.delivered_bytes -= size_bytes
        self.totals.delivered -= records

    def hinder(self, why: Hindrance, *, holds: bool) -> None:
        """Sets or clears a hindrance."""
        if holds:
            self.hindrances.add(why)
        else:
            self.hindrances.discard(why)


def newer_stream() -> MemberFencedError:
    """The error for a stream whose member has joined again since."""
    return MemberFencedError("a newer stream of this member id joined")


def anothers_member(group_id: str, member_id: str) -> UnauthorizedError:
    """The error for a principal that joins, or speaks, under the id of another one's member."""
    return UnauthorizedError(
        f"member {member_id!r} of group {group_id!r} is another principal's; "
        "make a member_id of your own (a UUID)",
        metadata={"resource": str(group_resource(group_id))},
    )


def session_of_row(member: MemberRow, now_ms: int, *, is_here: bool) -> Session:
    """The session of a member that is known from the store alone.

    `is_here` tells whether its stream would be at this coordinator.
    """
    return Session(
        member.group_id,
        member.member_id,
        member.member_epoch,
        member.client_id,
        member.host,
        frozenset(member.topics),
        presence=Presence(last_poll_ms=now_ms),
        gateway="" if is_here else member.gateway,
        principal=member.principal,
    )
