"""The results of trials of stores: medians with their spread, verdicts on the targets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sharecoord.bench.engine.stats import spreads
from sharecoord.bench.engine.targets import Verdict
from sharecoord.bench.machine import Machine
from sharecoord.bench.standard.plans import TrialPlan
from sharecoord.bench.text import Spread

Figures = Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a trial.

    Attributes:
        key: Key of the trial.
        repeat: 1 for the first one.
        figures: By name, the unit last.
        load_average: Of the last minute, when the run began.
    """

    key: str
    repeat: int
    figures: Mapping[str, float]
    load_average: float


@dataclass(frozen=True, slots=True)
class Result:
    """All results of a plan; fields that a plan has too are those of `TrialPlan`.

    Attributes:
        plan: Name of the plan.
        machine: The machine of the run.
        repeats: See `TrialPlan`.
        complete: Whether the plan was carried out to its end.
        trials: All runs in the order in which they were made.
        figures: By kind, by title of the trial, by name of the figure.
        verdicts: The targets that could be judged.
        core: Output of the script that times the pure decisions; None when it was not run.
        about: See `TrialPlan`.
    """

    plan: str
    machine: Machine
    repeats: int
    complete: bool
    trials: Sequence[Run]
    figures: Mapping[str, Mapping[str, Figures]]
    verdicts: Sequence[Verdict]
    core: str | None
    about: str


def make_result(
    plan: TrialPlan,
    machine: Machine,
    measured: Sequence[Run],
    *,
    complete: bool,
    core: str | None = None,
) -> Result:
    """Makes the result of the runs of a plan."""
    return Result(
        plan=plan.name,
        machine=machine,
        repeats=plan.repeats,
        complete=complete,
        trials=measured,
        figures=figures_of(plan, measured),
        verdicts=judge(plan, measured),
        core=core,
        about=plan.about,
    )


def figures_of(plan: TrialPlan, runs: Sequence[Run]) -> dict[str, dict[str, Figures]]:
    """The figures of all trials that were run: by kind, by title, by name."""
    found: dict[str, dict[str, Figures]] = {}
    for trial in plan.trials:
        own = [run.figures for run in runs if run.key == trial.key]
        if own:
            found.setdefault(str(trial.kind), {})[trial.title] = spreads(own)
    return found


def judge(plan: TrialPlan, runs: Sequence[Run]) -> list[Verdict]:
    """Compares the median of each target's figures with its bound, where there are figures."""
    verdicts = []
    for target in plan.targets:
        values = [
            run.figures[target.figure]
            for run in runs
            if run.key == target.key and target.figure in run.figures
        ]
        if values:
            measured = Spread.of(values)
            verdicts.append(
                Verdict.of(target.title, measured, target.bound_s, at_least=False, unit="s")
            )
    return verdicts
