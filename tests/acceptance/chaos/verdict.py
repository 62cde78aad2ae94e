"""What the ledgers of a run prove, without asking the coordinator whether it did well.

The demo's judge says whether a record was lost, came back after a confirmed end, was handed out
twice at one delivery count, or too often. What is added here needs the workers' clocks: counts
that grow with time, and no second delivery while the lock of the first was valid.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from sharecoord.demo.judge import Evidence, judge
from sharecoord.demo.ledger import Entry, Outcome, Verb
from tests.acceptance.chaos.records import LEAVING, LockEntry

DELIVERY_LIMIT = 1_000
"""High enough that no record of a run is given up: then every one must be processed."""

LOCK_MARGIN_S = 1.0
"""A worker counts its lock from receipt, so it believes in it for longer than the coordinator: by
the time the batch was on its way, which on a busy machine is a scheduler's pause or two."""


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong, a sentence each; and figures that show that the run was one.

    Attributes:
        faults: Broken promises.
        redelivered: Records that were delivered more than once.
        processed_again: Records that were accepted more than once (allowed: late or unconfirmed).
        archived: Records that were given up at the delivery limit.
    """

    faults: tuple[str, ...]
    redelivered: int
    processed_again: int
    archived: int = 0


def weigh(
    produced: AbstractSet[int],
    entries: Sequence[Entry],
    locks: Sequence[LockEntry],
    *,
    unfinished: int = 0,
    margin_s: float = LOCK_MARGIN_S,
    delivery_limit: int = DELIVERY_LIMIT,
) -> Findings:
    """Judges a finished run.

    Args:
        produced: Offsets in the log.
        entries: All ledgers.
        locks: All lock files.
        unfinished: Records that the coordinator still counts as lag.
        margin_s: How much longer than the coordinator a worker may believe in its lock.
        delivery_limit: The group's `share.delivery.count.limit`.
    """
    verdict = judge(
        Evidence(
            produced=produced,
            entries=entries,
            delivery_limit=delivery_limit,
            unfinished=unfinished,
            stored_reasons={},
            members=(),
        )
    )
    faults = list(verdict.faults)
    if verdict.lost:
        faults.append(f"{len(verdict.lost)} records were lost: {list(verdict.lost[:10])}")
    faults += overlaps(locks, entries, margin_s)
    faults += resets(locks)
    return Findings(
        tuple(faults), verdict.redelivered, verdict.processed_again, sum(verdict.archived.values())
    )


def overlaps(locks: Iterable[LockEntry], entries: Iterable[Entry], margin_s: float) -> list[str]:
    """Deliveries that began while the lock of the one before was valid."""
    left = {each.member: each.time_s for each in locks if each.offset == LEAVING}
    released = {
        (each.member, each.offset, each.delivery_count): each.time_s
        for each in entries
        if each.verb is Verb.DID and each.outcome is Outcome.RELEASE
    }
    found = []
    for offset, deliveries in _by_offset(locks).items():
        for before, after in pairwise(deliveries):
            place = (before.member, offset, before.delivery_count)
            given_up_s = min(
                left.get(before.member, before.deadline_s),
                released.get(place, before.deadline_s),
                before.deadline_s,
            )
            if after.time_s + margin_s < given_up_s:
                found.append(
                    f"offset {offset} went to {after.member} while {before.member} had it for "
                    f"{given_up_s - after.time_s:.2f} s more"
                )
    return found


def resets(locks: Iterable[LockEntry]) -> list[str]:
    """Records whose delivery count did not grow from one delivery to the next."""
    return [
        f"offset {offset}: delivery count {after.delivery_count} after {before.delivery_count}"
        for offset, deliveries in _by_offset(locks).items()
        for before, after in pairwise(deliveries)
        if after.delivery_count <= before.delivery_count
    ]


def _by_offset(locks: Iterable[LockEntry]) -> Mapping[int, list[LockEntry]]:
    found: defaultdict[int, list[LockEntry]] = defaultdict(list)
    for each in sorted(locks):
        if each.offset != LEAVING:
            found[each.offset].append(each)
    return found
