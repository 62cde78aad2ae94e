"""From a consumer group of Kafka and back: the calls, and how both clients make them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sharecoord_sdk._proto import admin_service_pb2 as pb

from .calls import Call, names_of, reset_of
from .errors import AdminError, item_error
from .filled import filled
from .keys import AsyncKeyCalls, AsyncRunner, KeyCalls, Runner
from .types import ResetResult


@dataclass(frozen=True, slots=True)
class ImportedOffsets:
    """What an import did, or would do, with one share-partition.

    Attributes:
        reset: The start offset, before and after; look at its `error`.
        committed_offset: None = the consumer group has none: `share.auto.offset.reset` decided.
        lag: Records from the new start offset to the end of the log; None = not known.
    """

    reset: ResetResult
    committed_offset: int | None = None
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class ExportedOffsets:
    """What an export did, or would do, with one share-partition.

    Attributes:
        offset: The start offset, which is committed.
        finished_ahead_records: Records behind it that are finished here and come again there.
        error: Why it was not written.
    """

    topic: str
    partition: int
    offset: int
    finished_ahead_records: int = 0
    error: AdminError | None = None


def import_offsets(
    group_id: str, consumer_group: str, topics: Iterable[str], *, dry_run: bool, force: bool
) -> Call[list[ImportedOffsets]]:
    """ImportOffsets."""
    request = filled(
        pb.ImportOffsetsRequest,
        group_id=group_id,
        from_consumer_group=consumer_group,
        topics=names_of("topics", topics),
        dry_run=dry_run,
        force=force,
    )

    def read(answer: pb.ImportOffsetsResponse) -> list[ImportedOffsets]:
        return [
            ImportedOffsets(
                reset_of(each.reset),
                each.committed_offset if each.HasField("committed_offset") else None,
                each.lag if each.HasField("lag") else None,
            )
            for each in answer.partitions
        ]

    return Call("ImportOffsets", request, read, is_safe=dry_run)


def export_offsets(
    group_id: str, consumer_group: str, topics: Iterable[str], *, dry_run: bool, force: bool
) -> Call[list[ExportedOffsets]]:
    """ExportOffsets."""
    request = filled(
        pb.ExportOffsetsRequest,
        group_id=group_id,
        to_consumer_group=consumer_group,
        topics=names_of("topics", topics),
        dry_run=dry_run,
        force=force,
    )

    def read(answer: pb.ExportOffsetsResponse) -> list[ExportedOffsets]:
        return [
            ExportedOffsets(
                each.partition.topic,
                each.partition.partition,
                each.offset,
                each.finished_ahead_records,
                item_error(each.error_reason, each.error_message),
            )
            for each in answer.partitions
        ]

    return Call("ExportOffsets", request, read, is_safe=dry_run)


class MigrationCalls(KeyCalls):
    """What `AdminClient` can do with keys, and with consumer groups of Kafka."""

    def import_offsets(
        self: Runner,
        group_id: str,
        consumer_group: str,
        topics: Iterable[str] = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ImportedOffsets]:
        """Sets start offsets to what a consumer group of Kafka has committed.

        Args:
            group_id: The share group; it need not exist yet.
            consumer_group: The consumer group.
            topics: None = all for which it has committed something.
            dry_run: Only say what would happen.
            force: Also while one of both groups has members.

        Raises:
            GroupNotEmptyError: One of both has, and `force` is not set.
            InvalidRequestError: The consumer group has committed nothing.
        """
        call = import_offsets(group_id, consumer_group, topics, dry_run=dry_run, force=force)
        return self._run(call)

    def export_offsets(
        self: Runner,
        group_id: str,
        consumer_group: str,
        topics: Iterable[str] = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ExportedOffsets]:
        """Commits start offsets for a consumer group of Kafka, which must have no members.

        Args:
            group_id: The share group.
            consumer_group: The consumer group; it is made when it is new.
            topics: None = all for which the share group has offsets.
            dry_run: Only say what would happen.
            force: Also while the share group has members.

        Raises:
            GroupNotFoundError: There is no such share group.
            GroupNotEmptyError: One of both groups has members.
        """
        call = export_offsets(group_id, consumer_group, topics, dry_run=dry_run, force=force)
        return self._run(call)


class AsyncMigrationCalls(AsyncKeyCalls):
    """The same for `AsyncAdminClient`."""

    async def import_offsets(
        self: AsyncRunner,
        group_id: str,
        consumer_group: str,
        topics: Iterable[str] = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ImportedOffsets]:
        """As `AdminClient.import_offsets`."""
        call = import_offsets(group_id, consumer_group, topics, dry_run=dry_run, force=force)
        return await self._run(call)

    async def export_offsets(
        self: AsyncRunner,
        group_id: str,
        consumer_group: str,
        topics: Iterable[str] = (),
        *,
        dry_run: bool = False,
        force: bool = False,
    ) -> list[ExportedOffsets]:
        """As `AdminClient.export_offsets`."""
        call = export_offsets(group_id, consumer_group, topics, dry_run=dry_run, force=force)
        return await self._run(call)
