from . import share_types_pb2 as _share_types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GroupState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    GROUP_STATE_UNSPECIFIED: _ClassVar[GroupState]
    GROUP_STATE_EMPTY: _ClassVar[GroupState]
    GROUP_STATE_STABLE: _ClassVar[GroupState]
    GROUP_STATE_DEAD: _ClassVar[GroupState]

class ConfigSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CONFIG_SOURCE_UNSPECIFIED: _ClassVar[ConfigSource]
    CONFIG_SOURCE_GROUP: _ClassVar[ConfigSource]
    CONFIG_SOURCE_COORDINATOR: _ClassVar[ConfigSource]
    CONFIG_SOURCE_DEFAULT: _ClassVar[ConfigSource]

class ForceAction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FORCE_ACTION_UNSPECIFIED: _ClassVar[ForceAction]
    FORCE_ACTION_SKIP: _ClassVar[ForceAction]
    FORCE_ACTION_FINISH: _ClassVar[ForceAction]
    FORCE_ACTION_RELEASE: _ClassVar[ForceAction]

class DeadLetterState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEAD_LETTER_STATE_UNSPECIFIED: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_WAITING: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_IN_TOPIC: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_REDRIVEN: _ClassVar[DeadLetterState]
    DEAD_LETTER_STATE_DISCARDED: _ClassVar[DeadLetterState]
GROUP_STATE_UNSPECIFIED: GroupState
GROUP_STATE_EMPTY: GroupState
GROUP_STATE_STABLE: GroupState
GROUP_STATE_DEAD: GroupState
CONFIG_SOURCE_UNSPECIFIED: ConfigSource
CONFIG_SOURCE_GROUP: ConfigSource
CONFIG_SOURCE_COORDINATOR: ConfigSource
CONFIG_SOURCE_DEFAULT: ConfigSource
FORCE_ACTION_UNSPECIFIED: ForceAction
FORCE_ACTION_SKIP: ForceAction
FORCE_ACTION_FINISH: ForceAction
FORCE_ACTION_RELEASE: ForceAction
DEAD_LETTER_STATE_UNSPECIFIED: DeadLetterState
DEAD_LETTER_STATE_WAITING: DeadLetterState
DEAD_LETTER_STATE_IN_TOPIC: DeadLetterState
DEAD_LETTER_STATE_REDRIVEN: DeadLetterState
DEAD_LETTER_STATE_DISCARDED: DeadLetterState

class ListGroupsRequest(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[GroupState]
    def __init__(self, states: _Optional[_Iterable[_Union[GroupState, str]]] = ...) -> None: ...

class ListedGroup(_message.Message):
    __slots__ = ("group_id", "state")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    state: GroupState
    def __init__(self, group_id: _Optional[str] = ..., state: _Optional[_Union[GroupState, str]] = ...) -> None: ...

class ListGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[ListedGroup]
    def __init__(self, groups: _Optional[_Iterable[_Union[ListedGroup, _Mapping]]] = ...) -> None: ...

class DescribeGroupsRequest(_message.Message):
    __slots__ = ("group_ids", "include_members", "include_offsets")
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    include_members: bool
    include_offsets: bool
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ..., include_members: bool = ..., include_offsets: bool = ...) -> None: ...

class MemberDescription(_message.Message):
    __slots__ = ("member_id", "member_epoch", "client_id", "host", "assignment", "acquired_records", "delivered_total", "acknowledged_total", "fair_share_ratio", "pause", "coordinator_id", "principal", "software")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAIR_SHARE_RATIO_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_FIELD_NUMBER: _ClassVar[int]
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    assignment: _containers.RepeatedCompositeFieldContainer[AssignedPartitions]
    acquired_records: int
    delivered_total: int
    acknowledged_total: int
    fair_share_ratio: float
    pause: Pause
    coordinator_id: str
    principal: str
    software: str
    def __init__(self, member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., assignment: _Optional[_Iterable[_Union[AssignedPartitions, _Mapping]]] = ..., acquired_records: _Optional[int] = ..., delivered_total: _Optional[int] = ..., acknowledged_total: _Optional[int] = ..., fair_share_ratio: _Optional[float] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., coordinator_id: _Optional[str] = ..., principal: _Optional[str] = ..., software: _Optional[str] = ...) -> None: ...

