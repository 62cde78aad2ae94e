"""Questions about topics: their partitions, and the offsets of their logs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from kio.schema.errors import ErrorCode

from sharecoord.api.kafka.cluster import NO_TIME, NODE_ID, NOT_ASKED, operations
from sharecoord.api.kafka.codec import Head, ProtocolError, make
from sharecoord.api.kafka.topic_ids import TopicIds
from sharecoord.config.values import is_topic_name
from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthorizedError
from sharecoord.ports import (
    EARLIEST,
    LATEST,
    FoundOffset,
    OffsetQuery,
    TopicCatalog,
    TopicInfo,
)
from sharecoord.security.actions import ACTIONS_OF, Kind, topic
from sharecoord.security.guard import Guard
from sharecoord.security.principals import Caller

INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})
"""The topics that a broker calls internal."""

PARTITIONS_MAX: Final = 2_000
"""Most partitions of one answer (`max.request.partition.size.limit` of a broker)."""

LEARNT_EACH_S: Final = 1.0
"""Least time between two looks at all topics that questions about unknown ids cause."""

OPERATIONS: Final = operations("read", "describe")
"""Operations on a topic at this port, as Kafka's tools show them."""

_NO_ID: Final = UUID(int=0)
_NOTHING: Final = FoundOffset(-1, -1, -1)


