"""Random scripts on Kafka's own share group and here: every record has the same history.

`SCRIPT_SEED=7 pytest tests/differential/test_scripts.py -s` plays one and shows both transcripts;
more seeds may stand there with commas between them.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.broker_config import FAST_SHARE_GROUPS
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.conftest import note
from tests.differential.player import Outcome, Player, expected
from tests.differential.script import SETTLING, Content, Fate, Kind, Script
from tests.differential.sides import KafkaSide, OurSide, Side
from tests.support import KafkaUnderTest

SEED_VARIABLE = "SCRIPT_SEED"
SCRIPTS, SCRIPTS_LONG = 40, 200
AT_ONCE = 20
SCRIPT_S = 600.0

_given = [int(text) for text in os.environ.get(SEED_VARIABLE, "").split(",") if text]
SEEDS = _given or range(SCRIPTS)
SEEDS_LONG = _given or range(SCRIPTS_LONG)


class Stage:
    """Plays the scripts that this run wants, so many at a time, on both sides of one cluster."""

    def __init__(self, bootstrap_servers: str, coordinator: str, seeds: list[int]) -> None:
        self._sides: tuple[Side, Side] = (KafkaSide(bootstrap_servers), OurSide(coordinator))
        self._bootstrap_servers = bootstrap_servers
        # A writer for each thread: making a producer costs more than its records.
        self._local = threading.local()
        self._pool = ThreadPoolExecutor(AT_ONCE, initializer=self._begin)
        self._played = {seed: self._submit(seed) for seed in seeds}
        self._again: list[int] = []

    def _begin(self) -> None:
        self._local.topics = Topics(self._bootstrap_servers)

    def _submit(self, seed: int) -> list[Future[Outcome]]:
        return [self._pool.submit(self._play, side, seed) for side in self._sides]

    def _play(self, side: Side, seed: int) -> Outcome:
        return Player(side, self._local.topics, Script(seed)).play()

    def judge(self, seed: int) -> None:
        """Waits for a script and compares both sides, with what the script says too.

        One that differs is played once more with nobody beside it: on a machine that has no time
        for all of them locks end that should not, and only what differs again is a difference.
        """
        paper = expected(Script(seed))
        if not all(_agrees(future.result(SCRIPT_S), paper) for future in self._played[seed]):
            wait(itertools.chain(*self._played.values()), SCRIPT_S)
            self._played[seed] = self._submit(seed)
            self._again.append(seed)
        kafka, ours = (future.result(SCRIPT_S) for future in self._played[seed])
        print("\n".join([*Script(seed).describe(), *kafka.transcript, *ours.transcript]))
        assert (kafka.failure, ours.failure) == ("", ""), seed
        for name, outcome in (("kafka", kafka), ("sharecoord", ours)):
            assert outcome.histories == paper.histories, f"{name}, seed {seed}: histories"
            assert outcome.answers == paper.answers, f"{name}, seed {seed}: answers"

    def close(self) -> None:
        """Waits for what is under way, drops the rest; says what was played twice."""
        self._pool.shutdown(cancel_futures=True)
        if self._again:
            note(f"scripts that differed and were played again, alone: {sorted(self._again)}")


def _agrees(outcome: Outcome, paper: Outcome) -> bool:
    same = (outcome.histories, outcome.answers) == (paper.histories, paper.answers)
    return same and not outcome.failure


def _seeds(request: pytest.FixtureRequest, test: str) -> list[int]:
    """The seeds of a test that were selected, in the order of the run."""
    return [
        int(str(item.callspec.params["seed"]))
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == test
    ]


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, kafka_broker: KafkaUnderTest, coordinator: CoordinatorProcess
) -> Iterator[Stage]:
    made = Stage(
        kafka_broker.bootstrap_servers,
        coordinator.address,
        _seeds(request, "test_both_sides_play_the_script_alike"),
    )
    yield made
    made.close()


@pytest.fixture(scope="module")
def stage_on_4_4(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    directory: Path = tmp_path_factory.mktemp("coordinator")
    with (
        KafkaBroker("4.4.0", settings=FAST_SHARE_GROUPS) as broker,
        CoordinatorProcess(broker.bootstrap_servers, directory) as process,
    ):
        seeds = _seeds(request, "test_both_sides_play_the_script_alike_on_4_4")
        made = Stage(broker.bootstrap_servers, process.address, seeds)
        yield made
        made.close()


def test_the_scripts_of_a_run_have_everything_in_them() -> None:
    scripts = [Script(seed) for seed in range(SCRIPTS)]
    phases = [phase for script in scripts for phase in script.phases]
    segments = [segment for phase in phases for segment in phase.segments]
    assert {phase.kind for phase in phases} == set(Kind)
    assert {fate for script in scripts for fate in script.fates.values()} == set(Fate)
    assert {segment.content for segment in segments} == set(Content)
    assert {script.partitions for script in scripts} == {1, 2, 3}
    assert {script.read_committed for script in scripts} == {False, True}
    assert any(phase.reset for phase in phases)
    worn_out = [
        script
        for script in scripts
        for step, fate in script.fates.items()
        if step.delivery == script.limit and fate not in SETTLING
    ]
    assert len(worn_out) > SCRIPTS


@pytest.mark.timeout(SCRIPT_S)
@pytest.mark.parametrize(
    "seed",
    [*SEEDS, *(pytest.param(n, marks=pytest.mark.long) for n in SEEDS_LONG if n not in SEEDS)],
)
def test_both_sides_play_the_script_alike(stage: Stage, seed: int) -> None:
    stage.judge(seed)


@pytest.mark.long
@pytest.mark.kafka
@pytest.mark.timeout(SCRIPT_S)
@pytest.mark.parametrize("seed", SEEDS_LONG)
def test_both_sides_play_the_script_alike_on_4_4(stage_on_4_4: Stage, seed: int) -> None:
    stage_on_4_4.judge(seed)
