"""ShareFetch and ShareAcknowledge: records to members, and what these say of them."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import groupby
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.acknowledging import RefusedError, runs_of
from sharecoord.api.kafka.cluster import NO_TIME, NODE_ID
from sharecoord.api.kafka.codec import Head, answer_of, make, prefix_of
from sharecoord.api.kafka.connections.connection import Parts
from sharecoord.api.kafka.errors import acknowledge_code, code_of
from sharecoord.api.kafka.members import KafkaMember, Node, ShareSession
from sharecoord.api.kafka.membership import Membership
from sharecoord.api.kafka.record_data import record_data
from sharecoord.api.kafka.topic_ids import TopicIds
from sharecoord.core.changes import Place
from sharecoord.core.delivery import Delivery, PartitionResult
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import AcknowledgedRange, Acknowledgements
from sharecoord.core.states import AcquireMode
from sharecoord.errors import QuotaExceededError, SharecoordError
from sharecoord.runtime.kernel.context import Context
from sharecoord.security.principals import Caller

OPEN, CLOSE = 0, -1
"""Share session epochs that are none (KIP-932)."""

SAY_AGAIN_S: Final = 5.0
"""Acknowledgements of share-partitions that change their owner are said again for so long: an owner
that is killed is gone after four seconds (design 9), and clients wait 30 for an answer."""

SAY_AGAIN_PAUSE_S: Final = 0.05
"""Least pause between two such attempts."""

MAX_WAIT_S: Final = 30.0
"""Longest wait of a fetch; the connection's next request waits as long."""

ON_WAY_MAX_S: Final = 1.0
"""Longest wait for records that are acquired already, and not stored yet."""

Errors = dict[tuple[UUID, int], ErrorCode]
"""By topic id and partition: what became of acknowledgements."""

Found = dict[tuple[UUID, int], list[Delivery | Relayed]]
"""By topic id and partition: the records of an answer."""

Assigned = Mapping[str, tuple[str, tuple[int, ...]]]
"""By topic: its id and the partitions of it that a member has."""

NO_TOPIC: Final = UUID(int=0)
"""Stands for the id of a topic in a request that names none."""

_PARTITION: Final = struct.Struct(">ih")
_RANGE: Final = struct.Struct(">qqhB")
_LEADER: Final = struct.Struct(">iiB")


