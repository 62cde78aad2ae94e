"""One Consume stream: the member's messages in, the outbox out. No rules here."""

from __future__ import annotations

import asyncio

from grpc import aio

from sharecoord import __version__
from sharecoord.api.grpc.calls import ServicerContext, abort, host_of, unexpected
from sharecoord.api.grpc.channel import StreamChannel
from sharecoord.api.grpc.validation import check_topics, join_command
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.effects import Collector
from sharecoord.runtime.group_actor import GroupActor
from sharecoord.runtime.sessions import Session
from sharecoord.wire import PROTOCOL_VERSION, codec
from sharecoord.wire import share_service_pb2 as service

EOF = aio.EOF  # type: ignore[attr-defined]  # its stubs leave it out


class ConsumeStream:
    """The two directions of one stream."""

    __slots__ = ("_channel", "_context", "_coordinator", "_group", "_session")

    def __init__(self, coordinator: Coordinator, context: ServicerContext) -> None:
        self._coordinator = coordinator
        self._context = context
        self._channel = StreamChannel()
        self._group: GroupActor | None = None
        self._session: Session | None = None

    async def run(self) -> None:
        """Serves the stream until one side ends it."""
        reader = asyncio.create_task(self._read(), name="sharecoord-consume")
        try:
            while (frame := await self._channel.next_frame()) is not None:
                await self._context.write(frame)
            if self._channel.error is not None:
                await abort(self._context, self._channel.error)
        finally:
            reader.cancel()
            group, session = self._group, self._session
            if group is not None and session is not None and session.channel is self._channel:
                group.disconnected(session)

    async def _read(self) -> None:
        error: SharecoordError | None = None
        try:
            while (request := await self._context.read()) is not EOF:
                if self._session is None:
                    await self._join(request)
                elif request.HasField("join"):
                    raise InvalidRequestError(
                        "join stands in a later message of the stream; send it once, in the first"
                    )
                self._handle(request)
                # Nothing of it stays while this member, one of ten thousand, says nothing.
                del request
            if self._session is None:
                error = InvalidRequestError("the stream ended before a message with join came")
        except SharecoordError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - whatever it is, the member must hear of it
            error = unexpected("Consume", problem)
        finally:
            self._channel.end(error)

    async def _join(self, request: service.ConsumeRequest) -> None:
        if not request.HasField("join"):
            raise InvalidRequestError("the first message of a stream must hold join")
        group_id, command = join_command(request.join, host_of(self._context))
        self._group, session, lost = await self._coordinator.join(group_id, command, self._channel)
        self._session = session
        joined = service.Joined(
            member_epoch=session.member_epoch,
            lock_duration_ms=self._group.config.lock_duration_ms,
            session_timeout_ms=self._group.config.session_timeout_ms,
            server_version=__version__,
            protocol_version=PROTOCOL_VERSION,
            lost=[codec.lost_range(item) for item in lost],
            coordinator_id=self._coordinator.context.coordinator_id,
        )
        assignment = codec.assignment(self._group.assignment(session))
        self._channel.put(service.ConsumeResponse(joined=joined, assignment=assignment))

    def _handle(self, request: service.ConsumeRequest) -> None:
        group, session = self._group, self._session
        assert group is not None, "joined"
        assert session is not None, "joined"
        if session.channel is not self._channel:
            return
        if request.HasField("credit"):
            credit = request.credit
            session.credit_records = max(session.credit_records, credit.records_total)
            session.credit_bytes = max(session.credit_bytes, credit.bytes_total)
            group.polled(session)
            group.dispatcher.offer(session)
        if request.acknowledgements:
            self._acknowledge(group, session, request)
        if request.polled:
            group.polled(session)
        if request.HasField("subscription"):
            topics = check_topics(list(request.subscription.topics))
            group.subscribe(session, topics)
            self._coordinator.subscription_changed(group, session)
        if request.HasField("paused"):
            session.paused = frozenset((p.topic, p.partition) for p in request.paused.partitions)
            group.dispatcher.offer(session)
        if request.leave:
            self._leave(group, session)

    def _acknowledge(
        self, group: GroupActor, session: Session, request: service.ConsumeRequest
    ) -> None:
        channel, acknowledge_id = self._channel, request.acknowledge_id
        if not acknowledge_id:
            raise InvalidRequestError(
                "acknowledge_id is 0 beside acknowledgements; number them from 1 on, so that the "
                "answers can be told apart"
            )
        items = codec.acknowledgements(request.acknowledgements)
        collector = Collector(lambda results: channel.acknowledged(acknowledge_id, results))
        group.acknowledge(
            session, items, collector, busy_us=request.busy_us, may_wait=request.may_wait
        )

    def _leave(self, group: GroupActor, session: Session) -> None:
        """Leaves, and says so once that is durable."""
        group.leave(session)
        channel = self._channel

        def left(error: SharecoordError | None) -> None:
            if error is None:
                channel.put(service.ConsumeResponse(left=True))
            channel.end(error)

        self._coordinator.after_commit(left)
