"""Every admin call as a value: its request, and how to read its answer. Sent by the clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.message import Message

from sharecoord_sdk._proto import admin_service_pb2 as pb
from sharecoord_sdk._proto import share_service_pb2 as share_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .errors import AdminError, item_error
from .filled import filled
from .types import (
    ConfigEntry,
    ConfigSource,
    CoordinatorDescription,
    GroupDescription,
    GroupListing,
    GroupState,
    InFlightRange,
    MemberDescription,
    PartitionOffsets,
    Pause,
    PauseAnswer,
    PauseResult,
    RecordState,
    ReplayedPartition,
    ReplayOf,
    ResetResult,
    ResetTo,
)

T = TypeVar("T")

_SERVICE: Final = pb.DESCRIPTOR.services_by_name["AdminService"]
_SHARE_SERVICE: Final = share_pb.DESCRIPTOR.services_by_name["ShareService"]

Topics = Mapping[str, Sequence[int]] | Iterable[str]
"""Topic names, or topic to its partitions (none = all)."""

_STATE_NUMBERS: Final = {
    GroupState.EMPTY: pb.GROUP_STATE_EMPTY,
    GroupState.STABLE: pb.GROUP_STATE_STABLE,
    GroupState.DEAD: pb.GROUP_STATE_DEAD,
}
_STATES: Final[dict[int, GroupState]] = {n: state for state, n in _STATE_NUMBERS.items()}
_SOURCES: Final[dict[int, ConfigSource]] = {
    pb.CONFIG_SOURCE_GROUP: ConfigSource.GROUP,
    pb.CONFIG_SOURCE_COORDINATOR: ConfigSource.COORDINATOR,
    pb.CONFIG_SOURCE_DEFAULT: ConfigSource.DEFAULT,
}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call.

    Attributes:
        method: Name in the proto.
        request: The message to send.
        read: Makes the result out of the answer.
        is_safe: Whether it changes nothing, so that another coordinator may be asked.
        service: Whose method it is.
        answers: Where its answer is defined.
    """

    method: str
    request: Message
    read: Callable[[Any], T]
    is_safe: bool = False
    service: ServiceDescriptor = _SERVICE
    answers: Any = pb

    @property
    def path(self) -> str:
        """The method as grpc names it."""
        return f"/{self.service.full_name}/{self.method}"

    @property
    def decode(self) -> Callable[[bytes], Message]:
        """Reads an answer."""
        name = self.service.methods_by_name[self.method].output_type.name
        message: type[Message] = getattr(self.answers, name)
        return message.FromString


def list_groups(states: Iterable[GroupState]) -> Call[list[GroupListing]]:
    """ListGroups."""
    numbers = [_STATE_NUMBERS[GroupState(state)] for state in states]

    def read(answer: pb.ListGroupsResponse) -> list[GroupListing]:
        return [GroupListing(g.group_id, _STATES[g.state]) for g in answer.groups]

    return Call("ListGroups", filled(pb.ListGroupsRequest, states=numbers), read, is_safe=True)


def describe_groups(
    group_ids: Iterable[str], *, members: bool, offsets: bool
) -> Call[list[GroupDescription]]:
    """DescribeGroups."""
    request = filled(
        pb.DescribeGroupsRequest,
        group_ids=names_of("group_ids", group_ids),
        include_members=members,
        include_offsets=offsets,
    )

    def read(answer: pb.DescribeGroupsResponse) -> list[GroupDescription]:
        return [_group(g) for g in answer.groups]

    return Call("DescribeGroups", request, read, is_safe=True)


def describe_group_configs(group_id: str) -> Call[list[ConfigEntry]]:
    """DescribeGroupConfigs."""

    def read(answer: pb.DescribeGroupConfigsResponse) -> list[ConfigEntry]:
        return [
            ConfigEntry(e.name, e.value, _SOURCES[e.source], e.documentation)
            for e in answer.entries
        ]

    request = filled(pb.DescribeGroupConfigsRequest, group_id=group_id)
    return Call("DescribeGroupConfigs", request, read, is_safe=True)


def alter_group_configs(
    group_id: str,
    set_values: Mapping[str, object],
    delete: Iterable[str],
    *,
    validate_only: bool,
) -> Call[None]:
    """AlterGroupConfigs."""
    request = filled(
        pb.AlterGroupConfigsRequest,
        group_id=group_id,
        set={name: _config_text(value) for name, value in set_values.items()},
        delete=names_of("delete", delete),
        validate_only=validate_only,
    )
    return Call("AlterGroupConfigs", request, _nothing)


