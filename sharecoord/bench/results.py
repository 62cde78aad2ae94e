"""What was measured: runs, medians with their spread, and what became of the targets."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sharecoord.bench.drivers.meter import Measured
from sharecoord.bench.machine import Machine
from sharecoord.bench.plans.plan import WARM_UP_REPEAT, Metric, Plan, Server, Target, TrialKind


@dataclass(frozen=True, slots=True)
class Run:
    """One run of one driver.

    Attributes:
        contender: Key of the contender.
        size_bytes: Length of each value.
        repeat: 1 for the first one; 0 was the warm-up and counts for nothing.
        measured: The driver's figures.
        load_average: Of the last minute, when the run began.
        idle_rss_mb: Memory of the coordinator in MB before its first client; None without one.
        rss_after_mb: The same a moment after the run.
    """

    contender: str
    size_bytes: int
    repeat: int
    measured: Measured
    load_average: float
    idle_rss_mb: float | None = None
    rss_after_mb: float | None = None

    @property
    def records_per_s(self) -> float:
        """Speed while the clock ran."""
        return self.measured.records / self.measured.seconds

    def cpu_s_per_million(self) -> dict[str, float]:
        """CPU seconds per million records by process."""
        millions = self.measured.records / 1e6
        return {name: used / millions for name, used in self.measured.cpu_s.items()}


@dataclass(frozen=True, slots=True)
class TrialRun:
    """One run of a trial.

    Attributes:
        trial: Key of the trial.
        repeat: 1 for the first one.
        figures: By name, the unit last.
        load_average: Of the last minute, when the run began.
    """

    trial: str
    repeat: int
    figures: Mapping[str, float]
    load_average: float


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest of some figures."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        """The spread of the values; None when there are none."""
        listed = list(values)
        if not listed:
            return None
        return cls(statistics.median(listed), min(listed), max(listed))

    @property
    def values(self) -> tuple[float, float, float]:
        """Median, least and greatest."""
        return self.median, self.low, self.high


@dataclass(frozen=True, slots=True)
class Summary:
    """One line of the report: all repeats of one contender at one size.

    Attributes:
        contender: Key of the contender.
        title: What people read.
        size_bytes: Length of each value.
        records_per_s: Speed.
        ratio: Speed over the peer's of the same repeat; None without a peer.
        cpu_s_per_million: CPU seconds per million records by process.
        cpu_total_s_per_million: Of all processes together.
        first_record_s: From before the consumer was made to its first record.
        repeated: Records that were handed out more than once, in all repeats together.
    """

    contender: str
    title: str
    size_bytes: int
    records_per_s: Spread
    ratio: Spread | None
    cpu_s_per_million: Mapping[str, Spread]
    cpu_total_s_per_million: Spread
    first_record_s: Spread
    repeated: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target and what was measured.

    Attributes:
        title: What was promised.
        at_least: Whether `bound` is the least good value; else it is the most.
        bound: The promise.
        measured: The figures whose median is judged.
        passed: Whether the promise was kept.
        unit: Of bound and figures.
    """

    title: str
    at_least: bool
    bound: float
    measured: Spread
    passed: bool
    unit: str


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that one benchmark found out.

    Attributes:
        plan: Name of the plan.
        machine: Where.
        records: Records in the topic by size of value in bytes.
        repeats: How often everything was measured.
        batch_bytes: Most bytes of one record batch in the topics.
        complete: Whether the plan was carried out to its end.
        runs: All runs in the order in which they were made, the warm-up among them.
        summaries: By size, in the plan's order.
        verdicts: The targets that could be judged.
        core: Output of the script that times the pure decisions; None when it is not there.
        trials: All runs of trials, in the order in which they were made.
        figures: Of trials: by kind, by title of the trial, by name of the figure.
        about: What the reader has to know of the plan.
        compared: Whom the ratios of speed are to.
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
    trials: Sequence[TrialRun] = ()
    figures: Mapping[TrialKind, Mapping[str, Mapping[str, Spread]]] = field(default_factory=dict)
    about: str = ""
    compared: str = ""


def summarize(plan: Plan, runs: Sequence[Run]) -> list[Summary]:
    """The lines of the report; contenders without a run are left out."""
    lines = []
    for size_bytes in plan.records:
        for contender in plan.contenders:
            own = _counted(runs, contender.key, size_bytes)
            if own:
                peers = _counted(runs, contender.peer, size_bytes) if contender.peer else []
                lines.append(_summary(contender.title, own, peers))
    return lines


def _counted(runs: Iterable[Run], contender: str | None, size_bytes: int) -> list[Run]:
    return [
        run
        for run in runs
        if run.repeat != WARM_UP_REPEAT
        and run.contender == contender
        and run.size_bytes == size_bytes
    ]


