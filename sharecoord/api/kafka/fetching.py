"""ShareFetch and ShareAcknowledge: records to members, and what these say of them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.acknowledging import RefusedError, runs_of
from sharecoord.api.kafka.cluster import NO_TIME, NODE_ID, Cluster
from sharecoord.api.kafka.codec import Head, make, prefix_of
from sharecoord.api.kafka.errors import acknowledge_code, code_of
from sharecoord.api.kafka.members import KafkaMember, ShareSession
from sharecoord.api.kafka.membership import Membership, check_member_id
from sharecoord.api.kafka.record_batches import record_data
from sharecoord.core.changes import Place
from sharecoord.core.delivery import Delivery
from sharecoord.core.partition.decisions import AcknowledgedRange, Acknowledgements
from sharecoord.core.states import AcquireMode
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.runtime.kernel.context import Context

OPEN, CLOSE = 0, -1
"""Share session epochs that are none (KIP-932)."""

MAX_WAIT_S: Final = 30.0
"""Longest wait of a fetch; the connection's next request waits as long."""

ON_WAY_MAX_S: Final = 1.0
"""Longest wait for records that are acquired already, and not stored yet."""

Parts = list[bytes | memoryview]
"""An answer in pieces, which are written one behind the other."""

Errors = dict[tuple[UUID, int], ErrorCode]
"""By topic id and partition: what became of acknowledgements."""

NO_TOPIC: Final = UUID(int=0)
"""Stands for the id of a topic in a request that names none."""

_PARTITION: Final = struct.Struct(">ih")
_RANGE: Final = struct.Struct(">qqhB")
_LEADER: Final = struct.Struct(">iiB")


