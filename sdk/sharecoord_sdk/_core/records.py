"""Records as the application sees them: the classes of `confluent_kafka`, made when asked for."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import total_ordering
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, overload

from .columns import Columns, HandOut, Span, joined, own_headers
from .errors import IllegalStateException, KafkaError, KafkaException

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # As in the twin's stubs: what a deserializer makes of keys and values; bytes without one.
    K = TypeVar("K", default=bytes)
    V = TypeVar("V", default=bytes)
else:
    from typing import TypeVar

    K, V = TypeVar("K"), TypeVar("V")

#: The record carries no time.
TIMESTAMP_NOT_AVAILABLE: Final = 0
#: The time is the producer's.
TIMESTAMP_CREATE_TIME: Final = 1
#: The time is the broker's, at the append.
TIMESTAMP_LOG_APPEND_TIME: Final = 2

#: No group allows larger checkpoints.
CHECKPOINT_MAX_BYTES: Final = 64 * 1024

_OFFSET_INVALID: Final = -1001
_INT32_MAX: Final = 2**31 - 1


class AcknowledgeType(IntEnum):
    """The ways to settle a record (KIP-932); the numbers are Kafka's."""

    #: Processed; never delivered to the group again.
    ACCEPT = 1
    #: Not processed; may be delivered again, to anyone.
    RELEASE = 2
    #: Can not be processed; archived (and dead-lettered where that is on).
    REJECT = 3
    #: Still at it: the lock starts again with its full duration (KIP-932, section "Renewal").
    RENEW = 4


class CheckpointStore(ABC):
    """The owner of records whose messages can store checkpoints."""

    @abstractmethod
    def keep(self, columns: Columns, row: int, data: bytes) -> Awaitable[None]: ...


class Completed:
    """An awaitable that is done already."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


COMPLETED: Final = Completed()


def read_checkpoint(data: object) -> bytes:
    """Checks a checkpoint's bytes.

    Raises:
        TypeError: Not bytes.
        ValueError: Too large.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"a checkpoint must be bytes, not {type(data).__name__}")
    found = bytes(data)
    if len(found) > CHECKPOINT_MAX_BYTES:
        text = f"a checkpoint has at most {CHECKPOINT_MAX_BYTES} bytes, not {len(found)}"
        raise ValueError(f"{text}; store large state elsewhere, and where it is here")
    return found


@dataclass(slots=True)
class OwnFields:
    """The fields of one message that the application made or changed."""

    #: Nobody: only rows of a batch can be acknowledged the short way.
    owner: ClassVar[object] = None

    topic: Any = None
    partition: int | None = None
    offset: int | None = None
    headers: Any = None
    error: KafkaError | None = None
    timestamp: tuple[int, int] = (TIMESTAMP_NOT_AVAILABLE, 0)
    latency: float | None = None
    leader_epoch: int | None = None
    delivery_count: int | None = None
    checkpoint: bytes | None = None
    #: The row that this was copied from, so that it can still be acknowledged.
    origin: tuple[Columns, int] | None = None
    #: The dead letter that it was; only of copies, others have their row.
    redriven: tuple[str, int, int] | None = None

    def offset_at(self, row: int) -> int | None:
        return self.offset

    def headers_at(self, row: int) -> Any:
        return self.headers

    def timestamp_at(self, row: int) -> tuple[int, int]:
        return self.timestamp

    def delivery_count_at(self, row: int) -> int | None:
        return self.delivery_count

    def checkpoint_at(self, row: int) -> bytes | None:
        """The checkpoint; that of the row that this was copied from may be a newer one."""
        if self.origin is None:
            return self.checkpoint
        columns, at = self.origin
        return columns.checkpoint_at(at)


