"""Measures of fairness as expressions over frames; see docs/fairness.md for formulas and sources.

All of them are native expressions (window functions), so that they cost a sort and no Python.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from sharecoord.core.rollups import steps

TOP_PART = 0.1
"""Of the members, rounded up: whose share is the top-decile share."""


def ratio(part: Column, whole: Column, otherwise: float | None = None) -> Column:
    """Part / whole as double; `otherwise` where the whole is 0 or null."""
    return F.when(whole != 0, part.cast("double") / whole.cast("double")).otherwise(
        F.lit(otherwise).cast("double")
    )


def with_fair_level(members: DataFrame, keys: Sequence[str]) -> DataFrame:
    """Adds `level`: L at which the sum of min(demand, L) is the sum of `got`, by `keys`.

    In order of demand, L_i = (amount - demands before i) / (members from i on) grows as long as
    demand i is below it, and falls from there on: the highest is L, unless everything that was
    wanted was handed out, when L is the highest demand. The same as `core.fair_share.fair_level`.

    Args:
        members: One row per member with `member_id`, `demand` and `got`, both at least 0; null
            counts as 0.
        keys: What belongs together.
    """
    together = Window.partitionBy(*keys)
    ordered = together.orderBy("_demand", "member_id")
    before = ordered.rowsBetween(Window.unboundedPreceding, -1)
    up_to_here = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    wants = F.col("_demand") > 0
    others = F.sum(wants.cast("int")).over(together) - F.sum(wants.cast("int")).over(up_to_here)
    amount = F.sum(F.coalesce(F.col("got"), F.lit(0)).cast("double")).over(together)
    left = amount - F.coalesce(F.sum("_demand").over(before), F.lit(0.0))
    found = (
        members.withColumn("_demand", F.coalesce(F.col("demand"), F.lit(0)).cast("double"))
        .withColumn("_level", F.when(wants, left / (others + 1)))
        .withColumn(
            "level",
            F.coalesce(
                F.least(F.max("_level").over(together), F.max("_demand").over(together)),
                F.lit(0.0),
            ),
        )
    )
    return found.drop("_demand", "_level")


def fair_part() -> Column:
    """What a member got against min(demand, level): 1 = its fair part; null without demand."""
    wants = (F.col("demand") > 0) & (F.col("level") > 0)
    return F.when(
        wants, F.col("got").cast("double") / F.least(F.col("demand").cast("double"), "level")
    )


def jain(value: Column) -> Column:
    """Aggregate: Jain's index over the values that are not null; 1 when all are 0 or null."""
    squares = F.sum(value * value)
    return F.coalesce(
        F.when(squares > 0, F.pow(F.sum(value), 2) / (F.count(value) * squares)), F.lit(1.0)
    )


def spread(values: Column, members: Column) -> list[Column]:
    """How evenly records are spread: an expression per row, over an array.

    `records`, `records_jain`, `gini`, `top_share`, `top_decile_share`, `variation`. Where nothing
    was handed out everybody got the same (Jain 1, Gini 0, variation 0), and nobody has a share.

    Args:
        values: Array of the records that each member got; whoever is missing in it got nothing.
        members: How many members count, at least as many as there are values.
    """
    ordered = F.sort_array(values)
    n, rows = members.cast("double"), F.size(values)
    # In order of what they got, those that got nothing first: (sum x, sum x^2, sum rank * x, rank).
    start = F.struct(
        *(F.lit(0.0).alias(name) for name in ("x", "xx", "ix")),
        (members - rows).cast("double").alias("i"),
    )

    def add(sums: Column, value: Column) -> Column:
        x, rank = value.cast("double"), sums["i"] + 1
        return F.struct(
            (sums["x"] + x).alias("x"),
            (sums["xx"] + x * x).alias("xx"),
            (sums["ix"] + rank * x).alias("ix"),
            rank.alias("i"),
        )

    sums = F.aggregate(ordered, start, add)
    total, squares, weighted = sums["x"], sums["xx"], sums["ix"]
    some = total > 0
    top = F.least(F.ceil(n * TOP_PART).cast("int"), rows)
    of_top = F.aggregate(F.slice(ordered, rows - top + 1, top), F.lit(0.0), lambda a, x: a + x)
    gini = 2 * weighted / (n * total) - (n + 1) / n
    # Differences: rounding must not make them negative.
    variance = F.greatest(n * squares / (total * total) - 1, F.lit(0.0))
    return [
        total.cast("long").alias("records"),
        F.when(some, total * total / (n * squares)).otherwise(1.0).alias("records_jain"),
        F.when(some, F.greatest(gini, F.lit(0.0))).otherwise(0.0).alias("gini"),
        F.when(some, F.array_max(values) / total).alias("top_share"),
        F.when(some, of_top / total).alias("top_decile_share"),
        F.when(some, F.sqrt(variance)).otherwise(0.0).alias("variation"),
    ]


def significant(value: Column, digits: int) -> Column:
    """A whole number, at least 0, to so many significant digits: few different values.

    See `core.rollups.steps`; the error is at most 0.5 % with three digits.
    """
    # By the length of its text: logarithms and powers cost more than all else of a row, and the
    # comparison with each power of ten is a method that the JVM finds too long to compile.
    whole = value.cast("long")
    by_length = F.array(*map(F.lit, steps(digits))).cast("array<long>")
    step = F.element_at(by_length, F.length(whole.cast("string")))
    return whole - whole % step + F.shiftright(step, 1)
