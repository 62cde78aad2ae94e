"""A broker behind confluent-kafka's names: topics, transactions, fences, offsets of groups."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition


class Written(NamedTuple):
    """A record in a topic."""

    value: bytes | None
    key: bytes | None
    partition: int
    timestamp: int
    headers: list[tuple[str, bytes | None]] | None


def error(code: int, *, fatal: bool = False, abort: bool = False) -> KafkaException:
    return KafkaException(KafkaError(code, "", fatal, False, abort))


class FakeBroker:
    """What a cluster keeps. `step` hears the name of each call, before and after its effect."""

    def __init__(self, *topics: str) -> None:
        self.topics: dict[str, list[Written]] = {topic: [] for topic in topics}
        self.record_bytes_max: dict[str, int] = {}
        self.not_allowed: set[str] = set()
        """Topics that can be seen, and not be written to."""
        self.marks: dict[tuple[str, str], tuple[int, str]] = {}
        """By group and topic."""
        self.epochs: dict[str, int] = {}
        self.transactions: list[int] = []
        """How many records each one had that was committed."""
        self.aborted = 0
        self.longest_wait_s = 0.0
        """The longest time that a call was allowed to take."""
        self.queued_max = 100_000
        """Records that a producer takes before they are flushed."""
        self.step: Callable[[str], None] = lambda name: None

    def begins(self, call: str, timeout: float, step: Callable[[str], None]) -> None:
        """A call that may wait for so many seconds."""
        self.longest_wait_s = max(self.longest_wait_s, timeout)
        step(f"before {call}")

    def values(self, topic: str) -> list[bytes | None]:
        return [each.value for each in self.topics[topic]]

    def producer(self, conf: dict[str, Any]) -> FakeProducer:
        return FakeProducer(self, conf, self._step_of(conf))

    def consumer(self, conf: dict[str, Any]) -> FakeConsumer:
        assert conf["isolation.level"] == "read_committed"
        return FakeConsumer(self, conf["group.id"], self._step_of(conf))

    def _step_of(self, conf: dict[str, Any]) -> Callable[[str], None]:
        """Of one process, where several have this broker."""
        return conf.get("step", lambda name: self.step(name))


class FakeProducer:
    def __init__(
        self, broker: FakeBroker, conf: dict[str, Any], step: Callable[[str], None]
    ) -> None:
        self._broker, self._step = broker, step
        self._id: str = conf["transactional.id"]
        self._epoch = 0
        self._queue: list[tuple[str, Written, Callable[[Any, Any], None]]] = []
        self._sent: list[tuple[str, Written]] = []
        self._marks: list[TopicPartition] = []

    def _fence(self) -> None:
        if self._broker.epochs.get(self._id) != self._epoch:
            raise error(KafkaError._FENCED, fatal=True)

    def init_transactions(self, timeout: float) -> None:
        self._broker.begins("init", timeout, self._step)
        self._epoch = self._broker.epochs[self._id] = self._broker.epochs.get(self._id, 0) + 1
        self._step("after init")

    def begin_transaction(self) -> None:
        self._queue, self._sent, self._marks = [], [], []

    def produce(self, topic: str, *, on_delivery: Callable[[Any, Any], None], **given: Any) -> None:
        if len(given["value"] or b"") > 1_000_000:
            raise error(KafkaError.MSG_SIZE_TOO_LARGE)
        if len(self._queue) >= self._broker.queued_max:
            raise BufferError
        self._queue.append((topic, Written(**given), on_delivery))

    def flush(self, timeout: float) -> int:
        self._broker.begins("flush", timeout, self._step)
        self._fence()
        large = {
            topic
            for topic, record, _ in self._queue
            if len(record.value or b"") > self._broker.record_bytes_max.get(topic, 1_000_000)
        }
        for topic, record, delivered in self._queue:
            code = None
            if topic not in self._broker.topics:
                code = KafkaError.UNKNOWN_TOPIC_OR_PART
            elif topic in self._broker.not_allowed:
                code = KafkaError.TOPIC_AUTHORIZATION_FAILED
            elif record.partition > 3:
                code = KafkaError._UNKNOWN_PARTITION
            elif topic in large:
                # The whole produce request is refused.
                code = KafkaError.MSG_SIZE_TOO_LARGE
            delivered(code and KafkaError(code), SimpleNamespace(topic=lambda name=topic: name))
            self._sent.append((topic, record))
        self._queue = []
        self._step("after flush")
        return 0

    def send_offsets_to_transaction(
        self, places: list[TopicPartition], group: str, timeout: float
    ) -> None:
        self._broker.begins("offsets", timeout, self._step)
        self._fence()
        assert group == self._id
        self._marks = places
        self._step("after offsets")

    def commit_transaction(self, timeout: float) -> None:
        self._broker.begins("commit", timeout, self._step)
        self._fence()
        for topic, record in self._sent:
            self._broker.topics[topic].append(record)
        for place in self._marks:
            assert place.partition == 0
            self._broker.marks[self._id, place.topic] = (place.offset, place.metadata)
        self._broker.transactions.append(len(self._sent))
        self._sent = []
        self._step("after commit")

    def abort_transaction(self, timeout: float) -> None:
        self._broker.begins("abort", timeout, self._step)
        self._fence()
        self._broker.aborted += 1
        self._sent = []
        self._step("after abort")

    def list_topics(self, topic: str, timeout: float) -> Any:
        self._broker.begins("metadata", timeout, self._step)
        is_there = topic in self._broker.topics
        unknown = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        found = SimpleNamespace(error=None if is_there else unknown)
        return SimpleNamespace(topics={topic: found})

    def purge(self) -> None:
        self._queue = []

    def poll(self, timeout: float) -> None:
        """Nothing is to be served."""


class FakeConsumer:
    def __init__(self, broker: FakeBroker, group: str, step: Callable[[str], None]) -> None:
        self._broker, self._group, self._step = broker, group, step

    def consumer_group_metadata(self) -> str:
        return self._group

    def committed(self, places: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        self._broker.begins("marks", timeout, self._step)
        found = []
        for place in places:
            offset, token = self._broker.marks.get((self._group, place.topic), (-1001, ""))
            found.append(TopicPartition(place.topic, 0, offset, token))
        self._step("after marks")
        return found

    def close(self) -> None:
        """Nothing is open."""
