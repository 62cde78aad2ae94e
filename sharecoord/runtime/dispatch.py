"""Fair dispatch: who gets the next records of a partition (design 5).

When less is available than wanted, no member gets more than its share of what is there, and none
waits while another holds more than its share of the window.
"""

from __future__ import annotations

from collections.abc import Sequence

from sharecoord.runtime.partition_actor import PartitionActor
from sharecoord.runtime.sessions import Session


def dispatch(
    actor: PartitionActor, members: Sequence[Session], held: dict[str, int], turn: int
) -> int:
    """Hands out what a partition has to the members that want it; returns how many records.

    Args:
        actor: The partition.
        members: Sessions that may receive from it.
        held: Records that each member holds in all partitions; kept right.
        turn: Where the round begins, so that nobody is always first.
    """
    total = 0
    waiting = [s for s in members if s.wants(held.get(s.member_id, 0)) > 0]
    while waiting:
        available = actor.available()
        if available <= 0:
            break
        fair = max(1, available // len(waiting))
        start = turn % len(waiting)
        again: list[Session] = []
        sent = 0
        for session in waiting[start:] + waiting[:start]:
            got = _serve(actor, session, fair, held)
            sent += got
            if got and session.wants(held.get(session.member_id, 0)) > 0:
                again.append(session)
        total += sent
        if not sent:
            break
        turn += 1
        waiting = again
    return total


def _serve(actor: PartitionActor, session: Session, fair: int, held: dict[str, int]) -> int:
    """Up to `fair` records for one member, in batches."""
    got_total = 0
    while got_total < fair:
        holding = held.get(session.member_id, 0)
        wanted = min(session.wants(holding), fair - got_total, session.batch_records_max)
        if wanted <= 0:
            break
        got = actor.acquire(session, wanted)
        if not got:
            break
        held[session.member_id] = holding + got
        got_total += got
    return got_total
