from . import share_types_pb2 as _share_types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TakenBackReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TAKEN_BACK_REASON_UNSPECIFIED: _ClassVar[TakenBackReason]
    TAKEN_BACK_REASON_CHAIN_BROKE: _ClassVar[TakenBackReason]
    TAKEN_BACK_REASON_LOCK_ENDED: _ClassVar[TakenBackReason]
    TAKEN_BACK_REASON_STATE_CHANGED: _ClassVar[TakenBackReason]
    TAKEN_BACK_REASON_TRUNCATED: _ClassVar[TakenBackReason]
    TAKEN_BACK_REASON_DELETED: _ClassVar[TakenBackReason]
TAKEN_BACK_REASON_UNSPECIFIED: TakenBackReason
TAKEN_BACK_REASON_CHAIN_BROKE: TakenBackReason
TAKEN_BACK_REASON_LOCK_ENDED: TakenBackReason
TAKEN_BACK_REASON_STATE_CHANGED: TakenBackReason
TAKEN_BACK_REASON_TRUNCATED: TakenBackReason
TAKEN_BACK_REASON_DELETED: TakenBackReason

class Join(_message.Message):
    __slots__ = ("group_id", "member_id", "client_id", "topics", "acquire_mode", "max_poll_records", "max_poll_interval_ms", "credit", "lock_book", "sdk_version", "protocol_version", "rack_id", "join_number", "opens")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_POLL_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_POLL_INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    LOCK_BOOK_FIELD_NUMBER: _ClassVar[int]
    SDK_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RACK_ID_FIELD_NUMBER: _ClassVar[int]
    JOIN_NUMBER_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    member_id: str
    client_id: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    acquire_mode: _share_types_pb2.AcquireMode
    max_poll_records: int
    max_poll_interval_ms: int
    credit: _share_types_pb2.Credit
    lock_book: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.HeldRange]
    sdk_version: str
    protocol_version: int
    rack_id: str
    join_number: int
    opens: _containers.RepeatedScalarFieldContainer[_share_types_pb2.Compression]
    def __init__(self, group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., client_id: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., acquire_mode: _Optional[_Union[_share_types_pb2.AcquireMode, str]] = ..., max_poll_records: _Optional[int] = ..., max_poll_interval_ms: _Optional[int] = ..., credit: _Optional[_Union[_share_types_pb2.Credit, _Mapping]] = ..., lock_book: _Optional[_Iterable[_Union[_share_types_pb2.HeldRange, _Mapping]]] = ..., sdk_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., rack_id: _Optional[str] = ..., join_number: _Optional[int] = ..., opens: _Optional[_Iterable[_Union[_share_types_pb2.Compression, str]]] = ...) -> None: ...

class ConsumeRequest(_message.Message):
    __slots__ = ("join", "credit", "acknowledgements", "acknowledge_id", "polled", "subscription", "paused", "leave", "busy_us", "may_wait", "lock_book", "not_polling", "authorization")
    JOIN_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_ID_FIELD_NUMBER: _ClassVar[int]
    POLLED_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    BUSY_US_FIELD_NUMBER: _ClassVar[int]
    MAY_WAIT_FIELD_NUMBER: _ClassVar[int]
    LOCK_BOOK_FIELD_NUMBER: _ClassVar[int]
    NOT_POLLING_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    join: Join
    credit: _share_types_pb2.Credit
    acknowledgements: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.PartitionAcknowledgements]
    acknowledge_id: int
    polled: bool
    subscription: Subscription
    paused: PausedPartitions
    leave: bool
    busy_us: int
    may_wait: bool
    lock_book: _share_types_pb2.LockBook
    not_polling: bool
    authorization: str
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ..., credit: _Optional[_Union[_share_types_pb2.Credit, _Mapping]] = ..., acknowledgements: _Optional[_Iterable[_Union[_share_types_pb2.PartitionAcknowledgements, _Mapping]]] = ..., acknowledge_id: _Optional[int] = ..., polled: bool = ..., subscription: _Optional[_Union[Subscription, _Mapping]] = ..., paused: _Optional[_Union[PausedPartitions, _Mapping]] = ..., leave: bool = ..., busy_us: _Optional[int] = ..., may_wait: bool = ..., lock_book: _Optional[_Union[_share_types_pb2.LockBook, _Mapping]] = ..., not_polling: bool = ..., authorization: _Optional[str] = ...) -> None: ...

class Subscription(_message.Message):
    __slots__ = ("topics",)
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, topics: _Optional[_Iterable[str]] = ...) -> None: ...

class PausedPartitions(_message.Message):
    __slots__ = ("partitions",)
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.TopicPartition]
    def __init__(self, partitions: _Optional[_Iterable[_Union[_share_types_pb2.TopicPartition, _Mapping]]] = ...) -> None: ...

