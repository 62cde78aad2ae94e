"""Imports start offsets of consumer groups of Kafka, and exports them (docs/migrate.md)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import structlog

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import Place
from sharecoord.core.partition.start_offset import resolve_start
from sharecoord.errors import (
    InvalidRequestError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import (
    LATEST,
    CommittedOffset,
    OffsetQuery,
    TopicCatalog,
    end_queries,
)
from sharecoord.runtime.admin.group_access import not_empty
from sharecoord.runtime.admin.reset import (
    ResetCommand,
    ResetCommands,
    ResetKind,
    ResetResult,
    ResetTo,
)
from sharecoord.runtime.group.offsets_export import METADATA, WRITE_PARTITIONS_MAX
from sharecoord.runtime.group.settings import reads_committed
from sharecoord.runtime.kernel.context import Context

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class ImportCommand:
    """Start offsets are set to what a consumer group of Kafka has committed.

    admin_service.proto explains the fields, at `ImportOffsetsRequest`.
    """

    group_id: str
    consumer_group: str
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class ImportedPartition:
    """The outcome of an import for one share-partition; with `dry_run` what it would be.

    admin_service.proto explains the fields, at `ImportedPartition`.
    """

    reset: ResetResult
    committed_offset: int | None
    lag: int | None


@dataclass(frozen=True, slots=True)
class ExportCommand:
    """Start offsets are committed for a consumer group of Kafka.

    admin_service.proto explains the fields, at `ExportOffsetsRequest`.
    """

    group_id: str
    consumer_group: str
    topics: tuple[str, ...] = ()
    dry_run: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class ExportedPartition:
    """The outcome of an export for one share-partition; with `dry_run` what it would be.

    admin_service.proto explains the fields, at `ExportedPartition`.
    """

    topic: str
    partition: int
    offset: int
    finished_ahead_records: int
    error: SharecoordError | None = None


class MigrationCommands(ResetCommands):
    """The commands that bring start offsets from and to consumer groups of Kafka."""

    async def import_offsets(self, command: ImportCommand) -> list[ImportedPartition]:
        """Sets start offsets to what a consumer group of Kafka has committed.

        Returns results by topic and partition; a partition that can not be set has an error.

        Raises:
            InvalidRequestError: The consumer group has committed nothing, or what it has are the
                offsets that a share group exports for its lag.
            GroupNotEmptyError: One of both groups has members, and `force` is not set.
            KafkaUnavailableError: Kafka does not answer.
            SharecoordError: As `reset_offsets`.
        """
        _check_named("from_consumer_group", command.consumer_group)
        groups, _ = await self._load()
        config = self._config(groups.get(command.group_id))
        committed = await self._committed(command)
        wanted = set(command.topics) or {topic for topic, _ in committed}
        infos = await self._context.catalog.describe(sorted(wanted))
        others = {(topic, n) for topic, info in infos.items() for n in info.partitions}
        others -= committed.keys()
        offsets = {place: found.offset for place, found in committed.items()}
        offsets |= await _by_policy(self._context, config, others)
        results = await self.reset_offsets(
            ResetCommand(
                command.group_id,
                ResetTo(ResetKind.OFFSETS, offsets=offsets),
                dry_run=command.dry_run,
                force=command.force,
            )
        )
        ends = await _ends(self._context, config, offsets)
        imported: list[ImportedPartition] = []
        for result in results:
            place = result.topic, result.partition
            found, end = committed.get(place), ends.get(place)
            lag = end - result.new_offset if end is not None and result.error is None else None
            imported.append(ImportedPartition(result, found.offset if found else None, lag))
        return imported

    async def _committed(self, command: ImportCommand) -> dict[Place, CommittedOffset]:
        """The offsets that the consumer group has committed for the wanted topics."""
        port = self._context.offsets_export
        even = command.dry_run or command.force
        committed = await port.read(command.consumer_group, even_with_members=even)
        _refuse_exported(command.consumer_group, committed)
        wanted = set(command.topics) or {topic for topic, _ in committed}
        committed = {place: found for place, found in committed.items() if place[0] in wanted}
        if not committed:
            of_topics = " for these topics" if command.topics else ""
            raise InvalidRequestError(
                f"from_consumer_group: {command.consumer_group!r} has committed nothing"
                f"{of_topics}; check its name with kafka-consumer-groups.sh --list"
            )
        return committed

    async def export_offsets(self, command: ExportCommand) -> list[ExportedPartition]:
        """Commits start offsets for a consumer group of Kafka.

        Returns results by topic and partition; a partition that Kafka did not take has an error.

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: It has members, and `force` is not set; or the consumer group has.
            InvalidRequestError: There is nothing to export, or the consumer group is the one that
                the group exports to for its lag.
            KafkaUnavailableError: Kafka does not answer; after a write nobody knows what was
                written.
        """
        _check_named("to_consumer_group", command.consumer_group)
        group_id, name = command.group_id, command.consumer_group
        group, members = await self._existing(group_id)
        if members and not (command.force or command.dry_run):
            raise not_empty(
                group_id,
                len(members),
                "; stop them first, or use force: what they finish meanwhile comes again in the "
                "consumer group",
            )
        if self._config(group).offsets_export_group == name:
            raise InvalidRequestError(
                f"to_consumer_group: share.offsets.export.group of {group_id!r} is {name!r}, where "
                "other offsets are written for its lag. Delete that setting first"
            )
        port = self._context.offsets_export
        heads = {
            (row.key.topic, row.key.partition): row.head
            for row in await self._log_rows(group_id)
            if row.head is not None and (not command.topics or row.key.topic in command.topics)
        }
        if not heads:
            raise InvalidRequestError(
                f"group {group_id!r} has no start offsets"
                f"{' for these topics' if command.topics else ''}: there is nothing to export"
            )
        places = sorted(heads)
        written = set(places)
        if not command.dry_run:
            written = set()
            for start in range(0, len(places), WRITE_PARTITIONS_MAX):
                part = places[start : start + WRITE_PARTITIONS_MAX]
                offsets = {place: CommittedOffset(heads[place].start_offset, "") for place in part}
                written |= await port.write(name, offsets)
            log.info("offsets exported", group=group_id, to=name)
        return [
            ExportedPartition(
                *place,
                heads[place].start_offset,
                heads[place].finished_count,
                None if place in written else _not_written(self._context.catalog, *place),
            )
            for place in places
        ]


def _check_named(field: str, name: str) -> None:
    if not name:
        raise InvalidRequestError(f"{field} is empty; name the consumer group of Kafka")


def _refuse_exported(name: str, committed: Mapping[Place, CommittedOffset]) -> None:
    """Refuses offsets that a share group exports for its lag: nobody resumes from them."""
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
    """Start offsets by `share.auto.offset.reset`, of the partitions that Kafka tells of."""
    policy = config.auto_offset_reset
    since: list[int] = []
    if policy.duration_ms is not None:
        since = [max(0, context.clock.store_now_ms() - policy.duration_ms)]
    found = await context.catalog.offsets(
        end_queries(places, *since), committed=reads_committed(config)
    )
    starts: dict[Place, int] = {}
    for place in places:
        start, end, *at_time = [found.get(query) for query in end_queries([place], *since)]
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
        [OffsetQuery(*place, LATEST) for place in known], committed=reads_committed(config)
    )
    return {(query.topic, query.partition): end for query, end in found.items()}


def _not_written(catalog: TopicCatalog, topic: str, partition: int) -> SharecoordError:
    gone = UnknownTopicOrPartitionError(f"the cluster has no partition {topic}[{partition}]")
    return catalog.refusals.get(topic, gone)
