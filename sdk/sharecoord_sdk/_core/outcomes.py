"""The meaning of a handler's return or exception for its record: one rule, here and in tests."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .errors import PicklableError
from .records import AcknowledgeType


class Retry(PicklableError):  # noqa: N818 - reads as an order: raise Retry(after_s=5)
    """Raised by a handler: deliver the record again, not before `after_s` seconds.

    Args:
        after_s: Seconds; 0 = at once. None, the default, is the group's own back-off.
        reason: A short text that is kept with the record.

    Raises:
        TypeError: `after_s` is no number.
        ValueError: `after_s` is negative or not finite.
    """

    def __init__(self, after_s: float | None = None, reason: str = "") -> None:
        if isinstance(after_s, bool) or not isinstance(after_s, int | float | None):
            raise TypeError(f"after_s must be a number of seconds, not {type(after_s).__name__}")
        if after_s is not None and not 0 <= after_s < math.inf:
            raise ValueError(f"after_s must be a finite number and not negative: {after_s}")
        super().__init__(reason or ("retry" if after_s is None else f"retry after {after_s} s"))
        self.after_s = after_s
        self.reason = reason


class Reject(PicklableError):  # noqa: N818
    """Raised by a handler: the record can not be processed, ever.

    Args:
        reason: A short text that is kept with the record and its dead letter.
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or "rejected")
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one record's handler.

    Attributes:
        type: The acknowledgement that follows.
        delay_ms: RELEASE only: not delivered again before so many milliseconds.
        reason: What is kept with the record.
        error: What the handler raised, or None.
    """

    type: AcknowledgeType
    delay_ms: int = 0
    reason: str = ""
    error: Exception | None = None


def delay_ms_of(after_s: float | None) -> int:
    """The `delay_ms` of a release: 0 leaves it to the group's back-off, so at once is 1 ms."""
    return 0 if after_s is None else max(1, round(after_s * 1000))
