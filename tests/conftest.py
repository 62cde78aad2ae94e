"""Fixtures of all suites.

The Kafka under test, one per run, is found in this order:

1. `SHARECOORD_TEST_KAFKA=host:port[,...]`: a cluster that is there (Kafka 4.3 or newer, best with
   the settings of `FAST_SHARE_GROUPS`).
   `SHARECOORD_TEST_KAFKA=none` leaves out all tests that need Kafka, and says so.
2. Docker through testcontainers, when `docker info` succeeds and the image is there or can be
   pulled (`SHARECOORD_TEST_KAFKA_IMAGE`, by default Kafka's own). An image that can not be had
   costs seconds and one line in the summary, and the run goes on with 3.
3. A broker as a local process, its jars resolved by Maven (Java 17). Without Java or Maven the
   tests fail with the line that installs them; they are never skipped in silence.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import hypothesis
import pytest
import structlog

from sharecoord.devenv import maven
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.broker_config import FAST_SHARE_GROUPS, TEST_SETTINGS
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.devenv.processes import free_ports, running
from sharecoord.devenv.topics import Topics
from tests import databases, security_on
from tests.databases import DatabaseUnderTest
from tests.support import (
    KAFKA_VARIABLE,
    DockerCli,
    KafkaChoice,
    KafkaUnderTest,
    bridge_address,
    choose_kafka,
    eventually,
    start_or_fail,
    unique_name,
)

if TYPE_CHECKING:
    from testcontainers.core.docker_client import DockerClient

PROFILE_VARIABLE = "SHARECOORD_TEST_PROFILE"
WITHOUT_KAFKA = "none"
BROKER_START_S = 100.0
"""Seconds when nothing else runs; the whole run hangs on it, so a crowded machine gets its time."""

TOPICS_TIMEOUT_S = 60.0
"""Longest time to create, fill or delete a topic: the disk of a crowded machine may stand still for
half a minute. No more than a transaction's own time-out, which librdkafka asks for."""

BROKER_SESSION_MS = 6_000
"""A crowded machine may stand still for more than the 2 s of `TEST_SETTINGS`, and a broker whose
session has ended is without leaders for a while; one that is killed comes back so much later."""

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None, max_examples=50)
hypothesis.settings.register_profile("dev", deadline=None, max_examples=50)
hypothesis.settings.register_profile("long", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile(os.environ.get(PROFILE_VARIABLE, "ci"))

if security_on.IS_ON:
    CoordinatorProcess.has_security = True

_notes: list[str] = []


def note(text: str) -> None:
    """Shows a line with the summary of the run."""
    _notes.append(text)


class TopicFactory(Protocol):
    """Creates a topic with a name of its own and returns the name."""

    def __call__(
        self, *, partitions: int = 1, config: Mapping[str, str] | None = None, prefix: str = "t"
    ) -> str: ...


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """What a test, or a command that it runs in this process, sets for the log is for it alone."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


# -- which tests run ------------------------------------------------------------------------------


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what uses the broker's fixtures; leaves it out when the run is to be without Kafka."""
    for item in items:
        if "kafka_broker" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.kafka)
    if os.environ.get(KAFKA_VARIABLE) != WITHOUT_KAFKA:
        return
    dropped = [item for item in items if item.get_closest_marker("kafka")]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if not item.get_closest_marker("kafka")]
        _notes.append(f"{len(dropped)} tests left out: {KAFKA_VARIABLE}={WITHOUT_KAFKA}")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Downloads the broker before the first test, outside of any test's time limit."""
    wanted = any(item.get_closest_marker("kafka") for item in session.items)
    if not wanted or session.config.option.collectonly or os.environ.get(KAFKA_VARIABLE):
        return
    try:
        if chosen_kafka().source == "local":
            maven.kafka_libs()
    except DevenvError:
        pass  # the fixture meets the same error, and the tests that need it fail with it


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Passes the lines for the summary on to the process that shows it."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["notes"] = _notes


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes them from a process that ends."""
    _notes.extend(n for n in getattr(node, "workeroutput", {}).get("notes", ()) if n not in _notes)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says where Kafka came from and what was left out."""
    for note in _notes:
        terminalreporter.write_line(f"kafka: {note}")


# -- the cluster ----------------------------------------------------------------------------------


@functools.cache
def chosen_kafka() -> KafkaChoice:
    """Where Kafka comes from in this run; asked once, because a pull may be part of the answer."""
    choice = choose_kafka(os.environ, DockerCli(), f"apache/kafka:{maven.DEFAULT_VERSION}")
    if choice.note:
        _notes.append(choice.note)
    return choice


def published_host(client: DockerClient) -> str:
    """Where the published ports of a container that is still to be started will be reached.

    The broker has to be told before it starts, and testcontainers knows it only afterwards when
    the tests themselves run in a container. Then it is the gateway of Docker's default bridge: the
    engine's own end, whether the engine runs in the same container or beside it.
    """
    from testcontainers.core.config import ConnectionMode

    if client.get_connection_mode() is ConnectionMode.docker_host:
        return client.host()
    return bridge_address(client.client.networks.get("bridge").attrs["IPAM"]["Config"])


