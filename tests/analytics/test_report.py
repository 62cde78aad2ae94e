"""The report on Spark: what is drawn is bounded and right; the page has what the jobs found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics.errors import AnalyticsError
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.fairness.transform import acquired
from sharecoord.analytics.jobs import JobResult
from sharecoord.analytics.report import job, transform
from sharecoord.analytics.report.model import HEAT_ROWS, MEMBERS_LISTED, POINTS, TIMES
from sharecoord.bench.engine.cell import Cell, Consumer
from sharecoord.bench.engine.figures import Interval
from sharecoord.bench.engine.trial import Outcome
from sharecoord.bench.run.events import EVENTS_NAME, EventFolder
from tests.analytics.support import Row, at, by, change, dicts, event, frame, handed, sample, write
from tests.unit.bench.engine.support import MS, make_samples, make_trial

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

MEMBERS = 150
SECONDS = 90


@pytest.fixture(scope="module")
def members(spark: SparkSession) -> DataFrame:
    """Rows of `fairness_members`: many in one group, two in another."""
    rows = [
        (
            *("g", f"m{n:03}", f"c{n:03}", n, n < 10, 1_000 * (10 - n) if n < 10 else 0),
            *(float(n), 9.0, at(n), at(n + 5)),
        )
        for n in range(MEMBERS)
    ]
    rows += [("h", name, "", 5, False, 0, 1.0, None, None, None) for name in ("a", "b")]
    names = "group_id string, member_id string, client_id string, records long, starved boolean, "
    names += "starvation_ms long, dwell_p50_ms double, dwell_p99_ms double, "
    names += "first_seen timestamp, last_seen timestamp"
    made: DataFrame = spark.createDataFrame(rows, names).persist()
    return made


def test_many_members_share_rows_of_the_heat_map(spark: SparkSession, members: DataFrame) -> None:
    rows = transform.heat_rows(members)
    labels = by(transform.heat_labels(rows), "group_id", "row")
    in_g = {row: each for (group, row), each in labels.items() if group == "g"}
    assert sorted(in_g) == list(range(HEAT_ROWS))
    assert sum(each["members"] for each in in_g.values()) == MEMBERS
    assert {each["members"] for each in in_g.values()} == {2, 3}
    # Who got the most is on top; names are client ids, or member ids where there are none.
    assert in_g[0]["name"] == f"c{MEMBERS - 3:03}"
    assert [labels["h", row]["name"] for row in (0, 1)] == ["a", "b"]
    start_ms = round(at(0).timestamp() * 1_000)
    last = in_g[HEAT_ROWS - 1]
    # The last row is of m000 and m001, which was seen last, at second 6.
    assert (last["members"], last["last_ms"]) == (2, start_ms + 6_000)
    assert last["first_ms"] == start_ms
    assert labels["h", 0]["first_ms"] is None
    events = [handed(second, f"m{n:03}", 2) for second in range(SECONDS) for n in (MEMBERS - 1, 0)]
    windows = acquired(frame(spark, events), FairnessSettings(window_ms=1_000))
    cells = by(transform.heat(windows, rows), "row", "bin")
    assert {row for row, _ in cells} == {0, HEAT_ROWS - 1}
    assert {part for _, part in cells} == set(range(TIMES))
    assert sum(each["records"] for each in cells.values()) == 2 * 2 * SECONDS
    begins = [cells[0, part]["first_window"] for part in range(TIMES)]
    assert begins == sorted(begins)


def test_curves_have_few_points_and_end_at_one(members: DataFrame) -> None:
    lorenz = [row for row in dicts(transform.lorenz(members)) if row["group_id"] == "g"]
    assert len(lorenz) == POINTS
    ordered = sorted(lorenz, key=lambda row: row["members_share"])
    assert (ordered[-1]["members_share"], ordered[-1]["records_share"]) == (1.0, 1.0)
    half = next(row for row in ordered if row["members_share"] >= 0.5)
    assert half["records_share"] == pytest.approx(0.25, abs=0.02)
    dwells = dicts(transform.dwells(members))
    assert {row["group_id"] for row in dwells} == {"g"}
    assert len(dwells) == POINTS
    assert max(row["dwell_p50_ms"] for row in dwells) == MEMBERS - 1


def test_the_table_has_who_starved_the_longest(members: DataFrame) -> None:
    listed = [row for row in dicts(transform.listed_members(members)) if row["group_id"] == "g"]
    assert len(listed) == MEMBERS_LISTED
    assert sum(row["starved"] for row in listed) == 10
    assert {row["member_id"] for row in listed} >= {f"m{MEMBERS - 1:03}", "m000"}


def test_window_use_is_a_mean_and_the_fullest(spark: SparkSession) -> None:
    def part(second: float, partition: int, held: int) -> dict[str, Any]:
        given = {"topic": "t", "topic_id": "0" * 32, "partition": partition}
        return event("partition", second, acquired=held, window_max=100, **given)

    rows = [part(s, 0, 100) for s in range(10)] + [part(s, 1, 0) for s in range(10)]
    found = by(transform.window_use(frame(spark, rows), 1_000), "bin")
    assert sorted(found) == list(range(10))
    assert {(row["use"], row["use_max"]) for row in found.values()} == {(0.5, 1.0)}


def test_nothing_of_it_runs_in_python(spark: SparkSession, members: DataFrame) -> None:
    rows = transform.heat_rows(members)
    windows = acquired(frame(spark, [handed(1, "a", 1)]), FairnessSettings())
    for made in (transform.heat(windows, rows), transform.lorenz(members)):
        plan = made._jdf.queryExecution().toString()  # type: ignore[operator]
        assert "Python" not in plan


def of_kafka_and_ours(root: Path) -> None:
    """Events of the benchmark, of Kafka's own group and of ours."""
    seconds, members = 8, 10
    folder = EventFolder(root, float(seconds))
    for consumer, served in ((Consumer.SHARECOORD, members), (Consumer.KAFKA_SHARE, 4)):
        cell = Cell(consumer, consumers=members, work_ms=5.0)
        given = [
            (who, 100, 1_000 + 1_000 * second + 10 * who, 500)
            for second in range(seconds)
            for who in range(served)
        ]
        window = Interval(1000 * MS, 1000 * (1 + seconds) * MS)
        outcome = Outcome(make_trial(0, 1), make_samples(*given), window)
        folder.add(outcome, cell, str(consumer))


