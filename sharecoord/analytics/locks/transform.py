"""Locks as functions from frames to frames; docs/locks.md has definitions and rules.

events ── attempts ─┬─ members
                    └─ groups
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.attempts import of_event, with_member, work_ms
from sharecoord.analytics.census import completeness
from sharecoord.analytics.locks.settings import (
    GONE,
    MARGIN,
    MAX_LOCK_MS,
    MIN_LOCK_MS,
    OUTLIERS,
    RECORDS_MIN,
    STEPS_MS,
    TOO_LONG,
    TROUBLE,
    Advice,
)
from sharecoord.analytics.measures import greatest, sum_or_zero
from sharecoord.eventlog.rollups import ACCEPTED, NEAR_MISS
from sharecoord.eventlog.schema import RangeEvent

_ACKNOWLEDGED = (ACCEPTED, RangeEvent.RELEASED.value, RangeEvent.REJECTED.value)
"""Events that a member reports itself: only with them it is known how long it needed."""
_QUANTILES = {"held_p50_ms": 0.5, "held_p95_ms": 0.95, "held_p99_ms": 0.99, "held_p999_ms": 0.999}


def members(attempt_rows: DataFrame) -> DataFrame:
    """How long each member held locks: group_id, member_id, client_id, columns of `_figures`."""
    return _figures(attempt_rows, ["group_id", "member_id"])


def groups(attempt_rows: DataFrame, census_rows: DataFrame) -> DataFrame:
    """How long locks are held in each group, and which duration would fit.

    Columns: group_id, those of `_figures`; advised_lock_ms, poll_records (how many records fit into
    the present lock; null when the time of one is not known), advice (see `Advice`), and those of
    `completeness`.
    """
    complete = completeness(census_rows, ["group_id"])
    return complete.join(advised(_figures(attempt_rows, ["group_id"])), "group_id", "left")


def _figures(attempt_rows: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Figures of locks by `keys`.

    acknowledged, renewed, expired, departed, near_misses (records); expired_share (of
    acknowledged and expired), near_share (of acknowledged); held_p50_ms to held_p999_ms,
    held_max_ms (of acknowledged, by record); lock_ms (the median granted), lock_min_ms,
    lock_max_ms; at_a_time (records), work_ms (mean of a record, null: not known).
    """
    acknowledged, records = F.col("event").isin(*_ACKNOWLEDGED), F.col("records")
    held_ms = F.when(acknowledged, F.col("held_ms"))
    acquired = F.col("event") == RangeEvent.ACQUIRED.value
    near = acknowledged & (F.col("left_ms") < F.col("lock") * NEAR_MISS)
    added_up = (
        with_member(attempt_rows)
        .groupBy(*keys)
        .agg(
            *greatest("client_id"),
            sum_or_zero(F.when(acknowledged, records)).alias("acknowledged"),
            of_event(RangeEvent.RENEWED.value).alias("renewed"),
            of_event(RangeEvent.EXPIRED.value).alias("expired"),
            of_event(RangeEvent.DEPARTED.value).alias("departed"),
            sum_or_zero(F.when(near, records)).alias("near_misses"),
            F.percentile(held_ms, list(_QUANTILES.values()), records).alias("_held"),
            F.max(held_ms).alias("held_max_ms"),
            F.percentile(F.when(acquired, F.col("lock_ms")), 0.5, records).alias("lock_ms"),
            F.min("lock_ms").alias("lock_min_ms"),
            F.max("lock_ms").alias("lock_max_ms"),
            # The lock has to fit the member that holds most records at a time, too.
            *greatest("at_a_time"),
            work_ms().alias("work_ms"),
        )
    )
    ended = F.col("acknowledged") + F.col("expired")
    left_out = {"_held", *keys} if "member_id" in keys else {"_held", "client_id", *keys}
    return added_up.select(
        *keys,
        *(name for name in added_up.columns if name not in left_out),
        *(F.col("_held")[i].alias(name) for i, name in enumerate(_QUANTILES)),
        measures.ratio(F.col("expired"), ended).alias("expired_share"),
        measures.ratio(F.col("near_misses"), F.col("acknowledged")).alias("near_share"),
    )


def advised(figures: DataFrame) -> DataFrame:
    """Adds advised_lock_ms, poll_records and advice to figures, by the rules of docs/locks.md."""
    lock, high = F.col("lock_ms"), F.col("held_p999_ms")
    expires = F.coalesce(F.col("expired_share") >= TROUBLE, F.lit(False))  # noqa: FBT003
    narrow = F.coalesce(F.col("near_share") >= TROUBLE, F.lit(False))  # noqa: FBT003
    gone = expires & ~narrow & F.coalesce(high < lock * GONE, F.lit(False))  # noqa: FBT003
    # Records whose lock expired need longer than the lock; how much longer nobody knows.
    needed = F.when(expires & ~gone, F.greatest(high * MARGIN, lock * 2)).otherwise(high * MARGIN)
    poll = F.greatest(F.floor(lock / (F.col("work_ms") * MARGIN)), F.lit(1))
    few = F.coalesce(F.col("acknowledged"), F.lit(0)) < RECORDS_MIN
    trouble = expires | narrow
    crowded = (F.col("work_ms") * MARGIN <= lock) & (F.col("poll_records") < F.col("at_a_time"))
    advice = (
        F.when(few, Advice.TOO_FEW.value)
        .when(gone, Advice.GONE.value)
        .when(trouble & crowded, Advice.FEWER_RECORDS.value)
        .when(trouble & (high >= F.col("held_p50_ms") * OUTLIERS), Advice.RENEW.value)
        .when(trouble, Advice.LONGER.value)
        .when(F.col("advised_lock_ms") * TOO_LONG <= lock, Advice.SHORTER.value)
        .otherwise(Advice.FITS.value)
    )
    return (
        figures.withColumn("advised_lock_ms", rounded(needed))
        .withColumn("poll_records", F.when((F.col("work_ms") > 0) & lock.isNotNull(), poll))
        .withColumn("advice", advice)
    )


def rounded(needed_ms: Column) -> Column:
    """A duration rounded up to a number that people set, within the bounds; null stays null."""
    bounded = F.least(F.greatest(needed_ms, F.lit(MIN_LOCK_MS)), F.lit(MAX_LOCK_MS))
    # The last step reaches to MAX_LOCK_MS, so one of them always fits.
    choices = [F.when(bounded <= up_to, F.ceil(bounded / step) * step) for up_to, step in STEPS_MS]
    return F.when(needed_ms.isNotNull(), F.coalesce(*choices))
