"""`DeserializingShareConsumer`: `poll` returns objects instead of bytes."""

from __future__ import annotations

from typing import Any

from sharecoord_sdk._core.deserializing import split_config
from sharecoord_sdk._core.records import Messages

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
        config, self._deserializers = split_config(args, kwargs)
        super().__init__(config)

    def poll(self, timeout: float = -1) -> Messages:
        """Polls and deserializes; see `ShareConsumer.poll`."""
        messages = self._deserializers.apply(self._run(self._poll_steps(timeout)))
        messages._hand_out.given = messages._count
        return messages
