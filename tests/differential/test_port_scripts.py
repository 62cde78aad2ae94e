"""The random scripts again, with Kafka's own clients at the Kafka port of a coordinator.

`test_scripts.py` plays them on Kafka's own share groups; here each record has the same history too.
`SCRIPT_SEED=7 pytest tests/differential/test_port_scripts.py -m "" -s` plays one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from tests.differential.members import JAVA, NATIVE
from tests.differential.sides import OurSide, PortSide
from tests.differential.stage import SCRIPT_S, Stage, seeds_of, selected_seeds
from tests.support import KafkaUnderTest

SCRIPTS, SCRIPTS_JAVA, SCRIPTS_LONG = 6, 4, 200
AT_ONCE = 6
"""Each has up to six clients with threads of their own."""


@pytest.fixture(scope="module")
def port(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, str]]:
    """A coordinator: the address of its Kafka port, and that for operators."""
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    settings = {"kafka.port.listen": address, "security.audit.sink": "off"}
    folder: Path = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, folder, settings=settings) as process:
        yield address, process.address


class Stages:
    """A stage for each client, which begins when its first script is wanted."""

    def __init__(self, servers: str, port: tuple[str, str], stack: ExitStack) -> None:
        self._servers, self._port, self._stack = servers, port, stack
        self._stages: dict[str, Stage] = {}

    def judge(self, module: str, seeds: list[int], seed: int) -> None:
        """Judges one script of those that a client plays."""
        if module not in self._stages:
            side = PortSide(self._port[0], OurSide(self._port[1]), module)
            made = self._stages[module] = Stage(self._servers, (side,), seeds, AT_ONCE)
            self._stack.callback(made.close)
        self._stages[module].judge(seed)


@pytest.fixture(scope="module")
def stages(kafka_broker: KafkaUnderTest, port: tuple[str, str]) -> Iterator[Stages]:
    with ExitStack() as stack:
        yield Stages(kafka_broker.bootstrap_servers, port, stack)


def seeds(count: int) -> list[object]:
    """So many seeds for every run; the others up to 200 for the long one."""
    always, long = seeds_of(count), seeds_of(SCRIPTS_LONG)
    rest = [pytest.param(n, marks=pytest.mark.long) for n in long if n not in always]
    return [*always, *rest]


@pytest.mark.timeout(SCRIPT_S)
@pytest.mark.parametrize("seed", seeds(SCRIPTS))
def test_librdkafka_plays_the_script_alike(
    stages: Stages, request: pytest.FixtureRequest, seed: int
) -> None:
    chosen = selected_seeds(request, "test_librdkafka_plays_the_script_alike")
    stages.judge(NATIVE, chosen, seed)


@pytest.mark.timeout(SCRIPT_S)
@pytest.mark.parametrize("seed", seeds(SCRIPTS_JAVA))
def test_kafkas_java_client_plays_the_script_alike(
    stages: Stages, request: pytest.FixtureRequest, seed: int
) -> None:
    chosen = selected_seeds(request, "test_kafkas_java_client_plays_the_script_alike")
    stages.judge(f"{JAVA}4.3.1", chosen, seed)


@pytest.mark.long
@pytest.mark.timeout(SCRIPT_S)
@pytest.mark.parametrize("seed", seeds_of(SCRIPTS_LONG))
@pytest.mark.parametrize("release", ["4.2.1", "4.4.0"])
def test_java_clients_of_other_releases_play_the_script_alike(
    stages: Stages, request: pytest.FixtureRequest, release: str, seed: int
) -> None:
    test = "test_java_clients_of_other_releases_play_the_script_alike"
    stages.judge(f"{JAVA}{release}", selected_seeds(request, test, release=release), seed)
