"""Topics, their ids and the ends of their logs, over librdkafka's admin client."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from sharecoord.errors import KafkaUnavailableError
from sharecoord.kafka.client import make_admin
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, TopicInfo

REQUEST_TIMEOUT_S = 10.0
"""Longest wait for one admin answer: two request timeouts of a slow broker."""

NO_TOPIC_ID = bytes(16).hex()


class KafkaCatalog:
    """The `TopicCatalog` of a real cluster."""

    def __init__(self, settings: Mapping[str, str | int | float | bool]) -> None:
        self._settings = dict(settings)
        self._admin: AdminClient | None = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = make_admin(self._settings)
        return self._admin

    async def cluster_id(self) -> str:
        """Kafka's cluster id."""
        metadata = await asyncio.to_thread(self._metadata)
        return str(metadata.cluster_id or "")

    def _metadata(self, topic: str | None = None) -> Any:
        try:
            if topic is None:
                return self._client().list_topics(timeout=REQUEST_TIMEOUT_S)
            return self._client().list_topics(topic, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: object) -> KafkaUnavailableError:
        address = self._settings.get("bootstrap.servers", "?")
        return KafkaUnavailableError(
            f"no answer from Kafka at {address}: {error}; is the address right and the broker up?",
            retry_after_ms=1000,
        )

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The topics that exist, with id and partitions."""
        if not topics:
            return {}
        return await asyncio.to_thread(self._describe, list(topics))

    def _describe(self, topics: list[str]) -> dict[str, TopicInfo]:
        found: dict[str, TopicInfo] = {}
        futures = self._client().describe_topics(
            TopicCollection(topics), request_timeout=REQUEST_TIMEOUT_S
        )
        for topic, future in futures.items():
            description = self._result(future)
            if description is None:
                continue
            partitions = tuple(sorted(p.id for p in description.partitions))
            found[topic] = TopicInfo(_topic_id(description.topic_id), partitions)
        return found

    def _result(self, future: Future[Any]) -> Any:
        """The answer, None for what the cluster does not have."""
        try:
            return future.result(REQUEST_TIMEOUT_S + 1)
        except KafkaException as error:
            kafka_error = error.args[0]
            if kafka_error.name() in {
                "UNKNOWN_TOPIC_OR_PART",
                "_UNKNOWN_TOPIC",
                "_UNKNOWN_PARTITION",
            }:
                return None
            raise self._unavailable(kafka_error.str()) from error
        except FutureTimeoutError as error:
            raise self._unavailable("timed out") from error

    async def offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, int]:
        """Log start, log end, or the first offset at a time."""
        if not queries:
            return {}
        return await asyncio.to_thread(self._offsets, list(queries), committed)

    def _offsets(self, queries: list[OffsetQuery], committed: bool) -> dict[OffsetQuery, int]:  # noqa: FBT001
        found: dict[OffsetQuery, int] = {}
        late: list[OffsetQuery] = []
        for kind in {q.timestamp_ms for q in queries}:
            part = [q for q in queries if q.timestamp_ms == kind]
            for query, offset in self._list_offsets(part, kind, committed=committed).items():
                if offset >= 0:
                    found[query] = offset
                elif kind >= 0:
                    late.append(query)
        if late:
            ends = self._list_offsets(late, LATEST, committed=committed)
            found.update({query: offset for query, offset in ends.items() if offset >= 0})
        return found

    def _list_offsets(
        self, queries: list[OffsetQuery], kind: int, *, committed: bool
    ) -> dict[OffsetQuery, int]:
        makers: dict[int, Any] = {EARLIEST: OffsetSpec.earliest, LATEST: OffsetSpec.latest}
        spec = makers[kind]() if kind in makers else OffsetSpec.for_timestamp(kind)
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        wanted = {TopicPartition(q.topic, q.partition): q for q in queries}
        futures = self._client().list_offsets(
            dict.fromkeys(wanted, spec), isolation_level=level, request_timeout=REQUEST_TIMEOUT_S
        )
        answers: dict[OffsetQuery, int] = {}
        for place, future in futures.items():
            answer = self._result(future)
            if answer is not None:
                answers[wanted[place]] = answer.offset
        return answers

    async def close(self) -> None:
        """Drops the client."""
        self._admin = None


def _topic_id(uuid: Any) -> str:
    """A topic id as 32 hex digits; "" when the cluster has none."""
    if uuid is None:
        return ""
    high = uuid.get_most_significant_bits() & (2**64 - 1)
    low = uuid.get_least_significant_bits() & (2**64 - 1)
    text = f"{high:016x}{low:016x}"
    return "" if text == NO_TOPIC_ID else text
