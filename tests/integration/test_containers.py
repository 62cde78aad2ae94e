"""Containers: which Kafka a run takes, and the project's own image in both of its roles.

The tests of the image build it (minutes) and are part of `make test-long`. They are skipped when
no Docker engine answers. `SHARECOORD_TEST_IMAGE` names an image that is built already;
`SHARECOORD_TEST_BASE_IMAGE` is handed to the build as `BASE_IMAGE`, for engines without a registry.
"""

from __future__ import annotations

import os
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from sharecoord.devenv.processes import LOOPBACK, free_ports
from tests.support import (
    IMAGE_VARIABLE,
    KAFKA_VARIABLE,
    DockerCli,
    KafkaChoice,
    KafkaUnderTest,
    bridge_address,
    choose_kafka,
    eventually,
    unique_name,
)

ROOT = Path(__file__).parents[2]
OWN_IMAGE_VARIABLE = "SHARECOORD_TEST_IMAGE"
BASE_VARIABLE = "SHARECOORD_TEST_BASE_IMAGE"
BUILD_TIMEOUT_S = 1500.0
COMMAND_TIMEOUT_S = 240.0
STOP_GRACE_S = 10
STATE = "/var/lib/sharecoord"
USER_ID = "10001"

# The image may have to be built, and the engine may copy it for every container.
of_the_image = [pytest.mark.long, pytest.mark.timeout(2400)]


# -- which Kafka ----------------------------------------------------------------------------------


@dataclass
class FakeEngine:
    """An engine with some images, which writes down what it is asked."""

    up: bool = True
    problems: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def answers(self) -> bool:
        self.asked.append("info")
        return self.up

    def problem_with(self, image: str) -> str | None:
        self.asked.append(image)
        return self.problems.get(image)


def test_an_address_in_the_environment_wins_and_asks_nobody() -> None:
    engine = FakeEngine()
    choice = choose_kafka({KAFKA_VARIABLE: "k:1", IMAGE_VARIABLE: "own"}, engine, "public")
    assert choice == KafkaChoice("environment", "k:1", f"k:1 from {KAFKA_VARIABLE}")
    assert engine.asked == []


@pytest.mark.parametrize(
    ("environment", "image"),
    [({}, "public"), ({IMAGE_VARIABLE: ""}, "public"), ({IMAGE_VARIABLE: "own"}, "own")],
)
def test_an_engine_with_the_image_comes_second(environment: dict[str, str], image: str) -> None:
    engine = FakeEngine()
    assert choose_kafka(environment, engine, "public") == KafkaChoice("docker", image)
    assert engine.asked == ["info", image]


def test_without_an_engine_local_processes_are_taken_and_no_image_is_asked_for() -> None:
    engine = FakeEngine(up=False)
    assert choose_kafka({IMAGE_VARIABLE: "own"}, engine, "public") == KafkaChoice("local")
    assert engine.asked == ["info"]


def test_an_image_that_can_not_be_had_gives_local_processes_and_one_line() -> None:
    engine = FakeEngine(problems={"public": "no such host"})
    choice = choose_kafka({}, engine, "public")
    assert (choice.source, choice.place) == ("local", "")
    assert choice.note == (
        "Docker answers, but not with public: no such host; "
        f"set {IMAGE_VARIABLE} to an image that is there"
    )


def engine_program(directory: Path, *, info: str, inspect: str, pull: str) -> str:
    """A program in the place of `docker`, one line of shell for each command."""
    program = directory / "docker"
    cases = f"info) {info};;\n  image) {inspect};;\n  pull) {pull};;"
    program.write_text(f'#!/bin/sh\ncase "$1" in\n  {cases}\nesac\n', encoding="ascii")
    program.chmod(0o755)
    return str(program)


def test_the_engine_is_asked_with_the_docker_program(tmp_path: Path) -> None:
    assert not DockerCli(str(tmp_path / "missing")).answers()
    up = DockerCli(engine_program(tmp_path, info="exit 0", inspect="exit 0", pull="exit 1"))
    assert up.answers()
    assert up.problem_with("here") is None
    down = DockerCli(engine_program(tmp_path, info="exit 1", inspect="exit 1", pull="exit 1"))
    assert not down.answers()
    assert down.problem_with("gone") == "the pull failed"


