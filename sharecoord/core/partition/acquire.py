"""The plan of an acquire: redelivery first, poison throttling, then new data.

The rules are KIP-932's acquire step and its throttled delivery (KAFKA-17541), with the differences
of design 5: record limits are strict except in `batch_optimized`, and a last-attempt record goes
only to a member that holds nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from sharecoord.core import limits
from sharecoord.core.order.admission import Admission
from sharecoord.core.order.key_order import KeyOrder
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.states import AcquireMode, RecordState
from sharecoord.core.window.window import Keys, Range, RangeState, Window


class Run(NamedTuple):
    """Existing records at consecutive offsets, ready to be handed out."""

    first: int
    last: int
    keys: Keys | None = None
    available_at_ms: int = 0
    """The records are not handed out before (monotonic); 0 = at once."""


class Take(NamedTuple):
    """Offsets to acquire, and their state before."""

    first: int
    last: int
    old: RangeState


@dataclass(slots=True)
class AcquirePlan:
    """The records that one acquire takes."""

    takes: list[Take] = field(default_factory=list)
    waiting: list[Take] = field(default_factory=list)
    """New records that their key or their schedule holds back: they enter the window and wait."""
    records: int = 0
    worn_out: list[Range] = field(default_factory=list)
    """Due ranges whose count has reached a limit that was lowered since: they are archived."""
    end_offset: int | None = None
    isolate: bool = False
    closed: bool = False
    """Nothing more may be added to this call (throttled delivery)."""

    def take(self, first: int, last: int, old: RangeState) -> None:
        """Adds [first, last]."""
        self.takes.append(Take(first, last, old))
        self.records += last - first + 1


def throttle_threshold(delivery_limit: int) -> int:
    """Deliveries after which a batch is handed out in shrinking parts: max(2, ceil(L / 2))."""
    return max(2, (delivery_limit + 1) // 2)


def plan_acquire(
    window: Window,
    order: KeyOrder | None,
    settings: PartitionSettings,
    *,
    member_id: str,
    max_records: int,
    mode: AcquireMode,
    due: Sequence[Range],
    fresh: Sequence[Run],
    room: int,
    may_isolate: bool,
) -> AcquirePlan:
    """Plans one acquire; see `SharePartition.decide_acquire`."""
    plan = AcquirePlan()
    budget = min(max_records, limits.ACQUIRE_RECORDS_MAX)
    # Records that waited in the window for their time or turn took up no room when they entered.
    budget = min(budget, settings.record_locks_max - window.acquired)
    if budget <= 0:
        return plan
    soft = mode is AcquireMode.BATCH_OPTIMIZED
    if order is not None:
        due = _ready_parts(due, Admission(order, member_id), settings.delivery_limit)
    for _, parts in groupby(due, key=_batch_base):
        batch = _Batch(settings, held=window.held.get(member_id, 0), may_isolate=may_isolate)
        batch.plan(plan, list(parts), budget, soft=soft)
        if plan.closed or plan.records >= budget:
            break
    admission = None
    if order is not None:
        admission = Admission(order, member_id)
        _keep_order(plan, admission)
    if not plan.closed and plan.records < budget and fresh and room > 0:
        fresh_budget = min(budget - plan.records, room)
        if admission is None:
            _take_fresh(plan, window, fresh, fresh_budget, soft=soft)
        else:
            _take_fresh_in_order(plan, window, fresh, fresh_budget, admission, soft=soft)
    return plan


def _batch_base(found: Range) -> int:
    return found[2].batch_base


class _Batch:
    """Takes from the due ranges of one batch of first acquisition."""

    __slots__ = ("held", "limit", "may_isolate", "threshold")

    def __init__(self, settings: PartitionSettings, *, held: int, may_isolate: bool) -> None:
        self.limit = settings.delivery_limit
        self.threshold = throttle_threshold(self.limit)
        self.held = held
        self.may_isolate = may_isolate

    def plan(self, plan: AcquirePlan, parts: list[Range], budget: int, *, soft: bool) -> None:
        """Adds to `plan` the records of `parts` that may be taken."""
        plan.worn_out += [p for p in parts if p[2].delivery_count >= self.limit]
        parts = [p for p in parts if p[2].delivery_count < self.limit]
        if not parts:
            return
        if max(p[2].delivery_count for p in parts) < self.threshold:
            for first, last, old in parts:
                if plan.records >= budget and not soft:
                    return
                end = last if soft else min(last, first + budget - plan.records - 1)
                plan.take(first, end, old)
            return
        if plan.records:
            plan.closed = True
            return
        self._plan_throttled(plan, parts, budget if not soft else limits.ACQUIRE_RECORDS_MAX)

    def _plan_throttled(self, plan: AcquirePlan, parts: list[Range], budget: int) -> None:
        """Takes offset by offset, as specification 2.8 says, in steps of ranges."""
        cap: int | None = None
        for first, last, old in parts:
            count = old.delivery_count
            if self.limit > 2 and count == self.limit - 1:
                self._plan_last_attempt(plan, first, old)
                break
            if cap is None and count >= self.threshold:
                cap = max(1, old.batch_size >> (count - self.threshold + 1))
            left = budget - plan.records if cap is None else min(budget, cap) - plan.records
            if left <= 0:
                break
            plan.take(first, min(last, first + left - 1), old)
        if plan.records:
            plan.closed = True

    def _plan_last_attempt(self, plan: AcquirePlan, first: int, old: RangeState) -> None:
        """A record at its last attempt goes alone, to a member that holds nothing else."""
        if plan.records:
            return
        if not self.held:
            plan.take(first, first, old)
        elif self.may_isolate:
            plan.isolate = plan.closed = True


def _take_fresh(
    plan: AcquirePlan, window: Window, fresh: Sequence[Run], budget: int, *, soft: bool
) -> None:
    """Takes new records; offsets between the runs are gaps and stay uncovered."""
    taken: list[tuple[Run, int]] = []
    records = 0
    for run in fresh:
        if records >= budget:
            break
        assert run.first >= (plan.end_offset or window.end_offset), "new data inside the window"
        if run.available_at_ms:
            plan.waiting.append(_scheduled(run))
            plan.end_offset = run.last + 1
            continue
        last = run.last if soft else min(run.last, run.first + budget - records - 1)
        taken.append((run, last))
        records += last - run.first + 1
        plan.end_offset = last + 1
    if not taken:
        return
    base = taken[0][0].first
    for run, last in taken:
        plan.take(
            run.first,
            last,
            RangeState(RecordState.AVAILABLE, batch_base=base, batch_size=records, keys=run.keys),
        )


def _scheduled(run: Run) -> Take:
    """New records that wait for their time, and are one batch when it has come."""
    first, last, keys, at_ms = run
    value = RangeState(
        RecordState.AVAILABLE,
        available_at_ms=at_ms,
        batch_base=first,
        batch_size=last - first + 1,
        keys=keys,
    )
    return Take(first, last, value)


def _ready_parts(due: Sequence[Range], admission: Admission, delivery_limit: int) -> list[Range]:
    """The parts of due ranges that order lets go out, if all parts before them go out."""
    parts: list[Range] = []
    for first, last, old in due:
        if old.delivery_count >= delivery_limit:
            admission.finish(first, last, old.keys)
            parts.append((first, last, old))
            continue
        parts += [
            (left, right, old)
            for left, right, admitted in admission.split(first, last, old.keys)
            if admitted
        ]
    return parts


def _keep_order(plan: AcquirePlan, admission: Admission) -> None:
    """Drops takes of records whose predecessor was not taken for another reason."""
    finished = {first for first, _, _ in plan.worn_out}
    takes, plan.takes, plan.records = plan.takes, [], 0
    for first, last, old in sorted([*takes, *plan.worn_out]):
        if first in finished:
            admission.finish(first, last, old.keys)
            continue
        for left, right, admitted in admission.split(first, last, old.keys):
            if admitted:
                plan.take(left, right, old)
    if not plan.takes:
        plan.closed = plan.isolate


def _take_fresh_in_order(
    plan: AcquirePlan,
    window: Window,
    fresh: Sequence[Run],
    budget: int,
    admission: Admission,
    *,
    soft: bool,
) -> None:
    """Takes the new records that are ready; the others enter the window and wait."""
    entered: list[tuple[int, int, Keys | None, bool]] = []
    space = limits.WINDOW_RECORDS_MAX - window.acquired - window.due - window.delayed
    space += admission.order.blocked_records
    records = total = 0
    for run in fresh:
        first, last, keys, at_ms = run
        if records >= budget or total >= space:
            break
        assert first >= (plan.end_offset or window.end_offset), "new data inside the window"
        if at_ms:
            admission.stop(first, last, keys)
            plan.waiting.append(_scheduled(run))
            plan.end_offset = last + 1
            total += last - first + 1
            continue
        most = None if soft else budget - records
        for left, right, admitted in admission.split(first, last, keys, new=True, most=most):
            room = space - total
            if not soft and (admitted or records >= budget):
                room = min(room, budget - records)
            if room <= 0:
                break
            right = min(right, left + room - 1)
            entered.append((left, right, keys, admitted))
            total += right - left + 1
            records += (right - left + 1) * admitted
            plan.end_offset = right + 1
    if not entered:
        return
    base = entered[0][0]
    values: dict[int, RangeState] = {}
    for first, last, keys, admitted in entered:
        value = values.get(id(keys))
        if value is None:
            value = values[id(keys)] = RangeState(
                RecordState.AVAILABLE, batch_base=base, batch_size=total, keys=keys
            )
        if admitted:
            plan.take(first, last, value)
        else:
            plan.waiting.append(Take(first, last, value))
