"""Handlers as the application registers them: what they take, what they are called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from sharecoord_sdk._core.arguments import read_topics
from sharecoord_sdk._core.order import KEY, PARTITION

from .options import Behaviour, refuse_unbound

BATCH_MAX: Final = 100_000

_UNORDERED: Final = "unordered"
#: From the weakest to the strongest.
_ORDERS: Final = (_UNORDERED, KEY, PARTITION)

HandlerFunction = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler of a topic.

    Attributes:
        topic: The topic of its records.
        function: Takes a `Message`, or a list of them when `batch` is set; reads their values.
        name: For logs.
        is_async: Whether it is a coroutine function; others run on threads.
        batch: Most records of one call; 0 = one record, not in a list.
        behaviour: Its other settings.
        takes: The arguments of the application's function, for people.
    """

    topic: str
    function: HandlerFunction
    name: str
    is_async: bool
    batch: int = 0
    behaviour: Behaviour = field(default_factory=Behaviour)
    takes: str = "message"

    def described(self) -> dict[str, Any]:
        found = {
            "topic": self.topic,
            "handler": self.name,
            "kind": "async" if self.is_async else "plain, on a thread",
            "takes": self.takes,
        }
        return found | ({"batch": self.batch} if self.batch else {}) | self.behaviour.described()

    @property
    def records_max(self) -> int:
        return self.batch or 1


def read_handler(
    topic: object, function: object, batch: object, behaviour: Behaviour | None = None
) -> Handler:
    """Checks what `Worker.handler` was given.

    Raises:
        TypeError: Not a topic name, not callable, a generator, or a batch that is no integer.
        ValueError: A name that no topic has, or a batch out of bounds.
    """
    if not isinstance(topic, str):
        raise TypeError(f"topic must be str, not {type(topic).__name__}")
    read_topics([topic])
    if isinstance(function, classmethod):
        text = "a handler must not be a classmethod inside of its class; register it as Class.name"
        raise TypeError(text)
    if not callable(function):
        raise TypeError(f"a handler must be callable, not {type(function).__name__}")
    refuse_unbound(function, "handler")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError("a handler must not be a generator: nothing of it would run")
    if batch is not None and (not isinstance(batch, int) or isinstance(batch, bool)):
        raise TypeError(f"batch must be int or None, not {type(batch).__name__}")
    if batch is not None and not 1 <= batch <= BATCH_MAX:
        raise ValueError(f"batch must be 1 to {BATCH_MAX}, not {batch}")
    name = getattr(function, "__qualname__", None) or repr(function)
    function_is_async = is_async(function)
    return Handler(topic, function, name, function_is_async, batch or 0, behaviour or Behaviour())


def order_problem(handler: Handler, group: str, ordering: str, *, concurrency: int) -> str | None:
    """The warning for a handler that keeps another order than its group; None = it does not.

    An `ordering` that this SDK does not know is compared with nothing.
    """
    if ordering not in _ORDERS:
        return None
    mine, theirs = _ORDERS.index(handler.behaviour.ordering or _UNORDERED), _ORDERS.index(ordering)
    if mine > theirs:
        return (
            f"handler {handler.name} of {handler.topic} has ordering={_ORDERS[mine]!r}, and group "
            f"{group!r} share.ordering={ordering}: the order holds inside this worker alone; set "
            f"share.ordering={_ORDERS[mine]} for the group"
        )
    if mine < theirs and concurrency > 1:
        return (
            f"group {group!r} has share.ordering={ordering}, and handler {handler.name} of "
            f"{handler.topic} no such order: what the coordinator sends in order may run at the "
            f"same time; give the handler ordering={ordering!r}"
        )
    return None


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    if inspect.iscoroutinefunction(function):
        return True
    # An object whose class defines `async def __call__`.
    return inspect.iscoroutinefunction(getattr(type(function), "__call__", None))  # noqa: B004
