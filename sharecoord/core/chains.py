"""What a broken chain takes with it (design 5.6).

The records of one key that a member holds are a chain, run in order. When one of them comes back
instead of being accepted or rejected, the later ones go back unseen in the same decision, so that
the next holder starts with the failed one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from sharecoord.core import outcomes
from sharecoord.core.decisions import Decision, RangeOutcome, TakenBack
from sharecoord.core.ordering import KeyOrder
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcknowledgeOutcome, ArchiveReason, RecordState
from sharecoord.core.window import Edit, RangeState, Window


def take_back_chains(
    window: Window,
    order: KeyOrder,
    settings: PartitionSettings,
    decision: Decision,
    now_ms: int,
) -> None:
    """Adds to a decision what must go back unseen because of it."""
    broken: list[tuple[int, int, RangeState]] = []
    for first, last, value in decision.edits:
        found = window.ranges.get(first)
        if found is not None and found[2].state is RecordState.ACQUIRED and _breaks(value):
            broken.append((first, last, found[2]))
    rest = order.rest_of_chains(broken) if broken else []
    if not rest:
        return
    firsts = [edit.first for edit in decision.edits]
    renewed: set[int] = set()
    unsettled: list[int] = []
    for offset in rest:
        at = bisect_right(firsts, offset) - 1
        edit = decision.edits[at] if at >= 0 else None
        if edit is None or edit.last < offset:
            unsettled.append(offset)
        elif edit.value is not None and edit.value.state is RecordState.ACQUIRED:
            unsettled.append(offset)
            renewed.add(offset)
    if renewed:
        decision.edits = _without(decision.edits, renewed)
        lost = AcknowledgeOutcome.LOCK_LOST
        decision.exceptions += [RangeOutcome(at, at, lost) for at in sorted(renewed)]
        decision.exceptions.sort(key=lambda outcome: outcome.first)
    pieces = _pieces(window, unsettled)
    decision.taken_back = [
        TakenBack(str(value.member_id), first, last, value.lock_token)
        for first, last, value in pieces
    ]
    decision.edits += [
        Edit(first, last, outcomes.returned(value, settings, now_ms))
        for first, last, value in pieces
    ]
    decision.edits.sort(key=lambda edit: edit.first)


def _breaks(value: RangeState | None) -> bool:
    """Whether a chain ends with a lock that ends so: not accepted, rejected or renewed."""
    if value is None or value.state is RecordState.ACQUIRED:
        return False
    if value.state is RecordState.AVAILABLE:
        return True
    return outcomes.archive_cause(value) is not ArchiveReason.REJECTED


def _pieces(window: Window, offsets: Sequence[int]) -> list[tuple[int, int, RangeState]]:
    """Ascending offsets as pieces of the ranges that they lie in."""
    pieces: list[tuple[int, int, RangeState]] = []
    end = -1
    for offset in offsets:
        if offset <= end and pieces[-1][1] + 1 == offset:
            pieces[-1] = (pieces[-1][0], offset, pieces[-1][2])
            continue
        found = window.ranges.get(offset)
        assert found is not None, f"the order knows {offset}, the window does not"
        end = found[1]
        pieces.append((offset, offset, found[2]))
    return pieces


def _without(edits: Sequence[Edit], offsets: set[int]) -> list[Edit]:
    """The edits less these offsets."""
    kept: list[Edit] = []
    for first, last, value in edits:
        position = first
        for offset in sorted(at for at in offsets if first <= at <= last):
            if offset > position:
                kept.append(Edit(position, offset - 1, value))
            position = offset + 1
        if position <= last:
            kept.append(Edit(position, last, value))
    return kept
