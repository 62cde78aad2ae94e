"""The errors of the SDK: the classes that `confluent_kafka` raises, with the same meaning."""

from __future__ import annotations

import builtins
import copyreg
import operator
from functools import total_ordering
from typing import Any

from .error_codes import CODE_NAMES, ERROR_TEXTS, ErrorCodes


class PicklableError(Exception):
    """An exception that comes out of a pickle with all its fields.

    By default Python makes it anew by calling its class with `args`, the text alone; that fails, or
    loses fields, when the constructor takes something else. Here the constructor is not called:
    arguments and fields are put back as they were, also those of an application's subclasses.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


@total_ordering
class KafkaError(ErrorCodes):
    """An error: a code with Kafka's number, a text, and its meaning for the caller.

    Compares equal to another `KafkaError` or an `int` with the same code.

    Args:
        error: The code, one of the class constants.
        reason: The text; by default the code's own.
        fatal: Whether the consumer can not go on.
        retriable: Whether the same call can succeed later.
        txn_requires_abort: Kept for the twin; no call of this SDK sets it.
    """

    __slots__ = ("_code", "_fatal", "_reason", "_retriable", "_txn_requires_abort")

    def __init__(
        self,
        error: int,
        reason: builtins.str | None = None,
        fatal: bool = False,  # noqa: FBT001, FBT002 - the twin's signature
        retriable: bool = False,  # noqa: FBT001, FBT002
        txn_requires_abort: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self._code = operator.index(error)
        default = ERROR_TEXTS.get(self._code, f"Err-{self._code}?")
        self._reason = default if reason is None else reason
        self._fatal = bool(fatal)
        self._retriable = bool(retriable)
        self._txn_requires_abort = bool(txn_requires_abort)

    def code(self) -> int:
        """The number of the error."""
        return self._code

    def name(self) -> builtins.str:
        """The name of the error, such as `INVALID_RECORD_STATE`."""
        return CODE_NAMES.get(self._code, f"ERR_{self._code}?")

    def str(self) -> builtins.str:
        """The text of the error."""
        return self._reason

    def fatal(self) -> bool:
        """Whether the consumer can not go on."""
        return self._fatal

    def retriable(self) -> bool:
        """Whether the same call can succeed later without a change by the caller."""
        return self._retriable

    def txn_requires_abort(self) -> bool:
        """Always false here: share consumers have no transactions."""
        return self._txn_requires_abort

    def __repr__(self) -> builtins.str:
        fatal = "FATAL," if self._fatal else ""
        return f'KafkaError{{{fatal}code={self.name()},val={self._code},str="{self._reason}"}}'

    __str__ = __repr__

    def __hash__(self) -> int:
        return hash(self._code)

    def __reduce__(self) -> tuple[type[KafkaError], tuple[int, builtins.str, bool, bool, bool]]:
        flags = (self._fatal, self._retriable, self._txn_requires_abort)
        return KafkaError, (self._code, self._reason, *flags)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | KafkaError):
            return self._code == _number(other)
        return NotImplemented

    def __lt__(self, other: KafkaError | int) -> bool:
        return self._code < _number(other)


def _number(value: KafkaError | int) -> int:
    return value.code() if isinstance(value, KafkaError) else operator.index(value)


class KafkaException(Exception):  # noqa: N818 - the twin's name
    """Carries a `KafkaError` as `args[0]`."""


class IllegalStateException(RuntimeError):  # noqa: N818 - the twin's name
    """A call that the consumer's state does not allow, such as any call after `close`."""


class ConcurrentModificationException(RuntimeError):  # noqa: N818 - the twin's name
    """Two threads (or tasks) used one consumer at the same time."""
