"""Runs simulated lives: many at once in processes, or one with all its events.

python -m tests.simulation.run --seeds 100000
python -m tests.simulation.run --seed 4711 --trace
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator

from tests.simulation.script import play
from tests.simulation.world import FailedLifeError, run_life

BLOCK = 50
"""Seeds that a process gets at a time."""


def with_fixed_hashes(module: str, arguments: list[str]) -> None:
    """Starts this program again under one hash seed: sets of strings decide the order of events."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def lives(seeds: Iterable[int], trace: Callable[[str], None] | None = None) -> list[str]:
    """Runs lives one after the other; returns what went wrong."""
    failures: list[str] = []
    for seed in seeds:
        try:
            run_life(seed, play, trace)
        except FailedLifeError as error:
            failures.append(str(error))
            print(error, end="\n\n", flush=True)
    return failures


def lives_of(seeds: range) -> tuple[range, list[str]]:
    """The same for a portion, for a process of a pool."""
    return seeds, lives(seeds)


def blocks(first: int, count: int) -> Iterator[range]:
    """Seeds in portions."""
    for start in range(first, first + count, BLOCK):
        yield range(start, min(start + BLOCK, first + count))


def run_many(first: int, count: int, jobs: int, failures_max: int) -> list[str]:
    """Runs lives in processes; stops early when there is enough to look at."""
    failures: list[str] = []
    began_s = time.monotonic()
    done = 0
    with multiprocessing.Pool(jobs) as pool:
        for portion, found in pool.imap(lives_of, blocks(first, count)):
            done += len(portion)
            failures += found
            if done % (BLOCK * 20) == 0:
                pace = done / (time.monotonic() - began_s)
                print(f"{done} of {count} seeds, {pace:.1f} seeds/s", flush=True)
            if len(failures) >= failures_max:
                break
    return failures


def main(arguments: list[str]) -> int:
    """Parses, runs, tells."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this one")
    parser.add_argument("--only", type=int, nargs="+", help="run these")
    parser.add_argument("--trace", action="store_true", help="show every event (with --seed)")
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first one")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--failures", type=int, default=20, help="stop after so many")
    options = parser.parse_args(arguments)
    began_s = time.monotonic()
    count = options.seeds
    if options.seed is not None or options.only:
        chosen = options.only or [options.seed]
        failures = lives(chosen, print if options.trace else None)
        count = len(chosen)
    elif options.jobs > 1:
        failures = run_many(options.first, count, options.jobs, options.failures)
    else:
        failures = []
        for portion in blocks(options.first, count):
            failures += lives(portion)
            if len(failures) >= options.failures:
                break
    took_s = time.monotonic() - began_s
    print(f"{count} seeds, {len(failures)} failed, {took_s:.1f} s")
    return bool(failures)


if __name__ == "__main__":
    with_fixed_hashes("tests.simulation.run", sys.argv[1:])
    sys.exit(main(sys.argv[1:]))
