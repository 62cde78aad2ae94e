"""Fairness as functions from frames to frames; docs/fairness.md has definitions and sources.

    events ─┬─ samples ────┬─ windows ─┐
            ├─ acquired ───┘           │
            ├─ samples, timings ─ members ─ groups
            └─ census ─────────────────┘

The results of `samples` and `timings` are small and used twice: a caller that writes more than one
table keeps them with `persist`. Nothing here collects rows, and nothing runs in Python.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.census import completeness
from sharecoord.analytics.fairness.settings import LISTED_MAX, FairnessSettings
from sharecoord.analytics.measures import greatest, sums
from sharecoord.analytics.times import SLOT_MS
from sharecoord.eventlog.rollups import HELD_DIGITS, SETTLED
from sharecoord.eventlog.schema import EventKind, RangeEvent

WHOLE = -1
"""Stands for the whole range in the place of a window's number."""

STRETCH_SLOTS = 600
"""Samples of this many slots (ten minutes) are in one task: there are enough tasks, and a window is
seldom in two."""
_CELL = ["group_id", "topic", "partition", "window"]
_QUANTILES = (0.5, 0.95, 0.99)
DWELLS = ("dwell_p50_ms", "dwell_p95_ms", "dwell_p99_ms")
"""Columns with quantiles of the time that records waited."""


# -- what is read ---------------------------------------------------------------------------------


def samples(events: DataFrame) -> DataFrame:
    """Records that each member wanted, got and held per slot of a second, over all coordinators.

    Columns: group_id, member_id, slot (seconds since the epoch in the middle of the interval),
    demand, got, held, interval_ms, fair (the fair part: min(demand, level)); and of the whole
    group: level, group_got, wanting (members with demand), window_total (records that may be
    acquired in all its partitions; null when unknown).
    """
    interval_ms = F.coalesce(F.col("interval_ms"), F.lit(SLOT_MS))
    middle_ms = F.unix_millis("time") - F.floor(F.least(interval_ms, F.lit(SLOT_MS)) / 2)
    last = F.floor(middle_ms / SLOT_MS)
    # Where samples are closer together than slots, the mean of a slot.
    held_ms = F.col("held") * F.least(interval_ms, F.lit(SLOT_MS))
    is_member = F.col("kind") == EventKind.MEMBER.value
    # Members are sampled once a second, partitions at the interval of the settings: a sample of a
    # partition holds for all slots of its interval.
    long = ~is_member & (interval_ms > SLOT_MS)
    first = last + 1 - F.ceil(interval_ms / SLOT_MS)
    slots = F.when(long, F.sequence(first, last)).otherwise(F.array(last))
    # One exchange is enough: a slot is in one task, and so are most slots of a window.
    place = ["group_id", "stretch"]
    by_member = (
        events.where(F.col("kind").isin(EventKind.MEMBER.value, EventKind.PARTITION.value))
        .withColumn("slot", F.explode(slots))
        .withColumn("stretch", F.floor(F.col("slot") / STRETCH_SLOTS))
        .repartition(*place)
        .groupBy(is_member.alias("is_member"), *place, "slot", "member_id", "topic", "partition")
        .agg(
            measures.sum_or_zero("demand").alias("demand"),
            measures.sum_or_zero("got").alias("got"),
            (F.sum(held_ms) / SLOT_MS).alias("held"),
            F.greatest(F.max(interval_ms), F.lit(SLOT_MS)).alias("interval_ms"),
            *greatest("window_max"),
        )
    )
    together = Window.partitionBy(*place, "slot")
    return (
        measures.with_fair_level(by_member, [*place, "slot"])
        .withColumn("group_got", F.sum("got").over(together))
        .withColumn("wanting", F.sum((F.col("demand") > 0).cast("int")).over(together))
        .withColumn("window_total", F.sum("window_max").over(together))
        .where("is_member")
        .withColumn("fair", measures.fair_amount())
        .drop("is_member", "stretch", "topic", "partition", "window_max")
    )


def acquired(events: DataFrame, settings: FairnessSettings) -> DataFrame:
    """Records handed out, by group_id, topic, partition, window (its number) and member_id."""
    return (
        events.where((F.col("event") == RangeEvent.ACQUIRED) & F.col("member_id").isNotNull())
        .withColumn("window", F.floor(F.unix_millis("time") / settings.window_ms))
        .groupBy(*_CELL, "member_id")
        .agg(*sums("records"))
    )


