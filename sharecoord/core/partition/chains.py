"""Chains that break (design 5.6).

The records of one key that a member holds are a chain, run in order. When a record comes back
instead of being accepted or rejected, the later records of its chain go back unseen in the same
decision, so that the next holder starts with the failed one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sharecoord.core.order.key_order import KeyOrder
from sharecoord.core.partition import outcomes
from sharecoord.core.partition.decisions import Decision, RangeOutcome, TakenBack
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.spans import difference, spans_of
from sharecoord.core.states import AcknowledgeOutcome, ArchiveReason, RecordState
from sharecoord.core.window.window import Edit, Range, RangeState, Window


def take_back_chains(
    window: Window,
    order: KeyOrder,
    settings: PartitionSettings,
    decision: Decision,
    now_ms: int,
) -> None:
    """Adds to a decision the records that must go back unseen because of it."""
    broken: list[Range] = []
    for first, last, value in decision.edits:
        found = window.ranges.get(first)
        if found is not None and found[2].state is RecordState.ACQUIRED and _breaks(value):
            broken.append((first, last, found[2]))
    rest = order.rest_of_chains(broken) if broken else []
    if not rest:
        return
    firsts = [edit.first for edit in decision.edits]
    renewed: list[int] = []
    unsettled: list[int] = []
    for offset in rest:
        at = bisect_right(firsts, offset) - 1
        edit = decision.edits[at] if at >= 0 else None
        if edit is None or edit.last < offset:
            unsettled.append(offset)
        elif edit.value is not None and edit.value.state is RecordState.ACQUIRED:
            unsettled.append(offset)
            renewed.append(offset)
    if renewed:
        decision.edits = _without(decision.edits, renewed)
        lost = AcknowledgeOutcome.LOCK_LOST
        decision.exceptions += [RangeOutcome(at, at, lost) for at in renewed]
        decision.exceptions.sort(key=lambda outcome: outcome.first)
    pieces = window.ranges.pieces_of(unsettled)
    decision.taken_back = [
        *decision.taken_back,
        *(
            TakenBack(str(value.member_id), first, last, value.lock_token)
            for first, last, value in pieces
        ),
    ]
    decision.edits += [
        Edit(first, last, outcomes.returned(value, settings, now_ms))
        for first, last, value in pieces
    ]
    decision.edits.sort(key=lambda edit: edit.first)


def _breaks(value: RangeState | None) -> bool:
    """Whether a lock that ends so breaks its chain: not accepted, rejected or renewed."""
    if value is None or value.state is RecordState.ACQUIRED:
        return False
    if value.state is RecordState.AVAILABLE:
        return True
    return outcomes.archive_cause(value) is not ArchiveReason.REJECTED


def _without(edits: Sequence[Edit], offsets: Sequence[int]) -> list[Edit]:
    """The edits less these ascending offsets."""
    taken = spans_of(offsets)
    return [
        Edit(start, end, value)
        for first, last, value in edits
        for start, end in difference([(first, last)], taken)
    ]
