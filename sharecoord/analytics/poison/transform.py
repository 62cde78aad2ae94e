"""Failures as functions from frames to frames; docs/poison.md has definitions and formulas.

    events ─┬─ attempts ─┬─ deliveries
            │            └─ members ── expiries
            ├─ troubles ─── records, keys, reasons
            └─ census

The results of `attempts` (shared with the locks job) and `troubles` are used more than once: a
caller keeps them with `persist`. Nothing here collects rows, and nothing runs in Python.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.attempts import GIVEN_UP, of_event, with_member, work_ms
from sharecoord.analytics.census import completeness
from sharecoord.analytics.measures import greatest, sum_or_zero, sums
from sharecoord.analytics.poison.settings import (
    NAMED_MAX,
    POISON_DELIVERIES,
    REASON_LENGTH_MAX,
    REASONS_MAX,
)
from sharecoord.eventlog.rollups import ACCEPTED, BESIDE, FAILED, TROUBLES
from sharecoord.eventlog.schema import RangeEvent

MS_PER_HOUR = 3_600_000
LOAD_STEPS = 4
"""Handler times are told apart in this many parts of the lock."""

_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_NUMBER = rf"{_UUID}|0x[0-9a-fA-F]+|\d+(?:[.,]\d+)*"
"""Numbers in a reason, which differ between failures of one cause."""


# -- what is read ---------------------------------------------------------------------------------


def troubles(events: DataFrame) -> DataFrame:
    """Every range that failed or was given up: the rollup table `TROUBLES`.

    In the column `reason` numbers are replaced by `#`.
    """
    reason = F.regexp_replace(F.substring("reason", 1, REASON_LENGTH_MAX), _NUMBER, "#")
    failed = events.where(F.col("event").isin(*FAILED, *BESIDE))
    return failed.withColumn("reason", reason).select(*TROUBLES.columns)


# -- deliveries -----------------------------------------------------------------------------------


def deliveries(attempt_rows: DataFrame) -> DataFrame:
    """How often finished records had been delivered.

    Columns: group_id, topic, delivery_count, accepted, archived, records, share (of the topic's).
    """
    accepted, archived = of_event(ACCEPTED), sum_or_zero(_archived())
    topic = Window.partitionBy("group_id", "topic")
    return (
        attempt_rows.where(F.col("event").isin(ACCEPTED, *FAILED, *BESIDE))
        .groupBy("group_id", "topic", "delivery_count")
        .agg(accepted.alias("accepted"), archived.alias("archived"))
        .withColumn("records", F.col("accepted") + F.col("archived"))
        .where(F.col("records") > 0)
        .withColumn("share", measures.ratio(F.col("records"), F.sum("records").over(topic)))
    )


def _archived() -> Column:
    """Records that were given up; those of the dead-letter topic are counted on the way to it."""
    again = F.col("event") == RangeEvent.DEAD_LETTERED.value
    return F.when(F.col("state").isin(*GIVEN_UP) & ~again, F.col("records"))


# -- what fails -----------------------------------------------------------------------------------


_RECORD = ["group_id", "topic", "partition", "first_offset"]
_KEY = ["group_id", "topic", "key"]


def records(trouble_rows: DataFrame) -> DataFrame:
    """Records that failed, by the first offset of their range.

    A record's delivery count says how often it failed, whatever ranges it was in.

    Columns: group_id, topic, partition, first_offset, records (of the largest such range), failures
    (the highest delivery count), given_up, rank (in its group).
    """
    order = Window.partitionBy("group_id").orderBy(
        F.desc("failures"), F.desc("given_up"), "topic", "partition", "first_offset"
    )
    return (
        trouble_rows.where(F.col("event").isin(*FAILED))
        .groupBy(*_RECORD)
        .agg(
            *greatest("records"),
            F.max("delivery_count").alias("failures"),
            F.max(F.col("state").isin(*GIVEN_UP)).alias("given_up"),
        )
        .withColumn("rank", F.row_number().over(order))
    )


def worst_records(record_rows: DataFrame, trouble_rows: DataFrame) -> DataFrame:
    """Adds key, reason and last_time (of the last failure) to few kept rows of `records`."""
    failed = trouble_rows.where(F.col("event").isin(*FAILED))
    with_last = _with_last(record_rows, failed, _RECORD)
    return with_last.withColumn("key", _text(F.col("_last.key"))).drop("_last")


def keys(trouble_rows: DataFrame) -> DataFrame:
    """Keys of single records that failed.

    Columns: group_id, topic, key (bytes), failures, records, given_up (records), deliveries_max,
    poison (a record of it was given up, or failed `POISON_DELIVERIES` times), rank (in its group).
    """
    of_record = (
        _of_keys(trouble_rows)
        .groupBy(*_KEY, "partition", "first_offset")
        .agg(
            F.count(F.lit(1)).alias("failures"),
            F.max("delivery_count").alias("deliveries"),
            F.max(F.col("state").isin(*GIVEN_UP).cast("int")).alias("given_up"),
        )
    )
    poison = (F.col("given_up") > 0) | (F.col("deliveries_max") >= POISON_DELIVERIES)
    order = Window.partitionBy("group_id").orderBy(
        F.desc("poison"), F.desc("failures"), "topic", "key"
    )
    return (
        of_record.groupBy(*_KEY)
        .agg(
            *sums("failures"),
            F.count(F.lit(1)).alias("records"),
            sum_or_zero("given_up").alias("given_up"),
            F.max("deliveries").alias("deliveries_max"),
        )
        .withColumn("poison", F.coalesce(poison, F.lit(False)))  # noqa: FBT003 - Spark's own
        .withColumn("rank", F.row_number().over(order))
    )


def worst_keys(key_rows: DataFrame, trouble_rows: DataFrame) -> DataFrame:
    """Adds reason and last_time (of the last failure) to few kept rows of `keys`; keys are text."""
    with_last = _with_last(key_rows, _of_keys(trouble_rows), _KEY)
    return with_last.withColumn("key", _text(F.col("key"))).drop("_last")


def _of_keys(trouble_rows: DataFrame) -> DataFrame:
    return trouble_rows.where(F.col("event").isin(*FAILED) & F.col("key").isNotNull())


def _with_last(chosen: DataFrame, failed: DataFrame, by: list[str]) -> DataFrame:
    """Adds `reason` and `last_time` of the last failure, and all of that failure as `_last`.

    Only for few rows: the greatest of texts is found by a sort, not by hashing.
    """
    last = F.struct("time", "reason", "key", "delivery_count")
    of_chosen = (
        failed.join(F.broadcast(chosen.select(*by)), by, "semi")
        .groupBy(*by)
        .agg(F.max(last).alias("_last"))
    )
    return (
        chosen.join(F.broadcast(of_chosen), by, "left")
        .withColumn("reason", F.col("_last.reason"))
        .withColumn("last_time", F.col("_last.time"))
    )


def top(ranked: DataFrame, most: int) -> DataFrame:
    """The first rows of each group."""
    return ranked.where(F.col("rank") <= most)


def _text(key: Column) -> Column:
    """A key as people read it: text, or hex digits."""
    hexadecimal = F.concat(F.lit("0x"), F.lower(F.hex(key)))
    return F.coalesce(F.try_validate_utf8(key.cast("string")), hexadecimal)


def reasons(trouble_rows: DataFrame) -> DataFrame:
    """Reasons why records failed or were given up; at most `REASONS_MAX` per group.

    Columns: group_id, topic, event, state, reason (null: none was given), records, ranges, rank (in
    its group).
    """
    order = Window.partitionBy("group_id").orderBy(
        F.desc("records"), "topic", "event", "state", "reason"
    )
    ranked = (
        trouble_rows.groupBy("group_id", "topic", "event", "state", "reason")
        .agg(*sums("records"), F.count(F.lit(1)).alias("ranges"))
        .withColumn("rank", F.row_number().over(order))
    )
    return top(ranked, REASONS_MAX)


# -- what it costs --------------------------------------------------------------------------------


def members(attempt_rows: DataFrame) -> DataFrame:
    """Attempts of each member, how they ended, and the working time that they took.

    Columns: group_id, member_id, client_id, attempts (records), failed, `FAILED`, expired_share,
    at_a_time (records), work_ms (mean of a record, null: not known), held_ms (mean of an accepted
    record), lock_ms, load (handler time for the records that it holds at a time / lock),
    spent_hours, wasted_hours.
    """
    failed = F.col("event").isin(*FAILED)
    capped = F.least(F.col("held_ms"), F.coalesce(F.col("lock"), F.col("held_ms")))
    held_ms = F.when(F.col("held_ms").isNotNull(), capped).otherwise(0)
    unknown = (F.col("records") - F.col("worked")) * held_ms
    spent_ms = F.col("work_us") / 1_000 + unknown / F.col("at_a_time")
    accepted = F.when(F.col("event") == ACCEPTED, F.col("records"))
    added_up = (
        with_member(attempt_rows)
        .where(F.col("event").isin(ACCEPTED, *FAILED))
        .withColumn("_spent_ms", spent_ms)
        .groupBy("group_id", "member_id")
        .agg(
            *greatest("client_id"),
            F.sum("records").alias("attempts"),
            F.sum(F.when(failed, F.col("records")).otherwise(0)).alias("failed"),
            *(of_event(name).alias(name) for name in FAILED),
            *greatest("at_a_time"),
            work_ms().alias("work_ms"),
            measures.ratio(F.sum(accepted * F.col("held_ms")), F.sum(accepted)).alias("held_ms"),
            F.max("lock").alias("lock_ms"),
            (F.sum("_spent_ms") / MS_PER_HOUR).alias("spent_hours"),
            (F.sum(F.when(failed, F.col("_spent_ms")).otherwise(0.0)) / MS_PER_HOUR).alias(
                "wasted_hours"
            ),
        )
    )
    handler_ms = F.coalesce(F.col("work_ms") * F.col("at_a_time"), F.col("held_ms"))
    expired_share = measures.ratio(F.col("expired"), F.col("attempts"))
    load = measures.ratio(handler_ms, F.col("lock_ms"))
    return added_up.withColumns({"expired_share": expired_share, "load": load})


def expiries(member_rows: DataFrame) -> DataFrame:
    """Expired locks by handler time: they show whether locks expire because handlers are slow.

    Columns: group_id, load_from (0, 0.25, … 1 and more; null: not known), members, attempts,
    expired, expired_share.
    """
    whole = F.least(F.floor(F.col("load") * LOAD_STEPS), F.lit(LOAD_STEPS)) / LOAD_STEPS
    # The least of a null and a number is the number.
    step = F.when(F.col("load").isNotNull(), whole)
    return (
        member_rows.groupBy("group_id", step.alias("load_from"))
        .agg(
            F.count(F.lit(1)).alias("members"),
            *sums("attempts", "expired"),
        )
        .withColumn("expired_share", measures.ratio(F.col("expired"), F.col("attempts")))
    )


# -- groups ---------------------------------------------------------------------------------------


def groups(
    delivery_rows: DataFrame,
    member_rows: DataFrame,
    key_rows: DataFrame,
    reason_rows: DataFrame,
    census_rows: DataFrame,
) -> DataFrame:
    """Figures of each group, from `deliveries`, `members`, all `keys`, `reasons` and the census.

    Columns: group_id, attempts, failed, failed_share, `FAILED`, accepted, archived, dead_lettered
    (records), delivery_mean, delivery_max (of finished records), poison_keys (a number), worst_keys
    (at most `NAMED_MAX`), top_reason, spent_hours, wasted_hours, wasted_share, and the columns of
    `completeness`.
    """
    delivery_sum = F.sum(F.col("records") * F.col("delivery_count"))
    delivered = delivery_rows.groupBy("group_id").agg(
        *sums("accepted", "archived"),
        measures.ratio(delivery_sum, F.sum("records")).alias("delivery_mean"),
        F.max("delivery_count").alias("delivery_max"),
    )
    of_members = ("attempts", "failed", *FAILED, "spent_hours", "wasted_hours")
    spent = member_rows.groupBy("group_id").agg(*sums(*of_members))
    joined = completeness(census_rows, ["group_id"])
    for frame in (delivered, spent, _poison_keys(key_rows), _top_reasons(reason_rows)):
        joined = joined.join(frame, "group_id", "left")
    zeros = [*of_members, "accepted", "archived", "dead_lettered", "poison_keys"]
    return (
        joined.fillna(0, subset=zeros)
        .withColumn("failed_share", measures.ratio(F.col("failed"), F.col("attempts")))
        .withColumn("wasted_share", measures.ratio(F.col("wasted_hours"), F.col("spent_hours")))
        .withColumn("worst_keys", F.coalesce(F.col("worst_keys"), F.array().cast("array<string>")))
    )


def _poison_keys(key_rows: DataFrame) -> DataFrame:
    """Number of the keys that are poison, and the worst of them."""
    named = F.col("poison") & (F.col("rank") <= NAMED_MAX)
    name = F.struct("rank", _text(F.col("key")).alias("key"))
    return key_rows.groupBy("group_id").agg(
        F.sum(F.col("poison").cast("int")).alias("poison_keys"),
        F.array_sort(F.collect_list(F.when(named, name))).getField("key").alias("worst_keys"),
    )


def _top_reasons(reason_rows: DataFrame) -> DataFrame:
    """The most frequent reason of failures, and the number of dead letters that are safe."""
    reasons_given = F.when(
        F.col("event").isin(*FAILED) & F.col("reason").isNotNull(), F.struct("records", "reason")
    )
    return reason_rows.groupBy("group_id").agg(
        F.max(reasons_given).getField("reason").alias("top_reason"),
        of_event(RangeEvent.DEAD_LETTERED.value).alias("dead_lettered"),
    )
