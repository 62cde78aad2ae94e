"""`sharecoord bench`: measures this project and its peers in one run on one broker."""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sharecoord.bench.machine import ROOT, Machine, describe_machine
from sharecoord.bench.plans.plan import Plan
from sharecoord.bench.plans.stores import recovery_plan, restart_plan, stores_plan
from sharecoord.bench.plans.throughput import DEFAULT_BATCH_BYTES, DEFAULT_SIZES, throughput_plan
from sharecoord.bench.procfs import check_procfs
from sharecoord.bench.report import markdown, write_report
from sharecoord.bench.results import Result, Run, TrialRun, figures_of, judge, summarize
from sharecoord.bench.runner import Runner, open_cluster
from sharecoord.bench.trials.run import TrialRunner
from sharecoord.devenv.maven import DEFAULT_VERSION
from sharecoord.devenv.stores import Stores
from sharecoord.errors import InvalidConfigError, SharecoordError

RESULTS = Path("bench-results")
CORE_SCRIPT = Path("tests", "perf", "core_speed.py")
CORE_TIMEOUT_S = 300.0


PLANS = ("throughput", "stores", "recovery", "restart")
ALL = "all"


def run(
    *,
    plan: str = "throughput",
    sizes: Sequence[int] = DEFAULT_SIZES,
    records: int | None = None,
    repeats: int | None = None,
    output: Path | None = None,
    kafka: str | None = None,
    batch_bytes: int = DEFAULT_BATCH_BYTES,
    quick: bool = False,
    strict: bool = False,
) -> int:
    """Measures, prints the report, writes `report.md` and `result.json`.

    Args:
        plan: One of `PLANS`, or `ALL` of them one after the other.
        sizes: Lengths of values in bytes (plans `throughput` and `stores`).
        records: How many records per size; None: 1,500,000 small ones, 1 GB of larger ones.
        repeats: How often everything is measured; None: 3.
        output: Directory of the result; None: `bench-results/<time>`. Must be empty or new. Of
            several plans each has a folder of its name in it.
        kafka: Address of a cluster with share groups (Kafka 4.2 or newer), whose CPU time is then
            unknown; None starts a broker (Java 17 and Maven).
        batch_bytes: Most bytes of one record batch in the topics; it decides how
            fast the peer is.
        quick: Fewer records, one repeat, a shorter warm-up: a look, not a result.
        strict: Whether a missed target makes the exit code 1.

    Returns:
        The exit code.

    Raises:
        SharecoordError: It could not be measured; says what helps. What was measured before is
            written all the same.
    """
    check_procfs()
    speed = {"sizes": sizes, "records": records, "batch_bytes": batch_bytes}
    plans = {
        name: make_plan(name, speed, repeats=repeats, quick=quick)
        for name in (PLANS if plan == ALL else (plan,))
    }
    directory = output_directory(output)
    missed = False
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sharecoord-bench-")))
        # Before the broker starts: the load average is to be that of other people's work.
        machine = describe_machine(kafka=kafka or DEFAULT_VERSION, store_directory=scratch)
        _say(f"load average {machine.load_average[0]:.2f} on {machine.cores} cores")
        cluster = open_cluster(stack, kafka, say=_say)
        stores = Stores(stack, scratch)
        for name, each in plans.items():
            folder = directory / name if plan == ALL else directory
            runs = Runner(each, cluster, scratch, stores, _say).run()
            trials = TrialRunner(each, cluster, scratch, stores, _say, quick=quick).run()
            result = _carry_out(each, machine, runs, trials, folder)
            print(markdown(result))
            _say(f"written to {folder}")
            missed |= not all(verdict.passed for verdict in result.verdicts)
    return 1 if strict and missed else 0


