"""Measures of fairness as Spark computes them, against the one definition in core."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812

from sharecoord.analytics import measures
from sharecoord.core.dispatch.fair_share import fair_level, fair_parts, jain_index
from tests.analytics.support import Row, by, dicts
from tests.fairness import fairness

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AMOUNT = st.one_of(st.just(0), st.integers(1, 5), st.integers(0, 10**9))
CASE = st.lists(st.tuples(AMOUNT, AMOUNT), min_size=1, max_size=12)
KNOWN: list[list[tuple[int, int]]] = [
    [(0, 0)],
    [(0, 5)],
    [(5, 0)],
    [(5, 5)],
    [(5, 50)],
    [(7, 3)] * 4,
    [(10, 0), (10, 0), (10, 0), (10, 10)],
    [(1, 1), (100, 33), (100, 33), (100, 33)],
    [(1, 100), (2, 0), (0, 7)],
    [(3, 3), (5, 5), (8, 8)],
]
"""(demand, got) of each member: zeros, one member, equal demands, more got than wanted."""


def check(spark: SparkSession, cases: list[list[tuple[int, int]]]) -> None:
    """Compares level, parts and index of each case."""
    rows = [
        (number, f"m{place:02}", demand, got)
        for number, case in enumerate(cases)
        for place, (demand, got) in enumerate(case)
    ]
    members = spark.createDataFrame(rows, "case int, member_id string, demand long, got long")
    part = measures.ratio(F.col("got"), F.when(F.col("fair") > 0, F.col("fair")))
    found = by(
        measures.with_fair_level(members, ["case"])
        .withColumn("fair", measures.fair_amount())
        .groupBy("case")
        .agg(
            F.max("level").alias("level"),
            measures.jain(part, F.lit(1)).alias("jain"),
            F.array_sort(F.collect_list(part)).alias("parts"),
        ),
        "case",
    )
    for number, case in enumerate(cases):
        demands, got = [demand for demand, _ in case], [got for _, got in case]
        row = found[number]
        assert row["level"] == pytest.approx(fair_level(demands, got), rel=1e-9), case
        assert row["jain"] == pytest.approx(fairness(demands, got), rel=1e-9), case
        assert row["parts"] == pytest.approx(sorted(fair_parts(demands, got)), rel=1e-9), case


def test_jain_is_that_of_core_in_known_cases(spark: SparkSession) -> None:
    check(spark, KNOWN)


# Each example is one job of Spark: many cases in few examples.
@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(cases=st.lists(CASE, min_size=80, max_size=120))
def test_jain_is_that_of_core(spark: SparkSession, cases: list[list[tuple[int, int]]]) -> None:
    check(spark, cases)


def spread(spark: SparkSession, records: list[int], members: int) -> Row:
    made = spark.createDataFrame([(records, members)], "values array<long>, members long")
    (row,) = dicts(measures.with_spread(made, "values", "members"))
    return row


@pytest.mark.parametrize(
    ("records", "members", "gini", "top", "top_decile", "variation"),
    [
        ([5, 5, 5, 5], 4, 0.0, 0.25, 0.25, 0.0),
        ([8], 4, 0.75, 1.0, 1.0, 3**0.5),
        ([1, 2, 3, 4], 4, 0.25, 0.4, 0.4, (1.25) ** 0.5 / 2.5),
        ([7], 1, 0.0, 1.0, 1.0, 0.0),
        # 11 members: two of them are the top decile.
        ([10, 10, 20], 11, 34 / 44, 0.5, 0.75, 3.125**0.5),
    ],
)
def test_spread_by_hand(
    spark: SparkSession,
    records: list[int],
    members: int,
    gini: float,
    top: float,
    top_decile: float,
    variation: float,
) -> None:
    row = spread(spark, records, members)
    everybody = records + [0] * (members - len(records))
    ordered = sorted(everybody)
    by_definition = sum(abs(a - b) for a in ordered for b in ordered) / (2 * members * sum(ordered))
    assert row["gini"] == pytest.approx(by_definition)
    assert by_definition == pytest.approx(gini)
    assert row["records"] == sum(records)
    assert row["records_jain"] == pytest.approx(jain_index(everybody))
    assert row["top_share"] == pytest.approx(top)
    assert row["top_decile_share"] == pytest.approx(top_decile)
    assert row["variation"] == pytest.approx(variation, abs=1e-9)


def test_nothing_handed_out_is_even(spark: SparkSession) -> None:
    row = spread(spark, [0], 2)
    assert (row["records_jain"], row["gini"], row["variation"]) == (1.0, 0.0, 0.0)
    assert (row["top_share"], row["top_decile_share"]) == (None, None)


def test_three_digits_are_kept(spark: SparkSession) -> None:
    values = [0, 1, 999, 1_000, 1_009, 1_010, 9_999, 10_000, 123_456, 10**12 + 1, 2**63 - 1, None]
    made = spark.createDataFrame([(value,) for value in values], "v long")
    *found, largest, none = [
        row[0] for row in made.select(measures.significant(F.col("v"), 3)).collect()
    ]
    assert found == [0, 1, 999, 1_005, 1_005, 1_015, 9_995, 10_050, 123_500, 1_005_000_000_000]
    assert (largest, none) == (2**63 - 1, None)
    values = values[: len(found)]
    for value, kept in zip(values, found, strict=True):
        assert kept == pytest.approx(value, rel=0.005 + 1e-9)


def test_ratio_of_nothing(spark: SparkSession) -> None:
    made = spark.createDataFrame([(1, 2), (1, 0), (1, None), (None, 1)], "a long, b long")
    columns = F.col("a"), F.col("b")
    found = made.select(measures.ratio(*columns), measures.ratio(*columns, 1.0)).collect()
    assert [tuple(row) for row in found] == [(0.5, 0.5), (None, 1.0), (None, 1.0), (None, None)]
