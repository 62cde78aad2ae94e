"""The locks job: reads events, writes two tables, says how long locks are held and should last.

It runs on a cluster as `fairness.job`; one JSON object per group goes to stdout.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

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


def _write(log: EventLog, out: str | None, _: None, steps: Steps) -> jobs.JobResult:
    """Writes both tables; returns the groups."""
    from sharecoord.analytics.attempts import attempts
    from sharecoord.analytics.census import census_of_log, change_bits, result_fields
    from sharecoord.analytics.locks import transform

    attempt_rows = log.summed_rows(ATTEMPTS, attempts)
    census_rows = census_of_log(log, change_bits)
    with jobs.persisted(attempt_rows, census_rows):
        steps.next()
        jobs.save(transform.members(attempt_rows), out, MEMBERS)
        steps.next()
        groups = jobs.save(transform.groups(attempt_rows, census_rows), out, GROUPS)
        rows_of_groups = jobs.listed(groups, "group_id")
        return jobs.JobResult(rows_of_groups, JSON_KEYS, **result_fields(census_rows))


JOB: Final = jobs.Job(
    NAME,
    "How long locks are held, and which duration would fit.",
    _write,
    lambda: None,
    ("members", "groups"),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
