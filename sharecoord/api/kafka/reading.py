"""Reads requests into kio's dataclasses, and trusts no length in them.

kio's own reader takes memory for as many elements as an array says it has, and ends the process
when there is not so much (0.6.5). So nothing that a stranger sends gets to it. Here an array has no
more elements than there are bytes left; the dataclasses say what follows upon what.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import timedelta
from types import NoneType
from typing import Any, Final, get_args
from uuid import UUID

Reader = Callable[[memoryview, int], tuple[Any, int]]
"""Reads what begins at a place; returns it, and the place behind it."""

UVARINT_BYTES_MAX: Final = 5
"""A length has 32 bits."""


class MalformedError(ValueError):
    """The bytes are no such message."""


def entity_reader(of: Any) -> Reader:
    """The reader of one of kio's dataclasses.

    It raises a MalformedError, or another ValueError for a text, where the bytes are no such
    message.
    """
    is_flexible: bool = of.__flexible__
    plain: list[tuple[str, Reader]] = []
    tagged: dict[int, tuple[str, Reader]] = {}
    for each in fields(of):
        reader = _reader_of(each.type, each.metadata.get("kafka_type", ""), flexible=is_flexible)
        tag = each.metadata.get("tag")
        if tag is None:
            plain.append((each.name, reader))
        else:
            tagged[tag] = each.name, reader

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for name, reader in plain:
            values[name], at = reader(data, at)
        if is_flexible:
            at = read_tags(data, at, tagged, values)
        return of(**values), at

    return read


def read_tags(
    data: memoryview, at: int, known: dict[int, tuple[str, Reader]], values: dict[str, Any]
) -> int:
    """Reads tagged fields, and passes over unknown ones (KIP-482); returns the place behind."""
    count, at = uvarint(data, at)
    for _ in range(_elements(count, data, at)):
        tag, at = uvarint(data, at)
        size, at = uvarint(data, at)
        end = _end(data, at, size)
        if tag in known:
            name, reader = known[tag]
            values[name], read_to = reader(data[:end], at)
            if read_to != end:
                raise MalformedError("a tagged field is longer than its content")
        at = end
    return at


def uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """An unsigned number of 32 bits at most."""
    value = 0
    for index in range(UVARINT_BYTES_MAX):
        if at >= len(data):
            raise MalformedError("a number is cut off")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            return value, at
    raise MalformedError("a number has more than 32 bits")


def legacy_text(data: memoryview, at: int) -> tuple[str | None, int]:
    """A text with its length before it, as all messages had before KIP-482."""
    size, at = _INT16(data, at)
    return (None, at) if size < 0 else _text(data, at, size)


def _reader_of(kind: Any, kafka_type: str, *, flexible: bool) -> Reader:
    arguments = get_args(kind)
    if NoneType in arguments:
        (inner,) = (each for each in arguments if each is not NoneType)
        return _nullable(inner, kafka_type, flexible=flexible)
    if len(arguments) == 2 and arguments[1] is ...:
        return _never_null(_array(arguments[0], kafka_type, flexible=flexible))
    if is_dataclass(kind):
        return entity_reader(kind)
    return _never_null(_plain(kafka_type, flexible=flexible))


def _nullable(kind: Any, kafka_type: str, *, flexible: bool) -> Reader:
    arguments = get_args(kind)
    if len(arguments) == 2 and arguments[1] is ...:
        return _array(arguments[0], kafka_type, flexible=flexible)
    if not is_dataclass(kind):
        return _plain(kafka_type, flexible=flexible)
    entity = entity_reader(kind)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        marker, at = _INT8(data, at)
        return (None, at) if marker < 0 else entity(data, at)

    return read


def _never_null(reader: Reader) -> Reader:
    def read(data: memoryview, at: int) -> tuple[Any, int]:
        value, at = reader(data, at)
        if value is None:
            raise MalformedError("a field that must have a value is null")
        return value, at

    return read


def _array(element: Any, kafka_type: str, *, flexible: bool) -> Reader:
    if kafka_type == "int8":
        return _small_numbers(flexible=flexible)
    reader = _reader_of(element, kafka_type, flexible=flexible)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        count, at = _length(data, at, flexible=flexible, legacy=_INT32)
        if count < 0:
            return None, at
        found = []
        for _ in range(_elements(count, data, at)):
            value, at = reader(data, at)
            found.append(value)
        return tuple(found), at

    return read


def _small_numbers(*, flexible: bool) -> Reader:
    """An array of bytes, read at once: an acknowledgement may have a type for each record."""

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        count, at = _length(data, at, flexible=flexible, legacy=_INT32)
        if count < 0:
            return None, at
        end = _end(data, at, count)
        return tuple(data[at:end].cast("b")), end

    return read


def _plain(kafka_type: str, *, flexible: bool) -> Reader:
    if kafka_type in _FIXED:
        return _FIXED[kafka_type]
    take, legacy = (_text, _INT16) if kafka_type == "string" else (_bytes, _INT32)

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        size, at = _length(data, at, flexible=flexible, legacy=legacy)
        return (None, at) if size < 0 else take(data, at, size)

    return read


def _length(data: memoryview, at: int, *, flexible: bool, legacy: Reader) -> tuple[int, int]:
    """A length; below 0 = null."""
    if not flexible:
        return legacy(data, at)
    more_by_one, at = uvarint(data, at)
    return more_by_one - 1, at


def _elements(count: int, data: memoryview, at: int) -> int:
    """A count of elements, each of a byte at least."""
    if count > len(data) - at:
        raise MalformedError(f"{count} elements in {len(data) - at} bytes")
    return count


def _end(data: memoryview, at: int, size: int) -> int:
    if size > len(data) - at:
        raise MalformedError(f"{size} bytes of {len(data) - at}")
    return at + size


def _text(data: memoryview, at: int, size: int) -> tuple[str, int]:
    end = _end(data, at, size)
    return str(data[at:end], "utf-8"), end


def _bytes(data: memoryview, at: int, size: int) -> tuple[bytes, int]:
    end = _end(data, at, size)
    return bytes(data[at:end]), end


def _number(code: str, made: Callable[[Any], Any] | None = None) -> Reader:
    form = struct.Struct(f">{code}")

    def read(data: memoryview, at: int) -> tuple[Any, int]:
        end = _end(data, at, form.size)
        (value,) = form.unpack_from(data, at)
        return (value if made is None else made(value)), end

    return read


def _uuid(data: memoryview, at: int) -> tuple[UUID | None, int]:
    """An id; all zeros = none."""
    found, at = _bytes(data, at, 16)
    return (UUID(bytes=found) if any(found) else None), at


_INT8: Final = _number("b")
_INT16: Final = _number("h")
_INT32: Final = _number("i")
_FIXED: Final[dict[str, Reader]] = {
    "int8": _INT8,
    "int16": _INT16,
    "int32": _INT32,
    "int64": _number("q"),
    "uint16": _number("H"),
    "uint32": _number("I"),
    "bool": _number("?"),
    "timedelta_i32": _number("i", lambda ms: timedelta(milliseconds=ms)),
    "uuid": _uuid,
}
"""Readers of values that have always the same number of bytes, by Kafka's name of their type."""
