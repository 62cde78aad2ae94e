"""Start offsets and lag of Kafka's own share groups, which its client for Python can not ask yet.

Two calls of Kafka's protocol (DescribeShareGroupOffsets 90, version 1; AlterShareGroupOffsets 91,
version 0), which is what `kafka-share-groups` sends too, without a Java process for each question.
Only for one broker, which then is every group's coordinator.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

T = TypeVar("T")

DESCRIBE, ALTER = (90, 1), (91, 0)
TIMEOUT_S = 20.0

NOT_INITIALISED = -1


class Place(NamedTuple):
    """Where a group stands in a partition."""

    start: int
    lag: int


class OffsetsError(Exception):
    """Kafka refused a call; `code` is its number."""

    def __init__(self, what: str, code: int, text: str | None) -> None:
        super().__init__(f"{what}: {text or 'error'} ({code})")
        self.code = code


class _Reader:
    """Reads the flexible encoding (KIP-482)."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        """A number of a `struct` format."""
        (value,) = struct.unpack_from(f">{form}", self._data, self._at)
        self._at += struct.calcsize(f">{form}")
        return int(value)

    def varint(self) -> int:
        """An unsigned number of variable length."""
        value = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    def raw(self, length: int) -> bytes:
        """So many bytes."""
        self._at += length
        return self._data[self._at - length : self._at]

    def text(self) -> str | None:
        """A compact, nullable string."""
        length = self.varint() - 1
        return None if length < 0 else self.raw(length).decode()

    def tags(self) -> None:
        """Tagged fields, none of which matter here."""
        for _ in range(self.varint()):
            self.varint()
            self.raw(self.varint())

    def many(self, one: Callable[[], T]) -> list[T]:
        """A compact array of structures, each of which ends with its tagged fields."""
        found: list[T] = []
        for _ in range(self.varint() - 1):
            found.append(one())
            self.tags()
        return found


def _text(value: str) -> bytes:
    data = value.encode()
    return _varint(len(data) + 1) + data


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _call(address: str, api: tuple[int, int], body: bytes) -> _Reader:
    host, port = address.rsplit(":", 1)
    head = struct.pack(">hhih", *api, 1, -1) + b"\0"
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (size,) = struct.unpack(">i", _exactly(connection, 4))
        answer = _Reader(_exactly(connection, size))
    answer.number("i")
    answer.tags()
    answer.number("i")  # how long the call was throttled
    return answer


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("Kafka closed the connection: does it know the call?")
        data += part
    return data


def share_group_offsets(address: str, group: str) -> dict[tuple[str, int], Place]:
    """Start offset and lag by topic and partition; -1 while a share-partition is not initialised.

    Args:
        address: `host:port` of the one broker.
        group: The share group.

    Raises:
        OffsetsError: Kafka refused; an unknown group too.
    """
    answer = _call(address, DESCRIBE, _varint(2) + _text(group) + b"\0\0\0")
    found: dict[tuple[str, int], Place] = {}
    what = f"describe {group}"

    def partition() -> tuple[int, Place]:
        number, start = answer.number("i"), answer.number("q")
        answer.number("i")  # leader epoch
        place = Place(start, answer.number("q"))
        _check(what, answer)
        return number, place

    def topic() -> None:
        name = answer.text()
        assert name is not None
        answer.raw(16)
        found.update({(name, number): place for number, place in answer.many(partition)})

    def one_group() -> None:
        answer.text()
        answer.many(topic)
        _check(what, answer)

    answer.many(one_group)
    return found


def alter_share_group_offsets(
    address: str, group: str, offsets: Mapping[tuple[str, int], int]
) -> None:
    """Sets start offsets; whatever was in flight is forgotten.

    Raises:
        OffsetsError: Kafka refused: the group has members, or a partition is not known.
    """
    topics = sorted({topic for topic, _ in offsets})
    body = _text(group) + _varint(len(topics) + 1)
    for topic in topics:
        places = sorted((number, at) for (name, number), at in offsets.items() if name == topic)
        body += _text(topic) + _varint(len(places) + 1)
        body += b"".join(struct.pack(">iq", *place) + b"\0" for place in places) + b"\0"
    answer = _call(address, ALTER, body + b"\0")
    what = f"alter offsets of {group}"
    _check(what, answer)

    def partition() -> None:
        answer.number("i")
        _check(what, answer)

    def topic_answer() -> None:
        answer.text()
        answer.raw(16)
        answer.many(partition)

    answer.many(topic_answer)


def _check(what: str, answer: _Reader) -> None:
    """Reads error code and text."""
    code, text = answer.number("h"), answer.text()
    if code:
        raise OffsetsError(what, code, text)
