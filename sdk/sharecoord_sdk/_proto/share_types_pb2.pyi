from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcknowledgeType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKNOWLEDGE_TYPE_UNSPECIFIED: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_ACCEPT: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_RELEASE: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_REJECT: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_RENEW: _ClassVar[AcknowledgeType]
    ACKNOWLEDGE_TYPE_RETURN: _ClassVar[AcknowledgeType]

class RecordState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_STATE_AVAILABLE: _ClassVar[RecordState]
    RECORD_STATE_ACQUIRED: _ClassVar[RecordState]
    RECORD_STATE_ACKNOWLEDGED: _ClassVar[RecordState]
    RECORD_STATE_ARCHIVING: _ClassVar[RecordState]
    RECORD_STATE_ARCHIVED: _ClassVar[RecordState]

class AcquireMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACQUIRE_MODE_UNSPECIFIED: _ClassVar[AcquireMode]
    ACQUIRE_MODE_FAIR: _ClassVar[AcquireMode]
    ACQUIRE_MODE_BATCH_OPTIMIZED: _ClassVar[AcquireMode]
    ACQUIRE_MODE_RECORD_LIMIT: _ClassVar[AcquireMode]

class AcknowledgeOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACKNOWLEDGE_OUTCOME_UNSPECIFIED: _ClassVar[AcknowledgeOutcome]
    ACKNOWLEDGE_OUTCOME_OK: _ClassVar[AcknowledgeOutcome]
    ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED: _ClassVar[AcknowledgeOutcome]
    ACKNOWLEDGE_OUTCOME_LOCK_LOST: _ClassVar[AcknowledgeOutcome]
    ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME: _ClassVar[AcknowledgeOutcome]
    ACKNOWLEDGE_OUTCOME_INVALID_REQUEST: _ClassVar[AcknowledgeOutcome]
    ACKNOWLEDGE_OUTCOME_RENEW_DISABLED: _ClassVar[AcknowledgeOutcome]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_NONE: _ClassVar[Compression]
    COMPRESSION_GZIP: _ClassVar[Compression]
    COMPRESSION_SNAPPY: _ClassVar[Compression]
    COMPRESSION_LZ4: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]
ACKNOWLEDGE_TYPE_UNSPECIFIED: AcknowledgeType
ACKNOWLEDGE_TYPE_ACCEPT: AcknowledgeType
ACKNOWLEDGE_TYPE_RELEASE: AcknowledgeType
ACKNOWLEDGE_TYPE_REJECT: AcknowledgeType
ACKNOWLEDGE_TYPE_RENEW: AcknowledgeType
ACKNOWLEDGE_TYPE_RETURN: AcknowledgeType
RECORD_STATE_AVAILABLE: RecordState
RECORD_STATE_ACQUIRED: RecordState
RECORD_STATE_ACKNOWLEDGED: RecordState
RECORD_STATE_ARCHIVING: RecordState
RECORD_STATE_ARCHIVED: RecordState
ACQUIRE_MODE_UNSPECIFIED: AcquireMode
ACQUIRE_MODE_FAIR: AcquireMode
ACQUIRE_MODE_BATCH_OPTIMIZED: AcquireMode
ACQUIRE_MODE_RECORD_LIMIT: AcquireMode
ACKNOWLEDGE_OUTCOME_UNSPECIFIED: AcknowledgeOutcome
ACKNOWLEDGE_OUTCOME_OK: AcknowledgeOutcome
ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED: AcknowledgeOutcome
ACKNOWLEDGE_OUTCOME_LOCK_LOST: AcknowledgeOutcome
ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME: AcknowledgeOutcome
ACKNOWLEDGE_OUTCOME_INVALID_REQUEST: AcknowledgeOutcome
ACKNOWLEDGE_OUTCOME_RENEW_DISABLED: AcknowledgeOutcome
COMPRESSION_NONE: Compression
COMPRESSION_GZIP: Compression
COMPRESSION_SNAPPY: Compression
COMPRESSION_LZ4: Compression
COMPRESSION_ZSTD: Compression

class TopicPartition(_message.Message):
    __slots__ = ("topic", "partition", "topic_id", "lane")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TOPIC_ID_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    topic: str
    partition: int
    topic_id: bytes
    lane: str
    def __init__(self, topic: _Optional[str] = ..., partition: _Optional[int] = ..., topic_id: _Optional[bytes] = ..., lane: _Optional[str] = ...) -> None: ...

class AcquiredRange(_message.Message):
    __slots__ = ("first_offset", "last_offset", "delivery_count", "lock_token", "lock_remaining_ms")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELIVERY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOCK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOCK_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    delivery_count: int
    lock_token: int
    lock_remaining_ms: int
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., delivery_count: _Optional[int] = ..., lock_token: _Optional[int] = ..., lock_remaining_ms: _Optional[int] = ...) -> None: ...

