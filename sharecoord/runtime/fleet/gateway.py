"""The gateway's end of the links: members with their streams here, and owners elsewhere.

The gateway lends their credit (`core/fleet/lending.py`), passes deliveries on as they are, routes
acknowledgements, and keeps the lock books of streams that did not break (docs/decisions/0011).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import structlog

from sharecoord.core.changes import LogId, PartitionKey, key_of
from sharecoord.core.delivery import LostRange, PartitionResult
from sharecoord.core.fleet.held_book import LockBook, log_ids_of
from sharecoord.core.fleet.lending import HERE, CreditChange
from sharecoord.core.fleet.peering import (
    AskLockBooks,
    Compared,
    GatewayItem,
    Hungry,
    Lend,
    LockBooks,
    MemberDown,
    MemberEnd,
    MemberTakenBack,
    MemberUp,
    OwnerItem,
    Relayed,
    Returned,
    Settle,
    Settled,
    TimedOut,
)
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    HeldRange,
    handed_back,
)
from sharecoord.core.states import AcknowledgeType, Ordering
from sharecoord.errors import SharecoordError, StoreUnavailableError
from sharecoord.ports import OwnerWay
from sharecoord.runtime.group.group import Group, OwnerLinks
from sharecoord.runtime.kernel.clock import RuntimeClock
from sharecoord.runtime.member.session import Away, Hindrance, Session
from sharecoord.runtime.partition.collector import Collector
from sharecoord.runtime.partition.recovery import lock_left_max_ms

log = structlog.get_logger(__name__)

COMPARE_WAIT_S = 5.0
"""Longest wait of a join for other owners to compare its lock book."""

RETRY_MS = 1_000
"""Wait before an owner that could not take a member in is asked again."""

HUNGRY_LOOK_MEMBERS_MAX = 1_000
"""Members that are looked at for credit when an owner gets hungry; the others are looked at when
they acknowledge."""


@dataclass(slots=True)
class _Guest:
    """A member at one owner."""

    group: Group
    session: Session
    handle: int
    compared: asyncio.Future[Sequence[LostRange]]
    used_bytes: int = 0
    returning: Counter[LogId] = field(default_factory=Counter)
    """Answers that are missing about records that go back unseen, by log."""


@dataclass(slots=True)
class _Relay:
    """Acknowledgements under way to an owner."""

    guest: _Guest
    key: PartitionKey
    ranges: Sequence[AcknowledgedRange]
    collector: Collector


@dataclass(eq=False)
class OwnerLink:
    """The link to one owner, and the members that the owner knows by it."""

    owner_id: str
    way: OwnerWay
    guests: dict[int, _Guest] = field(default_factory=dict)
    by_session: dict[Session, _Guest] = field(default_factory=dict)
    relays: dict[int, _Relay] = field(default_factory=dict)


class Gateway(OwnerLinks):
    """All links of this coordinator to owners."""

    def __init__(self, clock: RuntimeClock) -> None:
        self._clock = clock
        self.groups: Mapping[str, Group] = {}
        """The groups of this coordinator."""
        self._links: dict[str, OwnerLink] = {}
        self._hungry: dict[tuple[str, str], set[str]] = {}
        self._compared: dict[PartitionKey, int] = {}
        """The owner epochs with which lock books were compared last."""
        self._numbers = itertools.count(1)

    # -- links ----------------------------------------------------------------------------------

    def linked(self, owner_id: str, way: OwnerWay) -> Callable[[OwnerItem], None]:
        """An owner can be reached from now on; returns the listener for its items."""
        link = self._links[owner_id] = OwnerLink(owner_id, way)
        for group in self.groups.values():
            for session in group.sessions.values():
                self._introduce_to(link, group, session)
        return lambda item: self._hear(link, item)

    def unlinked(self, owner_id: str) -> None:
        """The link to an owner is gone, with everything that was under way on it."""
        link = self._links.pop(owner_id, None)
        if link is None:
            return
        for group_topic in list(self._hungry):
            self._not_hungry(owner_id, group_topic)
        self._unanswered(link, list(link.relays))
        for guest in list(link.guests.values()):
            self._part(link, guest)
            guest.group.offer(guest.session)

    # -- members --------------------------------------------------------------------------------

    async def introduce(self, group: Group, session: Session) -> list[LostRange]:
        """See `OwnerLinks`."""
        asked = [self._introduce_to(link, group, session) for link in self._links.values()]
        waiting = [guest.compared for guest in asked if guest is not None]
        if not waiting:
            return []
        done, _ = await asyncio.wait(waiting, timeout=COMPARE_WAIT_S)
        for link in self._links.values():
            # Coordinators that became owners meanwhile are told, too.
            self._introduce_to(link, group, session)
        return [entry for each in done if not each.cancelled() for entry in each.result()]

    def _introduce_to(self, link: OwnerLink, group: Group, session: Session) -> _Guest | None:
        """Introduces a member to an owner of records that it wants or has; else returns None."""
        if session.channel is None or session.away is None or session in link.by_session:
            return link.by_session.get(session)
        if link.owner_id not in _owners(group, session) | _holders(group, session.away):
            return None
        session.away.told.add(link.owner_id)
        compared = asyncio.get_running_loop().create_future()
        guest = _Guest(group, session, next(self._numbers), compared)
        link.guests[guest.handle] = link.by_session[session] = guest
        link.way.say(self._member_up(guest))
        return guest

    def _member_up(self, guest: _Guest) -> MemberUp:
        group, session = guest.group, guest.session
        assert session.away is not None, "introduced"
        return MemberUp(
            guest.handle,
            group.group_id,
            session.member_id,
            session.member_epoch,
            session.client_id,
            session.host,
            tuple(sorted(session.topics)),
            session.mode,
            session.max_poll_records,
            session.paused,
            _entries(group.group_id, session.away.shown()),
            session.opens,
            session.principal,
            session.takes_batches,
            session.is_atomic,
        )

    def introduce_anew(self, group: Group, session: Session) -> None:
        """Introduces a member to owners that have come since."""
        if not session.comparison.pending:
            for link in self._links.values():
                self._introduce_to(link, group, session)

    def changed(self, group: Group, session: Session) -> None:
        """See `OwnerLinks`."""
        for link in self._links.values():
            guest = link.by_session.get(session)
            if guest is None:
                self._introduce_to(link, group, session)
            else:
                link.way.say(self._member_up(guest))

    def gone(self, session: Session) -> None:
        """See `OwnerLinks`."""
        self._say_down(session, left=False, book=None)

    def left(self, session: Session, book: LockBook | None) -> None:
        """See `OwnerLinks`."""
        if book is None and session.away is not None:
            # Records that were passed on may have arrived; those still under way never will.
            book = session.away.shown()
        entries = None if book is None else _entries(session.group_id, book)
        self._say_down(session, left=True, book=entries)

    def _say_down(self, session: Session, *, left: bool, book: list[LostRange] | None) -> None:
        for link in self._links.values():
            guest = link.by_session.get(session)
            if guest is not None:
                link.way.say(MemberDown(guest.handle, left, book))
                self._part(link, guest)

    def _part(self, link: OwnerLink, guest: _Guest) -> None:
        """Forgets a member at one owner."""
        link.guests.pop(guest.handle, None)
        link.by_session.pop(guest.session, None)
        guest.compared.cancel()
        self._unanswered(link, [n for n, relay in link.relays.items() if relay.guest is guest])
        if guest.session.away is not None:
            guest.session.away.credit.forget(link.owner_id)

    @staticmethod
    def _unanswered(link: OwnerLink, relay_ids: Sequence[int]) -> None:
        """Answers acknowledgements that no owner answers any more: the member repeats them."""
        for relay_id in relay_ids:
            relay = link.relays.pop(relay_id)
            relay.collector.add(PartitionResult(relay.key, error=_unreachable(relay.key)))

    # -- credit ---------------------------------------------------------------------------------

    def balance(self, group: Group, session: Session, *, has_backlog: bool) -> None:
        """See `OwnerLinks`."""
        if session.away is None:
            return
        wanted = _owners(group, session)
        owners = [
            owner
            for owner, link in self._links.items()
            if owner in wanted
            and (guest := link.by_session.get(session)) is not None
            and guest.compared.done()
        ]
        hungry = {
            owner
            for topic in session.topics
            for owner in self._hungry.get((group.group_id, topic), ())
        }
        if HERE in wanted:
            owners.append(HERE)
            if has_backlog:
                hungry.add(HERE)
        held = group.held(session)
        room, lends = session.room(held), session.lends_more(held)
        bytes_each = session.credit.left_bytes // max(1, len(owners))
        orders = session.away.credit.balance(room, owners, hungry, lends=lends)
        self._order(session, orders, bytes_each)

    def forget_ended(self) -> None:
        """Frees members' room of records on which no lock can be left."""
        now_ms = self._clock.now_ms()
        for group in self.groups.values():
            for session in group.sessions.values():
                if session.away is not None and session.away.prune(now_ms):
                    group.offer(session)

    def recall(self, session: Session) -> None:
        """Asks back all credit of a member that is to get nothing more."""
        if session.away is not None:
            self._order(session, session.away.credit.recall(), 0)

    def _order(self, session: Session, orders: Sequence[CreditChange], bytes_each: int) -> None:
        for order in orders:
            link = self._links[order.owner]
            guest = link.by_session[session]
            bytes_total = guest.used_bytes + bytes_each
            link.way.say(Lend(guest.handle, order.records_total, bytes_total, order.recalls))

    def hungry_here(self, group_id: str, topic: str) -> None:
        """Asks credit back for own share-partitions with records that nobody has credit for."""
        group = self.groups.get(group_id)
        lenders = (
            session
            for session in (group.sessions.values() if group else ())
            if session.away is not None and topic in session.topics and session.away.credit.lent
        )
        for session in list(itertools.islice(lenders, HUNGRY_LOOK_MEMBERS_MAX)):
            assert group is not None, "it has sessions"
            group.offer(session)

    # -- acknowledgements -----------------------------------------------------------------------

    def hand_back(
        self,
        group: Group,
        session: Session,
        key: PartitionKey,
        ranges: Sequence[AcquiredRange],
    ) -> None:
        """See `OwnerLinks`."""
        self._hand_back(group.elsewhere.get(key.place, HERE), session, key, ranges)

    def _hand_back(
        self, owner_id: str, session: Session, key: PartitionKey, ranges: Sequence[AcquiredRange]
    ) -> None:
        link = self._links.get(owner_id)
        guest = None if link is None else link.by_session.get(session)
        if guest is None:
            # The next lock book tells the owner.
            return
        going = Counter([key.log_id])
        guest.returning += going

        def answered(_: list[PartitionResult]) -> None:
            # In place; logs at zero go.
            guest.returning -= going

        collector = Collector(answered)
        self.settle(owner_id, session, key, handed_back(ranges), collector, may_wait=False)
        collector.seal()

    def say(self, owner_id: str, item: GatewayItem) -> None:
        """Tells an owner something; lost when there is no link."""
        link = self._links.get(owner_id)
        if link is not None:
            link.way.say(item)

    def say_all(self, item: GatewayItem) -> None:
        """Tells every coordinator that can be reached."""
        for link in self._links.values():
            link.way.say(item)

    def settle(
        self,
        owner_id: str,
        session: Session,
        key: PartitionKey,
        ranges: Sequence[AcknowledgedRange],
        collector: Collector,
        *,
        may_wait: bool,
    ) -> int:
        """See `OwnerLinks`."""
        link = self._links.get(owner_id)
        guest = link.by_session.get(session) if link else None
        collector.expect()
        if link is None or guest is None:
            collector.add(PartitionResult(key, error=_unreachable(key)))
            return 0
        relay_id = next(self._numbers)
        link.relays[relay_id] = _Relay(guest, key, ranges, collector)
        link.way.say(Settle(guest.handle, relay_id, key, ranges, may_wait))
        return sum(r.last - r.first + 1 for r in ranges if r.type is not AcknowledgeType.RENEW)

    # -- what owners say ------------------------------------------------------------------------

    def _hear(self, link: OwnerLink, item: OwnerItem) -> None:
        if self._links.get(link.owner_id) is not link:
            return
        if isinstance(item, Hungry):
            self._heard_hungry(link, item)
        elif isinstance(item, AskLockBooks):
            self._answer_books(link, item)
        elif isinstance(item, Settled):
            self._heard_settled(link, item)
        elif (guest := link.guests.get(item.handle)) is not None:
            self._heard_of(link, guest, item)

    def _heard_of(
        self,
        link: OwnerLink,
        guest: _Guest,
        item: Relayed | Returned | TimedOut | MemberTakenBack | Compared | MemberEnd,
    ) -> None:
        session = guest.session
        assert session.away is not None, "introduced"
        if isinstance(item, Relayed):
            self._deliver(link, guest, item)
        elif isinstance(item, Returned):
            guest.used_bytes = item.bytes_total
            session.away.credit.returned(link.owner_id, item.records_total)
            guest.group.offer(session)
        elif isinstance(item, TimedOut):
            session.timed_out()
            self.recall(session)
        elif isinstance(item, MemberTakenBack):
            session.hears(item.key, item.ranges)
            guest.group.offer(session)
        elif isinstance(item, Compared):
            if not guest.compared.done():
                guest.compared.set_result(item.lost)
            guest.group.offer(session)
        else:
            self._heard_end(link, guest, item.error)

    def _heard_end(self, link: OwnerLink, guest: _Guest, error: SharecoordError) -> None:
        """An owner does not serve a member for ever, or for a while, as when it goes down."""
        self._part(link, guest)
        if not error.retriable:
            guest.group.fenced(guest.session, error)
            return
        delay_s = (error.retry_after_ms or RETRY_MS) / 1000
        loop = asyncio.get_running_loop()
        loop.call_later(delay_s, self._introduce_again, link, guest.group, guest.session)

    def _introduce_again(self, link: OwnerLink, group: Group, session: Session) -> None:
        linked = self._links.get(link.owner_id) is link
        if (
            linked
            and group.sessions.get(session.member_id) is session
            and not session.comparison.pending
        ):
            self._introduce_to(link, group, session)

    def _deliver(self, link: OwnerLink, guest: _Guest, item: Relayed) -> None:
        session = guest.session
        assert session.away is not None, "introduced"
        session.away.credit.delivered(link.owner_id, item.records)
        guest.used_bytes += item.size_bytes
        if session.channel is None:
            # The member never sees them: its next join shows a lock book without them.
            return
        if self._comes_late(guest.group.group_id, item) or _follows_return(guest, item.key):
            # Back to the sender: the owner that this coordinator believes in may be older.
            self._hand_back(link.owner_id, session, item.key, item.ranges)
            return
        if not guest.group.knows(item.key.place):
            # A lane that is unknown here: acknowledgements of its records go to the sender.
            guest.group.elsewhere[item.key.place] = link.owner_id
        ends_ms = self._clock.now_ms() + lock_left_max_ms(guest.group.settings)
        session.away.received(item.key.log_id, item.ranges, ends_ms)
        session.sent(item.records, item.size_bytes, self._clock.now_ms())
        session.channel.relay(item)

    def _comes_late(self, group_id: str, item: Relayed) -> bool:
        """Whether a delivery was under way for too long.

        Its locks may be somebody else's soon; or they were compared with a book without them, when
        the share-partition had gone to its next owner.
        """
        key = replace(item.key, group_id=group_id)
        epoch = self._compared.get(key, 0)
        is_of_former = any(each.lock_token >> 32 < epoch for each in item.ranges)
        if is_of_former or self._clock.is_doubtful:
            return True
        return self._clock.store_now_ms() > item.send_by_ms

    def _heard_settled(self, link: OwnerLink, item: Settled) -> None:
        relay = link.relays.pop(item.relay_id, None)
        if relay is None:
            return
        session = relay.guest.session
        if item.result.error is None and session.away is not None:
            ends_ms = self._clock.now_ms() + lock_left_max_ms(relay.guest.group.settings)
            session.away.settled(
                relay.key.log_id, relay.ranges, item.result.exceptions, renewed_until_ms=ends_ms
            )
            # See `TimedOut`: the acknowledgement crossed the owner's message.
            session.hindrances.discard(Hindrance.TIMED_OUT)
            relay.guest.group.offer(session)
        item.result.key = relay.key
        relay.collector.add(item.result)

    def _heard_hungry(self, link: OwnerLink, item: Hungry) -> None:
        group_topic = item.group_id, item.topic
        guests = [g for g in link.guests.values() if g.group.group_id == item.group_id]
        del guests[HUNGRY_LOOK_MEMBERS_MAX:]
        if not item.records:
            self._not_hungry(link.owner_id, group_topic)
            # Its credit may be wanted by other owners, which do not ask twice.
            for guest in guests:
                assert guest.session.away is not None, "introduced"
                if guest.session.away.credit.open(link.owner_id):
                    guest.group.offer(guest.session)
            return
        self._hungry.setdefault(group_topic, set()).add(link.owner_id)
        missing = item.records
        for guest in guests:
            if missing <= 0:
                break
            assert guest.session.away is not None, "introduced"
            lent = guest.session.away.credit
            before = lent.open(link.owner_id)
            guest.group.offer(guest.session)
            missing -= lent.open(link.owner_id) - before

    def _not_hungry(self, owner_id: str, group_topic: tuple[str, str]) -> None:
        owners = self._hungry.get(group_topic, set())
        owners.discard(owner_id)
        if not owners:
            self._hungry.pop(group_topic, None)

    def compared_of(self, group_id: str) -> dict[PartitionKey, int]:
        """The owner epochs of a group with which lock books were compared."""
        return {key: epoch for key, epoch in self._compared.items() if key.group_id == group_id}

    def forget_compared(self, compared: Mapping[PartitionKey, int]) -> None:
        """Forgets epochs of share-partitions that are gone, unless they were compared since."""
        for key, epoch in compared.items():
            if self._compared.get(key) == epoch:
                del self._compared[key]

    def compares(self, key: PartitionKey, owner_epoch: int) -> None:
        """Lock books are compared for a new owner: deliveries of former owners come too late."""
        self._compared[key] = max(self._compared.get(key, 0), owner_epoch)

    def _introduce_for(self, link: OwnerLink, key: PartitionKey) -> None:
        """Introduces members to a coordinator that asks for their books: it is the owner.

        This coordinator may not know that yet. Where the store answers it slowly, the time-outs of
        its members would end at the new owner first.
        """
        group = self.groups.get(key.group_id)
        if group is None:
            return
        log_ids = log_ids_of(key)
        for session in group.sessions.values():
            away = session.away
            if away is None or session.channel is None or session.comparison.pending:
                continue
            if key.served in session.topics or not log_ids.isdisjoint(away.books):
                away.told.add(link.owner_id)
                self._introduce_to(link, group, session)

    def _answer_books(self, link: OwnerLink, item: AskLockBooks) -> None:
        self.compares(item.key, item.owner_epoch)
        self._introduce_for(link, item.key)
        log_ids = log_ids_of(item.key)
        held: dict[int, Sequence[HeldRange]] = {}
        for guest in link.guests.values():
            away = guest.session.away
            if guest.group.group_id != item.key.group_id or away is None:
                continue
            if not log_ids.isdisjoint(away.books):
                held[guest.handle] = away.held_of(item.key)
        link.way.say(LockBooks(item.key, item.owner_epoch, held))


