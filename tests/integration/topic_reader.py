"""Reads what the product has written to a topic, with a consumer that is none of its own."""

from __future__ import annotations

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition

from tests.support import unique_name


class TopicReader:
    """Reads the first partition of a topic from its begin, and keeps what it found."""

    def __init__(self, servers: str, topic: str) -> None:
        self.found: list[Message] = []
        self._consumer = Consumer({"bootstrap.servers": servers, "group.id": unique_name("r")})
        self._consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])

    def close(self) -> None:
        self._consumer.close()

    def has(self, count: int) -> bool:
        for message in self._consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            self.found.append(message)
        return len(self.found) >= count
