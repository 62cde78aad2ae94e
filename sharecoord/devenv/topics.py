"""Topics and records for tests, benchmarks and the demo, on any cluster."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from sharecoord.devenv.errors import DevenvError
from sharecoord.errors import (
    KafkaUnavailableError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.kafka.catalog import topic_id_text

DEFAULT_TIMEOUT_S = 30.0
POLL_S = 0.02
SERVE_EVERY = 1024
"""Records between two looks at delivery reports: rare enough to cost nothing, often enough that the
queue of reports stays short."""

_UNAVAILABLE = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
    }
)
_UNKNOWN = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    }
)


class Record(NamedTuple):
    """A record to produce; a plain `(key, value, headers)` does as well.

    A value of None is a tombstone; with a timestamp of 0 the client takes the present.
    """

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()
    timestamp_ms: int = 0


RecordLike = Record | tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]


@dataclass(slots=True)
class Produced:
    """Number of records that Kafka confirmed, with first and last offset by partition."""

    count: int = 0
    offsets: dict[int, tuple[int, int]] = field(default_factory=dict)


def numbered_records(count: int, value_bytes: int = 100) -> Iterator[Record]:
    """Records without keys whose values begin with their number: `0000000007....`.

    A value has `value_bytes` bytes, at least ten for the digits.
    """
    if value_bytes < 10:
        raise DevenvError(f"value_bytes: {value_bytes} has no room for the number, use 10 or more")
    padding = b"." * (value_bytes - 10)
    for number in range(count):
        yield Record(None, b"%010d" % number + padding)


class Topics:
    """Creates, fills, trims and deletes topics of one cluster. Every call waits for its outcome.

    Keeps its clients, so one object for many calls is faster than many objects.

    Errors of every method: KafkaUnavailableError when the cluster does not answer in time,
    UnknownTopicOrPartitionError for a topic that is not there, DevenvError with Kafka's name of
    the error for everything else.
    """

    def __init__(self, bootstrap_servers: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        """Makes a client; nothing is sent yet. `timeout_s` bounds each method."""
        self.bootstrap_servers = bootstrap_servers
        self._timeout_s = timeout_s
        self._producers: dict[tuple[str, bool], Producer] = {}
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})

    def create(
        self, *names: str, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        """Creates topics with one replica and waits until every partition has a leader."""
        wanted = [
            NewTopic(
                name, num_partitions=partitions, replication_factor=1, config=dict(config or {})
            )
            for name in names
        ]
        futures = self._admin.create_topics(wanted, request_timeout=self._timeout_s)
        for name, future in futures.items():
            self._result(f"create topic {name}", future)
        total = partitions * len(names)
        self._wait(
            f"topics without leaders: {', '.join(names)}", lambda: self._leaders(names) == total
        )

    def delete(self, *names: str) -> None:
        """Deletes topics and waits until no broker names them any more."""
        if not names:
            return
        futures = self._admin.delete_topics(list(names), request_timeout=self._timeout_s)
        for name, future in futures.items():
            self._result(f"delete topic {name}", future)
        self._wait(f"{names} are still listed", lambda: not set(names) & set(self.names()))

    def names(self) -> list[str]:
        """The topics of the cluster, internal ones included, sorted."""
        with _errors("list topics"):
            return sorted(self._admin.list_topics(timeout=self._timeout_s).topics)

    def topic_id(self, name: str) -> str:
        """The id of a topic as 32 hex digits; "" when the cluster has none."""
        future = self._admin.describe_topics(
            TopicCollection([name]), request_timeout=self._timeout_s
        )[name]
        return topic_id_text(self._result(f"describe topic {name}", future).topic_id)

    def delete_records(self, topic: str, before: Mapping[int, int]) -> dict[int, int]:
        """Moves the log start by deleting records; returns the new log start by partition.

        `before` has the first offset that stays, by partition; -1 means the end of the log.
        """
        asked = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        futures = self._admin.delete_records(asked, request_timeout=self._timeout_s)
        return {
            each.partition: int(self._result(f"delete records of {topic}", future).low_watermark)
            for each, future in futures.items()
        }

    def set_group_config(self, group: str, settings: Mapping[str, str]) -> None:
        """Sets settings (`share.*`) of one of Kafka's own share groups, which need not exist."""
        entries = [
            ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        futures = self._admin.incremental_alter_configs([resource], request_timeout=self._timeout_s)
        for future in futures.values():
            self._result(f"set {', '.join(settings)} of share group {group}", future)

    def produce(
        self,
        topic: str,
        records: int | Iterable[RecordLike],
        *,
        value_bytes: int = 100,
        partition: int | None = 0,
        one_record_batches: bool = False,
        compression: str = "none",
    ) -> Produced:
        """Produces records in order and waits until all are confirmed by all replicas.

        Args:
            topic: An existing topic.
            records: How many `numbered_records`, or the records.
            value_bytes: Length of the values of numbered records.
            partition: Destination; None lets the client choose by key.
            one_record_batches: Whether each record is a record batch of its own.
            compression: `none`, `gzip`, `snappy`, `lz4` or `zstd`.
        """
        config: dict[str, Any] = {"enable.idempotence": True, "compression.type": compression}
        if one_record_batches:
            config |= {"batch.num.messages": 1, "linger.ms": 0}
        report = _Report(topic)
        with _errors(f"produce to {topic}"):
            # Kept, because an idempotent producer needs half a second for its first record.
            key = (compression, one_record_batches)
            producer = self._producers.pop(key, None) or self._producer(config)
            _enqueue(producer, topic, _stream(records, value_bytes), partition, report)
            self._flush(producer, report)
            self._producers[key] = producer
        return report.produced

    def produce_transaction(
        self,
        topic: str,
        records: int | Iterable[RecordLike],
        *,
        commit: bool,
        partition: int | None = 0,
    ) -> Produced:
        """Writes records in one transaction and commits or aborts it.

        Aborted records are in the log as well, as is the control record behind either end.
        Arguments are as of `produce`; each call has a transactional id of its own.
        """
        report = _Report(topic)
        with _errors(f"write a transaction to {topic}"):
            producer = self._producer({"transactional.id": f"devenv-{uuid.uuid4()}"})
            producer.init_transactions(self._timeout_s)
            producer.begin_transaction()
            _enqueue(producer, topic, _stream(records), partition, report)
            self._flush(producer, report)
            if commit:
                producer.commit_transaction(self._timeout_s)
            else:
                producer.abort_transaction(self._timeout_s)
        # The answer comes before the control records are written; who writes next could be first.
        self._wait(f"{topic} has no control records", lambda: self._ended(report))
        return report.produced

    def _ended(self, report: _Report) -> bool:
        """Whether the log goes on behind the last record of each partition."""
        last = {
            TopicPartition(report.topic, partition): offsets[1]
            for partition, offsets in report.produced.offsets.items()
        }
        latest: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        asked = dict.fromkeys(last, latest)
        futures = self._admin.list_offsets(asked, request_timeout=self._timeout_s)
        return all(
            self._result(f"look for the end of {report.topic}", future).offset > last[place] + 1
            for place, future in futures.items()
        )

    def _producer(self, config: Mapping[str, Any]) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap_servers,
                "log_level": 0,
                "acks": "all",
                "linger.ms": 5,
                "queue.buffering.max.messages": 200_000,
                # How long a topic may stay unknown before its records fail: 30 s by default.
                "topic.metadata.propagation.max.ms": 1000,
                "reconnect.backoff.max.ms": 500,
                "message.timeout.ms": int(self._timeout_s * 1000),
                **config,
            }
        )

    def _flush(self, producer: Producer, report: _Report) -> None:
        # A little longer than the records' own time limit, so that its error is the one seen.
        unsent = producer.flush(self._timeout_s + 1.0)
        if unsent:
            producer.purge()
            raise KafkaUnavailableError(
                f"{unsent} records to {report.topic} were not confirmed within "
                f"{self._timeout_s:.0f} s: is {self.bootstrap_servers} up?"
            )
        report.check()

    def _leaders(self, names: Sequence[str]) -> int:
        """How many partitions of the topics have a leader."""
        with _errors("read metadata of topics"):
            known = self._admin.list_topics(timeout=self._timeout_s).topics
        return sum(
            partition.leader >= 0
            for name in names
            if name in known
            for partition in known[name].partitions.values()
        )

    def _result(self, what: str, future: Future[Any]) -> Any:
        with _errors(what):
            return future.result(self._timeout_s + 1.0)

    def _wait(self, problem: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self._timeout_s
        while not done():
            if time.monotonic() > deadline:
                raise KafkaUnavailableError(f"{problem} after {self._timeout_s:.0f} s")
            time.sleep(POLL_S)


class _Report:
    """Takes the delivery reports of one call."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.produced = Produced()
        self._error: KafkaError | None = None

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if error is not None or partition is None or offset is None:
            self._error = self._error or error
            return
        self.produced.count += 1
        first = self.produced.offsets.get(partition, (offset, offset))[0]
        self.produced.offsets[partition] = (first, offset)

    def check(self) -> None:
        """Raises for the first record that failed."""
        if self._error is not None:
            raise KafkaException(self._error)


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turns Kafka's exceptions inside a `with` block into ours."""
    try:
        yield
    except KafkaException as error:
        raise kafka_error(what, error) from error
    except TimeoutError as error:
        raise KafkaUnavailableError(f"{what}: no answer in time; is the cluster up?") from error


def kafka_error(what: str, error: KafkaException) -> SharecoordError:
    """Our error for an error of Kafka's client; `what` says what was tried."""
    cause = error.args[0]
    if not isinstance(cause, KafkaError):
        return DevenvError(f"{what}: {error}")
    text = f"{what}: {cause.name()}: {cause.str()}"
    if cause.code() in _UNAVAILABLE:
        return KafkaUnavailableError(f"{text}; is the cluster up?")
    if cause.code() in _UNKNOWN:
        return UnknownTopicOrPartitionError(f"{text}; create the topic first")
    return DevenvError(text)


def _stream(records: int | Iterable[RecordLike], value_bytes: int = 100) -> Iterable[RecordLike]:
    return numbered_records(records, value_bytes) if isinstance(records, int) else records


def _enqueue(
    producer: Producer,
    topic: str,
    records: Iterable[RecordLike],
    partition: int | None,
    report: _Report,
) -> None:
    """Hands all records to the client; waits for room when its queue is full."""
    target = -1 if partition is None else partition
    for number, given in enumerate(records, start=1):
        key, value, headers, timestamp_ms = given if isinstance(given, Record) else Record(*given)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    key,
                    target,
                    on_delivery=report,
                    timestamp=timestamp_ms,
                    headers=list(headers) if headers else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
        if number % SERVE_EVERY == 0:
            producer.poll(0)