class Joined(_message.Message):
    __slots__ = ("member_epoch", "lock_duration_ms", "session_timeout_ms", "server_version", "protocol_version", "lost", "coordinator_id", "ordering")
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOCK_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    SESSION_TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    member_epoch: int
    lock_duration_ms: int
    session_timeout_ms: int
    server_version: str
    protocol_version: int
    lost: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.HeldRange]
    coordinator_id: str
    ordering: str
    def __init__(self, member_epoch: _Optional[int] = ..., lock_duration_ms: _Optional[int] = ..., session_timeout_ms: _Optional[int] = ..., server_version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[_share_types_pb2.HeldRange, _Mapping]]] = ..., coordinator_id: _Optional[str] = ..., ordering: _Optional[str] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("topics", "unknown_topics", "starts_at_end", "ordering", "refused_topics")
    class RefusedTopicsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_TOPICS_FIELD_NUMBER: _ClassVar[int]
    STARTS_AT_END_FIELD_NUMBER: _ClassVar[int]
    ORDERING_FIELD_NUMBER: _ClassVar[int]
    REFUSED_TOPICS_FIELD_NUMBER: _ClassVar[int]
    topics: _containers.RepeatedCompositeFieldContainer[AssignedTopic]
    unknown_topics: _containers.RepeatedScalarFieldContainer[str]
    starts_at_end: _containers.RepeatedScalarFieldContainer[str]
    ordering: str
    refused_topics: _containers.ScalarMap[str, str]
    def __init__(self, topics: _Optional[_Iterable[_Union[AssignedTopic, _Mapping]]] = ..., unknown_topics: _Optional[_Iterable[str]] = ..., starts_at_end: _Optional[_Iterable[str]] = ..., ordering: _Optional[str] = ..., refused_topics: _Optional[_Mapping[str, str]] = ...) -> None: ...

class AssignedTopic(_message.Message):
    __slots__ = ("topic", "topic_id", "partitions")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    topic: str
    topic_id: bytes
    partitions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, topic: _Optional[str] = ..., topic_id: _Optional[bytes] = ..., partitions: _Optional[_Iterable[int]] = ...) -> None: ...

class AcknowledgeResult(_message.Message):
    __slots__ = ("acknowledge_id", "outcomes")
    ACKNOWLEDGE_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    acknowledge_id: int
    outcomes: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.PartitionOutcome]
    def __init__(self, acknowledge_id: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[_share_types_pb2.PartitionOutcome, _Mapping]]] = ...) -> None: ...

class LockWarning(_message.Message):
    __slots__ = ("partition", "first_offset", "last_offset", "lock_remaining_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOCK_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    first_offset: int
    last_offset: int
    lock_remaining_ms: int
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., lock_remaining_ms: _Optional[int] = ...) -> None: ...

class TakenBack(_message.Message):
    __slots__ = ("partition", "ranges", "reason")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    ranges: _containers.RepeatedCompositeFieldContainer[TakenBackRange]
    reason: TakenBackReason
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[TakenBackRange, _Mapping]]] = ..., reason: _Optional[_Union[TakenBackReason, str]] = ...) -> None: ...

class TakenBackRange(_message.Message):
    __slots__ = ("first_offset", "last_offset", "lock_token")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOCK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    lock_token: int
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., lock_token: _Optional[int] = ...) -> None: ...

class DrainNotice(_message.Message):
    __slots__ = ("addresses", "grace_ms")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    grace_ms: int
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class ConsumeResponse(_message.Message):
    __slots__ = ("joined", "assignment", "batches", "results", "lock_warnings", "drain", "left", "taken_back")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    LOCK_WARNINGS_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BACK_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    assignment: Assignment
    batches: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.RecordBatch]
    results: _containers.RepeatedCompositeFieldContainer[AcknowledgeResult]
    lock_warnings: _containers.RepeatedCompositeFieldContainer[LockWarning]
    drain: DrainNotice
    left: bool
    taken_back: _containers.RepeatedCompositeFieldContainer[TakenBack]
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ..., batches: _Optional[_Iterable[_Union[_share_types_pb2.RecordBatch, _Mapping]]] = ..., results: _Optional[_Iterable[_Union[AcknowledgeResult, _Mapping]]] = ..., lock_warnings: _Optional[_Iterable[_Union[LockWarning, _Mapping]]] = ..., drain: _Optional[_Union[DrainNotice, _Mapping]] = ..., left: bool = ..., taken_back: _Optional[_Iterable[_Union[TakenBack, _Mapping]]] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("join",)
    JOIN_FIELD_NUMBER: _ClassVar[int]
    join: Join
    def __init__(self, join: _Optional[_Union[Join, _Mapping]] = ...) -> None: ...

class JoinResponse(_message.Message):
    __slots__ = ("joined", "assignment")
    JOINED_FIELD_NUMBER: _ClassVar[int]
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    joined: Joined
    assignment: Assignment
    def __init__(self, joined: _Optional[_Union[Joined, _Mapping]] = ..., assignment: _Optional[_Union[Assignment, _Mapping]] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "request_id", "max_records", "max_bytes", "max_wait_ms")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_RECORDS_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    member_id: str
    member_epoch: int
    request_id: int
    max_records: int
    max_bytes: int
    max_wait_ms: int
    def __init__(self, group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ..., request_id: _Optional[int] = ..., max_records: _Optional[int] = ..., max_bytes: _Optional[int] = ..., max_wait_ms: _Optional[int] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.RecordBatch]
    def __init__(self, batches: _Optional[_Iterable[_Union[_share_types_pb2.RecordBatch, _Mapping]]] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("group_id", "member_id", "member_epoch", "acknowledgements")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    member_id: str
    member_epoch: int
    acknowledgements: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.PartitionAcknowledgements]
    def __init__(self, group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ..., acknowledgements: _Optional[_Iterable[_Union[_share_types_pb2.PartitionAcknowledgements, _Mapping]]] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.PartitionOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[_share_types_pb2.PartitionOutcome, _Mapping]]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("group_id", "member_id", "member_epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    member_id: str
    member_epoch: int
    def __init__(self, group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("assignment",)
    ASSIGNMENT_FIELD_NUMBER: _ClassVar[int]
    assignment: Assignment
    def __init__(self, assignment: _Optional[_Union[Assignment, _Mapping]] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("group_id", "member_id", "member_epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    member_id: str
    member_epoch: int
    def __init__(self, group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ...) -> None: ...

class LeaveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