class Fetching:
    """The fetches and acknowledgements of all members of this port."""

    def __init__(self, context: Context, membership: Membership, ids: TopicIds) -> None:
        self._context = context
        self._membership = membership
        self._ids = ids

    # -- ShareFetch ------------------------------------------------------------------------------

    async def fetch(
        self, head: Head, request: Any, connection: object, caller: Caller, node: Node = None
    ) -> Parts:
        """Answers a ShareFetch: first what its acknowledgements say is settled, then records come.

        Both wait at the same time.
        """
        try:
            member = self._membership.find(request, caller, "ShareFetch")
            failed = _checked_sizes(request) or self._turn(member, request, connection, node)
        except QuotaExceededError:
            return _fetched(head, ErrorCode.share_session_limit_reached, 0, {}, {}, {})
        except SharecoordError as error:
            return _fetched(head, code_of(error), 0, {}, {}, {})
        if failed is not ErrorCode.none:
            return _fetched(head, failed, 0, {}, {}, {})
        session = member.session
        member.group.expire_later(session)
        said, errors = self._said(member, request)
        share = member.shares[node]
        refused: Errors = {}
        settled = member.acknowledge(said) if said else None
        is_last = request.share_session_epoch == CLOSE
        if not is_last:
            refused = self._change(member, share, request)
            await self._wait(member, share, request)
        if settled is not None:
            errors |= self._errors(await _asked_again(member, said, settled))
        deliveries: list[Delivery | Relayed] = []
        if is_last:
            self._membership.close_share(member, node)
        elif request.max_records > 0:
            deliveries = member.take(share, self._context.clock.now_ms(), self._ids.id_of)
        found: Found = {}
        for each in deliveries:
            place = self._ids.id_of(each.key.topic, each.key.topic_id), each.key.partition
            found.setdefault(place, []).append(each)
        lock_ms = member.group.settings.lock_duration_ms
        return _fetched(head, ErrorCode.none, lock_ms, found, errors, refused)

    def _turn(self, member: KafkaMember, request: Any, connection: object, node: Node) -> ErrorCode:
        """Opens a share session, or takes the next request of one (KIP-932, share sessions)."""
        epoch = request.share_session_epoch
        if epoch == OPEN:
            if any(part.acknowledgement_batches for topic in request.topics
                   for part in topic.partitions):  # fmt: skip
                return ErrorCode.invalid_request
            self._membership.open_share(member, connection, node)
            return ErrorCode.none
        return _next_turn(member, node, epoch)

    def _change(self, member: KafkaMember, share: ShareSession, request: Any) -> Errors:
        """Takes what the member fetches from now on; it gets nothing of other partitions.

        Returns why partitions can not be fetched, where they can not.
        """
        refused: Errors = {}
        for topic in request.topics:
            name, numbers = self._ids.name_of(topic.topic_id), topic.partitions
            if name is None:
                places = ((topic.topic_id or NO_TOPIC, each.partition_index) for each in numbers)
                refused |= dict.fromkeys(places, ErrorCode.unknown_topic_id)
            else:
                share.add(name, topic.topic_id, (each.partition_index for each in numbers))
        for topic in request.forgotten_topics_data:
            if name := self._ids.name_of(topic.topic_id):
                share.forget(name, topic.partitions)
        group = member.group
        topic_ids, partitions = group.topic_ids, group.partition_ids
        known: list[tuple[object, ...]] = [
            (name, self._ids.name_of(topic_id), topic_ids.get(name), partitions.get(name))
            for name, topic_id in share.ids.items()
        ]
        if share.known != known:
            share.known = known
            assigned = group.assignment(member.session).topics
            served = {place for each in member.shares.values()
                      for place in self._served(each, assigned)}  # fmt: skip
            all_places = {(t, n) for t, (_, numbers) in assigned.items() for n in numbers}
            group.pause(member.session, frozenset(all_places - served))
            share.refused = dict(self._not_there(share, assigned))
        return refused | share.refused

    def _served(self, share: ShareSession, assigned: Assigned) -> Iterator[Place]:
        """The partitions that a share session gets records of.

        A topic that was made again is another one, which the member does not know yet.
        """
        current = {name for name in share.ids.keys() & assigned.keys()
                   if share.ids[name] == self._ids.id_of(name, assigned[name][0])}  # fmt: skip
        return (place for place in share.places if place[0] in current)

    def _not_there(
        self, share: ShareSession, assigned: Assigned
    ) -> Iterator[tuple[tuple[UUID, int], ErrorCode]]:
        """Partitions of a share session that are not there (any more)."""
        for name, number in share.places:
            topic_id = share.ids[name]
            if self._ids.name_of(topic_id) is None:
                yield (topic_id, number), ErrorCode.unknown_topic_id
            elif name in assigned and number not in assigned[name][1]:
                yield (topic_id, number), ErrorCode.unknown_topic_or_partition

    async def _wait(self, member: KafkaMember, share: ShareSession, request: Any) -> None:
        """Opens the credit of this fetch, and waits for records."""
        session, group = member.session, member.group
        group.polled(session)
        if request.max_records <= 0 or request.max_bytes <= 0:
            # Locks are renewed, or acknowledgements sent, and nothing is fetched.
            return
        # What came too late for the last fetch goes out with this one.
        came = sum(each.records for each in member.waiting_at(share))
        share.wanted_records = max(0, request.max_records - came)
        share.wanted_bytes = request.max_bytes
        records = max(0, share.wanted_records - member.on_way_records)
        if (mode := _mode_of(request)) is not session.mode:
            session.mode = mode
            group.changed(session)
        session.max_poll_records = records + group.held(session)
        member.offer_credit()
        group.dispatcher.offer(session)
        wait_s = min(MAX_WAIT_S, request.max_wait.total_seconds())
        enough_bytes = max(1, request.min_bytes)
        try:
            await _until(lambda: not _waits(member, share, enough_bytes), member, wait_s)
        finally:
            share.wanted_records = 0
            if any(each.wanted_records for each in member.shares.values()):
                member.offer_credit()
            else:
                session.credit.use_up()
            if session.away is not None:
                # Other coordinators give back what they were lent, or lock records for nobody.
                group.offer(session)
        # What was acquired meanwhile comes with this answer, as a broker's does: a member that asks
        # for nothing more would never see it.
        await _until(lambda: member.on_way_records <= 0, member, ON_WAY_MAX_S)

    # -- ShareAcknowledge ------------------------------------------------------------------------

    async def acknowledge(
        self, head: Head, request: Any, caller: Caller, node: Node = None
    ) -> Parts | asyncio.Future[Parts]:
        """Answers a ShareAcknowledge once it is durable."""
        try:
            member = self._membership.find(request, caller, "ShareAcknowledge")
            failed = _next_turn(member, node, request.share_session_epoch)
            if failed is not ErrorCode.none:
                return self._acknowledged(head, failed, 0, {})
        except SharecoordError as error:
            return self._acknowledged(head, code_of(error), 0, {})
        member.group.expire_later(member.session)
        member.group.polled(member.session)
        said, errors = self._said(member, request)
        settled = member.acknowledge(said) if said else None
        settling = self._settle(head, member, said, settled, errors)
        if request.share_session_epoch != CLOSE:
            return asyncio.ensure_future(settling)
        found = await settling
        self._membership.close_share(member, node)
        return found

    async def _settle(
        self,
        head: Head,
        member: KafkaMember,
        said: Acknowledgements,
        settled: asyncio.Future[list[PartitionResult]] | None,
        errors: Errors,
    ) -> Parts:
        if settled is not None:
            errors |= self._errors(await _asked_again(member, said, settled))
        lock_ms = member.group.settings.lock_duration_ms
        return self._acknowledged(head, ErrorCode.none, lock_ms, errors)

    @staticmethod
    def _acknowledged(head: Head, failed: ErrorCode, lock_ms: int, errors: Errors) -> Parts:
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
        answer = make(
            head,
            "ShareAcknowledgeResponse",
            throttle_time=NO_TIME,
            error_code=failed,
            acquisition_lock_timeout=timedelta(milliseconds=lock_ms),
            responses=topics,
            node_endpoints=(),
        )
        return [answer_of(head, answer)]

    # -- what members say ------------------------------------------------------------------------

    def _said(self, member: KafkaMember, request: Any) -> tuple[Acknowledgements, Errors]:
        """Acknowledgements under the tokens of the member's locks, and errors for all others."""
        may_renew = getattr(request, "is_renew_ack", False)
        said: list[tuple[str, str, int, Sequence[AcknowledgedRange]]] = []
        errors: Errors = {}
        for topic in request.topics:
            name = self._ids.name_of(topic.topic_id)
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

    def _errors(self, results: Iterable[PartitionResult]) -> Errors:
        """The outcomes that are errors."""
        return {
            (self._ids.id_of(each.key.topic, each.key.topic_id), each.key.partition): code
            for each in results
            if (code := acknowledge_code(each)) is not ErrorCode.none
        }


