"""ShareGroupHeartbeat: who joins, stays and leaves, and which partitions a member has."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.api.checks import (
    CLIENT_ID_CHARACTERS_MAX,
    check_group_id,
    check_member_id,
    check_text,
    check_topics,
)
from sharecoord.api.kafka.cluster import NO_TIME
from sharecoord.api.kafka.codec import Head, make
from sharecoord.api.kafka.errors import code_of
from sharecoord.api.kafka.members import KafkaMember, Node, ShareSession
from sharecoord.api.kafka.topic_ids import TopicIds
from sharecoord.core.states import AcquireMode
from sharecoord.errors import (
    InvalidRequestError,
    MemberFencedError,
    SharecoordError,
    UnauthenticatedError,
    UnknownMemberError,
)
from sharecoord.runtime.group.groups import Groups
from sharecoord.runtime.member.session import JoinCommand
from sharecoord.security.actions import Action
from sharecoord.security.principals import Caller
from sharecoord.security.quotas import Quotas

HEARTBEAT_INTERVAL: Final = timedelta(seconds=5)
"""`group.share.heartbeat.interval.ms` of a broker."""

IDLE_MAX_S: Final = 4.0
"""A member of a fleet that has not begun to fetch by then, at its next heartbeat, is sent to look
for its coordinator anew."""

JOIN, LEAVE = 0, -1
"""Member epochs that are none (KIP-932)."""

_ELSEWHERE: Final = "the member fetches at no connection to this coordinator"
_HEARTBEAT: Final = "ShareGroupHeartbeat"
MEMBER_ID_LENGTH_MAX: Final = 36
"""A broker's limit: a UUID in words."""

_POLL_INTERVAL_MS_MAX: Final = 2**31 - 1
"""Kafka's clients see to `max.poll.interval.ms` themselves."""

_OPENS: Final = frozenset(range(5))
"""Every client opens every compression that Kafka has."""


def _check_names(request: Any) -> None:
    """Looks at how a request names its group and its member.

    Raises:
        InvalidRequestError: A broker would refuse it.
    """
    if not request.group_id:
        raise InvalidRequestError("the group has no name")
    member_id = request.member_id or ""
    if not 0 < len(member_id) <= MEMBER_ID_LENGTH_MAX:
        raise InvalidRequestError(f"a member id has 1 to {MEMBER_ID_LENGTH_MAX} characters")


def _check(request: Any) -> None:
    """Looks at what a heartbeat says by itself.

    Raises:
        InvalidRequestError: A broker would refuse it.
    """
    _check_names(request)
    problem = ""
    if request.rack_id == "":
        problem = "the rack has no name"
    elif request.member_epoch < LEAVE:
        problem = f"{request.member_epoch} is no member epoch"
    elif request.member_epoch == JOIN and not request.subscribed_topic_names:
        problem = "a member that joins names the topics that it reads"
    if problem:
        raise InvalidRequestError(problem)


def _refused(head: Head, request: Any, code: ErrorCode, why: str) -> Any:
    return make(
        head,
        "ShareGroupHeartbeatResponse",
        throttle_time=NO_TIME,
        error_code=code,
        error_message=why,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval=HEARTBEAT_INTERVAL,
    )