class Message(Generic[K, V]):
    """A record, or an error in a record's place (`error()` is not None).

    `poll` makes messages; the constructor is for tests, as in the twin. A message is falsy and
    has length 0 when its value is null or empty, as in the twin: test `error()`, not the message.
    """

    __slots__ = ("_key", "_row", "_source", "_value")

    _source: Columns | OwnFields
    _row: int
    _key: Any
    _value: Any

    def __init__(
        self,
        topic: str | None = None,
        partition: int | None = None,
        offset: int | None = None,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        error: KafkaError | None = None,
        timestamp: tuple[int, int] | None = None,
        latency: float | None = None,
        leader_epoch: int | None = None,
        delivery_count: int | None = None,
        checkpoint: bytes | None = None,
    ) -> None:
        if timestamp is None:
            timestamp = (TIMESTAMP_NOT_AVAILABLE, 0)
        elif not isinstance(timestamp, tuple) or len(timestamp) != 2:
            raise TypeError("timestamp must be a tuple of (int, int)")
        self._key = key
        self._value = value
        self._source = OwnFields(
            topic,
            None if partition is None else operator.index(partition),
            None if offset is None else operator.index(offset),
            headers,
            error,
            timestamp,
            latency,
            leader_epoch,
            delivery_count,
            checkpoint,
        )
        self._row = 0

    def topic(self) -> str | None:
        """Name of the topic."""
        return self._source.topic

    def partition(self) -> int | None:
        """Number of the partition."""
        return self._source.partition

    def offset(self) -> int | None:
        """Offset within the partition."""
        return self._source.offset_at(self._row)

    def key(self) -> Any:
        """The key as bytes (or what a deserializer made of it); None when it is null."""
        return self._key

    def value(self) -> Any:
        """The value as bytes (or what a deserializer made of it); None when it is null."""
        return self._value

    def deserialized_key(self) -> K | None:
        """The same, with the type that a deserializer makes."""
        return self._key  # type: ignore[no-any-return]

    def deserialized_value(self) -> V | None:
        """The same, with the type that a deserializer makes."""
        return self._value  # type: ignore[no-any-return]

    def headers(self) -> Any:
        """List of (name, bytes or None), or None when there are none."""
        return self._source.headers_at(self._row)

    def error(self) -> KafkaError | None:
        """The error of this record, or None."""
        source = self._source
        if isinstance(source, OwnFields):
            return source.error
        return None if source.errors is None else source.errors.get(self._row)

    def timestamp(self) -> tuple[int, int]:
        """Kind of the time (`TIMESTAMP_*`) and milliseconds since the epoch."""
        return self._source.timestamp_at(self._row)

    def latency(self) -> float | None:
        """Always None on a consumed message, as in the twin."""
        source = self._source
        return source.latency if isinstance(source, OwnFields) else None

    def leader_epoch(self) -> int | None:
        """None: the coordinator reads the log, this client does not."""
        source = self._source
        return source.leader_epoch if isinstance(source, OwnFields) else None

    def delivery_count(self) -> int | None:
        """How often the record was handed out, this time included: 1 at the first delivery."""
        return self._source.delivery_count_at(self._row)

    def redriven(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the dead letter that this record was, if it was one.

        All else of a redriven record is as before it became a dead letter: where it came from, and
        its own headers.
        """
        source = self._source
        return source.redriven if isinstance(source, OwnFields) else None

    def checkpoint_data(self) -> bytes | None:
        """The checkpoint of this or an earlier delivery; None without one."""
        return self._source.checkpoint_at(self._row)

    def checkpoint(self, data: bytes) -> Awaitable[None]:
        """Stores how far a handler of a `Worker` has come, for the next delivery of the record.

        It takes the place of the one before, is durable afterwards, and goes when the record is
        finished. The lock is renewed with it. In an async handler `await` it; in a plain one, which
        runs on a thread, it returns when it is done. (`ShareConsumer` has a method of this name.)

        Args:
            data: At most 64 KiB, and `share.checkpoint.max.bytes` of the group.

        Raises:
            TypeError: Not bytes.
            ValueError: More than 64 KiB.
            IllegalStateException: No record of a worker, or its handler is done.
            KafkaException: INVALID_RECORD_STATE: the lock is lost. INVALID_REQUEST: more than the
                group allows. THROTTLING_QUOTA_EXCEEDED (retriable): the group has too many.
                _TIMED_OUT: no answer within `default.api.timeout.ms`.
        """
        origin = origin_of(self)
        if origin is None:
            # Made by the application, to test a handler.
            self._own().checkpoint = read_checkpoint(data)
            return COMPLETED
        columns, row = origin
        if not isinstance(columns.owner, CheckpointStore):
            raise IllegalStateException(
                "only handlers of a Worker store it so; use checkpoint() of the consumer"
            )
        return columns.owner.keep(columns, row, read_checkpoint(data))

    def copy(self) -> Message[K, V]:
        """The same message with nothing of its batch, to be kept for long.

        A message that is kept holds its own key and value, and beside them the headers, times and
        locks of all records of its batch (up to some thousand); a copy holds its own alone. Until
        the next poll it can be acknowledged in the place of the message. A handler's `checkpoint`
        needs the message itself.
        """
        own = OwnFields(
            self.topic(),
            self.partition(),
            self.offset(),
            self.headers(),
            self.error(),
            self.timestamp(),
            self.latency(),
            self.leader_epoch(),
            self.delivery_count(),
            self.checkpoint_data(),
            redriven=self.redriven(),
        )
        made: Message[K, V] = Message.__new__(Message)
        made._source, made._row, made._key, made._value = own, 0, self._key, self._value
        return made

    def set_topic(self, topic: Any) -> None:
        """Changes the topic of this object."""
        own = self._own()
        own.topic = topic
        own.origin = None

    def set_key(self, key: Any) -> None:
        """Changes the key of this object."""
        self._key = key

    def set_value(self, value: Any) -> None:
        """Changes the value of this object."""
        self._value = value

    def set_headers(self, headers: Any) -> None:
        """Changes the headers of this object."""
        self._own().headers = headers

    def set_error(self, error: KafkaError | None) -> None:
        """Marks the record as bad, or as good again (None)."""
        self._own().error = error

    def _own(self) -> OwnFields:
        """The fields of this message alone: copied out of the batch at the first change."""
        source = self._source
        if isinstance(source, OwnFields):
            return source
        own = OwnFields(
            source.topic,
            self.partition(),
            self.offset(),
            self.headers(),
            self.error(),
            timestamp=self.timestamp(),
            delivery_count=self.delivery_count(),
            checkpoint=self.checkpoint_data(),
            origin=(source, self._row),
        )
        self._source, self._row = own, 0
        return own

    def _fields(self) -> tuple[Any, ...]:
        place = (self.topic(), self.partition(), self.offset())
        payload = (self.key(), self.value(), self.headers(), self.error())
        return (*place, *payload, self.timestamp(), self.latency(), self.leader_epoch())

    def __len__(self) -> int:
        value = self._value
        return 0 if value is None else len(value)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Message):
            return self._fields() == other._fields()
        return NotImplemented

    # Mutable, hence not hashable, as the twin's.
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type[Message], tuple[Any, ...]]:
        return Message, (*self._fields(), self.delivery_count(), self.checkpoint_data())

    def __repr__(self) -> str:
        place = f"topic={self.topic()!r}, partition={self.partition()}, offset={self.offset()}"
        return f"Message({place}, delivery_count={self.delivery_count()}, error={self.error()})"


class ReceivedMessage(Message[K, V]):
    """A message that is no more than a row of a batch until somebody changes it."""

    __slots__ = ()

    def __init__(self, source: Columns, row: int, value: Any, key: Any) -> None:
        self._source = source
        self._row = row
        self._value = value
        self._key = key


class RedrivenMessage(ReceivedMessage[K, V]):
    """A received message of a record that was a dead letter."""

    __slots__ = ()

    def partition(self) -> int | None:
        """Number of the partition that the record came from first."""
        source = self._source
        return source.source_at(self._row)[0] if isinstance(source, Columns) else source.partition

    def offset(self) -> int | None:
        """Offset that the record had there."""
        source = self._source
        if isinstance(source, Columns):
            return source.source_at(self._row)[1]
        return source.offset_at(self._row)

    def headers(self) -> Any:
        """The record's own headers, or None when there are none."""
        source = self._source
        if isinstance(source, Columns):
            return own_headers(source.headers_at(self._row))
        return source.headers_at(self._row)

    def redriven(self) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the dead letter."""
        origin = origin_of(self)
        if origin is None:
            return None
        columns, row = origin
        return columns.key.topic, columns.partition, columns.offset_at(row)


def message_at(columns: Columns, row: int) -> Message[Any, Any]:
    """The message of a row of a batch, of which a span is left."""
    if columns.unopened:
        columns.open(row, row + 1)
    keys = columns.keys
    make = RedrivenMessage if columns.key.lane else ReceivedMessage
    return make(columns, row, columns.values[row], None if keys is None else keys[row])


def messages_of(columns: Columns, start: int, stop: int) -> list[Message[Any, Any]]:
    """The messages of rows [start, stop) of a batch, of which a span is left."""
    if columns.unopened:
        columns.open(start, stop)
    make = RedrivenMessage if columns.key.lane else ReceivedMessage
    keys = columns.keys
    own_keys = repeat(None) if keys is None else keys[start:stop]
    rows = range(start, stop)
    own_values = columns.values[start:stop]
    return list(map(make, repeat(columns), rows, own_values, own_keys))  # type: ignore[arg-type]


def origin_of(message: Message[Any, Any]) -> tuple[Columns, int] | None:
    """The batch and row that a message came from, or None for one that the application made."""
    source = message._source
    if isinstance(source, Columns):
        return source, message._row
    return source.origin


_key_of: Final[Callable[[Any], Any]] = operator.attrgetter("_key")
_value_of: Final[Callable[[Any], Any]] = operator.attrgetter("_value")

#: Rows [start, stop) of a batch.
Run = tuple[Columns, int, int]


class Messages(Generic[K, V]):
    """The messages of one poll: a read-only sequence, made into objects at the first look.

    A program that wants no more than the values, say, takes `values()`: then no object is made per
    record. The three columns have an entry for each message, in the order of the messages.
    """

    def __init__(self, messages: Iterable[Message[K, V]] = ()) -> None:
        self._records: list[Message[K, V]] | None = list(messages)
        self._spans: Sequence[Span] = ()
        self._count = len(self._records)
        self._hand_out = HandOut([])

    @classmethod
    def _of(cls, hand_out: HandOut) -> Messages[K, V]:
        made = cls.__new__(cls)
        made._records = None
        made._spans = hand_out.spans
        made._count = sum(map(len, hand_out.spans))
        made._hand_out = hand_out
        return made

    def _list(self) -> list[Message[K, V]]:
        records = self._records
        if records is None:
            records = []
            for columns, start, stop, _ in joined(self._spans):
                records += messages_of(columns, start, stop)
                if columns.errors:
                    columns.release_unopened(start, stop)
            self._records, self._spans = records, ()
        return records

    def _runs(self, owner: object) -> list[Run] | None:
        """The rows that a poll of this consumer returned, or None: they are no poll's of it."""
        runs = [(columns, start, stop) for columns, start, stop, _ in joined(self._hand_out.spans)]
        is_all = sum(stop - start for _, start, stop in runs) == self._count
        return runs if is_all and all(run[0].owner is owner for run in runs) else None

    def values(self) -> list[V | None]:
        """The values: what `value()` of each message gives, None for null.

        Of a record that can not be deserialized: its bytes; its message has an `error()`.

        Raises:
            KafkaException: _BAD_MSG: a record batch can not be opened. So that none is lost, all
                records of this poll are released that were not acknowledged; iterate over messages
                to get the others all the same.
        """
        if self._records is not None:
            return list(map(_value_of, self._records))
        self._open()
        found: list[Any] = []
        for columns, start, stop, _ in joined(self._spans):
            found += columns.values[start:stop]
        return found

    def _open(self) -> None:
        """Opens whole batches, for columns of values or keys, which have no room for an error."""
        runs = list(joined(self._spans))
        errors: list[KafkaError] = []
        for columns, start, stop, _ in runs:
            if columns.unopened:
                columns.open(start, stop)
            if columns.errors:
                errors += [columns.errors[at] for at in range(start, stop) if at in columns.errors]
        if errors:
            for columns, start, stop, _ in runs:
                columns.release_unopened(start, stop, errors[0])
            raise KafkaException(errors[0])

    def keys(self) -> list[K | None]:
        """The keys: what `key()` of each message gives, None for null.

        Raises:
            KafkaException: As of `values`.
        """
        if self._records is not None:
            return list(map(_key_of, self._records))
        self._open()
        found: list[Any] = []
        for columns, start, stop, _ in joined(self._spans):
            keys = columns.keys
            found += [None] * (stop - start) if keys is None else keys[start:stop]
        return found

    def offsets(self) -> list[int | None]:
        """The offsets: what `offset()` of each message gives.

        They are of one partition, or of several, one after the other.
        """
        if self._records is not None:
            return [message.offset() for message in self._records]
        found: list[int | None] = []
        for columns, start, stop, _ in joined(self._spans):
            found += columns.offsets_of(start, stop)
        return found

    def records(self) -> list[Message[K, V]]:
        """A copy of the messages as a list."""
        return list(self._list())

    def count(self) -> int:
        """Number of messages."""
        return self._count

    def is_empty(self) -> bool:
        """Whether there are none."""
        return self._count == 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Message[K, V]]:
        return iter(self._list())

    @overload
    def __getitem__(self, index: int) -> Message[K, V]: ...

    @overload
    def __getitem__(self, index: slice) -> Messages[K, V]: ...

    def __getitem__(self, index: int | slice) -> Message[K, V] | Messages[K, V]:
        if isinstance(index, slice):
            return Messages(self._list()[index])
        return self._list()[index]

    def __reduce__(self) -> tuple[type[Messages[K, V]], tuple[list[Message[K, V]]]]:
        return Messages, (self._list(),)

    def __repr__(self) -> str:
        return f"Messages({self._list()!r})"


