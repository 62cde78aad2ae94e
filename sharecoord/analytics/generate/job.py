"""Writes a generated event log: the folders of a real one, and `_truth.json` with what to find."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import frames, progress
from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.generate.plan import GeneratorSettings, make_plan, truth
from sharecoord.analytics.hadoop import HadoopFolder
from sharecoord.analytics.session import defaults
from sharecoord.eventlog.schema import EventKind

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME: Final = "sharecoord generate"
TRUTH: Final = "_truth.json"
"""Spark and the commands on events do not read files whose names begin with `_`."""
OPEN_FILES_MAX: Final = 32
"""Files that a task writes at a time; more groups or dates in one task are sorted first."""

DAY_S: Final = 86_400


def run(spark: SparkSession, out: str, settings: GeneratorSettings) -> dict[str, Any]:
    """Writes the log into a new or empty folder; returns the content of `_truth.json`.

    Raises:
        AnalyticsError: The settings do not fit together, or the folder has files.
    """
    plan = make_plan(settings)
    folder = HadoopFolder(spark, out)
    if folder.children():  # rows of two logs would mix
        raise AnalyticsError(f"--out {out} is not empty: name a new folder")
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from sharecoord.analytics.generate import rows

    def write(_: object) -> tuple[int, dict[str, int]]:
        # The date in UTC, whatever time zone the session has.
        date = F.date_from_unix_date(F.floor(F.unix_seconds("time") / DAY_S).cast("int"))
        dated = rows.rows(spark, plan).withColumns({"date": date, "group": F.col("group_id")})
        writer = dated.write.mode("append").option("compression", "zstd")
        writer.partitionBy("date", "group").parquet(out)
        events = frames.read_events(spark, out)
        lost = events.where(F.col("kind") == EventKind.LOST).groupBy("group_id")
        lost_rows = lost.agg(F.sum("records")).collect()
        return events.count(), {row[0]: row[1] for row in lost_rows}

    writers = {"spark.sql.maxConcurrentOutputFileWriters": str(OPEN_FILES_MAX)}
    with defaults(spark, writers), progress.shown(spark, "events"):
        count, lost = frames.reading(write, skip_corrupt=False, findings=frames.Findings())
    # The names that a coordinator would give them.
    folder.rename_files("date=*/group=*/part-*", "part-", "events-generated-")
    content = truth(plan, count, lost)
    folder.write(TRUTH, json.dumps(content, indent=1))
    return content
