"""A session that is not ours stays as it is, and the jobs find in it what they find in ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics import jobs
from sharecoord.analytics.errors import JobFailedError
from sharecoord.analytics.fairness import job
from sharecoord.analytics.generate import job as generate
from sharecoord.analytics.generate.plan import GeneratorSettings
from sharecoord.analytics.hadoop import HadoopFolder
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.locks import job as locks
from sharecoord.analytics.locks import transform as of_locks
from sharecoord.analytics.session import defaults, make_session
from tests.analytics.support import Row, busy, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTEBOOK = {
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "true",
}
AUTUMN_S = (300 * 24 + 5) * 3_600 + 1_800
"""2026-11-01T05:30Z: in New York that hour comes twice."""


@pytest.fixture
def notebook(spark: SparkSession) -> Iterator[SparkSession]:
    """A session with another time zone, and whose plain timestamps have none."""
    other: SparkSession = spark.newSession()
    for key, value in NOTEBOOK.items():
        other.conf.set(key, value)
    yield other
    assert {key: other.conf.get(key) for key in NOTEBOOK} == NOTEBOOK


def shifted(rows: list[Row], **values: Any) -> list[Row]:
    """Rows half an hour before clocks are put back, and half an hour after."""
    return [row | values for row in rows]


def test_times_are_told_in_utc_whatever_the_zone(
    spark: SparkSession, notebook: SparkSession, tmp_path: Path
) -> None:
    rows = [
        row
        for first in (AUTUMN_S, AUTUMN_S + 3_600)
        for row in shifted(busy(first, first + 40, group="007", starving=range(first, first + 20)))
    ]
    write(tmp_path / "e", rows)
    found: dict[str, list[Any]] = {}
    for name, session in (("ours", spark), ("notebook", notebook)):
        place = tmp_path / name
        of_fairness = job.run(session, str(tmp_path / "e"), str(place)).rows
        members = session.read.parquet(f"{place}/{job.MEMBERS}")
        found[name] = [*of_fairness, *jobs.listed(members, "member_id")]
    assert found["notebook"] == found["ours"]
    assert found["ours"][0]["group_id"] == "007"
    assert found["ours"][0]["worst_window"] == "2026-11-01 05:30:00Z"
    assert {row.get("starved_since") for row in found["ours"]} == {None, "2026-11-01 05:30:00Z"}


@pytest.mark.long
def test_times_of_lag_are_told_in_utc_whatever_the_zone(
    spark: SparkSession, notebook: SparkSession, tmp_path: Path
) -> None:
    """They are written as the times of fairness are."""
    write(tmp_path / "e", busy(AUTUMN_S, AUTUMN_S + 40))
    ours, theirs = (
        lag.run(session, str(tmp_path / "e"), None).rows for session in (spark, notebook)
    )
    assert ours == theirs
    assert ours[0]["sampled_at"] == "2026-11-01 05:30:40Z"


def test_dates_of_a_generated_log_are_those_of_utc(notebook: SparkSession, tmp_path: Path) -> None:
    generate.run(
        notebook, str(tmp_path / "log"), GeneratorSettings(events=2_500, groups=1, members=5)
    )
    assert [path.name for path in tmp_path.glob("log/date=*")] == ["date=2026-01-05"]
    assert "spark.sql.maxConcurrentOutputFileWriters" not in notebook.conf.getAll


def test_a_running_session_is_taken_as_it_is(spark: SparkSession) -> None:
    before = dict(spark.conf.getAll)
    found = make_session(
        "another", driver_memory="7g", settings={"spark.sql.ansi.enabled": "false"}
    )
    assert found.sparkContext is spark.sparkContext
    assert spark.conf.getAll == before


def test_what_the_user_has_set_wins_over_what_a_query_wants(notebook: SparkSession) -> None:
    with defaults(
        notebook, {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "false"}
    ):
        assert notebook.conf.get("spark.sql.session.timeZone") == "America/New_York"
        assert notebook.conf.get("spark.sql.ansi.enabled") == "false"
    assert "spark.sql.ansi.enabled" not in notebook.conf.getAll


# -- tables of an earlier run ---------------------------------------------------------------------


def test_a_run_that_fails_leaves_the_tables_of_the_run_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, out = str(tmp_path / "e"), tmp_path / "out"
    write(tmp_path / "e", busy(0, 20))
    locks.run(spark, events, str(out))
    before = {path: path.read_bytes() for path in out.rglob("*.parquet")}
    assert before

    def fail(*_: Any) -> Any:
        raise OSError("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(of_locks, "groups", fail)
        with pytest.raises(JobFailedError, match="the disk is gone"):
            locks.run(spark, events, str(out))
    assert {path: path.read_bytes() for path in out.rglob("*.parquet")} == before
    assert sorted(path.name for path in out.iterdir()) == sorted([locks.GROUPS, locks.MEMBERS])
    locks.run(spark, events, str(out))
    assert not before.keys() & set(out.rglob("*.parquet")), "a run that ends well takes their place"


def test_a_run_that_was_killed_while_tables_took_their_place(
    spark: SparkSession, tmp_path: Path
) -> None:
    for name in (f"{jobs.FORMER}/a", f"{jobs.FORMER}/b", "b", f"{jobs.UNFINISHED}/c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "rows").write_text(name)
    with jobs.tables(spark, str(tmp_path)) as fresh:
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
        assert (tmp_path / "a" / "rows").read_text() == f"{jobs.FORMER}/a"
        assert (tmp_path / "b" / "rows").read_text() == "b"
        (Path(fresh) / "a").mkdir(parents=True)
        (Path(fresh) / "a" / "rows").write_text("new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert (tmp_path / "a" / "rows").read_text() == "new"
    assert list(HadoopFolder(spark, str(tmp_path)).children()) == ["a", "b"]
