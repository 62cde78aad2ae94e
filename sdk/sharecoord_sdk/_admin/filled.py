"""Messages of admin calls, with errors that name the argument."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

M = TypeVar("M", bound=Message)

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


def filled(kind: type[M], **fields: Any) -> M:
    """A message with these fields; those that are None are left out.

    Raises:
        TypeError: A field is of another type.
        ValueError: A number does not fit. Both name the field, which protobuf does not.
    """
    try:
        return kind(**fields)
    except (TypeError, ValueError):
        for name, value in fields.items():
            _check(kind, name, value)
        raise


def _check(kind: type[Message], name: str, value: Any) -> None:
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
