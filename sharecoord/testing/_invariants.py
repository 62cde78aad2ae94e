"""The invariants of a share-partition in memory, checked by a recount (design 4).

A check costs O(ranges in the window).
"""

from __future__ import annotations

from collections import defaultdict

from sharecoord.core.order.key_order import NO_KEY, KeyOrder
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.states import RecordState
from sharecoord.core.window.window import Window
from sharecoord.errors import InternalError

_STORED = (
    RecordState.AVAILABLE,
    RecordState.ACQUIRED,
    RecordState.ARCHIVING,
    RecordState.ARCHIVED,
)


def check_partition(partition: SharePartition) -> None:
    """Checks the shape, the counts and the indexes of a window, and those of its order.

    Raises:
        InternalError: Something does not hold; the message names it.
    """
    window = partition.window
    _check_shape(window)
    _check_counts(window)
    _check_grants(window)
    _check_indexes(window)
    if partition.order is not None:
        _check_order(window, partition.order)


def _check_shape(window: Window) -> None:
    position = window.start_offset
    for first, last, value in window.ranges:
        require(position <= first <= last, f"range [{first}, {last}] is out of order")
        require(value.state in _STORED, f"range at {first} is {value.state.name}")
        require(value.delivery_count >= 0, f"range at {first} has a negative delivery count")
        require(not [*window.parked.spans(first, last)], f"range at {first} is parked too")
        position = last + 1
    require(position <= window.end_offset, f"a range ends beyond {window.end_offset}")
    front, parked = window.ranges.front(), window.parked.lowest
    start = min(window.end_offset if n is None else n for n in (front and front[0], parked))
    require(window.start_offset == start, f"the start is {window.start_offset}, not {start}")
    if front is not None and front[0] == start:
        require(front[2].state is not RecordState.ARCHIVED, "the start offset is finished")


def _check_counts(window: Window) -> None:
    counts: dict[str, int] = defaultdict(int, delayed=window.parked.records)
    for first, last, value in window.ranges:
        name = value.state.name.lower()
        if value.state is RecordState.AVAILABLE:
            name = "delayed" if window.is_delayed(value) else "due"
        counts[name] += last - first + 1
    for name in ("acquired", "due", "delayed", "archiving", "archived"):
        kept = getattr(window, name)
        require(kept == counts[name], f"{name} is {kept}, a recount gives {counts[name]}")


def _check_grants(window: Window) -> None:
    held: dict[str, int] = defaultdict(int)
    remaining: dict[int, int] = defaultdict(int)
    for first, last, value in window.ranges:
        if value.state is not RecordState.ACQUIRED:
            whole = not value.member_id and not value.deadline_ms and not value.granted_ms
            require(whole, f"range at {first} is {value.state.name} and has a lock")
            continue
        require(bool(value.member_id) and value.lock_token > 0, f"no lock on range at {first}")
        held[str(value.member_id)] += last - first + 1
        remaining[value.lock_token] += last - first + 1
        grant = window.grants.get(value.lock_token)
        covered = (
            grant is not None
            and grant.member_id == value.member_id
            and grant.first <= first
            and last <= grant.last
        )
        require(covered, f"the grant of the range at {first} does not cover it")
    require(window.held == held, f"held is {window.held}, a recount gives {dict(held)}")
    kept = {token: grant.remaining for token, grant in window.grants.items()}
    require(kept == remaining, f"grants are {kept}, a recount gives {dict(remaining)}")
    by_member = {(g.member_id, token) for token, g in window.grants.items()}
    listed = {(m, token) for m, tokens in window.grants_of.items() for token in tokens}
    require(by_member == listed, "grants_of and grants differ")


def _check_indexes(window: Window) -> None:
    """Every lock is found when it ends, every due and every delayed range when its time is."""
    due_heap, delayed_heap, deadline_heap = window.index_entries()
    due = {found[0] for at in due_heap if (found := window.ranges.get(at))}
    delayed = set(delayed_heap)
    locks: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for deadline_ms, first, last in deadline_heap:
        for start, end, value in window.ranges.overlapping(first, last):
            if value.state is RecordState.ACQUIRED and deadline_ms <= value.deadline_ms:
                locks[start].append((max(first, start), min(last, end)))
    for first, last, value in window.ranges:
        if value.state is RecordState.ACQUIRED:
            position = first
            for left, right in sorted(locks[first]):
                if left <= position <= right:
                    position = right + 1
            known = position > last
        elif value.state is RecordState.AVAILABLE and window.is_delayed(value):
            known = (value.available_at_ms, first) in delayed
        else:
            known = value.state is not RecordState.AVAILABLE or first in due
        require(known, f"no index knows the {value.state.name} range at {first}")


def _check_order(window: Window, order: KeyOrder) -> None:
    """The queues equal what the window holds."""
    waiting: dict[int, list[int]] = defaultdict(list)
    held: dict[int, list[int]] = defaultdict(list)
    holders: dict[int, dict[str, int]] = defaultdict(dict)
    unknown: list[int] = []
    due: set[int] = set()
    ready = blocked = 0
    for first, last, value in window.ranges:
        if value.state not in (RecordState.AVAILABLE, RecordState.ACQUIRED):
            continue
        is_due = value.state is RecordState.AVAILABLE and not window.is_delayed(value)
        due.update(range(first, last + 1) if is_due else ())
        for offset, key in enumerate(order.keys_of(first, last, value.keys), first):
            if key is None:
                unknown.append(offset)
            elif key == NO_KEY:
                ready += is_due
            elif value.state is RecordState.AVAILABLE:
                waiting[key].append(offset)
                blocked += key in order.blocked_keys
            else:
                held[key].append(offset)
                member_id = str(value.member_id)
                holders[key][member_id] = holders[key].get(member_id, 0) + 1
    ready += sum(
        min(len(w), order.chain_max)
        for key, w in waiting.items()
        if not held.get(key) and w[0] in due and key not in order.blocked_keys
    )
    ready += bool(unknown) and unknown[0] in due
    require(order.unknown == unknown, "the order's unknown keys are not the window's")
    require({*order.queues} == {*waiting, *held}, "the order's keys are not the window's")
    for key, queue in order.queues.items():
        same = [*queue.waiting] == waiting.get(key, []) and [*queue.held] == held.get(key, [])
        require(same and queue.holders == holders.get(key, {}), f"the queue of key {key} is wrong")
    require(order.ready == ready, f"ready is {order.ready}, a recount gives {ready}")
    counted = order.blocked_records
    require(counted == blocked, f"{counted} records are blocked, a recount gives {blocked}")


def require(holds: bool, message: str) -> None:  # noqa: FBT001 - as `assert`
    """Raises InternalError when something does not hold."""
    if not holds:
        raise InternalError(f"an invariant of the window does not hold: {message}")
