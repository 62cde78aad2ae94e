"""A coordinator under attack, and the bystander that must notice nothing of it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from sharecoord_sdk._proto import share_service_pb2 as pb
from sharecoord_sdk._proto import share_types_pb2 as share_types

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from tests.acceptance.bad_input import join_message
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import FAST_SETTINGS, Scene
from tests.support import unique_name

MEBIBYTE = 1 << 20
LIMIT_BYTES = 128 * MEBIBYTE
BESIDE_THE_LIMIT_BYTES = 256 * MEBIBYTE
"""Python, its libraries, librdkafka's queues, gRPC's connections."""

CONSUMER_BYTES = 2 * MEBIBYTE
"""A further client of Kafka: 0.7 MiB without work, a queue of 1 MiB, a fetch of 256 KiB."""

DELAY_MAX_S = 15.0
"""The slowest record of the bystander. A busy machine under attack is slow for seconds; who is shut
out waits for the end of a session, 45 s."""

LOAD_EACH_S = 0.02
"""A test waits for ten records of the bystander at least."""

EVERYTHING = share_types.Credit(records_total=1 << 40, bytes_total=1 << 50)


def a_join(**fields: Any) -> bytes:
    """The first message of a stream, of a new member."""
    join = join_message(unique_name("g"), **{"topics": [unique_name("t")], **fields})
    return pb.ConsumeRequest(join=join).SerializeToString()


@dataclass
class Arena:
    """The coordinator under attack and its bystander."""

    scene: Scene
    crew: Crew
    load: Load
    log_start: int
    """Where the part of the log begins that belongs to this test."""

    start_s: float
    """When this test began, on the monotonic clock."""

    @property
    def address(self) -> str:
        return self.scene.coordinator.address

    def goes_on(self, records: int) -> None:
        """Waits until the bystander was served so many records more."""
        goal = len(self.crew.confirmed) + records
        self.crew.until(lambda: len(self.crew.confirmed) >= goal, 60, f"{records} records more")

    def is_unharmed(self, *, consumers: int = 1) -> None:
        """Up, within memory, no mistake in the log, and the bystander was served.

        Args:
            consumers: How many clients of Kafka it has: one for each group on the same partition.
        """
        process = self.scene.coordinator
        assert process.exit_code is None, process.log_tail()
        self.goes_on(10)
        wait_s = self.load.longest_wait_s(self.start_s)
        memory = psutil.Process(process.pid).memory_info().rss
        print(f"longest wait {wait_s:.2f} s, {memory / MEBIBYTE:.0f} MiB")
        assert wait_s < DELAY_MAX_S
        most = LIMIT_BYTES + BESIDE_THE_LIMIT_BYTES + consumers * CONSUMER_BYTES
        assert memory < most, f"{memory / MEBIBYTE:.0f} MiB"
        assert mistakes(log_of(self.scene), self.log_start) == []


def log_of(scene: Scene) -> Path:
    return scene.directory / "coordinator.log"


def mistakes(log: Path, start: int) -> list[str]:
    """Lines of a log from `start` on that tell of an error of ours."""
    found = []
    for line in log.read_bytes()[start:].decode(errors="replace").splitlines():
        if line.startswith("{") and json.loads(line).get("level") in ("error", "critical"):
            found.append(line[:2_000])
        elif line.startswith(("Traceback", "ERROR")):
            found.append(line)
    return found


@contextmanager
def serving(broker: KafkaBroker, directory: Path) -> Iterator[Scene]:
    """A coordinator with little memory."""
    address = broker.bootstrap_servers
    settings = {**FAST_SETTINGS, "memory.limit": LIMIT_BYTES}
    with CoordinatorProcess(address, directory, settings=settings) as process:
        yield Scene(broker, Topics(address), process, directory)


@contextmanager
def bystanding(scene: Scene) -> Iterator[tuple[Crew, Load]]:
    """One worker and a producer that goes on all the time."""
    with scene.crew() as crew:
        crew.produce(scene.topics, 1)
        crew.working(crew.hire())
        with Load(crew, scene.topics, each_s=LOAD_EACH_S, chunk=1) as load:
            yield crew, load


def watched(scene: Scene, bystander: tuple[Crew, Load]) -> Arena:
    """An arena whose test begins now."""
    return Arena(scene, *bystander, log_of(scene).stat().st_size, time.monotonic())
