"""Requests and answers of Kafka's protocol, as kio's dataclasses; the versions that are served.

A request is `length | api key | version | correlation id | client id | body`. Only the length and
these four fields are looked at here; see `reading` for the rest.
"""

from __future__ import annotations

import struct
from dataclasses import fields
from functools import cache
from importlib import import_module
from io import BytesIO
from typing import Any, Final, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader as answer_reader
from kio.serial import entity_writer

from sharecoord.api.kafka.reading import (
    Reader,
    entity_reader,
    legacy_text,
    read_tags,
    uvarint,
)

PRODUCE: Final = 0
FETCH: Final = 1
LIST_OFFSETS: Final = 2
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
DESCRIBE_GROUPS: Final = 15
LIST_GROUPS: Final = 16
SASL_HANDSHAKE: Final = 17
API_VERSIONS: Final = 18
DESCRIBE_CONFIGS: Final = 32
SASL_AUTHENTICATE: Final = 36
DELETE_GROUPS: Final = 42
INCREMENTAL_ALTER_CONFIGS: Final = 44
DESCRIBE_QUORUM: Final = 55
DESCRIBE_CLUSTER: Final = 60
LIST_CONFIG_RESOURCES: Final = 74
DESCRIBE_TOPIC_PARTITIONS: Final = 75
SHARE_GROUP_HEARTBEAT: Final = 76
SHARE_GROUP_DESCRIBE: Final = 77
SHARE_FETCH: Final = 78
SHARE_ACKNOWLEDGE: Final = 79
DESCRIBE_SHARE_GROUP_OFFSETS: Final = 90
ALTER_SHARE_GROUP_OFFSETS: Final = 91
DELETE_SHARE_GROUP_OFFSETS: Final = 92

VERSIONS: Final = {
    PRODUCE: (3, 13),
    FETCH: (4, 18),
    LIST_OFFSETS: (1, 11),
    METADATA: (0, 13),
    FIND_COORDINATOR: (0, 6),
    DESCRIBE_GROUPS: (0, 6),
    LIST_GROUPS: (0, 5),
    # Version 0 of it is refused, and has to be there: librdkafka takes a broker without for one
    # that knows no SASL.
    SASL_HANDSHAKE: (0, 1),
    API_VERSIONS: (0, 4),
    DESCRIBE_CONFIGS: (1, 4),
    SASL_AUTHENTICATE: (0, 2),
    DELETE_GROUPS: (0, 2),
    INCREMENTAL_ALTER_CONFIGS: (0, 1),
    DESCRIBE_CLUSTER: (0, 2),
    LIST_CONFIG_RESOURCES: (0, 1),
    DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    SHARE_GROUP_HEARTBEAT: (1, 1),
    SHARE_GROUP_DESCRIBE: (1, 1),
    SHARE_FETCH: (1, 2),
    SHARE_ACKNOWLEDGE: (1, 2),
    DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    DELETE_SHARE_GROUP_OFFSETS: (0, 0),
}
"""The first and the last version of each API that is answered; kio knows all of them.

Produce and Fetch are answered with an error: librdkafka reads record batches only of a broker that
has both, of versions that know them.
"""

_USUAL: Final = (
    API_VERSIONS,
    METADATA,
    FIND_COORDINATOR,
    SHARE_GROUP_HEARTBEAT,
    SHARE_FETCH,
    SHARE_ACKNOWLEDGE,
)

_loaded: Final[set[tuple[int, int]]] = set()

_FLEXIBLE_HEADER: Final = 2
"""The version of a request's header from which on tagged fields follow."""

_PRODUCE_TRANSACTIONAL: Final = 3
"""The version of Produce from which on the id of the transaction comes before the acks."""

_PRODUCE_FLEXIBLE: Final = 9

_ACKS: Final = struct.Struct(">h")
_HEAD: Final = struct.Struct(">hhi")
_CORRELATION: Final = struct.Struct(">i")


class Head(NamedTuple):
    """The beginning of each request."""

    api_key: int
    version: int
    correlation_id: int


class ProtocolError(Exception):
    """A client sent bytes that are no request of Kafka's protocol: its connection ends."""


def head_of(frame: memoryview) -> Head:
    """The head of a request.

    Raises:
        ProtocolError: The request is shorter than a head.
    """
    if len(frame) < _HEAD.size:
        raise ProtocolError(f"a request of {len(frame)} bytes has no head")
    return Head(*_HEAD.unpack_from(frame))


def is_served(head: Head) -> bool:
    """Whether the request is of an API and of a version that are served."""
    first, last = VERSIONS.get(head.api_key, (0, -1))
    return first <= head.version <= last


def is_loaded(head: Head) -> bool:
    """Whether `load` was called for an API and version that are served."""
    return head[:2] in _loaded


def load(api_key: int, version: int) -> None:
    """Loads the dataclasses of a request and its answer: 5 to 60 ms, which no loop has.

    It may be called in any thread.
    """
    _reader(api_key, version)
    _writer(_answer_type(api_key, version))
    _loaded.add((api_key, version))


