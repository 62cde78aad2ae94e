"""The consumers under measurement behind one interface: Kafka's two, this project's, and none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer as PlainConsumer
from confluent_kafka import ShareConsumer as KafkaShareConsumer
from sharecoord_sdk import ShareConsumer

from sharecoord.bench.engine.cell import Ack, Cell, Consumer, SecurityKind
from sharecoord.bench.engine.job import HEAD, NO_NUMBER
from sharecoord.devenv.security import token_name, token_of

POLL_S: Final = 0.2
BATCH_RECORDS: Final = 500
"""The poll of a share consumer returns at most so many records by default."""


@dataclass(frozen=True, slots=True)
class Source:
    """A subscribed consumer as functions; where nothing is acknowledged, two of them do nothing.

    `poll` returns the next messages, none when none came within `POLL_S`. `done` is told of each
    message that was handled, `commit` that all of a poll were.
    """

    poll: Callable[[], Iterable[Any]]
    done: Callable[[Any], object] = lambda _: None
    commit: Callable[[], object] = lambda: None
    close: Callable[[], object] = lambda: None


class MemoryMessage:
    """A record that was never in a queue."""

    def value(self) -> bytes:
        """A head without a number."""
        return HEAD.pack(0, NO_NUMBER)

    def error(self) -> None:
        """A record in memory has no error."""


def share_config(cell: Cell, bootstrap_servers: str, group: str) -> dict[str, Any]:
    """Configuration of a share consumer, of Kafka's client or of ours: the names are the same."""
    config: dict[str, Any] = {
        **worker_config(cell, bootstrap_servers, group),
        "share.acknowledgement.mode": str(cell.ack),
    }
    if cell.max_poll_records is not None:
        config["max.poll.records"] = cell.max_poll_records
    return config


def worker_config(cell: Cell, bootstrap_servers: str, group: str) -> dict[str, Any]:
    """Configuration of a worker, which has neither polls nor an acknowledgement mode."""
    config = {"bootstrap.servers": bootstrap_servers, "group.id": group}
    if cell.security is not SecurityKind.RULES:
        return config
    return {
        **config,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": token_name(),
        "sasl.password": token_of(),
    }


def open_source(cell: Cell, bootstrap_servers: str, group: str, topic: str) -> Source:
    """Makes the consumer of a cell and subscribes it."""
    if cell.consumer is Consumer.NONE:
        # Handlers always find a next record, which shows the most that is possible.
        records = [MemoryMessage()] * BATCH_RECORDS
        return Source(lambda: records)
    if cell.consumer is Consumer.PLAIN:
        config = worker_config(cell, bootstrap_servers, group)
        plain = PlainConsumer({**config, "auto.offset.reset": "earliest"})
        plain.subscribe([topic])
        most = cell.max_poll_records or BATCH_RECORDS
        # With a timeout `consume` waits until the batch is full: it would be the latency.
        return Source(lambda: plain.consume(most, 0) or plain.consume(1, POLL_S), close=plain.close)
    is_ours = cell.consumer is Consumer.SHARECOORD
    kind: Any = ShareConsumer if is_ours else KafkaShareConsumer
    consumer = kind(share_config(cell, bootstrap_servers, group))
    consumer.subscribe([topic])
    poll = partial(consumer.poll, POLL_S)
    if cell.ack is Ack.IMPLICIT:
        return Source(poll, close=consumer.close)
    return Source(poll, consumer.acknowledge, consumer.commit_async, consumer.close)
