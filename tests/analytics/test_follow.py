"""Fairness of a stream: windows, restarts, late and repeated rows, alerts."""

from __future__ import annotations

import itertools
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics.alerts.delivery import Delivery
from sharecoord.analytics.alerts.rules import Rule, RuleKind
from sharecoord.analytics.errors import AnalyticsError, JobFailedError
from sharecoord.analytics.fairness import follow, job, stream
from sharecoord.analytics.fairness.follow import FollowResult, FollowSettings, LiveRow
from sharecoord.analytics.fairness.settings import FairnessSettings
from sharecoord.analytics.frames import Range
from sharecoord.devenv.mock_cluster import MockCluster
from tests.analytics.support import at, busy, end, write
from tests.analytics.topics import EventTopic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sharecoord.analytics.places import Place

ONCE = FollowSettings(watermark_ms=5_000, once=True)
T0_MS = int(at(0).timestamp() * 1_000)


class Run:
    """Runs of the job on one checkpoint."""

    def __init__(self, spark: SparkSession, place: Place, out: Path, *rules: Rule) -> None:
        self.spark, self.place, self.out, self.rules = spark, place, out, rules
        self.said: list[str] = []
        self.rows: list[LiveRow] = []

    def __call__(self, settings: FollowSettings = ONCE, **given: Any) -> FollowResult:
        delivery = Delivery(self.rules, self.said.append) if self.rules else None
        more = {"show": self.rows.extend, "rules": self.rules, "delivery": delivery, **given}
        return follow.run(self.spark, self.place, str(self.out), settings=settings, **more)

    def table(self, name: str = job.WINDOWS) -> DataFrame:
        return self.spark.read.parquet(f"{self.out}/{name}").drop("batch")

    def windows(self, group: str = "g") -> list[int]:
        """Starts of the windows of a group that the live table has, in seconds."""
        rows = self.table(follow.LIVE).where(f"group_id = '{group}'").collect()
        shown = sorted(
            (r["window_start"] - T0_MS) // 1_000 for r in self.rows if r["group_id"] == group
        )
        assert len(rows) == len(shown)
        return shown

    def alerts(self) -> list[tuple[str, str]]:
        """State and rule of what was said."""
        return [tuple(text.split(": ")[:2]) for text in self.said]  # type: ignore[misc]


def listed(found: DataFrame) -> list[tuple[Any, ...]]:
    """Rows in order, numbers rounded."""
    rows = [
        tuple(round(each, 9) if isinstance(each, float) else each for each in row)
        for row in found.collect()
    ]
    return sorted(rows, key=str)


@pytest.fixture
def topic(mock_cluster: MockCluster) -> EventTopic:
    return EventTopic(mock_cluster)


# -- windows --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Events of four groups, whose members starve at other times."""
    place = tmp_path_factory.mktemp("events")
    rows = [*busy(0, 60), *busy(3, 33, group="h", starving=range(12, 25))]
    rows += busy(0, 30, group="seen", starving=range(8, 24))
    rows += busy(0, 30, group="ended", starving=range(4, 10))
    write(place, [*rows, *end(60)])
    return place