def _summary(title: str, own: Sequence[Run], peers: Sequence[Run]) -> Summary:
    costs = [run.cpu_s_per_million() for run in own]
    totals = [sum(cost.values()) for cost in costs]
    return Summary(
        contender=own[0].contender,
        title=title,
        size_bytes=own[0].size_bytes,
        records_per_s=_spread(run.records_per_s for run in own),
        ratio=Spread.of(_ratios(own, peers)),
        cpu_s_per_million={name: _spread(cost[name] for cost in costs) for name in costs[0]},
        cpu_total_s_per_million=_spread(totals),
        first_record_s=_spread(run.measured.first_record_s for run in own),
        repeated=sum(run.measured.repeated for run in own),
    )


def _spread(values: Iterable[float]) -> Spread:
    spread = Spread.of(values)
    assert spread is not None, "there is a run"
    return spread


def _ratios(
    own: Iterable[Run],
    peers: Iterable[Run],
    figure: Callable[[Run], float] = lambda run: run.records_per_s,
) -> list[float]:
    """A figure over the peer's in the same repeat: the two ran one after the other."""
    theirs = {run.repeat: figure(run) for run in peers}
    return [figure(run) / theirs[run.repeat] for run in own if theirs.get(run.repeat)]


def figures_of(
    plan: Plan, trials: Sequence[TrialRun]
) -> dict[TrialKind, dict[str, dict[str, Spread]]]:
    """The figures of all trials that were run: by kind, by title, by name."""
    found: dict[TrialKind, dict[str, dict[str, Spread]]] = {}
    for trial in plan.trials:
        own = [run.figures for run in trials if run.trial == trial.key]
        if own:
            by_name = {name: _spread(figures[name] for figures in own) for name in own[0]}
            found.setdefault(trial.kind, {})[trial.title] = by_name
    return found


def judge(plan: Plan, runs: Sequence[Run], trials: Sequence[TrialRun] = ()) -> list[Verdict]:
    """Compares the median of each target's figures with its bound.

    Targets without a figure (a size that was not run) are left out.
    """
    verdicts = []
    for target in plan.targets:
        if target.metric in _FIGURES:
            name = _FIGURES[target.metric]
            own = [run.figures[name] for run in trials if run.trial == target.contender]
            measured = Spread.of(own)
        else:
            measured = _MEASURES[target.metric](plan, runs, target)
        if measured is None:
            continue
        met = (
            measured.median >= target.bound if target.at_least else measured.median <= target.bound
        )
        verdicts.append(
            Verdict(
                target.title, target.at_least, target.bound, measured, met, _UNITS[target.metric]
            )
        )
    return verdicts


def _ratio(plan: Plan, runs: Sequence[Run], target: Target) -> Spread | None:
    for line in summarize(plan, runs):
        if (line.contender, line.size_bytes) == (target.contender, target.size_bytes):
            return line.ratio
    return None


def _cpu_ratio(plan: Plan, runs: Sequence[Run], target: Target) -> Spread | None:
    peer = next(each.peer for each in plan.contenders if each.key == target.contender)
    assert target.size_bytes is not None, "the ratio of one size"
    own, peers = (_counted(runs, key, target.size_bytes) for key in (target.contender, peer))
    return Spread.of(_ratios(own, peers, lambda run: sum(run.cpu_s_per_million().values())))


def _first_record(plan: Plan, runs: Sequence[Run], target: Target) -> Spread | None:
    chosen = _of_target(plan, runs, target)
    return Spread.of(run.measured.first_record_s for run in chosen)


def _idle_rss(plan: Plan, runs: Sequence[Run], target: Target) -> Spread | None:
    chosen = _of_target(plan, runs, target)
    return Spread.of(run.idle_rss_mb for run in chosen if run.idle_rss_mb is not None)


def _of_target(plan: Plan, runs: Sequence[Run], target: Target) -> list[Run]:
    keys = {
        contender.key
        for contender in plan.contenders
        if target.contender in (None, contender.key) and contender.server is Server.COORDINATOR
    }
    return [
        run
        for run in runs
        if run.repeat != WARM_UP_REPEAT
        and run.contender in keys
        and target.size_bytes in (None, run.size_bytes)
    ]


_MEASURES: Mapping[Metric, Callable[[Plan, Sequence[Run], Target], Spread | None]] = {
    Metric.RATIO: _ratio,
    Metric.CPU_RATIO: _cpu_ratio,
    Metric.FIRST_RECORD_S: _first_record,
    Metric.IDLE_RSS_MB: _idle_rss,
}
_FIGURES: Mapping[Metric, str] = {
    Metric.ALL_SERVED_S: "all_served_s",
    Metric.FIRST_DELIVERY_S: "first_delivery_s",
}
_UNITS: Mapping[Metric, str] = {
    Metric.RATIO: "x",
    Metric.CPU_RATIO: "x",
    Metric.FIRST_RECORD_S: "s",
    Metric.IDLE_RSS_MB: "MB",
    Metric.ALL_SERVED_S: "s",
    Metric.FIRST_DELIVERY_S: "s",
}
