"""What was planted in a generated log is found, and nothing else."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics import jobs
from sharecoord.analytics.generate import job as generate_job
from sharecoord.analytics.generate.plan import DELIVERY_LIMIT, LOCK_MS, GeneratorSettings
from sharecoord.analytics.lag import job as lag_job
from sharecoord.analytics.locks import job as locks_job
from sharecoord.analytics.poison import job as poison_job
from sharecoord.analytics.timeline import job as timeline_job
from sharecoord.analytics.timeline.files import Wanted
from tests.analytics.support import dicts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.long


PLANTED = GeneratorSettings(
    60_000, groups=3, members=6, partitions=4, starved=2, poison_keys=3, lag_spikes=4, drop=0.002
)
WINDOW = timedelta(seconds=10)
Planted = tuple[str, dict[str, Any]]
"""The folder of a log, and what was planted in it."""


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Planted:
    """A small log and its truth."""
    folder = str(tmp_path_factory.mktemp("planted") / "log")
    return folder, generate_job.run(spark, folder, PLANTED)


def precision_and_recall(found: set[Any], true: set[Any]) -> tuple[float, float]:
    both = len(found & true)
    return both / len(found), both / len(true)


def test_times_of_high_lag(spark: SparkSession, planted: Planted, tmp_path: Path) -> None:
    folder, truth = planted
    result = lag_job.run(spark, folder, str(tmp_path))
    stretches = dicts(spark.read.parquet(f"{tmp_path}/{lag_job.STRETCHES}"))
    found, causes = set(), {}
    for row in dicts(spark.read.parquet(f"{tmp_path}/{lag_job.CAUSES}")):
        if row["rank"] == 1:
            causes[row["group_id"], row["partition"], row["since"]] = row["cause"]
    for row in stretches:
        place = row["group_id"], row["partition"]
        found.add((*place, row["since"].astimezone()))
        assert causes[*place, row["since"]] == "arrival_rate"
        assert row["until"] is not None
    true = set()
    for spike in truth["lag_spikes"]:
        since = datetime.fromisoformat(spike["since"])
        # It shows at the end of its first second, in the window in which that lies.
        near = [
            each
            for each in found
            if each[:2] == (spike["group"], spike["partition"])
            and timedelta(0) <= since + timedelta(seconds=1) - each[2] < WINDOW
        ]
        true.add(near[0] if near else (spike["group"], spike["partition"], since))
    assert len(true) == PLANTED.lag_spikes
    assert precision_and_recall(found, true) == (1, 1)
    assert len(result.rows) == 3 * 4
    assert {row["behind"] for row in result.rows} == {False}
    assert sum(row["stretches"] for row in result.rows) == PLANTED.lag_spikes


def test_poison_keys(spark: SparkSession, planted: Planted, tmp_path: Path) -> None:
    folder, truth = planted
    result = poison_job.run(spark, folder, str(tmp_path))
    keys = dicts(spark.read.parquet(f"{tmp_path}/{poison_job.KEYS}"))
    found = {(row["group_id"], row["key"]) for row in keys if row["poison"]}
    true = {(each["group"], key) for each in truth["poison"] for key in each["keys"]}
    assert precision_and_recall(found, true) == (1, 1)
    assert {(row["group_id"], key) for row in result.rows for key in row["worst_keys"]} == true
    lines = [json.loads(line) for line in result.lines()]
    assert [line["group"] for line in lines] == truth["groups"]
    assert {line["delivery_max"] for line in lines} == {DELIVERY_LIMIT}
    # Twice as many records fail once, but in ranges and with other words.
    assert {line["top_reason"] for line in lines} == {"TimeoutError"}
    assert all(0 < line["wasted_share"] < 0.1 for line in lines)
    assert all(0.99 < line["complete"] < 1 for line in lines)


def test_locks_that_are_longer_than_needed(
    spark: SparkSession, planted: Planted, tmp_path: Path
) -> None:
    result = locks_job.run(spark, planted[0], str(tmp_path))
    for row in result.rows:
        assert (row["lock_ms"], row["expired"], row["near_misses"]) == (LOCK_MS, 0, 0)
        assert 0 < row["held_p50_ms"] <= row["held_p999_ms"] <= row["held_max_ms"]
        assert row["advice"] == "shorter"
        assert row["held_p999_ms"] <= row["advised_lock_ms"] <= LOCK_MS / 4
    members = spark.read.parquet(f"{tmp_path}/{locks_job.MEMBERS}")
    assert members.count() == 3 * 6


def test_the_life_of_a_poison_record_and_of_a_starved_member(
    spark: SparkSession, planted: Planted
) -> None:
    folder, truth = planted
    group, key = truth["poison"][0]["group"], truth["poison"][0]["keys"][0]
    found = timeline_job.run(spark, folder, None, whose=Wanted(group, key=key.encode()))
    lives: dict[Any, list[dict[str, Any]]] = {}
    for row in found.rows:
        lives.setdefault((row["partition"], row["first_offset"]), []).append(row)
    given_up = [life for life in lives.values() if life[-1]["state"] == "archived"]
    assert given_up
    assert all(len(life) <= 2 * DELIVERY_LIMIT for life in lives.values())
    assert max(len(life) for life in given_up) == 2 * DELIVERY_LIMIT
    assert "archived, never delivered again" in given_up[0][-1]["text"]
    starved = truth["starved"][0]
    whose = Wanted(starved["group"], member_id=starved["member"])
    rows = timeline_job.run(spark, folder, None, whose=whose).rows
    assert rows[0]["event"] == "joined"
    acquired = [row["time"] for row in rows if row["event"] == "acquired"]
    assert acquired
    assert max(acquired) <= starved["since"].replace("+00:00", ".999+00:00")


@pytest.mark.parametrize(
    ("job", "more", "lines"),
    [
        (lag_job, ["--window", "30s"], 4),
        (poison_job, ["--top", "3"], 1),
        (locks_job, [], 1),
        (timeline_job, ["--key", "poison-0", "--partition", "0"], None),
    ],
)
def test_the_jobs_by_themselves_as_spark_submit_runs_them(
    spark: SparkSession,
    planted: Planted,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    job: Any,
    more: list[str],
    lines: int | None,
) -> None:
    monkeypatch.setattr(jobs, "make_session", lambda *_, **__: spark)
    given = ["--events", planted[0], "--out", str(tmp_path), "--group", "group-0"]
    assert job.main([*given, *more]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [tuple(each) for each in found] == [job.JSON_KEYS] * len(found)
    assert {each["group"] for each in found} == {"group-0"}
    assert len(found) == lines or (lines is None and len(found) >= DELIVERY_LIMIT)
    assert job.main([*given[:1], f"{planted[0]}/none", *given[2:], *more]) == 1
    assert "error: --events" in capsys.readouterr().err
