"""Strict conversion of what JSON (or Avro) gives into types: dataclasses, lists, unions, enums.

A converter is made once per type, so that a type that nothing can be made of is told when a
handler is registered. It takes a value and where it stands (`lines[2].price`), which errors name.
Nothing is guessed: no number becomes text, no text a number. Only fields that a dataclass does not
have are passed over: a producer may add one before its consumers know it. Where several dataclasses
are possible, the one that has most of the fields comes first.
"""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

from sharecoord_sdk._core.errors import PicklableError

Convert = Callable[[Any, str], Any]

_UNIONS: Final = (typing.Union, types.UnionType)
_LISTS: Final = (list, Sequence)
_SETS: Final = (set, frozenset)
_DICTS: Final = (dict, Mapping)


class BadValueError(PicklableError, ValueError):
    """The value of a record is not what was asked for; the text names the field and why."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.why = why
        self.where = where


class UnreadableTypeError(TypeError):
    """Nothing reads values of this type."""


def converter(hint: Any, *, native: bool = False) -> Convert:
    """Makes what turns a value into a type.

    Args:
        hint: The type.
        native: Whether bytes, times and decimals come as such (Avro), not as text (JSON).

    Raises:
        UnreadableTypeError: Nothing can be made of it.
    """
    return _ConverterFactory(native=native).make(hint)


class _ConverterFactory:
    def __init__(self, *, native: bool) -> None:
        self._native = native
        # The converters of dataclasses, which may hold themselves.
        self._known: dict[Any, Convert] = {}

    def make(self, hint: Any) -> Convert:
        simple = _SIMPLE.get(hint) if isinstance(hint, type) else None
        if hint in (Any, object):
            return lambda value, _: value
        if hint is None or hint is type(None):
            return _null
        if simple is not None:
            return simple
        if isinstance(hint, type) and hint in _TEXTS:
            return _from_text(hint, native=self._native)
        if hint is bytes and self._native:
            return _exactly(bytes, "bytes")
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            return _enum(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self._dataclass(hint)
        if is_pydantic(hint):
            return pydantic_converter(hint)
        return self._generic(hint)

    def _generic(self, hint: Any) -> Convert:
        origin, args = typing.get_origin(hint) or hint, typing.get_args(hint)
        if _bare(hint) is not hint:
            return self.make(_bare(hint))
        if origin is typing.Literal:
            return _literal(args)
        if origin in _UNIONS:
            return _union([self.make(each) for each in args], args)
        if origin in _SETS:
            return self._set(origin, args[0] if args else Any)
        if origin in _LISTS:
            return _items(list, self.make(args[0] if args else Any))
        if origin is tuple:
            return self._tuple(args)
        if origin in _DICTS:
            return self._dict(args)
        if isinstance(hint, str | typing.ForwardRef):
            name = getattr(hint, "__forward_arg__", hint)
            raise UnreadableTypeError(
                f"{name!r} is a text inside a type; write {name} without quotes, or quote all of it"
            )
        raise UnreadableTypeError(f"nothing reads {name_of(hint)}")

    def _set(self, kind: Any, item: Any) -> Convert:
        convert = _items(list, self.make(item))
        found = unhashable(item)
        if found is not None:
            raise UnreadableTypeError(
                f"a {kind.__name__} can not hold {name_of(found)}, which has no hash; use list"
                " (or a frozen dataclass without lists, sets and dicts)"
            )

        def convert_set(value: Any, where: str) -> Any:
            items = convert(value, where)
            try:
                return kind(items)
            except TypeError as error:
                # An item of a set of Any.
                raise BadValueError(f"can not be in a {kind.__name__}: {error}", where) from error

        return convert_set

    def _dict(self, args: tuple[Any, ...]) -> Convert:
        if len(args) == 1:
            raise UnreadableTypeError("dict needs two types, as dict[str, X]")
        if args and args[0] not in (str, Any):
            if isinstance(args[0], str | typing.ForwardRef):
                self._generic(args[0])
            raise UnreadableTypeError(f"names are str, not {name_of(args[0])}")
        make = self.make(args[1] if args else Any)

        def convert(value: Any, where: str) -> Any:
            _must_be(value, dict, where, "an object")
            return {key: make(each, _at(where, key)) for key, each in value.items()}

        return convert

    def _tuple(self, args: tuple[Any, ...]) -> Convert:
        if not args or args[-1] is ...:
            return _items(tuple, self.make(args[0] if args else Any))
        makes = [self.make(each) for each in args]

        def convert(value: Any, where: str) -> Any:
            _must_be(value, list, where, f"a list of {len(makes)}")
            if len(value) != len(makes):
                raise BadValueError(f"must have {len(makes)} entries, not {len(value)}", where)
            return tuple(
                make(each, f"{where}[{at}]")
                for at, (make, each) in enumerate(zip(makes, value, strict=True))
            )

        return convert

    def _dataclass(self, hint: Any) -> Convert:
        if hint in self._known:
            # Inside itself: the converter is known by the time it is called.
            return lambda value, where: self._known[hint](value, where)  # noqa: PLW0108
        self._known[hint] = _null
        makes, needed = self._fields(hint)

        def convert(value: Any, where: str) -> Any:
            _must_be(value, dict, where, "an object")
            fields: dict[str, Any] = {}
            for name, each in value.items():
                if name in makes:
                    fields[name] = makes[name](each, _at(where, name))
            for name in needed:
                if name not in fields:
                    raise BadValueError("is missing", _at(where, name))
            return _made(hint, fields, where)

        self._known[hint] = convert
        return convert

    def _fields(self, hint: Any) -> tuple[dict[str, Convert], list[str]]:
        """The converters of a dataclass's fields, and which of them have no default."""
        try:
            hints = typing.get_type_hints(hint, include_extras=True)
        except Exception as error:
            # A hint that can not be resolved may raise anything.
            text = f"{hint.__qualname__}: {type(error).__name__}: {error}"
            raise UnreadableTypeError(text) from error
        makes: dict[str, Convert] = {}
        needed: list[str] = []
        for field in dataclasses.fields(hint):
            if not field.init:
                continue
            try:
                makes[field.name] = self.make(hints[field.name])
            except UnreadableTypeError as error:
                raise UnreadableTypeError(f"{hint.__qualname__}.{field.name}: {error}") from error
            missing = dataclasses.MISSING
            if field.default is missing and field.default_factory is missing:
                needed.append(field.name)
        return makes, needed