def reset_offsets(
    group_id: str, to: ResetTo, topics: Topics, *, dry_run: bool, force: bool
) -> Call[list[ResetResult]]:
    """ResetOffsets."""
    where: Any = to.value
    if to.kind == "to_offsets":
        offsets = [
            filled(pb.PartitionOffset, topic=topic, partition=partition, offset=offset)
            for (topic, partition), offset in to.by_partition.items()
        ]
        where = pb.PartitionOffsetList(offsets=offsets)
    elif to.kind in ("to_earliest", "to_latest", "to_current"):
        where = True
    request = filled(
        pb.ResetOffsetsRequest,
        group_id=group_id,
        topics=_targets(topics),
        dry_run=dry_run,
        force=force,
        **{to.kind: where},
    )

    def read(answer: pb.ResetOffsetsResponse) -> list[ResetResult]:
        return [reset_of(p) for p in answer.partitions]

    return Call("ResetOffsets", request, read, is_safe=dry_run)


def replay(
    group_id: str,
    into: str,
    what: ReplayOf,
    topics: Topics,
    *,
    rate_per_s: int,
    with_settings: bool,
    dry_run: bool,
) -> Call[list[ReplayedPartition]]:
    """Replay."""
    offsets = [
        filled(pb.OffsetRange, topic=topic, partition=number, first_offset=first, last_offset=last)
        for topic, number, first, last in what.ranges
    ]
    request = filled(
        pb.ReplayRequest,
        group_id=group_id,
        into_group_id=into,
        topics=_targets(topics),
        offsets=offsets,
        from_timestamp_ms=what.from_ms,
        to_timestamp_ms=what.to_ms,
        duration_ms=what.duration_ms,
        rate_per_s=rate_per_s,
        with_settings=with_settings,
        dry_run=dry_run,
    )

    def read(answer: pb.ReplayResponse) -> list[ReplayedPartition]:
        return [
            ReplayedPartition(
                part.partition.topic,
                part.partition.partition,
                part.first_offset,
                part.stops_at,
                part.records,
                part.rate_limit,
            )
            for part in answer.partitions
        ]

    return Call("Replay", request, read, is_safe=dry_run)


def delete_offsets(group_id: str, topics: Iterable[str]) -> Call[dict[str, AdminError | None]]:
    """DeleteOffsets."""
    request = filled(pb.DeleteOffsetsRequest, group_id=group_id, topics=names_of("topics", topics))

    def read(answer: pb.DeleteOffsetsResponse) -> dict[str, AdminError | None]:
        return {t.topic: item_error(t.error_reason, t.error_message) for t in answer.topics}

    return Call("DeleteOffsets", request, read)


def delete_groups(group_ids: Iterable[str]) -> Call[dict[str, AdminError | None]]:
    """DeleteGroups."""
    request = filled(pb.DeleteGroupsRequest, group_ids=names_of("group_ids", group_ids))

    def read(answer: pb.DeleteGroupsResponse) -> dict[str, AdminError | None]:
        return {g.group_id: item_error(g.error_reason, g.error_message) for g in answer.groups}

    return Call("DeleteGroups", request, read)


def pause_group(
    group_id: str, topics: Topics, members: Iterable[str], reason: str
) -> Call[PauseAnswer]:
    """PauseGroup."""
    request = filled(
        pb.PauseGroupRequest,
        group_id=group_id,
        topics=_targets(topics),
        member_ids=names_of("members", members),
        reason=reason,
    )
    return Call("PauseGroup", request, _pause_answer)


def resume_group(group_id: str, topics: Topics, members: Iterable[str]) -> Call[PauseAnswer]:
    """ResumeGroup."""
    request = filled(
        pb.ResumeGroupRequest,
        group_id=group_id,
        topics=_targets(topics),
        member_ids=names_of("members", members),
    )
    return Call("ResumeGroup", request, _pause_answer)


def _targets(topics: Topics) -> list[pb.OffsetTarget]:
    if isinstance(topics, Mapping):
        return [
            filled(pb.OffsetTarget, topic=t, partitions=numbers) for t, numbers in topics.items()
        ]
    return [filled(pb.OffsetTarget, topic=topic) for topic in names_of("topics", topics)]


def _pause_answer(answer: pb.PauseGroupResponse | pb.ResumeGroupResponse) -> PauseAnswer:
    results = tuple(PauseResult(_pause(r.pause), r.changed, r.note) for r in answer.results)
    return PauseAnswer(results, tuple(map(_pause, answer.pauses)))


def _pause(pause: pb.Pause) -> Pause:
    return Pause(
        pause.topic,
        _optional(pause, "partition"),
        pause.member_id,
        pause.since_ms,
        pause.paused_by,
        pause.reason,
    )


def _pause_in(message: pb.PartitionOffsets | pb.MemberDescription) -> Pause | None:
    return _pause(message.pause) if message.HasField("pause") else None


def list_in_flight(
    group_id: str, topic: str, partition: int, *, from_offset: int, max_ranges: int
) -> Call[list[InFlightRange]]:
    """ListInFlight."""
    request = filled(
        pb.ListInFlightRequest,
        group_id=group_id,
        partition=filled(types_pb.TopicPartition, topic=topic, partition=partition),
        from_offset=from_offset,
        max_ranges=max_ranges,
    )

    def read(answer: pb.ListInFlightResponse) -> list[InFlightRange]:
        return [_in_flight(r) for r in answer.ranges]

    return Call("ListInFlight", request, read, is_safe=True)


