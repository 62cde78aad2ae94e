"""Committed offsets of consumer groups, over librdkafka's admin client.

Kafka itself keeps others' groups safe, whatever was read before: it takes offsets for an empty
group only (else UNKNOWN_MEMBER_ID), and none for a share group of its own (GROUP_ID_NOT_FOUND).
"""

from __future__ import annotations

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

from sharecoord.config.setting import invalid_config
from sharecoord.errors import (
    GroupNotEmptyError,
    KafkaUnavailableError,
    SharecoordError,
    UnauthorizedError,
)
from sharecoord.kafka.client import REQUEST_TIMEOUT_S, KafkaError, all_done, make_admin
from sharecoord.ports import CommittedOffset

SETTING = "share.offsets.export.group"

WITHOUT_MEMBERS = frozenset({ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD})
"""Kafka describes a group that does not exist as DEAD, and so its own share groups to who asks for
a consumer group."""


class KafkaOffsetsExport:
    """The `OffsetsExport` of a real cluster; connects at the first call."""

    def __init__(self, settings: Mapping[str, str | int | float | bool]) -> None:
        self._settings = dict(settings)
        self._admin: AdminClient | None = None

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = make_admin(self._settings)
        self._admin.poll(0)  # hears of broken connections
        return self._admin

    async def read(self, group_id: str) -> dict[tuple[str, int], CommittedOffset]:
        """What the group has committed."""
        described = self._client().describe_consumer_groups(
            [group_id], request_timeout=REQUEST_TIMEOUT_S
        )
        if (await _answer(group_id, described)).state not in WITHOUT_MEMBERS:
            raise _has_members(group_id)
        listed = self._client().list_consumer_group_offsets(
            [ConsumerGroupTopicPartitions(group_id)], request_timeout=REQUEST_TIMEOUT_S
        )
        found: dict[tuple[str, int], CommittedOffset] = {}
        for place in (await _answer(group_id, listed)).topic_partitions:
            if place.error is not None:
                raise _problem(group_id, place.error)
            found[place.topic, place.partition] = CommittedOffset(
                place.offset, place.metadata or ""
            )
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
            if place.error is None:
                written.add((place.topic, place.partition))
            elif place.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _problem(group_id, place.error)
        return written

    async def close(self) -> None:
        """Drops the client."""
        self._admin = None


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
    # librdkafka says the second one of groups of Kafka Connect and their like.
    if name in {"GROUP_ID_NOT_FOUND", "_INVALID_ARG"}:
        return invalid_config(
            SETTING,
            group_id,
            "Kafka has a group of this name that is not a consumer group",
            fix="Choose another name",
        )
    if name in {"GROUP_AUTHORIZATION_FAILED", "TOPIC_AUTHORIZATION_FAILED"}:
        return UnauthorizedError(
            f'{SETTING}="{group_id}": Kafka refuses it to the coordinator ({name}); allow READ on '
            "this consumer group and READ on the group's topics"
        )
    return KafkaUnavailableError(
        f"Kafka did not take or show the offsets of consumer group {group_id!r}: {name} "
        f"{error.str()}".rstrip()
    )


def _has_members(group_id: str) -> GroupNotEmptyError:
    return GroupNotEmptyError(
        f'{SETTING}="{group_id}": the consumer group of this name has members; stop them, or '
        "choose another name"
    )
