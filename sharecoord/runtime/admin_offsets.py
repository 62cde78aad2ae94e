"""From a consumer group of Kafka to a share group, and back (docs/migrate.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import structlog

from sharecoord.config.group import GroupConfig, IsolationLevel
from sharecoord.core.changes import PartitionRow
from sharecoord.core.start_offset import resolve_start
from sharecoord.errors import (
    InvalidRequestError,
    KafkaUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import EARLIEST, LATEST, CommittedOffset, OffsetQuery, OffsetsExport
from sharecoord.runtime.admin_types import (
    ExportCommand,
    ExportedPartition,
    ImportCommand,
    ImportedPartition,
    Place,
    ResetCommand,
    ResetKind,
    ResetResult,
    ResetTo,
)
from sharecoord.runtime.context import Context
from sharecoord.runtime.offsets_export import METADATA, WRITE_PARTITIONS_MAX

log = structlog.get_logger(__name__)

Reset = Callable[[ResetCommand], Awaitable[list[ResetResult]]]
"""Moves start offsets, with all the checks of a reset."""


async def import_offsets(
    context: Context, config: GroupConfig, command: ImportCommand, reset: Reset
) -> list[ImportedPartition]:
    """Sets start offsets to what a consumer group has committed.

    Args:
        context: Of the coordinator.
        config: The share group's settings.
        command: What is wanted.
        reset: Carries it out.

    Returns:
        By topic and partition; those that can not be set carry an error.

    Raises:
        InvalidRequestError: The consumer group has committed nothing, or what it has are the
            offsets that a share group exports for its lag.
        GroupNotEmptyError: One of both groups has members, and `force` is not set.
        KafkaUnavailableError: Kafka does not answer.
    """
    port = _port(context)
    even = command.dry_run or command.force
    committed = await port.read(command.consumer_group, even_with_members=even)
    _refuse_exported(command.consumer_group, committed)
    wanted = set(command.topics) or {topic for topic, _ in committed}
    committed = {place: found for place, found in committed.items() if place[0] in wanted}
    if not committed:
        of_topics = " for these topics" if command.topics else ""
        raise InvalidRequestError(
            f"from_consumer_group: {command.consumer_group!r} has committed nothing{of_topics}; "
            "check its name with kafka-consumer-groups.sh --list"
        )
    infos = await context.catalog.describe(sorted(wanted))
    others = {(topic, n) for topic, info in infos.items() for n in info.partitions}
    others -= committed.keys()
    offsets = {place: found.offset for place, found in committed.items()}
    offsets |= await _by_policy(context, config, others)
    results = await reset(
        ResetCommand(
            command.group_id,
            ResetTo(ResetKind.OFFSETS, offsets=offsets),
            dry_run=command.dry_run,
            force=command.force,
        )
    )
    ends = await _ends(context, config, offsets)
    imported: list[ImportedPartition] = []
    for result in results:
        place = result.topic, result.partition
        found, end = committed.get(place), ends.get(place)
        lag = end - result.new_offset if end is not None and result.error is None else None
        imported.append(ImportedPartition(result, found.offset if found else None, lag))
    return imported


def _port(context: Context) -> OffsetsExport:
    if context.offsets_export is None:
        raise KafkaUnavailableError("this coordinator has no way to consumer groups of Kafka")
    return context.offsets_export


def _refuse_exported(name: str, committed: Mapping[Place, CommittedOffset]) -> None:
    """What stands there for lag alone is no place to go on from."""
    for place, found in committed.items():
        mark = METADATA.match(found.metadata)
        if mark is not None:
            raise InvalidRequestError(
                f"from_consumer_group: {name!r} has the offsets that share group {mark[1]} exports "
                f"for its lag ({place[0]}[{place[1]}] first): nobody resumes from them. Import "
                "from the consumer group that did the work"
            )


async def _by_policy(
    context: Context, config: GroupConfig, places: Collection[Place]
) -> dict[Place, int]:
    """Where `share.auto.offset.reset` starts; without what Kafka does not say."""
    policy = config.auto_offset_reset
    times = [EARLIEST, LATEST]
    if policy.duration_ms is not None:
        now_ms = context.clock.to_store(context.clock.now_ms())
        times.append(max(0, now_ms - policy.duration_ms))
    found = await context.catalog.offsets(
        [OffsetQuery(*place, at) for place in places for at in times],
        committed=_reads_committed(config),
    )
    starts: dict[Place, int] = {}
    for place in places:
        start, end, *at_time = [found.get(OffsetQuery(*place, at)) for at in times]
        if start is not None and end is not None:
            starts[place] = resolve_start(policy, start, end, at_time[0] if at_time else None)
    return starts


async def _ends(
    context: Context, config: GroupConfig, places: Collection[Place]
) -> dict[Place, int]:
    """Log ends, of the partitions that Kafka has."""
    infos = await context.catalog.describe(sorted({topic for topic, _ in places}))
    known = [p for p in places if p[0] in infos and p[1] in infos[p[0]].partitions]
    found = await context.catalog.offsets(
        [OffsetQuery(*place, LATEST) for place in known], committed=_reads_committed(config)
    )
    return {(query.topic, query.partition): end for query, end in found.items()}


def _reads_committed(config: GroupConfig) -> bool:
    return config.isolation_level is IsolationLevel.READ_COMMITTED


async def export_offsets(
    context: Context, command: ExportCommand, rows: Sequence[PartitionRow]
) -> list[ExportedPartition]:
    """Commits start offsets for a consumer group that has no members.

    Args:
        context: Of the coordinator.
        command: What is wanted.
        rows: The share-partitions.

    Returns:
        By topic and partition; those that Kafka did not take carry an error.

    Raises:
        GroupNotEmptyError: The consumer group has members.
        InvalidRequestError: There is nothing to export.
        KafkaUnavailableError: Kafka does not answer; after a write nobody knows what was written.
    """
    port = _port(context)
    heads = {
        (row.key.topic, row.key.partition): row.head
        for row in rows
        if row.head is not None and (not command.topics or row.key.topic in command.topics)
    }
    if not heads:
        raise InvalidRequestError(
            f"group {command.group_id!r} has no start offsets"
            f"{' for these topics' if command.topics else ''}: there is nothing to export"
        )
    places = sorted(heads)
    written = set(places)
    if not command.dry_run:
        written = set()
        for start in range(0, len(places), WRITE_PARTITIONS_MAX):
            part = places[start : start + WRITE_PARTITIONS_MAX]
            offsets = {place: CommittedOffset(heads[place].start_offset, "") for place in part}
            written |= await port.write(command.consumer_group, offsets)
        log.info("offsets exported", group=command.group_id, to=command.consumer_group)
    return [
        ExportedPartition(
            *place,
            heads[place].start_offset,
            heads[place].finished_count,
            None if place in written else _gone(*place),
        )
        for place in places
    ]


def _gone(topic: str, partition: int) -> UnknownTopicOrPartitionError:
    return UnknownTopicOrPartitionError(f"the cluster has no partition {topic}[{partition}]")
