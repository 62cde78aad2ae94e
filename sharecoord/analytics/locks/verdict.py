"""The verdict on the locks of a group: its figures and advice in words; no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sharecoord.analytics.locks.settings import Advice
from sharecoord.analytics.phrases import locks_of, missing_changes
from sharecoord.analytics.times import span

_TEXTS: Final = {
    Advice.FITS: "the lock of {lock} fits: 99.9 % of records need at most {high}",
    Advice.SHORTER: "the lock of {lock} is longer than needed: 99.9 % of records need at most "
    "{high}, {advised} would do, and a dead worker's records would be back sooner",
    Advice.GONE: "{expired} expired although 99.9 % of records need at most {high} of {lock}: "
    "their holders were gone; a lock of {advised} would bring such records back sooner",
    Advice.FEWER_RECORDS: "{missed}: a record takes {work}, but {at_a_time:.0f} are held at a "
    "time; set max.poll.records to at most {poll}, or the lock to {advised}",
    Advice.RENEW: "{missed}: few records take long (half need at most {middle}, 99.9 % {high}); "
    "renew their locks, or set the lock to {advised}",
    Advice.LONGER: "{missed}: 99.9 % of records need {high} of {lock}; set the lock to {advised}",
}


def verdict(group: Mapping[str, Any]) -> str:
    """A row of `transform.groups` in one line."""
    return "; ".join([_advice(group), *missing_changes(group)])


def _advice(group: Mapping[str, Any]) -> str:
    # The columns are null when nothing was delivered at all.
    advice, count = Advice(group["advice"] or Advice.TOO_FEW), group["expired"] or 0
    expired = locks_of(count)
    if advice is Advice.TOO_FEW:
        known = f"no advice: {group['acknowledged'] or 0} records were acknowledged"
        return f"{known}, {expired} expired" if count else known
    missed = f"{expired} expired, of {group['near_misses']} nearly"
    return _TEXTS[advice].format(
        lock=_span(group["lock_ms"]),
        high=_span(group["held_p999_ms"]),
        middle=_span(group["held_p50_ms"]),
        advised=_span(group["advised_lock_ms"]),
        expired=expired,
        missed=missed,
        at_a_time=group["at_a_time"],
        poll=group["poll_records"],
        work="" if group["work_ms"] is None else _span(group["work_ms"]),
    )


def _span(ms: float) -> str:
    return span(ms / 1_000)