class AssignedPartitions(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionOffsets(_message.Message):
    __slots__ = ("partition", "start_offset", "end_offset", "log_end_offset", "lag", "acquired_records", "available_records", "delayed_records", "archived_records", "leader_epoch", "window_full_at", "stopped_reason", "pause", "stops_at", "rate_limit", "payloads_not_kept", "dead_letters_waiting", "dead_letters_problem", "memory_short")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    START_OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOG_END_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    DELAYED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LEADER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FULL_AT_FIELD_NUMBER: _ClassVar[int]
    STOPPED_REASON_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    STOPS_AT_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    PAYLOADS_NOT_KEPT_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_WAITING_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MEMORY_SHORT_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    start_offset: int
    end_offset: int
    log_end_offset: int
    lag: int
    acquired_records: int
    available_records: int
    delayed_records: int
    archived_records: int
    leader_epoch: int
    window_full_at: int
    stopped_reason: str
    pause: Pause
    stops_at: int
    rate_limit: int
    payloads_not_kept: int
    dead_letters_waiting: int
    dead_letters_problem: str
    memory_short: str
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., start_offset: _Optional[int] = ..., end_offset: _Optional[int] = ..., log_end_offset: _Optional[int] = ..., lag: _Optional[int] = ..., acquired_records: _Optional[int] = ..., available_records: _Optional[int] = ..., delayed_records: _Optional[int] = ..., archived_records: _Optional[int] = ..., leader_epoch: _Optional[int] = ..., window_full_at: _Optional[int] = ..., stopped_reason: _Optional[str] = ..., pause: _Optional[_Union[Pause, _Mapping]] = ..., stops_at: _Optional[int] = ..., rate_limit: _Optional[int] = ..., payloads_not_kept: _Optional[int] = ..., dead_letters_waiting: _Optional[int] = ..., dead_letters_problem: _Optional[str] = ..., memory_short: _Optional[str] = ...) -> None: ...

class GroupDescription(_message.Message):
    __slots__ = ("group_id", "state", "group_epoch", "members", "offsets", "error_reason", "error_message", "coordinator_id", "fairness_jain_ratio", "member_count", "pauses", "settings_problems", "refused_topics")
    class RefusedTopicsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    GROUP_EPOCH_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    FAIRNESS_JAIN_RATIO_FIELD_NUMBER: _ClassVar[int]
    MEMBER_COUNT_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    REFUSED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    state: GroupState
    group_epoch: int
    members: _containers.RepeatedCompositeFieldContainer[MemberDescription]
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffsets]
    error_reason: str
    error_message: str
    coordinator_id: str
    fairness_jain_ratio: float
    member_count: int
    pauses: _containers.RepeatedCompositeFieldContainer[Pause]
    settings_problems: _containers.RepeatedScalarFieldContainer[str]
    refused_topics: _containers.ScalarMap[str, str]
    def __init__(self, group_id: _Optional[str] = ..., state: _Optional[_Union[GroupState, str]] = ..., group_epoch: _Optional[int] = ..., members: _Optional[_Iterable[_Union[MemberDescription, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[PartitionOffsets, _Mapping]]] = ..., error_reason: _Optional[str] = ..., error_message: _Optional[str] = ..., coordinator_id: _Optional[str] = ..., fairness_jain_ratio: _Optional[float] = ..., member_count: _Optional[int] = ..., pauses: _Optional[_Iterable[_Union[Pause, _Mapping]]] = ..., settings_problems: _Optional[_Iterable[str]] = ..., refused_topics: _Optional[_Mapping[str, str]] = ...) -> None: ...

class DescribeGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupDescription]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupDescription, _Mapping]]] = ...) -> None: ...

