"""What jobs find by rollups is what they find by rows, and which files are read by them."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F  # noqa: N812

from sharecoord.analytics.attempts import attempts
from sharecoord.analytics.census import census, census_of_log, change_bits, place_rows
from sharecoord.analytics.errors import EventsTwiceError
from sharecoord.analytics.fairness import job as fairness
from sharecoord.analytics.fairness import transform as of_fairness
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.frames import Range, read_events, read_log
from sharecoord.analytics.lag import job as lag
from sharecoord.analytics.lag import transform as of_lag
from sharecoord.analytics.lag.settings import LagSettings
from sharecoord.analytics.locks import job as locks
from sharecoord.analytics.poison import job as poison
from sharecoord.analytics.poison import transform as of_poison
from sharecoord.eventlog.rollups import (
    ATTEMPTS,
    HANDED,
    HAPPENED,
    LAGS,
    PLACES,
    TROUBLES,
    WAITS,
    Rollup,
)
from sharecoord.eventlog.schema import GroupEvent, RangeEvent
from sharecoord.events import rollup
from sharecoord.events.places import rollup_path
from sharecoord.events.rollup import roll_up
from tests.analytics.support import (
    ARROW_SCHEMA,
    Row,
    at,
    change,
    dicts,
    event,
    handed,
    sample,
    write,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sharecoord.analytics.rollups import EventLog

DAY_S = 86_400
GROUPS = ("g", "a b/ü=%")


def some(of: random.Random, *values: Any) -> Any:
    """One of them, or null at times."""
    return None if of.random() < 0.15 else of.choice(values)


def any_row(of: random.Random, second: float) -> Row:
    """A row of any kind, with values at the limits and nulls in every column."""
    named = {"group_id": of.choice(GROUPS), "partition": of.choice((0, 1)), "topic": "t"}
    member = of.choice("abc")
    sequence = of.choice((0, 1, 62, 63, 64, 127, *range(200, 400)))
    kind = of.choice(("range",) * 6 + ("member", "partition", "group", "lost"))
    if kind == "range":
        given = {
            "change_sequence": sequence,
            "delivery_count": of.randint(0, 3),
            "state": some(of, "available", "acquired", "acknowledged", "archived"),
            **{name: some(of, 0, 9, 10, 999, 1_005, 123_456, 10**15) for name in TIMES},
            "key": some(of, b"k"),
        }
        what = of.choice([each.value for each in RangeEvent])
        found = change(second, what, member, of.randint(1, 9), **{**named, **given})
        return {**found, "member_id": some(of, member), "topic_id": some(of, "0" * 32)}
    if kind == "member":
        return sample(second, member, 9, of.randint(0, 9), **named | {"held": some(of, 0, 5)})
    if kind == "partition":
        offsets = {name: some(of, 0, 5, 1_000) for name in OFFSETS}
        return event(kind, second, **named, **offsets, change_sequence=sequence, interval_ms=1_000)
    if kind == "group":
        # Where something was deleted rollups are left alone.
        what = of.choice([each.value for each in GroupEvent if each is not GroupEvent.DELETED])
        of_group = {"group_id": named["group_id"], "topic": None, "partition": None}
        return event(kind, second, **of_group, event=what, member_id=some(of, "a"))
    return event(kind, second, records=3, group_id=of.choice(("", "g")))


TIMES = ("available_ms", "age_ms", "held_ms", "work_us", "lock_ms", "lock_left_ms")
OFFSETS = ("log_end_offset", "start_offset", "end_offset", "lag", "due", "window_max")


def rolled(folder: Path, files: list[Path], *, times: int = 1) -> None:
    """Makes the rollups of files, of two batches each; `times` 2: wrongly, of all rows twice."""
    for path in files:
        table = pq.ParquetFile(path).read()
        batches = table.to_batches(max_chunksize=max(1, table.num_rows // 2)) * times
        roll_up(path, folder, batches)


def sorted_rows(found: DataFrame, columns: tuple[str, ...]) -> list[Any]:
    """All rows, sorted, in an order that nulls do not disturb."""
    return sorted((tuple(row[name] for name in columns) for row in dicts(found)), key=repr)


def happened(rows: DataFrame, window_ms: int) -> DataFrame:
    changes = of_lag.changes(rows, LagSettings(window_ms=window_ms))
    return changes.groupBy(*HAPPENED.keys).agg(
        *(F.sum(name).alias(name) for name in HAPPENED.sums), F.max("age_ms").alias("age_ms")
    )


TABLES: list[tuple[Rollup, Callable[[int], Callable[[DataFrame], DataFrame]]]] = [
    (PLACES, lambda _: lambda rows: place_rows(change_bits(rows))),
    (HAPPENED, lambda ms: lambda rows: happened(rows, ms)),
    (ATTEMPTS, lambda _: attempts),
    (WAITS, lambda _: of_fairness.timings),
    (HANDED, lambda ms: lambda rows: of_fairness.acquired(rows, FairnessSettings(window_ms=ms))),
    (LAGS, lambda ms: lambda rows: of_lag.samples(rows, LagSettings(window_ms=ms))),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Any rows, four files with rollups and some without; no two samples at the same time."""
    root: Path = tmp_path_factory.mktemp("events")
    of = random.Random(7)
    with pytest.MonkeyPatch.context() as patch:
        # Added up in memory many times, and written in many row groups.
        patch.setattr(rollup, "WAITING_MAX", 20)
        for number in range(3):
            rows = [any_row(of, number * 70 + 0.37 * n) for n in range(200)]
            files = write(root, rows, name=f"events-{number}")
            if number:
                rolled(root, files)
    return root