def _owners(group: Group, session: Session) -> set[str]:
    """The owners of the share-partitions that a member wants."""
    return {owner for topic in session.topics for owner in group.owners.get(topic, ())}


def _holders(group: Group, away: Away) -> set[str]:
    """The owners that may count on records of a member, whether it still wants more or not."""
    places = ((name, partition) for name, _, partition in away.books)
    return away.told | {group.elsewhere.get(place, HERE) for place in places}


def _entries(group_id: str, book: LockBook) -> list[LostRange]:
    """The entries of a lock book."""
    return [
        LostRange(key_of(group_id, *log_id), each)
        for log_id, ranges in book.items()
        for each in ranges
    ]


def _unreachable(key: PartitionKey) -> SharecoordError:
    return StoreUnavailableError(
        f"the owner of {key.name}[{key.partition}] can not be reached at the moment",
        retry_after_ms=200,
    )


def _follows_return(guest: _Guest, key: PartitionKey) -> bool:
    """Whether records may follow some that are on their way back to their owner.

    Where the group keeps order, the owner takes back what follows them (docs/decisions/0031), but
    this was sent before it has heard of that.
    """
    keeps_order = guest.group.settings.ordering is not Ordering.UNORDERED
    return keeps_order and guest.returning[key.log_id] > 0
