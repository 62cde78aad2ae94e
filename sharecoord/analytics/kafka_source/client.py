"""Kafka clients of the source: where a topic's logs begin and end, and messages of a range."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from sharecoord.analytics.kafka_source.options import SourceOptions
from sharecoord.analytics.kafka_source.planning import Part
from sharecoord.config.kafka_keys import unknown_kafka_key
from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)

T = TypeVar("T")

REQUEST_TIMEOUT_S: Final = 15.0
"""Longest wait for one answer: three request timeouts of a slow broker."""
CONSUME_S: Final = 0.5
"""Longest wait of one call; after each call `poll.timeout.ms` is checked."""
CONSUME_MESSAGES: Final = 500
"""Most messages that one call takes from librdkafka."""

_DEFAULTS: Final[dict[str, Any]] = {
    # Tasks of a machine run beside each other: the memory for fetched messages is bounded.
    "queued.max.messages.kbytes": 32 << 10,
    "fetch.queue.backoff.ms": 2,
    "group.id": "sharecoord-analytics",
    # Otherwise there is one line per attempt to connect; our own errors say what is wrong.
    "log_level": 2,
}
_FIXED: Final[dict[str, Any]] = {
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "allow.auto.create.topics": False,
}
_GONE: Final = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)
_OUT_OF_RANGE: Final = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
    }
)


def _make(client: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """Makes a client of librdkafka.

    Raises:
        InvalidConfigError: librdkafka does not have a key, or not with this value.
    """
    try:
        # Broken connections are not told: librdkafka connects again, within our time limits.
        return client({**settings, "error_cb": lambda _: None})
    except KafkaException as error:
        text = error.args[0].str()
    if text.startswith("No such configuration property"):
        raise unknown_kafka_key(text.partition('"')[2].partition('"')[0])
    raise InvalidConfigError(f"kafka.*: librdkafka refuses it: {text.rstrip('.')}. Correct it")


def make_consumer(kafka: Mapping[str, str]) -> Consumer:
    """A consumer for manual assignment; it never joins a group, and does not commit."""
    return _make(Consumer, {**_DEFAULTS, **kafka, **_FIXED})


def make_producer(kafka: Mapping[str, str]) -> Producer:
    """A producer whose messages are durable when their delivery is reported."""
    return _make(Producer, {"log_level": 2, **kafka, "acks": "all", "enable.idempotence": True})


class TopicClient:
    """Asks Kafka about the logs of a topic; connects in the background. The caller closes it."""

    def __init__(self, options: SourceOptions) -> None:
        self._topic = options.topic
        self._servers = options.kafka["bootstrap.servers"]
        self._consumer = make_consumer(options.kafka)

    def ends(self) -> dict[int, tuple[int, int]]:
        """First offset and end of each partition's log, in order of the partitions.

        Raises:
            KafkaUnavailableError: No answer.
            UnknownTopicOrPartitionError: There is no such topic.
            UnauthorizedError: The topic may not be described or read.
        """
        metadata = self._ask(
            lambda: self._consumer.list_topics(self._topic, timeout=REQUEST_TIMEOUT_S)
        )
        topic = metadata.topics[self._topic]
        if topic.error is not None:
            raise _error_of(topic.error, self._topic, self._servers)
        return {number: self._ends_of(number) for number in sorted(topic.partitions)}

    def _ends_of(self, partition: int) -> tuple[int, int]:
        place = TopicPartition(self._topic, partition)
        low, high = self._ask(
            lambda: self._consumer.get_watermark_offsets(
                place, timeout=REQUEST_TIMEOUT_S, cached=False
            )
        )
        return low, high

    def at_time(self, time_ms: int, ends: Mapping[int, tuple[int, int]]) -> dict[int, int]:
        """The first offset of each partition with this time or a later one; its end without one."""
        times = [TopicPartition(self._topic, partition, time_ms) for partition in ends]
        offsets = self._ask(
            lambda: self._consumer.offsets_for_times(times, timeout=REQUEST_TIMEOUT_S)
        )
        return {
            each.partition: each.offset if each.offset >= 0 else ends[each.partition][1]
            for each in offsets
        }

    def _ask(self, question: Callable[[], T]) -> T:
        try:
            return question()
        except KafkaException as error:
            raise _error_of(error.args[0], self._topic, self._servers) from None

    def close(self) -> None:
        """Ends the client."""
        self._consumer.close()


def _error_of(error: KafkaError, topic: str, servers: str) -> SharecoordError:
    """An error of librdkafka as one of `sharecoord.errors`."""
    if error.code() in _GONE:
        return UnknownTopicOrPartitionError(
            f'topic "{topic}": the cluster at {servers} has no such topic or partition; it is the '
            "TOPIC of the coordinator's `events.sink: kafka:TOPIC`"
        )
    if error.code() in _REFUSED:
        return UnauthorizedError(
            f'topic "{topic}" at {servers}: {error.str()}: check the kafka.* settings '
            "(--kafka-config), and that the principal may DESCRIBE and READ the topic"
        )
    return KafkaUnavailableError(
        f'topic "{topic}": no answer from Kafka at {servers}: {error.str()}; check that a broker '
        "is up and kafka.bootstrap.servers (--kafka) is right"
    )


def read_messages(options: SourceOptions, part: Part) -> Iterator[tuple[int, bytes | None]]:
    """Offsets and values of the messages in a range, in order.

    Offsets without a message (compaction, control records) are passed over.

    Raises:
        KafkaUnavailableError: No message for `poll_timeout_ms`, though there have to be some.
        OffsetOutOfRangeError: The log now begins after the range's start.
        UnknownTopicOrPartitionError: The topic is gone.
        UnauthorizedError: The topic may not be read.
    """
    consumer = make_consumer(options.kafka)
    place = f"{options.topic}-{part.partition}"
    try:
        consumer.assign([TopicPartition(options.topic, part.partition, part.start)])
        next_offset, heard_s = part.start, time.monotonic()
        while next_offset < part.end:
            messages = consumer.consume(CONSUME_MESSAGES, CONSUME_S)
            for message in messages:
                offset = _offset_of(message, options, place)
                if offset is None:
                    continue
                heard_s = time.monotonic()
                next_offset = offset + 1
                if message.error() is not None:  # the end of the log, one before the next offset
                    next_offset = offset
                elif offset < part.end:
                    yield offset, message.value()
                if next_offset >= part.end:
                    return
            if (time.monotonic() - heard_s) * 1_000 > options.poll_timeout_ms:
                raise KafkaUnavailableError(
                    f"{place}: nothing came from Kafka for {options.poll_timeout_ms} ms at offset "
                    f"{next_offset}, and offsets up to {part.end} are to be read: check the broker "
                    "that leads the partition, or raise the option poll.timeout.ms"
                )
    finally:
        consumer.close()


def _offset_of(message: Message, options: SourceOptions, place: str) -> int | None:
    """The offset of a message, or of the log's end; None for an error that passes by itself."""
    error = message.error()
    if error is None or error.code() == KafkaError._PARTITION_EOF:
        return message.offset()
    if error.code() in _OUT_OF_RANGE:
        raise OffsetOutOfRangeError(
            f"{place}: the log no longer has the offsets that were to be read (retention): begin "
            "at a later offset or time, or keep messages for longer"
        )
    if error.code() in _GONE | _REFUSED:
        raise _error_of(error, options.topic, options.kafka["bootstrap.servers"])
    return None