def timings(events: DataFrame) -> DataFrame:
    """How long records waited and were held, as a histogram per member: the rollup table `WAITS`.

    Columns: group_id, member_id, client_id, dwell_ms (the waiting time in three significant digits;
    null in rows of settled records, and where it is not known), acquired, settled (records),
    held_record_ms (sum over settled records).
    """
    is_acquired = F.col("event") == RangeEvent.ACQUIRED
    dwell_ms = measures.significant(F.col("available_ms"), HELD_DIGITS)
    settled = ~is_acquired & F.col("held_ms").isNotNull()
    return (
        events.where(F.col("event").isin(RangeEvent.ACQUIRED.value, *SETTLED))
        .where(F.col("member_id").isNotNull())
        .withColumn("dwell_ms", F.when(is_acquired, dwell_ms))
        .groupBy("group_id", "member_id", "client_id", "dwell_ms")
        .agg(
            F.sum(F.when(is_acquired, F.col("records")).otherwise(0)).alias("acquired"),
            F.sum(F.when(settled, F.col("records")).otherwise(0)).alias("settled"),
            F.sum(
                F.when(settled, F.col("held_ms").cast("double") * F.col("records")).otherwise(0.0)
            ).alias("held_record_ms"),
        )
    )


# -- windows --------------------------------------------------------------------------------------


def windows(
    member_samples: DataFrame, handed_out: DataFrame, settings: FairnessSettings
) -> DataFrame:
    """Figures of each time window, of each group and each of its partitions.

    Columns: group_id, topic, partition (null in rows of the whole group), window_start (null in
    rows of the whole range), window_ms, members (that wanted or got something), wanting, demand,
    got, level, jain (null without samples), and `measures.SPREAD`. The frames are those of
    `samples` and `acquired`.
    """
    rows = _group_rows(member_samples, handed_out, settings).unionByName(
        _partition_rows(handed_out), allowMissingColumns=True
    )
    # A member that counts in the group counts in each of its partitions.
    members = F.max("members").over(Window.partitionBy("group_id", "window"))
    start = F.timestamp_millis(F.col("window") * settings.window_ms)
    in_window = F.col("window") != WHOLE
    spread = measures.with_spread(rows.withColumn("members", members), "values", "members")
    return spread.select(
        *("group_id", "topic", "partition"),
        F.when(in_window, start).alias("window_start"),
        F.when(in_window, F.lit(settings.window_ms)).alias("window_ms"),
        *("members", "wanting", "demand", "got", "level", "jain"),
        *measures.SPREAD,
    )


def _group_rows(
    member_samples: DataFrame, handed_out: DataFrame, settings: FairnessSettings
) -> DataFrame:
    """A row per group and window, and one of the whole range: demand, and `values` by member."""
    slots = settings.window_ms // SLOT_MS
    wanted = member_samples.select(
        "group_id",
        F.floor(F.col("slot") / slots).alias("window"),
        "member_id",
        F.lit(0).cast("long").alias("records"),
        *("demand", "got", "fair"),
        F.when(F.col("fair") > 0, F.col("got")).alias("own"),
        (F.col("fair") > 0).cast("int").alias("weight"),
        # Added up over all members that want something it is the level once.
        F.when(F.col("demand") > 0, F.col("level") / F.col("wanting")).alias("level"),
    )
    handed = handed_out.select("group_id", "window", "member_id", "records")
    both = wanted.unionByName(handed, allowMissingColumns=True)
    # Each row twice, for its window and the whole range, so that both are read and added up once.
    twice = both.withColumn("window", F.explode(F.array("window", F.lit(WHOLE).cast("long"))))
    cells = twice.groupBy("group_id", "window", "member_id").agg(
        *sums("records", "demand", "got", "fair", "own", "weight", "level")
    )
    measured = F.count("demand") > 0
    part = measures.ratio(F.col("own"), F.col("fair"))
    return cells.groupBy("group_id", "window").agg(
        F.count(F.lit(1)).alias("members"),
        F.sum((F.col("demand") > 0).cast("int")).alias("wanting"),
        *sums("demand", "got"),
        F.when(measured, F.coalesce(F.sum("level"), F.lit(0.0))).alias("level"),
        F.when(measured, measures.jain(part, F.col("weight"))).alias("jain"),
        F.collect_list("records").alias("values"),
    )


