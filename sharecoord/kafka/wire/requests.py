"""Questions to brokers, as kio has them: metadata, offsets, ends of epochs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from kio.schema.list_offsets.v6 import request as list_offsets
from kio.schema.metadata.v11.request import MetadataRequest, MetadataRequestTopic
from kio.schema.offset_for_leader_epoch.v4 import request as leader_epoch
from kio.schema.types import BrokerId
from kio.schema.types import TopicName as KioTopicName
from kio.static.primitive import i8, i32, i64

from sharecoord.ports import OffsetQuery

QUERIES_MAX: Final = 500
"""Of a request about offsets: making one holds the loop for 20 µs a query."""


def place_of(each: object) -> tuple[str, int]:
    """Topic and partition of a question."""
    topic, partition = each[:2]  # type: ignore[index]
    return topic, partition


def metadata_request(names: Iterable[str] | None) -> MetadataRequest:
    """A question about topics, None = all, and about all brokers."""
    topics = None if names is None else sorted(names)
    return MetadataRequest(
        topics=None
        if topics is None
        else tuple(MetadataRequestTopic(topic_id=None, name=KioTopicName(name)) for name in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def without_doubles(
    some: Sequence[tuple[OffsetQuery, int]],
) -> list[list[tuple[OffsetQuery, int]]]:
    """The queries in parts: Kafka takes a partition only once in a request, the loop a little."""
    parts: list[list[tuple[OffsetQuery, int]]] = []
    met: Counter[tuple[str, int]] = Counter()
    for query, epoch in some:
        place = place_of(query)
        if met[place] == len(parts):
            parts.append([])
        parts[met[place]].append((query, epoch))
        met[place] += 1
    return [
        part[at : at + QUERIES_MAX] for part in parts for at in range(0, len(part), QUERIES_MAX)
    ]


def list_request(
    part: Sequence[tuple[OffsetQuery, int]], *, committed: bool
) -> list_offsets.ListOffsetsRequest:
    """A question about offsets; each query has the epoch of the leader that is asked."""
    topics: dict[str, list[list_offsets.ListOffsetsPartition]] = {}
    for query, epoch in part:
        topics.setdefault(query.topic, []).append(
            list_offsets.ListOffsetsPartition(
                partition_index=i32(query.partition),
                current_leader_epoch=i32(epoch),
                timestamp=i64(query.timestamp_ms),
            )
        )
    return list_offsets.ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(committed),
        topics=tuple(
            list_offsets.ListOffsetsTopic(name=KioTopicName(name), partitions=tuple(each))
            for name, each in topics.items()
        ),
    )


def epoch_request(
    part: Sequence[tuple[tuple[str, int], int, int]],
) -> leader_epoch.OffsetForLeaderEpochRequest:
    """A question about ends of epochs: place, the leader's own epoch, the epoch asked for."""
    topics: dict[str, list[leader_epoch.OffsetForLeaderPartition]] = {}
    for (topic, partition), current, epoch in part:
        topics.setdefault(topic, []).append(
            leader_epoch.OffsetForLeaderPartition(
                partition=i32(partition),
                current_leader_epoch=i32(current),
                leader_epoch=i32(epoch),
            )
        )
    return leader_epoch.OffsetForLeaderEpochRequest(
        replica_id=BrokerId(-1),
        topics=tuple(
            leader_epoch.OffsetForLeaderTopic(topic=KioTopicName(name), partitions=tuple(each))
            for name, each in topics.items()
        ),
    )
