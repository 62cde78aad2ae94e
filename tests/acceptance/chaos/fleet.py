"""Several coordinators on one PostgreSQL, a topic of many partitions, and who owns them when."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sharecoord.core.changes import PartitionKey
from sharecoord.core.fleet.placement import wanted_owner
from sharecoord.core.states import RecordState
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.databases import drop_space, execute, make_space
from sharecoord.devenv.topics import Topics
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.records import LEAVING, place_of
from tests.acceptance.chaos.verdict import DELIVERY_LIMIT
from tests.databases import DatabaseUnderTest
from tests.support import KafkaUnderTest, eventually, unique_name

PARTITIONS = 10
LOCK_MS = 10_000
"""Longer than any move takes, also on a busy machine: an attempt that is burnt was lost by us."""

START_TIMEOUT_S = 60.0

DRAIN_MAX_S = 2.0 + 1.0
"""coordinator.drain.timeout.ms, and the way out."""

BUSY_S = 5.0
"""What a machine that runs other tests may add to the end of an interpreter; 3.4 were measured."""


@dataclass
class FleetScene:
    """Coordinators that come and go, and the tools around them.

    Attributes:
        kafka: Address of the Kafka behind them.
        topics: Creates and fills topics of it.
        url: Their store, empty at first.
        directory: For settings, logs and ledgers.
        processes: By coordinator id; those that were ended as well.
    """

    kafka: str
    topics: Topics
    url: str
    directory: Path
    processes: dict[str, CoordinatorProcess] = field(default_factory=dict)

    def made(self, name: str, **settings: object) -> CoordinatorProcess:
        """A coordinator that is not started yet.

        Args:
            name: Its id.
            settings: More settings; `_` stands for `.` in their names.
        """
        directory = self.directory / name
        directory.mkdir()
        given: dict[str, object] = {
            "store.url": self.url,
            "coordinator.mode": "fleet",
            "coordinator.id": name,
            "group.share.record.lock.duration.ms": LOCK_MS,
            "group.share.delivery.count.limit": DELIVERY_LIMIT,
            "log.format": "json",
            **{key.replace("_", "."): value for key, value in settings.items()},
        }
        process = CoordinatorProcess(self.kafka, directory, settings=given)
        self.processes[name] = process
        return process

    def start(self, *names: str) -> None:
        """Starts coordinators, new ones or ended ones, and waits until they serve."""
        processes = [self.processes.get(name) or self.made(name) for name in names]
        for process in processes:
            process.launch()
        eventually(lambda: all(p.ready for p in processes), START_TIMEOUT_S, f"{names} serve")

    def dismiss(self, name: str) -> None:
        """SIGTERM to one that came in addition; it is known no more."""
        self.processes.pop(name).stop()

    def freeze(self, name: str) -> None:
        """SIGSTOP: it stands still and keeps its connections."""
        os.kill(self.processes[name].pid, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """SIGCONT."""
        os.kill(self.processes[name].pid, signal.SIGCONT)

    def close(self) -> None:
        """Ends all of them."""
        for process in self.processes.values():
            process.kill()

    @property
    def addresses(self) -> str:
        """Of all of them, with commas between."""
        return ",".join(process.address for process in self.processes.values())

    def log(self, name: str) -> str:
        """What a coordinator has logged."""
        return (self.directory / name / "coordinator.log").read_text(encoding="utf-8")

    def new_group(self, topic: str, *, ids: Iterable[str] = "abcd") -> str:
        """A group's name, chosen so that each coordinator gets some of the topic's partitions.

        Args:
            topic: Of `PARTITIONS` partitions.
            ids: All coordinators that the test knows. Who is left when some are not there keeps
                what it has.
        """
        topic_id, wanted = self.topics.topic_id(topic), set(ids)
        while True:
            group = unique_name("g")
            keys = [PartitionKey(group, topic, topic_id, number) for number in range(PARTITIONS)]
            if {wanted_owner(key, wanted) for key in keys} == wanted:
                return group

    @contextmanager
    def crew(self, *, ids: Iterable[str] = "abcd", **options: float | str) -> Iterator[Crew]:
        """Workers of a new group on a new topic, which is deleted afterwards; see `new_group`."""
        name = unique_name("t")
        self.topics.create(name, partitions=PARTITIONS)
        given: dict[str, object] = {"address": self.addresses, **options}
        with ExitStack() as stack:
            stack.callback(self.topics.delete, name)
            made = Crew(
                self.directory / name,
                group=self.new_group(name, ids=ids),
                topic=name,
                partitions=PARTITIONS,
                **given,  # type: ignore[arg-type]
            )
            yield stack.enter_context(made)

    # -- what the store says --------------------------------------------------------------------

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return execute(self.url, statement)

    def owners(self, group: str) -> dict[int, str]:
        """The owner of each partition of a group; "" = nobody."""
        rows = self.sql(
            "SELECT partition_index, coalesce(owner, '') FROM share_partition "
            f"WHERE group_id = '{group}' AND NOT closed"
        )
        return dict(rows)

    def owned_by(self, group: str, *names: str) -> dict[int, str]:
        """Waits until all of these, and nobody else, own partitions; who owns which."""

        def settled() -> dict[int, str] | None:
            found = self.owners(group)
            return found if set(found.values()) == set(names) else None

        return eventually(settled, 60.0, f"{names} own everything")

    def gateways(self, group: str) -> dict[str, str]:
        """By client id: the coordinator that holds its stream."""
        rows = self.sql(f"SELECT client_id, gateway FROM member WHERE group_id = '{group}'")
        return dict(rows)

    def acquired(self, group: str, client_id: str) -> set[int]:
        """The records that a member holds."""
        rows = self.sql(
            "SELECT p.partition_index, f.first_offset, f.last_offset FROM in_flight f "
            "JOIN share_partition p ON p.id = f.partition_id "
            "JOIN member m ON m.member_id = f.member_id AND m.group_id = p.group_id "
            f"WHERE f.state = {RecordState.ACQUIRED:d} "
            f"AND p.group_id = '{group}' AND m.client_id = '{client_id}'"
        )
        return {place_of(p, offset) for p, first, last in rows for offset in range(first, last + 1)}


def goes_on(crew: Crew, records: int = 200, timeout_s: float = 40.0) -> None:
    """Waits until so many records more are confirmed."""
    goal = len(crew.confirmed) + records
    crew.until(lambda: len(crew.confirmed) >= goal, timeout_s, f"{records} records more")


def burnt(crew: Crew) -> list[str]:
    """Deliveries that were not a record's first: attempts that somebody lost."""
    return [
        f"{entry.offset} to {entry.member}: {entry.delivery_count}"
        for entry in crew.locks()
        if entry.offset != LEAVING and entry.delivery_count > 1
    ]


