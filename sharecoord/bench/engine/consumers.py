"""The consumers under measurement behind one interface: Kafka's two, this project's, and none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from confluent_kafka import Consumer as PlainConsumer
from confluent_kafka import ShareConsumer as KafkaShareConsumer
from sharecoord_sdk import ShareConsumer

from sharecoord.bench.engine.cell import Ack, Cell, Consumer
from sharecoord.bench.engine.job import HEAD, NO_NUMBER

POLL_S: Final = 0.2
BATCH_RECORDS: Final = 500
"""The poll of a share consumer returns at most so many records by default."""


class Source:
    """A subscribed consumer. Where nothing is acknowledged, `done` and `commit` do nothing."""

    def poll(self) -> Iterable[Any]:
        """The next messages; none when none came within `POLL_S`."""
        raise NotImplementedError

    def done(self, message: Any) -> None:
        """A message was handled."""

    def commit(self) -> None:
        """All messages of the last poll were handled."""

    def close(self) -> None:
        """Leaves."""


def share_config(cell: Cell, bootstrap_servers: str, group: str) -> dict[str, Any]:
    """Configuration of a share consumer, of Kafka's client or of ours: the names are the same."""
    config: dict[str, Any] = {
        **worker_config(bootstrap_servers, group),
        "share.acknowledgement.mode": str(cell.ack),
    }
    if cell.max_poll_records is not None:
        config["max.poll.records"] = cell.max_poll_records
    return config


def worker_config(bootstrap_servers: str, group: str) -> dict[str, Any]:
    """Configuration of a worker, which has neither polls nor an acknowledgement mode."""
    return {"bootstrap.servers": bootstrap_servers, "group.id": group}


def open_source(cell: Cell, bootstrap_servers: str, group: str, topic: str) -> Source:
    """Makes the consumer of a cell and subscribes it."""
    if cell.consumer is Consumer.NONE:
        return MemorySource()
    if cell.consumer is Consumer.PLAIN:
        return _PlainSource(cell, bootstrap_servers, group, topic)
    kind: Any = KafkaShareConsumer if cell.consumer is Consumer.KAFKA_SHARE else ShareConsumer
    consumer = kind(share_config(cell, bootstrap_servers, group))
    consumer.subscribe([topic])
    return _ShareSource(consumer, explicit=cell.ack is Ack.EXPLICIT)


class _ShareSource(Source):
    """Kafka's share consumer or ours: the second is the first one's drop-in twin."""

    def __init__(self, consumer: Any, *, explicit: bool) -> None:
        self._consumer = consumer
        self._explicit = explicit

    def poll(self) -> Iterable[Any]:
        messages: Iterable[Any] = self._consumer.poll(POLL_S)
        return messages

    def done(self, message: Any) -> None:
        if self._explicit:
            self._consumer.acknowledge(message)

    def commit(self) -> None:
        if self._explicit:
            self._consumer.commit_async()

    def close(self) -> None:
        self._consumer.close()


class _PlainSource(Source):
    """A member of a consumer group, which commits its offsets in the background."""

    def __init__(self, cell: Cell, bootstrap_servers: str, group: str, topic: str) -> None:
        self._batch = cell.max_poll_records or BATCH_RECORDS
        config = worker_config(bootstrap_servers, group)
        self._consumer = PlainConsumer({**config, "auto.offset.reset": "earliest"})
        self._consumer.subscribe([topic])

    def poll(self) -> Iterable[Any]:
        # With a timeout `consume` waits until the batch is full: it would be the latency.
        return self._consumer.consume(self._batch, 0) or self._consumer.consume(1, POLL_S)

    def close(self) -> None:
        self._consumer.close()


class MemoryMessage:
    """A record that was never in a queue."""

    def value(self) -> bytes:
        """A head without a number."""
        return HEAD.pack(0, NO_NUMBER)

    def error(self) -> None:
        """A record in memory has no error."""


class MemorySource(Source):
    """No queue: handlers always find a next record, which shows the most that is possible."""

    def __init__(self) -> None:
        self._messages = [MemoryMessage()] * BATCH_RECORDS

    def poll(self) -> Iterable[Any]:
        """Records at once."""
        return self._messages
