"""Acknowledgements as Kafka's members send them, checked as a broker checks them (KIP-932, 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Final

from kio.schema.errors import ErrorCode

from sharecoord.core.states import AcknowledgeType

Run = tuple[int, int, AcknowledgeType]
"""Consecutive offsets that are acknowledged alike: the first, the last, and how."""

_GAP: Final = 0
_RENEW: Final = 4


class RefusedError(Exception):
    """The acknowledgements of a partition are refused, all of them; `code` says why."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def runs_of(batches: Iterable[Any], *, may_renew: bool) -> list[Run]:
    """The acknowledgements of one partition, in ascending order.

    Args:
        batches: As the request has them.
        may_renew: Whether the request says that it renews locks (KIP-1222).

    Raises:
        RefusedError: A broker would refuse them.
    """
    known = set(range(_GAP, _RENEW + may_renew))
    found: list[Run] = []
    previous_last = -1
    for batch in batches:
        first, last, types = batch.first_offset, batch.last_offset, batch.acknowledge_types
        if (
            not max(0, previous_last) <= first <= last
            or len(types) not in (1, last - first + 1)
            or not known.issuperset(types)
        ):
            raise RefusedError(ErrorCode.invalid_request)
        if first == previous_last:
            # A broker goes on, and finds that the offset is settled by then.
            raise RefusedError(ErrorCode.invalid_record_state)
        found += _runs(first, last, types)
        previous_last = last
    return found


def _runs(first: int, last: int, types: tuple[int, ...]) -> Iterator[Run]:
    if len(types) == 1 or types.count(types[0]) == len(types):
        yield first, last, _type_of(types[0])
        return
    for kind, same in groupby(types):
        count = sum(1 for _ in same)
        yield first, first + count - 1, _type_of(kind)
        first += count


def _type_of(number: int) -> AcknowledgeType:
    """Gaps are archived by the coordinator before anybody gets them.

    An offset that a client takes for one all the same has no record, and is finished.
    """
    return AcknowledgeType.ACCEPT if number == _GAP else AcknowledgeType(number)
