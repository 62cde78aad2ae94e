"""A fleet of real processes with Kafka ports: its owners and its ports come and go under load.

Unmodified share consumers of librdkafka and of Java are in one group with a member of the SDK. As
of the other fleets, the workers' ledgers say afterwards whether everything was kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import confluent_kafka
import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports, free_run
from tests.acceptance.chaos.fleet import LOCK_MS, PARTITIONS, FleetScene, fleet_scene
from tests.acceptance.chaos.kafka_crew import SDK, KafkaCrew
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import let_pass
from tests.acceptance.test_fleet_one_machine import children
from tests.databases import DatabaseUnderTest
from tests.support import KafkaUnderTest, eventually, unique_name

pytestmark = pytest.mark.timeout(900)

NAMES = "a", "b", "c"
KINDS = (SDK, "rdkafka explicit", "rdkafka implicit", "java implicit")
CHUNK, LOAD_EACH_S, MOST_WAITING = 30, 0.1, 600
START_S, GO_ON_S = 90.0, 90.0
SOME = 30

MOVE_MAX_S = 15.0
"""For so long a client looks for another coordinator when its own was killed; measured: see
docs/evidence/kafka-port.md."""


@contextmanager
def crew_of(scene: FleetScene, kafka_address: str, ids: Iterable[str]) -> Iterator[KafkaCrew]:
    """One member of each kind at work in a new group; those of Kafka know this address."""
    name = unique_name("t")
    scene.topics.create(name, partitions=PARTITIONS)
    with ExitStack() as stack:
        stack.callback(scene.topics.delete, name)
        crew = KafkaCrew(
            scene.directory / name,
            kafka_address=kafka_address,
            lock_ms=LOCK_MS,
            address=scene.addresses,
            group=scene.new_group(name, ids=ids),
            topic=name,
            partitions=PARTITIONS,
            work_ms=0.5,
            release_each=7,
        )
        stack.enter_context(crew)
        for kind in KINDS:
            crew.hire_as(kind)
        with Load(
            crew, scene.topics, each_s=LOAD_EACH_S, chunk=CHUNK, most_waiting=MOST_WAITING
        ) as load:
            crew.load = load
            crew.until(lambda: crew.confirmed_by().keys() >= set(KINDS), START_S, "each at work")
            scene.owned_by(crew.group, *ids)
            yield crew


class PortFleet:
    """Coordinators a, b and c, each with a Kafka port."""

    def __init__(self, scene: FleetScene) -> None:
        self.scene = scene
        found = zip(NAMES, free_ports(len(NAMES)), strict=True)
        self.ports = {name: f"{LOOPBACK}:{port}" for name, port in found}
        for name in NAMES:
            scene.made(name, kafka_port_listen=self.ports[name], security_audit_sink="off")

    def up(self) -> None:
        """All of them serve: the test before may have ended some."""
        processes = self.scene.processes
        self.scene.start(*(name for name in NAMES if not processes[name].running))

    def crew(self, kafka_address: str) -> AbstractContextManager[KafkaCrew]:
        """See `crew_of`."""
        return crew_of(self.scene, kafka_address, NAMES)

    def kill(self, name: str) -> None:
        """As kill -9."""
        self.scene.processes[name].kill()


@pytest.fixture(scope="module")
def shared_ports(
    kafka_broker: KafkaUnderTest,
    postgresql: DatabaseUnderTest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[PortFleet]:
    with fleet_scene(kafka_broker, postgresql, tmp_path_factory.mktemp("ports")) as scene:
        yield PortFleet(scene)


@pytest.fixture
def ports(shared_ports: PortFleet) -> PortFleet:
    shared_ports.up()
    return shared_ports


def goes_on(crew: KafkaCrew) -> dict[str, float]:
    """Waits until members of each kind accept more; after how many seconds each did."""
    crew.look()
    before, began_s = crew.confirmed_by(), time.monotonic()
    after: dict[str, float] = {}

    def each_does() -> bool:
        now = crew.confirmed_by()
        for kind in KINDS:
            if now[kind] >= before[kind] + SOME:
                after.setdefault(kind, round(time.monotonic() - began_s, 2))
        return len(after) == len(KINDS)

    crew.until(each_does, GO_ON_S, "members of each kind go on")
    return after


def everything_was_kept(scene: FleetScene, crew: KafkaCrew) -> None:
    assert crew.load is not None, "set by `crew_of`"
    crew.load.stop()
    crew.until_finished(scene.url)
    findings = crew.verdict(scene.url)
    print(f"{len(crew.produced)} records, {dict(crew.confirmed_by())}, {findings}")
    assert findings.faults == ()


def test_owners_are_killed_and_go_while_members_stay_at_one_port(ports: PortFleet) -> None:
    """Records of all owners come at the one port; kill -9 of b, SIGTERM of c, and both come back.

    Nothing is cut from the members' locks: their own coordinator stays, so the locks do.
    """
    with ports.crew(ports.ports["a"]) as crew:
        ports.kill("b")
        ports.scene.owned_by(crew.group, "a", "c")
        print("an owner is killed:", goes_on(crew))
        ports.scene.start("b")
        ports.scene.owned_by(crew.group, *NAMES)
        ports.scene.processes["c"].stop()
        ports.scene.owned_by(crew.group, "a", "b")
        print("an owner goes:", goes_on(crew))
        ports.scene.start("c")
        ports.scene.owned_by(crew.group, *NAMES)
        print("both are back:", goes_on(crew))
        everything_was_kept(ports.scene, crew)


def test_members_go_to_another_port_by_themselves(ports: PortFleet) -> None:
    """Their own coordinator is killed, then the next one goes: both stand in bootstrap.servers."""
    with ports.crew(f"{ports.ports['a']},{ports.ports['b']}") as crew:
        for name, end in (("a", CoordinatorProcess.kill), ("b", CoordinatorProcess.stop)):
            began_s = time.monotonic()
            end(ports.scene.processes[name])
            after = goes_on(crew)
            print(f"{name} ended:", after)
            crew.outage(began_s)
            assert max(after.values()) <= MOVE_MAX_S
            ports.scene.start(name)
        everything_was_kept(ports.scene, crew)


def test_a_rolling_restart(ports: PortFleet) -> None:
    with ports.crew(",".join(ports.ports.values())) as crew:
        for name in NAMES:
            began_s = time.monotonic()
            ports.scene.processes[name].stop()
            ports.scene.start(name)
            ports.scene.owned_by(crew.group, *NAMES)
            print(f"{name} was restarted:", goes_on(crew))
            crew.outage(began_s)
        everything_was_kept(ports.scene, crew)


REFRESHES = 12
REFRESH_MS = 500


def test_metadata_of_another_coordinator_moves_nobody(ports: PortFleet) -> None:
    """Each names itself as the one broker: clients that ask often stay where they are."""
    scene, name = ports.scene, unique_name("t")
    scene.topics.create(name, partitions=PARTITIONS)
    group, gateways, counts = scene.new_group(name, ids=NAMES), set[str](), list[int]()
    consumer = confluent_kafka.ShareConsumer(
        {
            "bootstrap.servers": ",".join(ports.ports.values()),
            "group.id": group,
            "topic.metadata.refresh.interval.ms": REFRESH_MS,
            "metadata.max.age.ms": 3 * REFRESH_MS,
        }
    )
    consumer.subscribe([name])

    def came() -> bool:
        scene.topics.produce(name, 10)
        found = list(consumer.poll(REFRESH_MS / 1000))
        assert all(message.error() is None for message in found)
        counts.extend(message.delivery_count() for message in found)
        gateways.update(scene.gateways(group).values())
        return bool(found)

    for _ in range(REFRESHES):
        eventually(came, GO_ON_S, "records")
        let_pass(REFRESH_MS / 1000)
    consumer.close()
    scene.topics.delete(name)
    assert len(gateways) == 1
    assert set(counts) == {1}


@pytest.fixture
def pair(shared_ports: PortFleet) -> Iterator[tuple[CoordinatorProcess, int]]:
    """Two processes of one `serve`, with nobody beside them; the port of the first one."""
    scene, port = shared_ports.scene, free_run(2)
    for name in NAMES:
        scene.processes[name].stop()
    made = scene.made(
        "one",
        coordinator_processes=2,
        kafka_port_listen=f"{LOOPBACK}:{port}",
        security_audit_sink="off",
    )
    made.launch()
    try:
        eventually(lambda: made.ready, START_S, "both serve")
        yield made, port
    finally:
        scene.dismiss("one")


def test_each_of_several_processes_has_a_port(
    shared_ports: PortFleet, pair: tuple[CoordinatorProcess, int]
) -> None:
    """`--processes 2 --kafka-listen HOST:N`: N and N + 1; one is killed, and is started again."""
    (parent, port), scene, ids = pair, shared_ports.scene, ("one-0", "one-1")
    both = f"{LOOPBACK}:{port},{LOOPBACK}:{port + 1}"
    with crew_of(scene, both, ids) as crew:
        for first in (port, port + 1):
            crew.hire_as("rdkafka explicit", f"{LOOPBACK}:{first}")
        print("two at their own ports:", goes_on(crew))
        crew.until(
            lambda: set(scene.gateways(crew.group).values()) == set(ids), START_S, "at both ports"
        )
        began_s = time.monotonic()
        children(parent)[0].kill()
        print("one of two is killed:", goes_on(crew))
        crew.outage(began_s)
        scene.owned_by(crew.group, *ids)
        print("it is back:", goes_on(crew))
        everything_was_kept(scene, crew)