def make_plan(
    name: str, speed: Mapping[str, Any], *, repeats: int | None = None, quick: bool = False
) -> Plan:
    """The plan of a name.

    Args:
        name: One of `PLANS`.
        speed: Arguments of plans that measure speed.
        repeats: How often everything is measured; None takes 3.
        quick: A look, not a result.

    Raises:
        InvalidConfigError: There is no such plan, or an argument is out of bounds.
    """
    if name == "throughput":
        return throughput_plan(**speed, repeats=repeats, quick=quick)
    if name == "stores":
        return stores_plan(**speed, repeats=repeats, quick=quick)
    if name == "recovery":
        return recovery_plan(repeats=repeats, quick=quick)
    if name == "restart":
        return restart_plan(repeats=repeats, quick=quick)
    raise InvalidConfigError(f"plan: {name!r} is not known; give one of {', '.join(PLANS)}, {ALL}")


def _carry_out(
    plan: Plan,
    machine: Machine,
    to_run: Iterator[Run],
    to_try: Iterator[TrialRun],
    directory: Path,
) -> Result:
    """Makes all runs of a plan and writes its result; after a failure what there is of it."""
    runs: list[Run] = []
    trials: list[TrialRun] = []
    try:
        runs.extend(to_run)
        trials.extend(to_try)
    except BaseException:
        if runs or trials:
            write_report(_result(plan, machine, runs, trials, complete=False), directory)
            _say(f"not finished; what was measured is in {directory}")
        raise
    result = _result(plan, machine, runs, trials, complete=True)
    write_report(result, directory)
    return result


def _result(
    plan: Plan, machine: Machine, runs: list[Run], trials: list[TrialRun], *, complete: bool
) -> Result:
    return Result(
        plan=plan.name,
        machine=machine,
        records=plan.records,
        repeats=plan.repeats,
        batch_bytes=plan.batch_bytes,
        complete=complete,
        runs=runs,
        summaries=summarize(plan, runs),
        verdicts=judge(plan, runs, trials),
        core=core_figures(ROOT) if complete and plan.with_core else None,
        trials=trials,
        figures=figures_of(plan, trials),
        about=plan.about,
        compared=plan.compared,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Reads the command line, runs the benchmark; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="sharecoord bench",
        description="Measures this project and its peers in one run on one broker.",
    )
    parser.add_argument("--plan", choices=[*PLANS, ALL], default=PLANS[0], help="%(default)s")
    parser.add_argument("--size", action="append", type=int, help="bytes per value; repeatable")
    parser.add_argument("--records", type=int, help="records per size")
    parser.add_argument("--repeats", type=int, help="how often everything is measured (3)")
    parser.add_argument("--output", type=Path, help="directory of the result")
    parser.add_argument("--kafka", help="HOST:PORT of a cluster with share groups")
    parser.add_argument(
        "--batch-bytes",
        type=int,
        default=DEFAULT_BATCH_BYTES,
        help="bytes per record batch in the topics (%(default)s)",
    )
    parser.add_argument("--quick", action="store_true", help="a look, not a result")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a missed target")
    given = parser.parse_args(argv)
    try:
        return run(
            plan=given.plan,
            sizes=given.size or DEFAULT_SIZES,
            records=given.records,
            repeats=given.repeats,
            output=given.output,
            kafka=given.kafka,
            batch_bytes=given.batch_bytes,
            quick=given.quick,
            strict=given.strict,
        )
    except SharecoordError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def core_figures(root: Path) -> str | None:
    """What the script that times the pure decisions prints; None when it is not installed.

    Args:
        root: The directory of the project's sources.
    """
    if not (root / CORE_SCRIPT).is_file():
        return None
    _say(f"running {CORE_SCRIPT}")
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


def output_directory(output: Path | None) -> Path:
    """Where the result goes; refused now rather than after minutes of work."""
    directory = output or RESULTS / datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    if directory.exists() and not directory.is_dir():
        raise InvalidConfigError(f"output: {directory} is a file; name a directory")
    if directory.is_dir() and any(directory.iterdir()):
        raise InvalidConfigError(f"output: {directory} is not empty; name a new directory")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidConfigError(f"output: {directory} can not be made: {error}") from error
    return directory


def _say(line: str) -> None:
    """Progress, apart from the report on standard output."""
    print(line, file=sys.stderr, flush=True)
