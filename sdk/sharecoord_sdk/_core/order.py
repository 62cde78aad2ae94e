"""Which records that wait may be handed out, where the group keeps order by key or partition.

The coordinator hands consecutive records of a key to one member as a *chain*. When one of them
comes back instead of being accepted or rejected, it takes the rest back, and says so
(`ConsumeResponse.taken_back`). What this side adds is the time until it has said so, and that a
program in explicit mode, which may release any record, has one record of a key at a time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Final

from .columns import Columns, Span

KEY: Final = "key"
PARTITION: Final = "partition"


class Turns:
    """The turns of the records that wait, for one poll.

    Args:
        ordering: The group's `share.ordering`.
        going_back: Records that are on their way back: nothing that follows them is handed out.
        one_each: Whether a poll gives one record of a key at most.
    """

    def __init__(self, ordering: str, going_back: Iterable[Span], *, one_each: bool) -> None:
        self._by_partition = ordering == PARTITION
        self._one_each = one_each
        self._held: set[Hashable] = set()
        for span in going_back:
            self.hold_back(span)

    def hold_back(self, span: Span) -> None:
        """Holds back records that follow these, which go back."""
        columns = span.columns
        self._look_at_keys(span)
        for row in range(span.start, span.stop):
            order = order_of(columns, row, by_partition=self._by_partition)
            if order is not None:
                self._held.add(order)

    def _look_at_keys(self, span: Span) -> None:
        span.columns.unpack()
        if not self._by_partition and span.columns.unopened:
            # Groups with order by key get columns; these came before the group had it.
            span.columns.open(span.start, span.stop)

    def pick(self, span: Span, room: int) -> tuple[list[Span], list[Span]]:
        """Splits a span into what may be handed out, at most `room` records, and what waits on."""
        columns = span.columns
        self._look_at_keys(span)
        picked: list[Span] = []
        left: list[Span] = []
        for row in range(span.start, span.stop):
            order = order_of(columns, row, by_partition=self._by_partition)
            goes = room > 0 and (order is None or order not in self._held)
            if goes:
                room -= 1
            if order is not None and (self._one_each or not goes):
                self._held.add(order)
            _extend(picked if goes else left, span, row)
        return picked, left


def order_of(columns: Columns, row: int, *, by_partition: bool) -> Hashable:
    """The name of the order that a record stands in; None for a record without a key."""
    if by_partition:
        return columns.key
    key = None if columns.keys is None else columns.keys[row]
    return None if key is None else (columns.key, key)


def _extend(spans: list[Span], whole: Span, row: int) -> None:
    if spans and spans[-1].columns is whole.columns and spans[-1].stop == row:
        spans[-1].stop = row + 1
    else:
        spans.append(whole.within(row, row + 1))