class Header(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: bytes
    def __init__(self, key: _Optional[str] = ..., value: _Optional[bytes] = ...) -> None: ...

class RecordHeaders(_message.Message):
    __slots__ = ("index", "headers")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    index: int
    headers: _containers.RepeatedCompositeFieldContainer[Header]
    def __init__(self, index: _Optional[int] = ..., headers: _Optional[_Iterable[_Union[Header, _Mapping]]] = ...) -> None: ...

class RecordCheckpoint(_message.Message):
    __slots__ = ("index", "data")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    index: int
    data: bytes
    def __init__(self, index: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class RecordBatch(_message.Message):
    __slots__ = ("partition", "base_offset", "record_count", "offset_deltas", "timestamps_ms", "timestamp_type", "keys", "values", "null_keys", "null_values", "headers", "ranges", "credit_bytes", "checkpoints", "replay_epoch", "whole_batches")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RECORD_COUNT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_DELTAS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMPS_MS_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_TYPE_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    NULL_KEYS_FIELD_NUMBER: _ClassVar[int]
    NULL_VALUES_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    REPLAY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WHOLE_BATCHES_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    base_offset: int
    record_count: int
    offset_deltas: _containers.RepeatedScalarFieldContainer[int]
    timestamps_ms: _containers.RepeatedScalarFieldContainer[int]
    timestamp_type: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    null_keys: bytes
    null_values: bytes
    headers: _containers.RepeatedCompositeFieldContainer[RecordHeaders]
    ranges: _containers.RepeatedCompositeFieldContainer[AcquiredRange]
    credit_bytes: int
    checkpoints: _containers.RepeatedCompositeFieldContainer[RecordCheckpoint]
    replay_epoch: int
    whole_batches: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., base_offset: _Optional[int] = ..., record_count: _Optional[int] = ..., offset_deltas: _Optional[_Iterable[int]] = ..., timestamps_ms: _Optional[_Iterable[int]] = ..., timestamp_type: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., null_keys: _Optional[bytes] = ..., null_values: _Optional[bytes] = ..., headers: _Optional[_Iterable[_Union[RecordHeaders, _Mapping]]] = ..., ranges: _Optional[_Iterable[_Union[AcquiredRange, _Mapping]]] = ..., credit_bytes: _Optional[int] = ..., checkpoints: _Optional[_Iterable[_Union[RecordCheckpoint, _Mapping]]] = ..., replay_epoch: _Optional[int] = ..., whole_batches: _Optional[_Iterable[bytes]] = ...) -> None: ...

class AcknowledgedRange(_message.Message):
    __slots__ = ("first_offset", "last_offset", "type", "lock_token", "delay_ms", "reason", "checkpoint")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    LOCK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DELAY_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    type: AcknowledgeType
    lock_token: int
    delay_ms: int
    reason: str
    checkpoint: bytes
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., type: _Optional[_Union[AcknowledgeType, str]] = ..., lock_token: _Optional[int] = ..., delay_ms: _Optional[int] = ..., reason: _Optional[str] = ..., checkpoint: _Optional[bytes] = ...) -> None: ...

class PartitionAcknowledgements(_message.Message):
    __slots__ = ("partition", "ranges")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    ranges: _containers.RepeatedCompositeFieldContainer[AcknowledgedRange]
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[AcknowledgedRange, _Mapping]]] = ...) -> None: ...

class RangeOutcome(_message.Message):
    __slots__ = ("first_offset", "last_offset", "outcome", "final_state")
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FINAL_STATE_FIELD_NUMBER: _ClassVar[int]
    first_offset: int
    last_offset: int
    outcome: AcknowledgeOutcome
    final_state: RecordState
    def __init__(self, first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., outcome: _Optional[_Union[AcknowledgeOutcome, str]] = ..., final_state: _Optional[_Union[RecordState, str]] = ...) -> None: ...

class PartitionOutcome(_message.Message):
    __slots__ = ("partition", "exceptions", "error_reason", "error_message", "error_retriable", "lock_remaining_ms")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    EXCEPTIONS_FIELD_NUMBER: _ClassVar[int]
    ERROR_REASON_FIELD_NUMBER: _ClassVar[int]
    ERROR_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ERROR_RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    LOCK_REMAINING_MS_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    exceptions: _containers.RepeatedCompositeFieldContainer[RangeOutcome]
    error_reason: str
    error_message: str
    error_retriable: bool
    lock_remaining_ms: int
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., exceptions: _Optional[_Iterable[_Union[RangeOutcome, _Mapping]]] = ..., error_reason: _Optional[str] = ..., error_message: _Optional[str] = ..., error_retriable: bool = ..., lock_remaining_ms: _Optional[int] = ...) -> None: ...

class HeldRange(_message.Message):
    __slots__ = ("partition", "first_offset", "last_offset", "lock_token")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    FIRST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LAST_OFFSET_FIELD_NUMBER: _ClassVar[int]
    LOCK_TOKEN_FIELD_NUMBER: _ClassVar[int]
    partition: TopicPartition
    first_offset: int
    last_offset: int
    lock_token: int
    def __init__(self, partition: _Optional[_Union[TopicPartition, _Mapping]] = ..., first_offset: _Optional[int] = ..., last_offset: _Optional[int] = ..., lock_token: _Optional[int] = ...) -> None: ...

class LockBook(_message.Message):
    __slots__ = ("held",)
    HELD_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[HeldRange]
    def __init__(self, held: _Optional[_Iterable[_Union[HeldRange, _Mapping]]] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("records_total", "bytes_total")
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    records_total: int
    bytes_total: int
    def __init__(self, records_total: _Optional[int] = ..., bytes_total: _Optional[int] = ...) -> None: ...
