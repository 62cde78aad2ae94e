"""Grids, bounds, repeats, and the advice in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sharecoord.analytics.whatif.advice import reason, recommended
from sharecoord.analytics.whatif.grid import gathered, predict, throws
from sharecoord.analytics.whatif.model import Prediction, simulate
from sharecoord.analytics.whatif.settings import Dispatch, Scenario, grid, varied
from sharecoord.errors import InvalidConfigError


def prediction(
    handled: float, starved: float = 0, jain: float = 1.0, **scenario: Any
) -> Prediction:
    return Prediction(Scenario(**scenario), handled, 0.5, jain, starved, 0, 9, 10.0, 20.0, 0, 0)


def test_a_grid_has_all_combinations_once_in_order() -> None:
    points = grid({"consumers": (10, 20), "work_ms": (5.0, 5.0), "rate": ()}, seconds=3)
    assert [(p.consumers, p.work_ms, p.rate, p.seconds) for p in points] == [
        (10, 5.0, None, 3),
        (20, 5.0, None, 3),
    ]
    assert varied(points) == ["consumers"]


def test_a_grid_that_is_too_large_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="201 points"):
        grid({"consumers": range(1, 202)})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"consumers": 0}, "--consumers 0 is out of bounds: 1 to 100,000"),
        ({"record_locks": 99}, "--record-locks 99 is out of bounds: 100 to 100,000"),
        ({"lock_duration_ms": 10}, "--lock-duration 10 is out of bounds: 1,000 to 43,200,000"),
        ({"warm_up_s": -1}, "--warm-up -1 is out of bounds"),
        ({"work_ms": float("nan")}, "--work-ms nan is out of bounds"),
        ({"failure_ratio": 1.5}, "--failure-ratio 1.5 is out of bounds: 0 to 1"),
        ({"slow_members": 51}, "--slow-members 51 of --consumers 50"),
        ({"work_distribution": "x"}, "--work-distribution x"),
        (
            {"ordering": "key", "dispatch": "record_limit"},
            "--ordering key with --dispatch record_limit",
        ),
    ],
)
def test_what_can_not_be_is_refused_by_its_option(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        Scenario(**given)
    assert message in caught.value.message


def test_repeats_are_merged_by_point() -> None:
    points = [Scenario(consumers=10, seed=5), Scenario(consumers=20, seed=5)]
    wanted = throws(points, 3)
    assert [(p.consumers, p.seed) for p in wanted] == [
        (10, 5),
        (10, 6),
        (10, 7),
        *((20, seed) for seed in (5, 6, 7)),
    ]
    outcomes = [replace(prediction(rate, rate), scenario=s) for rate, s in enumerate(wanted)]
    found = gathered(points, 3, outcomes)
    assert [(p.rate, p.starved, p.repeats, p.scenario.seed) for p in found] == [
        (1, 1, 3, 5),
        (4, 4, 3, 5),
    ]
    assert found[1].ranges["starved"] == (3, 5)


def test_chance_is_averaged_where_it_decides() -> None:
    points = [Scenario(dispatch=dispatch) for dispatch in Dispatch]
    wanted = [point.dispatch for point in throws(points, None)]
    assert [wanted.count(dispatch) for dispatch in Dispatch] == [2, 10, 10]


def test_processes_give_what_one_gives() -> None:
    points = [Scenario(dispatch=Dispatch.BATCH_OPTIMIZED, consumers=n, seconds=2) for n in (3, 9)]
    assert predict(points, 2, processes=2) == predict(points, 2, processes=1)


def test_figures_are_plain_values() -> None:
    found = simulate(Scenario(consumers=3, seconds=1)).to_json()
    assert found["settings"]["dispatch"] == "fair"
    assert {"rate", "busy", "jain", "starved", "dwell_p50_ms", "dwell_p99_ms"} <= set(found)
    assert Scenario(**found["settings"]) == Scenario(consumers=3, seconds=1)


@pytest.mark.parametrize(
    ("predictions", "best"),
    [
        ([prediction(100), prediction(200)], 1),
        # Nobody starves before speed.
        ([prediction(100), prediction(200, starved=3)], 0),
        # As fast with fewer consumers.
        ([prediction(199, consumers=80), prediction(198, consumers=40)], 1),
        # As fast and fairer.
        ([prediction(100, jain=0.7), prediction(99, jain=0.9)], 1),
        # All starve: the fewest do.
        ([prediction(100, starved=5), prediction(50, starved=2)], 1),
        ([prediction(100), prediction(100)], 0),
    ],
)
def test_the_recommended_point(predictions: list[Prediction], best: int) -> None:
    assert recommended(predictions) == best


def test_the_reason_names_the_settings_and_what_holds_the_others_back() -> None:
    kafka: dict[str, Any] = {"dispatch": Dispatch.BATCH_OPTIMIZED}
    text = reason(
        [
            prediction(9_000, max_poll_records=20, **kafka),
            prediction(760, starved=23, jain=0.44, max_poll_records=500, **kafka),
        ]
    )
    assert text.startswith("--max-poll-records 20: 9,000 records/s")
    assert "nobody starves" in text
    assert "23 of 50 starve" in text
    assert "4 members at a time hold the whole window of 2,000 records" in text


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (prediction(1_000, rate=1_000.0), "All 1,000 records/s that arrive are worked off"),
        (replace(prediction(100), expired=30), "30 locks ended by themselves after 30,000 ms"),
        (replace(prediction(100), busy=0.97), "more consumers would raise the rate"),
        (prediction(100, ordering="partition"), "Order by partition holds records back"),
        (prediction(100), "Members wait for records"),
    ],
)
def test_the_bottleneck_in_words(found: Prediction, words: str) -> None:
    assert words in reason([found])
