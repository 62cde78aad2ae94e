"""Measures of fairness as expressions over frames; see docs/fairness.md for formulas and sources.

All of them are native expressions (window functions), so that they cost a sort and no Python. The
aggregates that all jobs need are here, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.eventlog.rollups import steps

SPREAD = ("records", "records_jain", "gini", "top_share", "top_decile_share", "variation")
"""The columns that `with_spread` adds."""

TOP_PART = 0.1
"""The top decile: this part of the members, rounded up."""


def sums(*names: str) -> list[Column]:
    """Aggregates: the sums of columns, under their names."""
    return [F.sum(name).alias(name) for name in names]


def least(*names: str) -> list[Column]:
    """Aggregates: the least values of columns, under their names."""
    return [F.min(name).alias(name) for name in names]


def greatest(*names: str) -> list[Column]:
    """Aggregates: the greatest values of columns, under their names."""
    return [F.max(name).alias(name) for name in names]


def sum_or_zero(value: str | Column) -> Column:
    """Aggregate: the sum of the values that are not null; 0 without any."""
    return F.coalesce(F.sum(value), F.lit(0))


def ratio(part: Column, whole: Column, otherwise: float | None = None) -> Column:
    """Part / whole as double; `otherwise` where the whole is 0 or null."""
    return F.when(whole != 0, part.cast("double") / whole.cast("double")).otherwise(
        F.lit(otherwise).cast("double")
    )


def with_fair_level(members: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Adds `level`: L at which the sum of min(demand, L) is the sum of `got`, by `keys`.

    In order of demand, L_i = (amount - demands before i) / (members from i on) grows as long as
    demand i is below it, and falls from there on: the highest is L, unless everything that was
    wanted was handed out, when L is the highest demand. The same as
    `core.dispatch.fair_share.fair_level`.

    Args:
        members: One row per member with `member_id`, `demand` and `got`, both at least 0.
        keys: The columns of a group at one time.
    """
    together = Window.partitionBy(*keys)
    ordered = together.orderBy("demand", "member_id")
    up_to_here = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    wants = F.col("demand") > 0
    others = F.sum(wants.cast("int")).over(together) - F.col("_wanting")
    left = F.sum("got").over(together).cast("double") - (F.col("_demands") - F.col("demand"))
    levels = (
        # In this order one sort is enough: first what goes by the demand, then the totals.
        members.withColumn("_demands", F.sum("demand").over(up_to_here))
        .withColumn("_wanting", F.sum(wants.cast("int")).over(up_to_here))
        .withColumn("_level", F.when(wants, left / (others + 1)))
        .withColumn(
            "level",
            F.coalesce(
                F.least(F.max("_level").over(together), F.max("demand").over(together)),
                F.lit(0.0),
            ),
        )
    )
    return levels.drop("_demands", "_wanting", "_level")


def fair_amount() -> Column:
    """The fair part of a member, min(demand, level), from a row with both; at least 0."""
    return F.least(F.col("demand").cast("double"), F.col("level"))


def jain(value: Column, weight: Column) -> Column:
    """Aggregate: `core.dispatch.fair_share.jain_index` over the values that are not null."""
    known = F.when(value.isNotNull(), weight)
    squares = F.sum(weight * value * value)
    return F.coalesce(
        F.when(squares > 0, F.pow(F.sum(weight * value), 2) / (F.sum(known) * squares)),
        F.lit(1.0),
    )


def with_spread(rows: DataFrame, values: str, members: str) -> DataFrame:
    """Replaces an array of records per member by the figures of `SPREAD`: how evenly they lie.

    Where nothing was handed out everybody got the same (Jain 1, Gini 0, variation 0), and nobody
    has a share.

    Args:
        rows: The rows.
        values: Column with the records that each member got; a member that is not in it got none.
        members: Column with the number of members, at least as many as there are values.
    """
    # Columns of their own, so that arrays are sorted and gone through once.
    ordered = rows.withColumn("_ordered", F.sort_array(values))
    summed = ordered.withColumn("_sums", _sums(F.col("_ordered"), F.col(members)))
    n, x = F.col(members).cast("double"), F.col("_sums.x")
    some = x > 0
    gini = 2 * F.col("_sums.ix") / (n * x) - (n + 1) / n
    # Differences: rounding must not make them negative.
    variance = F.greatest(n * F.col("_sums.xx") / (x * x) - 1, F.lit(0.0))
    added = {
        "records": x.cast("long"),
        "records_jain": F.when(some, x * x / (n * F.col("_sums.xx"))).otherwise(1.0),
        "gini": F.when(some, F.greatest(gini, F.lit(0.0))).otherwise(0.0),
        "top_share": F.when(some, F.get("_ordered", F.size("_ordered") - 1) / x),
        "top_decile_share": F.when(some, _top(F.col("_ordered"), n) / x),
        "variation": F.when(some, F.sqrt(variance)).otherwise(0.0),
    }
    return summed.withColumns(added).drop(values, "_ordered", "_sums")


def _sums(ordered: Column, members: Column) -> Column:
    """Sums of x, x^2 and rank * x over the values x, and the number of members.

    Ranks count from the least value up, after the members that are not among the values.
    """
    start = F.struct(
        *(F.lit(0.0).alias(name) for name in ("x", "xx", "ix")),
        (members - F.size(ordered)).cast("double").alias("i"),
    )

    def add(sums: Column, value: Column) -> Column:
        x, rank = value.cast("double"), sums["i"] + 1
        return F.struct(
            (sums["x"] + x).alias("x"),
            (sums["xx"] + x * x).alias("xx"),
            (sums["ix"] + rank * x).alias("ix"),
            rank.alias("i"),
        )

    return F.aggregate(ordered, start, add)


def _top(ordered: Column, n: Column) -> Column:
    """The records of the top decile of n members."""
    values = F.size(ordered)
    count = F.least(F.ceil(n * TOP_PART).cast("int"), values)
    highest = F.slice(ordered, values - count + 1, count)
    return F.aggregate(highest, F.lit(0.0), lambda total, x: total + x)


def significant(value: Column, digits: int) -> Column:
    """A whole number, at least 0, rounded to significant digits, so that there are few values.

    See `eventlog.rollups.steps`; the error is at most 0.5 % with three digits.
    """
    # By the length of its text: logarithms and powers cost more than all else of a row, and the
    # comparison with each power of ten is a method that the JVM finds too long to compile.
    whole = value.cast("long")
    by_length = F.array(*map(F.lit, steps(digits))).cast("array<long>")
    step = F.element_at(by_length, F.length(whole.cast("string")))
    return whole - whole % step + F.shiftright(step, 1)
