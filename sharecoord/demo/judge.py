"""The verdict: was a record lost? Decided from the workers' ledgers and the producer's list.

The coordinator is not asked whether it did well. What its store says is only used against it: a
record that it gave up must be one that the workers failed at.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import pairwise

from sharecoord.core.dispatch.fair_share import jain_index
from sharecoord.core.states import ArchiveReason
from sharecoord.demo.ledger import Entry, Outcome, Verb

SHOWN_OFFSETS = 10
FINAL = (Outcome.ACCEPT, Outcome.REJECT)


@dataclass(frozen=True, slots=True)
class WorkerKill:
    """The kill -9 of a worker, and the deliveries (offset to count) that it had not finished."""

    member: str
    time_s: float
    held: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CoordinatorKill:
    """The kill -9 of the coordinator, and when its successor was ready."""

    time_s: float
    ready_s: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence that the judge weighs.

    Attributes:
        produced: Offsets that Kafka has confirmed.
        entries: Lines of all ledgers.
        delivery_limit: Deliveries after which a record is given up.
        unfinished: Records that the coordinator still has to deliver at the end.
        stored_reasons: Why the store calls a record archived, where that was seen.
        members: Workers that ran from beginning to end.
        worker_kill: None when no worker was killed, and so is the next for the coordinator.
        stalled_in: The scene in which nothing moved any more; empty = none.
    """

    produced: AbstractSet[int]
    entries: Sequence[Entry]
    delivery_limit: int
    unfinished: int
    stored_reasons: Mapping[int, str]
    members: Sequence[str]
    worker_kill: WorkerKill | None = None
    coordinator_kill: CoordinatorKill | None = None
    stalled_in: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of the demo. produced = processed once + processed again + archived + lost.

    Attributes:
        produced: Records in the log.
        processed_once: Accepted by exactly one worker, once.
        processed_again: Accepted twice or more: the first acknowledgement came too late, or never.
        redelivered: Delivered more than once, for whatever reason.
        overtaken: Deliveries that a living worker still worked on when the next one began: its
            lock had ended. Allowed, but a sign of workers that hold more than they can work off.
        archived: Given up, by reason.
        lost: Offsets neither processed nor archived for a good reason.
        faults: Broken promises, one sentence each.
        jain: Jain's index over what the workers handled that ran to the end.
        handled_least: The fewest deliveries that one of these workers handled.
        handled_most: The most that one handled.
        held_by_killed: Records that the killed worker held.
        redelivery_s: From that kill to the first and to the last of them at another worker.
        outage_s: From the kill of the coordinator to its successor's first delivery.
        locks_at_kill: Deliveries in workers' hands when the coordinator was killed.
        locks_kept: Deliveries among these whose acknowledgement its successor accepted.
    """

    produced: int
    processed_once: int
    processed_again: int
    redelivered: int
    overtaken: int
    archived: Mapping[str, int]
    lost: tuple[int, ...]
    faults: tuple[str, ...]
    jain: float
    handled_least: int
    handled_most: int
    held_by_killed: int = 0
    redelivery_s: tuple[float, float] | None = None
    outage_s: float | None = None
    locks_at_kill: int = 0
    locks_kept: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing was lost and every promise was kept."""
        return not self.lost and not self.faults


@dataclass(slots=True)
class _Record:
    """Lines of the ledgers about one record."""

    deliveries: list[tuple[float, str, int]] = field(default_factory=list)
    """Time, member and count of each delivery."""
    outcomes: list[tuple[float, int, Outcome]] = field(default_factory=list)
    """Time, count and outcome of each end of work."""
    confirmed: list[tuple[float, int, Outcome]] = field(default_factory=list)
    """Time, count and outcome of each confirmed acknowledgement."""

    @property
    def accepts(self) -> int:
        return sum(outcome is Outcome.ACCEPT for _, _, outcome in self.outcomes)

    @property
    def highest_count(self) -> int:
        return max((count for _, _, count in self.deliveries), default=0)


