"""What a coordinator and its process of producers say to each other, over a pair of sockets.

Frames are a length and a value in Python's marshal format: both ends are the same Python. To the
process goes `ProducerSettings` first, so that passwords never stand on a command line, then calls:
a number, a name, arguments. Back come answers: the number, an error or None, a value, and the
outboxes that are not open any more.
"""

from __future__ import annotations

import asyncio
import marshal
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sharecoord.errors import (
    GroupNotEmptyError,
    InternalError,
    InvalidConfigError,
    KafkaUnavailableError,
    LimitExceededError,
    NotOwnerError,
    SharecoordError,
    UnauthorizedError,
    UnknownTopicOrPartitionError,
)

LENGTH: Final = struct.Struct("<I")
"""Number of bytes that follow."""

MARSHAL_VERSION: Final = 4

CHECK, SEND, ENSURE, OPEN, TRANSACT, READ, WRITE, CLOSE = (
    *("check", "send", "ensure", "open", "transact"),
    *("read", "write", "close"),
)
"""Names of calls."""

Error = tuple[str, str, int | None, dict[str, str]]
Answer = tuple[int, Error | None, Any, list[int]]

_ERRORS: Final[dict[str, type[SharecoordError]]] = {
    each.reason: each
    for each in (
        GroupNotEmptyError,
        InvalidConfigError,
        KafkaUnavailableError,
        LimitExceededError,
        NotOwnerError,
        UnauthorizedError,
        UnknownTopicOrPartitionError,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of the process; texts and numbers only, so that they can be marshalled."""

    kafka: dict[str, str] = field(repr=False)
    """librdkafka's keys."""
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Contents of files that those keys name, by key; others are read from the disk."""
    transactional_producers_max: int
    log_level: str = "info"
    log_json: bool = True

    def frame(self) -> bytes:
        """The first frame."""
        return frame(asdict(self))


def frame(value: Any) -> bytes:
    """A value with its length."""
    payload = marshal.dumps(value, MARSHAL_VERSION)
    return LENGTH.pack(len(payload)) + payload


class FrameWriter:
    """Sends frames; those of one turn of the loop together: letters come by hundreds."""

    def __init__(self, writer: asyncio.StreamWriter | None = None) -> None:
        """Keeps frames until `begin`, when there is no connection yet."""
        self._writer = writer
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the other end has not taken yet."""
        if self._writer is None:
            return self._waiting_bytes
        return self._waiting_bytes + self._writer.transport.get_write_buffer_size()

    def send(self, data: bytes) -> None:
        """Sends a frame, at the end of this turn at the latest."""
        self._waiting.append(data)
        self._waiting_bytes += len(data)
        if len(self._waiting) == 1 and self._writer is not None:
            asyncio.get_running_loop().call_soon(self.flush)

    def begin(self, writer: asyncio.StreamWriter) -> None:
        """The connection is there."""
        self._writer = writer
        self.flush()

    def flush(self) -> None:
        """Hands over what waits."""
        if self._writer is not None and self._waiting:
            data, self._waiting, self._waiting_bytes = b"".join(self._waiting), [], 0
            self._writer.write(data)


async def read_frame(reader: asyncio.StreamReader) -> Any:
    """The next value; None when the other end is gone."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        return marshal.loads(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


def told(error: Exception) -> Error:
    """An error, as it travels."""
    if not isinstance(error, SharecoordError):
        return InternalError.reason, f"the process of producers failed: {error!r}", None, {}
    return error.reason, error.message, error.retry_after_ms, error.metadata


def error_of(error: Error) -> SharecoordError:
    """An error that has travelled."""
    reason, message, retry_after_ms, metadata = error
    kind = _ERRORS.get(reason, InternalError)
    return kind(message, retry_after_ms=retry_after_ms, metadata=metadata)