def load_usual() -> None:
    """Loads what the present clients ask for when they join a group and fetch."""
    for api_key in _USUAL:
        first, last = VERSIONS[api_key]
        for version in range(max(first, last - 1), last + 1):
            load(api_key, version)


def name_of(head: Head) -> str:
    """The name of the API of a request that is served."""
    return str(_request_type(*head[:2]).__name__).removesuffix("Request")


def read(head: Head, frame: memoryview) -> tuple[str, Any]:
    """The client's id and the body of a request, as kio's dataclass.

    Raises:
        ProtocolError: It is none.
    """
    schema = _request_type(*head[:2])
    try:
        client_id, at = legacy_text(frame, _HEAD.size)
        if schema.__header_schema__.__version__ >= _FLEXIBLE_HEADER:
            at = read_tags(frame, at, {}, {})
        body, _ = _reader(*head[:2])(frame, at)
    except ValueError as error:
        raise ProtocolError(f"API {head.api_key} version {head.version}: {error}") from error
    # What is left over does not count, as at a broker: librdkafka sends three bytes too many where
    # it asks for all topics.
    return client_id or "", body


def answer_of(head: Head, body: Any) -> bytes:
    """An answer with its length, in the version of its request."""
    buffer = BytesIO()
    buffer.write(bytes(4))
    buffer.write(prefix_of(head))
    of: Any = type(body)
    _writer(of)(buffer, body)
    found = buffer.getbuffer()
    found[:4] = _CORRELATION.pack(len(found) - 4)
    return bytes(found)


def prefix_of(head: Head) -> bytes:
    """The header of an answer: the correlation id, and no tagged field where there may be some."""
    number = _CORRELATION.pack(head.correlation_id)
    # The header of ApiVersions' answer is the old one in every version (KIP-511).
    is_flexible = head.api_key != API_VERSIONS and _answer_type(*head[:2]).__flexible__
    return number + b"\0" if is_flexible else number


def read_answer(head: Head, answer: memoryview) -> Any:
    """A broker's answer, which begins behind the correlation id, as kio's dataclass.

    Raises:
        ProtocolError: It is none.
    """
    of: Any = _answer_type(*head[:2])
    at = len(prefix_of(head)) - _CORRELATION.size
    try:
        if at:
            at = read_tags(answer, 0, {}, {})
        found, _ = _answer_reader(of)(answer, at)
    except Exception as error:
        raise ProtocolError(
            f"Kafka's answer to API {head.api_key} version {head.version}: {error!r}"
        ) from error
    return found


def frame_of(head: Head, client_id: str, body: Any) -> memoryview:
    """A request without its length, as a client would send it."""
    of: Any = type(body)
    buffer, name = BytesIO(), client_id.encode()
    buffer.write(_HEAD.pack(*head) + struct.pack(">h", len(name)) + name)
    if of.__header_schema__.__version__ >= _FLEXIBLE_HEADER:
        buffer.write(b"\0")
    _writer(of)(buffer, body)
    return buffer.getbuffer()


def make_request(head: Head, **values: Any) -> Any:
    """Makes a request of kio's; values that its version does not have are left out."""
    of = _request_type(*head[:2])
    names = {each.name for each in fields(of)}
    return of(**{each: value for each, value in values.items() if each in names})


def is_silent(head: Head, frame: memoryview) -> bool:
    """Whether a request is a Produce that wants no answer; of its records nothing is read.

    Raises:
        ProtocolError: It is no such request.
    """
    if head.api_key != PRODUCE:
        return False
    try:
        _, at = legacy_text(frame, _HEAD.size)
        if head.version >= _PRODUCE_FLEXIBLE:
            at = read_tags(frame, at, {}, {})
            size, at = uvarint(frame, at)
            at += max(0, size - 1)
        elif head.version >= _PRODUCE_TRANSACTIONAL:
            _, at = legacy_text(frame, at)
        (acks,) = _ACKS.unpack_from(frame, at)
    except (ValueError, struct.error) as error:
        raise ProtocolError(f"Produce version {head.version}: {error}") from error
    return int(acks) == 0


def make(head: Head, name: str, /, **values: Any) -> Any:
    """Makes an instance of a dataclass that kio has for the answer to a request.

    Values that its version does not have yet, or any more, are left out.
    """
    of, names = _fields(head.api_key, head.version, name)
    return of(**{each: value for each, value in values.items() if each in names})


@cache
def _request_type(api_key: int, version: int) -> Any:
    return load_request_schema(api_key, version)


@cache
def _reader(api_key: int, version: int) -> Reader:
    return entity_reader(_request_type(api_key, version))


@cache
def _answer_type(api_key: int, version: int) -> Any:
    return load_response_schema(api_key, version)


@cache
def _fields(api_key: int, version: int, name: str) -> tuple[Any, frozenset[str]]:
    of = getattr(import_module(_answer_type(api_key, version).__module__), name)
    return of, frozenset(each.name for each in fields(of))


@cache
def _answer_reader(of: Any) -> Any:
    return answer_reader(of)


@cache
def _writer(of: Any) -> Any:
    return entity_writer(of)
