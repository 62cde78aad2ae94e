"""Fairness on a stream: which rows count, and the figures of windows that are over.

    events ── distinct ── cells ── (Spark: until the watermark has passed a window's end)
                                     └─ windows, live

`distinct` and `cells` run on the stream and keep little: a cell per member and second, and per
member, partition and waiting time. The rest is `transform` on cells that are events again.
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
"""Columns of `live`."""


def distinct(events: DataFrame, watermark_ms: int) -> DataFrame:
    """The rows that fairness needs, each once, with `at`: when it was, the middle of an interval.

    Rows that come later than the watermark, or again within it, are left out; Spark counts both.

    Args:
        events: Events, as a stream.
        watermark_ms: By how much a row may be older than the newest before it.
    """
    is_sample = F.col("kind").isin(*_SAMPLES)
    is_range = F.col("kind") == EventKind.RANGE.value
    half_ms = F.floor(F.coalesce(F.col("interval_ms"), F.lit(SLOT_MS)) / 2)
    at_ms = F.unix_millis("time") - F.when(is_sample, half_ms).otherwise(0)
    kept = events.where(is_sample | (is_range & (F.col("event") == RangeEvent.ACQUIRED.value)))
    # A change is the same whoever wrote it; a sample is one coordinator's at one time.
    named = {
        "_change": F.when(is_range, F.col("change_sequence")),
        "_writer": F.when(is_sample, F.col("coordinator_id")),
        "_member": F.when(is_sample, F.col("member_id")),
        "_time": F.when(is_sample, F.col("time")),
    }
    place = ("kind", "group_id", "topic", "topic_id", "partition", "first_offset")
    return (
        kept.withColumns({**named, "at": F.timestamp_millis(at_ms)})
        .withWatermark("at", f"{watermark_ms} milliseconds")
        .dropDuplicatesWithinWatermark([*place, *named])
    )


def cells(rows: DataFrame, settings: FairnessSettings) -> DataFrame:
    """Rows of `distinct`, added up by window and by what `windows` and `live` tell apart.

    A window's cells hold, of members, also those of the time `starved_after_ms` before it: a
    stretch without records may have begun there.

    Columns: start_ms (of the window), kind, group_id, topic, partition, member_id, slot (of
    members), dwell_ms (of records), demand, got, interval_ms, records, lag (the newest).
    """
    lead_ms = _lead_ms(settings)
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
            F.sum("demand").alias("demand"),
            F.sum("got").alias("got"),
            F.max("interval_ms").alias("interval_ms"),
            F.sum("records").alias("records"),
            F.max(F.struct("at", "lag")).alias("newest"),
        )
    )
    return added.select(start_ms.alias("start_ms"), *keys, *sums, F.col("newest.lag").alias("lag"))


def _lead_ms(settings: FairnessSettings) -> int:
    return -(-settings.starved_after_ms // SLOT_MS) * SLOT_MS


def _ms(duration: int) -> str:
    return f"{duration} milliseconds"


# -- windows that are over ------------------------------------------------------------------------


def windows(closed: DataFrame, settings: FairnessSettings) -> DataFrame:
    """The rows of `transform.windows` of closed windows, without those of the whole range.

    Args:
        closed: Cells of windows that are over.
        settings: Those of `cells`.
    """
    own = F.col("slot").isNull() | (F.col("slot") * SLOT_MS >= F.col("start_ms"))
    is_range = F.col("kind") == EventKind.RANGE.value
    event = F.when(is_range, F.lit(RangeEvent.ACQUIRED.value))
    time = F.coalesce(_sample_time(), F.timestamp_millis("start_ms"))
    events = closed.where(own).withColumns({"time": time, "event": event})
    again = frames.complete(events)
    found = transform.windows(
        transform.samples(again), transform.acquired(again, settings), settings
    )
    return found.where(F.col("window_start").isNotNull())


def live(closed: DataFrame, window_rows: DataFrame, settings: FairnessSettings) -> DataFrame:
    """One row per group and window: what people and alerts look at.

    Args:
        closed: Cells of windows that are over.
        window_rows: From `windows`.
        settings: Those of `cells`.

    Returns:
        group_id, window_start, window_ms, members, wanting, demand, got, jain, records, starved (a
        number), starved_members (at most `LISTED_MAX`, by name), dwell_p99_ms, lag (at the window's
        end; null without samples of partitions).
    """
    numbered = closed.withColumn("window_start", F.timestamp_millis("start_ms"))
    is_range = F.col("kind") == EventKind.RANGE.value
    waits = (
        numbered.where(is_range)
        .groupBy(*_WINDOW)
        .agg(F.percentile("dwell_ms", 0.99, F.col("records")).alias("dwell_p99_ms"))
    )
    newest = numbered.where(F.col("kind") == EventKind.PARTITION.value)
    lags = newest.groupBy(*_WINDOW).agg(F.sum("lag").alias("lag"))
    found = window_rows.where(F.col("topic").isNull()).drop("window_ms")
    for frame in (lags, waits, starving(numbered, settings)):
        found = found.join(frame, _WINDOW, "full")
    zeros = ("members", "wanting", "records", "starved")
    none = F.array().cast("array<string>")
    return (
        found.withColumn("window_ms", F.lit(settings.window_ms))
        .fillna(0, subset=list(zeros))
        .withColumn("starved_members", F.coalesce(F.col("starved_members"), none))
        .select(*LIVE)
    )


def starving(numbered: DataFrame, settings: FairnessSettings) -> DataFrame:
    """How many members starve in a window, and who.

    A member does when a stretch (`transform.stretches`) of `starved_after_ms` reaches into the
    window; it is looked for from `starved_after_ms` before the window on.

    Args:
        numbered: Cells with `window_start`.
        settings: Those of `cells`.
    """
    # As if each window were a group of its own: what lies in two of them counts in both.
    samples = transform.samples(
        numbered.where(F.col("kind") == EventKind.MEMBER.value)
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
    """The time of a member's cell: such that `transform.samples` finds its slot again."""
    interval_ms = F.coalesce(F.col("interval_ms"), F.lit(SLOT_MS))
    return F.timestamp_millis(F.col("slot") * SLOT_MS + F.floor(interval_ms / 2))