def _made(hint: Any, fields: dict[str, Any], where: str) -> Any:
    try:
        return hint(**fields)
    except (ValueError, TypeError) as error:
        # The class's own checks have raised.
        raise BadValueError(str(error) or type(error).__name__, where) from error


def _bare(hint: Any) -> Any:
    """The type under `Annotated` and `NewType`."""
    while typing.get_origin(hint) is typing.Annotated or hasattr(hint, "__supertype__"):
        hint = getattr(hint, "__supertype__", None) or typing.get_args(hint)[0]
    return hint


def unhashable(hint: Any, seen: frozenset[Any] = frozenset()) -> Any:
    """The type of an item that no set can hold, or None when all of them have a hash."""
    hint = _bare(hint)
    kind: Any = typing.get_origin(hint) or hint
    if kind in (Sequence, Mapping) or (isinstance(kind, type) and kind.__hash__ is None):
        return hint
    inner: Sequence[Any] = ()
    if kind is tuple or kind in _UNIONS:
        inner = typing.get_args(hint)
    elif isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind not in seen:
        # A dataclass hashes its fields.
        seen |= {kind}
        inner = list(typing.get_type_hints(kind, include_extras=True).values())
    found = (unhashable(each, seen) for each in inner)
    return next((each for each in found if each is not None), None)


def _at(where: str, name: Any) -> str:
    return f"{where}.{name}" if where else str(name)


def _must_be(value: Any, kind: type, where: str, what: str) -> None:
    if not isinstance(value, kind):
        raise BadValueError(f"must be {what}, not {shown(value)}", where)


def shown(value: Any) -> str:
    """A value for people, short."""
    if value is None:
        return "null"
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def name_of(hint: Any) -> str:
    """A type for people."""
    return hint.__qualname__ if isinstance(hint, type) else str(hint).replace("typing.", "")


# -- single values --------------------------------------------------------------------------------


def _null(value: Any, where: str) -> None:
    if value is not None:
        raise BadValueError(f"must be null, not {shown(value)}", where)


def _exactly(kind: type, what: str) -> Convert:
    def convert(value: Any, where: str) -> Any:
        _must_be(value, kind, where, what)
        return kind(value)

    return convert


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValueError(f"must be an integer, not {shown(value)}", where)
    return value


