"""`DeserializingShareConsumer`: `poll` returns objects instead of bytes."""

from __future__ import annotations

from typing import Any

from sharecoord_sdk._core.config import read_arguments
from sharecoord_sdk._core.deserializing import MessageField, SerializationContext
from sharecoord_sdk._core.errors import KafkaError
from sharecoord_sdk._core.records import Message, Messages

from .consumer import ShareConsumer


class DeserializingShareConsumer(ShareConsumer):
    """A `ShareConsumer` whose `poll` deserializes keys and values in place.

    A record that can not be deserialized is returned with its bytes, and `error()` set to
    _KEY_DESERIALIZATION or _VALUE_DESERIALIZATION, so that it can be acknowledged (rejected, for
    example) and the rest of the batch is kept. As the twin of the same name.

    Args:
        config: As of `ShareConsumer`, and `key.deserializer` and `value.deserializer`:
            `callable(bytes | None, context) -> object`. Confluent's deserializers fit.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if "conf" in kwargs and not args:
            # The twin's name of its only argument.
            args = (kwargs.pop("conf"),)
        config = read_arguments(args, kwargs)
        self._key_deserializer = config.pop("key.deserializer", None)
        self._value_deserializer = config.pop("value.deserializer", None)
        super().__init__(config)

    def poll(self, timeout: float = -1) -> Messages:
        """Polls and deserializes; see `ShareConsumer.poll`."""
        messages = self._run(self._poll_steps(timeout))
        if self._key_deserializer is not None or self._value_deserializer is not None:
            for message in messages:
                if message.error() is None:
                    self._deserialize(message)
        messages._hand_out.given = messages._count
        return messages

    def _deserialize(self, message: Message) -> None:
        """Replaces key and value; a failure marks the message and keeps its bytes."""
        topic = message.topic()
        if topic is None:
            raise TypeError("Message topic is None")
        # The key comes first: its deserializer may keep something for the value's.
        context = SerializationContext(topic, MessageField.KEY, message.headers())
        try:
            key = message.key()
            if self._key_deserializer is not None:
                key = self._key_deserializer(key, context)
        except Exception as error:  # noqa: BLE001 - one bad record must not lose the others
            message.set_error(KafkaError(KafkaError._KEY_DESERIALIZATION, str(error)))
            return
        try:
            value = message.value()
            if self._value_deserializer is not None:
                context.field = MessageField.VALUE
                value = self._value_deserializer(value, context)
        except Exception as error:  # noqa: BLE001
            message.set_error(KafkaError(KafkaError._VALUE_DESERIALIZATION, str(error)))
            return
        message.set_key(key)
        message.set_value(value)
