"""The results of a plan: medians with their spread, ratios, verdicts on the targets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sharecoord.bench.engine.stats import ratios, spreads
from sharecoord.bench.machine import Machine
from sharecoord.bench.standard.plans import WARM_UP_REPEAT, Plan
from sharecoord.bench.text import Spread, spread_of

Figures = Mapping[str, Spread]


@dataclass(frozen=True, slots=True)
class Run:
    """A measurement of a contender, or a run of a trial.

    Attributes:
        key: Key of the contender or the trial.
        size_bytes: Length of each value; 0 for a trial.
        repeat: 1 for the first one; 0 was the warm-up and counts for nothing.
        figures: By name, the unit last.
        load_average: Of the last minute, when the run began.
    """

    key: str
    size_bytes: int
    repeat: int
    figures: Mapping[str, float]
    load_average: float


@dataclass(frozen=True, slots=True)
class Summary:
    """All repeats of one contender at one size.

    Attributes:
        contender: Key of the contender.
        title: Name in reports.
        size_bytes: Length of each value.
        figures: Median, least and greatest by name.
        ratio: Speed over the peer's of the same repeat; None without a peer.
        repeated: Records that were handed out more than once, in all repeats together.
    """

    contender: str
    title: str
    size_bytes: int
    figures: Figures
    ratio: Spread | None
    repeated: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured; the median is judged."""

    title: str
    at_least: bool
    bound: float
    measured: Spread
    passed: bool
    unit: str


@dataclass(frozen=True, slots=True)
class Result:
    """All results of a plan; fields that a plan has too are those of `Plan`.

    Attributes:
        plan: Name of the plan.
        machine: The machine of the run.
        records: Records in the topic by size of value in bytes.
        repeats: How often everything was measured.
        batch_bytes: Most bytes of one record batch in the topics.
        complete: Whether the plan was carried out to its end.
        runs: All runs of contenders in the order in which they were made, the warm-up among them.
        summaries: By size, in the plan's order.
        verdicts: The targets that could be judged.
        core: Output of the script that times the pure decisions; None when it was not run.
        trials: All runs of trials.
        figures: Of trials: by kind, by title of the trial, by name of the figure.
        about: See `Plan`.
        compared: See `Plan`.
    """

    plan: str
    machine: Machine
    records: Mapping[int, int]
    repeats: int
    batch_bytes: int
    complete: bool
    runs: Sequence[Run]
    summaries: Sequence[Summary]
    verdicts: Sequence[Verdict]
    core: str | None
    trials: Sequence[Run]
    figures: Mapping[str, Mapping[str, Figures]]
    about: str
    compared: str


def make_result(
    plan: Plan,
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
        records=plan.records,
        repeats=plan.settings.repeats,
        batch_bytes=plan.batch_bytes,
        complete=complete,
        runs=[run for run in measured if run.size_bytes],
        summaries=summarize(plan, measured),
        verdicts=judge(plan, measured),
        core=core,
        trials=[run for run in measured if not run.size_bytes],
        figures=figures_of(plan, measured),
        about=plan.about,
        compared=plan.compared,
    )


def summarize(plan: Plan, runs: Sequence[Run]) -> list[Summary]:
    """The lines of the table of speeds; contenders without a run are left out."""
    lines = []
    for contender, size_bytes in ((each, size) for size in plan.sizes for each in plan.contenders):
        own = _counted(runs, (contender.key,), size_bytes)
        if own:
            lines.append(
                Summary(
                    contender=contender.key,
                    title=contender.title,
                    size_bytes=size_bytes,
                    figures=spreads([run.figures for run in own]),
                    ratio=spread_of(_ratios(plan, runs, own, "records_per_s")),
                    repeated=round(sum(run.figures.get("repeated_records", 0) for run in own)),
                )
            )
    return lines


def figures_of(plan: Plan, runs: Sequence[Run]) -> dict[str, dict[str, Figures]]:
    """The figures of all trials that were run: by kind, by title, by name."""
    found: dict[str, dict[str, Figures]] = {}
    for trial in plan.trials:
        own = _counted(runs, (trial.key,))
        if own:
            found.setdefault(str(trial.kind), {})[trial.title] = spreads([r.figures for r in own])
    return found


def judge(plan: Plan, runs: Sequence[Run]) -> list[Verdict]:
    """Compares the median of each target's figures with its bound.

    Targets without a figure (a size that was not run) are left out.
    """
    verdicts = []
    for target in plan.targets:
        own = _counted(runs, target.keys, target.size_bytes)
        if target.against_peer:
            values = _ratios(plan, runs, own, target.figure)
        else:
            values = [run.figures[target.figure] for run in own if target.figure in run.figures]
        measured = spread_of(values)
        if measured is not None:
            median, bound = measured.median, target.bound
            passed = median >= bound if target.at_least else median <= bound
            verdicts.append(
                Verdict(target.title, target.at_least, bound, measured, passed, target.unit)
            )
    return verdicts


def _counted(runs: Iterable[Run], keys: Sequence[str], size_bytes: int | None = None) -> list[Run]:
    return [
        run
        for run in runs
        if run.repeat != WARM_UP_REPEAT and run.key in keys and size_bytes in (None, run.size_bytes)
    ]


def _ratios(plan: Plan, runs: Sequence[Run], own: Sequence[Run], figure: str) -> list[float]:
    """A contender's figure over its peer's; empty without a run or a peer."""
    peers = {each.key: each.peer for each in plan.contenders}
    if not own or (peer := peers[own[0].key]) is None:
        return []
    own_figures, peers_figures = (
        {run.repeat: run.figures[figure] for run in each}
        for each in (own, _counted(runs, (peer,), own[0].size_bytes))
    )
    return ratios(own_figures, peers_figures)
