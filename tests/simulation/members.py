"""Members of a simulation: a small SDK each, a network between it and its coordinator, a character.

A stream keeps the order of messages and delays them; it breaks as a whole, at either end, and the
other end hears of it later or never. What was on its way then is lost.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, LostRange, PartitionResult
from sharecoord.core.fleet.held_book import lock_book_of
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import AcknowledgedRange, HeldRange, TakenBack
from sharecoord.core.states import AcknowledgeType, AcquireMode
from sharecoord.errors import SharecoordError, UnknownMemberError
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import JoinCommand, Session
from sharecoord.runtime.partition.collector import Collector
from sharecoord.testing.ledger import BookEntry
from tests.simulation.environment import GROUP
from tests.simulation.fleet import Node
from tests.simulation.judges.judge import Judge, Said
from tests.simulation.network import Pipe

ANSWER_TIMEOUT_S = 6.0
"""A member gives its stream up when an answer takes longer."""

KEEPALIVE_S = 20.0
"""A coordinator notices at last by then that a member's machine is gone."""

Trace = Callable[[str], None]
Ranges = list[AcknowledgedRange]


class Stream:
    """One Consume stream, both ends of it; for the coordinator the `MemberChannel`."""

    def __init__(self, member: SimMember, node: Node, chance: random.Random) -> None:
        self.unsent_bytes = 0
        self.unsent_since_s = math.inf
        self.node = node
        self.joined = False
        self.group: GroupActor | None = None
        self.session: Session | None = None
        self._member = member
        delay_s = chance.choice((0.0, 0.0, 0.001, 0.02, 0.2))
        self._up = Pipe(node.process.context, delay_s)
        self._down = Pipe(node.fleet.outside, delay_s)
        self._loop = asyncio.get_running_loop()
        self._joining: asyncio.Task[None] | None = None

    # -- the network ----------------------------------------------------------------------------

    def up(self, call: Callable[..., object], *args: object) -> None:
        """Sends something to the coordinator."""
        self._up.send(call, *args)

    def break_off(self, told_s: float) -> None:
        """Breaks; the coordinator hears of it after so long."""
        self._up.lost = self._down.lost = True
        self._loop.call_later(told_s, self.ended_here, context=self.node.process.context)

    # -- the coordinator's end ------------------------------------------------------------------

    def join(self, command: JoinCommand) -> None:
        """A join arrives."""
        self._joining = asyncio.create_task(self._join(command), name="join")

    async def _join(self, command: JoinCommand) -> None:
        coordinator = self.node.coordinator
        assert coordinator is not None, "ready"
        lost: list[LostRange] = []
        try:
            group_id = self._member.wishes.group_id
            self.group, self.session, lost = await coordinator.groups.join(group_id, command, self)
        except SharecoordError as error:
            self._down.send(self._member.refused, self, error)
            return
        if self._up.lost:
            # Its first word meets nobody. See docs/simulation.md, "What it does not cover".
            self.ended_here()
            return
        self._down.send(self._member.joined, self, lost)

    def acknowledge(self, number: int, items: list[tuple[PartitionKey, Ranges]]) -> None:
        """Acknowledgements arrive."""
        group, session = self.group, self.session
        if group is None or session is None or session.channel is not self:
            return
        collector = Collector(
            lambda results: self._down.send(self._member.answered, number, results)
        )
        said = [(k.name, k.topic_id, k.partition, ranges) for k, ranges in items]
        group.acknowledge(session, said, collector, may_wait=number % 2 == 0)

    def credit(self, records_total: int) -> None:
        """More credit arrives."""
        group, session = self.group, self.session
        if group is not None and session is not None and session.channel is self:
            session.credit.records = max(session.credit.records, records_total)
            group.polled(session)
            group.dispatcher.offer(session)

    def pause(self, places: frozenset[tuple[str, int]]) -> None:
        """The member wants nothing of these."""
        group, session = self.group, self.session
        if group is not None and session is not None and session.channel is self:
            group.pause(session, places)

    def subscribe(self, topics: Sequence[str]) -> None:
        """The member wants other topics."""
        group, session = self.group, self.session
        if group is not None and session is not None and session.channel is self:
            group.subscribe(session, topics)
            assert self.node.coordinator is not None, "joined"
            self.node.coordinator.groups.subscription_changed(group, session)

    def leave(self, book: Sequence[BookEntry] | None) -> None:
        """The member goes."""
        group, session = self.group, self.session
        if group is None or session is None or session.channel is not self:
            return
        group.leave(session, None if book is None else lock_book_of(book))

    def ended_here(self) -> None:
        """The coordinator notices that the stream is gone."""
        if self._joining is not None:
            self._joining.cancel()
        if self.group is not None and self.session is not None and self.session.channel is self:
            self.group.disconnected(self.session)

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """As of `MemberChannel`; on the wire go the milliseconds that are left."""
        here_ms = int(self._loop.time() * 1000)
        deadlines = [here_ms + acquired.deadline_ms - now_ms for acquired in delivery.ranges]
        self._down.send(self._member.delivered, self, delivery, deadlines)

    def relay(self, item: Relayed) -> None:
        """Another coordinator's delivery, in the form that its end of the link made of it."""
        assert isinstance(item.frame, tuple), "made by a link of this network"
        self._down.send(self._member.delivered, self, *item.frame)

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Not used: answers go through the collector."""

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Locks ended without the member's word."""
        self._down.send(self._member.taken_back, self, key, ranges)

    def assigned(self, assignment: Assignment) -> None:
        """Members take what comes."""

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """The coordinator goes."""
        self._down.send(self._member.drained, self)

    def end(self, error: SharecoordError | None) -> None:
        """The coordinator ends it."""
        self._down.send(self._member.ended, self, error)
        self._loop.call_soon(self.ended_here)

    def cut(self, error: SharecoordError) -> None:
        """It is not read."""
        self.end(error)


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a member asks for when it joins."""

    topics: tuple[str, ...]
    mode: AcquireMode
    most: int
    """`max_poll_records`; 0 = not given."""
    credit: int
    group_id: str = GROUP


class SimMember:
    """The member's end: what it believes to hold, what it said and was not answered."""

    def __init__(
        self, name: str, judge: Judge, chance: random.Random, wishes: Wishes, trace: Trace
    ) -> None:
        self.name = name
        self.wishes = wishes
        self.judge = judge
        self.stream: Stream | None = None
        self.inbox: list[Delivery] = []
        self.gone = False
        self.book: dict[PartitionKey, dict[int, int]] = {}
        self._chance = chance
        self._trace = trace
        self._credit = 0
        self.has_left = False
        self._joins = 0
        self._numbers = itertools.count(1)
        self._open: dict[int, dict[PartitionKey, Said]] = {}
        self._answers: dict[int, list[PartitionResult]] = {}
        self._wake = asyncio.Event()

    # -- what comes -----------------------------------------------------------------------------

    def joined(self, stream: Stream, lost: list[LostRange]) -> None:
        """The coordinator took it in."""
        if stream is not self.stream:
            return
        stream.joined = True
        if not self.has_left:
            self.judge.joined(self.name, stream, stream.node.name)
            if stream.node.process.frozen:  # The answer was under way when it stood still.
                self.judge.silent(self.name)
        self._trace(f"{self.name} joined {stream.node.name}, lost {len(lost)} ranges")
        for entry in lost:
            self.judge.lost(self.name, entry.key, entry.held)
            for offset in range(entry.held.first, entry.held.last + 1):
                self._forget(entry.key, offset, entry.held.lock_token)
        self._wake.set()

    def refused(self, stream: Stream, error: SharecoordError) -> None:
        """The coordinator did not take it in."""
        self.ended(stream, error)

    def delivered(self, stream: Stream, delivery: Delivery, deadlines_ms: list[int]) -> None:
        """Records; one that leaves does not look at them any more."""
        if self.has_left:
            return
        self._trace(f"{self.name} gets {_shown(delivery)}")
        self.judge.arrived(self.name, stream, delivery, deadlines_ms)
        held = self.book.setdefault(delivery.key, {})
        for acquired in delivery.ranges:
            for offset in range(acquired.first, acquired.last + 1):
                held[offset] = acquired.lock_token
        self.inbox.append(delivery)
        self._wake.set()

    def taken_back(self, stream: Stream, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Locks ended without its word."""
        if stream is not self.stream or self.has_left:
            return
        for each in ranges:
            self._trace(f"{self.name} loses {key.name}[{key.partition}] {each}")
            self.judge.lost(self.name, key, HeldRange(*each[1:4]))
            for offset in range(each.first, each.last + 1):
                self._forget(key, offset, each.lock_token)

    def answered(self, number: int, results: list[PartitionResult]) -> None:
        """An answer; the same one may come twice."""
        said = self._open.pop(number, None)
        if said is None:
            return
        for result in results:
            about = said.get(result.key)
            if about is not None:
                self.judge.answered(about, result)
                self._settle(result, about)
        self._answers[number] = results
        for result in results:
            self._trace(f"{self.name} hears #{number} {result.error or result.exceptions or 'OK'}")
        self._wake.set()

    def _settle(self, result: PartitionResult, said: Said) -> None:
        if result.error is not None:
            return
        bad = {o for e in result.exceptions for o in range(e.first, e.last + 1)}
        for item in said.ranges:
            for offset in range(item.first, item.last + 1):
                if item.type is not AcknowledgeType.RENEW or offset in bad:
                    self._forget(result.key, offset, item.lock_token)

    def _forget(self, key: PartitionKey, offset: int, token: int) -> None:
        held = self.book.get(key, {})
        if held.get(offset) == token:
            del held[offset]

    def drained(self, stream: Stream) -> None:
        """The coordinator goes: what nobody has looked at goes back, then elsewhere."""
        if stream is not self.stream:
            return
        for delivery in self.inbox:
            self.say(delivery.key, _ranges(delivery, AcknowledgeType.RETURN))
        self.inbox.clear()
        asyncio.get_running_loop().call_later(0.1, self.break_off, stream)

    def ended(self, stream: Stream, error: SharecoordError | None) -> None:
        """The coordinator ended the stream, or it broke."""
        if stream is self.stream:
            self._trace(f"{self.name}: stream to {stream.node.name} ended: {error!r}")
            if isinstance(error, UnknownMemberError):
                self.judge.session_ended(self.name)
            self.break_off(stream)

    # -- what it does ---------------------------------------------------------------------------

    def break_off(self, stream: Stream | None = None, *, told_s: float = 0.05) -> None:
        """Gives its stream up."""
        if self.stream is None or (stream is not None and stream is not self.stream):
            return
        self.stream.break_off(told_s)
        self.stream = None
        self.inbox.clear()
        self.judge.silent(self.name)
        self._wake.set()

    @property
    def unanswered(self) -> list[int]:
        """Requests on its stream that nobody has answered."""
        return sorted(self._open)

    def forget_all(self) -> None:
        """Its process dies: it does not know any more what it held."""
        self.break_off(told_s=self._chance.choice((0.0, 0.5, KEEPALIVE_S)))
        self.book.clear()
        self._open.clear()

    def lock_book(self) -> list[BookEntry]:
        """What it believes to hold."""
        return [(key.log_id, held) for key, tokens in self.book.items() for held in _runs(tokens)]

    async def connect(self, node: Node) -> bool:
        """Joins at a coordinator; says whether it came in."""
        self.break_off()
        self.has_left = False
        self._joins += 1
        stream = self.stream = Stream(self, node, self._chance)
        book, wishes = self.lock_book(), self.wishes
        self._credit = wishes.credit
        strict = wishes.mode is not AcquireMode.BATCH_OPTIMIZED
        self.judge.joining(
            self.name, stream, book, credit=wishes.credit, most=wishes.most, strict=strict
        )
        command = JoinCommand(
            self.name,
            f"client-{self.name}",
            "sim:0",
            wishes.topics,
            wishes.mode,
            wishes.most,
            300_000,
            wishes.credit,
            1 << 40,
            lock_book_of(book),
            join_number=self._joins,
        )
        stream.up(stream.join, command)
        await self._until(lambda: self.stream is not stream or stream.joined)
        if self.stream is not stream or not stream.joined:
            self.break_off(stream)
            return False
        self._say_again()
        return True

    def _say_again(self) -> None:
        """What was said and not answered is said again, as far as the locks are still its own."""
        unanswered, self._open = self._open, {}
        for said in [s for by_key in unanswered.values() for s in by_key.items()]:
            key, held = said[0], self.book.get(said[0], {})
            ranges = [
                item
                for item in said[1].ranges
                if item.first <= item.last
                and all(held.get(o) == item.lock_token for o in range(item.first, item.last + 1))
            ]
            if ranges and self._chance.random() < 0.8:
                self.say(key, ranges)

    async def _until(self, holds: Callable[[], bool], timeout_s: float = ANSWER_TIMEOUT_S) -> bool:
        """Waits; says whether it holds now."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while not holds():
            self._wake.clear()
            try:
                async with asyncio.timeout_at(end_s):
                    await self._wake.wait()
            except TimeoutError:
                return holds()
        return True

    def say(self, key: PartitionKey, ranges: Ranges) -> int:
        """Sends acknowledgements; returns their number (0 = there is no stream)."""
        return self.say_all([(key, ranges)])

    def say_all(self, items: list[tuple[PartitionKey, Ranges]], *, twice: bool = False) -> int:
        """The same for several share-partitions; `twice` = the request is repeated."""
        stream = self.stream
        if stream is None or not stream.joined:
            return 0
        number = next(self._numbers)
        self._open[number] = {k: self.judge.said(self.name, k, ranges) for k, ranges in items}
        for key, ranges in items:
            self._trace(f"{self.name} says #{number} {_said(key, ranges)}")
        for _ in range(1 + twice):
            stream.up(stream.acknowledge, number, items)
        return number

    async def answer(self, number: int) -> list[PartitionResult] | None:
        """The answer; None = there was none in time, the stream is given up."""
        stream = self.stream
        if not number:
            return None
        await self._until(lambda: number in self._answers or self.stream is not stream)
        results = self._answers.pop(number, None)
        if results is None and self.stream is stream:
            self.break_off(stream)
        return results

    async def settle(self, delivery: Delivery, kind: AcknowledgeType, **how: int) -> None:
        """Says something of a delivery, again while the answer says that a retry helps."""
        for _ in range(20):
            results = await self.answer(self.say(delivery.key, _ranges(delivery, kind, **how)))
            error = results[0].error if results else None
            if error is None or not error.retriable:
                return
            await asyncio.sleep((error.retry_after_ms or 100) / 1000)

    def accept(self, delivery: Delivery) -> None:
        """Accepts, and waits for no answer: what was not taken comes again."""
        self.say(delivery.key, _ranges(delivery, AcknowledgeType.ACCEPT))

    async def next_delivery(self) -> Delivery | None:
        """The next one; None = the stream is gone."""
        stream = self.stream
        await self._until(lambda: bool(self.inbox) or self.stream is not stream, 1e9)
        if self.stream is not stream or stream is None:
            return None
        delivery = self.inbox.pop(0)
        self._credit += delivery.records
        self.judge.credit(stream, self._credit)
        stream.up(stream.credit, self._credit)
        return delivery

    def leave(self) -> None:
        """Goes in good order."""
        self.has_left = True
        book = self.lock_book() if self._chance.random() < 0.5 else None
        self.judge.gone(self.name, book)
        self.book.clear()
        self._trace(f"{self.name} leaves")
        if self.stream is not None:
            self.stream.up(self.stream.leave, book)
            stream = self.stream
            asyncio.get_running_loop().call_later(0.5, self.break_off, stream)


def _ranges(
    delivery: Delivery,
    kind: AcknowledgeType,
    *,
    first: int = 0,
    last: int = 1 << 60,
    delay_ms: int = 0,
) -> Ranges:
    """What to say of (a part of) a delivery."""
    return [
        AcknowledgedRange(max(first, r.first), min(last, r.last), kind, r.lock_token, delay_ms)
        for r in delivery.ranges
        if r.last >= first and r.first <= last
    ]


def _runs(tokens: dict[int, int]) -> list[HeldRange]:
    """Consecutive offsets under one token."""
    runs: list[HeldRange] = []
    for offset in sorted(tokens):
        token = tokens[offset]
        if runs and runs[-1].last == offset - 1 and runs[-1].lock_token == token:
            runs[-1] = runs[-1]._replace(last=offset)
        else:
            runs.append(HeldRange(offset, offset, token))
    return runs


def _said(key: PartitionKey, ranges: Ranges) -> str:
    texts = [f"{r.type.name} {r.first}-{r.last} {r.lock_token:x}" for r in ranges]
    return f"{key.name}[{key.partition}] {', '.join(texts)}"


def _shown(delivery: Delivery) -> str:
    key = delivery.key
    ranges = ", ".join(
        f"{r.first}-{r.last} {r.delivery_count}x {r.lock_token:x}" for r in delivery.ranges
    )
    return f"{key.name}[{key.partition}] {ranges}"
