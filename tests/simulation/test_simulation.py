"""Hundreds of simulated lives, thousands in `make test-long`, in blocks.

More of them: `SIMULATION_SEEDS=10000 pytest tests/simulation`.

Each block runs on all processors under a fixed hash seed, for sets of strings decide the order of
events. A failure prints the seed and the command that replays it with all its events.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEEDS = int(os.environ.get("SIMULATION_SEEDS", "400"))
BLOCK = 400
SEEDS_LONG = 4_000
"""Lives of `make test-long`, those of `make test` among them."""

BLOCKS = [
    *(range(first, min(first + BLOCK, SEEDS)) for first in range(0, SEEDS, BLOCK)),
    *(
        pytest.param(range(first, first + BLOCK), marks=pytest.mark.long)
        for first in range(SEEDS, SEEDS_LONG, BLOCK)
    ),
]


def kept_seeds() -> list[int]:
    """Seeds that failed once."""
    text = (Path(__file__).parent / "seeds.txt").read_text(encoding="utf-8")
    return [int(found) for found in re.findall(r"^(\d+)\s", text, re.MULTILINE)]


def run(module: str, *arguments: str) -> str:
    """Runs a program of this folder; returns its output, fails with it."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.simulation.{module}", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-8000:]}\n{done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.timeout(1_800)
def test_seeds_that_failed_once() -> None:
    run("run", "--jobs", "1", "--only", *map(str, kept_seeds()))


@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("seeds", BLOCKS, ids=lambda seeds: str(seeds.start))
def test_no_promise_is_broken(seeds: range) -> None:
    run("run", "--first", str(seeds.start), "--seeds", str(len(seeds)), "--failures", "3")


def test_a_seed_is_the_same_life_each_time() -> None:
    once, again = (run("run", "--seed", "11", "--trace") for _ in range(2))
    events = [line for line in once.splitlines() if "seeds" not in line]
    assert len(events) > 50
    assert events == [line for line in again.splitlines() if "seeds" not in line]
