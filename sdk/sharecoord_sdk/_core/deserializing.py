"""Context of deserializers, as in `confluent_kafka.serialization`."""

from __future__ import annotations

from typing import Any, Final


class MessageField:
    """Which part of a message is deserialized; Confluent's values."""

    NONE: Final = "none"
    KEY: Final = "key"
    VALUE: Final = "value"


class SerializationContext:
    """The context that a deserializer gets beside the bytes: `topic`, `field` and `headers`."""

    def __init__(self, topic: str, field: str, headers: Any = None) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers
