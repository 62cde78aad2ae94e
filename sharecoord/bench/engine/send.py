"""Fills backlogs, and produces at a steady rate: `python -m sharecoord.bench.engine.send JOB`.

A record at a steady rate has the time at which it was **intended** to be sent in its payload, not
the time at which the producer came to it: a stall anywhere counts for every record that was due
meanwhile (no coordinated omission).
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from sharecoord.bench.engine.cell import TopicKey
from sharecoord.bench.engine.job import HEAD, SendJob
from sharecoord.bench.engine.values import json_texts
from sharecoord.bench.engine.work import zipf_keys
from sharecoord.bench.errors import BenchError
from sharecoord.devenv.topics import kafka_error

FLUSH_TIMEOUT_S: Final = 120.0
_SERVE_EVERY: Final = 10_000
_LINGER_MS: Final = 60_000
"""Longest time in which a batch of a backlog fills up; less than the time limit of a record."""
_UNBOUNDED_RECORDS: Final = 1_000_000
"""The greatest `batch.num.messages`: no record is so small that a batch would have so many."""
_QUEUE_BYTES: Final = 32_000_000
"""The queue holds so much besides unfinished batches, so that those on their way delay nobody."""
_SHORTEST_SLEEP_S: Final = 0.0003
"""Records that fall due within this time go out together: a sleep for each record would take most
of a core away from what is measured. That they are late counts. A sleep of the kernel is some 60 us
too long; the producer catches up with what is due."""
_LONGEST_SLEEP_S: Final = 0.05


def routes(key: TopicKey, seed: int) -> Iterator[tuple[bytes | None, int]]:
    """Key and partition of each record: in turn without keys, else by the number of the key."""
    if key.key_skew is None:
        return itertools.cycle([(None, partition) for partition in range(key.partitions)])
    numbers = zipf_keys(key.key_skew, key.keys, seed)
    return ((b"key-%d" % number, number % key.partitions) for number in numbers)


def due_ns(start_ns: int, rate: float, number: int) -> int:
    """When a record is intended to be sent."""
    return start_ns + int(number * 1e9 / rate)


def fill_backlog(
    bootstrap_servers: str,
    topic: str,
    key: TopicKey,
    records: int,
    *,
    seed: int,
) -> None:
    """Produces numbered records into an empty topic and waits until all are confirmed.

    A share group of Kafka keeps its state per record batch where it can: of 1 kB records it hands
    out more than twice as many per second in batches of 1 MB as in batches of 16 kB. So each batch
    but the last of a partition is full, however slowly the records come.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        topic: Name of the topic.
        key: Its partitions, payload, keys, batches and compression.
        records: Number of records.
        seed: Of the keys and values.

    Raises:
        SharecoordError: Kafka refused records, or did not confirm all in time.
    """
    sender = Sender(bootstrap_servers, batch_settings(key))
    texts = itertools.cycle(json_texts(key.payload_bytes - HEAD.size, seed))
    for number, (name, partition), text in zip(
        range(records), routes(key, seed), texts, strict=False
    ):
        # Nobody reads the head of a value that is shorter than the head.
        value = (HEAD.pack(0, number) + text)[: key.payload_bytes]
        sender.send(topic, value, name, partition)
        if number % _SERVE_EVERY == 0:
            sender.serve()
    sender.finish()


def batch_settings(key: TopicKey) -> dict[str, int | str]:
    """Settings of a producer whose record batches are all full, whatever the number of partitions.

    No batch is sent because time is over or because of its number of records; and the queue has
    room for the unfinished batch of each partition, or none would ever be full.
    """
    return {
        "linger.ms": _LINGER_MS,
        "batch.size": key.batch_bytes,
        "batch.num.messages": _UNBOUNDED_RECORDS,
        "queue.buffering.max.messages": 0,
        "queue.buffering.max.kbytes": (_QUEUE_BYTES + key.partitions * key.batch_bytes) // 1024,
        "compression.type": str(key.compression),
    }


class Sender:
    """A producer that reports the first failure at the end."""

    def __init__(self, bootstrap_servers: str, settings: Mapping[str, int | str]) -> None:
        self._failures: list[tuple[str | None, KafkaError]] = []
        config: dict[str, Any] = {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "enable.idempotence": True,
            "queue.buffering.max.messages": 200_000,
            "message.timeout.ms": int(FLUSH_TIMEOUT_S * 1000),
            "delivery.report.only.error": True,
            "on_delivery": lambda error, sent: self._failures.append((sent.topic(), error)),
        }
        self._producer = Producer({**config, **settings})

    def send(self, topic: str, value: bytes, key: bytes | None = None, partition: int = 0) -> None:
        """Hands one record over; waits for room when the queue is full."""
        while True:
            try:
                self._producer.produce(topic, value, key, partition)
                return
            except BufferError:
                self._producer.poll(0.01)

    def serve(self) -> None:
        """Takes reports of failures."""
        self._producer.poll(0)

    def finish(self) -> None:
        """Waits until all are confirmed; SharecoordError when some were refused or late."""
        unsent = self._producer.flush(FLUSH_TIMEOUT_S)
        if self._failures:
            topic, error = self._failures[0]
            raise kafka_error(f"produce to {topic}", KafkaException(error))
        if unsent:
            raise BenchError(f"{unsent} records were not confirmed: is Kafka up?")


def send_steadily(job: SendJob) -> int:
    """Produces each record as soon as it is due; the longest delay of the producer in ns."""
    # Of what waits for the broker's answer a producer makes batches, of at most this size.
    sender = Sender(
        job.bootstrap_servers,
        {
            "linger.ms": 0,
            "batch.size": job.key.batch_bytes,
            "compression.type": str(job.key.compression),
        },
    )
    texts = itertools.cycle(json_texts(job.key.payload_bytes - HEAD.size, job.seed))
    route = routes(job.key, job.seed)
    number = worst_ns = 0
    while number < job.records:
        now = time.monotonic_ns()
        intended = due_ns(job.start_ns, job.rate, number)
        if intended > now:
            sender.serve()
            time.sleep(min(max((intended - now) / 1e9, _SHORTEST_SLEEP_S), _LONGEST_SLEEP_S))
            continue
        worst_ns = max(worst_ns, now - intended)
        name, partition = next(route)
        sender.send(job.topic, HEAD.pack(intended, number) + next(texts), name, partition)
        number += 1
    sender.finish()
    return worst_ns


def main(path: Path) -> None:
    """Runs a job, writes its outcome."""
    job = SendJob.read(path)
    worst_ns = send_steadily(job)
    Path(job.outcome).write_text(json.dumps({"late_ms": worst_ns / 1e6}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
