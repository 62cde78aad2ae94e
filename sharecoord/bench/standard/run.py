"""The course of `sharecoord bench --plan`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sharecoord.bench.cluster import Cluster, begin, open_cluster, say
from sharecoord.bench.engine.cell import TopicKey
from sharecoord.bench.engine.settings import Settings
from sharecoord.bench.engine.trial import Trials
from sharecoord.bench.machine import ROOT, Machine
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.run import report as run_report
from sharecoord.bench.run.course import check_update, measure
from sharecoord.bench.run.shapes import MARKS, readme_text
from sharecoord.bench.standard.plans import (
    ALL,
    PLANS,
    Options,
    StoreTrial,
    TrialKind,
    TrialPlan,
    make_plan,
)
from sharecoord.bench.standard.report import (
    MARKDOWN_NAME,
    Part,
    markdown,
    overview,
    sections,
    write_report,
)
from sharecoord.bench.standard.results import Run, make_result
from sharecoord.bench.standard.trials import (
    RECOVERY_VALUE_BYTES,
    RESTART_VALUE_BYTES,
    measure_commits,
    measure_recovery,
    measure_restart,
)
from sharecoord.bench.text import output_directory
from sharecoord.devenv.stores import Stores
from sharecoord.errors import InvalidConfigError

CORE_SCRIPT: Final = Path("tests", "perf", "core_speed.py")
CORE_TIMEOUT_S: Final = 300.0
SHAPES: Final = "shapes"
"""The plan of the README, and the one that is measured when none is named."""


def run(
    *,
    plan: str = SHAPES,
    kafka: str | None = None,
    output: Path | None = None,
    update: Path | None = None,
    strict: bool = False,
    **options: Any,
) -> int:
    """Measures, prints the report, writes the result; returns the exit code.

    Args:
        plan: One of `PLANS`, or `ALL` of them one after the other.
        kafka: Address of a cluster with share groups (Kafka 4.2 or newer), whose CPU time is then
            unknown; None starts a broker (Java 17 and Maven).
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new. Of
            several plans each has a folder of its name in it, and `report.md` has all targets.
        update: A page with the marks of `run/shapes.py`, between which the table of shapes is put.
        strict: Whether a missed target makes the exit code 1.
        options: Fields of `Options`.

    Raises:
        SharecoordError: A measurement failed; says what helps. What was measured before is
            written all the same, but not to the page.
    """
    check_procfs()
    given = Options(**options)
    plans = {name: make_plan(name, given, kafka) for name in (PLANS if plan == ALL else (plan,))}
    if update is not None:
        _check_page(plans.get(SHAPES), given, update)
    directory = output_directory(output)
    parts: dict[str, Part] = {}
    with ExitStack() as stack:
        scratch, machine = begin(stack, kafka)
        say(f"load average {machine.load_average[0]:.2f} on {machine.cores} cores")
        place = Place(stack, scratch, kafka)
        try:
            for name, each in plans.items():
                folder = directory / name if plan == ALL else directory
                folder.mkdir(exist_ok=True)
                page = update if name == SHAPES else None
                parts[name] = _carry_out(each, machine, place, folder, page)
                say(f"written to {folder}")
        finally:
            if plan == ALL and parts:
                report = overview(parts, machine)
                (directory / MARKDOWN_NAME).write_text(f"{report}\n", encoding="utf-8")
                print(report)
    missed = not all(verdict.passed for part in parts.values() for verdict in part.verdicts)
    return 1 if strict and missed else 0


def _check_page(shapes: Settings | TrialPlan | None, given: Options, update: Path) -> None:
    if not isinstance(shapes, Settings) or given != Options(repeats=given.repeats):
        raise InvalidConfigError(
            f"update: a page is for all shapes; drop --update, or use --plan {SHAPES} or {ALL} "
            "without --quick, --size, --batch-bytes and --records"
        )
    check_update(shapes, update)


def _carry_out(
    plan: Settings | TrialPlan, machine: Machine, place: Place, directory: Path, page: Path | None
) -> Part:
    """Makes all runs of a plan and writes its result; after a failure, the runs before it."""
    if isinstance(plan, Settings):
        measured = measure(plan, directory, machine=machine)
        print(run_report.lines(measured))
        if page is not None:
            MARKS.update(page, readme_text(measured))
        verdicts = [each.verdict for each in measured.verdicts]
        return Part(verdicts, run_report.sections(measured))
    runs: list[Run] = []
    try:
        runs.extend(Course(plan, place).runs())
    except BaseException:
        if runs:
            write_report(make_result(plan, machine, runs, complete=False), directory)
            say(f"not finished; what was measured is in {directory}")
        raise
    core = core_figures(ROOT) if plan.with_core else None
    result = make_result(plan, machine, runs, complete=True, core=core)
    write_report(result, directory)
    print(markdown(result))
    return Part(result.verdicts, sections(result))


class Place:
    """The directory, the stores and the Kafka of trials; it is started for the first that needs it.

    All of them end with the stack.
    """

    def __init__(self, stack: ExitStack, scratch: Path, kafka: str | None) -> None:
        self.stores = Stores(stack, scratch)
        self.scratch = scratch
        self._stack = stack
        self._kafka = kafka

    @cached_property
    def cluster(self) -> Cluster:
        """The named cluster, or a broker."""
        return open_cluster(self._stack, self._kafka, say=say)


class Course:
    """Makes the runs of a plan of trials."""

    def __init__(self, plan: TrialPlan, place: Place) -> None:
        self._plan = plan
        self._place = place

    def runs(self) -> Iterator[Run]:
        """Makes all runs, gives each as soon as it is done; deletes its topics at the end."""
        with ExitStack() as stack:
            for trial, repeat in self._plan.steps():
                yield self._run(stack, trial, repeat)

    def _run(self, stack: ExitStack, trial: StoreTrial, repeat: int) -> Run:
        """Makes a trial with a fresh store, and a fresh coordinator where it needs one."""
        load_average = os.getloadavg()[0]
        with (
            self._place.stores.fresh(trial.store) as url,
            tempfile.TemporaryDirectory(dir=self._place.scratch) as directory,
        ):
            figures = self._measure(stack, trial, url, Path(directory))
        said = ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
        say(f"{trial.kind}, run {repeat}, {trial.title}: {said}")
        return Run(trial.key, repeat, figures, load_average)

    def _measure(
        self, stack: ExitStack, trial: StoreTrial, url: str, directory: Path
    ) -> dict[str, float]:
        if trial.kind is TrialKind.COMMITS:
            return measure_commits(
                url, partitions=trial.partitions, ranges=trial.ranges, seconds=trial.seconds
            )
        address = self._place.cluster.bootstrap_servers
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

    @cached_property
    def _trials(self) -> Trials:
        """Makes topics."""
        place = self._place
        return Trials(Settings(), place.cluster, place.scratch, stores=place.stores)


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
