"""franz-go's share consumer at the Kafka port: a small Go program, which Go builds once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, GuardedProcess, free_ports
from sharecoord.devenv.topics import Topics
from tests.conftest import TopicFactory
from tests.differential.kafka_offsets import share_group_offsets
from tests.support import KafkaUnderTest, eventually, unique_name

SOURCE = Path(__file__).resolve().parents[1] / "go"
WAIT_S, BUILD_S = 60.0, 240.0
RECORDS = 2_000

pytestmark = pytest.mark.timeout(300)

Delivery = tuple[int, int]
"""Offset and delivery count."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Go program; its module is fetched as Go is set up to."""
    go = shutil.which("go")
    assert go is not None, "Go is missing: apt-get install -y golang-go"
    built = tmp_path_factory.mktemp("go") / "share-member"
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-o", built, "."],
        cwd=SOURCE,
        env={**os.environ, "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture(scope="module")
def port(kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a coordinator's Kafka port."""
    address = f"{LOOPBACK}:{free_ports(1)[0]}"
    settings = {"kafka.port.listen": address, "security.audit.sink": "off"}
    folder = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, folder, settings=settings):
        yield address


class Member:
    """One run of the program."""

    def __init__(self, program: Path, folder: Path, port: str, group: str, topic: str) -> None:
        self._arguments = [str(program), "-broker", port, "-group", group, "-topic", topic]
        self._log = folder / unique_name("member")
        self._process: GuardedProcess | None = None

    def start(self, deliveries: int, *more: str) -> None:
        """Starts it."""
        argv = [*self._arguments, "-deliveries", str(deliveries), *more]
        self._process = GuardedProcess("franz-go", argv, log_path=self._log)
        self._process.start()

    def deliveries(self) -> list[Delivery]:
        """What it has got so far."""
        rows = [line.split() for line in self._log.read_text(encoding="utf-8").splitlines()]
        return [(int(offset), int(count)) for _, offset, count in rows]

    def ended(self) -> list[Delivery]:
        """Waits until it has closed its client without an error; returns what it got."""
        process = self._process
        assert process is not None, "started"
        eventually(lambda: process.exit_code is not None, WAIT_S, what="the end of a member")
        assert process.exit_code == 0, self._log.read_text(encoding="utf-8")
        return self.deliveries()

    def stop(self) -> None:
        """Lets it close its client."""
        assert self._process is not None, "started"
        self._process.stop(WAIT_S)

    def kill(self) -> None:
        """Ends it as kill -9 does."""
        if self._process is not None:
            self._process.kill()


@pytest.fixture
def member(program: Path, port: str, tmp_path: Path) -> Iterator[Callable[[str, str], Member]]:
    """Makes members, whose programs are ended with the test."""
    with ExitStack() as stack:

        def make(group: str, topic: str) -> Member:
            made = Member(program, tmp_path, port, group, topic)
            stack.callback(made.kill)
            return made

        yield make


def finished(port: str, group: str, topic: str, end: int) -> None:
    """Waits until nothing is left of partition 0."""

    def done() -> bool:
        return share_group_offsets(port, group)[topic, 0] == (end, 0)

    eventually(done, WAIT_S, what=f"{topic} finished at {end}")


def test_one_in_ten_records_is_released_once(
    member: Callable[[str, str], Member], port: str, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, RECORDS)
    reader = member(group, name)
    reader.start(RECORDS + RECORDS // 10, "-release-every", "10")
    again = [(offset, 2) for offset in range(0, RECORDS, 10)]
    assert Counter(reader.ended()) == Counter([*((n, 1) for n in range(RECORDS)), *again])
    finished(port, group, name, RECORDS)


def test_rejected_records_are_over(
    member: Callable[[str, str], Member], port: str, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, RECORDS)
    reader = member(group, name)
    reader.start(RECORDS, "-reject-every", "10")
    assert Counter(reader.ended()) == Counter((offset, 1) for offset in range(RECORDS))
    finished(port, group, name, RECORDS)


@pytest.mark.parametrize("way", ["close", "kill"])
def test_what_a_member_leaves_behind_comes_again(
    member: Callable[[str, str], Member],
    port: str,
    topic: TopicFactory,
    topics: Topics,
    way: str,
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 20)
    gone, other = member(group, name), member(group, name)
    gone.start(5, "-hold", "-most", "5")
    eventually(lambda: len(gone.deliveries()) == 5, WAIT_S, what="records that are held")
    gone.stop() if way == "close" else gone.kill()
    other.start(20)
    assert sorted(other.ended()) == [(n, 2 if n < 5 else 1) for n in range(20)]
    finished(port, group, name, 20)
