"""The lag job's tables on small frames, against results by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sharecoord.analytics.census import census
from sharecoord.analytics.lag import transform
from sharecoord.analytics.lag.settings import CAUSES_MAX, TREND_WINDOWS_MIN, LagSettings
from sharecoord.analytics.lag.trend import trends
from sharecoord.analytics.lag.verdict import CAUSE_TEXTS
from tests.analytics.support import Row, at, by, change, dicts, event, frame, handed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


SETTINGS = LagSettings()


def naive(seconds: float) -> Any:
    """A time as Spark hands it to Python: the wall clock of this machine."""
    return at(seconds).astimezone().replace(tzinfo=None)


def stand(seconds: float, log_end: int, finished: int, **values: Any) -> Row:
    """A sample of a share-partition; what is not finished waits."""
    given = {
        "topic": "t",
        "topic_id": "0" * 32,
        "partition": 0,
        "change_sequence": 1,
        "log_end_offset": log_end,
        "start_offset": finished,
        "end_offset": finished,
        "lag": log_end - finished,
        "due": 0,
        "window_max": 2_000,
        "interval_ms": 1_000,
    }
    return event("partition", seconds, **{**given, **values})


def windows(spark: SparkSession, rows: list[Row]) -> DataFrame:
    events = frame(spark, rows)
    sampled = transform.samples(events, SETTINGS)
    changes = transform.happened(transform.changes(events, SETTINGS))
    return transform.windows(sampled, changes, SETTINGS)


def jump(until: int = 80, *, ends: int | None = None) -> list[Row]:
    """10 records/s come and go; in second 40 there are 1000 more, which go in second `ends`."""
    rows = []
    for second in range(1, until):
        backlog = 1_000 if second >= 40 and (ends is None or second < ends) else 0
        done = 10 * second + (1_000 if ends is not None and second >= ends else 0)
        rows.append(stand(second, done + backlog, done))
    return rows


# -- windows --------------------------------------------------------------------------------------


def test_rates_and_figures_of_windows(spark: SparkSession) -> None:
    rows = [
        stand(1, 100, 80, end_offset=90, due=3, oldest_time=at(0.5)),
        stand(9, 180, 120, end_offset=130, due=0, oldest_time=at(8)),
        stand(15, 300, 300),
        handed(16, "a", 5, age_ms=250),
        change(16, "released", "a", 4),
        change(17, "released", "a", 2, topic="other"),
        event("group", 18, event="joined", member_id="a"),
        event("group", 18, event="owned", topic="t", partition=0),
    ]
    found = by(windows(spark, rows), "topic", "window_start")
    first, second = found["t", naive(0)], found["t", naive(10)]
    assert len(found) == 2
    assert (first["lag"], first["waiting"], first["lag_max"], first["waiting_max"]) == (
        *(60, 50, 60, 50),
    )
    assert (first["arrival_rate"], first["service_rate"]) == (80 / 8, 40 / 8)
    assert (first["behind_ms"], first["behind_max_ms"], first["released"]) == (1_000, 1_000, 0)
    assert (second["arrival_rate"], second["service_rate"]) == (120 / 6, 180 / 6)
    assert (second["lag"], second["behind_ms"], second["released"]) == (0, 0, 4)
    assert (second["joined"], second["owned"], second["left"]) == (1, 1, 0)


def test_without_kafkas_timestamps_the_age_of_what_is_handed_out_counts(
    spark: SparkSession,
) -> None:
    rows = [stand(1, 10, 0), handed(2, "a", 5, age_ms=700), handed(3, "a", 5, age_ms=300)]
    assert by(windows(spark, rows), "partition")[0]["behind_ms"] == 700


def test_offsets_that_go_back_are_no_rate(spark: SparkSession) -> None:
    rows = [stand(1, 100, 90), stand(2, 100, 20), stand(3, 110, 30, partition=1)]
    found = by(windows(spark, rows), "partition")
    assert (found[0]["arrival_rate"], found[0]["service_rate"]) == (0, None)
    assert (found[1]["arrival_rate"], found[1]["service_rate"]) == (None, None)


def test_what_waits_for_a_short_time_is_not_behind(spark: SparkSession) -> None:
    old = [{**row, "oldest_time": at(0)} for row in jump()]
    young = [{**row, "oldest_time": row["time"], "partition": 1} for row in jump()]
    found = by(windows(spark, old + young), "partition", "window_start")
    assert found[0, naive(40)]["behind"] is True
    assert found[1, naive(40)]["behind"] is False
    # Records that members work on are lag, but nothing waits.
    busy = [stand(s, 10 * s + 1_000, 10 * s, end_offset=10 * s + 1_000) for s in range(1, 30)]
    assert {row["behind"] for row in dicts(windows(spark, busy))} == {False}


@pytest.mark.parametrize("waiting", [6, 7])
def test_what_nobody_works_on_is_behind_however_little_it_is(
    spark: SparkSession, waiting: int
) -> None:
    """Six records of six, where ten seconds' work would be six, are no less than seven of seven."""
    rows = [stand(second, second * 6 // 10, second * 6 // 10) for second in range(1, 61)]
    rows += [stand(s, 36 + waiting, 36, oldest_time=at(61)) for s in range(61, 100)]
    found = by(windows(spark, rows), "window_start")
    assert [found[naive(second)]["behind"] for second in (40, 50, 80, 90)] == [
        *(False, False),
        *(True, True),
    ]


# -- stretches and causes -------------------------------------------------------------------------


def test_a_stretch_that_lasts(spark: SparkSession) -> None:
    (found,) = dicts(transform.stretches(windows(spark, jump())))
    assert (found["last_without_lag"], found["since"]) == (naive(30), naive(40))
    assert (found["until"], found["windows"], found["waiting_max"]) == (None, 4, 1_000)


def test_a_stretch_that_ended_and_one_from_the_beginning(spark: SparkSession) -> None:
    rows = jump(ends=55)
    rows += [stand(s, 10 * s + 500 * (s < 15), 10 * s, partition=1) for s in range(1, 40)]
    found = by(transform.stretches(windows(spark, rows)), "partition")
    assert (found[0]["since"], found[0]["until"]) == (naive(40), naive(60))
    assert (found[1]["last_without_lag"], found[1]["since"]) == (None, naive(0))
    assert found[1]["until"] == naive(20)
    assert by(transform.causes(windows(spark, rows)), "partition", "cause").keys() == {
        (0, "arrival_rate")
    }


def test_causes_in_order_of_how_much_they_differ(spark: SparkSession) -> None:
    rows = jump()
    rows += [event("group", 38, event="session_ended", member_id=str(i)) for i in range(2)]
    rows += [event("group", 41, event="configured", reason="x=1")]
    # As many as ever: no cause.
    rows += [change(s, "expired", "a", 3) for s in range(5, 80, 10)]
    # Of another group: none of its business.
    rows += [event("group", 41, event="paused", group_id="h")]
    found = by(transform.causes(windows(spark, rows)), "rank")
    assert [found[i]["cause"] for i in (1, 2, 3)] == [
        *("arrival_rate", "session_ended", "configured"),
    ]
    assert (found[2]["before"], found[2]["around"], found[2]["score"]) == (0, 1, 10)
    assert found[1]["around"] == pytest.approx((10 + 110) / 2)
    assert len(found) == 3 <= CAUSES_MAX


def test_less_service_is_a_cause(spark: SparkSession) -> None:
    rows = [stand(s, 100 * s, 100 * min(s, 38)) for s in range(1, 90)]
    found = by(transform.causes(windows(spark, rows)), "rank")
    assert found[1]["cause"] == "service_rate"
    assert found[1]["before"] == pytest.approx(100)


# -- trends ---------------------------------------------------------------------------------------


def trend_of(spark: SparkSession, waiting: list[float]) -> Row:
    rows = [("g", "t", 0, at(10 * i), int(value)) for i, value in enumerate(waiting)]
    names = "group_id string, topic string, partition int, sampled_at timestamp, waiting bigint"
    found = dicts(trends(spark.createDataFrame(rows, names)))
    assert len(found) == 1 or len(waiting) < TREND_WINDOWS_MIN
    return found[0] if found else {}


def test_a_line_through_what_drains(spark: SparkSession) -> None:
    found = trend_of(spark, [1_000 - 20 * i for i in range(20)])
    assert (found["trend"], found["slope"]) == ("drains", pytest.approx(-2))
    assert found["drain_s"] == pytest.approx((1_000 - 20 * 19) / 2)
    # Four windows after the 16th, 20, 40, 60 and 80 below it.
    assert found["forecast_error"] == pytest.approx(0, abs=1e-6)
    assert found["forecast_error_naive"] == pytest.approx(50)


def test_one_window_that_is_off_does_not_turn_the_line(spark: SparkSession) -> None:
    values = [100.0 + 30 * i for i in range(12)]
    values[10] = 0
    found = trend_of(spark, values)
    assert (found["trend"], found["slope"]) == ("grows", pytest.approx(3))
    assert found["drain_s"] is None


def test_noise_is_no_trend(spark: SparkSession) -> None:
    found = trend_of(spark, [100 + 40 * (-1) ** i for i in range(12)])
    assert (found["trend"], found["drain_s"]) == ("steady", None)
    empty = trend_of(spark, [0] * 12)
    assert (empty["trend"], empty["drain_s"], empty["forecast_error"]) == ("steady", 0, 0)


def test_six_windows_have_no_trend(spark: SparkSession) -> None:
    assert trend_of(spark, [1, 2, 3, 4, 5, 6]) == {}
    assert trend_of(spark, [1, 2, 3, 4, 5, 6, 7])["trend"] == "grows"


# -- share-partitions -----------------------------------------------------------------------------


def partitions(spark: SparkSession, rows: list[Row]) -> dict[Any, Row]:
    made = windows(spark, rows).cache()
    found = transform.partitions(
        made,
        transform.stretches(made),
        transform.causes(made),
        trends(made),
        census(frame(spark, rows)),
    )
    return by(found, "group_id", "topic", "partition")


def test_a_line_per_share_partition(spark: SparkSession) -> None:
    rows = jump()
    rows += [event("group", 41, event="paused")]
    rows += [stand(s, 10 * s, 10 * s - 3_000, partition=1, end_offset=10 * s) for s in (78, 79)]
    rows += [stand(s, 7, 7, topic="quiet") for s in range(1, 80)]
    found = partitions(spark, rows)
    assert len(found) == 3
    first, second = found["g", "t", 0], found["g", "t", 1]
    assert (first["behind"], first["stretches"], first["since"]) == (True, 1, naive(40))
    assert [each["cause"] for each in first["causes"]] == ["arrival_rate", "paused"]
    assert first["causes"][1].asDict() == {
        "cause": "paused",
        "before": 0,
        "around": 0.5,
        "score": 5,
    }
    assert (first["lag"], first["lag_peak"], first["trend"]) == (1_000, 1_000, "steady")
    assert (first["lag_share"], second["lag_share"]) == (0.25, 0.75)
    assert first["topic_gini"] == pytest.approx(0.25)
    assert (first["complete"], first["lost"]) == (1, 0)
    assert (second["behind"], second["stretches"], second["causes"]) == (False, 0, [])
    assert (second["trend"], second["since"]) == (None, None)
    quiet = found["g", "quiet", 0]
    assert (quiet["lag"], quiet["lag_share"], quiet["topic_gini"]) == (0, None, 0)
    assert (quiet["arrival_rate"], quiet["drain_s"]) == (0, 0)


def test_every_cause_has_words() -> None:
    assert CAUSE_TEXTS.keys() == transform.CAUSES.keys()
