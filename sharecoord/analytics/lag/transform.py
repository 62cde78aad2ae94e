"""Lag as functions from frames to frames; docs/lag.md has definitions and formulas.

    events ─┬─ samples ─────────────┬─ windows ─┬─ stretches, causes ─┐
            └─ changes ─┬─ happened ┘           ├─ trend.trends ──────┼─ partitions
                        └─ census ──────────────┴─────────────────────┘

The result of `changes` is used twice: a caller keeps it with `persist`. Nothing here collects rows,
and nothing runs in Python.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.census import change_bits, completeness
from sharecoord.analytics.lag.settings import (
    BEFORE_WINDOWS,
    CAUSES_MAX,
    SCORE_MIN,
    TREND_WINDOWS,
    LagSettings,
)
from sharecoord.analytics.measures import greatest, sum_or_zero
from sharecoord.eventlog.rollups import FAILED, LAGS, OF_GROUP, OF_PARTITION, PAUSES
from sharecoord.eventlog.schema import EventKind, RangeEvent

PLACE = ["group_id", "topic", "partition"]
HAPPENINGS = (*FAILED, *OF_PARTITION, *OF_GROUP)
"""Columns with numbers of records (`FAILED`) or events (the others) in a window."""

CAUSES = {
    "arrival_rate": (1, 1.0),
    "service_rate": (-1, 1.0),
    **dict.fromkeys(FAILED, (1, 1.0)),
    **dict.fromkeys((*OF_PARTITION, *OF_GROUP), (1, 0.1)),
}
"""Columns that may be a cause of lag: +1 when more of it makes lag, -1 when less does; and the
amount that is added to its usual variation: a record or, of rare events, a tenth of one."""


# -- windows --------------------------------------------------------------------------------------


def samples(events: DataFrame, settings: LagSettings) -> DataFrame:
    """First and last sample of each share-partition and window, and the highest figures in it.

    The rollup table `LAGS`: group_id, topic, partition, window (its number); of the first sample
    first_us (its time), first_log_end_offset, first_finished; of the last sample last_us,
    log_end_offset, finished, start_offset, lag, waiting, behind_ms; lag_max, waiting_max,
    behind_max_ms (of samples whose age is known), behind_unknown (number of the others).
    """
    unread = F.greatest(F.col("log_end_offset") - F.col("end_offset"), F.lit(0))
    waiting = F.coalesce(unread, F.lit(0)) + F.coalesce(F.col("due"), F.lit(0))
    age_ms = F.greatest(F.unix_millis("time") - F.unix_millis("oldest_time"), F.lit(0))
    figures = events.where(
        (F.col("kind") == EventKind.PARTITION.value) & F.col("lag").isNotNull()
    ).select(
        *PLACE,
        _window(settings),
        F.unix_micros("time").alias("us"),
        "log_end_offset",
        (F.col("log_end_offset") - F.col("lag")).alias("finished"),
        "start_offset",
        "lag",
        F.least(waiting, F.col("lag")).alias("waiting"),
        # The greatest of a null is not null, but 0.
        F.when(F.col("lag") == 0, F.lit(0))
        .when(F.col("oldest_time").isNotNull(), age_ms)
        .alias("behind_ms"),
    )
    # Numbers, and not a struct of them: those are added up by hashing, without a sort.
    return figures.groupBy(*PLACE, "window").agg(
        F.min("us").alias("first_us"),
        *(F.min_by(name.removeprefix("first_"), "us").alias(name) for name in LAGS.first),
        F.max("us").alias("last_us"),
        *(F.max_by(name, "us").alias(name) for name in LAGS.last),
        F.max("lag").alias("lag_max"),
        F.max("waiting").alias("waiting_max"),
        F.max("behind_ms").alias("behind_max_ms"),
        F.sum(F.col("behind_ms").isNull().cast("long")).alias("behind_unknown"),
    )


def _window(settings: LagSettings) -> Column:
    return F.floor(F.unix_millis("time") / settings.window_ms).alias("window")


def changes(events: DataFrame, settings: LagSettings) -> DataFrame:
    """The columns that `happened` and the census need, in one pass over all events.

    Columns: those of `census.change_bits`, window, event (one of `HAPPENINGS`, null for all
    others), records, age_ms.
    """
    named = F.col("event").isin(*HAPPENINGS)
    # One member that gets nothing holds up nobody else.
    of_member = F.col("event").isin(*PAUSES) & F.col("member_id").isNotNull()
    acquired = F.col("event") == RangeEvent.ACQUIRED.value
    return change_bits(
        events,
        _window(settings),
        F.when(named & ~of_member, F.col("event")).alias("event"),
        records=F.sum("records"),
        age_ms=F.max(F.when(acquired, F.col("age_ms"))),
    )


def happened(change_rows: DataFrame) -> DataFrame:
    """The happenings in each window to share-partitions and to groups, from `changes`.

    Columns: group_id, topic and partition (null: to the group), window, age_ms (the highest of
    records that were handed out), and `HAPPENINGS`.
    """

    def count(event: str, column: str) -> Column:
        return sum_or_zero(F.when(F.col("event") == event, F.col(column))).alias(event)

    return change_rows.groupBy(*PLACE, "window").agg(
        *greatest("age_ms"),
        *(count(name, "records") for name in FAILED),
        *(count(name, "events") for name in (*OF_PARTITION, *OF_GROUP)),
    )


def windows(sampled: DataFrame, happened_rows: DataFrame, settings: LagSettings) -> DataFrame:
    """The state of each share-partition at the end of each window, and the happenings in it.

    From `samples` and `happened`. Columns: group_id, topic, partition, window_start, window_ms,
    sampled_at (the last sample), lag, waiting, behind_ms (null when unknown), lag_max, waiting_max,
    behind_max_ms, log_end_offset, start_offset, arrival_rate, service_rate (records/s; null in a
    single sample, and after a reset), behind, and `HAPPENINGS`.
    """
    of_place = happened_rows.select(*PLACE, "window", "age_ms", *FAILED, *OF_PARTITION)
    to_group = happened_rows.where(F.col("topic").isNull())
    of_group = to_group.select("group_id", "window", *OF_GROUP)
    together, ordered = Window.partitionBy(*PLACE), _ordered("window")
    # While nothing is finished nobody sees how fast it could be.
    served = F.when(F.col("service_rate") > 0, F.col("service_rate"))
    rated = (
        sampled.join(of_place, [*PLACE, "window"], "left")
        .join(of_group, ["group_id", "window"], "left")
        .withColumn("arrival_rate", _rate("log_end_offset", ordered))
        .withColumn("service_rate", _rate("finished", ordered))
        .withColumn("_usual", F.coalesce(F.median(served).over(together), F.lit(0.0)))
    )
    # When the age of a sample is not known, the highest is not known either.
    behind_max_ms = F.when(F.col("behind_unknown") == 0, F.col("behind_max_ms"))
    age_ms = F.coalesce(behind_max_ms, F.col("age_ms"))
    idle = (F.col("service_rate") == 0) & (F.col("waiting_max") > 0)
    late = idle | (F.col("waiting_max") > F.col("_usual") * (settings.behind_ms / 1_000))
    old = F.coalesce(age_ms >= settings.behind_ms, F.lit(True))  # noqa: FBT003 - Spark's own
    return rated.select(
        *PLACE,
        F.timestamp_millis(F.col("window") * settings.window_ms).alias("window_start"),
        F.lit(settings.window_ms).alias("window_ms"),
        F.timestamp_micros("last_us").alias("sampled_at"),
        *("lag", "waiting"),
        F.coalesce(F.col("behind_ms"), F.col("age_ms")).alias("behind_ms"),
        *("lag_max", "waiting_max"),
        age_ms.alias("behind_max_ms"),
        *("log_end_offset", "start_offset", "arrival_rate", "service_rate"),
        F.coalesce(late & old, F.lit(False)).alias("behind"),  # noqa: FBT003 - Spark's own
        *(F.coalesce(F.col(name), F.lit(0)).alias(name) for name in HAPPENINGS),
    )


def _ordered(column: str) -> WindowSpec:
    return Window.partitionBy(*PLACE).orderBy(column)


def _rate(name: str, ordered: WindowSpec) -> Column:
    """Records per second since the window before; in the first window since its first sample.

    Null when offsets went back.
    """

    def before(of_last: str, of_first: str) -> Column:
        return F.coalesce(F.lag(of_last).over(ordered), F.col(of_first))

    seconds = (F.col("last_us") - before("last_us", "first_us")) / 1e6
    amount = F.col(name) - before(name, f"first_{name}")
    return F.when((seconds > 0) & (amount >= 0), amount / seconds)


# -- stretches of lag -----------------------------------------------------------------------------


def _with_begins(window_rows: DataFrame) -> DataFrame:
    """Adds `begins`: whether a stretch of lag begins in this window."""
    before = F.lag("behind").over(_ordered("window_start"))
    return window_rows.withColumn(
        "begins",
        F.col("behind") & ~F.coalesce(before, F.lit(False)),  # noqa: FBT003 - Spark's own
    )


def stretches(window_rows: DataFrame) -> DataFrame:
    """Times in which a share-partition was behind (gaps and islands over the rows of `windows`).

    Columns: group_id, topic, partition, last_without_lag (start of the last window before the
    stretch; null: behind from the first window on), since (start of the first window), until (end
    of the last; null: it lasts), windows (their number), waiting_max, lag_max, behind_max_ms.
    """
    ordered = _ordered("window_start")
    end = F.timestamp_millis(F.unix_millis("window_start") + F.col("window_ms"))
    islands = (
        _with_begins(window_rows)
        .withColumn("_before", F.lag("window_start").over(ordered))
        .withColumn("_island", F.sum(F.col("begins").cast("int")).over(ordered))
        .withColumn("_end", end)
        .withColumn("_newest", F.max("_end").over(Window.partitionBy(*PLACE)))
        .where(F.col("behind"))
    )
    return (
        islands.groupBy(*PLACE, "_island")
        .agg(
            F.max(F.when(F.col("begins"), F.col("_before"))).alias("last_without_lag"),
            F.min("window_start").alias("since"),
            F.when(F.max("_end") < F.max("_newest"), F.max("_end")).alias("until"),
            F.count(F.lit(1)).alias("windows"),
            *greatest("waiting_max", "lag_max", "behind_max_ms"),
        )
        .drop("_island")
    )


def causes(window_rows: DataFrame) -> DataFrame:
    """Causes of each stretch of lag: columns that changed when it began, most different first.

    In the rows of `windows` the two around the beginning (the last without lag, the first with it)
    are compared with the `BEFORE_WINDOWS` before them. A stretch without a window before it has no
    causes.

    Columns: group_id, topic, partition, since (of the stretch), rank (from 1), cause (see
    `CAUSES`), before, around (means per window), score.
    """
    ordered = _ordered("window_start")
    around = ordered.rowsBetween(-1, 0)
    before = ordered.rowsBetween(-1 - BEFORE_WINDOWS, -2)
    compared = [
        _compared(name, around, before, sign, unit) for name, (sign, unit) in CAUSES.items()
    ]
    ranks = Window.partitionBy(*PLACE, "since").orderBy(F.desc("score"), "cause")
    # Most windows are far from the beginning of a stretch: they are not compared.
    soon = F.max("begins").over(ordered.rowsBetween(0, 1 + BEFORE_WINDOWS))
    return (
        _with_begins(window_rows)
        .withColumn("_soon", soon)
        .where(F.col("_soon"))
        .withColumn("_all", F.array(*compared))
        .where(F.col("begins"))
        .select(*PLACE, F.col("window_start").alias("since"), F.inline("_all"))
        .where(F.col("score") >= SCORE_MIN)
        .withColumn("rank", F.row_number().over(ranks))
        .where(F.col("rank") <= CAUSES_MAX)
        .select(*PLACE, "since", "rank", "cause", "before", "around", "score")
    )


def _compared(name: str, around: WindowSpec, before: WindowSpec, sign: int, unit: float) -> Column:
    """A column's means before and around, and its growth (by `sign`) in usual variations."""
    value = F.col(name).cast("double")
    now, usual = F.avg(value).over(around), F.avg(value).over(before)
    variation = F.coalesce(F.stddev_pop(value).over(before), F.lit(0.0))
    score = sign * (now - usual) / (variation + usual * 0.1 + unit)
    # The last digits of a mean depend on the order in which Spark adds.
    score = F.round(score, 6)
    return F.struct(
        F.lit(name).alias("cause"),
        usual.alias("before"),
        now.alias("around"),
        score.alias("score"),
    )


