"""Fairness on a stream: cells of open windows, and the figures of closed windows.

    events ── distinct ── cells ── (Spark: until the watermark has passed a window's end)
                                     └─ windows, live

`distinct` and `cells` run on the stream and keep little: a cell per member and second, and per
member, partition and waiting time. For a closed window cells become events again, and `transform`
makes the figures of them.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import frames, measures
from sharecoord.analytics.fairness import transform
from sharecoord.analytics.fairness.settings import LISTED_MAX, FairnessSettings
from sharecoord.analytics.times import SLOT_MS
from sharecoord.eventlog.rollups import HELD_DIGITS
from sharecoord.eventlog.schema import EventKind, RangeEvent

_WINDOW = ["group_id", "window_start"]
_SAMPLES = (EventKind.MEMBER.value, EventKind.PARTITION.value)
LIVE = (
    *("group_id", "window_start", "window_ms", "members", "wanting", "demand", "got", "jain"),
    *("records", "starved", "starved_members", "dwell_p99_ms", "lag"),
)
"""The columns of `live`."""


def distinct(events: DataFrame, watermark_ms: int) -> DataFrame:
    """The rows of a stream of events that fairness needs, each once.

    Rows that are older than the newest before them by more than the watermark, or come again within
    it, are left out; Spark counts both. The column `at` is added: the time of the row, of a sample
    the middle of its interval.
    """
    is_sample = F.col("kind").isin(*_SAMPLES)
    is_range = F.col("kind") == EventKind.RANGE.value
    half_ms = F.floor(F.coalesce(F.col("interval_ms"), F.lit(SLOT_MS)) / 2)
    at_ms = F.unix_millis("time") - F.when(is_sample, half_ms).otherwise(0)
    needed = events.where(is_sample | (is_range & (F.col("event") == RangeEvent.ACQUIRED.value)))
    # A change is the same in the rows of all coordinators; a sample is that of one at one time.
    identity = {
        "_change": F.when(is_range, F.col("change_sequence")),
        "_writer": F.when(is_sample, F.col("coordinator_id")),
        "_member": F.when(is_sample, F.col("member_id")),
        "_time": F.when(is_sample, F.col("time")),
    }
    place = ("kind", "group_id", "topic", "topic_id", "partition", "first_offset")
    return (
        needed.withColumns({**identity, "at": F.timestamp_millis(at_ms)})
        .withWatermark("at", _ms(watermark_ms))
        .dropDuplicatesWithinWatermark([*place, *identity])
    )


def cells(rows: DataFrame, settings: FairnessSettings) -> DataFrame:
    """Rows of `distinct`, added up by window and by the keys that `windows` and `live` need.

    The cells of members go back to `starved_after_ms` before their window: a stretch without
    records may have begun there.

    Columns: start_ms (of the window), kind, group_id, topic, partition, member_id, slot (of
    members), dwell_ms (of records), demand, got, interval_ms, records, lag (the newest).
    """
    lead_ms = -(-settings.starved_after_ms // SLOT_MS) * SLOT_MS
    length, slide = settings.window_ms + lead_ms, settings.window_ms
    window = F.window("at", _ms(length), _ms(slide), _ms(-lead_ms % slide))
    is_member = F.col("kind") == EventKind.MEMBER.value
    is_range = F.col("kind") == EventKind.RANGE.value
    at_ms = F.unix_millis("at")
    keys = ("kind", "group_id", "topic", "partition", "member_id", "slot", "dwell_ms")
    sums = ("demand", "got", "interval_ms", "records")
    start_ms = F.unix_millis("window.end") - slide
    added = (
        rows.withColumn("window", window)
        .where(is_member | (at_ms >= start_ms))
        .withColumn("slot", F.when(is_member, F.floor(at_ms / SLOT_MS)))
        .withColumn("member_id", F.when(is_member | is_range, F.col("member_id")))
        .withColumn(
            "dwell_ms", F.when(is_range, measures.significant(F.col("available_ms"), HELD_DIGITS))
        )
        .groupBy("window", *keys)
        .agg(
            *measures.sums("demand", "got", "records"),
            *measures.greatest("interval_ms"),
            F.max(F.struct("at", "lag")).alias("newest"),
        )
    )
    return added.select(start_ms.alias("start_ms"), *keys, *sums, F.col("newest.lag").alias("lag"))


def _ms(duration: int) -> str:
    return f"{duration} milliseconds"


# -- windows that are over ------------------------------------------------------------------------


def windows(closed: DataFrame, settings: FairnessSettings) -> DataFrame:
    """The rows of `transform.windows` of the cells of closed windows; none of the whole range."""
    own = F.col("slot").isNull() | (F.col("slot") * SLOT_MS >= F.col("start_ms"))
    is_range = F.col("kind") == EventKind.RANGE.value
    event = F.when(is_range, F.lit(RangeEvent.ACQUIRED.value))
    time = F.coalesce(_sample_time(), F.timestamp_millis("start_ms"))
    events = closed.where(own).withColumns({"time": time, "event": event})
    complete = frames.complete(events)
    rows = transform.windows(
        transform.samples(complete), transform.acquired(complete, settings), settings
    )
    return rows.where(F.col("window_start").isNotNull())


def live(closed: DataFrame, window_rows: DataFrame, settings: FairnessSettings) -> DataFrame:
    """Figures of each group and closed window for people and alerts, from cells and `windows`.

    Columns: `LIVE`; starved is a number, starved_members are at most `LISTED_MAX` in order of their
    names, lag is that at the window's end (null without samples of partitions).
    """
    with_start = closed.withColumn("window_start", F.timestamp_millis("start_ms"))
    is_range = F.col("kind") == EventKind.RANGE.value
    waits = (
        with_start.where(is_range)
        .groupBy(*_WINDOW)
        .agg(F.percentile("dwell_ms", 0.99, F.col("records")).alias("dwell_p99_ms"))
    )
    newest = with_start.where(F.col("kind") == EventKind.PARTITION.value)
    lags = newest.groupBy(*_WINDOW).agg(*measures.sums("lag"))
    joined = window_rows.where(F.col("topic").isNull()).drop("window_ms")
    for frame in (lags, waits, starving(with_start, settings)):
        joined = joined.join(frame, _WINDOW, "full")
    none = F.array().cast("array<string>")
    return (
        joined.withColumn("window_ms", F.lit(settings.window_ms))
        .fillna(0, subset=["members", "wanting", "records", "starved"])
        .withColumn("starved_members", F.coalesce(F.col("starved_members"), none))
        .select(*LIVE)
    )


def starving(cells_with_start: DataFrame, settings: FairnessSettings) -> DataFrame:
    """Number and names of the members that starve in each window, from cells with `window_start`.

    A member starves when a stretch (`transform.stretches`) of `starved_after_ms` reaches into the
    window; stretches are looked for from `starved_after_ms` before the window on.
    """
    # As if each window were a group of its own: a sample that lies in two windows counts in both.
    samples = transform.samples(
        cells_with_start.where(F.col("kind") == EventKind.MEMBER.value)
        .withColumn("group_id", F.struct(*_WINDOW))
        .withColumn("time", _sample_time())
        .withColumns({"held": F.lit(0), "window_max": F.lit(None).cast("long")})
    )
    end_ms = F.col("since_slot") * SLOT_MS + F.col("starved_ms")
    reaches = end_ms > F.unix_millis("group_id.window_start")
    return (
        transform.stretches(samples)
        .where(transform.is_starved(F.col("starved_ms"), settings) & reaches)
        .groupBy("group_id")
        .agg(F.array_sort(F.collect_set("member_id")).alias("_names"))
        .select(
            F.col("group_id.group_id").alias("group_id"),
            F.col("group_id.window_start").alias("window_start"),
            F.size("_names").alias("starved"),
            F.slice("_names", 1, LISTED_MAX).alias("starved_members"),
        )
    )


def _sample_time() -> Column:
    """The time of a member's cell, from which `transform.samples` finds its slot again."""
    interval_ms = F.coalesce(F.col("interval_ms"), F.lit(SLOT_MS))
    return F.timestamp_millis(F.col("slot") * SLOT_MS + F.floor(interval_ms / 2))
