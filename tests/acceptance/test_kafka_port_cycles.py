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
from tests.acceptance.chaos.kafka_crew import SDK, KafkaCrew
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import FAST_SETTINGS, LOCK_MS
from tests.support import KafkaUnderTest, unique_name

PARTITIONS = 3
CHUNK, LOAD_EACH_S, MOST_WAITING = 60, 0.1, 900
CYCLE_TIMEOUT_S = 90.0
FINISH_S = 120.0
START_S = 90.0
SOME = 5
"""So many records are accepted by whose turn it is, before the next kill."""

FIRST = (SDK, "rdkafka explicit", "rdkafka implicit", "java explicit")
"""The kinds of members at the beginning; the last one is Java's, of both modes in turn."""

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


def hit(desk: Desk) -> float:
    """kill -9 of the coordinator, and its restart; returns when it was killed."""
    began_s = time.monotonic()
    desk.coordinator.kill()
    desk.coordinator.restart()
    return began_s


def replace(crew: KafkaCrew, members: list[Member], victim: int, signum: signal.Signals) -> None:
    """Ends a member; another one comes, of Java's in the other mode."""
    name, kind = members[victim]
    crew.end(name, signum)
    client, _, mode = kind.partition(" ")
    if client == "java":
        kind = f"java {'implicit' if mode == 'explicit' else 'explicit'}"
    members[victim] = crew.hire_as(kind), kind


def run_cycles(desk: Desk, cycles: int, seed: int) -> None:
    """Each kill hits when one kind, in turn, has accepted some records since the last one."""
    chance = random.Random(seed)
    with desk.crew() as crew:
        members = [(crew.hire_as(kind), kind) for kind in FIRST]
        load = Load(crew, desk.topics, each_s=LOAD_EACH_S, chunk=CHUNK, most_waiting=MOST_WAITING)
        crew.produce(desk.topics, CHUNK)
        with load:
            crew.until(lambda: crew.confirmed_by().keys() >= set(FIRST), START_S, "each at work")
            began_s = time.monotonic()
            for number in range(cycles):
                kind = members[number % len(members)][1]
                goal = crew.confirmed_by()[kind] + SOME + chance.randrange(2 * SOME)
                crew.until(
                    lambda kind=kind, goal=goal: crew.confirmed_by()[kind] >= goal,  # type: ignore[misc]
                    CYCLE_TIMEOUT_S,
                    f"cycle {number} of seed {seed}: {kind} accepts",
                )
                print(f"cycle {number}: {dict(crew.confirmed_by())}", flush=True)
                if number % 5 == 1:
                    signum = chance.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
                    replace(crew, members, chance.randrange(len(members)), signum)
                if number == cycles // 2:
                    replace(crew, members, len(members) - 1, signal.SIGKILL)
                crew.outage(hit(desk))
            print(f"seed {seed}: {cycles} cycles in {time.monotonic() - began_s:.0f} s")
        crew.until_finished(desk.coordinator, FINISH_S)
        findings = crew.verdict(desk.coordinator)
        print(f"{len(crew.produced)} records, {dict(crew.confirmed_by())}, {findings}")
        assert findings.faults == ()
        assert findings.redelivered > 0, "released records, and those of the killed, came again"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("cycles", [8, pytest.param(20, marks=pytest.mark.long)])
def test_kills_with_members_of_every_kind(desk: Desk, cycles: int) -> None:
    run_cycles(desk, cycles, seed=1)


@pytest.mark.long
@pytest.mark.timeout(3_600)
def test_200_kills_with_members_of_every_kind(desk: Desk) -> None:
    run_cycles(desk, 200, seed=random.SystemRandom().randrange(1 << 32))