# -- share-partitions -----------------------------------------------------------------------------


def partitions(
    window_rows: DataFrame,
    stretch_rows: DataFrame,
    cause_rows: DataFrame,
    trend_rows: DataFrame,
    census_rows: DataFrame,
) -> DataFrame:
    """The state of each share-partition at the end of the range, and how it came to it.

    The frames are those of `windows`, `stretches`, `causes`, `trend.trends` and `census`.

    Columns: group_id, topic, partition; sampled_at, lag, waiting, behind_ms, behind, lag_peak,
    arrival_rate, service_rate (means of the last `TREND_WINDOWS`), lag_share (of the topic's lag),
    topic_gini, topic_top_share (null when the topic has no lag), stretches (their number), and of
    the newest stretch since, until, last_without_lag, causes (the strongest first); the columns of
    `trend.trends`; changes_seen, changes_expected, complete, lost.
    """
    last = _last(window_rows)
    newest = Window.partitionBy(*PLACE).orderBy(F.desc("since"))
    newest_stretch = (
        stretch_rows.withColumn("_place", F.row_number().over(newest))
        .withColumn("stretches", F.count(F.lit(1)).over(Window.partitionBy(*PLACE)))
        .where(F.col("_place") == 1)
        .join(_cause_lists(cause_rows), [*PLACE, "since"], "left")
        .select(*PLACE, "stretches", "since", "until", "last_without_lag", "causes")
    )
    complete = completeness(census_rows, PLACE).select(
        *PLACE, "changes_seen", "changes_expected", "complete", "lost"
    )
    none = F.array().cast("array<struct<cause:string,before:double,around:double,score:double>>")
    return (
        last.join(_skew(last), ["group_id", "topic"], "left")
        .join(newest_stretch, PLACE, "left")
        .join(trend_rows, PLACE, "left")
        .join(complete, PLACE, "left")
        .withColumn("stretches", F.coalesce(F.col("stretches"), F.lit(0)))
        .withColumn("causes", F.coalesce(F.col("causes"), none))
    )


