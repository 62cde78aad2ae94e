"""The lag job's tables on small frames, against results by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from sharecoord.analytics.census import census
from sharecoord.analytics.lag import transform
from sharecoord.analytics.lag.settings import CAUSES_MAX, TREND_WINDOWS_MIN, LagSettings
from sharecoord.analytics.lag.trend import trends
from sharecoord.analytics.lag.verdict import CAUSE_TEXTS
from tests.analytics.support import (
    Row,
    Scenes,
    at,
    by,
    by_scene,
    change,
    event,
    frame,
    handed,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


SETTINGS = LagSettings()
SCENES = Scenes()


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


class Tables(NamedTuple):
    """Rows of the tables of all scenes."""

    windows: dict[int, list[Row]]
    stretches: dict[int, list[Row]]
    causes: dict[int, list[Row]]
    partitions: dict[int, list[Row]]


@pytest.fixture(scope="module")
def found(spark: SparkSession) -> Tables:
    """What is found of all scenes."""
    events = frame(spark, SCENES.rows).persist()
    sampled = transform.samples(events, SETTINGS)
    changes = transform.happened(transform.changes(events, SETTINGS))
    made = transform.windows(sampled, changes, SETTINGS).persist()
    stretches, causes = transform.stretches(made).persist(), transform.causes(made).persist()
    places = transform.partitions(made, stretches, causes, trends(made), census(events))
    return Tables(*map(by_scene, (made, stretches, causes, places)))


def jump(until: int = 80, *, ends: int | None = None) -> list[Row]:
    """10 records/s come and go; in second 40 there are 1000 more, which go in second `ends`."""
    rows = []
    for second in range(1, until):
        backlog = 1_000 if second >= 40 and (ends is None or second < ends) else 0
        done = 10 * second + (1_000 if ends is not None and second >= ends else 0)
        rows.append(stand(second, done + backlog, done))
    return rows


# -- windows --------------------------------------------------------------------------------------


RATED = SCENES.add(
    [
        stand(1, 100, 80, end_offset=90, due=3, oldest_time=at(0.5)),
        stand(9, 180, 120, end_offset=130, due=0, oldest_time=at(8)),
        stand(15, 300, 300),
        handed(16, "a", 5, age_ms=250),
        change(16, "released", "a", 4),
        change(17, "released", "a", 2, topic="other"),
        event("group", 18, event="joined", member_id="a"),
        event("group", 18, event="owned", topic="t", partition=0),
    ]
)


def test_rates_and_figures_of_windows(found: Tables) -> None:
    windows = by(found.windows[RATED], "topic", "window_start")
    first, second = windows["t", naive(0)], windows["t", naive(10)]
    assert len(windows) == 2
    assert (first["lag"], first["waiting"], first["lag_max"], first["waiting_max"]) == (
        *(60, 50, 60, 50),
    )
    assert (first["arrival_rate"], first["service_rate"]) == (80 / 8, 40 / 8)
    assert (first["behind_ms"], first["behind_max_ms"], first["released"]) == (1_000, 1_000, 0)
    assert (second["arrival_rate"], second["service_rate"]) == (120 / 6, 180 / 6)
    assert (second["lag"], second["behind_ms"], second["released"]) == (0, 0, 4)
    assert (second["joined"], second["owned"], second["left"]) == (1, 1, 0)


WITHOUT_TIMESTAMPS = SCENES.add(
    [stand(1, 10, 0), handed(2, "a", 5, age_ms=700), handed(3, "a", 5, age_ms=300)]
)


def test_without_kafkas_timestamps_the_age_of_what_is_handed_out_counts(found: Tables) -> None:
    assert by(found.windows[WITHOUT_TIMESTAMPS], "partition")[0]["behind_ms"] == 700


WENT_BACK = SCENES.add([stand(1, 100, 90), stand(2, 100, 20), stand(3, 110, 30, partition=1)])


def test_offsets_that_go_back_are_no_rate(found: Tables) -> None:
    windows = by(found.windows[WENT_BACK], "partition")
    assert (windows[0]["arrival_rate"], windows[0]["service_rate"]) == (0, None)
    assert (windows[1]["arrival_rate"], windows[1]["service_rate"]) == (None, None)


OLD_AND_YOUNG = SCENES.add(
    [
        *(row | {"oldest_time": at(0)} for row in jump()),
        *(row | {"oldest_time": row["time"], "partition": 1} for row in jump()),
    ]
)
WORKED_ON = SCENES.add(
    stand(s, 10 * s + 1_000, 10 * s, end_offset=10 * s + 1_000) for s in range(1, 30)
)


def test_what_waits_for_a_short_time_is_not_behind(found: Tables) -> None:
    windows = by(found.windows[OLD_AND_YOUNG], "partition", "window_start")
    assert windows[0, naive(40)]["behind"] is True
    assert windows[1, naive(40)]["behind"] is False
    # Records that members work on are lag, but nothing waits.
    assert {row["behind"] for row in found.windows[WORKED_ON]} == {False}


LITTLE = {
    waiting: SCENES.add(
        [
            *(stand(second, second * 6 // 10, second * 6 // 10) for second in range(1, 61)),
            *(stand(s, 36 + waiting, 36, oldest_time=at(61)) for s in range(61, 100)),
        ]
    )
    for waiting in (6, 7)
}


@pytest.mark.parametrize("waiting", LITTLE)
def test_what_nobody_works_on_is_behind_however_little_it_is(found: Tables, waiting: int) -> None:
    """Six records of six, where ten seconds' work would be six, are no less than seven of seven."""
    windows = by(found.windows[LITTLE[waiting]], "window_start")
    assert [windows[naive(second)]["behind"] for second in (40, 50, 80, 90)] == [
        *(False, False),
        *(True, True),
    ]


