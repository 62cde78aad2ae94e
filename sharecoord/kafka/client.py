"""The facade over confluent-kafka: makers of clients, and classes of errors.

Every maker raises InvalidConfigError when librdkafka does not have a key, or not with this value.
Settings that would let librdkafka decide by itself are fixed: offsets are never committed, and a
position out of range is always an error (design 5.8).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import structlog
from confluent_kafka import Consumer as Consumer
from confluent_kafka import KafkaError as KafkaError
from confluent_kafka import KafkaException as KafkaException
from confluent_kafka import Message as Message
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as TopicPartition
from confluent_kafka.admin import AdminClient

from sharecoord.config.kafka_keys import unknown_kafka_key
from sharecoord.errors import InvalidConfigError, UnauthorizedError
from sharecoord.kafka.refusals import refused
from sharecoord.kafka.wire.keys import Settings as Settings

log = structlog.get_logger(__name__)

T = TypeVar("T")

REQUEST_TIMEOUT_S = 10.0
"""Longest wait for one admin answer: two request timeouts of a slow broker."""

_QUOTED = re.compile(r'"([^"]*)"')

READER_DEFAULTS: Settings = {
    # Large fetches: reading costs 1 us a record in batches of 2,000. But no larger, and no deeper
    # queue than the next fetch needs: a message that has left the processor's cache before it is
    # passed on costs a quarter more (docs/decisions/0010). A queued message takes 250 bytes beside
    # its payload, which the second limit does not count.
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 8_192,
    "fetch.message.max.bytes": 4 << 20,
    "fetch.max.bytes": 4 << 20,
    "fetch.wait.max.ms": 100,
    # After a full queue librdkafka looks away for a second by default: the reader then ran dry
    # for half of the time (measured: 105,000 rec/s with 1000 ms, 290,000 with 2 ms).
    "fetch.queue.backoff.ms": 2,
    # Quick enough for recovery in under a second, and slower than `topic_life.SILENCE_S`: after a
    # topic was made again, the first fetch fails by its id, and no record comes for so long.
    "fetch.error.backoff.ms": 200,
    "reconnect.backoff.max.ms": 2_000,
    "allow.auto.create.topics": False,
}

READER_FIXED: Settings = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "enable.partition.eof": True,
    # Never joins: partitions are assigned by hand. The name shows up in ACLs as READ on group.
    "group.id": "sharecoord-reader",
}

OUT_OF_RANGE = frozenset({KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE})
GONE = frozenset(
    {KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION, KafkaError.UNKNOWN_TOPIC_OR_PART}
)
END_OF_PARTITION = KafkaError._PARTITION_EOF


QUIET: Settings = {
    # librdkafka prints one line per attempt to connect, 20 a second while a broker is down; the
    # same errors come to `error_cb`, and are logged once. Can be overridden.
    "log_level": 2
}


LOG_AGAIN_S = 10.0
"""librdkafka reports a broker that is down 20 times a second, the log once in this time."""

_logged_s: dict[str, float] = {}


def _log_error(error: KafkaError) -> None:
    code, now_s = error.name(), time.monotonic()
    if now_s - _logged_s.get(code, -LOG_AGAIN_S) >= LOG_AGAIN_S:
        _logged_s[code] = now_s
        log.warning("kafka client error", code=code, text=error.str())


def make_consumer(settings: Settings, *, committed: bool) -> Consumer:
    """A consumer for manual assignment; connects in the background."""
    isolation = "read_committed" if committed else "read_uncommitted"
    config: dict[str, Any] = {**QUIET, **READER_DEFAULTS, **settings, **READER_FIXED}
    return _made(Consumer, {**config, "isolation.level": isolation, "error_cb": _log_error})


def make_group_reader(settings: Settings, group_id: str) -> Consumer:
    """A consumer that never joins its group; connects in the background. Close it.

    For `Consumer.committed`: the admin client's way to committed offsets ends the process when the
    group's coordinator has just moved (docs/decisions/0015).
    """
    config: dict[str, Any] = {**QUIET, **settings, **READER_FIXED, "group.id": group_id}
    return _made(Consumer, {**config, "error_cb": _log_error})


def make_admin(
    settings: Settings, on_error: Callable[[KafkaError], None] = _log_error
) -> AdminClient:
    """An admin client; connects in the background. Keep it until its futures are done.

    `on_error` is told of broken connections, inside of the client's `poll`.
    """
    return _made(AdminClient, {**QUIET, **settings, "error_cb": on_error})


def make_producer(settings: Settings) -> Producer:
    """A producer; connects in the background."""
    return _made(Producer, {**QUIET, **settings, "error_cb": _log_error})


def _made(client: Callable[[dict[str, Any]], T], config: dict[str, Any]) -> T:
    """A client; librdkafka's refusal of a key or value becomes an InvalidConfigError."""
    try:
        return client(config)
    except KafkaException as error:
        text = error.args[0].str()
    quoted = _QUOTED.search(text)
    key = quoted.group(1) if quoted is not None else ""
    if text.startswith("No such configuration property"):
        raise unknown_kafka_key(key)
    name = f"kafka.{key}" if key in config else "kafka.*"
    raise InvalidConfigError(
        f"{name}: librdkafka refuses it: {text.rstrip('.')}. Correct or remove the setting",
        metadata={"key": name},
    )


async def all_done(futures: Iterable[Future[Any]]) -> None:
    """Waits until all are done; none is cancelled: librdkafka's own time limit ends them."""
    done = asyncio.gather(*map(asyncio.wrap_future, futures), return_exceptions=True)
    await asyncio.shield(done)


def refusal(topic: str, error: KafkaError) -> UnauthorizedError | None:
    """The error of a topic that Kafka refuses; None for another error."""
    if error.code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
        return None
    return refused(topic)