@pytest.fixture(scope="module")
def log(spark: SparkSession, folder: Path) -> EventLog:
    return read_log(spark, str(folder))


@pytest.fixture(scope="module")
def plain_rows(spark: SparkSession, folder: Path) -> DataFrame:
    return read_events(spark, str(folder)).persist()


LENGTHS = [
    (table, maker, window_ms)
    for table, maker in TABLES
    # Rollups have windows of 10 s: three of them are one of 30 s, and of 5 s there are none.
    for window_ms in ((10_000, 30_000, 5_000) if "window" in table.keys else (10_000,))
]


@pytest.mark.parametrize(
    ("table", "maker", "window_ms"),
    LENGTHS,
    ids=[f"{table.table}-{window_ms}" for table, _, window_ms in LENGTHS],
)
def test_a_table_is_that_of_the_rows(
    log: EventLog,
    plain_rows: DataFrame,
    table: Rollup,
    maker: Callable[[int], Callable[[DataFrame], DataFrame]],
    window_ms: int,
) -> None:
    of_rows = maker(window_ms)
    assert log.rolled is not None
    assert log.unrolled is not None
    found = log.summed_rows(table, of_rows, window_ms=window_ms)
    rows = sorted_rows(of_rows(plain_rows), table.columns)
    assert rows
    assert sorted_rows(found, table.columns) == rows


def test_troubles_are_those_of_the_rows(log: EventLog) -> None:
    found, rows = (
        sorted_rows(of_poison.troubles(frame), TROUBLES.columns)
        for frame in (log.partial_rows(TROUBLES, lambda events: events), log.rows)
    )
    assert len(rows) > 100
    assert found == rows


def test_the_census_is_that_of_the_rows(log: EventLog, plain_rows: DataFrame) -> None:
    # Nothing is known of files here; in two of them there are changes with the same number.
    rows = census(plain_rows).drop("twice")
    found = census_of_log(log, change_bits)
    assert sorted_rows(found, tuple(rows.columns)) == sorted_rows(rows, tuple(rows.columns))
    assert max(row["seen"] for row in dicts(rows)) > 64, "several words"


def test_a_copy_is_refused_by_its_rollups(spark: SparkSession, tmp_path: Path) -> None:
    rows = [handed(n / 100, "a", 1, change_sequence=n, first_offset=n) for n in range(300)]
    (path,) = write(tmp_path / "e", rows)
    rolled(tmp_path / "e", [path])
    assert locks.run(spark, str(tmp_path / "e"), None).rows[0]["changes_seen"] == 300
    copy = path.with_name("copy.parquet")
    shutil.copy(path, copy)
    for files in ([], [copy]):
        rolled(tmp_path / "e", files)
        with pytest.raises(EventsTwiceError, match=r"copy\.parquet"):
            locks.run(spark, str(tmp_path / "e"), None)


