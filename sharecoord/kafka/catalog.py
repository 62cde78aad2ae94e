"""Topics, their ids and the ends of their logs, over librdkafka's admin client.

Each topic, and each partition, is answered by itself: what Kafka refuses, or has no leader for,
keeps nobody from the others.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

import structlog
from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sharecoord.errors import KafkaUnavailableError, SharecoordError, UnauthorizedError
from sharecoord.kafka.client import (
    GONE,
    REQUEST_TIMEOUT_S,
    KafkaError,
    Settings,
    all_done,
    make_admin,
    refusal,
)
from sharecoord.kafka.looks import SharedLooks
from sharecoord.kafka.refusals import DESCRIBE, OFFSETS, Refusals
from sharecoord.kafka.wire.keys import brokers_of
from sharecoord.ports import EARLIEST, LATEST, FoundOffset, OffsetQuery, TopicInfo

log = structlog.get_logger(__name__)

MOCK_CLUSTER = "mockCluster"
"""Begin of the id of librdkafka's mock cluster. It has no controller to describe topics (a client
that asks waits in vain), and is what the demo and tests run on without Java."""

NO_TOPIC_ID = bytes(16).hex()

Described = TopicInfo | UnauthorizedError
"""A topic that exists, or Kafka's refusal to describe it."""

_LIBRDKAFKA_FRAME = re.compile(r"^\S+/\w+: | \(after \d+ms in state \w+\)")


