"""The owner's end of a link: members whose streams another coordinator, their gateway, holds.

Each has a session here like any other, so that dispatch, locks and acknowledgements know nothing of
gateways. Its credit is what its gateway lends.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import structlog

from sharecoord.core.changes import LogId, PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, LostRange, PartitionResult
from sharecoord.core.fleet.held_book import lock_book_of
from sharecoord.core.fleet.peering import (
    AskLockBooks,
    Compared,
    Freed,
    GatewayItem,
    Lend,
    LockBooks,
    Look,
    MemberDown,
    MemberEnd,
    MemberTakenBack,
    MemberUp,
    Relayed,
    Returned,
    Settle,
    Settled,
    TimedOut,
)
from sharecoord.core.partition.decisions import HeldRange, TakenBack
from sharecoord.errors import SharecoordError, StoreUnavailableError
from sharecoord.ports import GatewayWay
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.group.groups import Groups
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.member.session import Hindrance, JoinCommand, Session
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.collector import Collector

log = structlog.get_logger(__name__)


class LentChannel:
    """A `MemberChannel` that leads to the member's gateway."""

    __slots__ = ("_handle", "_link", "_takes_batches")

    def __init__(self, link: GatewayLink, handle: int, *, takes_batches: bool) -> None:
        self._link = link
        self._handle = handle
        self._takes_batches = takes_batches

    @property
    def unsent_bytes(self) -> int:
        """The member's part of the bytes that wait on the link."""
        return self._link.way.unsent_bytes // max(1, self._link.members)

    @property
    def unsent_since_s(self) -> float:
        """Never: the gateway looks at the member's stream."""
        return math.inf

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Sends records whose acquisition is durable."""
        way, clock = self._link.way, self._link.clock
        ends_ms = min(each.deadline_ms for each in delivery.ranges)
        way.say(
            Relayed(
                self._handle,
                delivery.key,
                delivery.ranges,
                delivery.records,
                delivery.size_bytes,
                clock.to_store((now_ms + ends_ms) // 2),
                way.batches(delivery) if self._takes_batches else way.frame(delivery, now_ms),
                self._takes_batches,
            )
        )

    def relay(self, item: Relayed) -> None:
        """Never called: an owner sends records to the gateway alone."""
        raise AssertionError(f"{item.key} is not owned by the gateway of this member")

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Never called: each `Settle` has its own collector."""
        raise AssertionError(f"no stream to answer {acknowledge_id} on ({len(results)} results)")

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Tells the gateway, which passes it on."""
        self._link.way.say(MemberTakenBack(self._handle, key, ranges))

    def assigned(self, assignment: Assignment) -> None:
        """Does nothing: the gateway tells its member."""

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """Does nothing: the gateway finds the next owner by itself."""

    def timed_out(self) -> None:
        """Tells the gateway, which lends again at the next sign of the member."""
        self._link.way.say(TimedOut(self._handle))

    def end(self, error: SharecoordError | None) -> None:
        """Tells the gateway that the member is not served here any more."""
        if error is not None:
            self._link.way.say(MemberEnd(self._handle, error))

    def cut(self, error: SharecoordError) -> None:
        """Never called: see `unsent_since_s`."""
        raise AssertionError(f"the stream of this member is at {self._link.gateway_id}: {error}")


class GatewayLink:
    """All members of one gateway at this owner, from the link's begin to its end."""

    def __init__(
        self,
        context: Context,
        groups: Groups,
        look_now: asyncio.Event,
        gateway_id: str,
        way: GatewayWay,
    ) -> None:
        """The link has just begun; see `greet`. `look_now` is set when the store has news."""
        self.gateway_id = gateway_id
        self.way = way
        self.clock = context.clock
        self._context = context
        self._groups = groups
        self._look_now = look_now
        self._here: dict[int, tuple[GroupActor, Session]] = {}
        self._coming: dict[int, list[GatewayItem]] = {}
        """Items that came about members that are being taken in."""
        self._asked: dict[PartitionKey, int] = {}
        """Owner epochs of the lock books that were asked for and have not come yet."""
        self._told: dict[PartitionKey, int] = {}
        """Owner epochs that the gateway knows of: it takes nothing from former owners any more, so
        its next lock books of these share-partitions are complete."""
        self.began_s = asyncio.get_running_loop().time()
        self.closed = False
        """Whether the link serves no member any more: its carrier should end, too."""

    @property
    def members(self) -> int:
        """Number of members that the gateway has here."""
        return len(self._here)

    def hear(self, item: GatewayItem) -> None:
        """Takes the gateway's next item; after the end of the link it is out of date."""
        if self.closed:
            return
        if isinstance(item, LockBooks):
            self._compare(item)
            return
        if isinstance(item, Freed):
            self._freed(item)
            return
        if isinstance(item, Look):
            self._look_now.set()
            return
        if not isinstance(item, (MemberUp, MemberDown, Lend, Settle)):
            return
        if item.handle in self._coming:
            self._coming[item.handle].append(item)
        elif isinstance(item, MemberUp) and item.handle not in self._here:
            self._coming[item.handle] = []
            work = self._take_in(item, self._epochs(item.group_id))
            self._context.tasks.spawn(work, "peer-member")
        elif item.handle in self._here:
            self._hear_of(*self._here[item.handle], item)

    async def _take_in(self, up: MemberUp, book_epochs: dict[LogId, int]) -> None:
        """Takes in a new member; items about it that came meanwhile are heard after."""
        command = JoinCommand(
            member_id=up.member_id,
            client_id=up.client_id,
            host=up.host,
            topics=up.topics,
            mode=up.mode,
            max_poll_records=up.max_poll_records,
            max_poll_interval_ms=0,
            credit_records=0,
            credit_bytes=0,
            lock_book=_lock_book(up.lock_book),
            book_epochs=book_epochs,
            opens=up.opens,
            takes_batches=up.takes_batches,
            is_atomic=up.is_atomic,
            principal=up.principal,
        )
        channel = LentChannel(self, up.handle, takes_batches=up.takes_batches)
        lost: Sequence[LostRange] = ()
        try:
            group, session, lost = await self._groups.admit(
                up.group_id, command, channel, epoch=up.member_epoch, gateway=self.gateway_id
            )
        except Exception as problem:  # noqa: BLE001 - whatever it is, the gateway must hear of it
            self._coming.pop(up.handle, None)
            channel.end(_refusal(problem))
            return
        waiting = self._coming.pop(up.handle)
        if self.closed:
            group.disconnected(session)
            return
        session.paused = up.paused
        self._here[up.handle] = (group, session)
        self.way.say(Compared(up.handle, lost))
        for item in waiting:
            if isinstance(item, LockBooks):
                self._compare_one(up.handle, item)
            else:
                self.hear(item)
        for place, actor in group.partitions.items():
            if place not in session.comparison.done:
                self.ask_books(actor)

    def _epochs(self, group_id: str) -> dict[LogId, int]:
        """Owner epochs of the share-partitions for which a lock book that comes now is complete."""
        group = self._groups.get(group_id)
        return {
            actor.key.log_id: actor.partition.owner_epoch
            for actor in (group.partitions.values() if group else ())
            if actor.partition is not None
            and self._told.get(actor.key) == actor.partition.owner_epoch
        }

    def _hear_of(
        self, group: GroupActor, session: Session, item: MemberUp | MemberDown | Lend | Settle
    ) -> None:
        if isinstance(item, MemberDown):
            del self._here[item.handle]
            if item.left:
                book = item.lock_book
                group.leave(session, None if book is None else _lock_book(book))
            else:
                group.disconnected(session)
        elif isinstance(item, Lend):
            self._lend(group, session, item)
        elif isinstance(item, Settle):
            self._settle(group, session, item)
        else:
            session.paused, session.mode = item.paused, item.mode
            group.subscribe(session, item.topics)

    def _lend(self, group: GroupActor, session: Session, lend: Lend) -> None:
        if lend.recalls:
            session.credit.use_up()
            self.way.say(Returned(lend.handle, session.credit.records, session.credit.size_bytes))
        else:
            session.credit.records = lend.records_total
            session.credit.size_bytes = lend.bytes_total
            # A gateway that heard of a time-out lends nothing before the member's next sign.
            session.hindrances.discard(Hindrance.TIMED_OUT)
        group.offer(session)

    def _settle(self, group: GroupActor, session: Session, settle: Settle) -> None:
        before = session.totals.acknowledged
        settled = 0

        def answer(results: list[PartitionResult]) -> None:
            (result,) = results
            self.way.say(Settled(settle.handle, settle.relay_id, result, settled))

        key = settle.key
        collector = Collector(answer)
        items = [(key.name, key.topic_id, key.partition, settle.ranges)]
        group.acknowledge(session, items, collector, may_wait=settle.may_wait)
        settled = session.totals.acknowledged - before

    # -- lock books of members whose streams did not break ---------------------------------------

    def greet(self) -> None:
        """Asks for all books: deliveries of former owners may be under way to the gateway."""
        for group in self._groups.values():
            for actor in group.partitions.values():
                self.ask_books(actor)

    def ask_books(self, actor: PartitionActor) -> None:
        """Asks for the books of a share-partition; its members wait for the answer."""
        if actor.partition is None:
            return
        owner_epoch = actor.partition.owner_epoch
        if self._asked.get(actor.key) != owner_epoch:
            self._asked[actor.key] = owner_epoch
            self.way.say(AskLockBooks(actor.key, owner_epoch))

    def forget(self, key: PartitionKey) -> None:
        """A share-partition is not served here any more; a later claim asks anew."""
        self._asked.pop(key, None)
        self._told.pop(key, None)

    def _compare(self, books: LockBooks) -> None:
        if self._asked.get(books.key) == books.owner_epoch:
            # Else the books are of a claim that is over.
            del self._asked[books.key]
            self._told[books.key] = books.owner_epoch
        for waiting in self._coming.values():
            waiting.append(books)
        for handle in self._here:
            self._compare_one(handle, books)

    def _compare_one(self, handle: int, books: LockBooks) -> None:
        group, session = self._here.get(handle, (None, None))
        if group is not None and session is not None and group.group_id == books.key.group_id:
            held = books.held.get(handle, ())
            _compare_book(group, session, books, held)

    def _freed(self, item: Freed) -> None:
        group = self._groups.get(item.key.group_id)
        actor = group.partitions.get(item.key.place) if group else None
        if actor is not None:
            actor.load.freed.set()
        elif group is not None:
            # Its former owner knows of a placement that this coordinator does not know yet.
            self._look_now.set()

    def close(self) -> None:
        """The link is gone: locks stay, sessions end after their timeout."""
        self.closed = True
        for group, session in self._here.values():
            group.disconnected(session)
        self._here.clear()


def _compare_book(
    group: GroupActor, session: Session, books: LockBooks, held: Sequence[HeldRange]
) -> None:
    """Compares what a member holds of a share-partition, as its gateway says."""
    place = books.key.place
    actor = group.partitions.get(place)
    if group.sessions.get(session.member_id) is not session or place in session.comparison.done:
        return
    if actor is None or actor.partition is None:
        return
    if actor.partition.owner_epoch == books.owner_epoch and actor.key == books.key:
        session.comparison.done.add(place)
        lost = actor.compare_lock_book(session, held, is_shown_again=True)
        actor.notices.tell_lost(session.member_id, lost)
        group.offer(session)


def _refusal(problem: Exception) -> SharecoordError:
    """The error for the gateway of a member that could not be taken in."""
    if isinstance(problem, SharecoordError):
        return problem
    log.error("a member of another coordinator could not be taken in", exc_info=problem)
    said = "the member could not be taken in by a mistake of this coordinator; its log says which"
    return StoreUnavailableError(said, retry_after_ms=1000)


def _lock_book(entries: Sequence[LostRange]) -> dict[LogId, list[HeldRange]]:
    return lock_book_of((entry.key.log_id, entry.held) for entry in entries)
