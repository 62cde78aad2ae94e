"""A plain consumer group with one member: Kafka without queue semantics, the upper bound."""

from __future__ import annotations

from confluent_kafka import Consumer

from sharecoord.bench.drivers.command import run_driver
from sharecoord.bench.drivers.meter import Meter
from sharecoord.bench.drivers.options import DriverOptions
from sharecoord.bench.errors import BenchError

# What a share consumer's poll returns at most by default.
BATCH_RECORDS = 500
POLL_S = 1.0


def consume(options: DriverOptions, meter: Meter) -> None:
    """Takes the topic with `confluent_kafka.Consumer`, offsets committed in the background."""
    consumer = Consumer(
        {
            "bootstrap.servers": options.bootstrap_servers,
            "group.id": options.group,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([options.topic])
    try:
        while meter.running:
            messages = consumer.consume(BATCH_RECORDS, POLL_S)
            value_bytes = 0
            for message in messages:
                if message.error() is not None:
                    raise BenchError(f"the consumer was given an error: {message.error()}")
                value_bytes += len(message.value() or b"")
            if messages:
                meter.add(len(messages), value_bytes, messages[-1].offset() or 0)
    finally:
        consumer.close()


if __name__ == "__main__":
    run_driver(consume)
