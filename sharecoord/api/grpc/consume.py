"""The Consume stream of a member: its messages in, the outbox out. No rules here."""

from __future__ import annotations

import asyncio
import math

import structlog
from grpc import aio

from sharecoord.api.checks import check_topics
from sharecoord.api.grpc.access import Access
from sharecoord.api.grpc.calls import ServicerContext, abort, parsed, unexpected
from sharecoord.api.grpc.channel import StreamChannel
from sharecoord.api.grpc.validation import join_command, joined_message
from sharecoord.core.delivery import PartitionResult
from sharecoord.core.fleet.held_book import LockBook, lock_book_of
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.collector import Collector
from sharecoord.security.principals import Caller, Credentials
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service

log = structlog.get_logger(__name__)

EOF = aio.EOF  # type: ignore[attr-defined]  # its stubs leave it out


class ConsumeStream(StreamChannel):
    """The two directions of one stream; for the member's session it is the way to the member.

    One task reads, another is there only while there is something to write: of ten thousand
    members nearly all wait, and a task takes 1.5 KB.
    """

    __slots__ = (
        "_access",
        "_caller",
        "_context",
        "_coordinator",
        "_group",
        "_reader",
        "_session",
        "_writer",
        "over",
    )

    def __init__(
        self, coordinator: Coordinator, context: ServicerContext, caller: Caller, access: Access
    ) -> None:
        super().__init__()
        self._access = access
        self._caller = caller
        self._coordinator = coordinator
        self._context = context
        self._group: GroupActor | None = None
        self._session: Session | None = None
        self._reader: asyncio.Task[None] | None = None
        self._writer: asyncio.Task[None] | None = None
        self.over = False
        """Whether the call has ended; an answer that comes later, after its commit, is dropped."""

    async def run(self) -> None:
        """Serves the stream until one side ends it."""
        self._reader = asyncio.current_task()
        try:
            await self._read()
            self._reader = None
            if self._writer is not None:
                await self._writer
            if self.error is not None:
                await abort(self._context, self.error)
        finally:
            self.over = True
            self.forget()
            if self._writer is not None:
                self._writer.cancel()
            group, session = self._group, self._session
            if group is not None and session is not None and session.channel is self:
                group.disconnected(session)

    def _wake(self) -> None:
        if self.over:
            self.forget()
        elif self._writer is None:
            self._writer = asyncio.create_task(self._write(), name="sharecoord-consume")

    async def _write(self) -> None:
        """Writes the queued messages; when the stream is to end, ends the reader as well."""
        context, now_s = self._context, asyncio.get_running_loop().time
        try:
            while (frame := self.take()) is not None:
                self.unsent_since_s = now_s()
                await context.write(frame)
        except Exception as problem:  # noqa: BLE001 - gRPC has no type for it
            # Never the peer: when the call is over, asking for it ends the process (grpcio 1.85).
            log.debug("stream broken", problem=str(problem))
            self.ended = True
        self.unsent_since_s = math.inf
        self._writer = None
        if self.ended and self._reader is not None:
            self._reader.cancel()

    async def _read(self) -> None:
        """Handles messages until the member or the channel ends the stream."""
        error: SharecoordError | None = None
        try:
            while (data := await self._context.read()) is not EOF:
                request = parsed(service.ConsumeRequest, data)
                if self._session is None:
                    await self._join(request)
                elif request.HasField("join"):
                    raise InvalidRequestError(
                        "join stands in a later message of the stream; send it once, in the first"
                    )
                if request.authorization:
                    await self._renew(request.authorization)
                self._handle(request)
                # Frees their memory while this member, one of ten thousand, is silent.
                del data, request
            if self._session is None:
                error = InvalidRequestError("the stream ended before a message with join came")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not self.ended or task is None or task.uncancel():
                raise
            return
        except SharecoordError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - whatever it is, the member must hear of it
            error = unexpected("Consume", problem)
        self.end(error)

    async def _join(self, request: service.ConsumeRequest) -> None:
        if not request.HasField("join"):
            raise InvalidRequestError("the first message of a stream must hold join")
        group_id, command = join_command(request.join, self._caller)
        self._group, session, lost = await self._coordinator.groups.join(group_id, command, self)
        self._session = session
        joined = joined_message(self._coordinator, self._group, session, lost)
        assignment = codec.assignment(self._group.assignment(session))
        self.put(service.ConsumeResponse(joined=joined, assignment=assignment))

    async def _renew(self, authorization: str) -> None:
        """Takes a new credential of the member's principal, before the former one ends."""
        session = self._session
        assert session is not None, "joined"
        shown = Credentials(authorization=authorization)
        caller = await self._access.identified(lambda: shown, self._caller.address, "Consume")
        self._coordinator.groups.admission.recognise(session, caller, "Consume")
        self._caller = caller

    def _handle(self, request: service.ConsumeRequest) -> None:
        group, session = self._group, self._session
        assert group is not None, "joined"
        assert session is not None, "joined"
        if session.channel is not self:
            return
        if request.HasField("credit"):
            credit = request.credit
            session.credit.records = max(session.credit.records, credit.records_total)
            session.credit.size_bytes = max(session.credit.size_bytes, credit.bytes_total)
            group.polled(session)
            group.dispatcher.offer(session)
        if request.acknowledgements:
            self._acknowledge(group, session, request)
        if request.not_polling:
            group.dispatcher.stopped_polling(session)
        if request.polled:
            group.polled(session)
        if request.HasField("subscription"):
            topics = check_topics(list(request.subscription.topics))
            self._coordinator.groups.subscribe(group, session, topics)
        if request.HasField("paused"):
            paused = request.paused.partitions
            group.pause(
                session, frozenset((codec.name_of(each), each.partition) for each in paused)
            )
        if request.leave:
            book = lock_book_of(map(codec.held_range, request.lock_book.held))
            self._leave(group, session, book if request.HasField("lock_book") else None)

    def _acknowledge(
        self, group: GroupActor, session: Session, request: service.ConsumeRequest
    ) -> None:
        acknowledge_id = request.acknowledge_id
        if not acknowledge_id:
            raise InvalidRequestError(
                "acknowledge_id is 0 beside acknowledgements; number them from 1 on, so that the "
                "answers can be told apart"
            )
        items = codec.acknowledgements(request.acknowledgements)
        collector = Collector(lambda results: self._answer(acknowledge_id, results))
        group.acknowledge(
            session,
            items,
            collector,
            busy_us=request.busy_us,
            may_wait=request.may_wait,
            is_sign=not request.not_polling,
        )

    def _answer(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Sends an answer that the member waits for; if that fails, the stream ends."""
        try:
            self.acknowledged(acknowledge_id, results)
        except Exception as problem:  # noqa: BLE001 - whatever it is, the member must hear of it
            self.end(unexpected("Consume", problem))

    def _leave(self, group: GroupActor, session: Session, book: LockBook | None) -> None:
        """Leaves the group, and confirms it once it is durable."""
        group.leave(session, book)

        def left(error: SharecoordError | None) -> None:
            if error is None:
                self.put(service.ConsumeResponse(left=True))
            self.end(error)

        self._coordinator.after_commit(left)
