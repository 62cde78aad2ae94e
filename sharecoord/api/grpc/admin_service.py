"""AdminService of admin_service.proto, over `sharecoord.runtime.admin`. No rules here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from sharecoord.api.grpc.calls import unary, without_context
from sharecoord.api.grpc.dead_letters import DeadLetterCalls
from sharecoord.api.grpc.interventions import InterventionCalls, pause_of
from sharecoord.api.grpc.validation import check_group_id, check_topics
from sharecoord.config.group import GroupSource
from sharecoord.core.changes import InFlightRow
from sharecoord.core.lanes import Run
from sharecoord.errors import InvalidRequestError, SharecoordError
from sharecoord.runtime.admin import Admin
from sharecoord.runtime.admin_replay import ReplayCommand
from sharecoord.runtime.admin_types import (
    ExportCommand,
    GroupState,
    GroupView,
    ImportCommand,
    MemberView,
    PartitionView,
    ResetCommand,
    ResetKind,
    ResetResult,
    ResetTo,
)
from sharecoord.wire import admin_service_pb2 as pb
from sharecoord.wire import share_types_pb2 as types
from sharecoord.wire.codec import name_of, topic_partition

Method = Callable[[Any], Awaitable[Message]]

SERVICE = pb.DESCRIPTOR.services_by_name["AdminService"]

_STATE_NUMBERS = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
    GroupState.DEAD: pb.GROUP_STATE_DEAD,
}
_STATES: Mapping[int, GroupState] = {number: state for state, number in _STATE_NUMBERS.items()}
_SOURCE_NUMBERS = {
    GroupSource.GROUP: pb.CONFIG_SOURCE_GROUP,
    GroupSource.COORDINATOR: pb.CONFIG_SOURCE_COORDINATOR,
    GroupSource.DEFAULT: pb.CONFIG_SOURCE_DEFAULT,
}


class AdminService(InterventionCalls):
    """The calls of operators. Method names are those of the proto in snake case."""

    def __init__(self, admin: Admin) -> None:
        self._admin: Admin = admin
        self._letters = DeadLetterCalls(admin.letters)

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Method handlers for `grpc.aio.Server.add_generic_rpc_handlers`."""
        methods: dict[str, Method] = {
            "ListGroups": self.list_groups,
            "DescribeGroups": self.describe_groups,
            "DescribeGroupConfigs": self.describe_group_configs,
            "AlterGroupConfigs": self.alter_group_configs,
            "ResetOffsets": self.reset_offsets,
            "DeleteOffsets": self.delete_offsets,
            "DeleteGroups": self.delete_groups,
            "ListInFlight": self.list_in_flight,
            "Replay": self.replay,
            "ListDeadLetters": self._letters.list_dead_letters,
            "ShowDeadLetter": self._letters.show_dead_letter,
            "RedriveDeadLetters": self._letters.redrive_dead_letters,
            "DiscardDeadLetters": self._letters.discard_dead_letters,
            "WithdrawRedrive": self._letters.withdraw_redrive,
            "BlockKeys": self.block_keys,
            "UnblockKeys": self.unblock_keys,
            "ListBlockedKeys": self.list_blocked_keys,
            "ImportOffsets": self.import_offsets,
            "ExportOffsets": self.export_offsets,
            "DescribeCoordinator": self.describe_coordinator,
            "PauseGroup": self.pause_group,
            "ResumeGroup": self.resume_group,
            "ForceRecords": self.force_records,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE.full_name,
            {
                name: unary(
                    name,
                    without_context(method),
                    getattr(pb, SERVICE.methods_by_name[name].input_type.name),
                )
                for name, method in methods.items()
            },
        )

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        """All groups, or those in some states."""
        unknown = next((number for number in request.states if number not in _STATES), None)
        if unknown is not None:
            raise InvalidRequestError(f"states: {unknown} is not one of EMPTY, STABLE, DEAD")
        groups = await self._admin.list_groups([_STATES[number] for number in request.states])
        listed = [
            pb.ListedGroup(group_id=group.group_id, state=_STATE_NUMBERS[group.state])
            for group in groups
        ]
        return pb.ListGroupsResponse(groups=listed)

    async def describe_groups(self, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        """State, members and offsets."""
        views = await self._admin.describe_groups(
            [check_group_id(group_id) for group_id in request.group_ids],
            members=request.include_members,
            offsets=request.include_offsets,
        )
        return pb.DescribeGroupsResponse(groups=[_group(view) for view in views])

    async def describe_group_configs(
        self, request: pb.DescribeGroupConfigsRequest
    ) -> pb.DescribeGroupConfigsResponse:
        """Settings with their source."""
        entries = await self._admin.describe_configs(check_group_id(request.group_id))
        return pb.DescribeGroupConfigsResponse(
            entries=[
                pb.ConfigEntry(
                    name=entry.name,
                    value=entry.value,
                    source=_SOURCE_NUMBERS[entry.source],
                    documentation=entry.documentation,
                )
                for entry in entries
            ]
        )

    async def alter_group_configs(
        self, request: pb.AlterGroupConfigsRequest
    ) -> pb.AlterGroupConfigsResponse:
        """Sets and deletes settings."""
        await self._admin.alter_configs(
            check_group_id(request.group_id),
            dict(request.set),
            list(request.delete),
            validate_only=request.validate_only,
        )
        return pb.AlterGroupConfigsResponse()

    async def reset_offsets(self, request: pb.ResetOffsetsRequest) -> pb.ResetOffsetsResponse:
        """Moves start offsets."""
        topics = _targets(request.topics)
        command = ResetCommand(
            group_id=check_group_id(request.group_id),
            to=_reset_to(request),
            topics=topics,
            dry_run=request.dry_run,
            force=request.force,
        )
        results = await self._admin.reset_offsets(command)
        return pb.ResetOffsetsResponse(partitions=[_reset(result) for result in results])

    async def delete_offsets(self, request: pb.DeleteOffsetsRequest) -> pb.DeleteOffsetsResponse:
        """Forgets the state of topics."""
        results = await self._admin.delete_offsets(
            check_group_id(request.group_id), check_topics(list(request.topics))
        )
        return pb.DeleteOffsetsResponse(
            topics=[
                pb.TopicResult(
                    topic=topic, error_reason=_reason(error), error_message=str(error or "")
                )
                for topic, error in results.items()
            ]
        )

    async def delete_groups(self, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        """Deletes groups."""
        results = await self._admin.delete_groups(
            [check_group_id(group_id) for group_id in request.group_ids]
        )
        return pb.DeleteGroupsResponse(
            groups=[
                pb.GroupResult(
                    group_id=name, error_reason=_reason(error), error_message=str(error or "")
                )
                for name, error in results.items()
            ]
        )

    async def list_in_flight(self, request: pb.ListInFlightRequest) -> pb.ListInFlightResponse:
        """Ranges in flight."""
        place = request.partition
        if not place.topic:
            raise InvalidRequestError("partition.topic is empty; name the topic")
        view = await self._admin.list_in_flight(
            check_group_id(request.group_id),
            name_of(place),
            place.partition,
            topic_id=place.topic_id.hex(),
            from_offset=request.from_offset,
            max_ranges=request.max_ranges,
        )
        return pb.ListInFlightResponse(
            ranges=[
                _in_flight(row, view.store_now_ms, *of_range)
                for row, of_range in zip(view.ranges, view.checkpoints, strict=True)
            ]
        )

    async def replay(self, request: pb.ReplayRequest) -> pb.ReplayResponse:
        """A part of logs for a side group."""
        parts = await self._admin.replay(_replay_command(request))
        return pb.ReplayResponse(
            partitions=[
                pb.ReplayPartition(
                    partition=topic_partition(part.key),
                    first_offset=part.start_offset,
                    stops_at=part.stops_at,
                    records=part.records,
                    rate_limit=part.rate_limit,
                )
                for part in parts
            ]
        )

    async def block_keys(self, request: pb.BlockKeysRequest) -> pb.BlockKeysResponse:
        """Blocks keys."""
        group_id = check_group_id(request.group_id)
        await self._admin.block_keys(group_id, list(request.keys), request.reason)
        return pb.BlockKeysResponse()

    async def unblock_keys(self, request: pb.UnblockKeysRequest) -> pb.UnblockKeysResponse:
        """Unblocks keys."""
        group_id = check_group_id(request.group_id)
        not_blocked = await self._admin.unblock_keys(group_id, list(request.keys))
        return pb.UnblockKeysResponse(not_blocked=not_blocked)

    async def list_blocked_keys(
        self, request: pb.ListBlockedKeysRequest
    ) -> pb.ListBlockedKeysResponse:
        """Blocked keys, with what waits."""
        views = await self._admin.list_blocked_keys(check_group_id(request.group_id))
        return pb.ListBlockedKeysResponse(
            keys=[
                pb.BlockedKey(
                    key=view.key,
                    since_ms=view.since_ms,
                    reason=view.reason,
                    waiting_records=view.waiting_records,
                )
                for view in views
            ]
        )

    async def import_offsets(self, request: pb.ImportOffsetsRequest) -> pb.ImportOffsetsResponse:
        """Start offsets from a consumer group of Kafka."""
        results = await self._admin.import_offsets(
            ImportCommand(
                check_group_id(request.group_id),
                _consumer_group("from_consumer_group", request.from_consumer_group),
                check_topics(list(request.topics)),
                dry_run=request.dry_run,
                force=request.force,
            )
        )
        return pb.ImportOffsetsResponse(
            partitions=[
                pb.ImportedPartition(
                    reset=_reset(each.reset),
                    committed_offset=each.committed_offset,
                    lag=each.lag,
                )
                for each in results
            ]
        )

    async def export_offsets(self, request: pb.ExportOffsetsRequest) -> pb.ExportOffsetsResponse:
        """Start offsets to a consumer group of Kafka."""
        results = await self._admin.export_offsets(
            ExportCommand(
                check_group_id(request.group_id),
                _consumer_group("to_consumer_group", request.to_consumer_group),
                check_topics(list(request.topics)),
                dry_run=request.dry_run,
                force=request.force,
            )
        )
        return pb.ExportOffsetsResponse(
            partitions=[
                pb.ExportedPartition(
                    partition=_place(each.topic, each.partition, ""),
                    offset=each.offset,
                    finished_ahead_records=each.finished_ahead,
                    error_reason=_reason(each.error),
                    error_message=str(each.error or ""),
                )
                for each in results
            ]
        )

    async def describe_coordinator(
        self, request: pb.DescribeCoordinatorRequest
    ) -> pb.DescribeCoordinatorResponse:
        """The coordinator itself."""
        del request  # it has no fields
        view = self._admin.describe_coordinator()
        return pb.DescribeCoordinatorResponse(
            coordinator_id=view.coordinator_id,
            version=view.info.version,
            kafka_cluster_id=view.info.kafka_cluster_id,
            kafka_bootstrap_servers=view.info.kafka_bootstrap_servers,
            store=view.info.store,
            uptime_ms=view.uptime_ms,
        )


def _targets(targets: Iterable[pb.OffsetTarget]) -> dict[str, tuple[int, ...]]:
    """Topic to partitions, none = all."""
    topics: dict[str, tuple[int, ...]] = {}
    for target in targets:
        if target.topic in topics:
            raise InvalidRequestError(f"topics: {target.topic!r} stands there twice")
        topics[target.topic] = tuple(target.partitions)
    check_topics(list(topics))
    return topics


def _replay_command(request: pb.ReplayRequest) -> ReplayCommand:
    runs: dict[tuple[str, int], list[Run]] = {}
    for item in request.offsets:
        check_topics([item.topic])
        if not 0 <= item.first_offset <= item.last_offset:
            raise InvalidRequestError(
                f"offsets: {item.first_offset} to {item.last_offset} of "
                f"{item.topic}[{item.partition}] is no range of offsets"
            )
        found = runs.setdefault((item.topic, item.partition), [])
        found.append(Run(item.first_offset, item.last_offset))

    def given(name: str) -> int | None:
        return getattr(request, name) if request.HasField(name) else None

    return ReplayCommand(
        group_id=check_group_id(request.group_id),
        into_group_id=check_group_id(request.into_group_id, "into_group_id"),
        topics=_targets(request.topics),
        from_ms=given("from_timestamp_ms"),
        to_ms=given("to_timestamp_ms"),
        duration_ms=given("duration_ms"),
        runs=runs,
        rate_per_s=request.rate_per_s,
        with_settings=request.with_settings,
        dry_run=request.dry_run,
    )


def _consumer_group(field: str, name: str) -> str:
    if not name:
        raise InvalidRequestError(f"{field} is empty; name the consumer group of Kafka")
    return name


def _reset_to(request: pb.ResetOffsetsRequest) -> ResetTo:
    which = request.WhichOneof("to")
    if which is None or (which in _FLAGS and not getattr(request, which)):
        raise InvalidRequestError(
            "to is not set; give one of to_earliest, to_latest, to_timestamp_ms, to_offset, "
            "to_current, to_offsets, by_duration_ms"
        )
    if which in _FLAGS:
        return ResetTo(_FLAGS[which])
    if which == "to_timestamp_ms":
        return ResetTo(ResetKind.TIMESTAMP, request.to_timestamp_ms)
    if which == "by_duration_ms":
        return ResetTo(ResetKind.DURATION, request.by_duration_ms)
    if which == "to_offset":
        return ResetTo(ResetKind.OFFSET, request.to_offset)
    offsets: dict[tuple[str, int], int] = {}
    for item in request.to_offsets.offsets:
        check_topics([item.topic])
        if (item.topic, item.partition) in offsets:
            raise InvalidRequestError(
                f"to_offsets: {item.topic}[{item.partition}] stands there twice"
            )
        offsets[item.topic, item.partition] = item.offset
    if not offsets:
        raise InvalidRequestError("to_offsets is empty; name one partition at least")
    return ResetTo(ResetKind.OFFSETS, offsets=offsets)


_FLAGS: Mapping[str, ResetKind] = {
    "to_earliest": ResetKind.EARLIEST,
    "to_latest": ResetKind.LATEST,
    "to_current": ResetKind.CURRENT,
}


def _reason(error: SharecoordError | None) -> str:
    return "" if error is None else error.reason


def _group(view: GroupView) -> pb.GroupDescription:
    return pb.GroupDescription(
        group_id=view.group_id,
        state=_STATE_NUMBERS[view.state],
        group_epoch=view.group_epoch,
        members=[_member(member) for member in view.members],
        offsets=[_partition(partition) for partition in view.partitions],
        error_reason=_reason(view.error),
        error_message=str(view.error or ""),
        coordinator_id=view.coordinator_id,
        member_count=view.member_count,
        fairness_jain_ratio=view.fairness_jain_ratio,
        pauses=map(pause_of, view.pauses),
    )


def _member(view: MemberView) -> pb.MemberDescription:
    return pb.MemberDescription(
        member_id=view.member_id,
        member_epoch=view.member_epoch,
        client_id=view.client_id,
        host=view.host,
        assignment=[
            pb.AssignedPartitions(topic=topic, partitions=partitions)
            for topic, partitions in view.assignment.items()
        ],
        acquired_records=view.acquired_records,
        delivered_total=_count(view.delivered_total),
        acknowledged_total=_count(view.acknowledged_total),
        fair_share_ratio=view.fair_share_ratio,
        pause=pause_of(view.pause) if view.pause else None,
        coordinator_id=view.coordinator_id,
    )


def _count(value: int | None) -> int | None:
    return None if value is None else max(0, value)


def _place(topic: str, partition: int, topic_id: str, lane: str = "") -> types.TopicPartition:
    return types.TopicPartition(
        topic=topic, partition=partition, topic_id=bytes.fromhex(topic_id), lane=lane
    )


def _partition(view: PartitionView) -> pb.PartitionOffsets:
    return pb.PartitionOffsets(
        partition=_place(view.topic, view.partition, view.topic_id, view.lane),
        start_offset=view.start_offset,
        end_offset=view.end_offset,
        log_end_offset=view.log_end_offset,
        lag=view.lag,
        acquired_records=view.acquired_records,
        available_records=view.available_records,
        delayed_records=view.delayed_records,
        archived_records=view.archived_records,
        leader_epoch=view.leader_epoch,
        window_full_at=view.window_full_at,
        stopped_reason=view.stopped_reason,
        pause=pause_of(view.pause) if view.pause else None,
        stops_at=view.stops_at,
        rate_limit=view.rate_limit,
        payloads_not_kept=view.payloads_not_kept,
    )


def _reset(result: ResetResult) -> pb.ResetPartition:
    return pb.ResetPartition(
        partition=_place(result.topic, result.partition, result.topic_id),
        new_offset=result.new_offset,
        old_offset=result.old_offset,
        requested_offset=result.requested_offset,
        error_reason=_reason(result.error),
        error_message=str(result.error or ""),
    )


def _in_flight(
    row: InFlightRow, store_now_ms: int, checkpoints: int, checkpoint_bytes: int
) -> pb.InFlightRange:
    return pb.InFlightRange(
        first_offset=row.first_offset,
        last_offset=row.last_offset,
        state=row.state,  # type: ignore[arg-type]
        delivery_count=row.delivery_count,
        member_id=row.member_id or "",
        lock_token=row.lock_token,
        lock_remaining_ms=max(0, row.deadline_ms - store_now_ms) if row.deadline_ms else None,
        available_at_ms=row.available_at_ms,
        reason=row.reason or "",
        checkpoints=checkpoints,
        checkpoint_bytes=checkpoint_bytes,
    )
