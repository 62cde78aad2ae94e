"""What hostile clients send: any bytes, any message of a type, bare HTTP/2 frames."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import grpc
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st
from sharecoord_sdk._proto import admin_service_pb2 as admin_pb
from sharecoord_sdk._proto import share_service_pb2 as share_pb

# -- methods --------------------------------------------------------------------------------------


class Method(NamedTuple):
    """One method of a service.

    Attributes:
        path: As in HTTP/2.
        request: What it takes.
        streaming: Whether it is the stream.
    """

    path: str
    request: Descriptor
    streaming: bool


def methods() -> list[Method]:
    """Every method of ours."""
    found = []
    for module in (share_pb, admin_pb):
        for service in module.DESCRIPTOR.services_by_name.values():
            found += [
                Method(f"/{service.full_name}/{each.name}", each.input_type, each.client_streaming)
                for each in service.methods
            ]
    return found


def send(
    channel: grpc.Channel, method: Method, body: bytes, timeout_s: float
) -> grpc.RpcError | None:
    """Sends bytes as one request; returns how it failed.

    None when it was answered, or when its time was up, as that of a long poll is. A server that
    sees the deadline first resets the call, which its client is told as CANCELLED.
    """
    untyped: Any = channel
    began_s = time.monotonic()
    try:
        if method.streaming:
            for _ in untyped.stream_stream(method.path)(iter([body]), timeout=timeout_s):
                pass
        else:
            untyped.unary_unary(method.path)(body, timeout=timeout_s)
    except grpc.RpcError as error:
        is_over = time.monotonic() - began_s >= timeout_s
        return None if is_over else error
    return None


# -- messages -------------------------------------------------------------------------------------

_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-(1 << 31), (1 << 31) - 1),
    FieldDescriptor.TYPE_INT64: (-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: (0, (1 << 32) - 1),
    FieldDescriptor.TYPE_UINT64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_FIXED64: (0, (1 << 64) - 1),
    FieldDescriptor.TYPE_ENUM: (-(1 << 31), (1 << 31) - 1),
}
DEPTH_MAX = 5


def _integers(low: int, high: int) -> st.SearchStrategy[int]:
    edges = [low, -1, 0, 1, 2, 3, 4, 5, 9, 10, 16, high - 1, high]
    return st.sampled_from([n for n in edges if low <= n <= high]) | st.integers(low, high)


def _scalars(field: FieldDescriptor, known: dict[str, list[Any]]) -> st.SearchStrategy[Any]:
    likely = known.get(field.name)
    if field.type in _INTEGERS:
        found: st.SearchStrategy[Any] = _integers(*_INTEGERS[field.type])
    elif field.type == FieldDescriptor.TYPE_BOOL:
        found = st.booleans()
    elif field.type == FieldDescriptor.TYPE_BYTES:
        found = st.binary(max_size=40)
    elif field.type == FieldDescriptor.TYPE_STRING:
        found = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
    else:
        raise AssertionError(f"{field.full_name}: no strategy for type {field.type}")
    return st.sampled_from(likely) | found if likely else found


def any_message(
    descriptor: Descriptor, known: dict[str, list[Any]], depth: int = 0
) -> st.SearchStrategy[Message]:
    """Any message of a type; fields named in `known` often have a value that means something.

    Args:
        descriptor: The type.
        known: Values by field name, so that a call gets past the first check.
        depth: How deep this message lies in another one.
    """
    fields: dict[str, st.SearchStrategy[Any]] = {}
    for field in descriptor.fields:
        if field.message_type is None:
            one = _scalars(field, known)
        elif depth < DEPTH_MAX and not field.message_type.GetOptions().map_entry:
            one = any_message(field.message_type, known, depth + 1)
        else:
            continue
        fields[field.name] = st.lists(one, max_size=3) if field.is_repeated else one
    make: Callable[..., Message] = GetMessageClass(descriptor)
    return st.fixed_dictionaries({}, optional=fields).map(lambda given: make(**given))


# -- bare HTTP/2 ----------------------------------------------------------------------------------

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS = 1, 4
INITIAL_WINDOW_SIZE = 4
WINDOW_MAX = (1 << 31) - 1
CONSUME = "/sharecoord.v1.ShareService/Consume"


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """A frame of RFC 9113, section 4.1."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


GREETING = PREFACE + frame(SETTINGS)
WIDE_GREETING = (
    PREFACE
    + frame(SETTINGS, struct.pack(">HI", INITIAL_WINDOW_SIZE, WINDOW_MAX))
    + frame(WINDOW_UPDATE, struct.pack(">I", WINDOW_MAX - 65_535))
)
"""Promises to take everything at once."""


def call(stream: int, message: bytes | None = None, *, path: str = CONSUME) -> bytes:
    """Opens a gRPC call on a stream, which stays open, with one message or none.

    The headers are literals of RFC 7541, section 6.2, without Huffman code.
    """

    def text(value: str) -> bytes:
        assert len(value) < 127, "one byte of length"
        return bytes([len(value)]) + value.encode()

    post, http = b"\x83", b"\x86"
    headers = post + http + b"\x04" + text(path) + b"\x01" + text("localhost")
    headers += b"\x0f\x10" + text("application/grpc") + b"\x00" + text("te") + text("trailers")
    found = frame(HEADERS, headers, flags=END_HEADERS, stream=stream)
    return found if message is None else found + said(stream, message)


def said(stream: int, message: bytes) -> bytes:
    """A message on a call that is open."""
    return frame(DATA, b"\0" + struct.pack(">I", len(message)) + message, stream=stream)


def reset(stream: int) -> bytes:
    """Ends a call at once."""
    return frame(RST_STREAM, struct.pack(">I", 8), stream=stream)


class Crowd:
    """Many bare TCP connections to one address, closed together."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self.sockets: list[socket.socket] = []

    def grow(self, count: int, greeting: bytes = b"") -> None:
        """Connects so many more, and says the same on each."""
        for _ in range(count):
            made = socket.create_connection(self._target, timeout=20.0)
            self.sockets.append(made)
            if greeting:
                made.sendall(greeting)

    def push(self, data: bytes, times: int) -> None:
        """Sends on every connection until it takes no more or is closed."""
        for each in self.sockets:
            each.settimeout(1.0)
            try:
                for _ in range(times):
                    each.sendall(data)
            except OSError:
                continue

    def hear(self, size_bytes: int) -> None:
        """Reads so much, or what there is within a few seconds, from the first connection."""
        first, left = self.sockets[0], size_bytes
        first.settimeout(5.0)
        try:
            while left > 0 and (data := first.recv(min(left, 65_536))):
                left -= len(data)
        except OSError:
            return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sockets:
            each.close()
