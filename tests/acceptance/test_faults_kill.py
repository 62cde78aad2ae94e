"""kill -9 and SIGTERM of coordinator, worker and broker, at each phase of their work.

Afterwards every record is processed, none came back after a confirmed end, none was given out
while another worker's lock was valid, and no delivery count was reset: the workers' own ledgers
say so (tests/acceptance/chaos/verdict.py).
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fixtures import broker, everybody_is_up, scene
from tests.acceptance.chaos.scene import Scene, let_pass
from tests.support import eventually

__all__ = ["broker", "everybody_is_up", "scene"]

KILL, TERM = signal.SIGKILL, signal.SIGTERM
pytestmark = pytest.mark.timeout(300)

RECORDS, MORE = 1_000, 200
UNDER_LOAD = {"work_ms": 1.0, "release_each": 10}
SOME = 200
"""So many records are through before anything is hit."""

BOTH = pytest.mark.parametrize("signum", [KILL, TERM], ids=["kill9", "sigterm"])
PHASES = pytest.mark.parametrize(
    ("phase", "signum"),
    [
        pytest.param("idle", TERM, id="idle-sigterm"),
        pytest.param("delivering", KILL, id="delivering-kill9"),
        pytest.param("delivering", TERM, id="delivering-sigterm"),
        pytest.param("acknowledging", KILL, id="acknowledging-kill9"),
        pytest.param("idle", KILL, id="idle-kill9", marks=pytest.mark.long),
        pytest.param("acknowledging", TERM, id="acknowledging-sigterm", marks=pytest.mark.long),
    ],
)


def reach(scene: Scene, crew: Crew, phase: str) -> None:
    """Lets two workers work until the phase is there."""
    names = crew.hire(), crew.hire()
    crew.produce(scene.topics, SOME if phase == "idle" else RECORDS)
    crew.working(*names)
    if phase == "idle":
        crew.until_finished(scene.coordinator)
    elif phase == "delivering":
        crew.until_busy(scene.topics, lambda: crew.deliveries() >= SOME, "records are delivered")
    elif phase == "acknowledging":
        crew.until_busy(
            scene.topics,
            lambda: len(crew.confirmed) >= SOME and crew.unanswered() > 0,
            "acknowledgements are on their way",
        )


def everything_was_kept(scene: Scene, crew: Crew) -> None:
    """New records and old ones are finished, and the ledgers tell of no broken promise."""
    crew.produce(scene.topics, MORE)
    crew.until_finished(scene.coordinator)
    assert crew.verdict(scene.coordinator).faults == ()


def end(process: CoordinatorProcess | KafkaBroker, signum: signal.Signals) -> None:
    if signum is KILL:
        process.kill()
    else:
        process.stop()


# -- the coordinator ------------------------------------------------------------------------------


@PHASES
def test_the_coordinator_is_ended(scene: Scene, phase: str, signum: signal.Signals) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, phase)
        end(scene.coordinator, signum)
        scene.coordinator.restart()
        everything_was_kept(scene, crew)


@BOTH
def test_the_coordinator_is_ended_while_it_starts(scene: Scene, signum: signal.Signals) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, "delivering")
        scene.coordinator.kill()
        began_s = time.monotonic()
        scene.coordinator.start()
        start_s = time.monotonic() - began_s
        scene.coordinator.kill()
        for part in (0.2, 0.5, 0.8):
            scene.coordinator.launch()
            let_pass(part * start_s)
            end(scene.coordinator, signum)
        scene.coordinator.restart()
        everything_was_kept(scene, crew)


@BOTH
def test_the_coordinator_is_ended_again_while_it_drains(
    scene: Scene, signum: signal.Signals
) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, "acknowledging")
        os.kill(scene.coordinator.pid, TERM)
        let_pass(0.05)
        end(scene.coordinator, signum)
        scene.coordinator.restart()
        everything_was_kept(scene, crew)


# -- a worker -------------------------------------------------------------------------------------


@PHASES
def test_a_worker_is_ended(scene: Scene, phase: str, signum: signal.Signals) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, phase)
        crew.end("w1", signum)
        crew.hire()
        everything_was_kept(scene, crew)


@BOTH
def test_a_worker_is_ended_while_it_starts(scene: Scene, signum: signal.Signals) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, "delivering")
        for wait_s in (0.0, 0.3, 0.6):
            name = crew.hire()
            let_pass(wait_s)
            crew.end(name, signum)
        name = crew.hire()
        crew.working(name)
        crew.end(name, signum)
        everything_was_kept(scene, crew)


def test_a_worker_is_killed_while_it_drains(scene: Scene) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, "acknowledging")
        crew.send_signal("w1", TERM)
        crew.kill("w1")
        everything_was_kept(scene, crew)


# -- the broker -----------------------------------------------------------------------------------


def served_or_ended(coordinator: CoordinatorProcess) -> bool:
    return coordinator.exit_code is not None or coordinator.ready


@BOTH
@pytest.mark.parametrize(
    "phase",
    ["delivering", *(pytest.param(p, marks=pytest.mark.long) for p in ("idle", "acknowledging"))],
)
def test_the_broker_is_ended(scene: Scene, phase: str, signum: signal.Signals) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, phase)
        end(scene.broker, signum)
        scene.broker.start()
        everything_was_kept(scene, crew)


def test_the_broker_is_killed_while_the_coordinator_starts(scene: Scene) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, "delivering")
        scene.coordinator.kill()
        scene.coordinator.launch()
        scene.broker.kill()
        scene.broker.start()
        # Either it has its answer from Kafka, before or after, or it ends and names Kafka.
        eventually(lambda: served_or_ended(scene.coordinator), 60, "it serves or has ended")
        if scene.coordinator.exit_code is not None:
            assert scene.coordinator.exit_code == 1
            assert "sharecoord: error: " in scene.coordinator.log_tail()
            scene.coordinator.restart()
        everything_was_kept(scene, crew)


def test_the_broker_is_killed_while_the_coordinator_drains(scene: Scene) -> None:
    with scene.crew(**UNDER_LOAD) as crew:
        reach(scene, crew, "acknowledging")
        os.kill(scene.coordinator.pid, TERM)
        scene.broker.kill()
        eventually(lambda: scene.coordinator.exit_code is not None, 60, "it ends by itself")
        assert scene.coordinator.exit_code == 0, scene.coordinator.log_tail()
        scene.broker.start()
        scene.coordinator.restart()
        everything_was_kept(scene, crew)
