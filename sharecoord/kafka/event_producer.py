"""A producer of events: durable messages with reported deliveries; makes a missing topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sharecoord.config.setting import invalid_config
from sharecoord.errors import InvalidConfigError, KafkaUnavailableError
from sharecoord.kafka.client import (
    REQUEST_TIMEOUT_S,
    KafkaError,
    Settings,
    make_admin,
    make_producer,
)

PARTITIONS: Final = 6
"""Partitions of a topic that is made here: as many tasks can read it at the same time."""

RETENTION_MS: Final = 7 * 24 * 3_600_000
"""Retention of a topic that is made here; Kafka's own default."""

QUEUE_BYTES_MAX: Final = 32 << 20
"""Most bytes that may wait for Kafka; beyond it the writer, and with it the pipe, waits."""

DELIVERY_TIMEOUT_MS: Final = 120_000
"""A message that Kafka has not taken after this time is lost; Kafka's default for producers."""

_DEFAULTS: Final[dict[str, Any]] = {
    "compression.type": "zstd",
    # More rows per request; nobody waits for events.
    "linger.ms": 100,
}
_FIXED: Final[dict[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "queue.buffering.max.kbytes": QUEUE_BYTES_MAX >> 10,
    "message.timeout.ms": DELIVERY_TIMEOUT_MS,
}

Delivered = Callable[[str], None]
"""Told how a delivery ended: "" or why it failed; inside of `poll`, `produce` and `flush`."""


class EventProducer:
    """Messages to one topic. Not thread-safe."""

    def __init__(self, settings: Settings, topic: str) -> None:
        self._topic = topic
        self._admin_settings = dict(settings)
        self._producer: Producer = make_producer({**_DEFAULTS, **settings, **_FIXED})

    def open(self) -> None:
        """Makes the topic if it is missing; to be called first.

        Raises:
            InvalidConfigError: The topic is missing, and the cluster does not let us make it.
            KafkaUnavailableError: No answer in time.
        """
        admin = make_admin(self._admin_settings)
        try:
            # All topics are listed: a question about this one could make the broker create it.
            known = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.get(self._topic)
        except KafkaException as error:
            raise KafkaUnavailableError(
                f'events.sink="kafka:{self._topic}": no answer from Kafka: {error.args[0].str()}. '
                "Check that the broker is up and kafka.bootstrap.servers (--kafka) is right"
            ) from error
        if known is None:
            self._create(admin)
        elif known.error is not None:
            raise self._refused(known.error)

    def _create(self, admin: AdminClient) -> None:
        topic = NewTopic(
            self._topic,
            num_partitions=PARTITIONS,
            replication_factor=-1,  # the broker's default
            config={"retention.ms": str(RETENTION_MS)},
        )
        made = admin.create_topics([topic], request_timeout=REQUEST_TIMEOUT_S)
        try:
            made[self._topic].result(REQUEST_TIMEOUT_S + 1)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._refused(error.args[0]) from error

    def _refused(self, error: KafkaError) -> InvalidConfigError:
        return invalid_config(
            "events.sink",
            f"kafka:{self._topic}",
            f"Kafka refuses the topic: {error.name()} {error.str()}".rstrip(),
            fix="Create the topic, and allow the coordinator's principal DESCRIBE and WRITE on it",
        )

    def produce(self, key: str, value: bytes, headers: Mapping[str, str], done: Delivered) -> bool:
        """Hands a message over; False = there is no room now, call `poll`.

        Raises:
            KafkaException: librdkafka refuses the message (too large, fatal error).
        """

        def delivered(error: KafkaError | None, _: object) -> None:
            done("" if error is None else f"{error.name()} {error.str()}".rstrip())

        try:
            self._producer.produce(
                self._topic, value=value, key=key, headers={**headers}, on_delivery=delivered
            )
        except BufferError:
            return False
        return True

    def poll(self, timeout_s: float) -> None:
        """Waits for deliveries, at most for `timeout_s`."""
        self._producer.poll(timeout_s)

    @property
    def waiting(self) -> int:
        """Messages under way."""
        return len(self._producer)

    def flush(self, timeout_s: float) -> None:
        """Waits until nothing is under way."""
        self._producer.flush(timeout_s)
