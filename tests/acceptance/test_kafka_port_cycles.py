"""kill -9 of the coordinator again and again under load, with members of every kind in one group.

The SDK's, librdkafka's and Kafka's own of Java, the latter two in implicit and in explicit mode,
read one topic. Who is hit beside the coordinator, and after how many more records, comes from a
seed that the test prints.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.kafka_crew import KAFKA, SDK, KafkaCrew
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import FAST_SETTINGS, LOCK_MS, let_pass
from tests.support import KafkaUnderTest, unique_name

PARTITIONS = 3
CHUNK, LOAD_EACH_S, MOST_WAITING = 60, 0.1, 900
CYCLE_TIMEOUT_S = 60.0
FINISH_S = 120.0
START_S = 60.0
SOME = 10
"""So many records are accepted by whose turn it is, before the next kill."""

Member = tuple[str, str]
"""Name and kind."""


class Desk:
    """A coordinator with a Kafka port, which is killed and comes back at the same addresses."""

    def __init__(self, servers: str, directory: Path) -> None:
        self.address = f"{LOOPBACK}:{free_ports(1)[0]}"
        self.topics = Topics(servers)
        self.directory = directory
        settings = {
            **FAST_SETTINGS,
            "kafka.port.listen": self.address,
            "security.audit.sink": "off",
        }
        self.coordinator = CoordinatorProcess(servers, directory, settings=settings)

    @contextmanager
    def crew(self) -> Iterator[KafkaCrew]:
        """Nobody is hired yet."""
        name = unique_name("t")
        self.topics.create(name, partitions=PARTITIONS)
        with ExitStack() as stack:
            stack.callback(self.topics.delete, name)
            crew = KafkaCrew(
                self.directory / name,
                kafka_address=self.address,
                lock_ms=LOCK_MS,
                address=self.coordinator.address,
                group=unique_name("g"),
                topic=name,
                partitions=PARTITIONS,
                work_ms=0.5,
                release_each=7,
            )
            yield stack.enter_context(crew)


@pytest.fixture
def desk(kafka_broker: KafkaUnderTest, tmp_path: Path) -> Iterator[Desk]:
    made = Desk(kafka_broker.bootstrap_servers, tmp_path)
    with made.coordinator:
        yield made


def hit(desk: Desk, crew: KafkaCrew, members: list[Member], chance: random.Random) -> None:
    """kill -9 of the coordinator, and in one of three cases of a member before it."""
    if chance.random() < 1 / 3:
        name, kind = members.pop(chance.randrange(len(members)))
        crew.end(name, chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        members.append((crew.hire_as(kind), kind))
    began_s = time.monotonic()
    desk.coordinator.kill()
    let_pass(chance.random() * 0.2)
    desk.coordinator.restart()
    crew.outage(began_s)


def run_cycles(desk: Desk, cycles: int, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [SDK, *KAFKA]
    with desk.crew() as crew:
        members = [(crew.hire_as(kind), kind) for kind in kinds]
        load = Load(crew, desk.topics, each_s=LOAD_EACH_S, chunk=CHUNK, most_waiting=MOST_WAITING)
        crew.produce(desk.topics, CHUNK)
        with load:
            crew.until(lambda: crew.confirmed_by().keys() >= set(kinds), START_S, "each at work")
            began_s = time.monotonic()
            for number in range(cycles):
                kind = kinds[number % len(kinds)]
                goal = crew.confirmed_by()[kind] + SOME + chance.randrange(2 * SOME)
                crew.until(
                    lambda kind=kind, goal=goal: crew.confirmed_by()[kind] >= goal,  # type: ignore[misc]
                    CYCLE_TIMEOUT_S,
                    f"cycle {number} of seed {seed}: {kind} accepts",
                )
                print(f"cycle {number}: {dict(crew.confirmed_by())}", flush=True)
                hit(desk, crew, members, chance)
            print(f"seed {seed}: {cycles} cycles in {time.monotonic() - began_s:.0f} s")
        crew.until_finished(desk.coordinator, FINISH_S)
        findings = crew.verdict(desk.coordinator)
        print(f"{len(crew.produced)} records, {dict(crew.confirmed_by())}, {findings}")
        assert findings.faults == ()
        assert findings.redelivered > 0, "released records, and those of the killed, came again"


@pytest.mark.timeout(600)
def test_20_kills_with_members_of_every_kind(desk: Desk) -> None:
    run_cycles(desk, 20, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_200_kills_with_members_of_every_kind(desk: Desk) -> None:
    run_cycles(desk, 200, seed=random.SystemRandom().randrange(1 << 32))