class Topics:
    """Answers questions about topics as the coordinator's own Kafka identity sees them.

    Callers see those with which the rules let them do something.
    """

    def __init__(self, catalog: TopicCatalog, ids: TopicIds, guard: Guard) -> None:
        self._catalog = catalog
        self._ids = ids
        self._guard = guard
        self._learn_from_s = 0.0

    # -- Metadata --------------------------------------------------------------------------------

    async def metadata(self, head: Head, request: Any, caller: Caller) -> tuple[Any, ...]:
        """The topics of Metadata by name or id, or all. No topic is ever made."""
        with_operations = getattr(request, "include_topic_authorized_operations", False)
        asked = request.topics
        # Version 0 can not say null.
        if asked is None or (head.version == 0 and not asked):
            topics = await self._by_name(head, await self._all_names(caller), caller)
        elif any(getattr(each, "topic_id", None) for each in asked):
            # As a broker: names beside ids do not count.
            ids = dict.fromkeys(each.topic_id for each in asked)
            topics = await self._by_id(head, [each for each in ids if each], caller)
        else:
            names = dict.fromkeys(each.name or "" for each in asked)
            topics = await self._by_name(head, list(names), caller)
        return tuple(
            make(
                head,
                "MetadataResponseTopic",
                **each,
                topic_authorized_operations=OPERATIONS if with_operations else NOT_ASKED,
            )
            for each in topics
        )

    async def _by_id(self, head: Head, ids: Sequence[UUID], caller: Caller) -> list[dict[str, Any]]:
        if any(self._ids.name_of(each) is None for each in ids):
            await self._learn_ids()
        named = {each: self._ids.name_of(each) or "" for each in ids}
        known = await self._known([name for name in named.values() if name], caller)
        nothing = "" if head.version < 12 else None
        found = []
        for asked, name in named.items():
            each = known[name] if name else ErrorCode.unknown_topic_or_partition
            # A topic that was made again has another id.
            if isinstance(each, TopicInfo) and self._ids.id_of(name, each.topic_id) == asked:
                found.append(self._found(head, name, each))
                continue
            is_told = each is not ErrorCode.unknown_topic_or_partition
            error = each if isinstance(each, ErrorCode) and is_told else ErrorCode.unknown_topic_id
            found.append(_refused(nothing, error) | {"topic_id": asked})
        return found

    async def _learn_ids(self) -> None:
        """Learns the ids of all topics: who keeps ids over a restart asks for such as are not told.

        Members of a topic that was deleted ask again and again, for nothing.
        """
        now_s = asyncio.get_running_loop().time()
        if now_s < self._learn_from_s:
            return
        self._learn_from_s = now_s + LEARNT_EACH_S
        try:
            infos = await self._catalog.describe(await self._catalog.names())
        except SharecoordError as error:
            raise _unknown_topics(error) from error
        for name, info in infos.items():
            self._ids.id_of(name, info.topic_id)

    async def _by_name(
        self, head: Head, names: Sequence[str], caller: Caller
    ) -> list[dict[str, Any]]:
        known = await self._known(names, caller)
        return [
            self._found(head, name, each) if isinstance(each, TopicInfo) else _refused(name, each)
            for name, each in known.items()
        ]

    async def _all_names(self, caller: Caller) -> list[str]:
        try:
            return [each for each in await self._catalog.names() if self.may_see(caller, each)]
        except SharecoordError as error:
            raise _unknown_topics(error) from error

    def may_see(self, caller: Caller, name: str) -> bool:
        """Whether the rules let a caller do anything with a topic."""
        what, decide = topic(name), self._guard.decide
        return any(decide(caller, action, what).is_allowed for action in ACTIONS_OF[Kind.TOPIC])

    def shown(self, head: Head, found: Any, caller: Caller, request: Any) -> Any:
        """A topic of Kafka's own answer to Metadata, for who may not see all topics.

        None = it is left out, as it was not asked for.
        """
        if not found.name or self.may_see(caller, found.name):
            return found
        asked = request.topics
        if not asked:
            return None
        hidden = {"error_code": ErrorCode.topic_authorization_failed, "partitions": ()}
        if all(each.name != found.name for each in asked):
            return replace(found, **hidden, name="" if head.version < 12 else None)
        hides_id = {"topic_id": _NO_ID} if hasattr(found, "topic_id") else {}
        return replace(found, **hidden, **hides_id)

    async def _known(
        self, names: Sequence[str], caller: Caller
    ) -> dict[str, TopicInfo | ErrorCode]:
        """Each topic, or why there is none."""
        lawful = [name for name in names if is_topic_name(name)]
        seen = {name for name in lawful if self.may_see(caller, name)}
        try:
            infos = await self._catalog.describe(sorted(seen)) if seen else {}
            missing = ErrorCode.unknown_topic_or_partition
        except SharecoordError as error:
            infos, missing = {}, _code_of(error)
        found: dict[str, TopicInfo | ErrorCode] = {}
        for name in names:
            if not is_topic_name(name):
                found[name] = ErrorCode.invalid_topic_exception
            elif name in infos:
                found[name] = infos[name]
            else:
                refused = name not in seen or name in self._catalog.refusals
                found[name] = ErrorCode.topic_authorization_failed if refused else missing
        return found

    def _found(self, head: Head, name: str, info: TopicInfo) -> dict[str, Any]:
        """A topic by the names that the fields of answers have."""
        kind = "MetadataResponsePartition"
        return {
            "error_code": ErrorCode.none,
            "name": name,
            "topic_id": self._ids.id_of(name, info.topic_id),
            "is_internal": name in INTERNAL,
            "partitions": tuple(_partition(head, kind, number) for number in info.partitions),
        }

    # -- DescribeTopicPartitions -----------------------------------------------------------------

    async def partitions(self, head: Head, request: Any, caller: Caller) -> Any:
        """Topics by name with their partitions, in pages; without names all topics."""
        names = sorted({each.name for each in request.topics})
        names = names or await self._all_names(caller)
        cursor, next_cursor = request.cursor, None
        if cursor is not None and cursor.partition_index < 0:
            topics = [_refused(name, ErrorCode.invalid_request) for name in names]
            return self._page(head, topics, None)
        start = ("", 0) if cursor is None else (cursor.topic_name, cursor.partition_index)
        left = min(max(1, request.response_partition_limit), PARTITIONS_MAX)
        topics = []
        known = await self._known([name for name in names if name >= start[0]], caller)
        for name, each in known.items():
            if isinstance(each, ErrorCode):
                topics.append(_refused(name, each))
                continue
            numbers = [n for n in each.partitions if (name, n) >= start]
            if left < len(numbers):
                next_cursor = make(head, "Cursor", topic_name=name, partition_index=numbers[left])
            if left:
                topics.append(self._part(head, name, each, numbers[:left]))
            left -= len(numbers[:left])
            if next_cursor is not None:
                break
        return self._page(head, topics, next_cursor)

    def _part(
        self, head: Head, name: str, info: TopicInfo, numbers: Iterable[int]
    ) -> dict[str, Any]:
        kind = "DescribeTopicPartitionsResponsePartition"
        parts = tuple(_partition(head, kind, number) for number in numbers)
        return {**self._found(head, name, info._replace(partitions=())), "partitions": parts}

    @staticmethod
    def _page(head: Head, topics: Iterable[Mapping[str, Any]], next_cursor: Any) -> Any:
        return make(
            head,
            "DescribeTopicPartitionsResponse",
            throttle_time=NO_TIME,
            next_cursor=next_cursor,
            topics=tuple(
                make(
                    head,
                    "DescribeTopicPartitionsResponseTopic",
                    **each,
                    topic_authorized_operations=OPERATIONS,
                )
                for each in topics
            ),
        )

    # -- ListOffsets -----------------------------------------------------------------------------

    async def list_offsets(self, head: Head, request: Any, caller: Caller) -> Any:
        """Both ends of logs, and the first records since given times."""
        asked = [
            (OffsetQuery(each.name, part.partition_index, part.timestamp), part)
            for each in request.topics
            for part in each.partitions
        ]
        level = getattr(request, "isolation_level", 0)
        known = await self._known(list(dict.fromkeys(query.topic for query, _ in asked)), caller)
        times = Counter((query.topic, query.partition) for query, _ in asked)
        found: dict[OffsetQuery, FoundOffset | ErrorCode] = {}
        for query, part in asked:
            is_doubled = times[query.topic, query.partition] > 1
            if is_doubled or level not in (0, 1):
                found[query] = ErrorCode.invalid_request
            else:
                found[query] = _why_not(query, part, known[query.topic])
        await self._look(found, committed=level == 1)
        return _offsets(head, found)

    async def _look(
        self, found: dict[OffsetQuery, FoundOffset | ErrorCode], *, committed: bool
    ) -> None:
        """Fills in the offsets of the queries that have no error."""
        wanted = [query for query, each in found.items() if not isinstance(each, ErrorCode)]
        missing = ErrorCode.leader_not_available
        try:
            answers = await self._catalog.find_offsets(wanted, committed=committed)
        except SharecoordError as error:
            answers, missing = {}, _code_of(error)
        found.update((query, answers.get(query, missing)) for query in wanted)


