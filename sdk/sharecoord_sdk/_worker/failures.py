"""Failures of handlers: the settlement of their records, and how much of them is logged."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Final

from sharecoord_sdk._core.arguments import DELAY_MAX_MS, REASON_MAX_BYTES
from sharecoord_sdk._core.columns import AckDetails
from sharecoord_sdk._core.outcomes import Reject, Retry, delay_ms_of
from sharecoord_sdk._core.records import AcknowledgeType, Message
from sharecoord_sdk._core.texts import escaped_text

from .handlers import Handler
from .line import Settlement
from .options import Backoff

_REASON_CHARS: Final = 256

WINDOW_S: Final = 60.0
TRACES_MAX: Final = 10
"""Tracebacks per handler and window: a stack is some kilobytes."""
LINES_MAX: Final = 100
"""Lines per handler and window; what follows is counted."""


class FailureRules:
    """Makes a settlement of what a handler raised.

    `Retry` and `Reject` say it themselves; then the handler's `on_error` decides, then its `retry`.
    The rest is released, and the group's own back-off applies.

    Args:
        chance: Returns a number in [0, 1), for jitter.
        note: Logs a failure: handler, text, and the exception.
    """

    def __init__(
        self, chance: Callable[[], float], note: Callable[[Handler, str, Exception], None]
    ) -> None:
        self._chance = chance
        self._note = note

    @staticmethod
    def differs_by_record(handler: Handler, error: BaseException) -> bool:
        """Whether the records of a batch that raised may have different outcomes."""
        return handler.behaviour.retry is not None and _mapped(handler, error) is None

    @staticmethod
    def verb_of(handler: Handler, error: BaseException) -> str:
        """The verb of a log line for the record: "rejected" or "released"."""
        return "rejected" if isinstance(_mapped(handler, error), Reject) else "released"

    def settlement(self, handler: Handler, message: Message, error: BaseException) -> Settlement:
        mapped = _mapped(handler, error)
        if mapped is not None:
            return _of(mapped, "" if mapped is error else _reason_of(error))
        retry = handler.behaviour.retry
        if retry is None or not isinstance(error, Exception):
            return settlement_of(error)
        attempt = message.delivery_count() or 1
        if isinstance(retry, Backoff):
            return _of(Retry(retry.delay_s(attempt, self._chance())), _reason_of(error))
        try:
            answer = retry(message, attempt)
            if inspect.isclass(answer) and issubclass(answer, Reject):
                answer = answer()
            if isinstance(answer, Reject):
                return _of(answer, _reason_of(error))
            wait_s = None if answer is None else _seconds(answer)
            return _of(Retry(wait_s), _reason_of(error))
        except Exception as failure:  # noqa: BLE001 - a rule that fails must not lose the record
            text = f"{type(failure).__name__}: {text_of(failure)}"
            said = f"retry of handler {handler.name} failed, the record is released: {text}"
            self._note(handler, said, failure)
            return settlement_of(error)


def _mapped(handler: Handler, error: BaseException) -> Retry | Reject | None:
    """The outcome that an exception is, or that `on_error` has for its most specific class."""
    if isinstance(error, Retry | Reject):
        return error
    on_error = handler.behaviour.on_error
    if on_error:
        for kind in type(error).__mro__:
            found = on_error.get(kind)
            if found is not None:
                return found() if inspect.isclass(found) else found
    return None


def _of(outcome: Retry | Reject, reason: str) -> Settlement:
    reason = _valid(str(outcome.reason or reason))
    if isinstance(outcome, Reject):
        return Settlement(int(AcknowledgeType.REJECT), AckDetails(reason=reason))
    delay_ms = min(delay_ms_of(outcome.after_s), DELAY_MAX_MS)
    return Settlement(int(AcknowledgeType.RELEASE), AckDetails(delay_ms, reason))


def _seconds(answer: object) -> float:
    if not isinstance(answer, int | float) or isinstance(answer, bool):
        name = type(answer).__name__
        raise TypeError(f"it must return seconds, None or Reject, not {name}")
    if not 0 <= answer < math.inf:
        raise ValueError(f"it must return a finite number of seconds, 0 or more, not {answer}")
    return float(answer)


def settlement_of(error: BaseException) -> Settlement:
    """The settlement without a handler's rules: REJECT for `Reject`, RELEASE for all else."""
    if isinstance(error, Retry | Reject):
        return _of(error, "")
    return _of(Retry(), _reason_of(error))


def _reason_of(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return type(error).__name__
    return _valid(f"{type(error).__name__}: {text_of(error)}"[:_REASON_CHARS])


def _valid(text: str) -> str:
    """A text cut for the wire: valid UTF-8, at most `REASON_MAX_BYTES`."""
    return escaped_text(text).encode()[:REASON_MAX_BYTES].decode("utf-8", "ignore")


def text_of(error: BaseException) -> str:
    """The text of an exception, even when its `__str__` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - an exception that can not be shown is still an outcome
        return "(its text can not be read)"


class FailureLog:
    """Counts failures by handler."""

    def __init__(self) -> None:
        # By handler: when its window began, and its failures since.
        self._windows: dict[str, tuple[float, int]] = {}

    def count(self, handler: str, now: float) -> int:
        """Counts a failure; returns its number within its window, from 1."""
        began, count = self._windows.get(handler, (now, 0))
        self._windows[handler] = began, count + 1
        return count + 1

    def over(self, now: float) -> Iterator[str]:
        """Log lines of windows that are over; forgets them."""
        for handler, (began, count) in list(self._windows.items()):
            if now >= began + WINDOW_S:
                del self._windows[handler]
                if count > LINES_MAX:
                    yield (
                        f"handler {handler} failed {count - LINES_MAX} more times that were not"
                        " logged"
                    )
