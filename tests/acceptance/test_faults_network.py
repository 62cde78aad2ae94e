"""The network is cut, silent, slow or narrow: between workers and coordinator, and before Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.fixtures import broker, everybody_is_up, scene
from tests.acceptance.chaos.proxy import TcpProxy
from tests.acceptance.chaos.scene import FAST_SETTINGS, Scene, let_pass
from tests.acceptance.chaos.verdict import LOCK_MARGIN_S

__all__ = ["broker", "everybody_is_up", "scene"]

pytestmark = pytest.mark.timeout(300)

RECORDS, MORE = 1_500, 200
SOME = 300
DELAY_S = 0.15
NARROW_BYTES_PER_S = 64 << 10
SILENCE_S = 4.0
"""Longer than the locks of these tests, shorter than any keepalive: nobody sees a broken stream."""


def cut(proxy: TcpProxy) -> None:
    proxy.cut()
    let_pass(1.0)
    proxy.heal()


def flap(proxy: TcpProxy) -> None:
    for _ in range(5):
        proxy.cut()
        let_pass(0.1)
        proxy.heal()
        let_pass(0.3)


def silence(proxy: TcpProxy) -> None:
    proxy.stall()
    let_pass(SILENCE_S)
    proxy.heal()


def slowness(proxy: TcpProxy) -> None:
    proxy.delay_s = DELAY_S


def narrowness(proxy: TcpProxy) -> None:
    proxy.bytes_per_s = NARROW_BYTES_PER_S


FAULTS: dict[Callable[[TcpProxy], None], float] = {
    cut: 0.0,
    flap: 0.0,
    # What was delivered into the silence reaches the worker when it ends, and its lock is counted
    # from then: later than the coordinator's by the whole silence.
    silence: SILENCE_S,
    slowness: 2 * DELAY_S,
    narrowness: 2.0,
}
"""What happens, and by how much later than usual a worker may believe in its lock."""

EACH = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)


@EACH
def test_between_a_worker_and_the_coordinator(
    scene: Scene, fault: Callable[[TcpProxy], None]
) -> None:
    with (
        TcpProxy(scene.coordinator.address) as proxy,
        scene.crew(work_ms=0.5, release_each=10, address=proxy.address) as crew,
    ):
        names = crew.hire(), crew.hire()
        crew.produce(scene.topics, RECORDS)
        crew.working(*names)
        crew.at_work(scene.topics, SOME)
        fault(proxy)
        crew.produce(scene.topics, MORE)
        crew.until_finished(scene.coordinator)
        proxy.heal()
        margin_s = LOCK_MARGIN_S + FAULTS[fault]
        assert crew.verdict(scene.coordinator, margin_s).faults == ()


# -- before Kafka ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kafka_proxy(broker: KafkaBroker) -> Iterator[TcpProxy]:
    with TcpProxy(broker.bootstrap_servers, kafka=True) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def behind(
    broker: KafkaBroker, kafka_proxy: TcpProxy, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    """A coordinator that reaches Kafka through the proxy only; topics are filled beside it."""
    directory: Path = tmp_path_factory.mktemp("behind")
    process = CoordinatorProcess(kafka_proxy.address, directory, settings=FAST_SETTINGS)
    with process:
        yield Scene(broker, Topics(broker.bootstrap_servers), process, directory)


@EACH
def test_between_the_coordinator_and_kafka(
    behind: Scene, kafka_proxy: TcpProxy, fault: Callable[[TcpProxy], None]
) -> None:
    with behind.crew(work_ms=0.5, release_each=10) as crew:
        names = crew.hire(), crew.hire()
        crew.produce(behind.topics, RECORDS)
        crew.working(*names)
        crew.at_work(behind.topics, SOME)
        before = kafka_proxy.accepted
        assert before > 1, "the coordinator goes by the proxy, not past it"
        fault(kafka_proxy)
        crew.produce(behind.topics, MORE)
        crew.until_finished(behind.coordinator)
        kafka_proxy.heal()
        assert crew.verdict(behind.coordinator).faults == ()
