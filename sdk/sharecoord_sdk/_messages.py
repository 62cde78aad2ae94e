"""Between messages and plain values: one mapping, driven by descriptors and type hints.

A field of a message and an attribute of a dataclass or NamedTuple belong together by their name. In
between stand these rules:

* An enum is mapped by its names, without the prefix that protobuf asks for.
* An optional field that is not set is None, and None sets nothing.
* A oneof is a dataclass: its `kind` is the name of the member that is set, whose number is `value`,
  or whose fields are its other attributes.
* A nested message is a nested dataclass or NamedTuple, or a plain tuple of its fields in order. A
  value without a message of its own takes its fields from a nested one, and gives its own to it.
* Repeated messages are a tuple or list, or a mapping from their first fields to the last one.
* `error_reason` and `error_message` together are the attribute `error`.
* Bytes that are text in a value (topic ids) are hexadecimal there.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache, partial
from operator import attrgetter
from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_Field = Any
_Descriptor = Any
"""A type of either implementation of protobuf, which have nothing in common."""

_BOUNDS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}
_WORDS = {
    FieldDescriptor.TYPE_STRING: "str",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_BOOL: "bool",
}
_ABSENT: Any = object()

_Get = Callable[[Any], Any]
"""Takes a part out of a value or a message."""


class Mapper:
    """Reads and makes messages.

    How a class and a message belong together is found out once, at their first meeting.

    Args:
        error_of: Makes the error out of `error_reason` and `error_message`.
        names: The fields whose names differ from those of a class, by class and attribute.
    """

    def __init__(
        self,
        error_of: Callable[[str, str], Any] | None = None,
        names: Mapping[Any, Mapping[str, str]] = types.MappingProxyType({}),
    ) -> None:
        self._error_of = error_of
        self._names = names
        self._attributes = {
            kind: {field: name for name, field in differing.items()}
            for kind, differing in names.items()
        }
        self._readers: dict[Any, list[tuple[str, _Get]]] = {}
        self._writers: dict[Any, list[tuple[str, _Get, _Get | None]]] = {}

    # -- out of messages ------------------------------------------------------------------------

    def read(self, hint: type[T], message: Message) -> T:
        """A message as a value: of this class, or (else) its only field of this type.

        Raises:
            ValueError: An enum or a oneof is not set, or a key is given twice; it is named.
        """
        if hint is types.NoneType:
            return hint()
        if _is_record(hint):
            record: T = self._read_record(hint, message)
            return record
        (field,) = message.DESCRIPTOR.fields
        found: T = self._read_field(hint, field, message)
        return found

    def read_fields(self, kind: Any, hints: Mapping[str, Any], message: Message) -> dict[str, Any]:
        """The values that a message has for the attributes, or parameters, of `kind`."""
        key = kind, message.DESCRIPTOR.full_name
        if key not in self._readers:
            names = self._names.get(kind, {})
            self._readers[key] = [
                (name, reader)
                for name, hint in hints.items()
                if (reader := self._reader(hint, message.DESCRIPTOR, names.get(name, name)))
            ]
        found = ((name, reader(message)) for name, reader in self._readers[key])
        return {name: value for name, value in found if value is not _ABSENT}

    def _read_record(self, kind: Any, message: Message) -> Any:
        return kind(**self.read_fields(kind, _hints(kind), message))

    def _reader(self, hint: Any, descriptor: _Descriptor, name: str) -> _Get | None:
        """The function that reads a named value from a message, or from the messages within it."""
        fields = descriptor.fields_by_name
        field: _Field = fields.get(name)
        if name == "error" and "error_reason" in fields:
            return self._read_error
        if name in descriptor.oneofs_by_name:
            return partial(self._read_oneof, hint, name)
        if field is not None and _is_plain(field) and not field.has_presence:
            return attrgetter(name)
        if field is not None and (not _is_nested(field) or _takes_message(hint)):
            return partial(self._read_field, hint, field)
        for each in descriptor.fields:
            if _is_nested(each) and name in each.message_type.fields_by_name:
                inner = self._reader(hint, each.message_type, name)
                return inner and partial(_of_part, attrgetter(each.name), inner)
        return None

    def _read_error(self, message: Any) -> Any:
        assert self._error_of is not None, "only clients read errors"
        return self._error_of(message.error_reason, message.error_message)

    def _read_oneof(self, kind: Any, name: str, message: Message) -> Any:
        member, hints = message.WhichOneof(name), _hints(kind)
        value = None if member is None else getattr(message, member)
        if member is None or value is False:
            members = (field.name for field in message.DESCRIPTOR.oneofs_by_name[name].fields)
            raise ValueError(f"{name} is not set; give one of {', '.join(members)}")
        found = {"kind": hints["kind"](member)}
        if isinstance(value, Message):
            others = {each: hint for each, hint in hints.items() if each not in ("kind", "value")}
            found |= self.read_fields(kind, others, value)
        elif value is not True:
            found["value"] = value
        return kind(**found)

    def _read_field(self, hint: Any, field: _Field, message: Message) -> Any:
        if field.has_presence and not message.HasField(field.name):
            if type(None) in typing.get_args(hint):
                return None
            if field.message_type is None:
                return _ABSENT
        hint, raw = _some(hint), getattr(message, field.name)
        if _is_map(field):
            return dict(raw)
        if not field.is_repeated:
            return self._read_one(hint, raw, field)
        arguments = typing.get_args(hint)
        if not _is_mapping(hint):
            kind = list if typing.get_origin(hint) is list else tuple
            return kind(self._read_one(arguments[0], each, field) for each in raw)
        key, value = arguments
        found = {}
        for each in raw:
            is_tuple = typing.get_origin(key) is tuple
            parts = typing.get_args(key) if is_tuple else (key,)
            *first, last = self._read_tuple((*parts, value), each)
            name = tuple(first) if is_tuple else first[0]
            if name in found:
                raise ValueError(f"{field.name}: {name!r} stands there twice")
            found[name] = last
        return found

    def _read_one(self, hint: Any, raw: Any, field: _Field) -> Any:
        if isinstance(raw, Message):
            if _is_record(hint):
                return self._read_record(hint, raw)
            return self._read_tuple(typing.get_args(hint), raw)
        if field.enum_type is not None:
            return _member_of(hint, raw, field)
        return raw.hex() if isinstance(raw, bytes) and hint is str else raw

    def _read_tuple(self, hints: tuple[Any, ...], message: Message) -> tuple[Any, ...]:
        """The fields of a message in their order."""
        names = _ordered(message.DESCRIPTOR)
        found = self.read_fields(hints, dict(zip(names, hints, strict=True)), message)
        return tuple(found.values())

    # -- into messages --------------------------------------------------------------------------

    def make(self, kind: type[M], **values: Any) -> M:
        """A message with these fields.

        Raises:
            TypeError: A value is of another type than its field.
            ValueError: A number does not fit. Both name the field, which protobuf does not.
        """
        fields = kind.DESCRIPTOR.fields_by_name
        return _filled(kind, {name: self._wire(fields[name], v) for name, v in values.items()})

    def answer(self, kind: type[M], value: Any) -> M:
        """The message for a value; a value that is no dataclass is the message's only field."""
        fields = kind.DESCRIPTOR.fields
        if value is None or not fields:
            return kind()
        if not _is_record(type(value)):
            return self.make(kind, **{fields[0].name: value})
        made: M = self._message(kind.DESCRIPTOR, value)
        return made

    def _message(self, descriptor: _Descriptor, value: Any) -> Any:
        message, kind = GetMessageClass(descriptor), type(value)
        if isinstance(value, Mapping):
            return self.make(message, **value)
        if not _is_record(kind):
            names = _ordered(descriptor)
            found = dict(zip(names, value, strict=False))
            error = found.pop("error", None)
            if error is not None:
                found |= {"error_reason": error.reason, "error_message": str(error)}
            return self.make(message, **found)
        key = kind, descriptor.full_name
        if key not in self._writers:
            self._writers[key] = [
                (field.name, getter, None if _is_plain(field) else partial(self._wire, field))
                for field in descriptor.fields
                if (getter := self._getter(kind, field))
            ]
        found = {}
        for name, getter, convert in self._writers[key]:
            part = getter(value)
            if part is not None:
                found[name] = part if convert is None else convert(part)
        return _filled(message, found)

    def _getter(self, kind: Any, field: _Field) -> _Get | None:
        """The function that finds a field's value: an attribute, a part's, or the value itself."""
        if field.name in ("error_reason", "error_message"):
            return partial(_error_field, field.name)
        name, hints = self._attributes.get(kind, {}).get(field.name, field.name), _hints(kind)
        if name in hints and (not _is_nested(field) or _takes_message(hints[name])):
            return attrgetter(name)
        if _is_nested(field):
            return lambda value: value
        if hasattr(kind, name):
            return attrgetter(name)
        for part, hint in hints.items():
            inner = self._getter(_some(hint), field) if _is_record(_some(hint)) else None
            if inner is not None:
                return partial(_of_part, attrgetter(part), inner)
        return None

    def _wire(self, field: _Field, value: Any) -> Any:
        """A value as protobuf takes it for a field."""
        if value is None:
            return None
        if _is_map(field):
            return dict(value)
        if not field.is_repeated:
            return self._wire_one(field, value)
        if isinstance(value, Mapping):
            value = [
                (*key, each) if isinstance(key, tuple) else (key, each)
                for key, each in value.items()
            ]
        return [self._wire_one(field, each) for each in value]

    def _wire_one(self, field: _Field, value: Any) -> Any:
        if field.message_type is not None:
            return value if isinstance(value, Message) else self._message(field.message_type, value)
        if field.enum_type is not None and isinstance(value, Enum):
            return _numbers_of(field.enum_type)[value.name]
        if field.type == FieldDescriptor.TYPE_BYTES and isinstance(value, str):
            return bytes.fromhex(value)
        return value