class ConfigEntry(_message.Message):
    __slots__ = ("name", "value", "source", "documentation", "problem")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTATION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    source: ConfigSource
    documentation: str
    problem: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ..., source: _Optional[_Union[ConfigSource, str]] = ..., documentation: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class DescribeGroupConfigsRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class DescribeGroupConfigsResponse(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[ConfigEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[ConfigEntry, _Mapping]]] = ...) -> None: ...

class AlterGroupConfigsRequest(_message.Message):
    __slots__ = ("group_id", "set", "delete", "validate_only")
    class SetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    VALIDATE_ONLY_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    set: _containers.ScalarMap[str, str]
    delete: _containers.RepeatedScalarFieldContainer[str]
    validate_only: bool
    def __init__(self, group_id: _Optional[str] = ..., set: _Optional[_Mapping[str, str]] = ..., delete: _Optional[_Iterable[str]] = ..., validate_only: bool = ...) -> None: ...

class AlterGroupConfigsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OffsetTarget(_message.Message):
    __slots__ = ("topic", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class PartitionOffset(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class PartitionOffsetList(_message.Message):
    __slots__ = ("offsets",)
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    offsets: _containers.RepeatedCompositeFieldContainer[PartitionOffset]
    def __init__(self, offsets: _Optional[_Iterable[_Union[PartitionOffset, _Mapping]]] = ...) -> None: ...

class ResetOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "topics", "to_earliest", "to_latest", "to_timestamp_ms", "to_offset", "to_current", "to_offsets", "by_duration_ms", "dry_run", "force")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    TO_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    TO_LATEST_FIELD_NUMBER: _ClassVar[int]
    TO_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TO_CURRENT_FIELD_NUMBER: _ClassVar[int]
    TO_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    BY_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[OffsetTarget]
    to_earliest: bool
    to_latest: bool
    to_timestamp_ms: int
    to_offset: int
    to_current: bool
    to_offsets: PartitionOffsetList
    by_duration_ms: int
    dry_run: bool
    force: bool
    def __init__(self, group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[OffsetTarget, _Mapping]]] = ..., to_earliest: bool = ..., to_latest: bool = ..., to_timestamp_ms: _Optional[int] = ..., to_offset: _Optional[int] = ..., to_current: bool = ..., to_offsets: _Optional[_Union[PartitionOffsetList, _Mapping]] = ..., by_duration_ms: _Optional[int] = ..., dry_run: bool = ..., force: bool = ...) -> None: ...

class ResetPartition(_message.Message):
    __slots__ = ("partition", "new_offset", "old_offset", "error_reason", "error_message", "requested_offset")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    NEW_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OLD_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    new_offset: int
    old_offset: int
    error_reason: str
    error_message: str
    requested_offset: int
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., new_offset: _Optional[int] = ..., old_offset: _Optional[int] = ..., error_reason: _Optional[str] = ..., error_message: _Optional[str] = ..., requested_offset: _Optional[int] = ...) -> None: ...

class ResetOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ResetPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ResetPartition, _Mapping]]] = ...) -> None: ...

class OffsetRange(_message.Message):
    __slots__ = ("topic", "partition", "first_offset", "last_offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    first_offset: int
    last_offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ...) -> None: ...