def _archive_reason(evidence: Evidence, offset: int, record: _Record) -> str | None:
    """Why a record was rightly given up, from what workers did; None = no reason known."""
    if any(outcome is Outcome.REJECT for _, _, outcome in record.outcomes):
        return ArchiveReason.REJECTED
    if record.highest_count >= evidence.delivery_limit:
        return ArchiveReason.DELIVERY_LIMIT
    # The last delivery may have waited in the buffer of the killed worker, seen by nobody.
    stored = evidence.stored_reasons.get(offset)
    one_short = record.highest_count == evidence.delivery_limit - 1
    if evidence.worker_kill and one_short and stored == ArchiveReason.DELIVERY_LIMIT:
        return ArchiveReason.DELIVERY_LIMIT
    return None


def judge(evidence: Evidence) -> Verdict:
    """Decides from the evidence."""
    records = _by_offset(evidence.entries)
    once = again = 0
    archived: Counter[str] = Counter()
    lost: list[int] = []
    for offset in sorted(evidence.produced):
        record = records.get(offset) or _Record()
        reason = _archive_reason(evidence, offset, record)
        if record.accepts:
            once += record.accepts == 1
            again += record.accepts > 1
        elif reason is not None:
            archived[reason] += 1
        else:
            lost.append(offset)
    done = Counter(entry.member for entry in evidence.entries if entry.verb is Verb.DID)
    handled = [done[member] for member in evidence.members]
    redelivery, held = _redelivery(evidence.worker_kill, records)
    outage_s, at_kill, kept = _outage(evidence)
    return Verdict(
        produced=len(evidence.produced),
        processed_once=once,
        processed_again=again,
        redelivered=sum(len(record.deliveries) > 1 for record in records.values()),
        overtaken=sum(_overtaken(record, evidence.worker_kill) for record in records.values()),
        archived=dict(sorted(archived.items())),
        lost=tuple(lost),
        faults=tuple(_faults(evidence, records)),
        jain=jain_index(handled),
        handled_least=min(handled, default=0),
        handled_most=max(handled, default=0),
        held_by_killed=held,
        redelivery_s=redelivery,
        outage_s=outage_s,
        locks_at_kill=at_kill,
        locks_kept=kept,
    )


def _by_offset(entries: Iterable[Entry]) -> dict[int, _Record]:
    records: defaultdict[int, _Record] = defaultdict(_Record)
    for entry in sorted(entries):
        if entry.verb is Verb.JOINED:
            continue
        record = records[entry.offset]
        if entry.verb is Verb.GOT:
            record.deliveries.append((entry.time_s, entry.member, entry.delivery_count))
        elif entry.verb is Verb.DID:
            record.outcomes.append((entry.time_s, entry.delivery_count, entry.outcome))
        elif entry.verb is Verb.CONFIRMED:
            record.confirmed.append((entry.time_s, entry.delivery_count, entry.outcome))
    return dict(records)


# -- promises -------------------------------------------------------------------------------------


def _faults(evidence: Evidence, records: Mapping[int, _Record]) -> list[str]:
    """Every broken promise as a sentence."""
    limit = evidence.delivery_limit
    checks: dict[str, Callable[[_Record], bool]] = {
        "delivered again after an acknowledgement that was confirmed": _settled_and_back,
        "held by two workers at the same delivery count": _held_twice,
        f"delivered more than {limit} times": lambda record: record.highest_count > limit,
    }
    faults = [
        _sentence(what, [offset for offset, record in records.items() if broken(record)])
        for what, broken in checks.items()
    ]
    faults.append(_sentence("never produced", sorted(records.keys() - evidence.produced)))
    faults.append(
        _sentence(
            "archived by the coordinator for another reason than the workers gave",
            [
                offset
                for offset, reason in evidence.stored_reasons.items()
                if _archive_reason(evidence, offset, records.get(offset) or _Record()) != reason
            ],
        )
    )
    faults.append(
        _sentence(
            "held by the killed worker and not delivered again with a delivery count one higher",
            _not_back(evidence, records),
        )
    )
    if evidence.unfinished:
        faults.append(f"{evidence.unfinished} records were not finished at the end")
    if evidence.stalled_in:
        faults.append(f"the demo came to a standstill at: {evidence.stalled_in}")
    return [fault for fault in faults if fault]


