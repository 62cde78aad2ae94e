"""Failures as functions from frames to frames; docs/poison.md has definitions and formulas.

    events ─┬─ attempts ─┬─ deliveries
            │            └─ members ── expiries
            ├─ troubles ─── records, keys, reasons
            └─ census

`attempts` (shared with the locks job) and `troubles` are used more than once: a caller keeps them
with `persist`. Nothing here collects rows, and nothing runs in Python.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.attempts import GIVEN_UP, of_event, with_member, work_ms
from sharecoord.analytics.census import completeness
from sharecoord.analytics.poison.settings import (
    NAMED_MAX,
    POISON_DELIVERIES,
    REASON_LENGTH_MAX,
    REASONS_MAX,
)
from sharecoord.eventlog.rollups import ACCEPTED, BESIDE, FAILED
from sharecoord.eventlog.schema import RangeEvent

MS_PER_HOUR = 3_600_000
LOAD_STEPS = 4
"""Handler times are told apart in quarters of the lock."""

_UUID = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_NUMBER = rf"{_UUID}|0x[0-9a-fA-F]+|\d+(?:[.,]\d+)*"
"""What differs between failures of one cause."""


# -- what is read ---------------------------------------------------------------------------------


def troubles(events: DataFrame) -> DataFrame:
    """Every range that failed or was given up, with as little as the others need.

    Columns: group_id, topic, partition, first_offset, records, time, event, state, delivery_count,
    reason (numbers replaced by `#`), key.
    """
    reason = F.regexp_replace(F.substring("reason", 1, REASON_LENGTH_MAX), _NUMBER, "#")
    return events.where(F.col("event").isin(*FAILED, *BESIDE)).select(
        *("group_id", "topic", "partition", "first_offset", "records", "time", "event", "state"),
        "delivery_count",
        reason.alias("reason"),
        "key",
    )


# -- deliveries -----------------------------------------------------------------------------------


def deliveries(counted: DataFrame) -> DataFrame:
    """How often finished records had been delivered.

    Args:
        counted: From `attempts`.

    Returns:
        group_id, topic, delivery_count, accepted, archived, records, share (of the topic's).
    """
    accepted, archived = of_event(ACCEPTED), F.coalesce(F.sum(_archived()), F.lit(0))
    topic = Window.partitionBy("group_id", "topic")
    return (
        counted.where(F.col("event").isin(ACCEPTED, *FAILED, *BESIDE))
        .groupBy("group_id", "topic", "delivery_count")
        .agg(accepted.alias("accepted"), archived.alias("archived"))
        .withColumn("records", F.col("accepted") + F.col("archived"))
        .where(F.col("records") > 0)
        .withColumn("share", measures.ratio(F.col("records"), F.sum("records").over(topic)))
    )


def _archived() -> Column:
    """Records that were given up; on the way to the dead-letter topic they are counted once."""
    again = F.col("event") == RangeEvent.DEAD_LETTERED.value
    return F.when(F.col("state").isin(*GIVEN_UP) & ~again, F.col("records"))


# -- what fails -----------------------------------------------------------------------------------


_RECORD = ["group_id", "topic", "partition", "first_offset"]
_KEY = ["group_id", "topic", "key"]


def records(trouble_rows: DataFrame) -> DataFrame:
    """What failed, by the first offset of its range.

    A record's delivery count says how often it failed, whatever ranges it was in.

    Args:
        trouble_rows: From `troubles`.

    Returns:
        group_id, topic, partition, first_offset, records (of the largest such range), failures (the
        highest delivery count), given_up, rank (in its group).
    """
    order = Window.partitionBy("group_id").orderBy(
        F.desc("failures"), F.desc("given_up"), "topic", "partition", "first_offset"
    )
    return (
        trouble_rows.where(F.col("event").isin(*FAILED))
        .groupBy(*_RECORD)
        .agg(
            F.max("records").alias("records"),
            F.max("delivery_count").alias("failures"),
            F.max(F.col("state").isin(*GIVEN_UP)).alias("given_up"),
        )
        .withColumn("rank", F.row_number().over(order))
    )


def worst_records(record_rows: DataFrame, trouble_rows: DataFrame) -> DataFrame:
    """Records as people read them.

    Args:
        record_rows: Few of `records`, which are kept.
        trouble_rows: From `troubles`.

    Returns:
        The columns of `records`, and key, reason and last_time (of the last failure).
    """
    failed = trouble_rows.where(F.col("event").isin(*FAILED))
    found = _with_last(record_rows, failed, _RECORD)
    return found.withColumn("key", _text(F.col("_last.key"))).drop("_last")


def keys(trouble_rows: DataFrame) -> DataFrame:
    """Keys of single records that failed.

    Args:
        trouble_rows: From `troubles`.

    Returns:
        group_id, topic, key (bytes), failures, records, given_up (records), deliveries_max, poison
        (one of its records was given up, or failed `POISON_DELIVERIES` times), rank (in its group).
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
            F.sum("failures").alias("failures"),
            F.count(F.lit(1)).alias("records"),
            F.coalesce(F.sum("given_up"), F.lit(0)).alias("given_up"),
            F.max("deliveries").alias("deliveries_max"),
        )
        .withColumn("poison", F.coalesce(poison, F.lit(False)))  # noqa: FBT003 - Spark's own
        .withColumn("rank", F.row_number().over(order))
    )


