"""The plans about stores: what is compared with what, and the figures of their trials."""

from __future__ import annotations

import itertools

import pytest

from sharecoord.bench.standard.plans import (
    TRIALS,
    Options,
    TrialKind,
    parts_plan,
    recovery_plan,
    restart_plan,
)
from sharecoord.bench.standard.results import Run, figures_of, judge
from sharecoord.bench.standard.trials import POLL_S, Pace, rate_of, recovery_figures
from sharecoord.bench.text import Spread
from sharecoord.devenv.stores import StoreKind


def test_postgresql_is_judged_against_sqlite_at_each_size() -> None:
    settings = Options(sizes=(100, 1000)).settings("stores")
    cells = settings.product().cells
    assert {cell.store for cell in cells} == set(StoreKind)
    (target,) = settings.targets
    judged = [(cell.store, cell.payload_bytes) for cell in cells if target.means(cell)]
    assert judged == [(StoreKind.POSTGRESQL, size) for size in (100, 1000)]
    assert (target.bound, target.at_least) == (0.7, True)


def test_stores_alone_commit_few_and_many_ranges_in_turn() -> None:
    plan = parts_plan(Options(repeats=2))
    stores = list(dict.fromkeys(trial.store for trial in plan.trials))
    assert {StoreKind.SQLITE, StoreKind.POSTGRESQL} <= set(stores)
    steps = [(trial.ranges, trial.store, repeat) for trial, repeat in plan.steps()]
    both = [(ranges, store) for ranges in (2, 2000) for store in stores]
    assert steps == [
        *((*each, 1) for each in both),
        *((*each, 2) for each in reversed(both)),
    ]


def test_as_much_is_recovered_as_was_promised() -> None:
    plan = recovery_plan(Options())
    sizes = {(t.kind, t.partitions, t.ranges) for t in plan.trials}
    assert sizes == {(TrialKind.RECOVERY, 1000, 2000)}
    assert plan.repeats == 3
    assert [(t.figure, t.bound_s) for t in plan.targets] == [("all_served_s", 10.0)] * 2
    quick = recovery_plan(Options(quick=True))
    assert quick.repeats == 1
    assert max(t.partitions * t.ranges for t in quick.trials) == 2000


def test_what_is_judged_was_tried() -> None:
    for make in TRIALS.values():
        plan = make(Options(quick=True))
        known = {trial.key for trial in plan.trials}
        assert {target.key for target in plan.targets} <= known
        assert len(known) == len(plan.trials)


@pytest.mark.parametrize(("seconds", "passed"), [([0.2, 1.0, 9.0], True), ([0.2, 1.1, 1.1], False)])
def test_the_median_of_a_trial_is_judged(seconds: list[float], *, passed: bool) -> None:
    plan = restart_plan(Options())
    key = plan.trials[0].key
    runs = [Run(key, at, {"first_delivery_s": s}, 0.0) for at, s in enumerate(seconds, 1)]
    (verdict,) = judge(plan, runs)
    assert (verdict.passed, verdict.unit, verdict.at_least) == (passed, "s", False)
    spread = Spread.of(seconds)
    assert verdict.measured == spread
    assert figures_of(plan, runs) == {
        TrialKind.RESTART: {plan.trials[0].title: {"first_delivery_s": spread}}
    }


def test_recovery_is_measured_to_the_first_to_half_and_to_the_last() -> None:
    found = recovery_figures(10.0, [13.0, 11.0, 19.0])
    assert found == {"first_delivery_s": 1.0, "half_served_s": 3.0, "all_served_s": 9.0}


def test_a_rate_counts_whole_calls() -> None:
    clock = itertools.count()
    assert rate_of(lambda: None, 4.0, lambda: float(next(clock))) == 1.0


def test_a_pace_waits_for_what_is_due_and_does_not_catch_up() -> None:
    pace = Pace(100.0, 0.0)
    assert pace.wait_s(10, 0.0) == pytest.approx(0.1)
    assert pace.wait_s(0, 0.06) == pytest.approx(0.04)
    # A second without records is no debt of a hundred.
    assert pace.wait_s(10, 1.1) == pytest.approx(0.1 - POLL_S)
