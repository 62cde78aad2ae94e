"""Groups that keep order by key, and have lanes: which share-partitions have keys in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sharecoord.core.changes import LANE_MARK, served_by
from sharecoord.core.shared_keys import SharedKeys
from sharecoord.runtime.dispatch import Dispatcher
from sharecoord.runtime.partition_actor import PartitionActor


class OrderedGroup(Protocol):
    """What is needed of a group."""

    topic_ids: dict[str, str]
    partitions: dict[tuple[str, int], PartitionActor]
    shared_keys: dict[str, SharedKeys]
    """By topic; only of topics with lanes."""
    dispatcher: Dispatcher


def share(group: OrderedGroup, topic: str) -> None:
    """Everything that serves a topic keeps order together, as long as the topic has lanes."""
    lanes = [name for name in group.topic_ids if LANE_MARK in name and served_by(name) == topic]
    if not lanes:
        return
    shared = group.shared_keys.get(topic)
    if shared is None:
        shared = group.shared_keys[topic] = SharedKeys(lambda: _wake(group, topic))
    for actor in _serving(group, topic):
        if actor.partition is not None:
            actor.partition.share_keys(shared)


def part(group: OrderedGroup, open_topics: Mapping[str, object]) -> None:
    """Topics whose lanes have nothing left keep their order alone again."""
    for topic in group.shared_keys.keys() - open_topics.keys():
        del group.shared_keys[topic]
        for actor in _serving(group, topic):
            if actor.partition is not None:
                actor.partition.share_keys(None)


def _serving(group: OrderedGroup, topic: str) -> list[PartitionActor]:
    return [actor for actor in group.partitions.values() if actor.key.served == topic]


def _wake(group: OrderedGroup, topic: str) -> None:
    for actor in _serving(group, topic):
        group.dispatcher.wake(actor)
