"""Programs of a simulation: the SDK's own rules (`sharecoord_sdk._core`) on a simulated network.

A program polls, works and acknowledges as an application does, by the SDK's real core; its stream
ends in the real front (`api/grpc/consume.py`). What reaches the program itself, not only its
process, is told to the judge (`Judge.given`).
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sharecoord_sdk import AcknowledgeType, KafkaException
from sharecoord_sdk._core import frames
from sharecoord_sdk._core.columns import AckDetails, Columns, PartitionKey, Span
from sharecoord_sdk._core.config import read_config
from sharecoord_sdk._core.core import Connection, ConsumerCore
from sharecoord_sdk._core.status import StreamFailure
from sharecoord_sdk._proto import share_service_pb2 as service
from sharecoord_sdk._proto import share_types_pb2 as types

from sharecoord.api.grpc.consume import EOF, ConsumeStream
from sharecoord.core.changes import PartitionKey as LogKey
from sharecoord.core.changes import key_of
from sharecoord.core.delivery import Delivery, Slice
from sharecoord.core.fleet.peering import Relayed, Settled
from sharecoord.core.partition.decisions import AcquiredRange, HeldRange
from sharecoord.core.records import ColumnChunk
from sharecoord.errors import SharecoordError, UnknownMemberError
from sharecoord.security.principals import Caller
from sharecoord.wire import codec, peer_codec
from sharecoord.wire import peer_service_pb2 as peer
from tests.access import access_of
from tests.simulation.environment import GROUP
from tests.simulation.fleet import Node
from tests.simulation.judges.judge import Judge, Said
from tests.simulation.network import Pipe

POLL_S: Final = 0.2
COMMIT_S: Final = 6.0
OWNER: Final = object()
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT


class _EndedError(Exception):
    """The front has ended the call."""


class _Front(ConsumeStream):
    """The coordinator's end of a stream."""

    __slots__ = ()

    def relay(self, item: Relayed) -> None:
        """Another coordinator's delivery, which links of this network carry as it is."""
        assert isinstance(item.frame, tuple), "made by a link of this network"
        delivery, deadlines_ms = item.frame
        here_ms = int(asyncio.get_running_loop().time() * 1000)
        self.deliver(delivery, delivery.ranges[0].deadline_ms - deadlines_ms[0] + here_ms)


class ProgramStream:
    """A stream of a program, both ends; towards the front it is the call's context."""

    def __init__(self, program: Program, node: Node, generation: int, delay_s: float) -> None:
        self.node = node
        self.generation = generation
        self.joined = False
        self._program = program
        self._up = Pipe(node.process.context, delay_s)
        self._down = Pipe(node.fleet.outside, delay_s)
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        self._call: asyncio.Task[None] | None = None

    def send(self, request: service.ConsumeRequest) -> None:
        """The program's end."""
        self._up.send(self._came, request.SerializeToString())

    def break_off(self, told_s: float) -> None:
        """Breaks; the coordinator hears of it after so long."""
        self._up.lost = self._down.lost = True
        loop = asyncio.get_running_loop()
        loop.call_later(told_s, self._broken, context=self.node.process.context)

    def _came(self, data: bytes) -> None:
        self._requests.put_nowait(data)
        if self._call is None:
            assert self.node.coordinator is not None, "ready"
            context: Any = self
            coordinator = self.node.coordinator
            front = _Front(coordinator, context, Caller(), access_of(coordinator))
            self._call = asyncio.create_task(self._serve(front), name="consume")

    async def _serve(self, front: _Front) -> None:
        with contextlib.suppress(_EndedError):
            await front.run()
            self._down.send(self._program.over, self, StreamFailure("OK", "ended"))

    def _broken(self) -> None:
        if self._call is not None:
            self._call.cancel()

    # -- the call's context ---------------------------------------------------------------------

    def peer(self) -> str:
        """Where the program is."""
        return "sim:program:0"

    async def read(self) -> Any:
        """The next request."""
        return EOF if self._up.lost else await self._requests.get()

    async def write(self, frame: bytes) -> None:
        """The next response."""
        sent_s = asyncio.get_running_loop().time()
        self._down.send(self._program.heard, self, frame, sent_s)

    async def abort(self, code: Any, details: str, metadata: Any) -> None:
        """The call ends with an error."""
        found = dict(metadata)
        failure = StreamFailure(code.name, details, str(found.get("sharecoord-reason", "")))
        self._down.send(self._program.over, self, failure)
        raise _EndedError