def of_one_that_starves() -> list[Row]:
    """Events of a group of two members, one of which gets all."""
    rows = [sample(s, "fast", 9, 9) for s in range(1, 31)]
    rows += [sample(s, "starved", 9, 0) for s in range(1, 31)]
    changed = {"first_offset": 0, "last_offset": 8, "delivery_count": 1}
    for number in range(30):
        given = {"change_sequence": 2 * number + 1, **changed}
        rows.append(handed(number, "fast", 9, state="acquired", available_ms=3, **given))
        given = {**given, "change_sequence": 2 * number + 2, "held_ms": 5, "lock_ms": 30_000}
        rows.append(change(number, "accepted", "fast", 9, state="acknowledged", **given))
    return rows


@pytest.fixture(scope="module")
def reported(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> job.ReportResult:
    """The report on three groups."""
    root = tmp_path_factory.mktemp("report")
    of_kafka_and_ours(root)
    write(root / EVENTS_NAME, of_one_that_starves())
    settings = job.ReportSettings(window_ms=1_000)
    return job.run(spark, str(root / EVENTS_NAME), str(root / "out"), settings=settings)


def test_a_folder_of_events_becomes_a_page(reported: job.ReportResult) -> None:
    assert reported.page.name == "report.html"
    (words,) = [row["verdicts"] for row in reported.rows if row["group_id"] == "g"]
    assert words[0].startswith("unfair: 1 of 2 members starved")
    assert " since " in words[0]
    text = reported.page.read_text(encoding="utf-8")
    assert words[0] in text
    assert 'class="h0"' in text
    tables = {path.name for path in reported.page.parent.iterdir()}
    assert {"fairness_groups", "lag_partitions", "poison_groups", "locks_groups"} <= tables


def test_kafkas_own_group_stands_beside_ours(reported: job.ReportResult) -> None:
    found = {row["group_id"]: row["verdicts"] for row in reported.rows}
    assert list(found) == [str(Consumer.KAFKA_SHARE), "g", str(Consumer.SHARECOORD)]
    assert found[str(Consumer.KAFKA_SHARE)][0].startswith("unfair: 6 of 10 members starved")
    assert found[str(Consumer.SHARECOORD)][0].startswith("fair")
    page = reported.page.read_text(encoding="utf-8")
    assert page.count('aria-label="What each member got') == len(found)


def test_events_that_are_there_twice_end_it_after_the_first_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    doubled = SimpleNamespace(write=lambda *_: JobResult([], twice=3))
    monkeypatch.setattr(job, "fairness", SimpleNamespace(JOB=doubled))
    monkeypatch.setattr(job, "lag", None)  # which is not reached
    log: Any = None
    assert job.JOB.write(log, "out", job.ReportSettings(), log).twice == 3


def test_a_page_needs_a_place_on_this_machine() -> None:
    with pytest.raises(AnalyticsError, match="--page FILE is missing"):
        job.ReportSettings().page_in("s3a://bucket/out")
    assert job.ReportSettings().page_in("file:///x") == Path("/x/report.html")
    assert job.ReportSettings(page=Path("a.html")).page_in("s3a://b") == Path("a.html")
