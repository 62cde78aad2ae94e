"""Invariants of decisions and of order by key, checked before and after every change in tests."""

from __future__ import annotations

from sharecoord.core.partition.decisions import Decision
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.states import LEGAL_MOVES, RecordState
from sharecoord.core.window.window import RangeState
from sharecoord.testing._invariants import require


def check_chains(partition: SharePartition) -> None:
    """Checks the order of a group that has kept order since its window was empty.

    Raises:
        InternalError: Two members hold records of one key, or a record is held while an earlier
            one of its key waits.
    """
    order = partition.order
    for key, queue in order.queues.items() if order is not None else ():
        require(len(queue.holders) <= 1, f"key {key} is held by {sorted(queue.holders)}")
        if queue.waiting and queue.held:
            ahead = queue.held[-1] < queue.waiting[0]
            require(ahead, f"{queue.held[-1]} is held while {queue.waiting[0]} of its key waits")


def check_decision(partition: SharePartition, decision: Decision) -> None:
    """Checks what a decision would do to the present state, before it is applied.

    Raises:
        InternalError: An edit is out of order or not a legal move, a delivery count goes down
            without being handed back, a record is handed out at its limit or under a used token.
    """
    previous_last = -1
    seen_tokens: set[int] = set()
    for first, last, value in decision.edits:
        require(previous_last < first <= last, f"edit [{first}, {last}] is out of order")
        previous_last = last
        found = partition.window.ranges.get(first)
        if found is None:
            require(first >= partition.window.end_offset, f"edit at finished offset {first}")
            old = RangeState(RecordState.AVAILABLE)
        else:
            require(last <= found[1], f"edit [{first}, {last}] crosses a range")
            old = found[2]
        state = RecordState.ACKNOWLEDGED if value is None else value.state
        legal = state in LEGAL_MOVES[old.state]
        require(legal, f"{first}: illegal move {old.state.name} -> {state.name}")
        if value is not None:
            _check_move(partition, first, old, value, seen_tokens)


def _check_move(
    partition: SharePartition, first: int, old: RangeState, new: RangeState, tokens: set[int]
) -> None:
    require(new.hand_outs >= old.hand_outs, f"{first}: the hand-outs went down")
    handed_back = old.state is RecordState.ACQUIRED and new.state is not RecordState.ACQUIRED
    lowest = old.delivery_count - 1 if handed_back else old.delivery_count
    require(new.delivery_count >= lowest, f"{first}: the delivery count went down")
    if new.state is RecordState.ACQUIRED and old.state is RecordState.AVAILABLE:
        limit = partition.settings.delivery_limit
        require(old.delivery_count < limit, f"{first}: handed out at its limit of {limit}")
        token = new.lock_token
        fresh = token >> 32 == partition.owner_epoch and token not in partition.window.grants
        require(fresh and token not in tokens, f"{first}: lock token {token} was used before")
        tokens.add(token)


def archiving(decision: Decision) -> list[tuple[int, int, RangeState]]:
    """The ranges that a decision makes ARCHIVING."""
    return [
        (first, last, value)
        for first, last, value in decision.edits
        if value is not None and value.state is RecordState.ARCHIVING
    ]
