"""Changes of logs under share-partitions (design 5.12).

Topics are re-created or deleted, log ends go back, log starts move.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import structlog

from sharecoord.core.changes import PartitionRow
from sharecoord.errors import KafkaUnavailableError, SharecoordError
from sharecoord.ports import EARLIEST, LATEST, OffsetQuery, end_queries
from sharecoord.runtime.group.group import Group
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.actor import PartitionActor
from sharecoord.runtime.partition.claimed import ActorState
from sharecoord.runtime.partition.log import ShorterLog, is_refused

log = structlog.get_logger(__name__)

LOG_REGRESSED = "LOG_REGRESSED"

UNKNOWN_EPOCHS_MAX = 3
"""Reads in a row that Kafka refuses though their offset is in the log: it does not know the leader
epoch. More than one, for the log may have been longer again at the look than at the read."""


async def retire(
    group: Group,
    topic: str,
    topic_id: str | None = None,
    rows: Sequence[PartitionRow] | None = None,
) -> None:
    """Closes the share-partitions of a topic's former lives; their rows stay in the store.

    `topic_id` is the present life; None = the topic is gone. `rows` are those of the group; None =
    they are read.
    """
    store, call = group.context.store, group.context.caller.call
    what = "topic deleted" if topic_id is None else "topic re-created"
    why = "the topic was deleted" if topic_id is None else "the topic was deleted and made again"
    for place, actor in list(group.partitions.items()):
        if place[0] == topic and actor.key.topic_id != topic_id:
            actor.notices.deleted()
            group.forget_place(place, why)
    for row in await call(store.list_partitions, group.group_id) if rows is None else rows:
        if row.key.name == topic and row.key.topic_id != topic_id and not row.closed:
            await call(store.close_partition, row.partition_id, owner_epoch=row.owner_epoch)
            log.warning(what, topic=topic, partition=row.key.partition)


async def judge_log(
    context: Context,
    actor: PartitionActor,
    row: PartitionRow,
    bounds: tuple[int, int],
    *,
    committed: bool,
) -> tuple[int, int | None] | None:
    """Decides about a log that may have been cut since the group read it.

    `bounds` are log start and log end, the last stable offset where `committed`.

    Returns:
        The offset from which state is void, and the highest leader epoch of the log below it (None
        = not known). None when the log was not cut.

    Raises:
        KafkaUnavailableError: The log is shorter, and nothing tells yet that it was cut.
        SharecoordError: Nothing tells whether this is the same log: the partition was stopped.
    """
    log_start, log_end = bounds
    found = actor.log.diverged
    if row.head is None:
        return None
    read_end = row.head.end_offset
    if found is not None and found.state_epoch == row.state_epoch:
        what = f"has other records from {found.offset} on than those that were read"
        await _check_same_topic(context, row, what)
        return found.offset, found.epoch
    actor.log.diverged = None
    if not log_start <= read_end <= log_end:
        actor.log.unknown_epochs = 0
    elif actor.log.unknown_epochs >= UNKNOWN_EPOCHS_MAX:
        epoch = row.head.end_leader_epoch
        await _check_topic_id(context, row)
        await _stop(context, row, f"has no record of leader epoch {epoch}, which was read")
    lowest_end = await _lowest_end(context, actor, row, log_end, committed=committed)
    return None if lowest_end is None else (lowest_end, None)


async def _lowest_end(
    context: Context, actor: PartitionActor, row: PartitionRow, log_end: int, *, committed: bool
) -> int | None:
    """Where a log ended at the least that was cut; None = it was not. The actor remembers it."""
    seen = actor.log.shorter_log
    if seen is not None and seen.state_epoch != row.state_epoch:
        seen = None
    assert row.head is not None, "read"
    read_end = row.head.end_offset
    if committed and log_end < read_end:
        # An open transaction may hold the stable end back behind records that were read.
        log_end = await context.calls.offset(OffsetQuery(row.key.topic, row.key.partition, LATEST))
    if log_end >= read_end and not (seen is not None and seen.is_cut):
        actor.log.shorter_log = None
        return None
    seen = (seen or ShorterLog(row.state_epoch, log_end, is_cut=False)).and_now(log_end)
    actor.log.shorter_log = seen
    if not seen.is_cut:
        if not await is_refused(context.reader, row.key, read_end, committed=committed):
            raise KafkaUnavailableError(
                f"{_where(row)} ends at {log_end}, but {read_end} was read, and Kafka does not "
                "refuse to read there; looking again"
            )
        actor.log.shorter_log = seen = seen._replace(is_cut=True)
    await _check_same_topic(context, row, f"ended at {seen.lowest_end}, but {read_end} was read")
    return seen.lowest_end


def _where(row: PartitionRow) -> str:
    return f"{row.key.topic}[{row.key.partition}]"


async def _check_same_topic(context: Context, row: PartitionRow, what: str) -> None:
    """Returns where the topic is the known one: its log was cut.

    Raises:
        KafkaUnavailableError: The topic is another one, or gone.
        SharecoordError: The cluster has no topic ids, so nobody can tell: the partition was
            stopped.
    """
    if not row.key.topic_id:
        await _stop(context, row, f"{what}, and the cluster has no topic ids")
    await _check_topic_id(context, row)


async def _check_topic_id(context: Context, row: PartitionRow) -> None:
    """Returns unless the topic has another id now, or is gone; then raises KafkaUnavailableError.

    The group's watch of its topics deals with that.
    """
    info = await context.catalog.look(row.key.topic)
    if info is None or info.topic_id != row.key.topic_id:
        raise KafkaUnavailableError(f"{_where(row)} is gone, or of a topic made again")


async def _stop(context: Context, row: PartitionRow, what: str) -> NoReturn:
    """Stops a share-partition until an operator decides."""
    await context.caller.call(
        context.store.stop_partition,
        row.partition_id,
        owner_epoch=row.owner_epoch,
        reason=LOG_REGRESSED,
    )
    raise SharecoordError(
        f"{_where(row)} {what}: it may be another log of the same name. Reset the group's offsets "
        "for this topic (sharecoord groups --reset-offsets) to go on"
    )


async def follow_log_starts(context: Context, groups: Sequence[Group]) -> None:
    """Archives and counts records that retention took away; finds logs that were cut."""
    # Ends are compared with the position before they were asked for.
    read_ends = {
        actor: actor.log.proven_end
        for group in groups
        for actor in group.partitions.values()
        if actor.state is ActorState.ACTIVE
    }
    places = {(actor.key.topic, actor.key.partition) for actor in read_ends}
    found = await context.catalog.offsets(end_queries(sorted(places)))
    for actor, read_end in read_ends.items():
        start = found.get(OffsetQuery(actor.key.topic, actor.key.partition, EARLIEST))
        end = found.get(OffsetQuery(actor.key.topic, actor.key.partition, LATEST))
        if start is not None and actor.state is ActorState.ACTIVE:
            actor.log.start_moved(start)
        if end is None or actor.state is not ActorState.ACTIVE:
            continue
        # A share-partition that does not read learns the log's end in no other way, for its lag.
        if actor.log.resting:
            actor.log.end_offset = actor.log.bound.cap(end)
        if end < read_end:
            actor.drop(SharecoordError(f"the log ends at {end}, but {read_end} was read"))
