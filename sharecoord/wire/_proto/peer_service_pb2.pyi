from sharecoord_sdk._proto import share_service_pb2 as _share_service_pb2
from sharecoord_sdk._proto import share_types_pb2 as _share_types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GatewayMessage(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[GatewayItem]
    def __init__(self, items: _Optional[_Iterable[_Union[GatewayItem, _Mapping]]] = ...) -> None: ...

class GatewayItem(_message.Message):
    __slots__ = ("hello", "member_up", "member_down", "lend", "settle", "books", "alive", "freed", "look", "proof")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    MEMBER_UP_FIELD_NUMBER: _ClassVar[int]
    MEMBER_DOWN_FIELD_NUMBER: _ClassVar[int]
    LEND_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    BOOKS_FIELD_NUMBER: _ClassVar[int]
    ALIVE_FIELD_NUMBER: _ClassVar[int]
    FREED_FIELD_NUMBER: _ClassVar[int]
    LOOK_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    member_up: MemberUp
    member_down: MemberDown
    lend: Lend
    settle: Settle
    books: PartitionBooks
    alive: Alive
    freed: Freed
    look: Look
    proof: Proof
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., member_up: _Optional[_Union[MemberUp, _Mapping]] = ..., member_down: _Optional[_Union[MemberDown, _Mapping]] = ..., lend: _Optional[_Union[Lend, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., books: _Optional[_Union[PartitionBooks, _Mapping]] = ..., alive: _Optional[_Union[Alive, _Mapping]] = ..., freed: _Optional[_Union[Freed, _Mapping]] = ..., look: _Optional[_Union[Look, _Mapping]] = ..., proof: _Optional[_Union[Proof, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("coordinator_id", "owner_id", "version", "protocol_version", "nonce")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    owner_id: str
    version: str
    protocol_version: int
    nonce: bytes
    def __init__(self, coordinator_id: _Optional[str] = ..., owner_id: _Optional[str] = ..., version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class Proof(_message.Message):
    __slots__ = ("proof",)
    PROOF_FIELD_NUMBER: _ClassVar[int]
    proof: bytes
    def __init__(self, proof: _Optional[bytes] = ...) -> None: ...

class MemberUp(_message.Message):
    __slots__ = ("handle", "group_id", "member_id", "member_epoch", "client_id", "host", "topics", "acquire_mode", "max_poll_records", "paused", "lock_book", "opens", "principal", "takes_batches", "is_atomic")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CLIENT_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TOPICS_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_MODE_FIELD_NUMBER: _ClassVar[int]
    MAX_POLL_RECORDS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    LOCK_BOOK_FIELD_NUMBER: _ClassVar[int]
    OPENS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    TAKES_BATCHES_FIELD_NUMBER: _ClassVar[int]
    IS_ATOMIC_FIELD_NUMBER: _ClassVar[int]
    handle: int
    group_id: str
    member_id: str
    member_epoch: int
    client_id: str
    host: str
    topics: _containers.RepeatedScalarFieldContainer[str]
    acquire_mode: _share_types_pb2.AcquireMode
    max_poll_records: int
    paused: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.TopicPartition]
    lock_book: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.HeldRange]
    opens: _containers.RepeatedScalarFieldContainer[_share_types_pb2.Compression]
    principal: str
    takes_batches: bool
    is_atomic: bool
    def __init__(self, handle: _Optional[int] = ..., group_id: _Optional[str] = ..., member_id: _Optional[str] = ..., member_epoch: _Optional[int] = ..., client_id: _Optional[str] = ..., host: _Optional[str] = ..., topics: _Optional[_Iterable[str]] = ..., acquire_mode: _Optional[_Union[_share_types_pb2.AcquireMode, str]] = ..., max_poll_records: _Optional[int] = ..., paused: _Optional[_Iterable[_Union[_share_types_pb2.TopicPartition, _Mapping]]] = ..., lock_book: _Optional[_Iterable[_Union[_share_types_pb2.HeldRange, _Mapping]]] = ..., opens: _Optional[_Iterable[_Union[_share_types_pb2.Compression, str]]] = ..., principal: _Optional[str] = ..., takes_batches: bool = ..., is_atomic: bool = ...) -> None: ...

class MemberDown(_message.Message):
    __slots__ = ("handle", "left", "lock_book")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    LOCK_BOOK_FIELD_NUMBER: _ClassVar[int]
    handle: int
    left: bool
    lock_book: _share_types_pb2.LockBook
    def __init__(self, handle: _Optional[int] = ..., left: bool = ..., lock_book: _Optional[_Union[_share_types_pb2.LockBook, _Mapping]] = ...) -> None: ...

class Lend(_message.Message):
    __slots__ = ("handle", "records_total", "bytes_total", "recall")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    RECALL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    records_total: int
    bytes_total: int
    recall: bool
    def __init__(self, handle: _Optional[int] = ..., records_total: _Optional[int] = ..., bytes_total: _Optional[int] = ..., recall: bool = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("handle", "relay_id", "acknowledgements", "may_wait")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RELAY_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGEMENTS_FIELD_NUMBER: _ClassVar[int]
    MAY_WAIT_FIELD_NUMBER: _ClassVar[int]
    handle: int
    relay_id: int
    acknowledgements: _share_types_pb2.PartitionAcknowledgements
    may_wait: bool
    def __init__(self, handle: _Optional[int] = ..., relay_id: _Optional[int] = ..., acknowledgements: _Optional[_Union[_share_types_pb2.PartitionAcknowledgements, _Mapping]] = ..., may_wait: bool = ...) -> None: ...

class PartitionBooks(_message.Message):
    __slots__ = ("partition", "group_id", "owner_epoch", "books")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    BOOKS_FIELD_NUMBER: _ClassVar[int]
    partition: _share_types_pb2.TopicPartition
    group_id: str
    owner_epoch: int
    books: _containers.RepeatedCompositeFieldContainer[MemberBook]
    def __init__(self, partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., group_id: _Optional[str] = ..., owner_epoch: _Optional[int] = ..., books: _Optional[_Iterable[_Union[MemberBook, _Mapping]]] = ...) -> None: ...

class MemberBook(_message.Message):
    __slots__ = ("handle", "held")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    handle: int
    held: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.HeldRange]
    def __init__(self, handle: _Optional[int] = ..., held: _Optional[_Iterable[_Union[_share_types_pb2.HeldRange, _Mapping]]] = ...) -> None: ...

class Alive(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Freed(_message.Message):
    __slots__ = ("group_id", "partition")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    partition: _share_types_pb2.TopicPartition
    def __init__(self, group_id: _Optional[str] = ..., partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ...) -> None: ...

class Look(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OwnerMessage(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[OwnerItem]
    def __init__(self, items: _Optional[_Iterable[_Union[OwnerItem, _Mapping]]] = ...) -> None: ...

class OwnerItem(_message.Message):
    __slots__ = ("welcome", "deliver", "settled", "returned", "hungry", "ask_books", "compared", "member_end", "timed_out", "taken_back", "accepted")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    DELIVER_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    HUNGRY_FIELD_NUMBER: _ClassVar[int]
    ASK_BOOKS_FIELD_NUMBER: _ClassVar[int]
    COMPARED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_END_FIELD_NUMBER: _ClassVar[int]
    TIMED_OUT_FIELD_NUMBER: _ClassVar[int]
    TAKEN_BACK_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    deliver: Deliver
    settled: Settled
    returned: Returned
    hungry: Hungry
    ask_books: AskBooks
    compared: Compared
    member_end: MemberEnd
    timed_out: TimedOut
    taken_back: MemberTakenBack
    accepted: Accepted
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., deliver: _Optional[_Union[Deliver, _Mapping]] = ..., settled: _Optional[_Union[Settled, _Mapping]] = ..., returned: _Optional[_Union[Returned, _Mapping]] = ..., hungry: _Optional[_Union[Hungry, _Mapping]] = ..., ask_books: _Optional[_Union[AskBooks, _Mapping]] = ..., compared: _Optional[_Union[Compared, _Mapping]] = ..., member_end: _Optional[_Union[MemberEnd, _Mapping]] = ..., timed_out: _Optional[_Union[TimedOut, _Mapping]] = ..., taken_back: _Optional[_Union[MemberTakenBack, _Mapping]] = ..., accepted: _Optional[_Union[Accepted, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("coordinator_id", "version", "protocol_version", "nonce", "proof")
    COORDINATOR_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    coordinator_id: str
    version: str
    protocol_version: int
    nonce: bytes
    proof: bytes
    def __init__(self, coordinator_id: _Optional[str] = ..., version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Deliver(_message.Message):
    __slots__ = ("handle", "partition", "ranges", "records", "credit_bytes", "frame", "send_by_ms", "has_batches")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    CREDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SEND_BY_MS_FIELD_NUMBER: _ClassVar[int]
    HAS_BATCHES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    partition: _share_types_pb2.TopicPartition
    ranges: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.AcquiredRange]
    records: int
    credit_bytes: int
    frame: bytes
    send_by_ms: int
    has_batches: bool
    def __init__(self, handle: _Optional[int] = ..., partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[_share_types_pb2.AcquiredRange, _Mapping]]] = ..., records: _Optional[int] = ..., credit_bytes: _Optional[int] = ..., frame: _Optional[bytes] = ..., send_by_ms: _Optional[int] = ..., has_batches: bool = ...) -> None: ...

class Settled(_message.Message):
    __slots__ = ("handle", "relay_id", "outcome", "records")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RELAY_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    handle: int
    relay_id: int
    outcome: _share_types_pb2.PartitionOutcome
    records: int
    def __init__(self, handle: _Optional[int] = ..., relay_id: _Optional[int] = ..., outcome: _Optional[_Union[_share_types_pb2.PartitionOutcome, _Mapping]] = ..., records: _Optional[int] = ...) -> None: ...

class Returned(_message.Message):
    __slots__ = ("handle", "records_total", "bytes_total")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    BYTES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    handle: int
    records_total: int
    bytes_total: int
    def __init__(self, handle: _Optional[int] = ..., records_total: _Optional[int] = ..., bytes_total: _Optional[int] = ...) -> None: ...

class TimedOut(_message.Message):
    __slots__ = ("handle",)
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    def __init__(self, handle: _Optional[int] = ...) -> None: ...

class MemberTakenBack(_message.Message):
    __slots__ = ("handle", "notices")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    NOTICES_FIELD_NUMBER: _ClassVar[int]
    handle: int
    notices: _containers.RepeatedCompositeFieldContainer[_share_service_pb2.TakenBack]
    def __init__(self, handle: _Optional[int] = ..., notices: _Optional[_Iterable[_Union[_share_service_pb2.TakenBack, _Mapping]]] = ...) -> None: ...

class Hungry(_message.Message):
    __slots__ = ("group_id", "topic", "records")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    topic: str
    records: int
    def __init__(self, group_id: _Optional[str] = ..., topic: _Optional[str] = ..., records: _Optional[int] = ...) -> None: ...

class AskBooks(_message.Message):
    __slots__ = ("group_id", "partition", "owner_epoch")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    partition: _share_types_pb2.TopicPartition
    owner_epoch: int
    def __init__(self, group_id: _Optional[str] = ..., partition: _Optional[_Union[_share_types_pb2.TopicPartition, _Mapping]] = ..., owner_epoch: _Optional[int] = ...) -> None: ...

class Compared(_message.Message):
    __slots__ = ("handle", "lost")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    handle: int
    lost: _containers.RepeatedCompositeFieldContainer[_share_types_pb2.HeldRange]
    def __init__(self, handle: _Optional[int] = ..., lost: _Optional[_Iterable[_Union[_share_types_pb2.HeldRange, _Mapping]]] = ...) -> None: ...

class MemberEnd(_message.Message):
    __slots__ = ("handle", "reason", "message", "retriable")
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRIABLE_FIELD_NUMBER: _ClassVar[int]
    handle: int
    reason: str
    message: str
    retriable: bool
    def __init__(self, handle: _Optional[int] = ..., reason: _Optional[str] = ..., message: _Optional[str] = ..., retriable: bool = ...) -> None: ...
