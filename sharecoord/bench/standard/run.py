"""The course of `sharecoord bench --plan`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from sharecoord.bench.cluster import Cluster, begin, open_cluster, say
from sharecoord.bench.engine.cell import TopicKey
from sharecoord.bench.engine.figures import Trial
from sharecoord.bench.engine.trial import SETTLE_S, Outcome, Trials
from sharecoord.bench.errors import BenchError
from sharecoord.bench.machine import ROOT, Machine
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.standard.plans import (
    ALL,
    PLANS,
    WARM_UP_REPEAT,
    Options,
    Plan,
    Step,
    StoreTrial,
    TrialKind,
    make_plan,
)
from sharecoord.bench.standard.report import markdown, write_report
from sharecoord.bench.standard.results import Result, Run, make_result
from sharecoord.bench.standard.trials import (
    RECOVERY_VALUE_BYTES,
    RESTART_VALUE_BYTES,
    measure_commits,
    measure_recovery,
    measure_restart,
)
from sharecoord.bench.text import output_directory
from sharecoord.devenv.stores import Stores

CORE_SCRIPT: Final = Path("tests", "perf", "core_speed.py")
CORE_TIMEOUT_S: Final = 300.0
_LEAST_SHARE: Final = 0.5
"""Least part of a topic's records in a window; eight tenths lie in it when all arrive."""


def run(
    *,
    plan: str = "throughput",
    kafka: str | None = None,
    output: Path | None = None,
    strict: bool = False,
    **options: Any,
) -> int:
    """Measures, prints the report, writes `report.md` and `result.json`; returns the exit code.

    Args:
        plan: One of `PLANS`, or `ALL` of them one after the other.
        kafka: Address of a cluster with share groups (Kafka 4.2 or newer), whose CPU time is then
            unknown; None starts a broker (Java 17 and Maven).
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new. Of
            several plans each has a folder of its name in it.
        strict: Whether a missed target makes the exit code 1.
        options: Fields of `Options`.

    Raises:
        SharecoordError: A measurement failed; says what helps. What was measured before is
            written all the same.
    """
    check_procfs()
    given = Options(**options)
    plans = {name: make_plan(name, given) for name in (PLANS if plan == ALL else (plan,))}
    directory = output_directory(output)
    missed = False
    with ExitStack() as stack:
        scratch, machine = begin(stack, kafka)
        say(f"load average {machine.load_average[0]:.2f} on {machine.cores} cores")
        cluster = open_cluster(stack, kafka, say=say)
        stores = Stores(stack, scratch)
        for name, each in plans.items():
            folder = directory / name if plan == ALL else directory
            result = _carry_out(each, machine, Course(each, cluster, scratch, stores), folder)
            print(markdown(result))
            say(f"written to {folder}")
            missed |= not all(verdict.passed for verdict in result.verdicts)
    return 1 if strict and missed else 0


def _carry_out(plan: Plan, machine: Machine, course: Course, directory: Path) -> Result:
    """Makes all runs of a plan and writes its result; after a failure, the runs before it."""
    runs: list[Run] = []
    try:
        runs.extend(course.runs())
    except BaseException:
        if runs:
            write_report(make_result(plan, machine, runs, complete=False), directory)
            say(f"not finished; what was measured is in {directory}")
        raise
    core = core_figures(ROOT) if plan.with_core else None
    result = make_result(plan, machine, runs, complete=True, core=core)
    write_report(result, directory)
    return result


