"""Twenty times kill -9 or SIGTERM of coordinator and workers under load, then the ledgers speak.

`make test` runs 20 cycles, `make test-long` 200. Who is hit, how, and after how many more records
comes from a seed that the test prints.
"""

from __future__ import annotations

import random
import signal

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fixtures import broker, everybody_is_up, scene
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import Scene, let_pass

__all__ = ["broker", "everybody_is_up", "scene"]

WORKERS = 3
CHUNK = 150
LOAD_EACH_S = 0.1
"""1,500 records a second come in while the killing goes on, until `MOST_WAITING` wait."""

MOST_WAITING = 1_500
"""More than a cycle needs: no kill finds idle workers, and none leaves work for a minute."""

CYCLE_TIMEOUT_S = 40.0


def replace_worker(
    crew: Crew, workers: list[str], chance: random.Random
) -> tuple[signal.Signals, bool]:
    """Chooses who is ended, and how; a worker comes back under another name.

    Returns:
        The signal, and whether a coordinator is to be hit as well.
    """
    signum = chance.choice([signal.SIGKILL, signal.SIGTERM])
    victim = chance.choice(["coordinator", "coordinator", "worker", "both"])
    if victim != "coordinator":
        crew.end(workers.pop(chance.randrange(len(workers))), signum)
        workers.append(crew.hire())
    return signum, victim != "worker"


def ends_well(crew: Crew, coordinator: CoordinatorProcess | str, *, one_in: int) -> None:
    """All records are finished, no promise was broken, and one in so many records came again."""
    crew.until_finished(coordinator, 120.0)
    findings = crew.verdict(coordinator)
    print(f"{len(crew.produced)} records, {findings}")
    assert findings.faults == ()
    assert findings.redelivered >= len(crew.produced) // one_in, "released records came again"


def hit(scene: Scene, crew: Crew, workers: list[str], chance: random.Random) -> None:
    """One of the processes is ended and comes back."""
    signum, hits_coordinator = replace_worker(crew, workers, chance)
    if hits_coordinator:
        if signum is signal.SIGKILL:
            scene.coordinator.kill()
        else:
            scene.coordinator.stop()
        let_pass(chance.random() * 0.3)
        scene.coordinator.restart()


def run_cycles(scene: Scene, cycles: int, seed: int) -> None:
    chance = random.Random(seed)
    with scene.crew(work_ms=0.5, release_each=7) as crew:
        workers = [crew.hire() for _ in range(WORKERS)]
        crew.produce(scene.topics, CHUNK)
        crew.working(*workers)
        load = Load(crew, scene.topics, each_s=LOAD_EACH_S, chunk=CHUNK, most_waiting=MOST_WAITING)
        with load:
            for number in range(cycles):
                goal = len(crew.confirmed) + chance.randrange(50, 600)
                crew.until(
                    lambda goal=goal: len(crew.confirmed) >= goal,  # type: ignore[misc]
                    CYCLE_TIMEOUT_S,
                    f"cycle {number} of seed {seed}: {goal} records are confirmed",
                )
                hit(scene, crew, workers, chance)
        print(f"seed {seed}: {cycles} cycles")
        ends_well(crew, scene.coordinator, one_in=7)


@pytest.mark.timeout(240)
def test_20_cycles_of_kills_under_load(scene: Scene) -> None:
    run_cycles(scene, 20, seed=1)


@pytest.mark.long
@pytest.mark.timeout(2_400)
def test_200_cycles_of_kills_under_load(scene: Scene) -> None:
    run_cycles(scene, 200, seed=random.SystemRandom().randrange(1 << 32))