class KafkaCatalog:
    """The `TopicCatalog` of a real cluster."""

    def __init__(self, settings: Settings, refusals: Refusals | None = None) -> None:
        """Connects at the first call; `refusals` are shared with the reader of the same cluster."""
        self._settings = dict(settings)
        self.brokers = 1
        """Number of brokers, as of the last `cluster_id`."""
        self.refusals = Refusals() if refusals is None else refusals
        self._unknown_ends: dict[tuple[str, int], str] = {}
        """Partitions whose offsets are not known, and why: each is logged once."""
        self._admin: AdminClient | None = None
        self._connection_error = ""
        self._is_mock: bool | None = None
        """Whether the cluster is librdkafka's mock one; None = not asked yet."""
        self._looks = SharedLooks(self._describe_each)

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = make_admin(self._settings, self._connection_failed)
        return self._admin

    def _connection_failed(self, error: KafkaError) -> None:
        """Remembers why a broker could not be reached; "all brokers down" does not replace it."""
        if error.code() != KafkaError._ALL_BROKERS_DOWN:
            # Without "host:port/bootstrap: " before and "(after 0ms in state CONNECT)" behind.
            self._connection_error = _LIBRDKAFKA_FRAME.sub("", error.str())

    async def cluster_id(self) -> str:
        """Kafka's cluster id."""
        metadata = await asyncio.to_thread(self._metadata)
        self.brokers = len(metadata.brokers)
        return str(metadata.cluster_id or "")

    def _metadata(self) -> Any:
        try:
            return self._client().list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise self._unavailable(error.args[0].str()) from error

    def _unavailable(self, what: str) -> KafkaUnavailableError:
        """The error for no answer, with librdkafka's own word about the connection."""
        self._connection_error = ""
        self._client().poll(0)
        address = brokers_of(self._settings)
        why = self._connection_error or what
        return KafkaUnavailableError(
            f"no answer from Kafka at {address}: {why}. Check that the broker is up and that "
            "kafka.bootstrap.servers (--kafka) is a broker's address, not a coordinator's",
            retry_after_ms=1000,
        )

    async def names(self) -> list[str]:
        """All topics that Kafka shows us."""
        metadata = await asyncio.to_thread(self._metadata)
        return sorted(name for name, topic in metadata.topics.items() if topic.error is None)

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The topics that exist, with id and partitions."""
        answers = await self._describe_each(topics)
        return {topic: answer for topic, answer in answers.items() if isinstance(answer, TopicInfo)}

    async def _describe_each(self, topics: Sequence[str]) -> Mapping[str, Described]:
        """The topics that exist, and those that Kafka refuses."""
        if not topics:
            return {}
        if self._is_mock is None:
            self._is_mock = (await self.cluster_id()).startswith(MOCK_CLUSTER)
        if self._is_mock:
            return await asyncio.to_thread(self._describe_from_metadata, list(topics))
        futures: dict[str, Future[Any]] = self._client().describe_topics(
            TopicCollection(list(topics)), request_timeout=REQUEST_TIMEOUT_S
        )
        # No thread waits: records may be held until this answer is there.
        await all_done(futures.values())
        return self._described(futures)

    async def look(self, topic: str) -> TopicInfo | None:
        """A topic as it is now, by a request shared with others."""
        return await self._looks.look(topic)

    def _described(self, futures: Mapping[str, Future[Any]]) -> dict[str, Described]:
        found: dict[str, Described] = {}
        for topic, future in futures.items():
            answer, error = _outcome(future)
            refused = None if error is None else refusal(topic, error)
            if refused is not None:
                self.refusals.add(topic, DESCRIBE, refused)
                found[topic] = refused
                continue
            if error is not None and error.code() not in GONE:
                # The error counts for all topics: none may be taken for deleted because of it.
                raise self._unavailable(error.str())
            self.refusals.answered(topic, DESCRIBE)
            if answer is not None:
                partitions = tuple(sorted(p.id for p in answer.partitions))
                found[topic] = TopicInfo(topic_id_text(answer.topic_id), partitions)
        return found

    def _describe_from_metadata(self, topics: list[str]) -> Mapping[str, Described]:
        """Describes topics by plain metadata, which has no topic ids."""
        known = self._metadata().topics
        return {
            topic: TopicInfo("", tuple(sorted(known[topic].partitions)))
            for topic in topics
            if topic in known and known[topic].error is None
        }

    async def offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, int]:
        """Log start, log end, or the first offset at a time."""
        answers = await self.find_offsets(queries, committed=committed)
        found = {query: each.offset for query, each in answers.items() if each.offset >= 0}
        late = {
            query: query._replace(timestamp_ms=LATEST)
            for query in answers.keys() - found
            if query.timestamp_ms >= 0
        }
        ends = await self.find_offsets(list(set(late.values())), committed=committed)
        for query, end in late.items():
            if end in ends and ends[end].offset >= 0:
                found[query] = ends[end].offset
        return found

    async def find_offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, FoundOffset]:
        """As `offsets`, with the record's time."""
        if not queries:
            return {}
        return await asyncio.to_thread(self._find, list(queries), committed)

    def _find(self, queries: list[OffsetQuery], committed: bool) -> dict[OffsetQuery, FoundOffset]:  # noqa: FBT001
        found: dict[OffsetQuery, FoundOffset] = {}
        for kind in {q.timestamp_ms for q in queries}:
            part = [q for q in queries if q.timestamp_ms == kind]
            found |= self._list_offsets(part, kind, committed=committed)
        return found

    def _list_offsets(
        self, queries: list[OffsetQuery], kind: int, *, committed: bool
    ) -> dict[OffsetQuery, FoundOffset]:
        makers: dict[int, Any] = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest}
        spec = makers[kind]() if kind in makers else OffsetSpec.for_timestamp(kind)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(q.topic, q.partition): q for q in queries}
        futures = self._client().list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=REQUEST_TIMEOUT_S
        )
        answers: dict[OffsetQuery, FoundOffset] = {}
        problem: SharecoordError | None = None
        for place, future in futures.items():
            answer, error = _outcome(future)
            if error is None:
                self._unknown_ends.pop((place.topic, place.partition), None)
                self.refusals.answered(place.topic, OFFSETS)
                answers[wanted[place]] = _found(answer)
            elif error.code() not in GONE:
                problem = self._not_known(place, error)
        if problem is not None and not answers:
            # No partition has answered: the caller hears why.
            raise problem
        return answers

    def _not_known(self, place: TopicPartition, error: KafkaError) -> SharecoordError:
        """The error for a partition whose offsets are not known, which is logged once."""
        refused = refusal(place.topic, error)
        if refused is not None:
            self.refusals.add(place.topic, OFFSETS, refused)
        if place.topic in self.refusals:
            # Where all topics of a request are refused, librdkafka says that it found no leaders.
            return self.refusals[place.topic]
        key, why = (place.topic, place.partition), error.name()
        if self._unknown_ends.get(key) != why:
            self._unknown_ends[key] = why
            log.warning("offsets of a partition not known", topic=key[0], partition=key[1], why=why)
        return self._unavailable(error.str())

    def renew(self) -> None:
        """Asks with a new client from now on, which reads the files of its settings anew."""
        former, self._admin = self._admin, None
        # A client must outlive its questions.
        loop = asyncio.get_running_loop()
        loop.call_later(REQUEST_TIMEOUT_S + 1, lambda client: None, former)

    async def close(self) -> None:
        """Drops the client."""
        await self._looks.close()
        self._admin = None


def _outcome(future: Future[Any]) -> tuple[Any, KafkaError | None]:
    """The answer of a request that has ended or will within its time limit, or Kafka's error."""
    try:
        return future.result(REQUEST_TIMEOUT_S + 1), None
    except KafkaException as error:
        return None, error.args[0]
    except FutureTimeoutError:
        return None, KafkaError(KafkaError._TIMED_OUT)


def _found(answer: Any) -> FoundOffset:
    epoch = answer.leader_epoch
    return FoundOffset(answer.offset, answer.timestamp, -1 if epoch is None else epoch)


def topic_id_text(uuid: Any) -> str:
    """A topic id as 32 hex digits; "" when the cluster has none."""
    if uuid is None:
        return ""
    high = uuid.get_most_significant_bits() & (2**64 - 1)
    low = uuid.get_least_significant_bits() & (2**64 - 1)
    text = f"{high:016x}{low:016x}"
    return "" if text == NO_TOPIC_ID else text