def _settled_and_back(record: _Record) -> bool:
    return any(
        _back_after(record, time_s, count)
        for time_s, count, outcome in record.confirmed
        if outcome in FINAL
    )


def _back_after(record: _Record, confirmed_s: float, count: int) -> bool:
    """Whether a record came back although the end of its `count`-th delivery was confirmed.

    A worker whose lock had ended is told "finished already, as you asked" when the next one was
    faster. So a later delivery is excused if it began before this confirmation and its worker, or
    another later one, was through with the record by then; nothing else is.
    """
    later = [time_s for time_s, _, other in record.deliveries if other > count]
    finished_meanwhile = any(
        other > count and time_s <= confirmed_s and outcome in FINAL
        for time_s, other, outcome in record.outcomes
    )
    return any(time_s > confirmed_s or not finished_meanwhile for time_s in later)


def _held_twice(record: _Record) -> bool:
    counts = [count for _, _, count in record.deliveries]
    return len(counts) != len(set(counts))


def _not_back(evidence: Evidence, records: Mapping[int, _Record]) -> list[int]:
    kill = evidence.worker_kill
    if kill is None:
        return []
    return [
        offset
        for offset, count in kill.held.items()
        # A delivery that was the last allowed one is not repeated: the record is given up.
        if count < evidence.delivery_limit and not _back(records.get(offset), kill.member, count)
    ]


def _back(record: _Record | None, killed: str, count: int) -> bool:
    return record is not None and any(
        other == count + 1 and member != killed for _, member, other in record.deliveries
    )


def _sentence(what: str, offsets: Sequence[int]) -> str:
    if not offsets:
        return ""
    shown = ", ".join(map(str, sorted(offsets)[:SHOWN_OFFSETS]))
    more = ", …" if len(offsets) > SHOWN_OFFSETS else ""
    return f"{len(offsets)} records were {what} (offsets {shown}{more})"


def _overtaken(record: _Record, kill: WorkerKill | None) -> int:
    """The number of deliveries of a record that were still worked on when the next one began."""
    ends = {count: time_s for time_s, count, _ in record.outcomes}
    in_order = sorted(record.deliveries, key=lambda delivery: delivery[2])
    return sum(
        ends.get(count, later_s) > later_s
        for (_, member, count), (later_s, _, _) in pairwise(in_order)
        if kill is None or member != kill.member
    )


# -- figures --------------------------------------------------------------------------------------


def _redelivery(
    kill: WorkerKill | None, records: Mapping[int, _Record]
) -> tuple[tuple[float, float] | None, int]:
    """Seconds from the kill to the first and the last redelivery; how many records it held."""
    if kill is None:
        return None, 0
    times = [
        time_s - kill.time_s
        for offset, count in kill.held.items()
        if offset in records
        for time_s, _, other in records[offset].deliveries
        if other == count + 1
    ]
    return ((min(times), max(times)) if times else None), len(kill.held)


def _outage(evidence: Evidence) -> tuple[float | None, int, int]:
    """Seconds to the first delivery by the successor; deliveries held at the kill, and kept."""
    kill = evidence.coordinator_kill
    if kill is None:
        return None, 0, 0
    killed = evidence.worker_kill.member if evidence.worker_kill else None
    open_: set[tuple[str, int, int]] = set()
    kept: set[tuple[str, int, int]] = set()
    first_s: float | None = None
    for entry in sorted(evidence.entries):
        place = (entry.member, entry.offset, entry.delivery_count)
        if entry.member == killed:
            continue
        if entry.time_s > kill.time_s:
            if entry.verb is Verb.CONFIRMED and place in open_:
                kept.add(place)
            if first_s is None and entry.verb is Verb.GOT and entry.time_s >= kill.ready_s:
                first_s = entry.time_s - kill.time_s
        elif entry.verb is Verb.GOT:
            open_.add(place)
        elif entry.verb in (Verb.CONFIRMED, Verb.REFUSED):
            open_.discard(place)
    return first_s, len(open_), len(kept)