def _cause_lists(cause_rows: DataFrame) -> DataFrame:
    """The causes of each stretch as an array, in the order of their ranks."""
    ranked = F.array_sort(F.collect_list(F.struct("rank", "cause", "before", "around", "score")))
    plain = F.transform(ranked, lambda each: each.dropFields("rank"))
    return cause_rows.groupBy(*PLACE, "since").agg(plain.alias("causes"))


def _last(window_rows: DataFrame) -> DataFrame:
    """The last window of each share-partition, with means of the last `TREND_WINDOWS`."""
    ordered = _ordered("window_start")
    recent = ordered.rowsBetween(1 - TREND_WINDOWS, 0)
    lag = F.col("lag")
    topic = Window.partitionBy("group_id", "topic")
    return (
        window_rows.withColumn("lag_peak", F.max("lag_max").over(ordered))
        .withColumn("arrival_rate", F.avg("arrival_rate").over(recent))
        .withColumn("service_rate", F.avg("service_rate").over(recent))
        .withColumn("_next", F.lead("window_start").over(ordered))
        .where(F.col("_next").isNull())
        .withColumn("lag_share", measures.ratio(lag, F.sum(lag).over(topic)))
        .select(
            *PLACE,
            *("sampled_at", "lag", "waiting", "behind_ms", "behind", "lag_peak", "arrival_rate"),
            *("service_rate", "lag_share"),
        )
    )


def _skew(last: DataFrame) -> DataFrame:
    """How unevenly the lag of a topic is spread over its partitions."""
    keys = ["group_id", "topic"]
    lags = last.groupBy(*keys).agg(
        F.collect_list("lag").alias("values"), F.count("lag").alias("members")
    )
    return measures.with_spread(lags, "values", "members").select(
        *keys, F.col("gini").alias("topic_gini"), F.col("top_share").alias("topic_top_share")
    )
