"""The bare query that `sharecoord bench jobs` measures the jobs against."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sharecoord.analytics import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, events: str, out: str) -> None:
    """Counts rows and adds up records by member, the least that a query over all events can do.

    `events` is a folder; the folder `out` gets the table `bare`.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    totals = F.count(F.lit(1)).alias("rows"), F.sum("records").alias("records")
    jobs.save(spark.read.parquet(events).groupBy("member_id").agg(*totals), out, "bare")


def jvm_pid(spark: SparkSession) -> int:
    """Process id of the driver's JVM, whose memory the benchmark looks at."""
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())
