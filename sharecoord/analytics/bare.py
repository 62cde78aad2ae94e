"""What the jobs are measured against: the least that a query over all events can do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sharecoord.analytics import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLE: Final = "bare"


def run(spark: SparkSession, events: str, out: str) -> None:
    """Counts rows and adds up records by member, and writes the table `bare`.

    Args:
        spark: The session.
        events: Folder of the events.
        out: Folder of the table.
    """
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

    sums = F.count(F.lit(1)).alias("rows"), F.sum("records").alias("records")
    jobs.save(spark.read.parquet(events).groupBy("member_id").agg(*sums), out, TABLE)


def jvm_pid(spark: SparkSession) -> int:
    """Process of the driver's JVM, whose memory is looked at."""
    jvm: Any = spark._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())