def _number(value: Any, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadValueError(f"must be a number, not {shown(value)}", where)
    try:
        return float(value)
    except OverflowError as error:
        raise BadValueError("is too large", where) from error


_SIMPLE: Final[dict[type, Convert]] = {
    str: _exactly(str, "text"),
    bool: _exactly(bool, "true or false"),
    int: _integer,
    float: _number,
}

_TEXTS: Final[dict[Any, Callable[[str], Any]]] = {
    datetime: datetime.fromisoformat,
    date: date.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}


def _from_text(hint: Any, *, native: bool) -> Convert:
    read = _TEXTS[hint]

    def convert(value: Any, where: str) -> Any:
        if native and type(value) is hint:
            return value
        _must_be(value, str, where, f"text of a {hint.__name__}")
        try:
            return read(value)
        except (ValueError, InvalidOperation) as error:
            text = f"is no {hint.__name__}: {shown(value)}"
            raise BadValueError(text, where) from error

    return convert


def _enum(hint: type[enum.Enum]) -> Convert:
    # By hand: True would pass for 1.
    members = [(each.value, each) for each in hint]
    if not members:
        raise UnreadableTypeError(f"{hint.__qualname__} has no members")

    def convert(value: Any, where: str) -> Any:
        for known, member in members:
            if type(known) is type(value) and known == value:
                return member
        names = ", ".join(repr(known) for known, _ in members)
        raise BadValueError(f"must be one of {names}, not {shown(value)}", where)

    return convert


def _literal(args: tuple[Any, ...]) -> Convert:
    def convert(value: Any, where: str) -> Any:
        if any(type(value) is type(each) and value == each for each in args):
            return value
        names = ", ".join(map(repr, args))
        raise BadValueError(f"must be one of {names}, not {shown(value)}", where)

    return convert


def _union(makes: Sequence[Convert], args: tuple[Any, ...]) -> Convert:
    choices = [(make, _field_names(each)) for make, each in zip(makes, args, strict=True)]
    has_fields = any(names is not None for _, names in choices)

    def unknown(value: dict[str, Any], names: frozenset[str] | None) -> int:
        return 0 if names is None else len(value.keys() - names)

    def convert(value: Any, where: str) -> Any:
        tried = choices
        if has_fields and isinstance(value, dict):
            tried = sorted(choices, key=lambda choice: unknown(value, choice[1]))
        errors: list[BadValueError] = []
        for make, _ in tried:
            try:
                return make(value, where)
            except BadValueError as error:
                errors.append(error)
        deepest = max(errors, key=lambda error: len(error.where))
        if len(deepest.where) > len(where):
            # Inside of one that fits so far: that says more.
            raise deepest
        names = " or ".join("null" if each is type(None) else name_of(each) for each in args)
        raise BadValueError(f"must be {names}, not {shown(value)}", where)

    return convert


def _field_names(hint: Any) -> frozenset[str] | None:
    """The names of a dataclass's fields; None for another type."""
    kind = _bare(hint)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return None
    return frozenset(field.name for field in dataclasses.fields(kind) if field.init)


def _items(kind: Any, make: Convert) -> Convert:
    def convert(value: Any, where: str) -> Any:
        _must_be(value, list, where, "a list")
        return kind(make(each, f"{where}[{at}]") for at, each in enumerate(value))

    return convert


# -- pydantic -------------------------------------------------------------------------------------


def is_pydantic(hint: Any) -> bool:
    """Whether this is a model of pydantic 2, which is not imported for it."""
    return isinstance(hint, type) and hasattr(hint, "__pydantic_validator__")


def pydantic_converter(hint: Any) -> Convert:
    def convert(value: Any, where: str) -> Any:
        try:
            return hint.model_validate(value)
        except ValueError as error:
            raise pydantic_error(error, where) from error

    return convert


def pydantic_error(error: ValueError, where: str = "") -> BadValueError:
    """The first of a model's complaints, and how many more there are."""
    found = error.errors() if hasattr(error, "errors") else []
    if not found:
        return BadValueError(str(error), where)
    for part in found[0]["loc"]:
        where = f"{where}[{part}]" if isinstance(part, int) else _at(where, part)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return BadValueError(f"{found[0]['msg']}{more}", where)
