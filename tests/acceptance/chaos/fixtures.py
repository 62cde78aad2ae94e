"""Fixtures of the fault tests; a test file imports the ones that it uses."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.scene import FAST_SETTINGS, Scene
from tests.support import KafkaUnderTest


@pytest.fixture(scope="module")
def broker(kafka_broker: KafkaUnderTest) -> Iterator[KafkaBroker]:
    """A broker that may be killed: the run's own, or one beside a cluster that is not ours."""
    if kafka_broker.broker is not None:
        yield kafka_broker.broker
        return
    with KafkaBroker() as made:
        yield made


@pytest.fixture(scope="module")
def scene(broker: KafkaBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A coordinator of this module, which its tests kill and restart."""
    directory = tmp_path_factory.mktemp("faults")
    address = broker.bootstrap_servers
    process = CoordinatorProcess(address, directory, settings=FAST_SETTINGS)
    with process:
        yield Scene(broker, Topics(address), process, directory)


@pytest.fixture(autouse=True)
def everybody_is_up(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that fails in the middle of a fault does not take the others with it."""
    yield
    if "broker" in request.fixturenames:
        used: KafkaBroker = request.getfixturevalue("broker")
        if not used.running:
            used.start()
    if "scene" in request.fixturenames:
        coordinator: CoordinatorProcess = request.getfixturevalue("scene").coordinator
        if not alive(coordinator):
            coordinator.kill()
            coordinator.start()


def alive(coordinator: CoordinatorProcess) -> bool:
    """Whether its process runs."""
    try:
        return coordinator.pid > 0 and coordinator.exit_code is None
    except DevenvError:
        return False
