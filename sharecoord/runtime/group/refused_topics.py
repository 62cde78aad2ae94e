"""Answers about topics that Kafka did not describe."""

from __future__ import annotations

from collections.abc import Collection

from sharecoord.errors import SharecoordError, UnknownTopicOrPartitionError
from sharecoord.ports import TopicCatalog


def no_topic(catalog: TopicCatalog, topic: str) -> SharecoordError:
    """The error about a topic that Kafka refuses, or that does not exist."""
    unknown = UnknownTopicOrPartitionError(f"the cluster has no topic {topic!r}")
    return catalog.refusals.get(topic, unknown)


def refused_of(catalog: TopicCatalog, topics: Collection[str]) -> dict[str, str]:
    """The topics among these that Kafka refuses, and what to allow."""
    refusals = catalog.refusals
    return {topic: refusals[topic].message for topic in sorted(refusals) if topic in topics}
