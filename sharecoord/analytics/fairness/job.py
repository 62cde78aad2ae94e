"""The fairness job: reads events, writes three tables, says what it found.

On a cluster:

    spark-submit --py-files sharecoord.zip job.py --events hdfs://… --out hdfs://…

where `sharecoord.zip` holds the package; one JSON object per group goes to stdout. In a notebook
the functions of `transform` are enough.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, Final

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


class FairnessResult(jobs.JobResult):
    """What the job found."""

    json_keys: ClassVar[tuple[str, ...]] = JSON_KEYS

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Rows of `transform.groups`, in order of the group ids."""
        return self.rows


def _write(log: EventLog, out: str, settings: FairnessSettings, steps: Steps) -> FairnessResult:
    """The three tables, each from what was written or kept before."""
    from sharecoord.analytics.census import beside, census_of, words
    from sharecoord.analytics.fairness import transform
    from sharecoord.analytics.names import naming, numbered

    numbers = log.changed(numbered)
    member_samples, counted = transform.samples(numbers.rows), census_of(numbers, words)
    histogram = numbers.summed(WAITS, transform.timings)
    window_ms = settings.window_ms
    handed_out = numbers.summed(
        HANDED, lambda events: transform.acquired(events, settings), window_ms=window_ms
    )
    with jobs.persisted(member_samples), naming(log, histogram, counted) as named:
        steps.at(1, "windows")
        rows = transform.windows(member_samples, handed_out, settings)
        windows = jobs.save(named(rows), out, WINDOWS)
        steps.at(2, "members")
        rows = transform.members(member_samples, histogram, settings)
        members = jobs.save(named(rows), out, MEMBERS)
        steps.at(3, "groups")
        # Nothing else of them is shown.
        histogram, counted = named(histogram, "group_id"), named(counted, "group_id")
        groups = jobs.save(transform.groups(windows, members, histogram, counted), out, GROUPS)
        return FairnessResult(jobs.listed(groups, "group_id"), **beside(counted))


JOB: Final = jobs.Job(
    NAME,
    "How fair share groups were.",
    _write,
    FairnessSettings,
    first_step="windows",
    steps=3,
    options=jobs.add_window,
    chosen=lambda given: FairnessSettings(window_ms=given.window),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