class Course:
    """Makes the runs of a plan."""

    def __init__(self, plan: Plan, cluster: Cluster, scratch: Path, stores: Stores) -> None:
        self._plan = plan
        self._trials = Trials(plan.settings, cluster, scratch, stores=stores, settle_s=SETTLE_S)
        self._cluster = cluster
        self._scratch = scratch
        self._stores = stores

    def runs(self) -> Iterator[Run]:
        """Makes all runs, gives each as soon as it is done; deletes its topics at the end."""
        with ExitStack() as stack:
            cells = [cell for size in self._plan.sizes for _, cell in self._plan.cells(size)]
            self._trials.fill(stack, cells, say)
            for step in self._plan.steps():
                outcome = self._trials.run(0, step.cell, step.repeat, records=step.records)
                _check_arrived(step, outcome, self._plan.settings.duration_s)
                trial = outcome.trial
                say(_progress(step, trial))
                yield Run(
                    step.contender.key,
                    step.cell.payload_bytes,
                    step.repeat,
                    trial.figures,
                    trial.load_average,
                )
            for store_trial, repeat in self._plan.trial_steps():
                yield self._store_run(stack, store_trial, repeat)

    def _store_run(self, stack: ExitStack, trial: StoreTrial, repeat: int) -> Run:
        """Makes a trial with a fresh store, and a fresh coordinator where it needs one."""
        load_average = os.getloadavg()[0]
        with (
            self._stores.fresh(trial.store) as url,
            tempfile.TemporaryDirectory(dir=self._scratch) as directory,
        ):
            figures = self._measure(stack, trial, url, Path(directory))
        said = ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
        say(f"{trial.kind}, run {repeat}, {trial.title}: {said}")
        return Run(trial.key, 0, repeat, figures, load_average)

    def _measure(
        self, stack: ExitStack, trial: StoreTrial, url: str, directory: Path
    ) -> dict[str, float]:
        if trial.kind is TrialKind.COMMITS:
            return measure_commits(
                url, partitions=trial.partitions, ranges=trial.ranges, seconds=trial.seconds
            )
        address = self._cluster.bootstrap_servers
        if trial.kind is TrialKind.RECOVERY:
            key = TopicKey(trial.partitions, RECOVERY_VALUE_BYTES)
            topic = self._trials.topic(stack, key, trial.partitions * (trial.ranges + 1), say)
            return measure_recovery(
                url, trial, bootstrap_servers=address, topic=topic, directory=directory
            )
        topic = self._trials.topic(stack, TopicKey(1, RESTART_VALUE_BYTES), trial.records, say)
        return measure_restart(
            url,
            bootstrap_servers=address,
            topic=topic,
            records=trial.records,
            directory=directory,
        )


def _check_arrived(step: Step, outcome: Outcome, deadline_s: float) -> None:
    """Raises BenchError when the window ended because time was over, not with the last tenth.

    A window that ended early may hold few records: a fast consumer is far when it is noticed.
    """
    (arrived,) = outcome.trial.per_consumer
    if outcome.window.seconds >= deadline_s and arrived < step.records * _LEAST_SHARE:
        raise BenchError(
            f"{step.contender.title} was given {arrived:,} of {step.records:,} records within "
            f"{deadline_s:.0f} s"
        )


def _progress(step: Step, trial: Trial) -> str:
    repeat = "warm-up" if step.repeat == WARM_UP_REPEAT else f"run {step.repeat}"
    return (
        f"{step.cell.payload_bytes:>6} B  {repeat:<8} {step.contender.title:<36}"
        f"{trial.figures['records_per_s']:>11,.0f} records/s  (load {trial.load_average:.1f})"
    )


def core_figures(root: Path) -> str | None:
    """The output of the script that times the pure decisions; None when it is not installed."""
    if not (root / CORE_SCRIPT).is_file():
        return None
    say(f"running {CORE_SCRIPT}")
    try:
        answer = subprocess.run(
            [sys.executable, str(CORE_SCRIPT)],
            cwd=root,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=CORE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"{CORE_SCRIPT} did not end within {CORE_TIMEOUT_S:.0f} s"
    if answer.returncode != 0:
        last = answer.stderr.strip().splitlines()[-1:]
        return f"{CORE_SCRIPT} failed with exit code {answer.returncode}: {' '.join(last)}"
    return answer.stdout