@total_ordering
class TopicPartition:
    """A partition of a topic, with room for an offset. Equal and hashed by topic and partition."""

    __slots__ = ("_error", "_leader_epoch", "_metadata", "_partition", "_topic", "offset")

    def __init__(
        self,
        topic: str,
        partition: int = -1,
        offset: int = _OFFSET_INVALID,
        metadata: str | None = None,
        leader_epoch: int | None = None,
    ) -> None:
        if not isinstance(topic, str):
            raise TypeError(f"argument 1 must be str, not {type(topic).__name__}")
        self._topic = topic
        self.partition = partition
        self.offset = operator.index(offset)
        self._metadata = metadata
        self._leader_epoch = leader_epoch
        self._error: KafkaError | None = None

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._topic

    @property
    def partition(self) -> int:
        """Number of the partition; -1 = not set."""
        return self._partition

    @partition.setter
    def partition(self, value: int) -> None:
        number = operator.index(value)
        if abs(number) > _INT32_MAX:
            raise OverflowError("signed integer is greater than maximum")
        self._partition = number

    @property
    def metadata(self) -> str | None:
        """Text that goes with the offset."""
        return self._metadata

    @property
    def leader_epoch(self) -> int | None:
        """Leader epoch of the offset."""
        return self._leader_epoch

    @property
    def error(self) -> KafkaError | None:
        """The error of this partition, or None."""
        return self._error

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TopicPartition):
            return self._topic == other._topic and self._partition == other._partition
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._topic, self._partition))

    def __lt__(self, other: TopicPartition) -> bool:
        return (self._topic, self._partition) < (other._topic, other._partition)

    def __repr__(self) -> str:
        epoch = f"leader_epoch={self._leader_epoch},error={self._error}"
        place = f"topic={self._topic},partition={self._partition},offset={self.offset}"
        return f"TopicPartition{{{place},{epoch}}}"


class ThrottleEvent:
    """The argument of the twin's `throttle_cb`. No broker throttles a consumer here: none is made.

    Attributes:
        broker_name: The broker that throttled a request.
        broker_id: Its number.
        throttle_time: Seconds.
    """

    def __init__(self, broker_name: str, broker_id: int, throttle_time: float) -> None:
        self.broker_name = broker_name
        self.broker_id = broker_id
        self.throttle_time = throttle_time

    def __str__(self) -> str:
        after_ms = int(self.throttle_time * 1000)
        return f"{self.broker_name}/{self.broker_id} throttled for {after_ms} ms"