def worst_keys(key_rows: DataFrame, trouble_rows: DataFrame) -> DataFrame:
    """Keys as people read them.

    Args:
        key_rows: Few of `keys`, which are kept.
        trouble_rows: From `troubles`.

    Returns:
        The columns of `keys` with the key as text, and reason and last_time (of the last failure).
    """
    found = _with_last(key_rows, _of_keys(trouble_rows), _KEY)
    return found.withColumn("key", _text(F.col("key"))).drop("_last")


def _of_keys(trouble_rows: DataFrame) -> DataFrame:
    return trouble_rows.where(F.col("event").isin(*FAILED) & F.col("key").isNotNull())


def _with_last(chosen: DataFrame, failed: DataFrame, by: list[str]) -> DataFrame:
    """Adds `reason`, `last_time` and all of what failed last (`_last`).

    For few rows alone: texts are not added up by hashing, but by a sort.
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
    """Why records failed or were given up; at most `REASONS_MAX` per group.

    Args:
        trouble_rows: From `troubles`.

    Returns:
        group_id, topic, event, state, reason (null: none was said), records, ranges, rank (in its
        group).
    """
    order = Window.partitionBy("group_id").orderBy(
        F.desc("records"), "topic", "event", "state", "reason"
    )
    found = (
        trouble_rows.groupBy("group_id", "topic", "event", "state", "reason")
        .agg(F.sum("records").alias("records"), F.count(F.lit(1)).alias("ranges"))
        .withColumn("rank", F.row_number().over(order))
    )
    return top(found, REASONS_MAX)


# -- what it costs --------------------------------------------------------------------------------


def members(counted: DataFrame) -> DataFrame:
    """What each member's attempts came to.

    Args:
        counted: From `attempts`.

    Returns:
        group_id, member_id, client_id, attempts (records), failed, released, rejected, expired,
        departed, expired_share, at_a_time (records), work_ms (mean of a record, null: not known),
        held_ms (mean of an accepted record), lock_ms, load (handler time for what it holds at a
        time / lock), spent_hours, wasted_hours.
    """
    failed = F.col("event").isin(*FAILED)
    mine = with_member(counted)
    capped = F.least(F.col("held_ms"), F.coalesce(F.col("lock"), F.col("held_ms")))
    held_ms = F.when(F.col("held_ms").isNotNull(), capped).otherwise(0)
    unknown = (F.col("records") - F.col("worked")) * held_ms
    spent_ms = F.col("work_us") / 1_000 + unknown / F.col("at_a_time")
    accepted = F.when(F.col("event") == ACCEPTED, F.col("records"))
    found = (
        mine.where(F.col("event").isin(ACCEPTED, *FAILED))
        .withColumn("_spent_ms", spent_ms)
        .groupBy("group_id", "member_id")
        .agg(
            F.max("client_id").alias("client_id"),
            F.sum("records").alias("attempts"),
            F.sum(F.when(failed, F.col("records")).otherwise(0)).alias("failed"),
            *(of_event(name).alias(name) for name in FAILED),
            F.max("at_a_time").alias("at_a_time"),
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
    return found.withColumn(
        "expired_share", measures.ratio(F.col("expired"), F.col("attempts"))
    ).withColumn("load", measures.ratio(handler_ms, F.col("lock_ms")))


def expiries(member_rows: DataFrame) -> DataFrame:
    """Whether locks expire because handlers are slow: expiries by handler time.

    Args:
        member_rows: From `members`.

    Returns:
        group_id, load_from (0, 0.25, … 1 and more; null: not known), members, attempts, expired,
        expired_share.
    """
    whole = F.least(F.floor(F.col("load") * LOAD_STEPS), F.lit(LOAD_STEPS)) / LOAD_STEPS
    # The least of a null and a number is the number.
    step = F.when(F.col("load").isNotNull(), whole)
    return (
        member_rows.groupBy("group_id", step.alias("load_from"))
        .agg(
            F.count(F.lit(1)).alias("members"),
            F.sum("attempts").alias("attempts"),
            F.sum("expired").alias("expired"),
        )
        .withColumn("expired_share", measures.ratio(F.col("expired"), F.col("attempts")))
    )


# -- groups ---------------------------------------------------------------------------------------


def groups(
    delivery_rows: DataFrame,
    member_rows: DataFrame,
    key_rows: DataFrame,
    reason_rows: DataFrame,
    counted: DataFrame,
) -> DataFrame:
    """One row per group.

    Args:
        delivery_rows: From `deliveries`.
        member_rows: From `members`.
        key_rows: From `keys`, all of them.
        reason_rows: From `reasons`.
        counted: From `census`.

    Returns:
        group_id, attempts, failed, failed_share, released, rejected, expired, departed, accepted,
        archived, dead_lettered (records), delivery_mean, delivery_max (of finished records),
        poison_keys (a number), worst_keys (at most `NAMED_MAX`), top_reason, spent_hours,
        wasted_hours, wasted_share, and the columns of `completeness`.
    """
    finished = F.sum("records")
    delivered = delivery_rows.groupBy("group_id").agg(
        F.sum("accepted").alias("accepted"),
        F.sum("archived").alias("archived"),
        measures.ratio(F.sum(F.col("records") * F.col("delivery_count")), finished).alias(
            "delivery_mean"
        ),
        F.max("delivery_count").alias("delivery_max"),
    )
    found = completeness(counted, ["group_id"])
    for frame in (delivered, _spent(member_rows), _named(key_rows), _why(reason_rows)):
        found = found.join(frame, "group_id", "left")
    sums = ("attempts", "failed", *FAILED, "accepted", "archived", "dead_lettered", "poison_keys")
    return (
        found.fillna(0, subset=[*sums, "spent_hours", "wasted_hours"])
        .withColumn("failed_share", measures.ratio(F.col("failed"), F.col("attempts")))
        .withColumn("wasted_share", measures.ratio(F.col("wasted_hours"), F.col("spent_hours")))
        .withColumn("worst_keys", F.coalesce(F.col("worst_keys"), F.array().cast("array<string>")))
    )


def _spent(member_rows: DataFrame) -> DataFrame:
    names = ("attempts", "failed", *FAILED, "spent_hours", "wasted_hours")
    return member_rows.groupBy("group_id").agg(*(F.sum(name).alias(name) for name in names))


def _named(key_rows: DataFrame) -> DataFrame:
    """How many keys are poison, and the worst of them."""
    named = F.col("poison") & (F.col("rank") <= NAMED_MAX)
    name = F.struct("rank", _text(F.col("key")).alias("key"))
    return key_rows.groupBy("group_id").agg(
        F.sum(F.col("poison").cast("int")).alias("poison_keys"),
        F.array_sort(F.collect_list(F.when(named, name))).getField("key").alias("worst_keys"),
    )


def _why(reason_rows: DataFrame) -> DataFrame:
    """The most frequent reason of failures, and how many dead letters are safe."""
    said = F.when(
        F.col("event").isin(*FAILED) & F.col("reason").isNotNull(), F.struct("records", "reason")
    )
    return reason_rows.groupBy("group_id").agg(
        F.max(said).getField("reason").alias("top_reason"),
        of_event(RangeEvent.DEAD_LETTERED.value).alias("dead_lettered"),
    )
