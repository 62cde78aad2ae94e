"""Values of records as types: what a handler's type hint means, and how a value is read.

    @worker.handler("orders")
    async def handle(order: Order) -> None: ...

    @worker.handler("returns", batch=100)
    async def store(orders: list[Order]) -> None: ...

| hint | the value is |
|---|---|
| `bytes`, `str` | as it is; UTF-8 |
| `dict`, `list`, `dict[str, X]`, `list[X]`, a dataclass | JSON, strict; unknown fields pass |
| a pydantic model | JSON, by the model's rules |
| a class that protoc made | Protobuf |
| a class with `@avro(...)` (`sharecoord_sdk.contrib.avro`) | Avro |
| `X | None` | one of these; a null value is None |

Nothing is imported for a hint: pydantic and fastavro are the application's.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage

from ._core.deserializing import MessageField, SerializationContext
from ._core.records import Message
from ._values.plain import (
    BadValueError,
    UnreadableTypeError,
    converter,
    is_pydantic,
    name_of,
    pydantic_converter,
    pydantic_error,
    shown,
)

__all__ = ["BadValueError", "UnreadableTypeError", "ValueReader", "value_reader"]

#: Makes the value of a message.
ValueReader = Callable[[Message], Any]

#: A class that brings its own reader has it here: `callable(bytes, context) -> object`.
READER_ATTRIBUTE: Final = "__sharecoord_reader__"

_Read = Callable[[Any, Message], Any]


def value_reader(hint: Any) -> ValueReader:
    """Makes what reads values as a type; what `Worker` uses, for other places.

    Args:
        hint: A type of the table above, or a callable `(bytes)` or `(bytes, context)` that is no
            class, such as Confluent's deserializers. What it raises makes a value bad, unless it
            has an attribute `tells_bad_values`: then `BadValueError` alone does.

    Returns:
        A function of a message. It raises `BadValueError` when the value is not of this type. What
        a schema resolver raises passes as it is: the value may be all right.

    Raises:
        UnreadableTypeError: Nothing reads values as this type.
    """
    if _is_function(hint):
        return _with_callable(hint)
    args = typing.get_args(hint)
    takes_null = typing.get_origin(hint) in (typing.Union, types.UnionType) and type(None) in args
    kept = [each for each in args if each is not type(None)]
    wanted = kept[0] if takes_null and len(kept) == 1 else hint
    read, name = _reader_of(wanted), name_of(wanted)
    kind = wanted if isinstance(wanted, type) and typing.get_origin(wanted) is None else ()

    def read_value(message: Message) -> Any:
        data = message.value()
        if isinstance(data, bytes):
            return read(data, message)
        if data is None:
            if takes_null:
                return None
            raise BadValueError(f"the value is null; `{name} | None` takes nulls")
        # Middleware has set it, maybe as what it is to become.
        if isinstance(data, kind):
            return data
        return read(bytes(data) if isinstance(data, bytearray | memoryview) else data, message)

    return read_value


def _is_function(hint: Any) -> bool:
    """Whether it reads bytes itself; forms of `typing` (Never, a NewType) are callable, too."""
    is_form = type(hint).__module__ == "typing"
    return (
        callable(hint)
        and not (isinstance(hint, type) or is_form)
        and typing.get_origin(hint) is None
    )


def _reader_of(hint: Any) -> _Read:
    if hint is bytes:
        return lambda data, _: _bytes(data)
    if hint is str:
        return _text
    own = getattr(hint, READER_ATTRIBUTE, None) if isinstance(hint, type) else None
    if own is not None:
        return _in_context(own)
    if isinstance(hint, type) and issubclass(hint, ProtobufMessage):
        return _protobuf(hint)
    if is_pydantic(hint):
        return _pydantic(hint)
    if hint in (Any, object):
        raise UnreadableTypeError("nothing says how values are read")
    convert = converter(hint)
    return lambda data, _: convert(_json(data) if isinstance(data, bytes | str) else data, "")


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes):
        raise BadValueError(f"must be bytes, not {shown(data)}")
    return data


def _text(data: Any, _: Message) -> str:
    try:
        return _bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValueError(f"is no UTF-8: {error}") from error


def _json(data: bytes | str) -> Any:
    try:
        return json.loads(data, parse_constant=_no_constant)
    except ValueError as error:
        raise BadValueError(f"is no JSON: {error}") from error
    except RecursionError as error:
        raise BadValueError("is no JSON that can be read: nested too deep") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _pydantic(hint: Any) -> _Read:
    convert = pydantic_converter(hint)

    def read(data: Any, _: Message) -> Any:
        if not isinstance(data, bytes | str):
            return convert(data, "")
        try:
            return hint.model_validate_json(data)
        except ValueError as error:
            raise pydantic_error(error) from error

    return read


def _protobuf(hint: type[ProtobufMessage]) -> _Read:
    def read(data: Any, _: Message) -> Any:
        found = hint()
        try:
            found.ParseFromString(_bytes(data))
        except DecodeError as error:
            raise BadValueError(f"is no {hint.DESCRIPTOR.full_name}: {error}") from error
        if not found.IsInitialized():
            missing = ", ".join(found.FindInitializationErrors())  # type: ignore[attr-defined]
            raise BadValueError("is missing", missing)
        return found

    return read


def _with_callable(function: Callable[..., Any]) -> ValueReader:
    read = _in_context(function)
    tells = getattr(function, "tells_bad_values", False)

    def read_value(message: Message) -> Any:
        try:
            return read(message.value(), message)
        except BadValueError:
            raise
        except Exception as error:
            if tells:
                raise
            raise BadValueError(f"{type(error).__name__}: {error}") from error

    return read_value


def _in_context(function: Callable[..., Any]) -> _Read:
    """Calls the function with the bytes alone, or also with topic and headers."""
    if not _takes_two(function):
        return lambda data, _: function(data)

    def read(data: Any, message: Message) -> Any:
        topic = message.topic() or ""
        return function(data, SerializationContext(topic, MessageField.VALUE, message.headers()))

    return read


def _takes_two(function: Callable[..., Any]) -> bool:
    try:
        parameters: Mapping[str, inspect.Parameter] = inspect.signature(function).parameters
    except (TypeError, ValueError):
        # Built in: they take bytes.
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    places = [each for each in parameters.values() if each.kind in positional]
    needed = [each for each in places if each.default is inspect.Parameter.empty]
    # Confluent's take (value, ctx=None).
    return len(needed) == 2 or [each.name for each in places[1:2]] == ["ctx"]