class ReplayRequest(_message.Message):
    __slots__ = ("group_id", "into_group_id", "topics", "from_timestamp_ms", "to_timestamp_ms", "duration_ms", "offsets", "rate_per_s", "with_settings", "dry_run")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    INTO_GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    FROM_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    TO_TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    WITH_SETTINGS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    into_group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[OffsetTarget]
    from_timestamp_ms: int
    to_timestamp_ms: int
    duration_ms: int
    offsets: _containers.RepeatedCompositeFieldContainer[OffsetRange]
    rate_per_s: int
    with_settings: bool
    dry_run: bool
    def __init__(self, group_id: _Optional[str] = ..., into_group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[OffsetTarget, _Mapping]]] = ..., from_timestamp_ms: _Optional[int] = ..., to_timestamp_ms: _Optional[int] = ..., duration_ms: _Optional[int] = ..., offsets: _Optional[_Iterable[_Union[OffsetRange, _Mapping]]] = ..., rate_per_s: _Optional[int] = ..., with_settings: bool = ..., dry_run: bool = ...) -> None: ...

class ReplayPartition(_message.Message):
    __slots__ = ("partition", "first_offset", "stops_at", "records", "rate_limit")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STOPS_AT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RATE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    first_offset: int
    stops_at: int
    records: int
    rate_limit: int
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., first_offset: _Optional[int] = ..., stops_at: _Optional[int] = ..., records: _Optional[int] = ..., rate_limit: _Optional[int] = ...) -> None: ...

class ReplayResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ReplayPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ReplayPartition, _Mapping]]] = ...) -> None: ...

class DeleteOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "topics")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ...) -> None: ...

class TopicResult(_message.Message):
    __slots__ = ("topic", "error_reason", "error_message")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    error_reason: str
    error_message: str
    def __init__(self, topic: _Optional[str] = ..., error_reason: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class DeleteOffsetsResponse(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[TopicResult]
    def __init__(self, topics: _Optional[_Iterable[_Union[TopicResult, _Mapping]]] = ...) -> None: ...

class DeleteGroupsRequest(_message.Message):
    __slots__ = ("group_ids",)
    GROUP_IDS_FIELD_NUMBER: _ClassVar[int]
    group_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class GroupResult(_message.Message):
    __slots__ = ("group_id", "error_reason", "error_message")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    error_reason: str
    error_message: str
    def __init__(self, group_id: _Optional[str] = ..., error_reason: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class DeleteGroupsResponse(_message.Message):
    __slots__ = ("groups",)
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    groups: _containers.RepeatedCompositeFieldContainer[GroupResult]
    def __init__(self, groups: _Optional[_Iterable[_Union[GroupResult, _Mapping]]] = ...) -> None: ...

class Pause(_message.Message):
    __slots__ = ("topic", "partition", "member_id", "since_ms", "paused_by", "reason")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_BY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    member_id: str
    since_ms: int
    paused_by: str
    reason: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., member_id: _Optional[str] = ..., since_ms: _Optional[int] = ..., paused_by: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class PauseGroupRequest(_message.Message):
    __slots__ = ("group_id", "topics", "member_ids", "reason")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[OffsetTarget]
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[OffsetTarget, _Mapping]]] = ..., member_ids: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class PauseResult(_message.Message):
    __slots__ = ("pause", "changed", "note")
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    pause: Pause
    changed: bool
    note: str
    def __init__(self, pause: _Optional[_Union[Pause, _Mapping]] = ..., changed: bool = ..., note: _Optional[str] = ...) -> None: ...

class PauseGroupResponse(_message.Message):
    __slots__ = ("results", "pauses")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PauseResult]
    pauses: _containers.RepeatedCompositeFieldContainer[Pause]
    def __init__(self, results: _Optional[_Iterable[_Union[PauseResult, _Mapping]]] = ..., pauses: _Optional[_Iterable[_Union[Pause, _Mapping]]] = ...) -> None: ...

class ResumeGroupRequest(_message.Message):
    __slots__ = ("group_id", "topics", "member_ids")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    topics: _containers.RepeatedCompositeFieldContainer[OffsetTarget]
    member_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, group_id: _Optional[str] = ..., topics: _Optional[_Iterable[_Union[OffsetTarget, _Mapping]]] = ..., member_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class ResumeGroupResponse(_message.Message):
    __slots__ = ("results", "pauses")
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    PAUSES_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[PauseResult]
    pauses: _containers.RepeatedCompositeFieldContainer[Pause]
    def __init__(self, results: _Optional[_Iterable[_Union[PauseResult, _Mapping]]] = ..., pauses: _Optional[_Iterable[_Union[Pause, _Mapping]]] = ...) -> None: ...

