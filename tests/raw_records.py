"""Writes records as bytes, for what no client library would send.

One record batch of format 2 in one Produce request of version 3, over a plain connection.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

TIMEOUT_S = 30.0
_POLYNOMIAL = 0x82F63B78  # CRC-32C, which zlib does not have


class RawRecord(NamedTuple):
    """A record whose headers have bytes for names."""

    value: bytes
    headers: Sequence[tuple[bytes, bytes | None]] = ()
    key: bytes | None = None


def produce_raw(
    bootstrap_servers: str, topic: str, records: Sequence[RawRecord], partition: int = 0
) -> int:
    """Writes one batch to a partition that this broker leads; returns the first offset."""
    batch = _batch(records)
    body = (
        struct.pack(">hhi", 0, 3, 1)  # Produce, version 3, correlation id
        + _short_text("tests")
        + struct.pack(">hhi", -1, -1, 10_000)  # no transaction, acks=all, time limit in ms
        + struct.pack(">i", 1)
        + _short_text(topic)
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    host, port = bootstrap_servers.rsplit(":", 1)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answers:
            (size,) = struct.unpack(">i", answers.read(4))
            answer = answers.read(size)
    # Behind the correlation id, the number of topics, the topic and the number of partitions.
    _, error, first = struct.unpack_from(">ihq", answer, 4 + 4 + 2 + len(topic) + 4)
    assert error == 0, f"Kafka's error code {error}"
    return int(first)


def _batch(records: Sequence[RawRecord]) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    count = len(records)
    rest = struct.pack(">hiqqqhii", 0, count - 1, now_ms, now_ms, -1, -1, -1, count)
    rest += b"".join(_record(index, record) for index, record in enumerate(records))
    return struct.pack(">qiibI", 0, len(rest) + 9, -1, 2, _crc32c(rest)) + rest


def _record(index: int, record: RawRecord) -> bytes:
    headers = b"".join(_bytes(name) + _bytes(value) for name, value in record.headers)
    payload = _bytes(record.key) + _bytes(record.value)
    body = b"\0" + _varint(0) + _varint(index) + payload + _varint(len(record.headers)) + headers
    return _varint(len(body)) + body


def _bytes(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _short_text(text: str) -> bytes:
    return struct.pack(">h", len(text)) + text.encode()


def _varint(number: int) -> bytes:
    left = number << 1 ^ number >> 63
    return bytes(_sevens(left))


def _sevens(left: int) -> Iterator[int]:
    while left > 0x7F:
        yield left & 0x7F | 0x80
        left >>= 7
    yield left


def _crc32c(content: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in content:
        found ^= byte
        for _ in range(8):
            found = found >> 1 ^ (_POLYNOMIAL if found & 1 else 0)
    return found ^ 0xFFFFFFFF
