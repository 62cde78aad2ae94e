"""The rows of the report's plots, as functions from frames to small frames.

Every result is bounded per group by the constants of `model`, whatever the number of members,
windows and events: the page takes no other rows.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.report.model import HEAT_ROWS, MEMBERS_LISTED, POINTS, TIMES
from sharecoord.eventlog.schema import EventKind


def _binned(frame: DataFrame, number: str) -> DataFrame:
    """Adds `bin`: in which of at most `TIMES` equal parts of its group's range a number lies."""
    ends = frame.groupBy("group_id").agg(
        F.min(number).alias("_first"), (F.max(number) - F.min(number) + 1).alias("_count")
    )
    part = F.least(F.col("_count"), F.lit(TIMES))
    at = F.floor((F.col(number) - F.col("_first")) * part / F.col("_count"))
    joined = frame.join(F.broadcast(ends), "group_id")
    return joined.withColumn("bin", at.cast("int")).drop("_first", "_count")


def _rank(order: Column) -> tuple[Column, Column]:
    """Place of a member in its group from 0 on, and the number of members of the group."""
    together = Window.partitionBy("group_id")
    place = F.row_number().over(together.orderBy(order, "member_id")) - 1
    return place, F.count(F.lit(1)).over(together)


def heat_rows(members: DataFrame) -> DataFrame:
    """The row of the heat map of each member; the one that got the most is on top.

    From the table `fairness_members`. Columns: group_id, member_id, client_id, first_seen,
    last_seen, row.
    """
    place, count = _rank(F.desc("records"))
    rows = F.least(count, F.lit(HEAT_ROWS))
    return members.select(
        *("group_id", "member_id", "client_id", "first_seen", "last_seen"),
        F.floor(place * rows / count).cast("int").alias("row"),
    )


def heat_labels(rows: DataFrame) -> DataFrame:
    """The rows of the heat map, from `heat_rows`.

    Columns: group_id, row, members (their number), name (of one of them), first_ms and last_ms
    (between these times one of them wanted records; since the epoch, null when none ever did).
    """
    name = F.coalesce(F.when(F.col("client_id") != "", F.col("client_id")), F.col("member_id"))
    return rows.groupBy("group_id", "row").agg(
        F.count(F.lit(1)).alias("members"),
        F.min(name).alias("name"),
        F.unix_millis(F.min("first_seen")).alias("first_ms"),
        F.unix_millis(F.max("last_seen")).alias("last_ms"),
    )


def heat(handed_out: DataFrame, rows: DataFrame) -> DataFrame:
    """The records that each row of the heat map got, over time.

    From `fairness.transform.acquired` and `heat_rows`. Columns: group_id, row, bin, first_window
    (number), records. A row without records has no cell.
    """
    sums = _binned(handed_out, "window").groupBy("group_id", "member_id", "bin")
    cells = sums.agg(*measures.sums("records"), F.min("window").alias("first_window"))
    return (
        cells.join(rows.select("group_id", "member_id", "row"), ["group_id", "member_id"])
        .groupBy("group_id", "row", "bin")
        .agg(*measures.sums("records"), *measures.least("first_window"))
    )


def lorenz(members: DataFrame) -> DataFrame:
    """Share of the records that the least served members have, by share of the members.

    From the table `fairness_members`. Columns: group_id, members_share, records_share.
    """
    together = Window.partitionBy("group_id")
    so_far = together.orderBy("records", "member_id").rowsBetween(Window.unboundedPreceding, 0)
    place, count = F.count(F.lit(1)).over(so_far), F.count(F.lit(1)).over(together)
    total = F.sum("records").over(together)
    curve = members.select(
        "group_id",
        F.ceil(place * POINTS / count).alias("point"),
        measures.ratio(place, count).alias("members_share"),
        measures.ratio(F.sum("records").over(so_far), total).alias("records_share"),
    )
    return curve.groupBy("group_id", "point").agg(
        *measures.greatest("members_share", "records_share")
    )


def dwells(members: DataFrame) -> DataFrame:
    """Waiting times of members, from the shortest p99 to the longest.

    From the table `fairness_members`. Columns: group_id, members_share, dwell_p50_ms, dwell_p99_ms
    (the highest of the members that share a point).
    """
    place, count = _rank(F.asc("dwell_p99_ms"))
    known = members.where(F.col("dwell_p99_ms").isNotNull())
    curve = known.select(
        "group_id",
        F.ceil((place + 1) * POINTS / count).alias("point"),
        measures.ratio(place + 1, count).alias("members_share"),
        *("dwell_p50_ms", "dwell_p99_ms"),
    )
    return curve.groupBy("group_id", "point").agg(
        *measures.greatest("members_share", "dwell_p50_ms", "dwell_p99_ms")
    )


def window_use(events: DataFrame, window_ms: int) -> DataFrame:
    """How full the windows of a group's share-partitions were, over time.

    Columns: group_id, bin, at_ms (since the epoch), use (records under locks / records that may be
    under locks; the mean), use_max (of a share-partition at one moment).
    """
    sampled = events.where(
        (F.col("kind") == EventKind.PARTITION.value) & (F.col("window_max") > 0)
    ).select(
        "group_id",
        F.floor(F.unix_millis("time") / window_ms).alias("window"),
        *("acquired", "window_max"),
    )
    use = measures.ratio(F.col("acquired"), F.col("window_max"))
    by_window = sampled.groupBy("group_id", "window").agg(
        *measures.sums("acquired", "window_max"), F.max(use).alias("use_max")
    )
    return (
        _binned(by_window, "window")
        .groupBy("group_id", "bin")
        .agg(
            (F.min("window") * window_ms).alias("at_ms"),
            measures.ratio(F.sum("acquired"), F.sum("window_max")).alias("use"),
            *measures.greatest("use_max"),
        )
    )


def waiting(lag_windows: DataFrame) -> DataFrame:
    """Records that waited, over time, in all share-partitions of a group together.

    From the table `lag_windows`. Columns: group_id, bin, at_ms (since the epoch), waiting (the most
    of the bin's windows).
    """
    at_ms = F.unix_millis("window_start").alias("at_ms")
    sums = lag_windows.groupBy("group_id", at_ms).agg(*measures.sums("waiting"))
    return (
        _binned(sums, "at_ms")
        .groupBy("group_id", "bin")
        .agg(*measures.least("at_ms"), *measures.greatest("waiting"))
    )


def listed_members(members: DataFrame) -> DataFrame:
    """At most `MEMBERS_LISTED` rows of `fairness_members` per group.

    First the members that starved the longest, then those with the most records.
    """
    order = Window.partitionBy("group_id").orderBy(
        F.desc("starved"), F.desc("starvation_ms"), F.desc("records"), "member_id"
    )
    ranked = members.withColumn("_place", F.row_number().over(order))
    return ranked.where(F.col("_place") <= MEMBERS_LISTED).drop("_place")