@pytest.mark.parametrize(
    ("pull", "problem"),
    [
        ("echo 1: Pulling from x; echo Status: done", None),
        (
            "echo first; echo 'Error response from daemon: no such host' >&2; exit 1",
            "no such host",
        ),
        ("exec sleep 60", r"no answer of its registry within 0\.2 s"),
        ("echo 1: Pulling from x; exec sleep 60", r"not pulled within 0\.3 s"),
    ],
)
def test_a_pull_ends_well_fails_or_is_given_up(
    tmp_path: Path, pull: str, problem: str | None
) -> None:
    program = engine_program(tmp_path, info="exit 0", inspect="exit 1", pull=pull)
    # Real time for the two that never end; the others get as long as a busy machine needs.
    ends = "sleep" not in pull
    engine = DockerCli(
        program,
        answer_timeout_s=0.2 if problem and "answer" in problem else 30.0,
        pull_timeout_s=30.0 if ends else 0.3,
    )
    found = engine.problem_with("wanted")
    assert found is None if problem is None else re.fullmatch(problem, str(found))


@pytest.mark.parametrize(
    ("pools", "address"),
    [
        ([{"Subnet": "172.17.0.0/16", "Gateway": "172.17.0.9"}], "172.17.0.9"),
        ([{"Subnet": "172.17.0.0/16"}], "172.17.0.1"),
        ([{"Subnet": "fd00::/64", "Gateway": "fd00::1"}, {"Subnet": "10.1.0.0/24"}], "10.1.0.1"),
    ],
)
def test_published_ports_are_at_the_gateway_of_the_bridge(
    pools: list[dict[str, str]], address: str
) -> None:
    assert bridge_address(pools) == address


def test_a_bridge_without_ipv4_is_named() -> None:
    with pytest.raises(AssertionError, match="no IPv4 subnet"):
        bridge_address([{"Subnet": "fd00::/64"}])


# -- the project's own image ----------------------------------------------------------------------