@pytest.fixture(scope="module")
def followed(spark: SparkSession, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that has read all of them."""
    run = Run(spark, str(folder), tmp_path_factory.mktemp("followed") / "out")
    result = run()
    assert (result.windows, result.late, result.duplicates) == (6, 0, 0)
    return run


def of_g(found: DataFrame, before_s: int = 60) -> list[tuple[Any, ...]]:
    """Rows of windows of the group `g` that begin before a time."""
    start = f"unix_millis(window_start) < {T0_MS + before_s * 1_000}"
    return listed(found.where(f"group_id = 'g' AND {start}"))


def test_the_same_windows_as_the_job_on_all(
    spark: SparkSession, folder: Path, followed: Run, tmp_path: Path
) -> None:
    job.run(spark, str(folder), str(tmp_path))
    whole = spark.read.parquet(f"{tmp_path}/{job.WINDOWS}").where(
        "window_start IS NOT NULL AND group_id != 'other'"
    )
    assert followed.table().columns == whole.columns
    assert listed(followed.table()) == listed(whole)
    assert len(listed(whole)) > 2 * 6
    assert followed.windows("h") == [0, 10, 20, 30]


def test_what_people_see(followed: Run) -> None:
    rows = [row for row in followed.rows if row["group_id"] == "seen"]
    assert [(r["starved"], r["starved_members"]) for r in rows] == [
        (0, []),  # two seconds
        (1, ["b"]),
        (1, ["b"]),  # nine seconds, of which four lie here
    ]
    first = rows[0]
    assert list(first) == [*stream.LIVE]
    assert (first["members"], first["records"], first["lag"]) == (2, 8 * 10 + 2 * 10, 9)
    assert (first["window_start"], first["window_ms"]) == (T0_MS, 10_000)
    assert first["dwell_p99_ms"] == pytest.approx(45)
    assert [r["lag"] for r in rows] == [9, 19, 29]
    assert follow.window_text(first) == "2026-01-05 00:00:10Z"


def test_a_stretch_that_ended_before_the_window_does_not_count_in_it(followed: Run) -> None:
    assert [r["starved"] for r in followed.rows if r["group_id"] == "ended"] == [1, 0, 0]


def test_groups_are_chosen_and_a_long_starved_after_looks_further_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    write(tmp_path / "e", [*busy(0, 20), *busy(0, 60, group="h", starving=range(5, 45))])
    settings = FollowSettings(
        FairnessSettings(starved_after_ms=25_000), watermark_ms=5_000, once=True
    )
    run = Run(spark, str(tmp_path / "e"), tmp_path / "out")
    run(settings, wanted=Range(groups=("h",)))
    assert {r["group_id"] for r in run.rows} == {"h"}
    # When the third window ends, the stretch is just as long.
    assert [r["starved"] for r in run.rows] == [0, 0, 1, 1, 1]


def test_without_since_it_begins_with_the_windows_that_are_open(
    spark: SparkSession, tmp_path: Path
) -> None:
    """All history, in a single micro-batch, would fill memory and state."""
    now_s = int(time.time())
    to_now = datetime.fromtimestamp(now_s - 60, UTC) - at(0)
    recent = [row | {"time": row["time"] + to_now} for row in [*busy(0, 100), *end(100)]]
    write(tmp_path / "e", [*busy(0, 20), *recent])
    run = Run(spark, str(tmp_path / "e"), tmp_path / "out")
    run(FollowSettings(watermark_ms=5_000, until_idle_s=3))
    first_s = min(row["window_start"] for row in run.rows) // 1_000
    assert first_s == (first_s // 10) * 10
    assert now_s - 15 <= first_s <= now_s + 60
    # Where it began stays, however long the job was away.
    kept = json.loads(
        (tmp_path / "out" / "_checkpoint" / "sharecoord" / "settings.json").read_text()
    )
    begins = datetime.fromisoformat(kept[follow.BEGINS])
    assert begins.timestamp() == first_s
    description = follow._description(str(tmp_path / "e"), Range(), ONCE)
    place = str(tmp_path / "out" / "_checkpoint")
    assert follow._check_checkpoint(spark, place, "", description, at(9)) == begins


# -- restarts, late and repeated rows -------------------------------------------------------------


def test_restarts_lose_nothing_and_double_nothing(
    spark: SparkSession, topic: EventTopic, followed: Run, tmp_path: Path
) -> None:
    rows = [*busy(0, 60), *end(60)]
    run = Run(spark, topic.place(), tmp_path / "out")
    cuts = (0, 83, 170, len(rows))
    for first, last in itertools.pairwise(cuts):
        topic.send_rows(rows[first:last])
        assert run().late == 0
    assert run.windows() == [0, 10, 20, 30, 40, 50]
    assert run().windows == 0
    assert listed(run.table()) == of_g(followed.table())


def test_rows_that_come_again_and_rows_that_come_late(
    spark: SparkSession, topic: EventTopic, followed: Run, tmp_path: Path
) -> None:
    rows = busy(0, 20)
    run = Run(spark, topic.place(), tmp_path / "out")
    topic.send_rows([*rows[:50], *rows[20:50]])
    first = run()
    assert first.duplicates == 30
    # Again, in another run, while the watermark still waits for such rows.
    topic.send_rows([*rows[40:], *end(20)])
    second = run()
    assert (second.late, second.duplicates) == (0, 10)
    assert any("10 rows had come before" in line for line in second.warnings())
    before = listed(run.table())
    topic.send_rows(busy(2, 4, group="late"))
    third = run()
    assert (third.late, third.windows) == (10, 0)
    assert any("10 rows came later than --watermark" in line for line in third.warnings())
    assert listed(run.table()) == before
    assert before == of_g(followed.table(), 20)


def test_a_micro_batch_that_is_done_again(
    spark: SparkSession, topic: EventTopic, tmp_path: Path
) -> None:
    """It fails behind the last step, so that Spark does not know that it was done."""
    topic.send_rows([*busy(0, 20, starving=range(20)), *end(20)])
    run = Run(spark, topic.place(), tmp_path / "out", Rule("s", RuleKind.STARVED, 1))

    def fail(_: list[LiveRow]) -> None:
        raise OSError("the terminal is gone")

    with pytest.raises(JobFailedError, match="the terminal is gone"):
        run(show=fail)
    before = listed(run.table())
    assert run.alerts() == [("alert begins", "s")]
    run()
    assert listed(run.table()) == before
    assert run.windows() == [0, 10]
    assert run.alerts() == [("alert begins", "s")]


def test_messages_that_are_no_events_are_counted(
    spark: SparkSession, topic: EventTopic, tmp_path: Path
) -> None:
    topic.send_rows(busy(0, 20))
    topic.send(b"what?", partition=3)
    topic.send_rows(end(20))
    with pytest.raises(JobFailedError, match=f"{topic.name}-3@0: the message is no Arrow stream"):
        Run(spark, topic.place(), tmp_path / "strict")()
    run = Run(spark, topic.place(skip_corrupt=True), tmp_path / "out")
    result = run()
    assert result.skipped == [f"{topic.name}-3@0"]
    assert run.windows() == [0, 10]


# -- alerts ---------------------------------------------------------------------------------------


def test_alerts_begin_once_and_end_once_over_restarts(
    spark: SparkSession, topic: EventTopic, tmp_path: Path
) -> None:
    rules = (
        Rule("hunger", RuleKind.STARVED, 1),
        Rule("unfair", RuleKind.JAIN_BELOW, 0.8, "g", for_ms=20_000),
        Rule("behind", RuleKind.LAG_GROWING, 0.5, "g", for_ms=40_000),
        Rule("elsewhere", RuleKind.STARVED, 1, "h*"),
    )
    run = Run(spark, topic.place(), tmp_path / "out", *rules)
    topic.send_rows([*busy(0, 30, starving=range(10, 40)), *end(24)])
    run()
    assert run.alerts() == [("alert begins", "hunger")]
    topic.send_rows([*busy(30, 60, starving=range(10, 40)), *end(60)])
    result = run()
    assert run.alerts() == [
        ("alert begins", "hunger"),
        ("alert begins", "unfair"),
        ("alert ends", "hunger"),
        ("alert ends", "unfair"),
        ("alert begins", "behind"),
    ]
    assert "group g: starved 1, limit 1 (b), since 2026-01-05T00:00:10Z" in run.said[0]
    assert result.alerts == "alerts delivered: log 4"
    state = sorted((tmp_path / "out" / "_checkpoint" / "sharecoord").glob("alerts-*"))
    assert len(state) <= follow.STATES_KEPT


# -- what does not fit ----------------------------------------------------------------------------


def test_a_checkpoint_is_for_one_thing(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "e", [*busy(0, 20), *end(20)])
    events, out = str(tmp_path / "e"), tmp_path / "out"
    Run(spark, events, out)()
    other = FollowSettings(FairnessSettings(window_ms=20_000), watermark_ms=5_000, once=True)
    with pytest.raises(AnalyticsError, match=r"--window 20000: --checkpoint .* made with 10000"):
        Run(spark, events, out)(other)
    elsewhere = FollowSettings(checkpoint=str(tmp_path / "c"), once=True)
    with pytest.raises(AnalyticsError, match="has a table fairness_windows of another run"):
        Run(spark, events, out)(elsewhere)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "x").touch()
    foreign = FollowSettings(checkpoint=str(tmp_path / "f"), once=True)
    with pytest.raises(AnalyticsError, match="was not made by this job"):
        Run(spark, events, tmp_path / "new")(foreign)
    kept = json.loads((out / "_checkpoint" / "sharecoord" / "settings.json").read_text())
    assert kept["--events"] == events


def test_it_ends_when_nothing_comes(
    spark: SparkSession, topic: EventTopic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cluster of this test finds no offsets by time: all of the topic is read.
    monkeypatch.setattr(follow, "_open_since", lambda *_: None)
    topic.send_rows([*busy(0, 20), *end(20)])
    run = Run(spark, topic.place(), tmp_path / "out")
    run(FollowSettings(watermark_ms=5_000, until_idle_s=3.0))
    assert run.windows() == [0, 10]