class ForceRecordsRequest(_message.Message):
    __slots__ = ("group_id", "partition", "first_offset", "last_offset", "action", "dry_run")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    partition: _share_types_pb2.TopicPartition
    first_offset: int
    last_offset: int
    action: ForceAction
    dry_run: bool
    def __init__(self, group_id: _Optional[str] = ..., partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., action: _Optional[_Union[ForceAction, str]] = ..., dry_run: bool = ...) -> None: ...

class ForcedRange(_message.Message):
    __slots__ = ("first_offset", "last_offset", "before", "after", "member_id", "delivery_count")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    before: str
    after: str
    member_id: str
    delivery_count: int
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., before: _Optional[str] = ..., after: _Optional[str] = ..., member_id: _Optional[str] = ..., delivery_count: _Optional[int] = ...) -> None: ...

class ForceRecordsResponse(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[ForcedRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[ForcedRange, _Mapping]]] = ...) -> None: ...

class ListInFlightRequest(_message.Message):
    __slots__ = ("group_id", "partition", "from_offset", "max_ranges")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FROM_OFFSET_FIELD_NUMBER: _ClassVar[int]
    MAX_RANGES_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    partition: _share_types_pb2.TopicPartition
    from_offset: int
    max_ranges: int
    def __init__(self, group_id: _Optional[str] = ..., partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., from_offset: _Optional[int] = ..., max_ranges: _Optional[int] = ...) -> None: ...

class InFlightRange(_message.Message):
    __slots__ = ("first_offset", "last_offset", "state", "delivery_count", "member_id", "lock_token", "lock_remaining_ms", "available_at_ms", "reason", "checkpoints", "checkpoint_bytes")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    LOCK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOCK_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_BYTES_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    state: _share_types_pb2.RecordState
    delivery_count: int
    member_id: str
    lock_token: int
    lock_remaining_ms: int
    available_at_ms: int
    reason: str
    checkpoints: int
    checkpoint_bytes: int
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., state: _Optional[_Union[_share_types_pb2.RecordState, str]] = ..., delivery_count: _Optional[int] = ..., member_id: _Optional[str] = ..., lock_token: _Optional[int] = ..., lock_remaining_ms: _Optional[int] = ..., available_at_ms: _Optional[int] = ..., reason: _Optional[str] = ..., checkpoints: _Optional[int] = ..., checkpoint_bytes: _Optional[int] = ...) -> None: ...

class ListInFlightResponse(_message.Message):
    __slots__ = ("ranges",)
    RANGES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[InFlightRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[InFlightRange, _Mapping]]] = ...) -> None: ...

class BlockKeysRequest(_message.Message):
    __slots__ = ("group_id", "keys", "reason")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    reason: str
    def __init__(self, group_id: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ..., reason: _Optional[str] = ...) -> None: ...

class BlockKeysResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnblockKeysRequest(_message.Message):
    __slots__ = ("group_id", "keys")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group_id: _Optional[str] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class UnblockKeysResponse(_message.Message):
    __slots__ = ("not_blocked",)
    NOT_BLOCKED_FIELD_NUMBER: _ClassVar[int]
    not_blocked: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, not_blocked: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ListBlockedKeysRequest(_message.Message):
    __slots__ = ("group_id",)
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    def __init__(self, group_id: _Optional[str] = ...) -> None: ...

class BlockedKey(_message.Message):
    __slots__ = ("key", "since_ms", "reason", "waiting_records")
    KEY_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    WAITING_RECORDS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    since_ms: int
    reason: str
    waiting_records: int
    def __init__(self, key: _Optional[bytes] = ..., since_ms: _Optional[int] = ..., reason: _Optional[str] = ..., waiting_records: _Optional[int] = ...) -> None: ...

