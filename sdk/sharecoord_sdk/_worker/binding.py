"""Arguments of handlers: the message, its value, or both; lists of them for batches.

Everything that can be wrong with them is told when the handler is registered.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, MutableSequence, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._core.records import Message, Messages
from sharecoord_sdk._values.plain import name_of
from sharecoord_sdk.values import BadValueError, UnreadableTypeError, ValueReader, value_reader

from .batches import read_batch
from .handlers import Handler
from .options import refuse_unbound

#: `Reject`, `Retry`, one of them made, or a function of message and error that gives one.
OnBadValue = type[Reject] | type[Retry] | Reject | Retry | Callable[[Message, BadValueError], Any]

_EMPTY: Final = inspect.Parameter.empty
_PLACES: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_STAR: Final = inspect.Parameter.VAR_POSITIONAL
_UNIONS: Final = (typing.Union, types.UnionType)
_LISTS: Final = (list, MutableSequence, Sequence, Collection, Iterable)
#: Names that count as messages though nothing at run time says what they are.
_MESSAGE_NAMES: Final = ("Message", "Messages")


def with_values(handler: Handler, value: Any, on_bad_value: Any) -> Handler:
    """The handler with a function of messages alone; TypeError as of `bind`."""
    binding = bind(
        handler.function,
        name=handler.name,
        is_batch=bool(handler.batch),
        value=value,
        on_bad_value=on_bad_value,
    )
    function = binding.applied(
        handler.function, is_async=handler.is_async, ordering=handler.behaviour.ordering
    )
    return replace(handler, function=function, takes=binding.text)


class _UnresolvedHint:
    """A hint that can not be resolved."""

    def __init__(self, text: str, why: str) -> None:
        self.text = text
        self.why = why


@dataclass(frozen=True, slots=True)
class Binding:
    """The way in which records become a handler's arguments; without `read` the message alone."""

    is_batch: bool
    on_bad_value: OnBadValue
    with_message: bool = True
    read: ValueReader | None = None
    #: What the value is read as.
    kind: Any = None
    #: Whether the messages of a batch come as `Messages`, because the hint says so.
    as_messages: bool = False

    @property
    def text(self) -> str:
        """For people: `message`, `value Order`, `message, value Order`; of batches in plural."""
        s = "s" if self.is_batch else ""
        named = [f"message{s}"] if self.with_message else []
        return ", ".join(named if self.read is None else [*named, f"value{s} {name_of(self.kind)}"])

    def applied(
        self, function: Callable[..., Any], *, is_async: bool, ordering: str | None = None
    ) -> Callable[[Any], Any]:
        """The function as a function of the message (of batches: the messages) alone."""
        if self.read is None and not self.as_messages:
            return function

        def prepared(given: Any) -> tuple[tuple[Any, ...] | None, Callable[[Any], Any]]:
            """Arguments (None: nothing can be read), and what completes the result."""
            if self.read is None:
                return (Messages(given),), lambda result: result
            if not self.is_batch:
                return self._arguments(given, self._value(given)), lambda result: result
            found = read_batch(given, self._value, ordering)
            if not found.messages:
                return None, found.of_all
            return self._arguments(found.messages, found.values), found.of_all

        if is_async:

            @functools.wraps(function)
            async def call_async(given: Any) -> Any:
                arguments, complete = prepared(given)
                return complete(None if arguments is None else await function(*arguments))

            return call_async

        @functools.wraps(function)
        def call(given: Any) -> Any:
            arguments, complete = prepared(given)
            return complete(None if arguments is None else function(*arguments))

        return call

    def _arguments(self, message: Any, value: Any) -> tuple[Any, ...]:
        if self.as_messages:
            message = Messages(message)
        return (message, value) if self.with_message else (value,)

    def _value(self, message: Message) -> Any:
        """Reads a value; raises the outcome of a record that can not be read."""
        assert self.read is not None, "has a value"
        try:
            return self.read(message)
        except BadValueError as error:
            raise self._outcome(message, error) from error

    def _outcome(self, message: Message, error: BadValueError) -> Exception:
        reason, found = f"bad value: {error}", self.on_bad_value
        if not isinstance(found, type | Reject | Retry):
            found = found(message, error)
        if isinstance(found, Reject | Retry):
            # The exception serves all records: it must not keep an earlier traceback.
            return found.with_traceback(None)
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
    """Finds out what a handler takes.

    Args:
        function: The handler.
        name: For errors.
        is_batch: Whether it takes lists.
        value: Reads the value of one record (a type, or a callable of the bytes); None = the hints
            say it.
        on_bad_value: The outcome of a record whose value can not be read.

    Raises:
        TypeError: A parameter that nobody fills, a hint that nothing reads, or arguments of another
            type; it names the handler and the parameter.
    """
    check_on_bad_value(on_bad_value)
    wanted = _needed(function, name)
    if wanted is None:
        # Nobody knows what it takes: the value, when somebody said what that is.
        if value is None:
            return Binding(is_batch, on_bad_value)
        read = _reader(value, name, "value=", is_batch=is_batch)
        return Binding(is_batch, on_bad_value, with_message=False, read=read, kind=value)
    hints = [_hint(function, each.annotation) for each in wanted]
    as_messages = is_batch and _is_messages(hints[0])
    if is_batch:
        hints = [
            _hint(function, _item(hint, name, each))
            for hint, each in zip(hints, wanted, strict=True)
        ]
    if not _takes_value(name, wanted, hints, value, is_batch=is_batch):
        return Binding(is_batch, on_bad_value, as_messages=as_messages)
    kind = hints[-1] if value is None else value
    read = _reader(kind, name, f"parameter {wanted[-1].name!r}", is_batch=is_batch)
    return Binding(is_batch, on_bad_value, len(wanted) == 2, read, kind, as_messages)


