"""What an operator does to single records: the call, and how both clients make it."""

from __future__ import annotations

from sharecoord_sdk._proto import admin_service_pb2 as pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .calls import Call
from .filled import filled
from .keys import AsyncRunner, Runner
from .types import ForceAction, ForcedRange


def force_records(
    group_id: str,
    topic: str,
    partition: int,
    first_offset: int,
    last_offset: int,
    action: ForceAction,
    *,
    dry_run: bool,
) -> Call[list[ForcedRange]]:
    """ForceRecords."""
    request = filled(
        pb.ForceRecordsRequest,
        group_id=group_id,
        partition=filled(types_pb.TopicPartition, topic=topic, partition=partition),
        first_offset=first_offset,
        last_offset=last_offset,
        action=_ACTION_NUMBERS[ForceAction(action)],
        dry_run=dry_run,
    )

    def read(answer: pb.ForceRecordsResponse) -> list[ForcedRange]:
        return [
            ForcedRange(
                r.first_offset, r.last_offset, r.before, r.after, r.member_id, r.delivery_count
            )
            for r in answer.ranges
        ]

    return Call("ForceRecords", request, read, is_safe=dry_run)


_ACTION_NUMBERS = {
    ForceAction.SKIP: pb.FORCE_ACTION_SKIP,
    ForceAction.FINISH: pb.FORCE_ACTION_FINISH,
    ForceAction.RELEASE: pb.FORCE_ACTION_RELEASE,
}


class ForceCalls:
    """What `AdminClient` can do with single records."""

    def force_records(
        self: Runner,
        group_id: str,
        topic: str,
        partition: int,
        first_offset: int,
        last_offset: int,
        action: ForceAction,
        *,
        dry_run: bool = False,
    ) -> list[ForcedRange]:
        """Skips, finishes or releases records, whoever holds them: their locks are dead.

        Args:
            group_id: The group.
            topic: The topic.
            partition: The partition.
            first_offset: The first record; it need not have been read yet.
            last_offset: The last one, inclusive; at most 100000 records.
            action: What is to be done.
            dry_run: Only say what would happen.

        Returns:
            What became of them, by offset.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: The group has no such share-partition.
            InvalidRequestError: The range is not in the log, or too long.
        """
        call = force_records(
            group_id, topic, partition, first_offset, last_offset, action, dry_run=dry_run
        )
        return self._run(call)


class AsyncForceCalls:
    """The same for `AsyncAdminClient`."""

    async def force_records(
        self: AsyncRunner,
        group_id: str,
        topic: str,
        partition: int,
        first_offset: int,
        last_offset: int,
        action: ForceAction,
        *,
        dry_run: bool = False,
    ) -> list[ForcedRange]:
        """As `AdminClient.force_records`."""
        call = force_records(
            group_id, topic, partition, first_offset, last_offset, action, dry_run=dry_run
        )
        return await self._run(call)
