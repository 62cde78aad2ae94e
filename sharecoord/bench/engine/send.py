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
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer

from sharecoord.bench.engine.cell import TopicKey
from sharecoord.bench.engine.job import HEAD, SendJob
from sharecoord.bench.engine.work import zipf_keys
from sharecoord.bench.errors import BenchError
from sharecoord.devenv.topics import kafka_error

FLUSH_TIMEOUT_S: Final = 120.0
_SERVE_EVERY: Final = 10_000
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
    batch_bytes: int,
    seed: int,
) -> None:
    """Produces numbered records into an empty topic and waits until all are confirmed.

    A share group of Kafka keeps its state per record batch where it can: of 1 kB records it hands
    out more than twice as many per second in batches of 1 MB as in batches of 16 kB.

    Args:
        bootstrap_servers: `host:port`, several with commas between them.
        topic: Name of the topic.
        key: Its partitions, payload and keys.
        records: Number of records.
        batch_bytes: Most bytes of one record batch.
        seed: Of the keys.

    Raises:
        SharecoordError: Kafka refused records, or did not confirm all in time.
    """
    sender = Sender(bootstrap_servers, {"linger.ms": 100, "batch.size": batch_bytes})
    padding = b"." * (key.payload_bytes - HEAD.size)
    for number, (name, partition) in zip(range(records), routes(key, seed), strict=False):
        # Nobody reads the head of a value that is shorter than the head.
        value = (HEAD.pack(0, number) + padding)[: key.payload_bytes]
        sender.send(topic, value, name, partition)
        if number % _SERVE_EVERY == 0:
            sender.serve()
    sender.finish()


class Sender:
    """A producer that reports the first failure at the end."""

    def __init__(self, bootstrap_servers: str, settings: dict[str, int]) -> None:
        self._failures: list[tuple[str | None, KafkaError]] = []
        config: dict[str, object] = {
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
    sender = Sender(job.bootstrap_servers, {"linger.ms": 0})
    padding = b"." * (job.key.payload_bytes - HEAD.size)
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
        sender.send(job.topic, HEAD.pack(intended, number) + padding, name, partition)
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