def _takes_value(
    name: str, wanted: list[inspect.Parameter], hints: list[Any], value: Any, *, is_batch: bool
) -> bool:
    """Whether a handler takes the value; TypeError for parameters that nobody fills."""
    who = "a handler of batches" if is_batch else "a handler"
    message, values = ("messages", "values") if is_batch else ("message", "value")
    if len(wanted) > 2:
        raise TypeError(
            f"handler {name}: nobody fills parameter {wanted[2].name!r}; {who} takes the"
            f" {message}, the {values}, or both"
        )
    if len(wanted) == 2:
        if not _is_message(hints[0]):
            hint, comes = ("list[Message]", "come") if is_batch else ("Message", "comes")
            raise TypeError(
                f"handler {name}: parameter {wanted[0].name!r} must be the {message} ({hint}),"
                f" the {values} {comes} second"
            )
        if value is None and (hints[1] is _EMPTY or _is_message(hints[1])):
            raise TypeError(
                f"handler {name}: nobody fills parameter {wanted[1].name!r}; say with a type hint"
                " or value= what the value is"
            )
    elif value is None and _is_message(hints[0]):
        return False
    elif value is not None and _is_message(hints[0], by_name=True):
        raise TypeError(f"handler {name}: value= is given, and nothing takes the value")
    if is_batch and value is not None and value == types.GenericAlias(list, (hints[-1],)):
        raise TypeError(
            f"handler {name}: value= says what the value of one record is; give"
            f" value={name_of(hints[-1])}, not {name_of(value)}"
        )
    return True


def _reader(kind: Any, name: str, place: str, *, is_batch: bool) -> ValueReader:
    if isinstance(kind, _UnresolvedHint):
        raise TypeError(f"handler {name}, {place}: the hint {kind.text!r} is unknown: {kind.why}")
    if not callable(kind) and typing.get_origin(kind) is None:
        raise TypeError(f"handler {name}, {place}: {kind!r} is neither a type nor callable")
    if not isinstance(kind, type) and typing.get_origin(kind) is None:
        refuse_unbound(kind, "value=")
    try:
        return value_reader(kind)
    except UnreadableTypeError as error:
        of = "lists of " if is_batch else ""
        raise TypeError(
            f"handler {name}, {place}: {error}; use {of}Message, bytes, str, dict, list, a"
            " dataclass, a pydantic model, a Protobuf class, an @avro class, or value=callable"
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


def _item(hint: Any, name: str, parameter: inspect.Parameter) -> Any:
    """The type of a list's items by the list's hint; TypeError for a hint of no list."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if isinstance(hint, _UnresolvedHint):
        inner = hint.text.partition("[")[2].removesuffix("]")
        return _UnresolvedHint(inner, hint.why) if inner else hint
    if hint in (_EMPTY, Any, object) or isinstance(hint, typing.TypeVar):
        return _EMPTY
    choices = typing.get_args(hint) if typing.get_origin(hint) in _UNIONS else (hint,)
    for each in choices:
        kind = typing.get_origin(each) or each
        if kind is Messages:
            return Message
        if kind in _LISTS:
            return next(iter(typing.get_args(each)), _EMPTY)
    shown = name_of(hint)
    raise TypeError(
        f"handler {name}, parameter {parameter.name!r}: a handler of batches takes lists; write"
        f" list[{shown}], not {shown}"
    )


def _hint(function: Callable[..., Any], found: Any) -> Any:
    """The type of an annotation where the function stands."""
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
        return _UnresolvedHint(found, f"{type(error).__name__}: {error}")


def _is_message(hint: Any, *, by_name: bool = False) -> bool:
    """Whether a parameter takes the message; `by_name` = its hint must say so."""
    if hint in (_EMPTY, Any, object) or isinstance(hint, typing.TypeVar):
        return not by_name
    if isinstance(hint, _UnresolvedHint):
        # Under TYPE_CHECKING alone.
        return hint.text.rpartition(".")[2].strip("'\"") in _MESSAGE_NAMES
    if typing.get_origin(hint) in _UNIONS:
        return Message in typing.get_args(hint)
    return isinstance(hint, type) and issubclass(hint, Message)


def _is_messages(hint: Any) -> bool:
    """Whether a hint of a batch says `Messages`."""
    if typing.get_origin(hint) is typing.Annotated:
        hint = typing.get_args(hint)[0]
    if isinstance(hint, _UnresolvedHint):
        name = hint.text.partition("[")[0].rpartition(".")[2]
        return name.strip("'\"") == Messages.__name__
    return (typing.get_origin(hint) or hint) is Messages


def check_on_bad_value(found: Any) -> None:
    """Refuses an `on_bad_value` that gives no outcome, by TypeError."""
    is_outcome = found in (Reject, Retry) or isinstance(found, Reject | Retry)
    if not is_outcome and (isinstance(found, type) or not callable(found)):
        raise TypeError(
            f"on_bad_value must be Reject, Retry, one of them made, or a function, not {found!r}"
        )
    if not is_outcome:
        refuse_unbound(found, "on_bad_value")
