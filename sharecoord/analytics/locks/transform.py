"""Locks as functions from frames to frames; docs/locks.md has definitions and rules.

events ── attempts ─┬─ members
                    └─ groups
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

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
from sharecoord.eventlog.rollups import ACCEPTED, NEAR_MISS
from sharecoord.eventlog.schema import RangeEvent

_ACKNOWLEDGED = (ACCEPTED, RangeEvent.RELEASED.value, RangeEvent.REJECTED.value)
"""What a member says itself: only of these it is known how long it needed."""
_QUANTILES = {"held_p50_ms": 0.5, "held_p95_ms": 0.95, "held_p99_ms": 0.99, "held_p999_ms": 0.999}


def members(counted: DataFrame) -> DataFrame:
    """How long each member held locks.

    Args:
        counted: From `attempts`.

    Returns:
        group_id, member_id, client_id and the columns of `_figures`.
    """
    return _figures(counted, ["group_id", "member_id"])


def groups(counted: DataFrame, census_rows: DataFrame) -> DataFrame:
    """How long locks are held in each group, and which duration would fit.

    Args:
        counted: From `attempts`.
        census_rows: From `census`.

    Returns:
        group_id, the columns of `_figures`; advised_lock_ms, poll_records (how many records fit
        into the present lock; null when the time of one is not known), advice (see `Advice`), and
        the columns of `completeness`.
    """
    whole = completeness(census_rows, ["group_id"])
    return whole.join(advised(_figures(counted, ["group_id"])), "group_id", "left")


def _figures(counted: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Aggregates by `keys`.

    acknowledged, renewed, expired, departed, near_misses (records); expired_share (of
    acknowledged and expired), near_share (of acknowledged); held_p50_ms to held_p999_ms,
    held_max_ms (of acknowledged, by record); lock_ms (the median granted), lock_min_ms,
    lock_max_ms; at_a_time (records), work_ms (mean of a record, null: not known).
    """
    said, records = F.col("event").isin(*_ACKNOWLEDGED), F.col("records")
    held_ms = F.when(said, F.col("held_ms"))
    acquired = F.col("event") == RangeEvent.ACQUIRED.value
    near = said & (F.col("left_ms") < F.col("lock") * NEAR_MISS)
    found = (
        with_member(counted)
        .groupBy(*keys)
        .agg(
            F.max("client_id").alias("client_id"),
            _sum(said).alias("acknowledged"),
            of_event(RangeEvent.RENEWED.value).alias("renewed"),
            of_event(RangeEvent.EXPIRED.value).alias("expired"),
            of_event(RangeEvent.DEPARTED.value).alias("departed"),
            _sum(near).alias("near_misses"),
            F.percentile(held_ms, list(_QUANTILES.values()), records).alias("_held"),
            F.max(held_ms).alias("held_max_ms"),
            F.percentile(F.when(acquired, F.col("lock_ms")), 0.5, records).alias("lock_ms"),
            F.min("lock_ms").alias("lock_min_ms"),
            F.max("lock_ms").alias("lock_max_ms"),
            # Of the member that holds most at a time the lock has to do, too.
            F.max("at_a_time").alias("at_a_time"),
            work_ms().alias("work_ms"),
        )
    )
    ended = F.col("acknowledged") + F.col("expired")
    kept = [name for name in found.columns if name != "_held" and name not in keys]
    return found.select(
        *keys,
        *(name for name in kept if name != "client_id" or "member_id" in keys),
        *(F.col("_held")[i].alias(name) for i, name in enumerate(_QUANTILES)),
        measures.ratio(F.col("expired"), ended).alias("expired_share"),
        measures.ratio(F.col("near_misses"), F.col("acknowledged")).alias("near_share"),
    )


def _sum(condition: Column) -> Column:
    return F.coalesce(F.sum(F.when(condition, F.col("records"))), F.lit(0))


def advised(figures: DataFrame) -> DataFrame:
    """Adds advised_lock_ms, poll_records and advice, by the rules of docs/locks.md.

    Args:
        figures: One row per group, as of `_figures`.
    """
    lock, high = F.col("lock_ms"), F.col("held_p999_ms")
    expires = F.coalesce(F.col("expired_share") >= TROUBLE, F.lit(False))  # noqa: FBT003
    narrow = F.coalesce(F.col("near_share") >= TROUBLE, F.lit(False))  # noqa: FBT003
    gone = expires & ~narrow & F.coalesce(high < lock * GONE, F.lit(False))  # noqa: FBT003
    # What expired would have taken longer than the lock; how much longer nobody knows.
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
    ups = [(up_to, F.ceil(bounded / step) * step) for up_to, step in STEPS_MS]
    (first, value), *others = ups
    chosen = reduce(
        lambda found, each: found.when(bounded <= each[0], each[1]),
        others,
        F.when(bounded <= first, value),
    )
    return F.when(needed_ms.isNotNull(), chosen)