def do_without_reaper_if_missing() -> None:
    """Switches off the container that removes others after a kill -9 when its image is not here."""
    from testcontainers.core.config import testcontainers_config

    if testcontainers_config.ryuk_disabled:
        return
    problem = DockerCli().problem_with(testcontainers_config.ryuk_image)
    if problem is not None:
        testcontainers_config.ryuk_disabled = True
        image = testcontainers_config.ryuk_image
        _notes.append(f"no {image}: after kill -9 of the tests remove their container by hand")


def container_settings(host: str, port: int) -> dict[str, str]:
    """The broker's settings as environment variables of Kafka's own image.

    The client port is the same inside and outside, because the broker tells it to its clients.
    """
    settings = {
        **TEST_SETTINGS,
        **FAST_SHARE_GROUPS,
        "node.id": "1",
        "process.roles": "broker,controller",
        "controller.quorum.voters": "1@localhost:9093",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://:{port},CONTROLLER://:9093",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    return {f"KAFKA_{name.upper().replace('.', '_')}": each for name, each in settings.items()}


@contextmanager
def container_broker(image: str) -> Iterator[KafkaUnderTest]:
    """A broker in a container; any error of Docker's is passed on."""
    from testcontainers.core.container import DockerContainer

    do_without_reaper_if_missing()
    container = DockerContainer(image)
    (port,) = free_ports(1)
    host = published_host(container.get_docker_client())
    container.with_bind_ports(port, port).with_envs(**container_settings(host, port))
    with container:
        address = f"{host}:{port}"
        tool = Topics(address, timeout_s=1.0)
        eventually(lambda: tool.names() is not None, 60.0, f"{image} answers")
        yield KafkaUnderTest(address, "docker")


@contextmanager
def local_broker() -> Iterator[KafkaUnderTest]:
    """A broker as a child process; a missing part fails the test with the line that installs it."""
    settings = {**FAST_SHARE_GROUPS, "broker.session.timeout.ms": str(BROKER_SESSION_MS)}
    broker = KafkaBroker(settings=settings, start_timeout_s=BROKER_START_S)
    start_or_fail(broker)
    try:
        yield KafkaUnderTest(broker.bootstrap_servers, "local", broker)
    finally:
        broker.close()


@pytest.fixture(scope="session")
def kafka_broker() -> Iterator[KafkaUnderTest]:
    """The one Kafka of this run; see the head of this file for where it comes from."""
    choice = chosen_kafka()
    if choice.source == "environment":
        yield KafkaUnderTest(choice.place, "environment")
        return
    with container_broker(choice.place) if choice.source == "docker" else local_broker() as found:
        _notes.append(f"{found.source} at {found.bootstrap_servers}")
        yield found


@pytest.fixture(scope="session")
def topics(kafka_broker: KafkaUnderTest) -> Topics:
    """Creates, fills, trims and deletes topics of the Kafka under test."""
    return Topics(kafka_broker.bootstrap_servers, timeout_s=TOPICS_TIMEOUT_S)


@pytest.fixture
def topic(topics: Topics) -> Iterator[TopicFactory]:
    """Makes topics with names of their own, which are deleted when the test ends."""
    created: list[str] = []

    def make(
        *, partitions: int = 1, config: Mapping[str, str] | None = None, prefix: str = "t"
    ) -> str:
        name = unique_name(prefix)
        topics.create(name, partitions=partitions, config=config)
        created.append(name)
        return name

    yield make
    left = set(created) & set(topics.names())
    topics.delete(*left)


@pytest.fixture(scope="module")
def coordinator(
    kafka_broker: KafkaUnderTest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[CoordinatorProcess]:
    """`sharecoord serve` on SQLite, earliest by default, for the tests of one file."""
    directory = tmp_path_factory.mktemp("coordinator")
    with CoordinatorProcess(kafka_broker.bootstrap_servers, directory) as process:
        yield process


@pytest.fixture(scope="session")
def mock_cluster() -> Iterator[MockCluster]:
    """librdkafka's mock cluster, one per run: use a topic of your own, and partition 0."""
    with MockCluster() as cluster:
        yield cluster


# -- databases ------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def postgresql() -> Iterator[DatabaseUnderTest]:
    """The one PostgreSQL of this run; see tests/databases.py for where it comes from."""
    with databases.database(databases.POSTGRES) as found:
        yield found


@pytest.fixture(scope="session")
def mariadb() -> Iterator[DatabaseUnderTest]:
    """The one MariaDB of this run; see tests/databases.py for where it comes from."""
    with databases.database(databases.MARIA_DB) as found:
        yield found


# -- nothing is left behind -----------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Set up first, torn down last: by then every broker has been closed."""
    yield
    left = [f"{process.name} (pid {process.pid})" for process in running()]
    assert left == [], "close what the tests started"
