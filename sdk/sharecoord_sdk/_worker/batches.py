"""Batches with values: what a handler is given of them, and what becomes of the rest.

Values are read inside of middleware and the time limit, as those of single records are. What became
of records that can not be read stands in their `Columns`, whether the call then returns, raises or
takes too long.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sharecoord_sdk._core.errors import KafkaException
from sharecoord_sdk._core.order import PARTITION, order_of
from sharecoord_sdk._core.outcomes import Reject, Retry
from sharecoord_sdk._core.records import Message, origin_of

from .leases import Part
from .options import outcomes_of, refuse_unfinished


class HeldBackError(Retry):
    """The outcome of a record that was held back, because an earlier one comes again."""

    def __init__(self) -> None:
        super().__init__(reason="an earlier record of its key has no value yet")


@dataclass(slots=True)
class ReadBatch:
    """A list of messages, with their values as far as they can be read.

    Attributes:
        messages: The readable ones; the original list when that is all of them.
        values: The values of `messages`.
        errors: The outcome of each other message, by place in the original list.
    """

    messages: Sequence[Message] = ()
    values: list[Any] = field(default_factory=list)
    errors: dict[int, Exception] = field(default_factory=dict)

    def of_all(self, result: Any) -> Any:
        """Extends the handler's result to the original list.

        Raises:
            TypeError: As of `outcomes_of`, or the result has not run.
            ValueError: As of `outcomes_of`.
        """
        if not self.errors:
            return result
        refuse_unfinished(result)
        found = iter(outcomes_of(result, len(self.values)) or [None] * len(self.values))
        places = range(len(self.values) + len(self.errors))
        return [self.errors[at] if at in self.errors else next(found) for at in places]


def read_batch(
    messages: Sequence[Message], read: Callable[[Message], Any], ordering: str | None
) -> ReadBatch:
    """Reads the values of a list of messages.

    Args:
        messages: The messages of one call.
        read: Reads one; what it raises is the outcome of its record.
        ordering: The handler's. A record that follows one that is not rejected is held back.
    """
    batch = ReadBatch()
    kept: list[Message] = []
    broken: set[Hashable] = set()
    for at, message in enumerate(messages):
        origin = origin_of(message)
        order = None
        if ordering is not None and origin is not None:
            order = order_of(*origin, by_partition=ordering == PARTITION)
        error: Exception | None = HeldBackError() if order in broken else None
        if error is None:
            try:
                batch.values.append(read(message))
                kept.append(message)
            except Exception as unread:  # noqa: BLE001 - what it raises is the record's outcome
                error = unread
                if order is not None and not isinstance(unread, Reject):
                    broken.add(order)
        if error is not None:
            batch.errors[at] = error
        _note(message, error)
    batch.messages = kept if batch.errors else messages
    return batch


def _note(message: Message, error: Exception | None) -> None:
    """Stores the outcome of a record that its handler does not see, or clears an earlier one."""
    origin = origin_of(message)
    if origin is None:
        return
    columns, row = origin
    if error is None:
        columns.unread.pop(row, None)
    else:
        columns.unread[row] = error


def take_unread(parts: Sequence[Part]) -> dict[Part, BaseException]:
    """The outcomes of a call's records that its handler did not see."""
    return {
        Part(lease, row, row + 1): lease.columns.unread.pop(row)
        for lease, start, stop in parts
        if lease.columns.unread
        for row in range(start, stop)
        if row in lease.columns.unread
    }


def unopened_in(parts: Sequence[Part]) -> KafkaException | None:
    """Why records of a call can not be opened; None = all were, or none was asked for yet."""
    for lease, start, stop in parts:
        errors = lease.columns.errors
        for row in range(start, stop) if errors else ():
            if errors and row in errors:
                return KafkaException(errors[row])
    return None


def refuse_unopened(parts: Sequence[Part]) -> None:
    """Raises, in a handler's place, why records of its call can not be opened."""
    error = unopened_in(parts)
    if error is not None:
        raise error
