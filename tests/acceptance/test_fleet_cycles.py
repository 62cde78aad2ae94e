"""Coordinators of a fleet and workers are killed and restarted again and again under load.

`make test-long` runs 100 cycles. Who is hit, how, for how long it is gone, and
after how many more records comes from a seed that the test prints.
"""

from __future__ import annotations

import random
import signal

import pytest

from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fleet import FleetScene, fleet, goes_on
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import LOCK_MS, let_pass
from tests.acceptance.test_faults_cycles import ends_well, replace_worker

__all__ = ["fleet"]

NAMES = "a", "b", "c"
WORKERS = 3
LOAD_EACH_S, CHUNK = 0.1, 60
LEASE_S = 4.0


def hit(fleet: FleetScene, crew: Crew, workers: list[str], chance: random.Random) -> None:
    """A coordinator or a worker is ended and comes back: at once, or after the others took over."""
    signum, hits_coordinator = replace_worker(crew, workers, chance)
    if hits_coordinator:
        name = chance.choice(NAMES)
        process = fleet.processes[name]
        if signum is signal.SIGKILL:
            process.kill()
        else:
            process.stop()
        let_pass(chance.choice([0.0, chance.random(), 1.5 * LEASE_S * chance.random()]))
        fleet.start(name)


def run_cycles(fleet: FleetScene, cycles: int, seed: int) -> None:
    chance = random.Random(seed)
    for name in NAMES:
        fleet.made(name, group_share_record_lock_duration_ms=LOCK_MS)
    fleet.start(*NAMES)
    with fleet.crew(work_ms=0.5, release_each=7) as crew:
        workers = [crew.hire() for _ in range(WORKERS)]
        crew.produce(fleet.topics, CHUNK)
        crew.working(*workers)
        with Load(crew, fleet.topics, each_s=LOAD_EACH_S, chunk=CHUNK):
            for number in range(cycles):
                print(f"cycle {number} of seed {seed}")
                goes_on(crew, chance.randrange(50, 400))
                hit(fleet, crew, workers, chance)
        print(f"seed {seed}: {cycles} cycles")
        ends_well(crew, fleet.url, one_in=10)


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_100_cycles_of_kills_in_a_fleet(fleet: FleetScene) -> None:
    run_cycles(fleet, 100, seed=random.SystemRandom().randrange(1 << 32))