class Membership:
    """The members of this port, by group and member id."""

    def __init__(
        self, groups: Groups, ids: TopicIds, quotas: Quotas, *, in_fleet: bool = False
    ) -> None:
        self._groups = groups
        self._ids = ids
        self._members: dict[tuple[str, str], KafkaMember] = {}
        self._quotas = quotas
        self._in_fleet = in_fleet

    def find(self, request: Any, caller: Caller, call: str) -> KafkaMember:
        """The member that speaks in a request; it is the caller's principal's.

        Raises:
            InvalidRequestError: The group or the member is not named as a broker wants it.
            UnauthorizedError: The caller may not be a member of the group, or the member is
                another principal's.
            UnknownMemberError: It has not joined, or its session has ended.
            SharecoordError: The coordinator has ended its session, and why.
        """
        _check_names(request)
        admission = self._groups.admission
        # First: who may not consume is not told whether there is such a member.
        admission.check_call(caller, request.group_id, Action.CONSUME, call)
        member = self._known(request.group_id, request.member_id)
        admission.recognise(member.session, caller, call)
        return member

    def _known(self, group_id: str, member_id: str) -> KafkaMember:
        member = self._members.get((group_id, member_id))
        if member is None:
            raise UnknownMemberError(f"member {member_id!r} of group {group_id!r} is not known")
        if member.ended is not None or member.session.channel is not member:
            del self._members[group_id, member_id]
            member.forget_shares()
            has_ended = UnknownMemberError(
                f"the session of member {member_id!r} of group {group_id!r} has ended"
            )
            # Who calls has good credentials, also where the member's have ended: it joins again.
            is_told = member.ended and not isinstance(member.ended, UnauthenticatedError)
            raise member.ended if is_told and member.ended else has_ended
        return member

    def open_share(self, member: KafkaMember, connection: object, node: Node) -> None:
        """Opens a member's share session with a broker; it counts as a stream of its principal.

        Raises:
            QuotaExceededError: Its principal has as many as it may.
        """
        # What the member holds of an earlier session it may still acknowledge.
        member.end_share(node)
        principal = (member.session.caller or Caller()).principal
        self._quotas.check_stream(principal)
        self._quotas.stream(principal, 1)
        ended = partial(self._quotas.stream, principal, -1)
        member.shares[node] = ShareSession(connection, ended)

    async def heartbeat(
        self, head: Head, request: Any, client_id: str, caller: Caller, software: str = ""
    ) -> Any:
        """Answers a heartbeat; errors are told by their code."""
        try:
            _check(request)
            if request.member_epoch == LEAVE:
                self._leave(self.find(request, caller, _HEARTBEAT))
                return self._answer(head, request.member_id, LEAVE)
            if request.member_epoch == JOIN:
                member = await self._join(request, client_id, caller, software)
            else:
                member = self.find(request, caller, _HEARTBEAT)
                self._check_epoch(member, request.member_epoch)
                if self._may_fetch_elsewhere(member):
                    return _refused(head, request, ErrorCode.not_coordinator, _ELSEWHERE)
                self._subscribe(member, request)
        except SharecoordError as error:
            return _refused(head, request, code_of(error), error.message)
        member.group.expire_later(member.session)
        return self._told(head, member, anew=request.member_epoch != member.epoch)

    async def _join(
        self, request: Any, client_id: str, caller: Caller, software: str
    ) -> KafkaMember:
        key = (request.group_id, request.member_id)
        topics = check_topics(request.subscribed_topic_names or ())
        # Before anything is made or closed for who may not.
        self._groups.admission.check_join(caller, *key, topics)
        former = self._members.get(key)
        command = JoinCommand(
            member_id=check_member_id(request.member_id),
            client_id=check_text("client_id", client_id, CLIENT_ID_CHARACTERS_MAX),
            host=caller.address,
            topics=topics,
            mode=AcquireMode.BATCH_OPTIMIZED,
            max_poll_records=0,
            max_poll_interval_ms=_POLL_INTERVAL_MS_MAX,
            credit_records=0,
            credit_bytes=0,
            lock_book={} if former is None else former.shown(),
            opens=_OPENS,
            takes_batches=True,
            is_atomic=True,
            caller=caller,
            software=software,
        )
        group = await self._groups.open(check_group_id(request.group_id), caller.principal.name)
        member = KafkaMember(group, idle_since_s=asyncio.get_running_loop().time())
        member.group, member.joined, lost = await self._groups.join(key[0], command, member)
        if former is not None:
            member.follow(former, lost)
        self._members[key] = member
        return member

    @staticmethod
    def _check_epoch(member: KafkaMember, epoch: int) -> None:
        # The answer that told of the present epoch may have been lost.
        if epoch not in (member.epoch, member.epoch - 1):
            raise MemberFencedError(f"member epoch {epoch} is not {member.epoch}; join again")

    def _may_fetch_elsewhere(self, member: KafkaMember) -> bool:
        """Whether a member has not fetched for a while at the coordinator that it is a member of.

        Each coordinator of a fleet says that it is the one broker: after a move a client may have
        its connection for fetches at another one than this for heartbeats. Who is sent to look for
        the coordinator asks there. Who has nothing to fetch yet finds this coordinator again.
        """
        now_s = asyncio.get_running_loop().time()
        if not self._in_fleet or member.shares or now_s - member.idle_since_s < IDLE_MAX_S:
            return False
        member.idle_since_s = now_s
        member.group.expire_later(member.session)
        return True

    def _subscribe(self, member: KafkaMember, request: Any) -> None:
        wanted, session = request.subscribed_topic_names, member.session
        if wanted is not None and frozenset(wanted) != session.topics:
            self._groups.subscribe(member.group, session, check_topics(wanted))

    def _told(self, head: Head, member: KafkaMember, *, anew: bool) -> Any:
        """The answer to a member, with its assignment if it does not know it."""
        session = member.session
        assignment = member.group.assignment(session)
        if member.assignment is None or assignment.topics != member.assignment.topics:
            member.epoch += member.assignment is not None
            member.assignment, anew = assignment, True
        if not anew:
            return self._answer(head, session.member_id, member.epoch)
        topics = tuple(
            make(
                head,
                "TopicPartitions",
                topic_id=self._ids.id_of(topic, topic_id),
                partitions=partitions,
            )
            for topic, (topic_id, partitions) in sorted(assignment.topics.items())
        )
        told = make(head, "Assignment", topic_partitions=topics)
        return self._answer(head, session.member_id, member.epoch, told)

    @staticmethod
    def _answer(head: Head, member_id: str, epoch: int, assignment: Any = None) -> Any:
        return make(
            head,
            "ShareGroupHeartbeatResponse",
            throttle_time=NO_TIME,
            error_code=ErrorCode.none,
            member_id=member_id,
            member_epoch=epoch,
            heartbeat_interval=HEARTBEAT_INTERVAL,
            assignment=assignment,
        )

    def _leave(self, member: KafkaMember) -> None:
        member.is_leaving = True
        if not member.shares:
            self.gone(member)

    def gone(self, member: KafkaMember) -> None:
        """A member that has left has no share session any more either: it is taken out."""
        session = member.session
        member.group.leave(session)
        self._members.pop((session.group_id, session.member_id), None)

    def close_share(self, member: KafkaMember, node: Node) -> None:
        """Ends a share session; a member that has left goes with its last one."""
        member.close_share(node)
        if member.is_leaving and not member.shares:
            self.gone(member)

    def disconnected(self, connection: object) -> None:
        """The share sessions of a connection end with it."""
        for member in list(self._members.values()):
            for node, share in list(member.shares.items()):
                if share.connection is connection:
                    self.close_share(member, node)