class Program:
    """An application with a consumer.

    Args:
        name: Its member id.
        judge: Hears what it gets and says.
        chance: Decides what it does.
        topics: What it subscribes to.
        nodes: The coordinators that can be reached.
        explicit: The acknowledgement mode.
        most: `max.poll.records`.
        lock_s: How long a lock lasts.
        trace: Gets a line for each event.
    """

    def __init__(
        self,
        name: str,
        judge: Judge,
        chance: random.Random,
        topics: tuple[str, ...],
        nodes: Callable[[], list[Node]],
        *,
        explicit: bool,
        most: int,
        lock_s: float,
        trace: Callable[[str], None],
    ) -> None:
        self.name = name
        self.explicit = explicit
        self.stream: ProgramStream | None = None
        self._judge, self._chance, self._nodes, self._trace = judge, chance, nodes, trace
        self._topics, self._lock_s = topics, lock_s
        config = {
            "group.id": GROUP,
            "bootstrap.servers": "sim:1",
            "share.acknowledgement.mode": "explicit" if self.explicit else "implicit",
            "max.poll.records": most,
        }
        self._core = ConsumerCore(read_config((config,), {}), name, chance.random)
        self._said: dict[int, dict[LogKey, Said]] = {}
        self._wake = asyncio.Event()
        self.has_left = False
        judge.programs[name] = self.explicit

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()

    # -- the application ------------------------------------------------------------------------

    async def live(self) -> None:
        """Polls and works, for ever."""
        core = self._core
        core.subscribe(list(self._topics), self._now())
        while True:
            try:
                core.check_poll()
                core.check_interval(self._now())
                core.begin_poll(self._now())
                spans = await self._poll()
            except KafkaException as error:
                self._trace(f"{self.name}: {error!r}")
                await self._works(1.0)
                continue
            if spans:
                self._gets(spans)
                await self._treats(spans)

    async def _poll(self) -> list[Span]:
        core, end_s = self._core, self._now() + self._chance.choice((0.0, 0.5, 5.0))
        while True:
            core.raise_error()
            hand_out = core.take(self._now(), OWNER)
            spans = hand_out.spans
            core.flush(self._now(), polling=True)
            self._drive()
            hand_out.given = sum(map(len, spans))
            core.locks.note_given(at_rest=True)
            if spans or self._now() >= end_s:
                if not spans:
                    # A poll that does not wait must not stop the clock.
                    await asyncio.sleep(0.01)
                return spans
            await self._wait(min(POLL_S, end_s - self._now()))

    def _gets(self, spans: list[Span]) -> None:
        for span in spans:
            key, token = _log_key(span.columns.key), span.lock.token
            self._trace(f"{self.name} is given {key.name}[{key.partition}] {span.offsets()}")
            for offset in span.offsets():
                self._judge.given(self.name, key, offset, token)

    async def _treats(self, spans: list[Span]) -> None:
        """Works on what it got, then says something of each record in explicit mode."""
        chance, core = self._chance, self._core
        share = chance.choice((0.0, 0.0, 0.0, 0.01, 0.1, 0.6, 1.2))
        await self._works(share * self._lock_s)
        for span in spans if self.explicit else ():
            for row in range(span.start, span.stop):
                self._says(span, row)
        if chance.random() < 0.6:
            ticket = core.begin_commit(self._now())
            end_s = self._now() + COMMIT_S
            while not ticket.is_done and self._now() < end_s:
                core.hand_back_unseen(self._now())
                core.flush(self._now())
                self._drive()
                await self._wait(POLL_S)
            ticket.time_out()

    def _says(self, span: Span, row: int) -> None:
        columns = span.columns
        if columns.states[row] > AcknowledgeType.RENEW:
            columns.states[row] = 251  # It was lost: the SDK says so when it is acknowledged.
            return
        what = self._chance.random()
        kind = ACCEPT if what < 0.75 else RELEASE if what < 0.95 else REJECT
        columns.states[row] = kind
        if kind is not RELEASE:
            key = _log_key(columns.key)
            self._judge.done(key, columns.offset_at(row), span.lock.token)
        if kind is RELEASE and self._chance.random() < 0.5:
            columns.details = {
                **(columns.details or {}),
                row: AckDetails(self._chance.randint(1, 900)),
            }

    async def _works(self, seconds: float) -> None:
        """Lets time pass; the shell's clock hands back what waits for too long."""
        end_s = self._now() + seconds
        while (now := self._now()) < end_s:
            at = min(end_s, max(self._core.hand_back_unseen_at, now))
            await self._wait(max(0.0005, min(at - now, 1.0)))
            self._core.hand_back_unseen(self._now())
            self._send_outbox()

    async def _wait(self, seconds: float) -> None:
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    # -- the shell ------------------------------------------------------------------------------

    def _drive(self) -> None:
        core, now = self._core, self._now()
        core.tick(now)
        connection = core.connect(now)
        if connection is not None:
            self._open(connection)
        self._send_outbox()
        while core.notices:
            self._trace(f"{self.name}: {core.notices.popleft().text}")

    def _send_outbox(self) -> None:
        for request in self._core.take_outbox():
            self._send(request)

    def _open(self, connection: Connection) -> None:
        self._cut(0.05)
        nodes = self._nodes()
        if not nodes:
            failure = StreamFailure("UNAVAILABLE", "nobody is there")
            self._core.stream_ended(connection.generation, failure, self._now())
            return
        delay_s = self._chance.choice((0.0, 0.0, 0.001, 0.02, 0.2))
        node = self._chance.choice(nodes)
        self.stream = ProgramStream(self, node, connection.generation, delay_s)
        self._said.clear()
        for request in connection.requests:
            self._send(request)

    def _send(self, request: service.ConsumeRequest) -> None:
        stream, judge = self.stream, self._judge
        if stream is None:
            return
        if request.HasField("join"):
            book = [codec.held_range(each) for each in request.join.lock_book]
            credit, most = request.join.credit.records_total, request.join.max_poll_records
            judge.joining(self.name, stream, book, credit=credit, most=most, strict=True)
        if request.HasField("credit"):
            judge.credit(stream, request.credit.records_total)
        if request.acknowledge_id:
            said = self._said[request.acknowledge_id] = {}
            for name, topic_id, partition, ranges in codec.acknowledgements(
                request.acknowledgements
            ):
                key = key_of(GROUP, name, topic_id, partition)
                said[key] = judge.said(self.name, key, ranges)
        if request.leave:
            self.has_left = True
            judge.gone(self.name, [codec.held_range(each) for each in request.lock_book.held])
        stream.send(request)

    # -- what comes -----------------------------------------------------------------------------

    def heard(self, stream: ProgramStream, frame: bytes, sent_s: float) -> None:
        """A message of the coordinator: the judge hears of it first."""
        if stream is not self.stream:
            return
        if not self.has_left:
            self._tell(stream, service.ConsumeResponse.FromString(frame), sent_s)
        self._core.received(stream.generation, frames.read(frame), self._now())
        self._wake.set()

    def _tell(
        self, stream: ProgramStream, response: service.ConsumeResponse, sent_s: float
    ) -> None:
        """What the judge hears of a message; one that leaves does not look at records any more."""
        judge = self._judge
        if response.HasField("joined"):
            stream.joined = True
            judge.joined(self.name, stream, stream.node.name)
            if stream.node.process.frozen:
                judge.silent(self.name)
            for lost in response.joined.lost:
                judge.lost(self.name, *_lost(lost.partition, lost))
        for batch in response.batches:
            judge.arrived(self.name, stream, *_delivery(batch, sent_s))
        for notice in response.taken_back:
            for taken in notice.ranges:
                self._trace(f"{self.name} loses {_place(notice.partition)} {taken}")
                judge.lost(self.name, *_lost(notice.partition, taken))
        for result in response.results:
            self._answered(result)

    def _answered(self, result: service.AcknowledgeResult) -> None:
        said = self._said.pop(result.acknowledge_id, {})
        for outcome in result.outcomes:
            item = peer.OwnerItem(settled=peer.Settled(outcome=outcome))
            (settled,) = peer_codec.owner_items(peer.OwnerMessage(items=[item]))
            assert isinstance(settled, Settled), "made so"
            found = settled.result
            key = replace(found.key, group_id=GROUP)
            if key in said:
                found.key = key
                self._judge.answered(said[key], found)

    def over(self, stream: ProgramStream, failure: StreamFailure) -> None:
        """The coordinator ended the stream."""
        if stream is self.stream:
            self._trace(f"{self.name}: {failure}")
            if failure.reason == UnknownMemberError.reason:
                self._judge.session_ended(self.name)
            self._lost_stream(failure)

    def ended(self, stream: object, error: SharecoordError | None) -> None:
        """The stream broke, as its coordinator died."""
        if stream is self.stream:
            self._lost_stream(StreamFailure("UNAVAILABLE", f"{error!r}"))

    def break_off(self, *, told_s: float = 0.05) -> None:
        """The network fails."""
        if self.stream is not None:
            self._cut(told_s)
            self._core.stream_ended(
                self._core.link.generation, StreamFailure("UNAVAILABLE", "cut"), self._now()
            )
            self._wake.set()

    def _lost_stream(self, failure: StreamFailure) -> None:
        stream = self.stream
        assert stream is not None, "it ends"
        self._cut(0.05)
        self._core.stream_ended(stream.generation, failure, self._now())
        self._wake.set()

    def _cut(self, told_s: float) -> None:
        if self.stream is not None:
            self.stream.break_off(told_s)
            self.stream = None
            self._judge.silent(self.name)

    # -- the end --------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Closes its consumer, as far as somebody answers."""
        core = self._core
        core.begin_close(self._now(), within_s=COMMIT_S)
        end_s = self._now() + COMMIT_S
        while not core.is_close_done and self._now() < end_s:
            core.flush(self._now())
            self._drive()
            await self._wait(POLL_S)
        self._cut(0.05)


