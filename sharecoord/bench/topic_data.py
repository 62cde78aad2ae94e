"""The records of a benchmark, in batches of a size that is said.

A share group of Kafka's keeps its state per record batch where it can, so the producer's batches
decide about its speed: of 1 kB records it hands out more than twice as many per second in batches
of 1 MB as in batches of 16 kB.
"""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from sharecoord.bench.errors import BenchError
from sharecoord.devenv.topics import kafka_error, numbered_records

FLUSH_TIMEOUT_S: Final = 120.0
_LINGER_MS: Final = 100  # long enough that every batch but the last is full
_QUEUE_RECORDS: Final = 200_000
_SERVE_EVERY: Final = 10_000


def fill_topic(
    bootstrap_servers: str,
    topic: str,
    records: int,
    *,
    value_bytes: int,
    batch_bytes: int,
    partitions: int = 1,
) -> None:
    """Produces numbered records, one partition after the other, until all are confirmed.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        topic: An existing topic that is empty.
        records: How many in each partition.
        value_bytes: Length of each value.
        batch_bytes: Most bytes of one record batch; a larger record is a batch of its own.
        partitions: How many partitions are filled.

    Raises:
        BenchError: Not all were confirmed within two minutes.
        SharecoordError: Kafka refused them.
    """
    failures: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
            "linger.ms": _LINGER_MS,
            "batch.size": batch_bytes,
            "queue.buffering.max.messages": _QUEUE_RECORDS,
            "message.timeout.ms": int(FLUSH_TIMEOUT_S * 1000),
            # Only a failure has something to say; a report per record would cost more than it.
            "delivery.report.only.error": True,
            "on_delivery": lambda error, _: failures.append(error),
        }
    )
    for partition in range(partitions):
        for number, record in enumerate(numbered_records(records, value_bytes)):
            while True:
                try:
                    producer.produce(topic, record.value, partition=partition)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % _SERVE_EVERY == 0:
                producer.poll(0)
    unsent = producer.flush(FLUSH_TIMEOUT_S)
    if failures:
        raise kafka_error(f"produce to {topic}", KafkaException(failures[0]))
    if unsent:
        raise BenchError(
            f"{unsent} records to {topic} were not confirmed within {FLUSH_TIMEOUT_S:.0f} s: "
            f"is {bootstrap_servers} up?"
        )
