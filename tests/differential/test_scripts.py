"""Random scripts on Kafka's own share group and here: every record has the same history.

`SCRIPT_SEED=7 pytest tests/differential/test_scripts.py -s` plays one and shows both transcripts;
more seeds may stand there with commas between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.broker_config import FAST_SHARE_GROUPS
from sharecoord.devenv.coordinator import CoordinatorProcess
from tests.differential.script import SETTLING, Content, Fate, Kind, Script
from tests.differential.sides import KafkaSide, OurSide
from tests.differential.stage import SCRIPT_S, Stage, seeds_of, selected_seeds
from tests.support import KafkaUnderTest

SCRIPTS, SCRIPTS_LONG = 40, 200
SEEDS, SEEDS_LONG = seeds_of(SCRIPTS), seeds_of(SCRIPTS_LONG)


@pytest.fixture(scope="module")
def stage(
    request: pytest.FixtureRequest, kafka_broker: KafkaUnderTest, coordinator: CoordinatorProcess
) -> Iterator[Stage]:
    servers = kafka_broker.bootstrap_servers
    seeds = selected_seeds(request, "test_both_sides_play_the_script_alike")
    made = Stage(servers, (KafkaSide(servers), OurSide(coordinator.address)), seeds)
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
        servers = broker.bootstrap_servers
        seeds = selected_seeds(request, "test_both_sides_play_the_script_alike_on_4_4")
        made = Stage(servers, (KafkaSide(servers), OurSide(process.address)), seeds)
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
