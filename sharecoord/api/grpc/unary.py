"""The unary calls: the same members and rules as on a stream, one question at a time.

A Fetch that is asked again with its request id gets the same answer. What was acquired for a fetch
whose caller went away is the beginning of the next answer: it was never seen.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sharecoord.api.checks import check_group_id, check_member_id
from sharecoord.api.grpc.validation import check_most, join_command, joined_message
from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Assignment, Delivery, PartitionResult
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import TakenBack
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group import acknowledge_for
from sharecoord.runtime.group.actor import GroupActor
from sharecoord.runtime.member.session import Session
from sharecoord.runtime.partition.collector import Collector
from sharecoord.security.actions import Action
from sharecoord.security.principals import Caller
from sharecoord.wire import codec
from sharecoord.wire import share_service_pb2 as service

MemberRequest = (
    service.FetchRequest
    | service.AcknowledgeRequest
    | service.HeartbeatRequest
    | service.LeaveRequest
)

FETCH_RECORDS_MAX = 10_000
FETCH_RECORDS_DEFAULT = 500
FETCH_BYTES_DEFAULT = 50 << 20
FETCH_WAIT_MS_MAX = 30_000
GATHER_S = 0.005
"""Wait after the first records of a fetch, for more of the same turn."""


@dataclass(eq=False)
class PolledChannel:
    """The `MemberChannel` of a member without a stream: deliveries wait for its next Fetch."""

    waiting: list[Delivery | Relayed] = field(default_factory=list)
    broken: list[Delivery | Relayed] = field(default_factory=list)
    """Deliveries of which a part was taken back before a fetch came; the rest is handed back."""
    answered_id: int = 0
    answer: service.FetchResponse | None = None
    """The last answer, which the member may ask for again."""
    answer_bytes: int = 0
    unsent_since_s: float = math.inf
    """Never a time: there is no stream that could stall."""
    ended: SharecoordError | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def unsent_bytes(self) -> int:
        """Bytes of the deliveries that wait, and of the last answer."""
        return self.answer_bytes + sum(each.size_bytes for each in self.waiting)

    def deliver(self, delivery: Delivery, now_ms: int) -> None:
        """Keeps a delivery for the fetch that waits."""
        assert now_ms >= 0, "monotonic"
        self.waiting.append(delivery)
        self.arrived.set()

    def relay(self, item: Relayed) -> None:
        """Keeps what another coordinator acquired for the fetch that waits."""
        self.waiting.append(item)
        self.arrived.set()

    def taken_back(self, key: PartitionKey, ranges: Sequence[TakenBack]) -> None:
        """Keeps a delivery that has lost a range from being fetched."""
        tokens = {taken.lock_token for taken in ranges}
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            (self.broken if _has_any(each, key, tokens) else self.waiting).append(each)

    def acknowledged(self, acknowledge_id: int, results: list[PartitionResult]) -> None:
        """Never called: unary acknowledgements have their own collector."""
        raise AssertionError(f"no stream to answer {acknowledge_id} on ({len(results)} results)")

    def assigned(self, assignment: Assignment) -> None:
        """Does nothing: heartbeats tell the assignment."""

    def drain(self, addresses: Sequence[str], grace_ms: int) -> None:
        """Ends a waiting fetch early, with what there is."""
        self.arrived.set()

    def end(self, error: SharecoordError | None) -> None:
        """Notes that the session ended; the next call reports the error."""
        self.ended = error
        self.arrived.set()

    def cut(self, error: SharecoordError) -> None:
        """Never called: there is no stream that could stall."""
        raise AssertionError(f"no stream to cut: {error}")


class UnaryCalls:
    """Join, Fetch, Acknowledge, Heartbeat, Leave."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def join(self, request: service.JoinRequest, caller: Caller) -> service.JoinResponse:
        """Joins without a stream."""
        group_id, command = join_command(request.join, caller)
        command.credit_records = command.credit_bytes = 0
        group, session, lost = await self._coordinator.groups.join(
            group_id, command, PolledChannel()
        )
        group.expire_later(session)
        return service.JoinResponse(
            joined=joined_message(self._coordinator, group, session, lost),
            assignment=codec.assignment(group.assignment(session)),
        )

    async def _member(
        self, request: MemberRequest, caller: Caller, call: str
    ) -> tuple[GroupActor, Session]:
        """The session of a call; every call is a sign of life."""
        groups, group_id = self._coordinator.groups, check_group_id(request.group_id)
        # First: who may not consume is not told whether there is such a group, or such a member.
        groups.admission.check_call(caller, group_id, Action.CONSUME, call)
        group = await groups.existing(group_id)
        session = group.session(check_member_id(request.member_id), request.member_epoch)
        groups.admission.recognise(session, caller, call)
        group.polled(session)
        if isinstance(session.channel, PolledChannel) or session.channel is None:
            group.expire_later(session)
        return group, session

    async def fetch(self, request: service.FetchRequest, caller: Caller) -> service.FetchResponse:
        """Answers a Fetch, after a wait for records.

        Raises:
            InvalidRequestError: No request id, or one that goes back; a bound is passed.
            UnknownMemberError: Join first.
        """
        group, session = await self._member(request, caller, "Fetch")
        channel = session.channel
        if channel is None:
            channel = session.channel = PolledChannel()
        if not isinstance(channel, PolledChannel):
            raise InvalidRequestError(
                f"member {request.member_id!r} has a Consume stream: its records go there; use "
                "another member_id for Fetch"
            )
        self._check_fetch(request, channel)
        if request.request_id == channel.answered_id and channel.answer is not None:
            return channel.answer
        # A member that asks for more has the last answer.
        channel.answer, channel.answer_bytes = None, 0
        await self._wait(group, session, channel, request)
        _hand_back(group, session, channel.broken)
        deliveries, channel.waiting = channel.waiting, []
        now_ms = self._coordinator.context.clock.now_ms()
        answer = service.FetchResponse()
        for delivery in deliveries:
            if isinstance(delivery, Relayed):
                assert isinstance(delivery.frame, bytes), "made by a peer's codec"
                relayed = service.ConsumeResponse.FromString(delivery.frame)
                answer.batches.extend(relayed.batches)
            else:
                codec.fill_record_batch(answer.batches.add(), delivery, now_ms)
        channel.answered_id, channel.answer = request.request_id, answer
        channel.answer_bytes = answer.ByteSize()
        return answer

    @staticmethod
    def _check_fetch(request: service.FetchRequest, channel: PolledChannel) -> None:
        if channel.ended is not None:
            raise channel.ended
        if request.request_id == 0:
            raise InvalidRequestError("request_id is 0; number fetches from 1 on")
        if request.request_id < channel.answered_id:
            raise InvalidRequestError(
                f"request_id {request.request_id} is older than {channel.answered_id}; it must grow"
            )
        check_most("max_records", request.max_records, FETCH_RECORDS_MAX)
        check_most("max_wait_ms", request.max_wait_ms, FETCH_WAIT_MS_MAX)

    @staticmethod
    async def _wait(
        group: GroupActor, session: Session, channel: PolledChannel, request: service.FetchRequest
    ) -> None:
        """Opens the credit for this fetch and waits for records."""
        wanted = request.max_records or FETCH_RECORDS_DEFAULT
        # The credit limits the answer; what the member holds already must not.
        session.max_poll_records = wanted + group.held(session)
        session.credit.records = session.credit.delivered_records + wanted
        session.credit.size_bytes = session.credit.delivered_bytes + (
            request.max_bytes or FETCH_BYTES_DEFAULT
        )
        channel.arrived.clear()
        group.dispatcher.offer(session)
        try:
            async with asyncio.timeout(request.max_wait_ms / 1000 + GATHER_S):
                while not channel.waiting and channel.ended is None:
                    await channel.arrived.wait()
                    channel.arrived.clear()
            if channel.waiting:
                await asyncio.sleep(GATHER_S)
        except TimeoutError:
            pass
        finally:
            session.credit.records = session.credit.delivered_records

    async def acknowledge(
        self, request: service.AcknowledgeRequest, caller: Caller
    ) -> service.AcknowledgeResponse:
        """Settles ranges; answers after the commit."""
        items = codec.acknowledgements(request.acknowledgements)
        done: asyncio.Future[list[PartitionResult]] = asyncio.get_running_loop().create_future()

        def answer(results: list[PartitionResult]) -> None:
            if not done.done():
                done.set_result(results)

        if request.member_epoch:
            group, session = await self._member(request, caller, "Acknowledge")
            group.acknowledge(session, items, Collector(answer))
        else:
            # In the name of a member that may be gone.
            groups, group_id = self._coordinator.groups, check_group_id(request.group_id)
            groups.admission.check_call(caller, group_id, Action.SETTLE, "Acknowledge")
            group = await groups.existing(group_id)
            member_id = check_member_id(request.member_id)
            acknowledge_for.check_allowed(group.config, member_id)
            acknowledge_for.acknowledge_for(group, member_id, items, Collector(answer))
        results = await done
        return service.AcknowledgeResponse(
            outcomes=[codec.partition_outcome(result) for result in results]
        )

    async def heartbeat(
        self, request: service.HeartbeatRequest, caller: Caller
    ) -> service.HeartbeatResponse:
        """Keeps the session alive and tells the assignment."""
        group, session = await self._member(request, caller, "Heartbeat")
        return service.HeartbeatResponse(assignment=codec.assignment(group.assignment(session)))

    async def leave(self, request: service.LeaveRequest, caller: Caller) -> service.LeaveResponse:
        """Leaves; answers after the commit. Records of an unanswered fetch go back unseen."""
        group, session = await self._member(request, caller, "Leave")
        if isinstance(session.channel, PolledChannel):
            _hand_back(group, session, session.channel.broken)
            _hand_back(group, session, session.channel.waiting)
        group.leave(session)
        error = await self._coordinator.context.committed()
        if error is not None:
            raise error
        return service.LeaveResponse()


def _hand_back(group: GroupActor, session: Session, deliveries: list[Delivery | Relayed]) -> None:
    """Hands deliveries that no fetch has got back unseen, and empties the list."""
    for delivery in deliveries:
        group.hand_back(session, delivery.key, delivery.ranges)
    deliveries.clear()


def _has_any(delivery: Delivery | Relayed, key: PartitionKey, tokens: set[int]) -> bool:
    is_there = delivery.key.log_id == key.log_id
    return is_there and any(each.lock_token in tokens for each in delivery.ranges)