def _of_part(part: _Get, inner: _Get, value: Any) -> Any:
    """A value out of a part of a value; None where there is no such part."""
    found = part(value)
    return None if found is None else inner(found)


def _error_field(name: str, value: Any) -> str:
    error = value.error
    if error is None:
        return ""
    return str(error.reason if name == "error_reason" else error)


def _ordered(descriptor: _Descriptor) -> list[str]:
    """The fields of a message in their order; both parts of an error are one, `error`."""
    names = [field.name for field in descriptor.fields if field.name != "error_message"]
    return ["error" if name == "error_reason" else name for name in names]


def _member_of(kind: Any, number: int, field: _Field) -> Any:
    name = _names_of(field.enum_type).get(number, "")
    if name in kind.__members__:
        return kind[name]
    known = ", ".join(each for each in _numbers_of(field.enum_type) if each in kind.__members__)
    if field.is_repeated:
        raise ValueError(f"{field.name}: {number} is not one of {known}")
    raise ValueError(f"{field.name} is not set; give one of {known}")


def _is_record(hint: Any) -> bool:
    return isinstance(hint, type) and (dataclasses.is_dataclass(hint) or hasattr(hint, "_fields"))


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    if dataclasses.is_dataclass(kind):
        return {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return {name: hints[name] for name in kind._fields}


def _some(hint: Any) -> Any:
    arguments = [each for each in typing.get_args(hint) if each is not types.NoneType]
    return arguments[0] if len(arguments) < len(typing.get_args(hint)) else hint


def _takes_message(hint: Any) -> bool:
    hint = _some(hint)
    return _is_record(hint) or typing.get_origin(hint) is tuple


def _is_mapping(hint: Any) -> bool:
    origin = typing.get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Mapping)