class ListBlockedKeysResponse(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedCompositeFieldContainer[BlockedKey]
    def __init__(self, keys: _Optional[_Iterable[_Union[BlockedKey, _Mapping]]] = ...) -> None: ...

class ImportOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "from_consumer_group", "topics", "dry_run", "force")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FROM_CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    from_consumer_group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    force: bool
    def __init__(self, group_id: _Optional[str] = ..., from_consumer_group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., dry_run: bool = ..., force: bool = ...) -> None: ...

class ImportedPartition(_message.Message):
    __slots__ = ("reset", "committed_offset", "lag")
    RESET_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    reset: ResetPartition
    committed_offset: int
    lag: int
    def __init__(self, reset: _Optional[_Union[ResetPartition, _Mapping]] = ..., committed_offset: _Optional[int] = ..., lag: _Optional[int] = ...) -> None: ...

class ImportOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ImportedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ImportedPartition, _Mapping]]] = ...) -> None: ...

class ExportOffsetsRequest(_message.Message):
    __slots__ = ("group_id", "to_consumer_group", "topics", "dry_run", "force")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TO_CONSUMER_GROUP_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    FORCE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    to_consumer_group: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    dry_run: bool
    force: bool
    def __init__(self, group_id: _Optional[str] = ..., to_consumer_group: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., dry_run: bool = ..., force: bool = ...) -> None: ...

class ExportedPartition(_message.Message):
    __slots__ = ("partition", "offset", "finished_ahead_records", "error_reason", "error_message")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AHEAD_RECORDS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    offset: int
    finished_ahead_records: int
    error_reason: str
    error_message: str
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., offset: _Optional[int] = ..., finished_ahead_records: _Optional[int] = ..., error_reason: _Optional[str] = ..., error_message: _Optional[str] = ...) -> None: ...

class ExportOffsetsResponse(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[ExportedPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[ExportedPartition, _Mapping]]] = ...) -> None: ...

class DescribeCoordinatorRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeCoordinatorResponse(_message.Message):
    __slots__ = ("coordinator_id", "version", "kafka_cluster_id", "kafka_bootstrap_servers", "store", "uptime_ms")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KAFKA_CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    KAFKA_BOOTSTRAP_SERVERS_FIELD_NUMBER: _ClassVar[int]
    STORE_FIELD_NUMBER: _ClassVar[int]
    UPTIME_MS_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    version: str
    kafka_cluster_id: str
    kafka_bootstrap_servers: str
    store: str
    uptime_ms: int
    def __init__(self, coordinator_id: _Optional[str] = ..., version: _Optional[str] = ..., kafka_cluster_id: _Optional[str] = ..., kafka_bootstrap_servers: _Optional[str] = ..., store: _Optional[str] = ..., uptime_ms: _Optional[int] = ...) -> None: ...

class DescribeAccessRequest(_message.Message):
    __slots__ = ("principal", "principal_groups", "action", "resource")
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_GROUPS_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    RESOURCE_FIELD_NUMBER: _ClassVar[int]
    principal: str
    principal_groups: _containers.RepeatedScalarFieldContainer[str]
    action: str
    resource: str
    def __init__(self, principal: _Optional[str] = ..., principal_groups: _Optional[_Iterable[str]] = ..., action: _Optional[str] = ..., resource: _Optional[str] = ...) -> None: ...

class DescribeAccessResponse(_message.Message):
    __slots__ = ("allowed", "line", "why", "rules_problem")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    RULES_PROBLEM_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    line: int
    why: str
    rules_problem: str
    def __init__(self, allowed: bool = ..., line: _Optional[int] = ..., why: _Optional[str] = ..., rules_problem: _Optional[str] = ...) -> None: ...