async def _asked_again(
    member: KafkaMember,
    said: Acknowledgements,
    settled: asyncio.Future[list[PartitionResult]],
) -> list[PartitionResult]:
    """The results of acknowledgements; while owners change, what was not taken is said again.

    Kafka's clients do not repeat what rides on a fetch: their records would come again. The tokens
    of the locks see to it that nothing is settled twice.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + SAY_AGAIN_S
    results = await settled
    while failed := {each.key.log_id: each.error for each in results if _may_succeed(each)}:
        pause_s = max(each.retry_after_ms or 0 for each in failed.values() if each) / 1000
        pause_s = max(pause_s, SAY_AGAIN_PAUSE_S)
        if loop.time() + pause_s > until_s or member.ended is not None:
            break
        await asyncio.sleep(pause_s)
        again = [each for each in said if tuple(each[:3]) in failed]
        done = [each for each in results if each.key.log_id not in failed]
        results = done + await member.acknowledge(again)
    return results


def _may_succeed(result: PartitionResult) -> bool:
    return result.error is not None and result.error.retriable


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


def _waits(member: KafkaMember, share: ShareSession, enough_bytes: int) -> bool:
    """Whether a fetch goes on waiting."""
    if len(member.shares) == 1:
        unsent, on_way = member.unsent_bytes, member.on_way_records > 0
        return on_way or (unsent < enough_bytes and member.session.credit.left_records > 0)
    # Records that are on their way may be for the fetch from another broker.
    unsent = sum(each.size_bytes for each in member.waiting_at(share))
    may_come = member.session.credit.left_records > 0 or member.on_way_records > 0
    return unsent < enough_bytes and share.wanted_records > 0 and may_come


def _next_turn(member: KafkaMember, node: Node, epoch: int) -> ErrorCode:
    """Takes the next request of an open share session; only a ShareFetch can open one."""
    if epoch == OPEN:
        return ErrorCode.invalid_share_session_epoch
    share = member.shares.get(node)
    if share is None:
        return ErrorCode.share_session_not_found
    if epoch != CLOSE and not share.takes(epoch):
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
    found: Found,
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
    parts: Parts,
    number: int,
    codes: tuple[ErrorCode, ErrorCode],
    deliveries: list[Delivery | Relayed],
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
