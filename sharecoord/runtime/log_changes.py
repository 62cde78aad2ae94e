"""The log under a share-partition changed (design 5.12).

Topics are re-created or deleted, log ends go back, log starts move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from sharecoord.core.changes import PartitionRow
from sharecoord.errors import KafkaUnavailableError, SharecoordError
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery
from sharecoord.runtime.actor_state import ActorState
from sharecoord.runtime.context import Context
from sharecoord.runtime.partition_actor import PartitionActor

log = structlog.get_logger(__name__)

REGRESSION_CONFIRM_MS = 5_000
"""A log end below what was read is believed after so long: a new leader's end may lag a moment."""

LOG_REGRESSED = "LOG_REGRESSED"


class Partitions(Protocol):
    """A group's share-partitions in memory."""

    partitions: dict[tuple[str, int], PartitionActor]


async def retire_former(
    context: Context, group: Partitions, rows: Sequence[PartitionRow], topic: str, topic_id: str
) -> None:
    """Closes the share-partitions of a topic's former life; its history stays in the store."""
    for (name, partition), actor in list(group.partitions.items()):
        if name == topic and actor.key.topic_id != topic_id:
            actor.deactivate(ActorState.CLOSED, "the topic was deleted and made again")
            del group.partitions[name, partition]
    for row in rows:
        if row.key.name == topic and row.key.topic_id != topic_id and not row.closed:
            await _close(context, row)
            log.warning("topic re-created", topic=topic, partition=row.key.partition)


async def retire_topic(context: Context, group: Partitions, group_id: str, topic: str) -> None:
    """Closes the share-partitions of a topic that is no longer there."""
    for (name, partition), actor in list(group.partitions.items()):
        if name == topic:
            actor.deactivate(ActorState.CLOSED, "the topic was deleted")
            del group.partitions[name, partition]
    rows = await context.caller.call(context.store.list_partitions, group_id)
    for row in rows:
        if row.key.name == topic and not row.closed:
            await _close(context, row)
            log.warning("topic deleted", topic=topic, partition=row.key.partition)


async def _close(context: Context, row: PartitionRow) -> None:
    await context.caller.call(
        context.store.close_partition, row.partition_id, owner_epoch=row.owner_epoch
    )


async def judge_log_end(
    context: Context, actor: PartitionActor, row: PartitionRow, log_end: int
) -> int | None:
    """What to do about a log that ends before what the group has read.

    Returns:
        The offset from which state is void, or None when the end has not gone back.

    Raises:
        KafkaUnavailableError: It has, but not for long enough to be believed.
        SharecoordError: Nothing tells whether this is the same log: the partition was stopped.
    """
    if row.head is None or log_end >= row.head.end_offset:
        actor.regressed_since_ms = None
        return None
    now_ms = context.clock.now_ms()
    since_ms = actor.regressed_since_ms = actor.regressed_since_ms or now_ms
    where = f"{row.key.topic}[{row.key.partition}]"
    if now_ms - since_ms < REGRESSION_CONFIRM_MS:
        raise KafkaUnavailableError(
            f"{where} ends at {log_end}, but {row.head.end_offset} was read; looking again"
        )
    if row.key.topic_id:
        info = await context.catalog.look(row.key.topic)
        if info is None or info.topic_id != row.key.topic_id:
            raise KafkaUnavailableError(f"{where} is gone, or of a topic made again")
        return log_end
    await context.caller.call(
        context.store.stop_partition,
        row.partition_id,
        owner_epoch=row.owner_epoch,
        reason=LOG_REGRESSED,
    )
    raise SharecoordError(
        f"{where} ends at {log_end}, but {row.head.end_offset} was read, and the cluster has no "
        "topic ids: it may be another log of the same name. Reset the group's offsets for this "
        "topic (sharecoord groups --reset-offsets) to go on"
    )


async def follow_log_starts(context: Context, groups: Sequence[Partitions]) -> None:
    """Archives and counts what retention took away under the groups."""
    actors = [
        actor
        for group in groups
        for actor in group.partitions.values()
        if actor.state is ActorState.ACTIVE
    ]
    queries = {OffsetQuery(a.key.topic, a.key.partition, EARLIEST) for a in actors}
    queries |= {OffsetQuery(a.key.topic, a.key.partition, LATEST) for a in actors if a.resting}
    found = await context.catalog.offsets(sorted(queries))
    for actor in actors:
        start = found.get(OffsetQuery(actor.key.topic, actor.key.partition, EARLIEST))
        if start is not None and actor.state is ActorState.ACTIVE:
            actor.log_start_moved(start)
        # Whoever does not read hears of the log's end in no other way; the lag needs it.
        end = found.get(OffsetQuery(actor.key.topic, actor.key.partition, LATEST))
        if end is not None and actor.resting:
            actor.log_end_offset = actor.bound.cap(end)
