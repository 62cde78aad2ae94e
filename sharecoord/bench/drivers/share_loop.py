"""The program that both share consumers run, written once: one is the drop-in twin of the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from sharecoord.bench.drivers.meter import Meter
from sharecoord.bench.errors import BenchError

POLL_S = 1.0


class ShareConsumerLike(Protocol):
    """What is used of `confluent_kafka.ShareConsumer` and of `sharecoord_sdk.ShareConsumer`."""

    def poll(self, timeout: float) -> Iterable[Any]:
        """The next batch of messages."""

    def acknowledge(self, message: Any) -> None:
        """Accepts one message."""

    def commit_async(self) -> None:
        """Sends what was acknowledged."""


def take_all(consumer: ShareConsumerLike, meter: Meter, *, explicit: bool) -> None:
    """Polls, looks at every value and acknowledges until the meter has enough.

    Args:
        consumer: A subscribed consumer.
        meter: Counts.
        explicit: Whether to acknowledge each record, and to commit once per poll without waiting.

    Raises:
        BenchError: A message is an error, or the run's time is over.
    """
    while meter.running:
        records = value_bytes = 0
        message: Any = None
        for message in consumer.poll(POLL_S):
            if message.error() is not None:
                raise BenchError(f"the consumer was given an error: {message.error()}")
            value_bytes += len(message.value())
            records += 1
            if explicit:
                consumer.acknowledge(message)
        if records:
            if explicit:
                consumer.commit_async()
            meter.add(records, value_bytes, message.offset())