class DeadLetterFilter(_message.Message):
    __slots__ = ("reasons", "topic", "partitions", "first_offset", "last_offset", "key", "key_prefix", "failed_from_ms", "failed_to_ms", "headers", "ids", "text")
    REASONS_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    KEY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    FAILED_FROM_MS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TO_MS_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    reasons: _containers.RepeatedScalarFieldContainer[str]
    topic: str
    partitions: _containers.RepeatedScalarFieldContainer[int]
    first_offset: int
    last_offset: int
    key: bytes
    key_prefix: bytes
    failed_from_ms: int
    failed_to_ms: int
    headers: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.Header]
    ids: _containers.RepeatedScalarFieldContainer[str]
    text: str
    def __init__(self, reasons: _Optional[_Iterable[str]] = ..., topic: _Optional[str] = ..., partitions: _Optional[_Iterable[int]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., key: _Optional[bytes] = ..., key_prefix: _Optional[bytes] = ..., failed_from_ms: _Optional[int] = ..., failed_to_ms: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[_share_types_pb2.Header, _Mapping]]] = ..., ids: _Optional[_Iterable[str]] = ..., text: _Optional[str] = ...) -> None: ...

class DeadLetterPlace(_message.Message):
    __slots__ = ("topic", "partition", "offset")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    offset: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class DeadLetter(_message.Message):
    __slots__ = ("id", "topic", "partition", "offset", "reason", "delivery_count", "failed_at_ms", "message", "key", "state", "place", "payload", "member_id", "timestamp_ms", "run_id", "marked_at_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    MARKED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    topic: str
    partition: int
    offset: int
    reason: str
    delivery_count: int
    failed_at_ms: int
    message: str
    key: bytes
    state: DeadLetterState
    place: DeadLetterPlace
    payload: str
    member_id: str
    timestamp_ms: int
    run_id: str
    marked_at_ms: int
    def __init__(self, id: _Optional[str] = ..., topic: _Optional[str] = ..., partition: _Optional[int] = ..., offset: _Optional[int] = ..., reason: _Optional[str] = ..., delivery_count: _Optional[int] = ..., failed_at_ms: _Optional[int] = ..., message: _Optional[str] = ..., key: _Optional[bytes] = ..., state: _Optional[_Union[DeadLetterState, str]] = ..., place: _Optional[_Union[DeadLetterPlace, _Mapping]] = ..., payload: _Optional[str] = ..., member_id: _Optional[str] = ..., timestamp_ms: _Optional[int] = ..., run_id: _Optional[str] = ..., marked_at_ms: _Optional[int] = ...) -> None: ...

class ListDeadLettersRequest(_message.Message):
    __slots__ = ("group_id", "filter", "max_letters", "after", "dead_letter_topic")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    MAX_LETTERS_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    filter: DeadLetterFilter
    max_letters: int
    after: str
    dead_letter_topic: str
    def __init__(self, group_id: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., max_letters: _Optional[int] = ..., after: _Optional[str] = ..., dead_letter_topic: _Optional[str] = ...) -> None: ...

class ListDeadLettersResponse(_message.Message):
    __slots__ = ("letters", "next")
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    letters: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    next: str
    def __init__(self, letters: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class ShowDeadLetterRequest(_message.Message):
    __slots__ = ("group_id", "id", "place", "dead_letter_topic")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    id: str
    place: DeadLetterPlace
    dead_letter_topic: str
    def __init__(self, group_id: _Optional[str] = ..., id: _Optional[str] = ..., place: _Optional[_Union[DeadLetterPlace, _Mapping]] = ..., dead_letter_topic: _Optional[str] = ...) -> None: ...

class DeadLetterStep(_message.Message):
    __slots__ = ("time_ms", "text")
    TIME_MS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    time_ms: int
    text: str
    def __init__(self, time_ms: _Optional[int] = ..., text: _Optional[str] = ...) -> None: ...

class ShowDeadLetterResponse(_message.Message):
    __slots__ = ("letter", "value", "headers", "steps")
    LETTER_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    letter: DeadLetter
    value: bytes
    headers: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.Header]
    steps: _containers.RepeatedCompositeFieldContainer[DeadLetterStep]
    def __init__(self, letter: _Optional[_Union[DeadLetter, _Mapping]] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[_share_types_pb2.Header, _Mapping]]] = ..., steps: _Optional[_Iterable[_Union[DeadLetterStep, _Mapping]]] = ...) -> None: ...

