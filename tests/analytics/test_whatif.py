"""What-if on recorded events: what is read, and that it is simulated as tasks of Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics.errors import AnalyticsError, EventsNotFoundError
from sharecoord.analytics.frames import Range
from sharecoord.analytics.whatif import job, transform
from sharecoord.analytics.whatif.grid import predict
from sharecoord.analytics.whatif.model import Measured
from sharecoord.analytics.whatif.settings import Scenario
from tests.analytics.support import Row, change, event, frame, write
from tests.unit.cli.support import run

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def log(seconds: float, log_end: int, partition: int = 0, **values: Any) -> Row:
    given = {"topic": "t", "topic_id": "0" * 32, "lag": 0, "members": 2}
    return event(
        "partition", seconds, partition=partition, log_end_offset=log_end, **{**given, **values}
    )


def settled(seconds: float, member: str, records: int, work_us: int | None, **values: Any) -> Row:
    return change(seconds, "accepted", member, records, work_us=work_us, **values)


def rows(found: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in found.collect())


def recording() -> list[Row]:
    """Ten seconds of 60 records/s, and two members that need 10 and 20 ms."""
    samples = [log(second, 1_000 + 60 * second, lag=30) for second in range(11)]
    work = [settled(second, "a", 10, 100_000) for second in range(10)]
    return [*samples, *work, *(settled(second, "b", 5, 100_000) for second in range(10))]


def test_arrivals_are_the_growth_of_the_log(spark: SparkSession) -> None:
    events = frame(
        spark,
        [
            *(log(0.2, 100), log(1.2, 130), log(1.9, 135), log(2.2, 135)),
            # Two seconds without a sample: seven records are spread over three seconds.
            log(5.2, 142),
            # Made anew: shorter than before.
            log(6.2, 10),
            *(log(0.5, 7, partition=1), log(1.5, 9, partition=1)),
            # Other kinds say nothing.
            event("member", 1.0, member_id="a", demand=1, got=1),
        ],
    )
    first = min(row["second"] for row in transform.arrivals(events).collect())
    found = [(p, second - first, n) for p, second, n in rows(transform.arrivals(events))]
    assert found == [
        *[(0, 0, 35), (0, 1, 0), (0, 2, 2), (0, 3, 2), (0, 4, 3), (0, 5, 0)],
        (1, 0, 2),
    ]


def test_the_backlog_is_the_first_lag(spark: SparkSession) -> None:
    events = frame(spark, [log(1, 5, lag=9), log(0, 5, lag=4), log(0, 5, partition=1, lag=None)])
    assert rows(transform.backlog(events)) == [(0, 4), (1, 0)]


def test_service_times_are_per_record_and_keep_their_mean(spark: SparkSession) -> None:
    events = frame(
        spark,
        [
            settled(1, "a", 10, 50_000),
            settled(2, "a", 1, 5_020),
            settled(3, "a", 2, 80_000),
            # It does not say its time: how long it held them.
            settled(4, "b", 4, None, held_ms=100),
            # Neither known, nothing handled, not at its end.
            settled(5, "b", 4, None),
            settled(6, "b", 0, 100),
            change(7, "expired", "b", 5, held_ms=30_000),
        ],
    )
    found = rows(transform.service_times(events))
    assert [(m, pytest.approx(ms), n) for m, ms, n in found] == [
        ("a", (50 + 5.02) / 11, 11),
        ("a", 40.0, 2),
        ("b", 25.0, 4),
    ]


def test_nothing_of_the_transforms_runs_in_python(spark: SparkSession) -> None:
    events = frame(spark, recording())
    for made in (transform.arrivals, transform.backlog, transform.service_times):
        plan = made(events)._jdf.queryExecution().toString()
        assert "Python" not in plan


def test_what_was_recorded_becomes_a_measurement(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, recording())
    found = job.read(spark, str(tmp_path))
    assert (found.group, found.topic, found.partitions, found.seconds) == ("g", "t", 1, 10)
    assert found.members == 2
    assert found.measured.arrivals == [{-1: 30, **dict.fromkeys(range(10), 60)}]
    assert [[(pytest.approx(10.0), 100)], [(pytest.approx(20.0), 50)]] == found.measured.service
    assert job.read(spark, str(tmp_path), seconds=4).measured.arrivals == [
        {-1: 30, **dict.fromkeys(range(4), 60)}
    ]


def test_tasks_of_spark_give_what_one_process_gives(spark: SparkSession) -> None:
    measured = Measured([dict.fromkeys(range(3), 90)], [[(10.0, 1)], [(20.0, 2)]])
    points = [Scenario(consumers=n, seconds=3, warm_up_s=0) for n in (1, 2, 4)]
    assert job.predict(spark, points, 2, measured) == predict(points, 2, measured, processes=1)


def test_each_simulation_is_a_task(spark: SparkSession) -> None:
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(None))
    job.predict(spark, [Scenario(consumers=n, seconds=1) for n in (1, 2, 3)], 2, Measured())
    (number,) = set(tracker.getJobIdsForGroup(None)) - before
    stages = [tracker.getStageInfo(stage) for stage in tracker.getJobInfo(number).stageIds]
    assert [stage.numTasks for stage in stages if stage is not None] == [6]


def test_several_groups_or_topics_must_be_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    both = [log(second, second, group_id=group) for second in range(5) for group in ("g", "h")]
    write(tmp_path, [*both, *(log(second, second, topic="u") for second in range(5))])
    with pytest.raises(AnalyticsError, match="--group g --topic t; --group g --topic u; --group h"):
        job.read(spark, str(tmp_path))
    found = job.read(spark, str(tmp_path), wanted=Range(groups=("g",)), topic="u")
    assert (found.group, found.topic) == ("g", "u")


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ([settled(1, "a", 1, 10)], "no samples of share-partitions"),
        ([log(1, 10), log(1.5, 20)], "less than a second of samples"),
    ],
)
def test_too_little_is_refused(
    spark: SparkSession, tmp_path: Path, recorded: list[Row], message: str
) -> None:
    write(tmp_path, recorded)
    with pytest.raises(AnalyticsError, match=message):
        job.read(spark, str(tmp_path))


def test_work_that_was_not_recorded_must_be_given(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, [log(second, second * 50) for second in range(5)])

    recorded = job.read(spark, str(tmp_path))
    points = [Scenario(consumers=recorded.members, seconds=recorded.seconds)]

    def replayed(**given: Any) -> list[str]:
        told: list[str] = []
        job.replay(spark, recorded, points, repeats=1, tell=told.append, **given)
        return told

    with pytest.raises(AnalyticsError, match="say it with --work-ms"):
        replayed(work_as_measured=True)
    assert replayed(work_as_measured=False) == [
        "replaying 4 s of group g, topic t: 200 records, 1 partitions, 2 members"
    ]


def test_a_folder_that_is_not_there_is_named(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(EventsNotFoundError, match="no such folder"):
        job.read(spark, str(tmp_path / "none"))


@pytest.mark.usefixtures("spark")
def test_the_command_replays_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The session is shared by all tests: the command does not end it here.
    monkeypatch.setattr("sharecoord.analytics.session.stop", lambda _: None)
    write(tmp_path, recording())
    arguments = f"--events {tmp_path} --consumers 2,4 --repeats 1 --json"
    done = run("analyze", "what-if", *arguments.split())
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert "replaying 10 s of group g" in done.stderr
    assert [p["settings"]["consumers"] for p in found["points"]] == [2, 4]
    # 63 records/s with the backlog: two of the measured members work off 150.
    assert [p["rate"] for p in found["points"]] == pytest.approx([63, 63], rel=0.02)
    assert found["recommended"]["settings"]["consumers"] == 2