@contextmanager
def fleet_scene(
    kafka: KafkaUnderTest, database: DatabaseUnderTest, directory: Path
) -> Iterator[FleetScene]:
    """A fleet without coordinators yet, on a store of its own."""
    space = unique_name("fleet").replace("-", "_")
    url = make_space(database.url, space)
    address = kafka.bootstrap_servers
    scene = FleetScene(address, Topics(address), url, directory)
    try:
        yield scene
    finally:
        scene.close()
        drop_space(database.url, space)


@pytest.fixture
def fleet(
    kafka_broker: KafkaUnderTest, postgresql: DatabaseUnderTest, tmp_path: Path
) -> Iterator[FleetScene]:
    """See `fleet_scene`."""
    with fleet_scene(kafka_broker, postgresql, tmp_path) as scene:
        yield scene


@pytest.fixture(scope="module")
def shared_fleet(
    kafka_broker: KafkaUnderTest,
    postgresql: DatabaseUnderTest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[FleetScene]:
    """Of all tests of a file that need nothing but some coordinators, and groups of their own."""
    with fleet_scene(kafka_broker, postgresql, tmp_path_factory.mktemp("fleet")) as scene:
        yield scene


@pytest.fixture
def trio(shared_fleet: FleetScene) -> FleetScene:
    """It, with a, b and c serving: the test before may have ended some, and added others."""
    known = shared_fleet.processes
    for name in known.keys() - set("abc"):
        shared_fleet.dismiss(name)
    shared_fleet.start(*(name for name in "abc" if name not in known or not known[name].running))
    return shared_fleet