class RedriveDeadLettersRequest(_message.Message):
    __slots__ = ("group_id", "filter", "all", "dry_run", "rate_per_s", "again", "discarded", "max_letters", "dead_letter_topic")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    RATE_PER_S_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    MAX_LETTERS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    filter: DeadLetterFilter
    all: bool
    dry_run: bool
    rate_per_s: int
    again: bool
    discarded: bool
    max_letters: int
    dead_letter_topic: str
    def __init__(self, group_id: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., all: bool = ..., dry_run: bool = ..., rate_per_s: _Optional[int] = ..., again: bool = ..., discarded: bool = ..., max_letters: _Optional[int] = ..., dead_letter_topic: _Optional[str] = ...) -> None: ...

class DiscardDeadLettersRequest(_message.Message):
    __slots__ = ("group_id", "filter", "all", "dry_run", "max_letters", "dead_letter_topic")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MAX_LETTERS_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    filter: DeadLetterFilter
    all: bool
    dry_run: bool
    max_letters: int
    dead_letter_topic: str
    def __init__(self, group_id: _Optional[str] = ..., filter: _Optional[_Union[DeadLetterFilter, _Mapping]] = ..., all: bool = ..., dry_run: bool = ..., max_letters: _Optional[int] = ..., dead_letter_topic: _Optional[str] = ...) -> None: ...

class DeadLetterCount(_message.Message):
    __slots__ = ("topic", "partition", "letters")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    letters: int
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., letters: _Optional[int] = ...) -> None: ...

class DeadLettersResult(_message.Message):
    __slots__ = ("run_id", "letters", "parts", "first", "redriven", "discarded", "under_way", "copies", "waiting", "not_redrivable", "more")
    class NotRedrivableEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    REDRIVEN_FIELD_NUMBER: _ClassVar[int]
    DISCARDED_FIELD_NUMBER: _ClassVar[int]
    UNDER_WAY_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    WAITING_FIELD_NUMBER: _ClassVar[int]
    NOT_REDRIVABLE_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    letters: int
    parts: _containers.RepeatedCompositeFieldContainer[DeadLetterCount]
    first: _containers.RepeatedCompositeFieldContainer[DeadLetter]
    redriven: int
    discarded: int
    under_way: int
    copies: int
    waiting: int
    not_redrivable: _containers.ScalarMap[str, int]
    more: bool
    def __init__(self, run_id: _Optional[str] = ..., letters: _Optional[int] = ..., parts: _Optional[_Iterable[_Union[DeadLetterCount, _Mapping]]] = ..., first: _Optional[_Iterable[_Union[DeadLetter, _Mapping]]] = ..., redriven: _Optional[int] = ..., discarded: _Optional[int] = ..., under_way: _Optional[int] = ..., copies: _Optional[int] = ..., waiting: _Optional[int] = ..., not_redrivable: _Optional[_Mapping[str, int]] = ..., more: bool = ...) -> None: ...

class WithdrawRedriveRequest(_message.Message):
    __slots__ = ("group_id", "dead_letter_topic")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTER_TOPIC_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    dead_letter_topic: str
    def __init__(self, group_id: _Optional[str] = ..., dead_letter_topic: _Optional[str] = ...) -> None: ...

class WithdrawRedriveResponse(_message.Message):
    __slots__ = ("letters",)
    LETTERS_FIELD_NUMBER: _ClassVar[int]
    letters: int
    def __init__(self, letters: _Optional[int] = ...) -> None: ...
