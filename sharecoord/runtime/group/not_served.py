"""The error for acknowledgements that a share-partition does not take now."""

from __future__ import annotations

from sharecoord.core.changes import LANE_MARK
from sharecoord.errors import (
    KafkaUnavailableError,
    SharecoordError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState


def why_not_served(
    group: Group, actor: PartitionActor | None, topic: str, topic_id: str, partition: int
) -> SharecoordError | None:
    """The error to answer; None = the share-partition is served here.

    `topic` may be the name of a lane; `topic_id` is 32 hex digits, "" = any.
    """
    if actor is None and _may_open(group, topic):
        return KafkaUnavailableError(f"{topic} is not opened yet", retry_after_ms=500)
    if actor is None or (topic_id and topic_id != actor.key.topic_id):
        return UnknownTopicOrPartitionError(
            f"group {group.group_id!r} has no share-partition {topic}[{partition}]"
            + (f" with topic id {topic_id}" if topic_id else "")
        )
    if actor.state is not ActorState.ACTIVE:
        return StoreUnavailableError(
            f"{topic}[{partition}] is {actor.state.value} {actor.stopped_reason}".rstrip(),
            retry_after_ms=200,
        )
    return None


def _may_open(group: Group, topic: str) -> bool:
    if LANE_MARK in topic and not group.context.lanes_known:
        return True
    return topic in group.topics and not group.is_open(topic)
