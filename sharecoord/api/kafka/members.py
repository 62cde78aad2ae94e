"""Members that speak Kafka's protocol: their epochs, their share sessions, what they hold."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.acknowledging import Run
from sharecoord.api.kafka.errors import is_refused
from sharecoord.api.kafka.record_data import fits
from sharecoord.core.changes import LogId, PartitionKey, Place
from sharecoord.core.delivery import Assignment, Delivery, LostRange, PartitionResult
from sharecoord.core.fleet.held_book import HeldBook, LockBook
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    Acknowledgements,
    HeldRange,
    RangeOutcome,
    TakenBack,
)
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType
from sharecoord.errors import SharecoordError, UnsupportedVersionError
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.collector import Collector

EPOCH_MAX: Final = 2**31 - 1
"""The last epoch of a share session; 1 follows (KIP-932)."""

Node = int | None
"""The broker at whose port a member speaks; None = the port stands for no broker of Kafka's."""

IdOf = Callable[[str, str], UUID]
"""Kafka's id of a topic, by its name and the id that the coordinator has for it."""

_NO_TOKEN: Final = 0
_STILL_HELD: Final = (AcknowledgeOutcome.INVALID_REQUEST, AcknowledgeOutcome.RENEW_DISABLED)


@dataclass(eq=False)
class ShareSession:
    """The partitions that a member fetches of one broker, on one connection (KIP-932)."""

    connection: object
    """A session ends with its connection."""
    ended: Callable[[], None] = lambda: None
    """Hears once that the session is over."""
    epoch: int = 1
    """That of the next request."""
    places: set[Place] = field(default_factory=set)
    """The partitions that the member fetches."""
    ids: dict[str, UUID] = field(default_factory=dict)
    """The ids by which it fetches their topics."""
    known: list[tuple[object, ...]] | None = None
    """Ids and partitions of these topics as of the last look which of them the member gets; None
    = it has to be looked again."""
    refused: dict[tuple[UUID, int], ErrorCode] = field(default_factory=dict)
    """By topic id and partition: why it can not be fetched, as of then."""
    wanted_records: int = 0
    """Records that a waiting fetch still wants; 0 = none waits."""
    wanted_bytes: int = 0

    def add(self, topic: str, topic_id: UUID, partitions: Iterable[int]) -> None:
        """The member fetches these partitions, too."""
        added = {(topic, each) for each in partitions}
        if self.ids.get(topic) != topic_id or not added <= self.places:
            self.ids[topic] = topic_id
            self.places |= added
            self.known = None

    def forget(self, topic: str, partitions: Iterable[int]) -> None:
        """The member does not fetch these partitions any more."""
        self.places.difference_update((topic, each) for each in partitions)
        self.known = None

    def fetches(self, key: PartitionKey, id_of: IdOf) -> bool:
        """Whether records of a share-partition are for this session: of the very topic, no lane."""
        is_asked = not key.lane and key.home in self.places
        return is_asked and self.ids[key.topic] == id_of(key.topic, key.topic_id)

    def takes(self, epoch: int) -> bool:
        """Whether a request has the epoch of its turn; if so, the next one is expected."""
        if epoch != self.epoch:
            return False
        self.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
        return True


