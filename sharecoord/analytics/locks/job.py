"""The locks job: reads events, writes two tables, says how long locks are held and should last.

On a cluster as `fairness.job`; one JSON object per group goes to stdout.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, ClassVar, Final

from sharecoord.analytics import jobs
from sharecoord.eventlog.rollups import ATTEMPTS

if TYPE_CHECKING:
    from sharecoord.analytics.progress import Steps
    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord locks"
MEMBERS: Final = "locks_members"
GROUPS: Final = "locks_groups"
JSON_KEYS: Final = (
    *("group", "acknowledged", "renewed", "expired", "departed", "near_misses", "held_p50_ms"),
    *("held_p95_ms", "held_p99_ms", "held_p999_ms", "held_max_ms", "lock_ms", "at_a_time"),
    *("work_ms", "advice", "advised_lock_ms", "poll_records", "complete"),
)


class LocksResult(jobs.JobResult):
    """Rows of `transform.groups`, in order of the group ids."""

    json_keys: ClassVar[tuple[str, ...]] = JSON_KEYS


def _write(log: EventLog, out: str, _: None, steps: Steps) -> LocksResult:
    """Both tables from what is kept."""
    from sharecoord.analytics.attempts import attempts
    from sharecoord.analytics.census import beside, census_of, words
    from sharecoord.analytics.locks import transform

    made, counted = log.summed(ATTEMPTS, attempts), census_of(log, words)
    with jobs.persisted(made, counted):
        steps.at(1, "members")
        jobs.save(transform.members(made), out, MEMBERS)
        steps.at(2, "groups")
        groups = jobs.save(transform.groups(made, counted), out, GROUPS)
        return LocksResult(jobs.listed(groups, "group_id"), **beside(counted))


JOB: Final = jobs.Job(
    NAME,
    "How long locks are held, and which duration would fit.",
    _write,
    lambda: None,
    first_step="members",
    steps=2,
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