# -- stretches and causes -------------------------------------------------------------------------

LASTS = SCENES.add(jump())
ENDED = SCENES.add(
    [
        *jump(ends=55),
        *(stand(s, 10 * s + 500 * (s < 15), 10 * s, partition=1) for s in range(1, 40)),
    ]
)


def test_a_stretch_that_lasts(found: Tables) -> None:
    (stretch,) = found.stretches[LASTS]
    assert (stretch["last_without_lag"], stretch["since"]) == (naive(30), naive(40))
    assert (stretch["until"], stretch["windows"], stretch["waiting_max"]) == (None, 4, 1_000)


def test_a_stretch_that_ended_and_one_from_the_beginning(found: Tables) -> None:
    stretches = by(found.stretches[ENDED], "partition")
    assert (stretches[0]["since"], stretches[0]["until"]) == (naive(40), naive(60))
    assert (stretches[1]["last_without_lag"], stretches[1]["since"]) == (None, naive(0))
    assert stretches[1]["until"] == naive(20)
    assert by(found.causes[ENDED], "partition", "cause").keys() == {(0, "arrival_rate")}


CAUSES = SCENES.add(
    [
        *jump(),
        *(event("group", 38, event="session_ended", member_id=str(i)) for i in range(2)),
        event("group", 41, event="configured", reason="x=1"),
        # As many as ever: no cause.
        *(change(s, "expired", "a", 3) for s in range(5, 80, 10)),
        # Of another group: none of its business.
        event("group", 41, event="paused", group_id="h"),
    ]
)


def test_causes_in_order_of_how_much_they_differ(found: Tables) -> None:
    causes = by(found.causes[CAUSES], "rank")
    assert [causes[i]["cause"] for i in (1, 2, 3)] == [
        *("arrival_rate", "session_ended", "configured"),
    ]
    assert (causes[2]["before"], causes[2]["around"], causes[2]["score"]) == (0, 1, 10)
    assert causes[1]["around"] == pytest.approx((10 + 110) / 2)
    assert len(causes) == 3 <= CAUSES_MAX


LESS_SERVICE = SCENES.add(stand(s, 100 * s, 100 * min(s, 38)) for s in range(1, 90))


def test_less_service_is_a_cause(found: Tables) -> None:
    causes = by(found.causes[LESS_SERVICE], "rank")
    assert causes[1]["cause"] == "service_rate"
    assert causes[1]["before"] == pytest.approx(100)


# -- trends ---------------------------------------------------------------------------------------


WAITING: dict[str, list[float]] = {
    "drains": [1_000 - 20 * i for i in range(20)],
    "one off": [0 if i == 10 else 100 + 30 * i for i in range(12)],
    "noise": [100 + 40 * (-1) ** i for i in range(12)],
    "empty": [0] * 12,
    "six": [1, 2, 3, 4, 5, 6],
    "seven": [1, 2, 3, 4, 5, 6, 7],
}
"""Records that wait at the ends of windows, by group."""


@pytest.fixture(scope="module")
def trend_of(spark: SparkSession) -> dict[str, Row]:
    """The trend of each group."""
    rows = [
        (group, "t", 0, at(10 * i), int(value))
        for group, values in WAITING.items()
        for i, value in enumerate(values)
    ]
    names = "group_id string, topic string, partition int, sampled_at timestamp, waiting bigint"
    return by(trends(spark.createDataFrame(rows, names)), "group_id")


def test_a_line_through_what_drains(trend_of: dict[str, Row]) -> None:
    found = trend_of["drains"]
    assert (found["trend"], found["slope"]) == ("drains", pytest.approx(-2))
    assert found["drain_s"] == pytest.approx((1_000 - 20 * 19) / 2)
    # Four windows after the 16th, 20, 40, 60 and 80 below it.
    assert found["forecast_error"] == pytest.approx(0, abs=1e-6)
    assert found["forecast_error_naive"] == pytest.approx(50)


def test_one_window_that_is_off_does_not_turn_the_line(trend_of: dict[str, Row]) -> None:
    found = trend_of["one off"]
    assert (found["trend"], found["slope"]) == ("grows", pytest.approx(3))
    assert found["drain_s"] is None


def test_noise_is_no_trend(trend_of: dict[str, Row]) -> None:
    found, empty = trend_of["noise"], trend_of["empty"]
    assert (found["trend"], found["drain_s"]) == ("steady", None)
    assert (empty["trend"], empty["drain_s"], empty["forecast_error"]) == ("steady", 0, 0)


def test_six_windows_have_no_trend(trend_of: dict[str, Row]) -> None:
    assert len(WAITING["six"]) < TREND_WINDOWS_MIN
    assert "six" not in trend_of
    assert trend_of["seven"]["trend"] == "grows"


# -- share-partitions -----------------------------------------------------------------------------


PLACES = SCENES.add(
    [
        *jump(),
        event("group", 41, event="paused"),
        *(stand(s, 10 * s, 10 * s - 3_000, partition=1, end_offset=10 * s) for s in (78, 79)),
        *(stand(s, 7, 7, topic="quiet") for s in range(1, 80)),
    ]
)


def test_a_line_per_share_partition(found: Tables) -> None:
    places = by(found.partitions[PLACES], "group_id", "topic", "partition")
    assert len(places) == 3
    first, second, quiet = places["g", "t", 0], places["g", "t", 1], places["g", "quiet", 0]
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
    assert (quiet["lag"], quiet["lag_share"], quiet["topic_gini"]) == (0, None, 0)
    assert (quiet["arrival_rate"], quiet["drain_s"]) == (0, 0)


def test_every_cause_has_words() -> None:
    assert CAUSE_TEXTS.keys() == transform.CAUSES.keys()
