"""Generated logs are consistent, repeatable, and hold what they say they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.fairness import job as fairness_job
from sharecoord.analytics.frames import read_events
from sharecoord.analytics.generate import job, rows
from sharecoord.analytics.generate.plan import (
    DELIVERY_LIMIT,
    GeneratorSettings,
    make_plan,
)
from sharecoord.eventlog.schema import COLUMN_NAMES, EventKind, GroupEvent, RangeEvent
from tests.analytics.support import by, dicts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.long


SMALL = GeneratorSettings(
    60_000, groups=3, members=6, partitions=4, starved=4, poison_keys=3, lag_spikes=2, hours=1.0
)
PLACE = ["group_id", "topic", "topic_id", "partition"]


@pytest.fixture(scope="module")
def planted(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict[str, Any]]:
    """A small log and its truth."""
    folder = tmp_path_factory.mktemp("events") / "log"
    return folder, job.run(spark, str(folder), SMALL)


@pytest.fixture(scope="module")
def log(spark: SparkSession, planted: tuple[Path, dict[str, Any]]) -> DataFrame:
    return read_events(spark, str(planted[0])).cache()


def ranges(log: DataFrame) -> DataFrame:
    return log.where(F.col("kind") == EventKind.RANGE)


def test_files_lie_as_a_coordinator_puts_them(planted: tuple[Path, dict[str, Any]]) -> None:
    folder, found = planted
    files = sorted(folder.glob("date=2026-01-05/group=group-*/events-generated-*.parquet"))
    assert {file.parent.name for file in files} == {f"group=group-{i}" for i in range(3)}
    assert json.loads((folder / "_truth.json").read_text(encoding="utf-8")) == found


def test_as_many_rows_of_each_kind_as_planned(
    log: DataFrame, planted: tuple[Path, dict[str, Any]]
) -> None:
    plan = make_plan(SMALL)
    counts = {row["kind"]: row["count"] for row in log.groupBy("kind").count().collect()}
    assert counts == {
        "range": 2 * 3 * 4 * plan.slots_in_all,
        "member": 3 * 6 * plan.active_s,
        "partition": 3 * 4 * plan.active_s,
        "group": 3 * 6,
    }
    assert sum(counts.values()) == plan.rows == planted[1]["rows"]
    assert 0.98 * SMALL.events < plan.rows <= SMALL.events
    assert log.columns == list(COLUMN_NAMES)
    names = {row[0] for row in log.select("event").distinct().collect()} - {None}
    assert names <= {event.value for event in (*RangeEvent, *GroupEvent)}


def test_changes_are_numbered_in_order_of_time_without_gaps(log: DataFrame) -> None:
    changes = ranges(log).withColumn(
        "before", F.lag("time").over(Window.partitionBy(PLACE).orderBy("change_sequence"))
    )
    found = changes.groupBy(PLACE).agg(
        F.count_distinct("change_sequence").alias("distinct"),
        F.count(F.lit(1)).alias("rows"),
        F.min("change_sequence").alias("first"),
        F.max("change_sequence").alias("last"),
        F.sum((F.col("time") < F.col("before")).cast("int")).alias("backwards"),
    )
    for row in dicts(found):
        assert row["first"] == 1
        assert row["last"] == row["rows"] == row["distinct"] == 2 * make_plan(SMALL).slots_in_all
        assert row["backwards"] == 0


def test_samples_know_the_newest_change(log: DataFrame) -> None:
    both = log.where(F.col("kind").isin("range", "partition")).withColumn(
        "newest",
        F.max(F.when(F.col("kind") == "range", F.col("change_sequence"))).over(
            Window.partitionBy(PLACE).orderBy("time")
        ),
    )
    samples = both.where(F.col("kind") == "partition")
    assert samples.where(F.col("newest") != F.col("change_sequence")).count() == 0
    assert samples.where(F.col("newest").isNull()).count() == 0


def test_every_delivery_ends_and_every_failure_is_delivered_again(log: DataFrame) -> None:
    story = Window.partitionBy([*PLACE, "first_offset", "last_offset"]).orderBy("change_sequence")
    told = ranges(log).select(
        "*",
        F.lag("event").over(story).alias("before"),
        F.lag("state").over(story).alias("state_before"),
        F.lag("member_id").over(story).alias("member_before"),
        F.lag("delivery_count").over(story).alias("count_before"),
        F.lag("time").over(story).alias("time_before"),
    )
    begun = F.col("event") == "acquired"
    first = F.col("before").isNull()
    again = F.coalesce(F.col("count_before"), F.lit(0)) + 1
    held = F.unix_micros("time") - F.unix_micros("time_before")
    wrong = told.where(
        F.when(begun & first, F.col("delivery_count") != 1)
        .when(
            begun,
            (F.col("delivery_count") != again)
            | (F.col("state_before") != "available")
            | (F.abs(F.col("available_ms") * 1_000 - held) > 1_000),
        )
        .otherwise(
            (F.col("before") != "acquired")
            | (F.col("delivery_count") != F.col("count_before"))
            | (F.col("member_id") != F.col("member_before"))
            | (F.abs(F.col("held_ms") * 1_000 - held) > 1_000)
        )
    )
    assert wrong.count() == 0
    assert (
        told.where(F.col("records") != F.col("last_offset") - F.col("first_offset") + 1).count()
        == 0
    )
    assert told.where(F.col("available_ms") < 0).count() == 0


def test_new_records_follow_each_other(log: DataFrame) -> None:
    fresh = ranges(log).where((F.col("event") == "acquired") & (F.col("delivery_count") == 1))
    ends = F.lag("last_offset").over(Window.partitionBy(PLACE).orderBy("change_sequence"))
    holes = fresh.withColumn("end", ends).where(F.col("end") + 1 != F.col("first_offset"))
    assert holes.count() == 0


def test_samples_of_members_are_sums_of_ranges(log: DataFrame) -> None:
    members = log.where(F.col("kind") == "member")
    got = by(members.groupBy("member_id").agg(F.sum("got").alias("n")), "member_id")
    records = by(
        ranges(log)
        .where("event = 'acquired'")
        .groupBy("member_id")
        .agg(F.sum("records").alias("n")),
        "member_id",
    )
    assert got == records
    second = F.ceil(F.unix_micros("time") / 1_000_000)
    seconds = (
        ranges(log)
        .where("event = 'acquired'")
        .groupBy("member_id", second.alias("second"))
        .agg(F.sum("records").alias("n"))
    )
    joined = members.withColumn("second", F.unix_seconds("time")).join(
        seconds, ["member_id", "second"], "left"
    )
    # A change at the very beginning of a second belongs to the one before.
    differing = joined.where(F.coalesce(F.col("n"), F.lit(0)) != F.col("got")).count()
    assert differing <= 2
    assert members.where("demand < got or held < 0").count() == 0


def test_partitions_are_sampled_consistently(log: DataFrame) -> None:
    samples = log.where(F.col("kind") == "partition")
    wrong = "start_offset > end_offset or end_offset > log_end_offset or acquired < 0"
    assert samples.where(f"{wrong} or lag != log_end_offset - start_offset").count() == 0
    assert samples.where("oldest_time > time").count() == 0
    before = F.lag("log_end_offset").over(
        Window.partitionBy("group_id", "partition").orderBy("time")
    )
    assert samples.withColumn("before", before).where("log_end_offset < before").count() == 0


def test_planted_poison_and_spikes_are_there(
    log: DataFrame, planted: tuple[Path, dict[str, Any]]
) -> None:
    truth = planted[1]
    worn = ranges(log).where(
        (F.col("delivery_count") == DELIVERY_LIMIT) & (F.col("state") == "archived")
    )
    keys = {(row["group_id"], bytes(row["key"]).decode()) for row in worn.collect()}
    assert keys == {(each["group"], key) for each in truth["poison"] for key in each["keys"]}
    accepted = ranges(log).where((F.col("event") == "accepted") & F.col("key").isNotNull())
    assert accepted.count() == 0
    high = log.where("kind = 'partition' and lag > 5000")
    found = {
        (row["group_id"], row["partition"])
        for row in high.select("group_id", "partition").collect()
    }
    assert found == {(each["group"], each["partition"]) for each in truth["lag_spikes"]}
    assert len(found) == 2


def test_planted_members_are_found_starved(
    spark: SparkSession, tmp_path: Path, planted: tuple[Path, dict[str, Any]]
) -> None:
    """Precision and recall are both 1, and each is found from its planted time on."""
    folder, truth = planted
    result = fairness_job.run(spark, str(folder), str(tmp_path))
    planted_ones = {(each["group"], each["member"]): each["since"] for each in truth["starved"]}
    found = {(row["group_id"], member) for row in result.rows for member in row["starved_members"]}
    assert found == set(planted_ones)
    assert sum(row["starved"] for row in result.rows) == SMALL.starved
    assert [row["complete"] for row in result.rows] == [1.0] * 3
    assert [row["members"] for row in result.rows] == [6] * 3
    assert result.warnings() == []
    text = "date_format(starved_since, \"yyyy-MM-dd'T'HH:mm:ss'+00:00'\") AS since"
    table = spark.read.parquet(str(tmp_path / fairness_job.MEMBERS)).where("starved")
    rows = table.selectExpr("group_id", "member_id", text).collect()
    assert {(row[0], row[1]): row["since"] for row in rows}.keys() == planted_ones.keys()
    for group, member, since in rows:
        # Within its block of traffic or the next one: it has no records from then on.
        assert since >= planted_ones[group, member]


def test_without_planted_findings_everything_is_fair(spark: SparkSession, tmp_path: Path) -> None:
    settings = GeneratorSettings(30_000, groups=1, members=10, partitions=4)
    job.run(spark, str(tmp_path / "e"), settings)
    (row,) = fairness_job.run(spark, str(tmp_path / "e"), str(tmp_path / "out")).rows
    assert (row["starved"], row["over_share"], row["lost"]) == (0, 0, 0)
    assert row["jain"] > 0.999
    assert row["worst_jain"] > 0.98
    assert row["gini"] < 0.02


def test_skew_is_seen(spark: SparkSession, tmp_path: Path) -> None:
    settings = GeneratorSettings(30_000, groups=1, members=10, partitions=4, skew=1.0)
    job.run(spark, str(tmp_path / "e"), settings)
    (row,) = fairness_job.run(spark, str(tmp_path / "e"), str(tmp_path / "out")).rows
    # The first of ten has ln 2 / ln 11 of all.
    assert row["top_share"] == pytest.approx(0.289, abs=0.02)
    assert row["jain"] < 0.8
    assert row["gini"] > 0.3


def test_dropped_changes_are_counted_exactly(spark: SparkSession, tmp_path: Path) -> None:
    settings = GeneratorSettings(60_000, groups=2, members=6, partitions=2, drop=0.01)
    truth = job.run(spark, str(tmp_path / "e"), settings)
    result = fairness_job.run(spark, str(tmp_path / "e"), str(tmp_path / "out"))
    assert sum(truth["lost"].values()) == pytest.approx(0.01 * 2 * truth["changes"], rel=0.3)
    for row in result.rows:
        missing = row["changes_expected"] - row["changes_seen"]
        assert missing == row["lost"] == truth["lost"][row["group_id"]]
        assert row["complete"] == pytest.approx(1 - missing / truth["changes"])
    assert truth["rows"] == read_events(spark, str(tmp_path / "e")).count()


def test_the_same_seed_gives_the_same_rows(spark: SparkSession) -> None:
    settings = GeneratorSettings(12_000, groups=1, members=4, partitions=2, starved=1, drop=0.01)

    def summary(**given: Any) -> Any:
        from dataclasses import replace

        made = rows.rows(spark, make_plan(replace(settings, **given)))
        whole = F.xxhash64(*COLUMN_NAMES)
        return made.agg(F.count(F.lit(1)), F.sum(whole.cast("decimal(20,0)"))).first()

    first = summary()
    assert summary() == first
    assert summary(seed=2) != first


def test_a_log_is_not_written_into_another(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "something").write_text("x")
    with pytest.raises(AnalyticsError, match=r"--out .* is not empty"):
        job.run(spark, str(tmp_path), GeneratorSettings(100_000))