def _is_plain(field: _Field) -> bool:
    """Whether values of the field are the same on both sides."""
    is_special = field.message_type is not None or field.enum_type is not None
    return not (is_special or field.is_repeated or field.type == FieldDescriptor.TYPE_BYTES)


def _is_map(field: _Field) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_nested(field: _Field) -> bool:
    return field.message_type is not None and not field.is_repeated


@cache
def _names_of(enum: _Descriptor) -> dict[int, str]:
    """The names of an enum's numbers without their common prefix."""
    prefix = re.sub(r"(?<!^)(?=[A-Z])", "_", enum.name).upper() + "_"
    return {value.number: value.name.removeprefix(prefix) for value in enum.values}


@cache
def _numbers_of(enum: _Descriptor) -> dict[str, int]:
    return {name: number for number, name in _names_of(enum).items()}


def _filled(kind: type[M], fields: Mapping[str, Any]) -> M:
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            _check(kind, name, value)
        raise


def _check(kind: type[Message], name: str, value: Any) -> None:
    """Refuses what does not fit a field, by the field's name."""
    field = kind.DESCRIPTOR.fields_by_name[name]
    each = f"each of {name}" if isinstance(value, list | tuple) else name
    bounds = _BOUNDS.get(field.cpp_type)
    try:
        kind(**{name: value})
    except TypeError:
        word = "int" if bounds else _WORDS.get(field.type, "of another type")
        raise TypeError(f"{each} must be {word}, not {value!r}") from None
    except ValueError as error:
        if bounds is None:
            raise ValueError(f"{each} can not be {value!r}: {error}") from None
        least, most = bounds
        raise ValueError(f"{each} must be {least} to {most}, not {value!r}") from None