def describe_coordinator() -> Call[CoordinatorDescription]:
    """DescribeCoordinator."""

    def read(answer: pb.DescribeCoordinatorResponse) -> CoordinatorDescription:
        return CoordinatorDescription(
            answer.coordinator_id,
            answer.version,
            answer.kafka_cluster_id,
            answer.kafka_bootstrap_servers,
            answer.store,
            answer.uptime_ms,
        )

    return Call("DescribeCoordinator", pb.DescribeCoordinatorRequest(), read, is_safe=True)


def names_of(argument: str, names: Iterable[str]) -> list[str]:
    """Names of a request; one text is not a list of them."""
    if isinstance(names, str):
        raise TypeError(f"{argument} is one str; give a list of them")
    return list(names)


def _config_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _nothing(answer: Message) -> None:
    del answer  # it has no fields


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _group(group: pb.GroupDescription) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        state=_STATES[group.state],
        group_epoch=group.group_epoch,
        coordinator_id=group.coordinator_id,
        member_count=group.member_count,
        members=tuple(_member(m) for m in group.members),
        offsets=tuple(_partition(p) for p in group.offsets),
        fairness_jain_ratio=_optional(group, "fairness_jain_ratio"),
        error=item_error(group.error_reason, group.error_message),
        pauses=tuple(map(_pause, group.pauses)),
    )


def _member(member: pb.MemberDescription) -> MemberDescription:
    return MemberDescription(
        member_id=member.member_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        host=member.host,
        assignment={a.topic: tuple(a.partitions) for a in member.assignment},
        acquired_records=member.acquired_records,
        delivered_total=_optional(member, "delivered_total"),
        acknowledged_total=_optional(member, "acknowledged_total"),
        fair_share_ratio=_optional(member, "fair_share_ratio"),
        pause=_pause_in(member),
        coordinator_id=member.coordinator_id,
    )


def _partition(offsets: pb.PartitionOffsets) -> PartitionOffsets:
    return PartitionOffsets(
        topic=offsets.partition.topic,
        partition=offsets.partition.partition,
        topic_id=offsets.partition.topic_id.hex(),
        start_offset=_optional(offsets, "start_offset"),
        end_offset=_optional(offsets, "end_offset"),
        log_end_offset=_optional(offsets, "log_end_offset"),
        lag=_optional(offsets, "lag"),
        acquired_records=offsets.acquired_records,
        available_records=offsets.available_records,
        delayed_records=offsets.delayed_records,
        archived_records=offsets.archived_records,
        leader_epoch=_optional(offsets, "leader_epoch"),
        window_full_at=_optional(offsets, "window_full_at"),
        stopped_reason=offsets.stopped_reason,
        pause=_pause_in(offsets),
        lane=offsets.partition.lane,
        stops_at=_optional(offsets, "stops_at"),
        rate_limit=offsets.rate_limit,
        payloads_not_kept=offsets.payloads_not_kept,
    )


def reset_of(result: pb.ResetPartition) -> ResetResult:
    """What a reset did with one share-partition."""
    error = item_error(result.error_reason, result.error_message)
    return ResetResult(
        topic=result.partition.topic,
        partition=result.partition.partition,
        new_offset=result.new_offset if error is None else None,
        old_offset=_optional(result, "old_offset"),
        requested_offset=_optional(result, "requested_offset"),
        error=error,
    )


def _in_flight(found: pb.InFlightRange) -> InFlightRange:
    return InFlightRange(
        first_offset=found.first_offset,
        last_offset=found.last_offset,
        state=RecordState(found.state),
        delivery_count=found.delivery_count,
        member_id=found.member_id,
        lock_token=found.lock_token,
        lock_remaining_ms=_optional(found, "lock_remaining_ms"),
        available_at_ms=found.available_at_ms,
        reason=found.reason,
        checkpoints=found.checkpoints,
        checkpoint_bytes=found.checkpoint_bytes,
    )


def acknowledge_for(
    group_id: str, member_id: str, acknowledgements: Sequence[types_pb.PartitionAcknowledgements]
) -> Call[Sequence[types_pb.PartitionOutcome]]:
    """Acknowledge of the ShareService, for a member that may be gone; harmless to repeat."""

    def read(answer: share_pb.AcknowledgeResponse) -> Sequence[types_pb.PartitionOutcome]:
        return answer.outcomes

    request = share_pb.AcknowledgeRequest(
        group_id=group_id, member_id=member_id, acknowledgements=acknowledgements
    )
    return Call(
        "Acknowledge", request, read, is_safe=True, service=_SHARE_SERVICE, answers=share_pb
    )
