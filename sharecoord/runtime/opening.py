"""Opens the topics of a group: rows for all share-partitions, actors for those served here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from sharecoord.errors import SharecoordError, StoreFatalError
from sharecoord.ports import TopicInfo
from sharecoord.runtime import loading, log_changes

if TYPE_CHECKING:
    from sharecoord.runtime.group_actor import GroupActor

log = structlog.get_logger(__name__)

OPEN_AGAIN_S = 0.2
"""Wait after a topic could not be opened."""


async def open_topic(group: GroupActor, topic: str, info: TopicInfo) -> None:
    """Opens a topic; asks again until the store lets it, and while places come here meanwhile."""
    while True:
        try:
            await _open_once(group, topic, info)
        except StoreFatalError:
            raise
        except SharecoordError as error:
            log.warning("topic not opened", topic=topic, why=error.message)
            await asyncio.sleep(OPEN_AGAIN_S)
        else:
            if not any(_is_missing(group, topic, partition) for partition in info.partitions):
                return


def opened(group: GroupActor, topic: str) -> set[int]:
    """Partitions of a topic, or lane, that are known and served: here, or by somebody else.

    Not what is known alone: what came while the topic was being opened is not open yet. Nor what
    has an owner alone: a delivery may have told of it.
    """
    known = (key.partition for key in group.keys_of(topic))
    return {each for each in known if not _is_missing(group, topic, each)}


def _is_missing(group: GroupActor, topic: str, partition: int) -> bool:
    place = topic, partition
    return place not in group.partitions and place not in group.elsewhere


async def _open_once(group: GroupActor, topic: str, info: TopicInfo) -> None:
    """Makes rows for all partitions first, then begins to load them (design 5.7)."""
    context = group.context
    rows = await context.caller.call(context.store.list_partitions, group.group_id)
    await log_changes.retire_former(context, group, rows, topic, info.topic_id)
    keys = [k for k in group.keys_of(topic) if (topic, k.partition) not in group.partitions]
    opened = await context.caller.call(context.store.open_partitions, keys)
    actors = [
        group.new_actor(row.key, row.partition_id)
        for row in opened
        if _is_missing(group, topic, row.key.partition)
    ]
    for session in group.sessions.values():
        if topic in session.topics and session.channel is not None and actors:
            session.channel.assigned(group.assignment(session))
    for actor in actors:
        loading.start_loading(context, group, actor)
