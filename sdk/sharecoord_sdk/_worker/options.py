"""The options of `Worker.handler`, and their checks."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from sharecoord_sdk._core.order import KEY, PARTITION
from sharecoord_sdk._core.outcomes import Reject, Retry

_DAY_S: Final = 86_400.0
_FAILURES_MAX: Final = 10_000
_RATE_LEAST: Final = 0.001

#: The outcome of a failure: an instance, or one of the classes.
FailureOutcome = Retry | Reject | type[Retry] | type[Reject]
#: Takes a message and which attempt failed (1 = the first); seconds, None, or a `Reject`.
RetryFunction = Callable[[Any, int], "float | Reject | type[Reject] | None"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long a record waits after each failure of its handler.

    Attributes:
        first_s: After the first failure.
        multiplier: Each further failure makes the wait so many times longer.
        max_s: The longest wait.
        jitter: Which part of a wait is random: 0.2 = up to 20 % shorter or longer.

    Raises:
        TypeError: A value that is no number.
        ValueError: A value out of bounds.
    """

    first_s: float = 1.0
    multiplier: float = 2.0
    max_s: float = 300.0
    jitter: float = 0.2

    def __post_init__(self) -> None:
        number("first_s", self.first_s, 0, 7 * _DAY_S)
        number("multiplier", self.multiplier, 1, 100)
        number("max_s", self.max_s, 0, 30 * _DAY_S)
        number("jitter", self.jitter, 0, 1)

    def delay_s(self, attempt: int, chance: float) -> float:
        try:
            wait_s = self.first_s * math.pow(self.multiplier, attempt - 1)
        except OverflowError:
            wait_s = math.inf
        return min(wait_s, self.max_s) * (1 + self.jitter * (2 * chance - 1))


@dataclass(frozen=True, slots=True)
class Breaker:
    """Keeps a handler from records while what it depends on is down.

    After `failures` failures within `window_s` it opens: the topic is paused, and what waits goes
    back unseen. After `probe_after_s` one record tries; when it is handled the breaker closes, when
    it fails it stays open for as long again.

    Attributes:
        failures: So many open it.
        window_s: Within so many seconds.
        probe_after_s: How long it stays open before a record tries.
        errors: Which exceptions count; `Retry` and `Reject` only when they are named.

    Raises:
        TypeError: A value of another type.
        ValueError: A value out of bounds.
    """

    failures: int = 5
    window_s: float = 10.0
    probe_after_s: float = 30.0
    errors: tuple[type[BaseException], ...] = (Exception,)

    def __post_init__(self) -> None:
        if not isinstance(self.failures, int) or isinstance(self.failures, bool):
            raise TypeError(f"failures must be int, not {type(self.failures).__name__}")
        number("failures", self.failures, 1, _FAILURES_MAX)
        number("window_s", self.window_s, 0.001, _DAY_S)
        number("probe_after_s", self.probe_after_s, 0.001, _DAY_S)
        if not isinstance(self.errors, tuple) or not self.errors:
            raise TypeError("errors must be a tuple of exception classes")
        for each in self.errors:
            _exception_class("errors", each)

    def counts(self, error: BaseException) -> bool:
        """Whether an exception is a failure of the handler's dependency."""
        if isinstance(error, Retry | Reject):
            return any(
                issubclass(each, Retry | Reject) and isinstance(error, each) for each in self.errors
            )
        return isinstance(error, self.errors)


