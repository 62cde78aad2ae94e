"""Deliveries and how they ended, added up into a histogram: small enough for several looks."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.analytics import measures
from sharecoord.analytics.measures import sum_or_zero
from sharecoord.eventlog.rollups import (
    ACCEPTED,
    ATTEMPTS,
    BESIDE,
    FAILED,
    GRANTED,
    HELD_DIGITS,
    LEFT_DIGITS,
    NEAR_MISS,
)
from sharecoord.eventlog.schema import EventKind, RangeEvent

GIVEN_UP: Final = ("archiving", "archived")
"""States of records that are never delivered again."""


def attempts(events: DataFrame) -> DataFrame:
    """A histogram of deliveries and how they ended: the rollup table `ATTEMPTS`.

    Columns: group_id, topic, member_id, client_id, event (null: samples of members), state,
    delivery_count, lock_ms (of `GRANTED`), held_ms (of what ended an attempt; three significant
    digits), left_ms (two digits; null when clearly more than `NEAR_MISS` was left); ranges,
    records, work_us and worked (the application's time, and of how many records it is known),
    samples and holding (samples of members that hold records, and how many those are in all).
    """
    is_granted = F.col("event").isin(*GRANTED)
    ends = F.col("event").isin(ACCEPTED, *FAILED)
    holds = (F.col("kind") == EventKind.MEMBER.value) & (F.col("held") > 0)
    # Of a renewed lock it is less than this part of all the time that it was held.
    near = F.col("lock_left_ms") < (F.col("held_ms") + F.col("lock_left_ms")) * NEAR_MISS
    left_ms = measures.significant(F.greatest(F.col("lock_left_ms"), F.lit(0)), LEFT_DIGITS)
    works = F.col("work_us").isNotNull()
    keys = {
        "state": F.when(~is_granted, F.col("state")),
        "delivery_count": F.when(~is_granted, F.col("delivery_count")),
        "lock_ms": F.when(is_granted, F.col("lock_ms")),
        "held_ms": F.when(ends, measures.significant(F.col("held_ms"), HELD_DIGITS)),
        "left_ms": F.when(ends & near, left_ms),
    }
    return (
        events.where(F.col("event").isin(ACCEPTED, *FAILED, *BESIDE, *GRANTED) | holds)
        .groupBy(*(keys[name].alias(name) if name in keys else name for name in ATTEMPTS.keys))
        .agg(
            F.count(F.lit(1)).alias("ranges"),
            sum_or_zero("records").alias("records"),
            sum_or_zero("work_us").alias("work_us"),
            sum_or_zero(F.when(works, F.col("records"))).alias("worked"),
            F.sum(F.when(holds, 1).otherwise(0)).alias("samples"),
            sum_or_zero(F.when(holds, F.col("held"))).alias("holding"),
        )
    )


def with_member(attempt_rows: DataFrame) -> DataFrame:
    """Adds figures of the member of each row to rows of `attempts`: `lock` and `at_a_time`.

    `lock` is its longest lock in ms (null: none is known), `at_a_time` how many records it held at
    a time: the mean of its samples, without samples of the ranges that it was handed; at least 1.
    """
    member = Window.partitionBy("group_id", "member_id")
    acquired = F.col("event") == RangeEvent.ACQUIRED.value
    sampled = measures.ratio(F.sum("holding").over(member), F.sum("samples").over(member))
    handed = measures.ratio(
        F.sum(F.when(acquired, F.col("records"))).over(member),
        F.sum(F.when(acquired, F.col("ranges"))).over(member),
    )
    return attempt_rows.where(F.col("member_id").isNotNull()).select(
        *attempt_rows.columns,
        F.max("lock_ms").over(member).alias("lock"),
        F.greatest(F.coalesce(sampled, handed), F.lit(1.0)).alias("at_a_time"),
    )


def of_event(name: str) -> Column:
    """Aggregate over attempts: records of one event."""
    return sum_or_zero(F.when(F.col("event") == name, F.col("records")))


def work_ms() -> Column:
    """Aggregate over attempts: the application's time per record; null when it is not known."""
    return measures.ratio(F.sum("work_us"), F.sum("worked")) / 1_000
