"""Measurements for a simulation, from events: arrivals per second, and service times of members.

Functions from frames to small frames: a row per second and partition, and at most a few hundred
rows per member. Nothing here collects rows, and nothing runs in Python.
"""

from __future__ import annotations

import math
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.eventlog.schema import EventKind, RangeEvent

BUCKET_RATIO: Final = 1.05
"""Width of a bucket of service times; a bucket has the mean of its times, so means are exact."""
SERVICE_MS_MIN: Final = 0.001
"""Shorter times count as this one."""
SETTLED: Final = (RangeEvent.ACCEPTED.value, RangeEvent.RELEASED.value)
"""Events of records whose handler has ended."""


def subjects(events: DataFrame) -> DataFrame:
    """The recorded groups and topics: a row for each.

    Columns: group_id, topic, partitions, members (most at a time that wanted the topic), begin and
    end (times of the first and the last sample).
    """
    return (
        events.where(F.col("kind") == EventKind.PARTITION.value)
        .groupBy("group_id", "topic")
        .agg(
            F.countDistinct("partition").alias("partitions"),
            F.max("members").alias("members"),
            F.min("time").alias("begin"),
            F.max("time").alias("end"),
        )
    )


def backlog(events: DataFrame) -> DataFrame:
    """The records that waited when the recording began: columns partition and records."""
    return (
        events.where(F.col("kind") == EventKind.PARTITION.value)
        .groupBy("partition")
        .agg(F.coalesce(F.min_by("lag", "time"), F.lit(0)).alias("records"))
    )


def arrivals(events: DataFrame) -> DataFrame:
    """Number of records that came per second, from the growth of the logs' ends.

    The growth between samples that are further apart is spread over the seconds between them. A log
    whose end went back (a topic made anew) got no records in that second.

    Columns: partition, second (since the epoch), records.
    """
    by_partition = Window.partitionBy("partition").orderBy("slot")
    ends = (
        events.where(F.col("kind") == EventKind.PARTITION.value)
        .withColumn("slot", F.floor(F.unix_millis("time") / 1000))
        .groupBy("partition", "slot")
        .agg(F.max_by("log_end_offset", "time").alias("log_end"))
        .withColumn("before", F.lag("slot").over(by_partition))
        .withColumn(
            "came", F.greatest(F.col("log_end") - F.lag("log_end").over(by_partition), F.lit(0))
        )
        .where(F.col("before").isNotNull())
        .withColumn("seconds", F.col("slot") - F.col("before"))
    )
    spread = ends.select(
        *("partition", "came", "seconds"),
        F.posexplode(F.sequence(F.col("before") + 1, F.col("slot"))).alias("at", "second"),
    )
    until = F.expr("came * (at + 1) div seconds")
    return spread.select(
        "partition", "second", (until - F.expr("came * at div seconds")).alias("records")
    )


def service_times(events: DataFrame) -> DataFrame:
    """How long members had a record: a histogram per member.

    From `work_us` where members report it, else from `held_ms`, which has the waiting in it.

    Columns: member_id, ms (mean of the bucket), records.
    """
    total_ms = F.coalesce(F.col("work_us") / 1000, F.col("held_ms"))
    each_ms = F.greatest(total_ms / F.col("records"), F.lit(SERVICE_MS_MIN))
    return (
        events.where(F.col("kind") == EventKind.RANGE.value)
        .where(F.col("event").isin(*SETTLED))
        .where((F.col("records") > 0) & F.col("member_id").isNotNull() & total_ms.isNotNull())
        .withColumn("each_ms", each_ms)
        .withColumn("bucket", F.round(F.log("each_ms") / math.log(BUCKET_RATIO)))
        .groupBy("member_id", "bucket")
        .agg(
            (F.sum(F.col("each_ms") * F.col("records")) / F.sum("records")).alias("ms"),
            F.sum("records").alias("records"),
        )
        .select("member_id", "ms", "records")
    )
