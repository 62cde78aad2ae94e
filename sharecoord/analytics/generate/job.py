"""Writes a generated event log: the folders of a real one, and `_truth.json` with what to find."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import frames, progress
from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.generate.plan import GeneratorSettings, make_plan, truth
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
    """Writes the log; returns what `_truth.json` says.

    Args:
        spark: The session.
        out: A new or empty folder, on any file system that Spark knows.
        settings: What the log is to hold.

    Raises:
        AnalyticsError: The settings do not fit together, or the folder has files.
    """
    plan = make_plan(settings)
    files = _Files(spark, out)
    files.check_empty()
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    from sharecoord.analytics.generate import rows

    def write(_: object) -> tuple[int, dict[str, int]]:
        frame = rows.rows(spark, plan)
        # Of UTC, whatever time zone the session has.
        date = F.date_from_unix_date(F.floor(F.unix_seconds("time") / DAY_S).cast("int"))
        parted = frame.withColumn("date", date).withColumn("group", F.col("group_id"))
        parted.write.mode("append").option("compression", "zstd").partitionBy(
            "date", "group"
        ).parquet(out)
        made = frames.read_events(spark, out)
        lost = made.where(F.col("kind") == EventKind.LOST).groupBy("group_id").agg(F.sum("records"))
        return made.count(), {row[0]: row[1] for row in lost.collect()}

    writers = {"spark.sql.maxConcurrentOutputFileWriters": str(OPEN_FILES_MAX)}
    with defaults(spark, writers), progress.shown(spark, "events"):
        count, lost = frames.reading(write, skip_corrupt=False, findings=frames.Findings())
    files.rename()
    found = truth(plan, count, lost)
    files.write(TRUTH, json.dumps(found, indent=1).encode())
    return found


class _Files:
    """The folder that is written, by Hadoop's API: it may lie anywhere."""

    def __init__(self, spark: SparkSession, out: str) -> None:
        self._out = out
        gateway: Any = spark.sparkContext._jvm
        self._path = gateway.org.apache.hadoop.fs.Path
        self._root = self._path(out)
        self._system = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    def check_empty(self) -> None:
        """Raises AnalyticsError when the folder has files: rows of two logs would mix."""
        if self._system.exists(self._root) and list(self._system.listStatus(self._root)):
            raise AnalyticsError(f"--out {self._out} is not empty: name a new folder")

    def rename(self) -> None:
        """Gives files the names that a coordinator would give them."""
        for status in self._system.globStatus(self._path(f"{self._out}/date=*/group=*/part-*")):
            old = status.getPath()
            name = old.getName().replace("part-", "events-generated-", 1)
            self._system.rename(old, self._path(old.getParent(), name))

    def write(self, name: str, content: bytes) -> None:
        """Writes a small file."""
        stream = self._system.create(self._path(self._root, name), True)  # noqa: FBT003 - Java
        stream.write(bytearray(content))
        stream.close()