def test_rollups_are_left_alone_where_a_group_was_deleted(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [handed(1, "a", 1, change_sequence=n, first_offset=n) for n in range(400, 500)]
    rows.append(event("group", 2, event="deleted"))
    rows += [handed(3, "a", 1, change_sequence=n, first_offset=n) for n in range(1, 51)]
    rolled(tmp_path / "e", write(tmp_path / "e", rows))
    (row,) = locks.run(spark, str(tmp_path / "e"), None).rows
    assert (row["changes_seen"], row["changes_expected"], row["partitions"]) == (150, 150, 2)


@pytest.mark.parametrize(
    ("job", "tables"),
    [
        (fairness, 3),
        # What these read is compared above, table by table.
        pytest.param(lag, 4, marks=pytest.mark.long),
        pytest.param(poison, 7, marks=pytest.mark.long),
        pytest.param(locks, 2, marks=pytest.mark.long),
    ],
    ids=["fairness", "lag", "poison", "locks"],
)
def test_jobs_find_the_same(
    spark: SparkSession, folder: Path, tmp_path: Path, job: Any, tables: int
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for date in folder.glob("date=*"):
        (plain / date.name).symlink_to(date)
    job.run(spark, str(folder), str(tmp_path / "a"))
    job.run(spark, str(plain), str(tmp_path / "b"))
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert len(names) == tables
    for name in names:
        one, other = (by_names(spark, tmp_path / which / name) for which in "ab")
        assert exact(one) == exact(other), name
        for mine, theirs in zip(one, other, strict=True):
            # Sums of floating-point numbers depend on their order a little.
            assert floats(mine) == pytest.approx(floats(theirs), rel=1e-9), name


def by_names(spark: SparkSession, place: Path) -> list[Row]:
    """The rows of a table, in the order of what is no floating-point number in them."""
    return sorted(dicts(spark.read.parquet(str(place))), key=lambda row: repr(exact([row])))


def exact(rows: list[Row]) -> list[Row]:
    """All but floating-point numbers, whose places stand."""
    return [{k: "" if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def floats(row: Row) -> list[float]:
    """Its floating-point numbers."""
    return [value for value in row.values() if isinstance(value, float)]


# -- which files ----------------------------------------------------------------------------------


def counted(spark: SparkSession, root: Path, **wanted: Any) -> int:
    """Rows of kind range, of rollups that say that there are twice as many."""
    log = read_log(spark, str(root), Range(**wanted))
    return sum(row["events"] for row in dicts(log.partial_rows(PLACES, TABLES[0][1](10_000))))


@pytest.fixture
def doubled(tmp_path: Path) -> list[Path]:
    """Files of two dates and of two groups, a row each; their rollups say that there are two."""
    rows = [handed(second, "a", 1, group_id=group) for second in (1, DAY_S + 1) for group in GROUPS]
    files = write(tmp_path, rows)
    rolled(tmp_path, files, times=2)
    return files


def test_rollups_stand_for_whole_dates_only(
    spark: SparkSession, tmp_path: Path, doubled: list[Path]
) -> None:
    assert len(doubled) == 4
    assert counted(spark, tmp_path) == 8
    assert counted(spark, tmp_path, since=at(0), until=at(DAY_S)) == 4
    assert counted(spark, tmp_path, since=at(1)) == 2 + 4
    assert counted(spark, tmp_path, until=at(DAY_S + 2)) == 4 + 2


def test_groups_are_told_apart_in_rollups(
    spark: SparkSession, tmp_path: Path, doubled: list[Path]
) -> None:
    assert doubled
    assert counted(spark, tmp_path, groups=(GROUPS[1],)) == 4


def test_rollups_without_their_file_do_not_count(
    spark: SparkSession, tmp_path: Path, doubled: list[Path]
) -> None:
    doubled[0].unlink()
    assert counted(spark, tmp_path) == 6
    log = read_log(spark, str(tmp_path), without=[str(doubled[1])])
    assert log.unrolled is None
    found = log.partial_rows(PLACES, TABLES[0][1](10_000))
    assert sum(row["events"] for row in dicts(found)) == 4


def test_files_without_rollups_are_read(
    spark: SparkSession, tmp_path: Path, doubled: list[Path]
) -> None:
    for path in doubled[:3]:
        rollup_path(path).unlink()
    assert counted(spark, tmp_path) == 3 + 2
    rollup_path(doubled[3]).unlink()
    log = read_log(spark, str(tmp_path))
    assert log.rolled is None
    assert counted(spark, tmp_path) == 4


def test_other_readers_do_not_see_them(
    spark: SparkSession, tmp_path: Path, doubled: list[Path]
) -> None:
    assert doubled
    assert read_events(spark, str(tmp_path)).count() == 4
    assert spark.read.parquet(str(tmp_path)).count() == 4


def test_the_schema_of_a_table_is_that_of_the_rows(log: EventLog, plain_rows: DataFrame) -> None:
    for table, maker in TABLES:
        assert log.rolled is not None
        of_rows = maker(10_000)(log.rows).select(*table.columns)
        assert log.rolled.select(*table.columns).dtypes == of_rows.dtypes, table.table
    assert pa.schema(ARROW_SCHEMA).names == plain_rows.columns
