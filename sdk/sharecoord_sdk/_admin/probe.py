"""Asks whether a Kafka broker answers at an address, so that a mix-up is named as one."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

_API_VERSIONS: Final = 18
_CORRELATION_ID: Final = 0x5C0D
_CLIENT_ID: Final = b"sharecoord"
# ApiVersions version 0, which every broker answers: header (key, version, correlation id, client
# id) and no body.
_HEADER: Final = struct.pack(">hhih", _API_VERSIONS, 0, _CORRELATION_ID, len(_CLIENT_ID))
_REQUEST: Final = struct.pack(">i", len(_HEADER) + len(_CLIENT_ID)) + _HEADER + _CLIENT_ID


def speaks_kafka(address: str, timeout_s: float = 2.0) -> bool:
    """Whether a Kafka broker answers in clear text at `host:port`. Never raises."""
    host, _, port = address.rpartition(":")
    if address.startswith("unix:") or not port.isdecimal():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout_s) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(_REQUEST)
            answer = b""
            while len(answer) < 8:
                part = connection.recv(8 - len(answer))
                if not part:
                    return False
                answer += part
    except OSError:
        return False
    size_bytes: int
    correlation_id: int
    size_bytes, correlation_id = struct.unpack(">ii", answer)
    return size_bytes > 0 and correlation_id == _CORRELATION_ID


async def aspeaks_kafka(address: str) -> bool:
    """The same without blocking the event loop."""
    return await asyncio.to_thread(speaks_kafka, address)
