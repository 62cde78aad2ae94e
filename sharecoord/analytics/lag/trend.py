"""Trends of waiting records: a robust line (Theil and Sen), and how far such a line was off.

A line takes at most `TREND_WINDOWS` points of a share-partition, as an array in one row: no joins.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics.lag.settings import (
    KNOWN_PART,
    TREND_SCORE,
    TREND_WINDOWS,
    TREND_WINDOWS_MIN,
)
from sharecoord.analytics.lag.transform import PLACE

GROWS, DRAINS, STEADY = "grows", "drains", "steady"


def trends(window_rows: DataFrame) -> DataFrame:
    """The trend of waiting records at the end of the range, and how good such forecasts were.

    From `transform.windows`. Columns: group_id, topic, partition, trend (grows, drains, steady;
    null: fewer than `TREND_WINDOWS_MIN` windows), slope (records/s), drain_s (until nothing waits;
    null: never, or not known), forecast_error and forecast_error_naive (mean distance in records of
    the windows after `KNOWN_PART` of the range from the line that was drawn there, and from the
    records that waited there; null: nothing to compare).
    """
    places, ordered = Window.partitionBy(*PLACE), Window.partitionBy(*PLACE).orderBy("sampled_at")
    at_s = F.unix_micros("sampled_at") / 1e6
    points = (
        window_rows.select(
            *PLACE,
            (at_s - F.max(at_s).over(places)).alias("x"),
            F.col("waiting").cast("double").alias("y"),
            F.row_number().over(ordered).alias("i"),
            F.count(F.lit(1)).over(places).alias("n"),
        )
        # Seconds relative to the last window, so that rounding does no harm.
        .withColumn("cut", F.floor(F.col("n") * KNOWN_PART))
    )
    now = _line(points, F.col("n"))
    level = F.greatest(F.col("level"), F.lit(0.0))
    clear = F.col("score") >= TREND_SCORE
    grows, drains = F.col("slope") > 0, F.col("slope") < 0
    trend = F.when(clear & grows, GROWS).when(clear & drains, DRAINS).otherwise(STEADY)
    drain_s = F.when(F.col("last.y") == 0, 0.0).when(
        F.col("trend") == DRAINS, level / -F.col("slope")
    )
    return (
        now.withColumn("trend", trend)
        .withColumn("drain_s", drain_s)
        .select(*PLACE, "trend", "slope", "drain_s")
        .join(_errors(points), PLACE, "left")
    )


def _errors(points: DataFrame) -> DataFrame:
    """Mean distances of the windows after `KNOWN_PART` of the range from two forecasts."""
    then = _line(points, F.col("cut")).select(
        *PLACE, "slope", F.col("level").alias("_level"), F.col("last").alias("_last")
    )
    later = points.where(F.col("i") > F.col("cut")).join(then, PLACE)
    ahead_s = F.col("x") - F.col("_last.x")
    forecast = F.greatest(F.col("_level") + F.col("slope") * ahead_s, F.lit(0.0))
    return later.groupBy(*PLACE).agg(
        F.avg(F.abs(F.col("y") - forecast)).alias("forecast_error"),
        F.avg(F.abs(F.col("y") - F.col("_last.y"))).alias("forecast_error_naive"),
    )


def _line(points: DataFrame, end: Column) -> DataFrame:
    """The line through the last points up to number `end`, with `level` at the last of them.

    The slope is the median of the slopes between all pairs of points, the level the median of the
    points without the slope. `score` is that of Mann and Kendall: how many more pairs rise than
    fall, or the other way round, in standard deviations of chance.
    """
    near = (F.col("i") <= end) & (F.col("i") > end - TREND_WINDOWS)
    lists = (
        points.where(near)
        .groupBy(*PLACE)
        .agg(F.array_sort(F.collect_list(F.struct("x", "y"))).alias("points"))
        .withColumn("size", F.size("points"))
        .where(F.col("size") >= TREND_WINDOWS_MIN)
        .withColumn("last", F.element_at("points", -1))
    )
    slopes = F.flatten(
        F.transform(
            "points",
            lambda a: F.transform(
                "points",
                lambda b: F.when(b["x"] > a["x"], (b["y"] - a["y"]) / (b["x"] - a["x"])),
            ),
        )
    )

    def without_slope(point: Column) -> Column:
        return point["y"] - F.col("slope") * (point["x"] - F.col("last.x"))

    signs = F.aggregate("slopes", F.lit(0.0), lambda total, slope: total + F.signum(slope))
    variance = F.col("size") * (F.col("size") - 1) * (2 * F.col("size") + 5) / 18
    return (
        lists.withColumn("slopes", F.array_compact(slopes))
        .withColumn("slope", _median(F.col("slopes")))
        .withColumn("level", _median(F.transform("points", without_slope)))
        .withColumn("score", (F.abs(signs) - 1) / F.sqrt(variance))
    )


def _median(values: Column) -> Column:
    """The median of an array of numbers; null when it is empty."""
    ordered, size = F.array_sort(values), F.size(values)
    low = F.get(ordered, F.floor((size - 1) / 2).cast("int"))
    return (low + F.get(ordered, F.floor(size / 2).cast("int"))) / 2