class BatchOutcome:
    """Outcomes of single messages of a batch, where they differ.

    Args:
        failed: By place in the list, from 0 on: `Retry`, `Reject`, or another exception. All others
            are accepted.

    Raises:
        TypeError: No mapping from places to exceptions.
    """

    __slots__ = ("failed",)

    def __init__(self, failed: Mapping[int, FailureOutcome | BaseException]) -> None:
        if not isinstance(failed, Mapping):
            raise TypeError(f"failed must be a mapping, not {type(failed).__name__}")
        for place, outcome in failed.items():
            if not isinstance(place, int) or isinstance(place, bool):
                raise TypeError(f"failed has places, not {place!r}")
            as_error(outcome)
        self.failed = dict(failed)


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The options of a handler beside its topic and its batch; see `Worker.handler`."""

    ordering: str | None = None
    retry: Backoff | RetryFunction | None = None
    on_error: Mapping[type[BaseException], FailureOutcome] = field(
        default_factory=lambda: MappingProxyType({})
    )
    timeout_s: float | None = None
    rate_per_s: float | None = None
    rate_per_key_per_s: float | None = None
    breaker: Breaker | None = None

    def described(self) -> dict[str, Any]:
        """The given options in words, by their names at `Worker.handler`."""
        told = {
            "ordering": self.ordering,
            "retry": self.retry and _words(self.retry),
            "on_error": {each.__name__: _words(what) for each, what in self.on_error.items()},
            "timeout": self.timeout_s,
            "rate_per_s": self.rate_per_s,
            "rate_per_key_per_s": self.rate_per_key_per_s,
            "breaker": self.breaker and _words(self.breaker),
        }
        return {name: value for name, value in told.items() if value}

    def __post_init__(self) -> None:
        if self.ordering not in (None, KEY, PARTITION):
            raise ValueError(f"ordering must be 'key', 'partition' or None, not {self.ordering!r}")
        if self.retry is not None and not isinstance(self.retry, Backoff):
            if not callable(self.retry) or inspect.isclass(self.retry):
                name = type(self.retry).__name__
                raise TypeError(f"retry must be Backoff(...) or a function, not {name}")
            if inspect.iscoroutinefunction(self.retry):
                raise TypeError("retry must be a plain function, not `async def`")
            refuse_unbound(self.retry, "retry")
        _check_map(self.on_error)
        if self.timeout_s is not None:
            number("timeout", self.timeout_s, 0.001, 7 * _DAY_S)
        if self.rate_per_s is not None:
            number("rate_per_s", self.rate_per_s, _RATE_LEAST, 1e6)
        if self.rate_per_key_per_s is not None:
            number("rate_per_key_per_s", self.rate_per_key_per_s, _RATE_LEAST, 1e6)
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise TypeError(f"breaker must be Breaker(...), not {type(self.breaker).__name__}")

    @property
    def is_held(self) -> bool:
        """Whether a record may have to wait though a slot is free."""
        return bool(
            self.ordering or self.rate_per_s or self.rate_per_key_per_s or self.breaker is not None
        )


def _check_map(on_error: object) -> None:
    if not isinstance(on_error, Mapping):
        raise TypeError(f"on_error must be a mapping, not {type(on_error).__name__}")
    for kind, outcome in on_error.items():
        _exception_class("on_error", kind)
        if issubclass(kind, Retry | Reject):
            raise TypeError(f"on_error can not map {kind.__name__}: it is an outcome already")
        if not is_outcome(outcome):
            raise TypeError(
                f"on_error[{kind.__name__}] must be Retry, Retry(after_s), Reject or"
                f" Reject(reason), not {outcome!r}"
            )


def is_outcome(value: object) -> bool:
    """Whether this is `Retry` or `Reject`, as a class or an instance."""
    if inspect.isclass(value):
        return issubclass(value, Retry | Reject)
    return isinstance(value, Retry | Reject)


def as_error(outcome: object) -> BaseException | None:
    """The exception that an entry of a batch's outcome stands for; None = accepted.

    Raises:
        TypeError: It is no outcome.
    """
    if outcome is None or isinstance(outcome, BaseException):
        return outcome
    if inspect.isclass(outcome) and issubclass(outcome, Retry | Reject):
        return outcome()
    raise TypeError(f"{outcome!r} is no outcome: use None, Retry(after_s), Reject(reason)")


def refuse_unfinished(result: object) -> None:
    """Raises TypeError for a returned awaitable or generator, which nobody would run."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        name = type(result).__name__
        raise TypeError(f"a handler returned a {name} that nobody runs: await it in the handler")


def outcomes_of(result: object, count: int) -> Sequence[BaseException | None] | None:
    """The outcome of each message, from a batch handler's result; None = all accepted.

    Raises:
        TypeError: It returned something else.
        ValueError: As many outcomes as messages are wanted, or a place is none of the batch.
    """
    if result is None:
        return None
    if isinstance(result, BatchOutcome):
        errors: list[BaseException | None] = [None] * count
        for place, outcome in result.failed.items():
            if not 0 <= place < count:
                raise ValueError(f"it returned an outcome for place {place} of {count} messages")
            errors[place] = as_error(outcome)
        return errors
    if isinstance(result, list | tuple):
        if len(result) != count:
            raise ValueError(f"it returned {len(result)} outcomes for {count} messages")
        return [as_error(each) for each in result]
    raise TypeError(
        "a handler of batches must return None, a list of outcomes or BatchOutcome(...),"
        f" not {type(result).__name__}"
    )


def refuse_unbound(function: object, what: str) -> None:
    """Refuses, by TypeError, a method that is not bound: `self` would be what the worker passes."""
    try:
        names = list(inspect.signature(function).parameters)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        # Built in.
        return
    if names[:1] in (["self"], ["cls"]):
        name = getattr(function, "__qualname__", None) or repr(function)
        raise TypeError(
            f"{what} {name} is a method without its object: {names[0]!r} would be the message;"
            f" register it of an object, outside of the class, as made.{name.rpartition('.')[2]}"
        )


def read_result(
    result: object, batch_of: int | None
) -> Sequence[BaseException | None] | BaseException | None:
    """The outcomes in a handler's return value: for each record or for all; None = accepted.

    `batch_of` is the number of messages it got; None = one, not in a list.
    """
    try:
        refuse_unfinished(result)
        if batch_of is not None:
            return outcomes_of(result, batch_of)
        is_error = isinstance(result, BaseException) or is_outcome(result)
        return as_error(result) if is_error else None
    except (TypeError, ValueError) as nonsense:
        return nonsense


def number(name: str, value: object, least: float, most: float) -> None:
    """Checks a number: TypeError when it is none, ValueError out of bounds."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    if not least <= value <= most:
        raise ValueError(f"{name} must be {least:g} to {most:g}, not {value}")


def _exception_class(name: str, value: object) -> None:
    if not (inspect.isclass(value) and issubclass(value, BaseException)):
        raise TypeError(f"{name} has exception classes, not {value!r}")


def _words(value: object) -> str:
    return str(getattr(value, "__qualname__", None) or value)
