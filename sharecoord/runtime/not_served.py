"""Why a share-partition takes no acknowledgements now."""

from __future__ import annotations

from sharecoord.errors import (
    KafkaUnavailableError,
    SharecoordError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.partition_actor import PartitionActor


def why_not_served(
    actor: PartitionActor | None,
    group_id: str,
    topic: str,
    topic_id: str,
    partition: int,
    *,
    is_opening: bool,
) -> SharecoordError | None:
    """What to answer; None = it is served here.

    Args:
        actor: What serves it here.
        group_id: Which group was asked for, and so on.
        topic: The topic.
        topic_id: 32 hex digits; "" = whichever.
        partition: The partition.
        is_opening: Whether its topic is not open yet, and wanted.
    """
    if actor is None and is_opening:
        return KafkaUnavailableError(f"{topic} is not opened yet", retry_after_ms=500)
    if actor is None or (topic_id and topic_id != actor.key.topic_id):
        return UnknownTopicOrPartitionError(
            f"group {group_id!r} has no share-partition {topic}[{partition}]"
            + (f" with topic id {topic_id}" if topic_id else "")
        )
    if actor.state is not ActorState.ACTIVE:
        return StoreUnavailableError(
            f"{topic}[{partition}] is {actor.state.value} {actor.stopped_reason}".rstrip(),
            retry_after_ms=200,
        )
    return None