def _log_key(key: PartitionKey) -> LogKey:
    return _key(key.to_wire())


def _key(place: types.TopicPartition) -> LogKey:
    return key_of(GROUP, codec.name_of(place), place.topic_id.hex(), place.partition)


def _place(place: types.TopicPartition) -> str:
    return f"{codec.name_of(place)}[{place.partition}]"


def _lost(
    place: types.TopicPartition, lost: types.HeldRange | service.TakenBackRange
) -> tuple[LogKey, HeldRange]:
    return _key(place), HeldRange(lost.first_offset, lost.last_offset, lost.lock_token)


def _delivery(batch: types.RecordBatch, sent_s: float) -> tuple[Delivery, list[int]]:
    """A batch as the judge knows deliveries, and until when its locks last."""
    key = _key(batch.partition)
    columns = Columns(batch, PartitionKey.of(batch.partition), sent_s, batch.whole_batches)
    columns.unpack()
    offsets = [columns.offset_at(row) for row in range(columns.count)]
    ends = offsets[0], offsets[-1]
    chunk = ColumnChunk(offsets[0], *ends, offsets, [], 0, None, columns.values, {}, 0)
    ranges = [
        AcquiredRange(r.first_offset, r.last_offset, r.delivery_count, r.lock_token, 0)
        for r in batch.ranges
    ]
    kept = [(offsets[each.index], each.data) for each in batch.checkpoints]
    slices = [Slice(chunk, 0, columns.count)]
    delivery = Delivery(key, slices, ranges, columns.count, batch.credit_bytes, kept)
    left = [math.floor(sent_s * 1000) + r.lock_remaining_ms for r in batch.ranges]
    return delivery, left