@dataclass(eq=False)
class KafkaMember:
    """A member, and its `MemberChannel`: deliveries wait for its next ShareFetch."""

    group: GroupActor
    epoch: int = 1
    """Kafka's member epoch. It grows with each change of the assignment; the session's own epoch
    does not fit into it."""
    assignment: Assignment | None = None
    """The one of that epoch."""
    joined: Session | None = None
    """None until the join is stored; nobody finds the member before."""
    shares: dict[Node, ShareSession] = field(default_factory=dict)
    """Its share sessions, by the broker at whose port they are: one, unless Kafka's own brokers are
    shown (`kafka.port.passthrough`)."""
    held: dict[LogId, HeldBook] = field(default_factory=dict)
    """Kafka's acknowledgements have no lock tokens: they are looked up here."""
    waiting: list[Delivery | Relayed] = field(default_factory=list)
    arrived_records: int = 0
    """Sum over all deliveries that have come for the member."""
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    is_leaving: bool = False
    """Whether the member has left the group, and its share session is still open: clients send
    their last acknowledgements after they have left."""
    ended: SharecoordError | None = None
    idle_since_s: float = 0.0
    """Since when the member has had no share session here, by the loop's clock."""
    unsent_since_s: float = math.inf
    """Never a time: nothing is sent unasked."""

    @property
    def session(self) -> Session:
        """The session of the member, which has joined."""
        assert self.joined is not None, "found only after its join"
        return self.joined

    # -- MemberChannel ---------------------------------------------------------------------------

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the deliveries that wait."""
        return sum(each.size_bytes for each in self.waiting)

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Keeps a delivery for the fetch that waits."""
        assert now_ms >= 0, "monotonic"
        self._put(delivery)

    def relay(self, item: Relayed) -> None:
        """Keeps record batches of another coordinator for the fetch that waits."""
        if item.has_batches:
            self._put(item)
            return
        self._hand_back(item)
        self.end(
            UnsupportedVersionError(
                f"the coordinator that owns {item.key.name}[{item.key.partition}] is of a release "
                "without the Kafka port: update all coordinators of the fleet before "
                "kafka.port.listen is set at one"
            )
        )

    def _put(self, delivery: Delivery | Relayed) -> None:
        self.waiting.append(delivery)
        self.arrived_records += delivery.records
        for share in self.shares.values():
            if share.wanted_records and delivery.key.home in share.places:
                share.wanted_records = max(0, share.wanted_records - delivery.records)
        self.arrived.set()

    @property
    def on_way_records(self) -> int:
        """Records that are acquired for the member, and whose commit is not durable yet."""
        return self.session.credit.delivered_records - self.arrived_records

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Locks ended: what waits under them is not fetched, and nothing of them is held."""
        lost = [HeldRange(*taken[1:4]) for taken in ranges]
        tokens = {each.lock_token for each in lost}
        kept: list[Delivery | Relayed] = []
        for each in self.waiting:
            of_key = each.key.log_id == key.log_id
            if of_key and any(one.lock_token in tokens for one in each.ranges):
                self._hand_back(each)
            else:
                kept.append(each)
        self.waiting = kept
        if (book := self.held.get(key.log_id)) is not None:
            for one in lost:
                book.settled(*one)

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Never called: each request has its own collector."""
        raise AssertionError(f"no stream to answer {acknowledge_id} on ({len(results)} results)")

    def assigned(self, assignment: Assignment) -> None:
        """Does nothing: the next heartbeat tells it."""

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """Ends a waiting fetch early, with what there is."""
        self.arrived.set()

    def timed_out(self) -> None:
        """Does nothing: the next fetch is the sign that the application goes on."""

    def end(self, error: SharecoordError | None) -> None:
        """Notes that the member is none any more; its next request hears of it."""
        self.ended = error
        self.arrived.set()

    def cut(self, error: SharecoordError) -> None:
        """Never called: there is no stream that could stall."""
        raise AssertionError(f"no stream to cut: {error}")

    # -- fetches and acknowledgements ------------------------------------------------------------

    @property
    def places(self) -> set[Place]:
        """The partitions that the member fetches of all brokers."""
        return set().union(*(share.places for share in self.shares.values()))

    def waiting_at(self, share: ShareSession) -> list[Delivery | Relayed]:
        """The deliveries that wait for a share session."""
        if len(self.shares) == 1:
            return self.waiting
        return [each for each in self.waiting if each.key.home in share.places]

    def offer_credit(self) -> None:
        """Lets come what the waiting fetches want beyond what is on its way."""
        credit, shares = self.session.credit, self.shares.values()
        records = sum(share.wanted_records for share in shares) - self.on_way_records
        size_bytes = sum(share.wanted_bytes for share in shares if share.wanted_records)
        credit.records = credit.delivered_records + max(0, records)
        credit.size_bytes = credit.delivered_bytes + size_bytes

    def take(self, share: ShareSession, now_ms: int, id_of: IdOf) -> list[Delivery | Relayed]:
        """The deliveries that wait for a share session; from now on the member holds them.

        One of a partition that it fetches no longer, or of a topic that was made again meanwhile,
        goes back unseen. One that can not be in an answer with others waits for the next fetch.
        """
        if share not in self.shares.values():
            # It was closed while its fetch waited, and nothing is left of it.
            return []
        waiting, self.waiting = self.waiting, []
        found = []
        together: dict[LogId, list[Delivery | Relayed]] = {}
        for each in waiting:
            others = together.setdefault(each.key.log_id, [])
            if not share.fetches(each.key, id_of):
                if any(other.fetches(each.key, id_of) for other in self.shares.values()):
                    self.waiting.append(each)
                else:
                    self._hand_back(each)
            elif others and not fits(others, each):
                self.waiting.append(each)
            else:
                others.append(each)
                found.append(each)
        for each in found:
            book = self.held.setdefault(each.key.log_id, HeldBook())
            for one in each.ranges:
                book.put(one.first, one.last, one.lock_token, max(one.deadline_ms, now_ms))
        return found

    def under_tokens(self, log_id: LogId, runs: Sequence[Run]) -> list[AcknowledgedRange]:
        """Acknowledgements under the tokens of the locks that the member holds.

        Other offsets get no token: what is to be said of them is known where their state is.
        """
        book = self.held.get(log_id) or HeldBook()
        found: list[AcknowledgedRange] = []
        for first, last, kind in runs:
            position = first
            for held in book.held_within(first, last):
                if position < held.first:
                    found.append(AcknowledgedRange(position, held.first - 1, kind, _NO_TOKEN))
                found.append(AcknowledgedRange(held.first, held.last, kind, held.lock_token))
                position = held.last + 1
            if position <= last:
                found.append(AcknowledgedRange(position, last, kind, _NO_TOKEN))
        return found

    def acknowledge(self, said: Acknowledgements) -> asyncio.Future[list[PartitionResult]]:
        """Settles what the member says; the results come when they are durable."""
        done: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()

        def settled(results: list[PartitionResult]) -> None:
            outcomes = {result.key.log_id: result for result in results}
            for name, topic_id, partition, ranges in said:
                result = outcomes.get((name, topic_id, partition))
                if result is not None and result.error is None:
                    self._follow((name, topic_id, partition), ranges, result.exceptions)
            if not done.done():
                done.set_result(results)

        self.group.acknowledge(self.session, said, Collector(settled))
        return done

    def _follow(
        self,
        log_id: LogId,
        ranges: Sequence[AcknowledgedRange],
        exceptions: Sequence[RangeOutcome],
    ) -> None:
        """Forgets what is settled, and what was refused: its lock is another one's by now.

        If anything was refused nothing is settled.
        """
        book = self.held.get(log_id)
        if book is None:
            return
        if not is_refused(exceptions):
            for each in ranges:
                if each.type is not AcknowledgeType.RENEW:
                    book.settled(each.first, each.last, each.lock_token)
        for one in exceptions:
            if one.outcome not in _STILL_HELD:
                for held in book.held_within(one.first, one.last):
                    book.settled(*held)
        if not book:
            del self.held[log_id]

    def close_share(self, node: Node) -> None:
        """A share session is over: what the member holds by it is released (KIP-932, T11)."""
        self.end_share(node)
        session, others = self.session, self.places
        gone = {log_id: book for log_id, book in self.held.items()
                if (log_id[0], log_id[2]) not in others}  # fmt: skip
        released = [
            (*log_id, [AcknowledgedRange(*held[:2], AcknowledgeType.RELEASE, held.lock_token)
                       for held in book.held()])
            for log_id, book in gone.items()
        ]  # fmt: skip
        for log_id in gone:
            del self.held[log_id]
        if released and session.channel is self:
            self.group.acknowledge(session, released, Collector(lambda _: None))

    def forget_shares(self) -> None:
        """There is no share session any more; of what the member holds nothing is said."""
        for node in list(self.shares):
            self.end_share(node)

    def end_share(self, node: Node) -> None:
        """A share session is over; what waits for it goes back unseen."""
        share = self.shares.pop(node, None)
        if share is not None:
            share.ended()
        if self.shares:
            self.offer_credit()
        else:
            self.session.credit.use_up()
            self.idle_since_s = asyncio.get_running_loop().time()
        others, waiting, self.waiting = self.places, self.waiting, []
        for each in waiting:
            if each.key.home in others:
                self.waiting.append(each)
            else:
                self._hand_back(each)

    def follow(self, former: KafkaMember, lost: Iterable[LostRange]) -> None:
        """Goes on with the share sessions of the same member, which has joined again.

        Leaving and joining are about the group alone: a member that changes its subscription
        acknowledges what it got before.
        """
        self.shares, self.held = former.shares, former.held
        for share in self.shares.values():
            # The new session has paused nothing yet.
            share.known = None
        for each in lost:
            if (book := self.held.get(each.key.log_id)) is not None:
                book.settled(*each.held)

    def shown(self) -> LockBook:
        """The locks that the member holds, as it would show them at a join."""
        return {log_id: book.held() for log_id, book in self.held.items()}

    def _hand_back(self, delivery: Delivery | Relayed) -> None:
        self.group.hand_back(self.session, delivery.key, delivery.ranges)
