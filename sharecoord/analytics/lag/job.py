"""The lag job: reads events, writes four tables, says which share-partitions are behind and why.

It runs on a cluster as `fairness.job`; one JSON object per share-partition goes to stdout.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from sharecoord.analytics import jobs
from sharecoord.analytics.lag.settings import LagSettings
from sharecoord.eventlog.rollups import HAPPENED, LAGS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from sharecoord.analytics.progress import Steps
    from sharecoord.analytics.rollups import EventLog

NAME: Final = "sharecoord lag"
WINDOWS: Final = "lag_windows"
STRETCHES: Final = "lag_stretches"
CAUSES: Final = "lag_causes"
PARTITIONS: Final = "lag_partitions"
JSON_KEYS: Final = (
    *("group", "topic", "partition", "lag", "waiting", "behind_ms", "behind", "arrival_rate"),
    *("service_rate", "trend", "slope", "drain_s", "forecast_error", "forecast_error_naive"),
    *("lag_share", "topic_gini", "stretches", "last_without_lag", "since", "until", "causes"),
    "complete",
)


def _write(log: EventLog, out: str | None, settings: LagSettings, steps: Steps) -> jobs.JobResult:
    """Writes the tables, each from those before; returns the share-partitions that lag first."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from sharecoord.analytics.census import census_of_log, result_fields
    from sharecoord.analytics.lag import transform
    from sharecoord.analytics.lag.trend import trends

    window_ms = settings.window_ms

    def changes(events: DataFrame) -> DataFrame:
        return transform.changes(events, settings)

    sampled = log.summed_rows(
        LAGS, lambda events: transform.samples(events, settings), window_ms=window_ms
    )
    census_rows = census_of_log(log, changes, window_ms=window_ms)
    with jobs.persisted(*log.of_unrolled(changes, window_ms=window_ms), census_rows):
        steps.next()
        happened = transform.happened(log.partial_rows(HAPPENED, changes, window_ms=window_ms))
        rows = transform.windows(sampled, happened, settings)
        windows = jobs.save(rows, out, WINDOWS)
        steps.next()
        stretches = jobs.save(transform.stretches(windows), out, STRETCHES)
        steps.next()
        causes = jobs.save(transform.causes(windows), out, CAUSES)
        steps.next()
        rows = transform.partitions(windows, stretches, causes, trends(windows), census_rows)
        partitions = jobs.save(rows, out, PARTITIONS)
        order = [F.desc("behind"), F.desc("waiting"), *map(F.col, transform.PLACE)]
        rows_of_places = jobs.listed(partitions, *order)
        return jobs.JobResult(rows_of_places, JSON_KEYS, **result_fields(census_rows))


JOB: Final = jobs.Job(
    NAME,
    "How far behind share groups are, and why.",
    _write,
    LagSettings,
    ("windows", "stretches", "causes", "share-partitions"),
    add_options=jobs.add_window,
    chosen=lambda given: LagSettings(window_ms=given.window),
)
run = JOB.run
main = JOB.main

if __name__ == "__main__":
    sys.exit(main())
