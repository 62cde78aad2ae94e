"""Messages of the stream, read so that whole batches stay where they arrived.

Protobuf would copy a batch into its message, and again for who looks at it: half a microsecond of
CPU for a record of 1 kB (docs/decisions/0054).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

APART_BYTES_MIN: Final = 32 * 1024
"""Smaller messages are read by protobuf alone: a copy of them costs less than a look at fields."""

FIELDS_MAX: Final = 256
"""Fields that are looked at, at most: a message of whole batches has a dozen, and some locks."""

_VARINT: Final = 0
_SIZED: Final = 2

_BATCH = types_pb.RecordBatch.DESCRIPTOR.fields_by_name


def _tag(number: int) -> int:
    return number << 3 | _SIZED


_BATCHES: Final = _tag(service_pb.ConsumeResponse.DESCRIPTOR.fields_by_name["batches"].number)
_WHOLE: Final = _tag(_BATCH["whole_batches"].number)
_COLUMNS: Final = frozenset(_tag(_BATCH[name].number) for name in ("keys", "values"))


class Frame(NamedTuple):
    """A message of the stream."""

    response: service_pb.ConsumeResponse
    whole: Sequence[Sequence[memoryview | bytes]]
    """The whole batches of each of `response.batches`, whose own field for them may be empty."""


class _Field(NamedTuple):
    tag: int
    start: int
    content: int
    """Where it begins behind tag and size."""
    stop: int


def read(data: bytes) -> Frame:
    """Reads a message; the whole batches of a large one are views on `data`.

    Raises:
        google.protobuf.message.DecodeError: It is no ConsumeResponse.
    """
    if len(data) >= APART_BYTES_MIN:
        try:
            return _apart(data)
        except (_OtherwiseError, IndexError):
            pass
    return frame_of(service_pb.ConsumeResponse.FromString(data))


def frame_of(response: service_pb.ConsumeResponse) -> Frame:
    """A message that protobuf has read."""
    # Not the field itself: it would keep the message, and values beside those that Python has.
    return Frame(response, [tuple(batch.whole_batches) for batch in response.batches])


class _OtherwiseError(Exception):
    """Protobuf is to read the message: it has columns, or is not one."""


def _apart(data: bytes) -> Frame:
    view = memoryview(data)
    rest: list[memoryview] = []
    whole: list[list[memoryview]] = []
    batches: list[bytes] = []
    for field in _fields(data, 0, len(data)):
        if field.tag != _BATCHES:
            rest.append(view[field.start : field.stop])
            continue
        contents: list[memoryview] = []
        pieces: list[memoryview] = []
        for each in _fields(data, field.content, field.stop):
            if each.tag in _COLUMNS:
                raise _OtherwiseError
            if each.tag == _WHOLE:
                contents.append(view[each.content : each.stop])
            else:
                pieces.append(view[each.start : each.stop])
        whole.append(contents)
        batches.append(b"".join(pieces))
    response = service_pb.ConsumeResponse.FromString(b"".join(rest))
    for batch in batches:
        response.batches.add().ParseFromString(batch)
    return Frame(response, whole)


def _fields(data: bytes, at: int, end: int) -> Iterator[_Field]:
    """The fields of the message in [at, end)."""
    for _ in range(FIELDS_MAX):
        if at == end:
            return
        start = at
        tag, at = _number(data, at)
        size, content = _number(data, at)
        stop = content + size if tag & 7 == _SIZED else content
        if tag & 7 not in (_VARINT, _SIZED) or stop > end:
            raise _OtherwiseError
        yield _Field(tag, start, content, stop)
        at = stop
    raise _OtherwiseError


def _number(data: bytes, at: int) -> tuple[int, int]:
    """A varint, and where it ends; in a field whose end is looked at afterwards."""
    found = shift = 0
    while (byte := data[at]) > 0x7F:
        found |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > 63:
            raise _OtherwiseError
    return found | byte << shift, at + 1