class Fetching:
    """The fetches and acknowledgements of all members of this port."""

    def __init__(self, context: Context, membership: Membership, cluster: Cluster) -> None:
        self._context = context
        self._membership = membership
        self._cluster = cluster

    # -- ShareFetch ------------------------------------------------------------------------------

    async def fetch(self, head: Head, request: Any, connection: object) -> Parts:
        """Answers a ShareFetch: first what its acknowledgements say is settled, then records come.

        Both wait at the same time.
        """
        try:
            member = self._found(request)
            failed = _checked_sizes(request) or self._turn(member, request, connection)
        except SharecoordError as error:
            return _fetched(head, code_of(error), 0, {}, {}, {})
        if failed is not ErrorCode.none:
            return _fetched(head, failed, 0, {}, {}, {})
        session = member.session
        member.group.expire_later(session)
        said, errors = self._said(member, request)
        refused: Errors = {}
        settling = asyncio.ensure_future(member.acknowledge(said)) if said else None
        if request.share_session_epoch != CLOSE:
            self._change(member, request)
            refused = self._refused(member, request.topics)
            await self._wait(member, request)
        if settling is not None:
            errors |= self._errors(await settling)
        deliveries: list[Delivery] = []
        if request.share_session_epoch == CLOSE:
            self._membership.close_share(member)
        else:
            deliveries = member.take(self._context.clock.now_ms(), self._cluster.id_of)
        found: dict[tuple[UUID, int], list[Delivery]] = {}
        for each in deliveries:
            place = self._cluster.id_of(each.key.topic, each.key.topic_id), each.key.partition
            found.setdefault(place, []).append(each)
        lock_ms = member.group.settings.lock_duration_ms
        return _fetched(head, ErrorCode.none, lock_ms, found, errors, refused)

    def _turn(self, member: KafkaMember, request: Any, connection: object) -> ErrorCode:
        """Opens a share session, or takes the next request of one (KIP-932, share sessions)."""
        epoch = request.share_session_epoch
        if epoch == OPEN:
            if any(part.acknowledgement_batches for topic in request.topics
                   for part in topic.partitions):  # fmt: skip
                return ErrorCode.invalid_request
            # What the member holds of an earlier session it may still acknowledge.
            member.hand_back_waiting()
            member.share = ShareSession(connection)
            return ErrorCode.none
        return _next_turn(member, epoch)

    def _change(self, member: KafkaMember, request: Any) -> None:
        """Takes what the member fetches from now on; it gets nothing of other partitions."""
        share, session = member.share, member.session
        assert share is not None, "opened"
        for topic in request.topics:
            if name := self._cluster.name_of(topic.topic_id):
                share.ids[name] = topic.topic_id
        share.places.update(self._places(request.topics))
        share.places.difference_update(
            (name, number)
            for topic in request.forgotten_topics_data
            if (name := self._cluster.name_of(topic.topic_id))
            for number in topic.partitions
        )
        assigned = member.group.assignment(session).topics
        served = {
            (name, number)
            for name, number in share.places
            # A topic that was made again is another one, which the member does not know yet.
            if name in assigned and share.ids[name] == self._cluster.id_of(name, assigned[name][0])
        }
        if served != share.served:
            share.served = served
            all_places = {(t, n) for t, (_, numbers) in assigned.items() for n in numbers}
            member.group.pause(session, frozenset(all_places - served))

    def _places(self, topics: Iterable[Any]) -> Iterator[Place]:
        for topic in topics:
            if name := self._cluster.name_of(topic.topic_id):
                yield from ((name, part.partition_index) for part in topic.partitions)

    async def _wait(self, member: KafkaMember, request: Any) -> None:
        """Opens the credit of this fetch, and waits for records."""
        session, group = member.session, member.group
        group.polled(session)
        records = request.max_records
        if records <= 0 or request.max_bytes <= 0:
            # Locks are renewed, or acknowledgements sent, and nothing is fetched.
            return
        session.mode = _mode_of(request)
        session.max_poll_records = records + group.held(session)
        session.credit.records = session.credit.delivered_records + records
        session.credit.size_bytes = session.credit.delivered_bytes + request.max_bytes
        before = session.credit.delivered_records
        member.arrived.clear()
        group.dispatcher.offer(session)
        wait_s = min(MAX_WAIT_S, request.max_wait.total_seconds())
        try:
            await _until(lambda: bool(member.waiting), member, wait_s)
        finally:
            session.credit.use_up()
        # What was acquired meanwhile comes with this answer, as a broker's does: a member that asks
        # for nothing more would never see it.
        await _until(
            lambda: member.came_since(before) >= session.credit.delivered_records,
            member,
            ON_WAY_MAX_S,
        )

    # -- ShareAcknowledge ------------------------------------------------------------------------

    async def acknowledge(self, head: Head, request: Any) -> Any:
        """Answers a ShareAcknowledge once it is durable."""
        lock_ms, errors = 0, Errors()
        failed = ErrorCode.none
        try:
            member = self._found(request)
            failed = _next_turn(member, request.share_session_epoch)
            if failed is ErrorCode.none:
                member.group.expire_later(member.session)
                member.group.polled(member.session)
                said, errors = self._said(member, request)
                if said:
                    errors |= self._errors(await member.acknowledge(said))
                lock_ms = member.group.settings.lock_duration_ms
                if request.share_session_epoch == CLOSE:
                    self._membership.close_share(member)
        except SharecoordError as error:
            failed = code_of(error)
        leader = make(head, "LeaderIdAndEpoch", leader_id=NODE_ID, leader_epoch=0)
        topics = tuple(
            make(
                head,
                "ShareAcknowledgeTopicResponse",
                topic_id=topic_id,
                partitions=tuple(
                    make(head, "PartitionData", partition_index=number, error_code=errors[place],
                         current_leader=leader)
                    for place in places for number in place[1:]
                ),
            )
            for topic_id, places in groupby(sorted(errors), key=lambda place: place[0])
        )  # fmt: skip
        return make(
            head,
            "ShareAcknowledgeResponse",
            throttle_time=NO_TIME,
            error_code=failed,
            acquisition_lock_timeout=timedelta(milliseconds=lock_ms),
            responses=topics,
            node_endpoints=(),
        )

    def _found(self, request: Any) -> KafkaMember:
        """The member of a request.

        Raises:
            InvalidRequestError: It names no group, or no member.
            SharecoordError: As `Membership.find`.
        """
        if request.group_id is None:
            raise InvalidRequestError("the request names no group")
        check_member_id(request.member_id)
        return self._membership.find(request.group_id, request.member_id)

    # -- what members say ------------------------------------------------------------------------

    def _said(self, member: KafkaMember, request: Any) -> tuple[Acknowledgements, Errors]:
        """Acknowledgements under the tokens of the member's locks, and errors for all others."""
        may_renew = getattr(request, "is_renew_ack", False)
        said: list[tuple[str, str, int, Sequence[AcknowledgedRange]]] = []
        errors: Errors = {}
        for topic in request.topics:
            name = self._cluster.name_of(topic.topic_id)
            topic_id = "" if name is None else member.group.topic_ids.get(name, "")
            for part in topic.partitions:
                if not part.acknowledgement_batches:
                    continue
                place = topic.topic_id or NO_TOPIC, part.partition_index
                errors[place] = ErrorCode.none
                try:
                    runs = runs_of(part.acknowledgement_batches, may_renew=may_renew)
                except RefusedError as refused:
                    errors[place] = refused.code
                    continue
                if name is None:
                    errors[place] = ErrorCode.unknown_topic_id
                    continue
                log_id = name, topic_id, part.partition_index
                said.append((*log_id, member.under_tokens(log_id, runs)))
        return said, errors

    def _refused(self, member: KafkaMember, topics: Iterable[Any]) -> Errors:
        """Why partitions of the share session can not be fetched, where they can not."""
        refused = {
            (topic.topic_id or NO_TOPIC, part.partition_index): ErrorCode.unknown_topic_id
            for topic in topics
            if self._cluster.name_of(topic.topic_id) is None
            for part in topic.partitions
        }
        assigned = member.group.assignment(member.session).topics
        share = member.share
        assert share is not None, "opened"
        for name, number in share.places:
            topic_id = share.ids[name]
            if self._cluster.name_of(topic_id) is None:
                refused[topic_id, number] = ErrorCode.unknown_topic_id
            elif name in assigned and number not in assigned[name][1]:
                refused[topic_id, number] = ErrorCode.unknown_topic_or_partition
        return refused

    def _errors(self, results: Iterable[Any]) -> Errors:
        """The outcomes that are errors."""
        return {
            (self._cluster.id_of(each.key.topic, each.key.topic_id), each.key.partition): code
            for each in results
            if (code := acknowledge_code(each)) is not ErrorCode.none
        }