def _why_not(
    query: OffsetQuery, part: Any, topic: TopicInfo | ErrorCode
) -> FoundOffset | ErrorCode:
    """The error of a query that is not asked; nothing found as yet for the others."""
    if isinstance(topic, ErrorCode):
        return topic
    if query.partition not in topic.partitions:
        return ErrorCode.unknown_topic_or_partition
    if query.timestamp_ms < 0 and query.timestamp_ms not in (EARLIEST, LATEST):
        # The youngest record, and what tiered storage has: not every Kafka behind can say.
        return ErrorCode.unsupported_version
    # The metadata of this port has epoch 0 for every leader.
    is_newer = getattr(part, "current_leader_epoch", -1) > 0
    return ErrorCode.unknown_leader_epoch if is_newer else _NOTHING


def _offsets(head: Head, found: Mapping[OffsetQuery, FoundOffset | ErrorCode]) -> Any:
    topics: dict[str, dict[int, Any]] = {}
    for query, each in found.items():
        is_error = isinstance(each, ErrorCode)
        spot = _NOTHING if isinstance(each, ErrorCode) else each
        topics.setdefault(query.topic, {})[query.partition] = make(
            head,
            "ListOffsetsPartitionResponse",
            partition_index=query.partition,
            error_code=each if is_error else ErrorCode.none,
            timestamp=spot.timestamp_ms,
            offset=spot.offset,
            leader_epoch=spot.leader_epoch,
        )
    return make(
        head,
        "ListOffsetsResponse",
        throttle_time=NO_TIME,
        topics=tuple(
            make(head, "ListOffsetsTopicResponse", name=name, partitions=tuple(parts.values()))
            for name, parts in topics.items()
        ),
    )


def _unknown_topics(error: SharecoordError) -> ProtocolError:
    """There is no code for it in most versions; a client that is cut off tries again."""
    return ProtocolError(f"the topics are not known: {error.message}")


def _code_of(error: SharecoordError) -> ErrorCode:
    """The code of a topic, or of a partition, of which Kafka did not tell."""
    if isinstance(error, UnauthorizedError):
        return ErrorCode.topic_authorization_failed
    is_down = isinstance(error, KafkaUnavailableError)
    return ErrorCode.leader_not_available if is_down else ErrorCode.unknown_server_error


def _refused(name: str | None, error: ErrorCode) -> dict[str, Any]:
    return {
        "error_code": error,
        "name": name,
        "topic_id": _NO_ID,
        "is_internal": name in INTERNAL,
        "partitions": (),
    }


def _partition(head: Head, kind: str, number: int) -> Any:
    """A partition; this broker leads all."""
    return make(
        head,
        kind,
        error_code=ErrorCode.none,
        partition_index=number,
        leader_id=NODE_ID,
        leader_epoch=0,
        replica_nodes=(NODE_ID,),
        isr_nodes=(NODE_ID,),
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=(),
    )