def _partition_rows(handed_out: DataFrame) -> DataFrame:
    """A row per partition and window, and one of the whole range: `values` by member."""
    place = ["group_id", "topic", "partition"]
    whole = (
        handed_out.groupBy(*place, "member_id")
        .agg(*sums("records"))
        .withColumn("window", F.lit(WHOLE).cast("long"))
    )
    values = F.collect_list("records").alias("values")
    return handed_out.unionByName(whole).groupBy(*place, "window").agg(values)


# -- members --------------------------------------------------------------------------------------


def stretches(member_samples: DataFrame) -> DataFrame:
    """Times in which a member wanted something and got nothing (gaps and islands).

    A stretch ends when the member gets something, or has no demand for an interval. Intervals in
    which the whole group got nothing neither end it nor count. When an equal part of the records
    that the group got is less than one record, it was not the member's turn: that is no stretch.

    Columns: group_id, member_id, since_slot, starved_ms.
    """
    member = Window.partitionBy("group_id", "member_id").orderBy("slot")
    quiet = F.col("got") <= 0
    gap_ms = (F.col("slot") - F.lag("slot").over(member)) * SLOT_MS
    # Timers are late at times: one missing slot is no gap.
    begins = (
        F.lag("got").over(member).isNull()
        | (F.lag("got").over(member) > 0)
        | (gap_ms > 2 * F.col("interval_ms"))
    )
    counts = F.col("group_got") > 0
    keys = ["group_id", "member_id"]
    hungry = member_samples.where((F.col("demand") > 0) & quiet).select(*keys).distinct()
    islands = (
        member_samples.where(F.col("demand") > 0)
        # Most members never are hungry: their samples are not sorted.
        .join(F.broadcast(hungry), keys, "semi")
        .withColumn("_begins", (quiet & begins).cast("int"))
        .withColumn("_island", F.sum("_begins").over(member))
        .where(quiet)
    )
    return (
        islands.groupBy(*keys, "_island")
        .agg(
            F.min(F.when(counts, F.col("slot"))).alias("since_slot"),
            F.sum(F.when(counts, F.col("interval_ms")).otherwise(0)).alias("starved_ms"),
            F.sum(measures.ratio(F.col("group_got"), F.col("wanting"), 0.0)).alias("_part"),
        )
        .where(F.col("_part") >= 1)
        .drop("_island", "_part")
    )


def is_starved(length_ms: Column, settings: FairnessSettings) -> Column:
    """Whether a stretch of `stretches` is starvation; the rule of a range and of a live window."""
    return length_ms >= settings.starved_after_ms


def members(
    member_samples: DataFrame, histogram: DataFrame, settings: FairnessSettings
) -> DataFrame:
    """Figures of each member over the whole range, from `samples` and `timings`.

    Columns: group_id, member_id, client_id, records, share (of the group's), demand, got, fair_part
    (records that it got / fair records, at the times at which it wanted some; null: its fair part
    was always 0), starved, starved_since, starvation_ms (the longest), `DWELLS`, held_ms (mean of a
    record), over_share_ms (how long it held more than its share of the window), first_seen,
    last_seen (times of its samples).
    """
    keys = ["group_id", "member_id"]
    joined = (
        _asked(member_samples)
        .join(_longest(member_samples), keys, "left")
        .join(_served(histogram), keys, "full")
    )
    records = F.coalesce(F.col("records"), F.lit(0))
    starvation_ms = F.coalesce(F.col("starvation_ms"), F.lit(0))
    starved = is_starved(starvation_ms, settings)
    share = measures.ratio(records, F.sum(records).over(Window.partitionBy("group_id")))
    return joined.select(
        *keys,
        "client_id",
        records.alias("records"),
        share.alias("share"),
        *("demand", "got"),
        measures.ratio(F.col("own"), F.col("fair")).alias("fair_part"),
        starved.alias("starved"),
        F.when(starved, _slot_time(F.col("since_slot"))).alias("starved_since"),
        starvation_ms.alias("starvation_ms"),
        *(F.col("dwell")[i].alias(name) for i, name in enumerate(DWELLS)),
        "held_ms",
        "over_share_ms",
        _slot_time(F.col("first_slot")).alias("first_seen"),
        _slot_time(F.col("last_slot")).alias("last_seen"),
    )


