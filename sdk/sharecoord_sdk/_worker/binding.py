"""What a handler's parameters are filled with: the message, its value, or both.

Everything that can be wrong with them is told when the handler is registered.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._core.records import Message
from sharecoord_sdk._values.plain import name_of
from sharecoord_sdk.values import BadValueError, UnreadableTypeError, ValueReader, value_reader

from .handlers import Handler

#: `Reject`, `Retry`, one of them made, or a function of message and error that gives one.
OnBadValue = type[Reject] | type[Retry] | Reject | Retry | Callable[[Message, BadValueError], Any]

_EMPTY: Final = inspect.Parameter.empty
_PLACES: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_STAR: Final = inspect.Parameter.VAR_POSITIONAL
#: Names that count as messages though nothing at run time says what they are.
_MESSAGE_NAMES: Final = ("Message", "Messages")


def with_values(handler: Handler, value: Any, on_bad_value: Any) -> Handler:
    """A handler whose function takes messages, whatever it took.

    Raises:
        TypeError: See `bind`.
    """
    binding = bind(
        handler.function,
        name=handler.name,
        is_batch=bool(handler.batch),
        value=value,
        on_bad_value=on_bad_value,
    )
    function = binding.applied(handler.function, is_async=handler.is_async)
    return replace(handler, function=function, takes=binding.text)


class _Unknown:
    """A hint that can not be resolved."""

    def __init__(self, text: str, why: str) -> None:
        self.text = text
        self.why = why


class Binding:
    """How the records of a handler become its arguments.

    Attributes:
        text: For people: `message`, `value Order`, `message, value Order`.
    """

    def __init__(
        self, read: ValueReader | None, *, with_message: bool, on_bad_value: OnBadValue, text: str
    ) -> None:
        self.text = text
        self._read = read
        self._with_message = with_message
        self._on_bad_value = on_bad_value

    def applied(self, function: Callable[..., Any], *, is_async: bool) -> Callable[[Any], Any]:
        """The function as one of the message alone."""
        read = self._read
        if read is None:
            return function
        arguments = self._arguments

        if is_async:

            @functools.wraps(function)
            async def call_async(message: Message) -> Any:
                return await function(*arguments(message))

            return call_async

        @functools.wraps(function)
        def call(message: Message) -> Any:
            return function(*arguments(message))

        return call

    def _arguments(self, message: Message) -> tuple[Any, ...]:
        assert self._read is not None, "has a value"
        try:
            value = self._read(message)
        except BadValueError as error:
            raise self._outcome(message, error) from error
        return (message, value) if self._with_message else (value,)

    def _outcome(self, message: Message, error: BadValueError) -> Exception:
        reason, found = f"bad value: {error}", self._on_bad_value
        if not isinstance(found, type | Reject | Retry):
            found = found(message, error)
        if isinstance(found, Reject | Retry):
            return found
        if found is Reject:
            return Reject(reason)
        if found is Retry:
            return Retry(reason=reason)
        text = f"on_bad_value must give Reject or Retry, not {found!r}, for a {reason}"
        return TypeError(text)


def bind(
    function: Callable[..., Any],
    *,
    name: str,
    is_batch: bool = False,
    value: Any = None,
    on_bad_value: Any = Reject,
) -> Binding:
    """Finds out what a handler wants.

    Args:
        function: The handler.
        name: For errors.
        is_batch: Whether it takes lists of messages: these have no values.
        value: What reads the value (a type, or a callable of the bytes); None = the hints say it.
        on_bad_value: What becomes of a record whose value can not be read.

    Raises:
        TypeError: A parameter that nobody fills, a hint that nothing reads, or arguments of another
            type; it names the handler and the parameter.
    """
    check_on_bad_value(on_bad_value)
    wanted = _needed(function, name)
    if is_batch:
        if value is not None:
            raise TypeError(f"handler {name}: value= does not go with batch=; use value_reader()")
        _check_batch(function, wanted, name)
        return Binding(None, with_message=True, on_bad_value=on_bad_value, text="messages")
    if wanted is None:
        if value is not None:
            # Nobody knows what it takes: the value then.
            read = _reader(value, name, "value=")
            text = f"value {name_of(value)}"
            return Binding(read, with_message=False, on_bad_value=on_bad_value, text=text)
        wanted = []
    hints = [_hint(function, each) for each in wanted]
    return _bound(name, wanted, hints, value, on_bad_value)


def _bound(
    name: str,
    wanted: list[inspect.Parameter],
    hints: list[Any],
    value: Any,
    on_bad_value: OnBadValue,
) -> Binding:
    if len(wanted) > 2:
        raise TypeError(
            f"handler {name}: nobody fills parameter {wanted[2].name!r}; a handler takes the"
            " message, the value, or both"
        )
    if len(wanted) == 2:
        first, hint = hints
        if not _is_message(first):
            raise TypeError(
                f"handler {name}: parameter {wanted[0].name!r} must be the message (Message), the"
                f" value comes second"
            )
        if value is None and (hint is _EMPTY or _is_message(hint)):
            raise TypeError(
                f"handler {name}: nobody fills parameter {wanted[1].name!r}; say with a type hint"
                " or value= what the value is"
            )
    elif value is None and (not wanted or _is_message(hints[0])):
        return Binding(None, with_message=True, on_bad_value=on_bad_value, text="message")
    elif value is not None and wanted and _is_message(hints[0], by_name=True):
        raise TypeError(f"handler {name}: value= is given, and nothing takes the value")
    with_message = len(wanted) == 2
    place = f"parameter {wanted[-1].name!r}" if wanted else "value="
    kind = hints[-1] if value is None else value
    text = f"value {name_of(kind)}"
    return Binding(
        _reader(kind, name, place),
        with_message=with_message,
        on_bad_value=on_bad_value,
        text=f"message, {text}" if with_message else text,
    )


def _reader(kind: Any, name: str, place: str) -> ValueReader:
    if isinstance(kind, _Unknown):
        raise TypeError(f"handler {name}, {place}: the hint {kind.text!r} is unknown: {kind.why}")
    if not callable(kind) and typing.get_origin(kind) is None:
        raise TypeError(f"handler {name}, {place}: {kind!r} is neither a type nor callable")
    try:
        return value_reader(kind)
    except UnreadableTypeError as error:
        raise TypeError(
            f"handler {name}, {place}: {error}; use Message, bytes, str, dict, list, a dataclass, a"
            " pydantic model, a Protobuf class, an @avro class, or value=callable"
        ) from error


def _needed(function: Callable[..., Any], name: str) -> list[inspect.Parameter] | None:
    """The parameters that must be filled; None = nobody knows."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    if any(each.kind is _STAR for each in parameters):
        return None
    places = [each for each in parameters if each.kind in _PLACES]
    needed = [each for each in places if each.default is _EMPTY] or places[:1]
    if not needed:
        raise TypeError(f"handler {name}: it takes nothing; a handler takes the message")
    for each in parameters:
        if each.kind is inspect.Parameter.KEYWORD_ONLY and each.default is _EMPTY:
            raise TypeError(
                f"handler {name}: nobody fills parameter {each.name!r}; a handler takes the"
                " message, the value, or both, by position"
            )
    return needed


