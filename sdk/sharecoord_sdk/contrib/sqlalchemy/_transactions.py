"""Kafka's side of `ProduceRelay`: one transactional id, and the marks of what arrived.

With its records each transaction commits an offset of the consumer group that is called like the
transactional id, on partition 0 of each of their topics. The offset's metadata is the batch's
token. Whoever opens fences the former producer, which has Kafka decide what that one left open,
and then reads the marks.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sharecoord_sdk._admin.errors import InvalidConfigError
from sharecoord_sdk._core.errors import PicklableError

from ._output_rows import Batch
from ._produce_outbox import headers_from_text

#: The longest wait for one answer of Kafka's.
PATIENCE_S: Final = 15.0
#: The longest part of it; after each the relay gives a sign of life.
SLICE_MAX_S: Final = 1.0

#: Keys that are the relay's own.
_OWN: Final = ("transactional.id", "group.id", "isolation.level")

_DEFAULTS: Final[dict[str, Any]] = {
    "transaction.timeout.ms": 60_000,
    "linger.ms": 5,
    # Problems come as errors, which the relay logs once.
    "log_level": 2,
}

#: A topic is not there, or not for this user: its records wait.
_TOPIC: Final = frozenset(
    {
        "_UNKNOWN_TOPIC",
        "UNKNOWN_TOPIC_OR_PART",
        "TOPIC_AUTHORIZATION_FAILED",
        "TOPIC_EXCEPTION",
    }
)
#: A record is one that this topic never takes.
_RECORD: Final = frozenset(
    {
        "_INVALID_ARG",
        "_UNKNOWN_PARTITION",
        "INVALID_MSG",
        "INVALID_RECORD",
        "INVALID_TIMESTAMP",
        "MSG_SIZE_TOO_LARGE",
        "POLICY_VIOLATION",
        "RECORD_LIST_TOO_LARGE",
        "UNSUPPORTED_FOR_MESSAGE_FORMAT",
    }
)


class RefusedError(PicklableError):
    """A transaction was aborted, because a topic or a record can not be.

    It never arrives, also where Kafka did not confirm that it is aborted: nobody asked for its end.

    Attributes:
        topics: Those that are known to be the reason.
        text: The reason.
        is_topic: Whether it is a topic, and not a record.
    """

    def __init__(self, topics: Sequence[str], text: str, *, is_topic: bool) -> None:
        super().__init__(text)
        self.topics, self.text, self.is_topic = topics, text, is_topic


class OutputTransactions:
    """The producer of a relay.

    Args:
        conf: librdkafka's settings, of producer and reader.
        transactional_id: Of the producer, and the name of the consumer group of its marks.
        wait_on: Called between two looks at an answer that is not there yet; False = give up.
        every_s: Time between two such calls, `SLICE_MAX_S` at most.

    Raises:
        ImportError: confluent-kafka is not installed.
        InvalidConfigError: A key that is the relay's own, or that librdkafka refuses.
    """

    def __init__(
        self,
        conf: Mapping[str, Any],
        transactional_id: str,
        wait_on: Callable[[], bool],
        every_s: float,
    ) -> None:
        try:
            import confluent_kafka
        except ImportError as error:
            text = "outputs need confluent-kafka: pip install 'sharecoord-sdk[sqlalchemy,kafka]'"
            raise ImportError(text) from error
        self._kafka = confluent_kafka
        for key in _OWN:
            if key in conf:
                text = f"conf: {key!r} is the relay's own: leave it out"
                raise InvalidConfigError(text, reason="INVALID_CONFIG")
        common = {**_DEFAULTS, "error_cb": self._heard, **conf}
        self._conf = {**common, "transactional.id": transactional_id}
        self._reader_conf = {
            **common,
            "group.id": transactional_id,
            # `committed` waits for offsets of an open transaction.
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
        self._wait_on = wait_on
        self._slice_s = min(every_s, SLICE_MAX_S)
        self._producer: Any = None
        self._group: Any = None
        self._known: set[str] = set()
        """Topics that are there."""
        self._last_words = ""
        try:
            confluent_kafka.Producer(self._conf)
            confluent_kafka.Consumer(self._reader_conf).close()
        except confluent_kafka.KafkaException as error:
            text = f"conf: librdkafka refuses it: {error.args[0].str().rstrip('.')}"
            raise InvalidConfigError(text, reason="INVALID_CONFIG") from error

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    @property
    def last_words(self) -> str:
        """The last text of librdkafka about its connections."""
        return self._last_words

    def _heard(self, error: Any) -> None:
        self._last_words = error.str()

    def open(self) -> None:
        """Fences the former producer and ends its transaction; KafkaException when it can not."""
        self.close()
        self._producer = self._kafka.Producer(self._conf)
        self._patiently(self._producer.init_transactions)

    def marks(self, topics: Sequence[str]) -> set[str]:
        """The tokens of the batches that arrived last in these topics; errors as of `open`."""
        places = [self._kafka.TopicPartition(topic, 0) for topic in topics]
        reader = self._kafka.Consumer(self._reader_conf)
        try:
            self._group = reader.consumer_group_metadata()
            if not places:
                return set()
            found = self._patiently(lambda limit_s: reader.committed(places, timeout=limit_s))
        finally:
            reader.close()
        for place in found:
            if place.error is not None and place.error.name() != "UNKNOWN_TOPIC_OR_PART":
                raise self._kafka.KafkaException(place.error)
        return {str(place.metadata) for place in found if place.error is None and place.offset >= 0}

    def problem_with(self, topic: str) -> str | None:
        """Why a topic can not be written to, as far as Kafka tells beforehand; None = it can."""
        if topic in self._known:
            return None
        found = self._patiently(lambda limit_s: self._producer.list_topics(topic, timeout=limit_s))
        error = found.topics[topic].error
        if error is None:
            self._known.add(topic)
        return None if error is None else _text(error)

    def send(self, batch: Batch, now_ms: int) -> None:
        """Sends a batch in one transaction.

        Raises:
            RefusedError: It never arrives: Kafka does not take one of its records, or topics. The
                producer is closed.
            KafkaException: What became of it is not known: `open` tells.
        """
        failed: list[tuple[str, Any]] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append((message.topic(), error))

        producer, is_ending = self._producer, False
        # The offset says when; what counts is the token.
        marks = [self._kafka.TopicPartition(each, 0, now_ms, batch.token) for each in batch.topics]
        try:
            producer.begin_transaction()
            for row in batch.rows:
                self._produce(row, delivered)
            self._patiently(lambda limit_s: self._flush(batch, limit_s), failed)
            if failed:
                raise self._kafka.KafkaException(failed[0][1])
            self._patiently(
                lambda limit_s: producer.send_offsets_to_transaction(marks, self._group, limit_s)
            )
            is_ending = True
            self._patiently(producer.commit_transaction)
        except RefusedError:
            self._abort()
            raise
        except self._kafka.KafkaException as error:
            if is_ending and not error.args[0].txn_requires_abort():
                raise
            refused = self._refused(failed, error.args[0])
            if refused is None:
                raise
            self._abort()
            raise refused from error

    def close(self) -> None:
        """Lets go of the producer; a transaction that is open ends when it is opened next."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
        self._producer = None
        self._known.clear()

    def _abort(self) -> None:
        """Ends a transaction that is not to arrive, and closes; `open` ends it if this fails.

        Closes, because librdkafka 2.16 may purge records of the transaction after an abort.
        """
        with contextlib.suppress(self._kafka.KafkaException):
            self._producer.purge()
            self._patiently(self._producer.abort_transaction)
        self.close()

    def _produce(self, row: Any, delivered: Callable[[Any, Any], None]) -> None:
        headers = headers_from_text(row.headers)
        given: dict[str, Any] = {
            "value": row.record_value,
            "key": row.record_key,
            "partition": -1 if row.partition_index is None else row.partition_index,
            "timestamp": row.timestamp_ms,
            "headers": headers or None,
            "on_delivery": delivered,
        }

        def produce(limit_s: float) -> None:
            try:
                self._producer.produce(row.topic, **given)
            except BufferError:
                # librdkafka's queue is smaller than the batch.
                self._producer.flush(limit_s)
                raise self._late() from None

        self._patiently(produce)

    def _flush(self, batch: Batch, limit_s: float) -> None:
        if not self._producer.flush(limit_s):
            return
        # librdkafka reports a topic that was deleted meanwhile after minutes only.
        self._known.clear()
        for topic in batch.topics:
            problem = self.problem_with(topic)
            if problem is not None:
                raise RefusedError([topic], problem, is_topic=True)
        raise self._late()

    def _late(self) -> Exception:
        return self._kafka.KafkaException(self._kafka.KafkaError(self._kafka.KafkaError._TIMED_OUT))

    def _patiently(self, call: Callable[[float], Any], failed: Sequence[object] = ()) -> Any:
        """Waits for an answer, and returns it; a wait that ran out goes on where it was."""
        for left in reversed(range(math.ceil(PATIENCE_S / self._slice_s))):
            try:
                return call(self._slice_s)
            except self._kafka.KafkaException as error:
                is_late = error.args[0].code() == self._kafka.KafkaError._TIMED_OUT
                if not is_late or not left or failed or not self._wait_on():
                    raise
        raise AssertionError("the last wait returns or raises")

    def _refused(self, failed: Sequence[tuple[str, Any]], error: Any) -> RefusedError | None:
        """The refusal of topics or records that an error means; None = it means something else."""
        causes = [*failed, ("", error)]
        for is_topic, names in ((True, _TOPIC), (False, _RECORD)):
            found = [(topic, cause) for topic, cause in causes if cause.name() in names]
            if found:
                topics = list(dict.fromkeys(topic for topic, _ in found if topic))
                return RefusedError(topics, _text(found[0][1]), is_topic=is_topic)
        return None


def _text(error: Any) -> str:
    return f"{error.name()}: {error.str()}"
