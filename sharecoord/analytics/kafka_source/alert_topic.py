"""The topic that alerts are sent to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from sharecoord.analytics.kafka_source.client import make_producer
from sharecoord.errors import InvalidConfigError

DELIVERY_TIMEOUT_MS: Final = 15_000
"""A message that Kafka has not taken after this time is given up: the job waits for it."""
CONTENT_TYPE: Final = {"content-type": "application/json"}


class AlertTopic:
    """Sends one message at a time, and waits until it is durable."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        """Connects in the background with librdkafka's settings.

        Raises:
            InvalidConfigError: `bootstrap.servers` is missing, or librdkafka refuses a setting.
        """
        if not kafka.get("bootstrap.servers"):
            raise InvalidConfigError("an alert goes to Kafka: name the cluster with --kafka")
        self._producer = make_producer({**kafka, "message.timeout.ms": str(DELIVERY_TIMEOUT_MS)})

    def send(self, topic: str, key: str, value: bytes) -> str | None:
        """Sends a message; None when Kafka has it, else the reason why not."""
        problems: list[str] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            if error is not None:
                problems.append(error.str())

        try:
            self._producer.produce(
                topic, value=value, key=key, headers=dict(CONTENT_TYPE), on_delivery=delivered
            )
        except (KafkaException, BufferError) as error:
            return str(error)
        # A little longer than the timeout of the message, which ends the wait.
        if self._producer.flush(DELIVERY_TIMEOUT_MS / 1_000 + 1):
            return "no answer in time"
        return problems[0] if problems else None
