"""What is said of topics that Kafka did not describe."""

from __future__ import annotations

from collections.abc import Collection

from sharecoord.errors import SharecoordError, UnknownTopicOrPartitionError
from sharecoord.ports import TopicCatalog


def no_topic(catalog: TopicCatalog, topic: str) -> SharecoordError:
    """Why a topic was not described: Kafka refuses it, or it does not exist."""
    unknown = UnknownTopicOrPartitionError(f"the cluster has no topic {topic!r}")
    return catalog.refusals.get(topic, unknown)


def refused_of(catalog: TopicCatalog, topics: Collection[str]) -> dict[str, str]:
    """Those of some topics that Kafka refuses, and what to allow."""
    refusals = catalog.refusals
    return {topic: refusals[topic].message for topic in sorted(refusals) if topic in topics}