async def _until(probe: Callable[[], bool], member: KafkaMember, wait_s: float) -> None:
    """Waits for deliveries until the probe holds, the member has ended or the time is over."""
    try:
        async with asyncio.timeout(wait_s):
            while not probe() and member.ended is None:
                await member.arrived.wait()
                member.arrived.clear()
    except TimeoutError:
        pass


def _checked_sizes(request: Any) -> ErrorCode:
    """The error for a ShareFetch that renews locks and asks for records too (KIP-1222)."""
    asks = (
        request.max_wait.total_seconds(),
        request.min_bytes,
        request.max_bytes,
        request.max_records,
    )
    if getattr(request, "is_renew_ack", False) and any(asks):
        return ErrorCode.invalid_request
    is_known = getattr(request, "share_acquire_mode", 0) in (0, 1)
    return ErrorCode.none if is_known else ErrorCode.unknown_server_error


def _next_turn(member: KafkaMember, epoch: int) -> ErrorCode:
    """Takes the next request of an open share session; only a ShareFetch can open one."""
    if epoch == OPEN:
        return ErrorCode.invalid_share_session_epoch
    if member.share is None:
        return ErrorCode.share_session_not_found
    if epoch != CLOSE and not member.share.takes(epoch):
        return ErrorCode.invalid_share_session_epoch
    return ErrorCode.none


def _mode_of(request: Any) -> AcquireMode:
    """Version 1 of ShareFetch has batch_optimized alone."""
    is_exact = getattr(request, "share_acquire_mode", 0) == 1
    return AcquireMode.RECORD_LIMIT if is_exact else AcquireMode.BATCH_OPTIMIZED


# -- the answer to a fetch, by hand: its record data is not copied --------------------------------


def _fetched(
    head: Head,
    error: ErrorCode,
    lock_ms: int,
    found: dict[tuple[UUID, int], list[Delivery]],
    errors: Errors,
    refused: Errors,
) -> Parts:
    """ShareFetchResponse, versions 1 and 2, with its length.

    `errors` are those of acknowledgements, `refused` those of fetches.
    """
    places = sorted(found.keys() | errors.keys() | refused.keys())
    topics = [(topic_id, list(same)) for topic_id, same in groupby(places, key=lambda p: p[0])]
    parts: Parts = [
        prefix_of(head),
        struct.pack(">ihBi", 0, error.value, 0, lock_ms),
        _uvarint(len(topics) + 1),
    ]
    for topic_id, of_topic in topics:
        parts += topic_id.bytes, _uvarint(len(of_topic) + 1)
        for place in of_topic:
            codes = refused.get(place, ErrorCode.none), errors.get(place, ErrorCode.none)
            _add_partition(parts, place[1], codes, found.get(place, []))
        parts.append(b"\0")
    # No endpoints of other brokers, no tagged fields.
    parts.append(b"\1\0")
    return [struct.pack(">i", sum(map(len, parts))), *parts]


def _add_partition(
    parts: Parts, number: int, codes: tuple[ErrorCode, ErrorCode], deliveries: list[Delivery]
) -> None:
    fetched, acknowledged = codes
    data = record_data(deliveries)
    parts += (
        _PARTITION.pack(number, fetched.value),
        # No message, the code of the acknowledgements, no message.
        struct.pack(">BhB", 0, acknowledged.value, 0),
        # As a broker answers that is the leader.
        _LEADER.pack(0, 0, 0),
        _uvarint(sum(map(len, data)) + 1),
        *data,
    )
    ranges = sorted(each for delivery in deliveries for each in delivery.ranges)
    parts.append(_uvarint(len(ranges) + 1))
    parts += (_RANGE.pack(each.first, each.last, each.delivery_count, 0) for each in ranges)
    parts.append(b"\0")


def _uvarint(number: int) -> bytes:
    found = bytearray()
    while number >= 0x80:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
