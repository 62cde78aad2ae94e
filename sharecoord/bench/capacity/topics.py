"""Many topics at once: one call makes them, one producer fills them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sharecoord.bench.engine.send import FLUSH_TIMEOUT_S
from sharecoord.bench.errors import BenchError
from sharecoord.devenv.topics import Topics, kafka_error

_CREATE_S: Final = 60.0
_AGAIN_S: Final = 0.1
_VALUE: Final = b"." * 100


@contextmanager
def many_topics(bootstrap_servers: str, count: int) -> Iterator[str]:
    """Topics of one partition with one record each, until the block ends.

    Yields:
        The begin of their names; `-0`, `-1` and so on follow.

    Raises:
        BenchError: They could not be made or filled in time.
        SharecoordError: Kafka refused.
    """
    prefix = f"capacity-{uuid.uuid4().hex[:12]}"
    names = [f"{prefix}-{number}" for number in range(count)]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    futures = admin.create_topics(
        [NewTopic(name, num_partitions=1, replication_factor=1) for name in names],
        request_timeout=_CREATE_S,
    )
    made: list[str] = []
    try:
        for name, future in futures.items():
            try:
                future.result()
            except KafkaException as error:
                raise kafka_error(f"create topic {name}", error) from error
            made.append(name)
        _fill(bootstrap_servers, names)
        yield prefix
    finally:
        Topics(bootstrap_servers).delete(*made)


def _fill(bootstrap_servers: str, names: list[str]) -> None:
    """Sends one record to each topic, and again while a new topic has no leader yet."""
    failures: dict[str, KafkaError] = {}

    def report(error: KafkaError | None, message: object) -> None:
        if error is not None:
            failures[str(message.topic())] = error  # type: ignore[attr-defined]

    producer = Producer({"bootstrap.servers": bootstrap_servers, "log_level": 0, "linger.ms": 5})
    end_s = time.monotonic() + FLUSH_TIMEOUT_S
    due = names
    while due:
        failures.clear()
        for name in due:
            producer.produce(name, _VALUE, partition=0, on_delivery=report)
        unsent = producer.flush(max(0.0, end_s - time.monotonic()))
        if unsent or (failures and time.monotonic() > end_s):
            why = next(iter(failures.values()), "no answer")
            raise BenchError(f"{unsent + len(failures)} new topics could not be filled: {why}")
        due = list(failures)
        if due:
            time.sleep(_AGAIN_S)
