"""Topics, their ids and the ends of their logs, over connections of our own.

Questions have connections beside those that fetch: a broker works on the requests of a connection
in order, and a fetch may wait there for records.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from typing import Final, TypeVar

import structlog
from kio.schema.errors import ErrorCode

from sharecoord.errors import (
    KafkaUnavailableError,
    SharecoordError,
    UnauthenticatedError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)
from sharecoord.kafka.looks import SharedLooks
from sharecoord.kafka.refusals import DESCRIBE, OFFSETS, Refusals, refused
from sharecoord.kafka.wire.cluster import GONE, Cluster, Topic
from sharecoord.ports import LATEST, FoundOffset, OffsetQuery, TopicInfo

log = structlog.get_logger(__name__)

T = TypeVar("T")

METADATA_TIMEOUT_S: Final = 10.0
"""Longest wait for an answer about topics, of any broker."""

AGAIN_S: Final = 0.2
"""Pause between two attempts to reach a Kafka for the first time."""

OFFSETS_TIMEOUT_S: Final = 5.0
"""Longest wait for offsets. Partitions without a leader, or whose broker hangs, are left out then;
the others are answered with them, so it is short."""


class WireCatalog:
    """The `TopicCatalog` of a real cluster that has no other client."""

    def __init__(self, cluster: Cluster, refusals: Refusals | None = None) -> None:
        """Asks nothing yet.

        Args:
            cluster: Also of those who read; whoever made it closes it.
            refusals: Shared with the reader of the same cluster.
        """
        self._cluster = cluster
        self.refusals = Refusals() if refusals is None else refusals
        self._unknown_ends: dict[tuple[str, int], str] = {}
        """Partitions whose offsets are not known, and why: each is logged once."""
        self._looks = SharedLooks(self._describe_each)

    @property
    def brokers(self) -> int:
        """Number of brokers, as far as is known."""
        return max(1, len(self._cluster.nodes))

    async def cluster_id(self) -> str:
        """Kafka's cluster id; a Kafka that starts beside us has some seconds."""
        until_s = asyncio.get_running_loop().time() + METADATA_TIMEOUT_S
        while True:
            try:
                await self._describe_each([])
            except KafkaUnavailableError as error:
                is_refused = isinstance(error.__cause__, UnauthenticatedError)
                if is_refused or asyncio.get_running_loop().time() >= until_s:
                    raise
                await asyncio.sleep(AGAIN_S)
            else:
                return self._cluster.cluster_id or ""

    async def names(self) -> list[str]:
        """All topics that Kafka shows us."""
        return await self._asked(self._cluster.names())

    async def describe(self, topics: Sequence[str]) -> dict[str, TopicInfo]:
        """The topics that exist, with id and partitions."""
        if not topics:
            return {}
        found: dict[str, TopicInfo] = {}
        for topic, answer in (await self._describe_each(topics)).items():
            if isinstance(answer, TopicInfo):
                found[topic] = answer
            elif not isinstance(answer, UnauthorizedError):
                # What is left out counts as gone.
                raise answer
        return found

    async def look(self, topic: str) -> TopicInfo | None:
        """A topic as it is now, by a request shared with others."""
        return await self._looks.look(topic)

    async def _describe_each(
        self, topics: Sequence[str]
    ) -> Mapping[str, TopicInfo | SharecoordError]:
        """The topics that exist, and why there is no answer for others."""
        found = await self._asked(self._cluster.describe(topics))
        answers = {topic: self._answer(topic, each) for topic, each in found.items()}
        return {topic: answer for topic, answer in answers.items() if answer is not None}

    async def _asked(self, question: Awaitable[T]) -> T:
        """The answer to a question about topics, while there is time."""
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                return await question
        except TimeoutError:
            raise self._unavailable(f"none within {METADATA_TIMEOUT_S:g} s") from None
        except (KafkaUnavailableError, UnauthenticatedError) as error:
            raise self._unavailable(error.message) from error

    def _answer(self, name: str, topic: Topic) -> TopicInfo | SharecoordError | None:
        if topic.error is ErrorCode.topic_authorization_failed:
            self.refusals.add(name, DESCRIBE, refused(name))
            return refused(name)
        if topic.error not in GONE and topic.error is not ErrorCode.none:
            return self._unavailable(f"topic {name!r} is not described ({topic.error.name})")
        self.refusals.answered(name, DESCRIBE)
        if topic.error in GONE:
            return None
        return TopicInfo(topic.topic_id.hex(), tuple(sorted(topic.leaders)))

    def _unavailable(self, why: str) -> KafkaUnavailableError:
        address = ",".join(map(str, self._cluster.options.servers))
        return KafkaUnavailableError(
            f"no answer from Kafka at {address}: {why}. Check that the broker is up and that "
            "kafka.bootstrap.servers (--kafka) is a broker's address, not a coordinator's",
            retry_after_ms=1000,
        )

    async def offsets(
        self, queries: Sequence[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, int]:
        """Log start, log end, or the first offset at a time."""
        if not queries:
            return {}
        found = await self.find_offsets(queries, committed=committed)
        late = {q: q._replace(timestamp_ms=LATEST) for q, each in found.items() if each.offset < 0}
        offsets = {q: each.offset for q, each in found.items() if q not in late}
        if late:
            ends = await self.find_offsets(set(late.values()), committed=committed)
            offsets |= {q: ends[end].offset for q, end in late.items() if end in ends}
        return offsets

    async def find_offsets(
        self, queries: Sequence[OffsetQuery] | set[OffsetQuery], *, committed: bool = False
    ) -> dict[OffsetQuery, FoundOffset]:
        """The answers that there are; raises when there is none, unless all partitions are gone."""
        try:
            found = await self._cluster.list_offsets(
                queries, committed=committed, timeout_s=OFFSETS_TIMEOUT_S
            )
        except (KafkaUnavailableError, UnauthenticatedError) as error:
            raise self._unavailable(error.message) from error
        answers: dict[OffsetQuery, FoundOffset] = {}
        problem: SharecoordError | None = None
        for query, each in found.items():
            if not isinstance(each, SharecoordError):
                self._unknown_ends.pop((query.topic, query.partition), None)
                self.refusals.answered(query.topic, OFFSETS)
                answers[query] = each
            elif not isinstance(each, UnknownTopicOrPartitionError):
                problem = self._not_known(query, each)
        if problem is not None and not answers:
            # No partition has answered: the caller hears why.
            raise problem
        return answers

    def _not_known(self, query: OffsetQuery, why: SharecoordError) -> SharecoordError:
        """The error for a partition whose offsets are not known, which is logged once."""
        if isinstance(why, UnauthorizedError):
            self.refusals.add(query.topic, OFFSETS, why)
            return why
        place = query.topic, query.partition
        if self._unknown_ends.get(place) != why.message:
            self._unknown_ends[place] = why.message
            log.warning(
                "offsets of a partition not known",
                topic=query.topic,
                partition=query.partition,
                why=why.message,
            )
        return self._unavailable(why.message)

    async def close(self) -> None:
        """Ends the look under way."""
        await self._looks.close()
