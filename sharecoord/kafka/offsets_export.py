"""Committed offsets of consumer groups: read by a consumer, written by librdkafka's admin client.

Kafka itself keeps others' groups safe, whatever was read before: it takes offsets for an empty
group only (else UNKNOWN_MEMBER_ID), and none for a share group of its own (GROUP_ID_NOT_FOUND).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from sharecoord.errors import (
    GroupNotEmptyError,
    InvalidConfigError,
    KafkaUnavailableError,
    SharecoordError,
    UnauthorizedError,
)
from sharecoord.kafka.client import (
    REQUEST_TIMEOUT_S,
    KafkaError,
    Settings,
    all_done,
    make_admin,
    make_group_reader,
    refusal,
)
from sharecoord.kafka.refusals import COMMIT, Refusals
from sharecoord.ports import CommittedOffset

WITHOUT_MEMBERS = frozenset({ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD})
"""States without members. Kafka describes a group that does not exist as DEAD, and so its own share
groups when a consumer group is asked for."""

READ_PARTITIONS_MAX = 10_000
"""Partitions of one request, of some 400 kB."""

_NOT_OURS_TO_SEE = frozenset(
    {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.UNKNOWN_TOPIC_OR_PART}
)
"""Errors of partitions that `read` leaves out; a `write` to one of them reports it."""


class KafkaOffsetsExport:
    """The `OffsetsExport` of a real cluster; connects at the first call."""

    def __init__(self, settings: Settings, refusals: Refusals | None = None) -> None:
        """Starts nothing; `refusals` are shared with the catalog of the same cluster."""
        self._settings = dict(settings)
        self._refusals = Refusals() if refusals is None else refusals
        self._admin: AdminClient | None = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = make_admin(self._settings)
        self._admin.poll(0)  # hears of broken connections
        return self._admin

    async def read(
        self, group_id: str, *, even_with_members: bool = False
    ) -> dict[tuple[str, int], CommittedOffset]:
        """The offsets that the group has committed, by topic and partition."""
        described = self._client().describe_consumer_groups(
            [group_id], request_timeout=REQUEST_TIMEOUT_S
        )
        state = (await _answer(group_id, described)).state
        if state not in WITHOUT_MEMBERS and not even_with_members:
            raise _has_members(group_id)
        found: dict[tuple[str, int], CommittedOffset] = {}
        for place in await asyncio.to_thread(_committed, self._settings, group_id):
            if place.error is None:
                if place.offset >= 0:
                    found[place.topic, place.partition] = CommittedOffset(
                        place.offset, metadata_of(place)
                    )
            elif place.error.code() not in _NOT_OURS_TO_SEE:
                raise _problem(group_id, place.error)
        return found

    async def write(
        self, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> set[tuple[str, int]]:
        """Commits for the group."""
        places = [TopicPartition(*place, *committed) for place, committed in offsets.items()]
        altered = self._client().alter_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id, places)], request_timeout=REQUEST_TIMEOUT_S
        )
        written: set[tuple[str, int]] = set()
        for place in (await _answer(group_id, altered)).topic_partitions:
            refused = None if place.error is None else refusal(place.topic, place.error)
            if place.error is None:
                self._refusals.answered(place.topic, COMMIT)
                written.add((place.topic, place.partition))
            elif refused is not None:
                self._refusals.add(place.topic, COMMIT, refused)
            elif place.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _problem(group_id, place.error)
        return written

    async def close(self) -> None:
        """Drops the client."""
        self._admin = None


def metadata_of(place: TopicPartition) -> str:
    """A commit's metadata; confluent-kafka may append bytes up to some NUL, which are not UTF-8."""
    try:
        return place.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _committed(settings: Settings, group_id: str) -> list[TopicPartition]:
    """Asks for the committed offset of every partition of the cluster, and waits.

    No client is kept for it: a group is looked at once a minute.
    """
    consumer = make_group_reader(settings, group_id)
    try:
        topics = consumer.list_topics(timeout=REQUEST_TIMEOUT_S).topics
        places = [TopicPartition(name, n) for name in topics for n in topics[name].partitions]
        found: list[TopicPartition] = []
        for start in range(0, len(places), READ_PARTITIONS_MAX):
            part = places[start : start + READ_PARTITIONS_MAX]
            found += consumer.committed(part, timeout=REQUEST_TIMEOUT_S)
    except KafkaException as error:
        raise _problem(group_id, error.args[0]) from error
    finally:
        consumer.close()
    return found


async def _answer(group_id: str, futures: Mapping[str, Future[Any]]) -> Any:
    """The answer for the only group that was asked for; no thread waits."""
    await all_done(futures.values())
    try:
        return futures[group_id].result()
    except KafkaException as error:
        raise _problem(group_id, error.args[0]) from error


def _problem(group_id: str, error: KafkaError) -> SharecoordError:
    """Kafka's error as one that names the fix."""
    name = error.name()
    if name == "UNKNOWN_MEMBER_ID":
        return _has_members(group_id)
    # librdkafka reports the second one for groups of Kafka Connect and their like.
    if name in {"GROUP_ID_NOT_FOUND", "_INVALID_ARG"}:
        return InvalidConfigError(
            f"consumer group {group_id!r}: Kafka has a group of this name that is not a consumer "
            "group. Choose another name"
        )
    if name in {"GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}:
        return UnauthorizedError(
            f"Kafka refuses consumer group {group_id!r} to the coordinator ({name}); allow READ on "
            "it and READ on the share group's topics"
        )
    return KafkaUnavailableError(
        f"Kafka did not take or show the offsets of consumer group {group_id!r}: {name} "
        f"{error.str()}".rstrip()
    )


def _has_members(group_id: str) -> GroupNotEmptyError:
    return GroupNotEmptyError(
        f"consumer group {group_id!r} of Kafka has members; stop them, or choose another name"
    )
