"""The course of `sharecoord bench run` and `compare`."""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

from sharecoord.bench.cluster import begin, open_cluster
from sharecoord.bench.engine.cell import Cell, Consumer, Mode, Product, label, varied
from sharecoord.bench.engine.figures import (
    Interval,
    Trial,
    interval_latencies_ns,
)
from sharecoord.bench.engine.settings import (
    Settings,
    expected_run_s,
    expected_trial_s,
    flatten,
    read_plan,
    read_settings,
    rehearsals,
)
from sharecoord.bench.engine.trial import Outcome, Trials
from sharecoord.bench.machine import Machine
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.progress import PlainProgress, open_progress
from sharecoord.bench.run.compare import comparison
from sharecoord.bench.run.events import EventFolder
from sharecoord.bench.run.folder import (
    PAGE_NAME,
    REPORT_NAME,
    SAMPLES_NAME,
    RunResult,
    SampleFile,
    load_pyarrow,
    read_summary,
    write_summary,
)
from sharecoord.bench.run.page import headline, page
from sharecoord.bench.run.report import lines, markdown
from sharecoord.bench.run.shapes import MARKS, readme_text
from sharecoord.bench.text import output_directory
from sharecoord.devenv.stores import Stores, has_programs
from sharecoord.errors import InvalidConfigError

_MOST_LATENCIES: Final = 20_000
"""Kept per cell for the plot; all are in the Parquet file."""
_COMPARED: Final = {Consumer.KAFKA_SHARE, Consumer.SHARECOORD}
_KAFKA_MEMBERS: Final = 200
"""Kafka's default limit of members of a share group."""


class Step(NamedTuple):
    """A trial that is to be made."""

    number: int
    cell: Cell
    repeat: int


def steps(settings: Settings, cells: Sequence[Cell]) -> list[Step]:
    """Rehearsals, then all cells once per repeat, every second round backwards against drift."""
    numbers = {cell: number for number, cell in enumerate(cells)}
    found = [Step(numbers[cell], cell, 0) for cell in rehearsals(settings, cells)]
    for repeat in range(1, settings.repeats + 1):
        order = list(cells) if repeat % 2 else list(reversed(cells))
        found += [Step(numbers[cell], cell, repeat) for cell in order]
    return found


def run(
    given: Mapping[str, Any],
    *,
    plan: str | None = None,
    output: Path | None = None,
    update: Path | None = None,
    strict: bool = False,
) -> int:
    """Measures every cell and writes the result folder; returns the exit code.

    Args:
        given: Settings and dimensions as of `read_settings`; they win over the plan's.
        plan: A plan that ships or a YAML file.
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new.
        update: A page with the marks of `shapes.MARKS`, between which the table of shapes is put.
        strict: Whether a missed target makes the exit code 1.

    Raises:
        SharecoordError: It could not be measured; what was measured before is written all the
            same.
    """
    check_procfs()
    settings = read_settings({**(flatten(read_plan(plan)) if plan else {}), **flatten(given)})
    check_update(settings, update)
    directory = output_directory(output)
    result = measure(settings, directory)
    print(lines(result))
    if update is not None:
        MARKS.update(update, readme_text(result))
    print(f"written to {directory / PAGE_NAME}", file=sys.stderr)
    missed = not all(each.verdict.passed for each in result.verdicts)
    return 1 if strict and missed else 0


def check_update(settings: Settings, update: Path | None) -> None:
    """InvalidConfigError when a page can not take the table of shapes, or there will be none."""
    if update is None:
        return
    consumers = {cell.consumer for cell in settings.product().cells}
    if settings.mode is not Mode.THROUGHPUT or not consumers >= _COMPARED:
        raise InvalidConfigError(
            "update: a page is for the table of shapes, which needs mode throughput and the "
            f"consumers {', '.join(sorted(_COMPARED))}; drop --update, or use --plan shapes"
        )
    MARKS.check(update)


def measure(settings: Settings, directory: Path, *, machine: Machine | None = None) -> RunResult:
    """Measures every cell and fills an empty folder; may raise SharecoordError as of `run`.

    `machine` was looked at before earlier work of this process; None: it is looked at now.
    """
    load_pyarrow()
    product = _on_this_machine(settings.product())
    course = _Course(settings, product, directory)
    todo = steps(settings, product.cells)
    with ExitStack() as stack:
        scratch, now = begin(stack, settings.kafka)
        course.machine = machine or now
        progress = stack.enter_context(open_progress(len(todo), expected_run_s(settings)))
        for reason in product.left_out:
            progress.say(f"left out: {reason}")
        progress.say(f"{len(product.cells)} cells, {len(todo)} trials")
        try:
            course.carry_out(stack, scratch, todo, progress)
        except BaseException:
            if course.trials:
                course.write(complete=False)
                progress.say(f"not finished; what was measured is in {directory}")
            raise
    return course.write(complete=True)