def run_docker(
    *arguments: str, timeout_s: float = COMMAND_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """A docker command, failed or not."""
    command = ["docker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout_s)


def docker(*arguments: str, timeout_s: float = COMMAND_TIMEOUT_S) -> str:
    """Standard output of a docker command; a failed one fails the test with all it said."""
    done = run_docker(*arguments, timeout_s=timeout_s)
    said = f"docker {' '.join(arguments)}:\n{done.stdout}{done.stderr}"
    assert done.returncode == 0, said
    return done.stdout.strip()


def base_image() -> str:
    """The base of the build: the one of the environment, else the Dockerfile's default."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    default = re.search(r"^ARG BASE_IMAGE=(\S+)$", text, re.MULTILINE)
    assert default is not None
    return os.environ.get(BASE_VARIABLE) or default.group(1)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """The project's image, built from this tree unless the environment names one."""
    engine = DockerCli()
    if not engine.answers():
        pytest.skip("no Docker engine answers (`docker info` fails): start one to run this")
    given = os.environ.get(OWN_IMAGE_VARIABLE)
    if given:
        yield given
        return
    base = base_image()
    problem = engine.problem_with(base)
    if problem is not None:
        pytest.skip(f"no {base} to build on: {problem}; set {BASE_VARIABLE} to one that is there")
    tag = f"{unique_name('sharecoord-test')}:1"
    options = ["--tag", tag, "--build-arg", f"BASE_IMAGE={base}"]
    docker("build", *options, str(ROOT), timeout_s=BUILD_TIMEOUT_S)
    try:
        yield tag
    finally:
        docker("image", "rm", "--force", tag)


class Container:
    """A coordinator from the image, on the host's network, on a read-only root."""

    def __init__(self, image: str, volume: str, kafka: str) -> None:
        port, self._management_port = free_ports(2)
        self.address = f"{LOOPBACK}:{port}"
        self.kafka = kafka
        self._name = unique_name("sharecoord-test")
        isolation = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        docker(
            "run",
            "--detach",
            f"--name={self._name}",
            "--network=host",
            f"--volume={volume}:{STATE}",
            *isolation,
            image,
            "serve",
            f"--kafka={kafka}",
            f"--listen={self.address}",
            f"--set=management.port={self._management_port}",
        )

    def answers(self, path: str) -> bool:
        """Whether the management server answers 200."""
        url = f"http://{LOOPBACK}:{self._management_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # 503: it is there and not ready
            return False

    def run(self, *command: str) -> str:
        """Output of a command inside."""
        return docker("exec", self._name, *command)

    def why_not(self, *command: str) -> str:
        """What a command inside, which has to fail, says about it."""
        done = run_docker("exec", self._name, *command)
        assert done.returncode != 0, f"{command} succeeded: {done.stdout}"
        return done.stderr

    def admin(self, *command: str) -> str:
        """Output of an admin command inside."""
        return self.run("sharecoord", *command, "--bootstrap-server", self.address)

    def wait_until_ready(self) -> None:
        """Ready in the sense of the probe; the log when it is not."""
        try:
            eventually(lambda: self.answers("/healthz/ready"), 60, "the container is ready")
        except AssertionError as error:
            logs = run_docker("logs", self._name)
            error.add_note(logs.stdout + logs.stderr)
            raise

    def stop(self) -> int:
        """SIGTERM, SIGKILL after 10 s; the exit code, 137 for a killed one."""
        docker("stop", f"--time={STOP_GRACE_S}", self._name)
        return int(docker("inspect", "--format={{.State.ExitCode}}", self._name))

    def remove(self) -> None:
        docker("rm", "--force", self._name)


@pytest.fixture
def volume(image: str) -> Iterator[str]:
    """A named volume, as users have; the engine fills it from the image, owner included."""
    name = docker("volume", "create", unique_name("sharecoord-test"))
    yield name
    docker("volume", "rm", "--force", name)


@pytest.fixture
def container(image: str, volume: str, request: pytest.FixtureRequest) -> Iterator[Container]:
    # Asked for by hand: a fixture of the session would be set up before `image` can skip the test.
    kafka: KafkaUnderTest = request.getfixturevalue("kafka_broker")
    started = Container(image, volume, kafka.bootstrap_servers)
    try:
        started.wait_until_ready()
        yield started
    finally:
        started.remove()


class TestImage:
    pytestmark = of_the_image

    @pytest.mark.kafka
    def test_it_serves_as_a_user_on_a_read_only_root_and_ends_cleanly(
        self, container: Container
    ) -> None:
        assert container.answers("/healthz/live")
        assert container.admin("groups", "--list", "-o", "json") == "[]"
        assert container.run("id", "-u") == USER_ID
        assert "Read-only" in container.why_not("touch", "/opt/sharecoord/x")
        assert "sharecoord.db" in container.run("ls", STATE)
        assert container.stop() == 0

    @pytest.mark.kafka
    def test_state_in_the_volume_outlives_the_container(
        self, container: Container, image: str, volume: str
    ) -> None:
        group, limit = unique_name("g"), "share.delivery.count.limit"
        of_group = ["configs", "--entity-type", "groups", "--entity-name", group]
        container.admin(*of_group, "--alter", "--add-config", f"{limit}=7")
        assert container.stop() == 0
        container.remove()
        successor = Container(image, volume, container.kafka)
        try:
            successor.wait_until_ready()
            assert re.search(rf"{limit}\W+7\b", successor.admin(*of_group, "--describe"))
        finally:
            successor.remove()

    def test_the_demo_needs_no_network_and_no_kafka(self, image: str) -> None:
        isolation = ["--rm", "--network=none", "--read-only", "--tmpfs=/tmp"]
        said = docker("run", *isolation, image, "demo", "--plain")
        assert re.search(r"lost\W+0\b", said), said

    def test_it_holds_what_runs_and_nothing_to_install_more(self, image: str) -> None:
        look = (
            "import importlib.util as u;"
            "print([m for m in ('psycopg', 'pymysql', 'pyarrow', 'opentelemetry.sdk', 'pip',"
            " 'setuptools') if u.find_spec(m)])"
        )
        found = docker("run", "--rm", "--entrypoint=python", image, "-c", look)
        assert found == "['psycopg', 'pymysql', 'pyarrow', 'opentelemetry.sdk']"
