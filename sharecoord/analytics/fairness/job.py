"""The fairness job: reads events, writes three tables, says who starved and how fair groups were.

On a cluster:

    spark-submit --py-files sharecoord.zip job.py --events hdfs://… --out hdfs://…

where `sharecoord.zip` holds the package; one JSON object per group goes to stdout. In a notebook
the functions of `transform` are enough.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from sharecoord.analytics import jobs
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.eventlog.rollups import HANDED, WAITS

if TYPE_CHECKING:
    from sharecoord.analytics.progress import Steps
    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord fairness"
WINDOWS: Final = "fairness_windows"
MEMBERS: Final = "fairness_members"
GROUPS: Final = "fairness_groups"
JSON_KEYS: Final = (
    *("group", "members", "starved", "starved_members", "jain", "gini", "top_share"),
    *("dwell_p99_ms", "complete"),
)


def _write(
    log: EventLog, out: str | None, settings: FairnessSettings, steps: Steps
) -> jobs.JobResult:
    """Writes the tables, each from those before and from kept frames; returns the groups."""
    from sharecoord.analytics.census import census_of_log, change_bits, result_fields
    from sharecoord.analytics.fairness import transform
    from sharecoord.analytics.names import naming, numbered

    numbers = log.changed(numbered)
    member_samples = transform.samples(numbers.rows)
    census_rows = census_of_log(numbers, change_bits)
    histogram = numbers.summed_rows(WAITS, transform.timings)
    window_ms = settings.window_ms
    handed_out = numbers.summed_rows(
        HANDED, lambda events: transform.acquired(events, settings), window_ms=window_ms
    )
    with jobs.persisted(member_samples), naming(log, histogram, census_rows) as named:
        steps.next()
        rows = transform.windows(member_samples, handed_out, settings)
        windows = jobs.save(named(rows), out, WINDOWS)
        steps.next()
        rows = transform.members(member_samples, histogram, settings)
        members = jobs.save(named(rows), out, MEMBERS)
        steps.next()
        # No other name of these two is shown.
        histogram, census_rows = named(histogram, "group_id"), named(census_rows, "group_id")
        groups = jobs.save(transform.groups(windows, members, histogram, census_rows), out, GROUPS)
        rows_of_groups = jobs.listed(groups, "group_id")
        return jobs.JobResult(rows_of_groups, JSON_KEYS, **result_fields(census_rows))


JOB: Final = jobs.Job(
    NAME,
    "How fair share groups were.",
    _write,
    FairnessSettings,
    ("windows", "members", "groups"),
    add_options=jobs.add_window,
    chosen=lambda given: FairnessSettings(window_ms=given.window),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