def _on_this_machine(product: Product) -> Product:
    """Leaves out the stores whose programs are not installed; InvalidConfigError if all are."""
    missing = {cell.store for cell in product.cells if not has_programs(cell.store)}
    left_out = [f"the programs of {store} are not installed" for store in sorted(missing)]
    cells = tuple(cell for cell in product.cells if cell.store not in missing)
    if not cells:
        raise InvalidConfigError(f"store: {'; '.join(left_out)}; install them, or name another")
    return Product(cells, (*product.left_out, *left_out))


def compare(first: Path, second: Path) -> int:
    """Prints two results beside each other; InvalidConfigError when they can not be compared."""
    print(comparison(read_summary(first), read_summary(second)))
    return 0


class _Course:
    """A run in progress and its trials so far."""

    machine: Machine

    def __init__(self, settings: Settings, product: Product, directory: Path) -> None:
        self.trials: list[Trial] = []
        self._settings = settings
        self._product = product
        self._directory = directory
        self._latencies_ms: dict[int, list[float]] = {}

    def carry_out(
        self, stack: ExitStack, scratch: Path, todo: Sequence[Step], progress: PlainProgress
    ) -> None:
        """Makes all trials."""
        settings, cells = self._settings, self._product.cells
        cluster = open_cluster(
            stack, settings.kafka, say=progress.say, settings=_broker_settings(cells)
        )
        trials = Trials(
            settings, cluster, scratch, stores=Stores(stack, scratch), tick=progress.tick
        )
        trials.fill(stack, cells, progress.say)
        names = varied(cells)
        samples = stack.enter_context(SampleFile(self._directory / SAMPLES_NAME))
        events = EventFolder(self._directory, settings.duration_s)
        for step in todo:
            what = label(step.cell, names)
            progress.begin(
                what if step.repeat else f"rehearsal of {what}",
                expected_trial_s(settings, step.cell),
            )
            outcome = trials.run(step.number, step.cell, step.repeat)
            samples.add(outcome)
            if step.repeat:
                events.add(outcome, step.cell, f"{what} repeat {step.repeat}")
            self._keep(outcome)
            progress.end(headline(outcome.trial))

    def _keep(self, outcome: Outcome) -> None:
        trial = outcome.trial
        self.trials.append(trial)
        if trial.repeat == 0 or "p99_ms" not in trial.figures:
            return
        window = Interval(
            outcome.window.begin_ns, outcome.window.begin_ns + int(self._settings.duration_s * 1e9)
        )
        values = [each / 1e6 for each in interval_latencies_ns(outcome.samples, window)]
        if len(values) > _MOST_LATENCIES:
            values = random.Random(trial.repeat).sample(values, _MOST_LATENCIES)
        self._latencies_ms.setdefault(trial.cell, []).extend(values)

    def write(self, *, complete: bool) -> RunResult:
        """Writes all files but the samples, which are written as they come."""
        result = RunResult(
            settings=self._settings,
            machine=self.machine,
            cells=self._product.cells,
            left_out=self._product.left_out,
            trials=self.trials,
            complete=complete,
            latencies_ms={
                cell: sorted(values) for cell, values in self._latencies_ms.items() if values
            },
        )
        write_summary(result, self._directory)
        (self._directory / PAGE_NAME).write_text(page(result), encoding="utf-8")
        (self._directory / REPORT_NAME).write_text(markdown(result), encoding="utf-8")
        return result


def _broker_settings(cells: Sequence[Cell]) -> dict[str, str]:
    """Limits of the broker, where cells go beyond its default ones; all else stays as it is."""
    peers = [cell for cell in cells if cell.consumer is Consumer.KAFKA_SHARE]
    settings = {}
    if any(cell.record_locks for cell in peers):
        settings["group.share.max.partition.max.record.locks"] = "10000"
    if any(cell.consumers > _KAFKA_MEMBERS for cell in peers):
        settings["group.share.max.size"] = "1000"
    return settings
