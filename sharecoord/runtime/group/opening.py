"""Opens the topics of a group: rows for all share-partitions, actors for those served here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import structlog

from sharecoord.config.group import GroupSource, ResetStrategy
from sharecoord.core.changes import LANE_MARK, PartitionRow
from sharecoord.core.delivery import Assignment
from sharecoord.errors import SharecoordError, StoreFatalError
from sharecoord.ports import TopicInfo
from sharecoord.runtime.group import loading, log_changes
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.group.refused_topics import refused_of
from sharecoord.runtime.member.session import Session

log = structlog.get_logger(__name__)

OPEN_AGAIN_S = 0.2
"""Wait after a topic could not be opened."""


NEW_TOLD_MS = 10_000
"""Members that join within this time after their group's first look at a topic are told that it
starts at the end: they were started with the group."""


class Opener:
    """The open topics of one group, and the work that opens the others."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """By topic; done once the topic is open."""
        self._new_until_ms: dict[str, int] = {}
        """Until when members are told, by topic that the group has just begun at its end."""

    @property
    def topics(self) -> Iterable[str]:
        """The topics that are open or being opened."""
        return self._tasks.keys()

    def is_open(self, topic: str) -> bool:
        """Whether all share-partitions of a topic are known."""
        task = self._tasks.get(topic)
        return topic in self._group.topic_ids and task is not None and task.done()

    def tasks(self, topics: set[str]) -> list[asyncio.Task[None]]:
        """The tasks that open these topics."""
        return [task for topic, task in self._tasks.items() if topic in topics]

    def open(self, topic: str) -> None:
        """Opens the partitions of a topic that are to be served here and are not yet."""
        task = self._tasks.get(topic)
        if task is None or task.done():
            info = TopicInfo(self._group.topic_ids[topic], self._group.partition_ids[topic])
            self._tasks[topic] = self._group.context.tasks.spawn(
                self._open(topic, info), f"open-{topic}"
            )

    def stop(self, topic: str) -> None:
        """Stops the work on a life of the topic that has ended."""
        task = self._tasks.pop(topic, None)
        if task is not None:
            task.cancel()

    def opened(self, topic: str) -> set[int]:
        """Partitions of a topic or lane that are known, and served here or elsewhere.

        A partition that came while the topic was being opened is known, and not open yet. One with
        an owner may be known by a delivery alone.
        """
        known = (key.partition for key in self._group.keys_of(topic))
        return {each for each in known if not self._is_missing(topic, each)}

    def assignment(self, session: Session) -> Assignment:
        """The topics that a member may receive from."""
        group = self._group
        known = sorted(session.topics & group.topic_ids.keys())
        topics = {topic: (group.topic_ids[topic], group.partition_ids[topic]) for topic in known}
        refused = refused_of(group.context.catalog, session.topics)
        unknown = tuple(sorted(session.topics - topics.keys() - refused.keys()))
        now_ms = group.context.clock.now_ms()
        self._new_until_ms = {t: end for t, end in self._new_until_ms.items() if now_ms < end}
        told = tuple(topic for topic in topics if topic in self._new_until_ms)
        return Assignment(topics, unknown, told, group.config.ordering.value, refused)

    def tell_assignments(self, sessions: Iterable[Session]) -> None:
        """Tells members their present assignments."""
        for session in sessions:
            if session.channel is not None:
                session.channel.assigned(self.assignment(session))

    async def _open(self, topic: str, info: TopicInfo) -> None:
        """Repeats until the store answers and all partitions that came meanwhile are open."""
        while True:
            try:
                there = await self._open_once(topic, info)
            except StoreFatalError:
                raise
            except SharecoordError as error:
                log.warning("topic not opened", topic=topic, why=error.message)
                await asyncio.sleep(OPEN_AGAIN_S)
            else:
                if not any(self._is_missing(topic, partition) for partition in there):
                    return

    def _is_missing(self, topic: str, partition: int) -> bool:
        place = topic, partition
        return place not in self._group.partitions and place not in self._group.elsewhere

    async def _open_once(self, topic: str, info: TopicInfo) -> set[int]:
        """Makes rows for all partitions first, then begins to load them (design 5.7).

        Lanes have their rows from redrives: a lane without one has been deleted meanwhile, and is
        not made again, for it would have no end. Returns the partitions that are to be open now.
        """
        group, context = self._group, self._group.context
        rows = await context.caller.call(context.store.list_partitions, group.group_id)
        is_new = self._starts_at_end(rows, topic)
        if is_new:
            self._new_until_ms[topic] = context.clock.now_ms() + NEW_TOLD_MS
        await log_changes.retire(group, topic, info.topic_id, rows)
        stored = {row.key for row in rows}
        there = [key for key in group.keys_of(topic) if not key.lane or key in stored]
        keys = [key for key in there if key.place not in group.partitions]
        opened = await context.caller.call(context.store.open_partitions, keys)
        actors = [
            group.new_actor(row.key, row.partition_id)
            for row in opened
            if self._is_missing(topic, row.key.partition)
        ]
        if actors or is_new:
            self.tell_assignments(s for s in group.sessions.values() if topic in s.topics)
        for actor in actors:
            loading.start_loading(group, actor)
        return {key.partition for key in there}.intersection(info.partitions)

    def _starts_at_end(self, rows: Sequence[PartitionRow], topic: str) -> bool:
        """Whether the group begins an unread topic at its end without anybody having said so."""
        config = self._group.config
        if config.auto_offset_reset.strategy is not ResetStrategy.LATEST:
            return False
        chosen = config.source("share.auto.offset.reset") is GroupSource.GROUP
        known = any(
            row.key.topic == topic and (row.head is not None or row.starts_at_zero) for row in rows
        )
        return not (chosen or known or LANE_MARK in topic)