def _asked(member_samples: DataFrame) -> DataFrame:
    """Figures of each member from its samples."""
    share = measures.ratio(F.col("window_total"), F.col("wanting"))
    return member_samples.groupBy("group_id", "member_id").agg(
        *sums("demand", "got", "fair"),
        F.sum(F.when(F.col("fair") > 0, F.col("got"))).alias("own"),
        F.sum(F.when(F.col("held") > share, F.col("interval_ms")).otherwise(0)).alias(
            "over_share_ms"
        ),
        F.min("slot").alias("first_slot"),
        F.max("slot").alias("last_slot"),
    )


def _longest(member_samples: DataFrame) -> DataFrame:
    """The longest stretch of each member; the earliest of several."""
    return (
        stretches(member_samples)
        .groupBy("group_id", "member_id")
        .agg(
            F.max(F.struct("starved_ms", (-F.col("since_slot")).alias("_early"))).alias("_longest")
        )
        .select(
            *("group_id", "member_id"),
            F.col("_longest.starved_ms").alias("starvation_ms"),
            (-F.col("_longest._early")).alias("since_slot"),
        )
    )


def _served(histogram: DataFrame) -> DataFrame:
    """Figures of each member from its ranges."""
    return histogram.groupBy("group_id", "member_id").agg(
        *greatest("client_id"),
        F.sum("acquired").alias("records"),
        _dwell().alias("dwell"),
        measures.ratio(F.sum("held_record_ms"), F.sum("settled")).alias("held_ms"),
    )


def _dwell() -> Column:
    """Aggregate over a histogram: quantiles of the time that records waited."""
    return F.percentile("dwell_ms", list(_QUANTILES), F.col("acquired"))


def _slot_time(slot: Column) -> Column:
    """When a slot begins."""
    return F.timestamp_millis(slot.cast("long") * SLOT_MS)


# -- groups ---------------------------------------------------------------------------------------


def groups(
    window_rows: DataFrame, member_rows: DataFrame, histogram: DataFrame, census_rows: DataFrame
) -> DataFrame:
    """Figures of each group over the whole range, from `windows`, `members`, `timings` and census.

    Columns: group_id, members, starved, starved_members (at most `LISTED_MAX`, the longest first),
    jain, worst_jain, worst_window (its start), `measures.SPREAD`, demand, got, over_share
    (members), `DWELLS`, and the columns of `completeness`.
    """
    of_group = window_rows.where(F.col("topic").isNull())
    whole = of_group.where(F.col("window_start").isNull()).drop(
        "topic", "partition", "window_start", "window_ms", "members", "wanting", "level"
    )
    worst = (
        of_group.where(F.col("window_start").isNotNull() & F.col("jain").isNotNull())
        .groupBy("group_id")
        .agg(F.min(F.struct("jain", "window_start")).alias("_worst"))
        .select(
            "group_id",
            F.col("_worst.jain").alias("worst_jain"),
            F.col("_worst.window_start").alias("worst_window"),
        )
    )
    waits = (
        histogram.groupBy("group_id")
        .agg(_dwell().alias("dwell"))
        .select("group_id", *(F.col("dwell")[i].alias(name) for i, name in enumerate(DWELLS)))
    )
    joined = completeness(census_rows, ["group_id"])
    for frame in (_member_counts(member_rows), whole, worst, waits):
        joined = joined.join(frame, "group_id", "left")
    none = F.array().cast("array<string>")
    return joined.fillna(0, subset=["members", "starved", "records", "over_share"]).withColumn(
        "starved_members", F.coalesce(F.col("starved_members"), none)
    )


def _member_counts(member_rows: DataFrame) -> DataFrame:
    """Number of members of each group, and number and names of those that starved."""
    order = Window.partitionBy("group_id").orderBy(
        F.desc("starved"), F.desc("starvation_ms"), "member_id"
    )
    named = F.col("starved") & (F.col("_place") <= LISTED_MAX)
    return (
        member_rows.withColumn("_place", F.row_number().over(order))
        .groupBy("group_id")
        .agg(
            F.count(F.lit(1)).alias("members"),
            F.sum(F.col("starved").cast("int")).alias("starved"),
            F.array_sort(F.collect_list(F.when(named, F.struct("_place", "member_id"))))
            .getField("member_id")
            .alias("starved_members"),
            F.sum((F.col("over_share_ms") > 0).cast("int")).alias("over_share"),
        )
    )