def _check_batch(
    function: Callable[..., Any], wanted: list[inspect.Parameter] | None, name: str
) -> None:
    if wanted is None:
        return
    if len(wanted) > 1:
        raise TypeError(
            f"handler {name}: nobody fills parameter {wanted[1].name!r}; a handler of batches"
            " takes a list of messages"
        )
    hint = _hint(function, wanted[0])
    args = typing.get_args(hint)
    if args and not isinstance(hint, _Unknown) and not _is_message(args[0]):
        raise TypeError(
            f"handler {name}, parameter {wanted[0].name!r}: a handler of batches takes"
            f" list[Message], not {name_of(hint)}; read values with value_reader()"
        )


def _hint(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    found = parameter.annotation
    if not isinstance(found, str):
        return found
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    if not hasattr(inner, "__globals__"):
        inner = getattr(inner, "__func__", None) or getattr(type(inner), "__call__", inner)  # noqa: B004
    names = dict(getattr(inner, "__globals__", {}))
    cells, free = getattr(inner, "__closure__", None), getattr(inner, "__code__", None)
    if cells and free is not None:
        names |= {n: c.cell_contents for n, c in zip(free.co_freevars, cells, strict=True)}
    try:
        # As `typing.get_type_hints` does, for this parameter alone.
        return eval(found, names)
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it is told
        return _Unknown(found, f"{type(error).__name__}: {error}")


def _is_message(hint: Any, *, by_name: bool = False) -> bool:
    """Whether a parameter takes the message; by name = it says so itself."""
    if hint in (_EMPTY, Any, object) or isinstance(hint, typing.TypeVar):
        return not by_name
    if isinstance(hint, _Unknown):
        # Under TYPE_CHECKING alone.
        return hint.text.rpartition(".")[2].strip("'\"") in _MESSAGE_NAMES
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return Message in typing.get_args(hint)
    return isinstance(hint, type) and issubclass(hint, Message)


def check_on_bad_value(found: Any) -> None:
    """Refuses what gives no outcome.

    Raises:
        TypeError: It gives none.
    """
    is_outcome = found in (Reject, Retry) or isinstance(found, Reject | Retry)
    if not is_outcome and (isinstance(found, type) or not callable(found)):
        raise TypeError(
            f"on_bad_value must be Reject, Retry, one of them made, or a function, not {found!r}"
        )
