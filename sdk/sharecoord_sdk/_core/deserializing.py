"""Deserialization in place, as `confluent_kafka.DeserializingShareConsumer` does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .config import read_arguments
from .errors import KafkaError
from .records import Message, Messages

#: `callable(bytes | None, context) -> object`; Confluent's deserializers fit.
Deserializer = Callable[[Any, Any], Any]


class MessageField:
    """Which part of a message is deserialized; Confluent's values."""

    NONE: Final = "none"
    KEY: Final = "key"
    VALUE: Final = "value"


class SerializationContext:
    """What a deserializer is told beside the bytes: `topic`, `field` and `headers`."""

    def __init__(self, topic: str, field: str, headers: Any = None) -> None:
        self.topic = topic
        self.field = field
        self.headers = headers


class Deserializers:
    def __init__(self, key: Deserializer | None, value: Deserializer | None) -> None:
        self._key = key
        self._value = value

    def apply(self, messages: Messages) -> Messages:
        if self._key is not None or self._value is not None:
            for message in messages:
                if message.error() is None:
                    self._apply_one(message)
        return messages

    def _apply_one(self, message: Message) -> None:
        topic = message.topic()
        if topic is None:
            raise TypeError("Message topic is None")
        # The key comes first: its deserializer may keep something for the value's.
        context = SerializationContext(topic, MessageField.KEY, message.headers())
        try:
            key = message.key()
            if self._key is not None:
                key = self._key(key, context)
        except Exception as error:  # noqa: BLE001 - one bad record must not lose the others
            message.set_error(KafkaError(KafkaError._KEY_DESERIALIZATION, str(error)))
            return
        try:
            value = message.value()
            if self._value is not None:
                context.field = MessageField.VALUE
                value = self._value(value, context)
        except Exception as error:  # noqa: BLE001
            message.set_error(KafkaError(KafkaError._VALUE_DESERIALIZATION, str(error)))
            return
        message.set_key(key)
        message.set_value(value)


def split_config(
    arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[dict[str, Any], Deserializers]:
    config = read_arguments(arguments, keywords)
    key = config.pop("key.deserializer", None)
    value = config.pop("value.deserializer", None)
    return config, Deserializers(key, value)
