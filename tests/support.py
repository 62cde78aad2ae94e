"""What tests of all suites share: waiting for a condition, unique names, the Kafka under test."""

from __future__ import annotations

import asyncio
import inspect
import ipaddress
import selectors
import subprocess
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, overload

import pytest
from sharecoord_sdk import Message, ShareConsumer

from sharecoord.core.dispatch.pauses import PauseScope
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.errors import DevenvError
from sharecoord.devenv.topics import Topics

T = TypeVar("T")

KAFKA_VARIABLE = "SHARECOORD_TEST_KAFKA"
IMAGE_VARIABLE = "SHARECOORD_TEST_KAFKA_IMAGE"

FIRST_PAUSE_S = 0.005
LONGEST_PAUSE_S = 0.2


@dataclass(frozen=True, slots=True)
class KafkaUnderTest:
    """The cluster of this test run.

    Attributes:
        bootstrap_servers: `host:port`, several with commas between them.
        source: Where it comes from: `environment`, `docker` or `local`.
        broker: The process, which a test may kill and restart (it must be up again when the test
            ends); None when it is not ours.
    """

    bootstrap_servers: str
    source: str
    broker: KafkaBroker | None = None


class Server(Protocol):
    """A broker or a database as a local process."""

    def start(self) -> None:
        """Returns when it answers."""


def start_or_fail(server: Server) -> None:
    """Starts it; a missing part fails the test with the line that installs it."""
    problem = ""
    try:
        server.start()
    except DevenvError as error:
        problem = error.message
    if problem:
        # Outside of the handler, or the message would be shown twice.
        pytest.fail(problem, pytrace=False)


# -- which Kafka ----------------------------------------------------------------------------------


class Engine(Protocol):
    """What has to be known of a Docker engine."""

    def answers(self) -> bool:
        """Whether there is one."""

    def problem_with(self, image: str) -> str | None:
        """Why an image is neither here nor to be had; None when it is here now."""


@dataclass(frozen=True, slots=True)
class KafkaChoice:
    """Where the Kafka of a run is to come from.

    Attributes:
        source: As in `KafkaUnderTest`.
        place: The address for `environment`, the image for `docker`, empty for `local`.
        note: A line for the person who runs the tests; empty when there is nothing to say.
    """

    source: Literal["environment", "docker", "local"]
    place: str = ""
    note: str = ""


def choose_kafka(environment: Mapping[str, str], engine: Engine, default_image: str) -> KafkaChoice:
    """An address in the environment, else an image of a Docker engine, else local processes.

    The engine is not asked when there is an address, and for no image when it does not answer.
    """
    address = environment.get(KAFKA_VARIABLE)
    if address:
        return KafkaChoice("environment", address, f"{address} from {KAFKA_VARIABLE}")
    if not engine.answers():
        return KafkaChoice("local")
    image = environment.get(IMAGE_VARIABLE) or default_image
    problem = engine.problem_with(image)
    if problem is None:
        return KafkaChoice("docker", image)
    fix = f"set {IMAGE_VARIABLE} to an image that is there"
    return KafkaChoice("local", note=f"Docker answers, but not with {image}: {problem}; {fix}")


def bridge_address(pools: Sequence[Mapping[str, str]]) -> str:
    """The engine's own end of a bridge network, where ports published by containers are reached.

    An engine of its first hour names the subnet alone; the bridge has its first address.

    Args:
        pools: `IPAM.Config` of `docker network inspect`; one of them is of IPv4.
    """
    for pool in pools:
        subnet = ipaddress.ip_network(pool["Subnet"])
        if subnet.version == 4:
            return pool.get("Gateway") or str(subnet[1])
    raise AssertionError(f"the bridge has no IPv4 subnet: {list(pools)}")


class DockerCli:
    """The engine that the `docker` program talks to."""

    def __init__(
        self,
        program: str = "docker",
        *,
        answer_timeout_s: float = 15.0,
        pull_timeout_s: float = 600.0,
    ) -> None:
        """Nothing is asked yet.

        Args:
            program: Name or path of the program.
            answer_timeout_s: How long the engine, and the registry at a pull, may be silent.
            pull_timeout_s: How long a pull may take once the registry has answered.
        """
        self._program = program
        self._answer_timeout_s = answer_timeout_s
        self._pull_timeout_s = pull_timeout_s

    def answers(self) -> bool:
        """Whether `docker info` succeeds."""
        return self._succeeds("info")

    def problem_with(self, image: str) -> str | None:
        """Pulls the image unless it is here; the last line of a failed pull."""
        if self._succeeds("image", "inspect", image):
            return None
        command = [self._program, "pull", image]
        # Leaving the block waits for the end of a program that has been killed.
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        ) as pull:
            # The first line comes when the registry has answered or can not be reached. A network
            # that swallows packets must not cost the minutes that a download may take.
            if not self._speaks(pull):
                pull.kill()
                return f"no answer of its registry within {self._answer_timeout_s:g} s"
            try:
                said, _ = pull.communicate(timeout=self._pull_timeout_s)
            except subprocess.TimeoutExpired:
                pull.kill()
                return f"not pulled within {self._pull_timeout_s:g} s"
        lines = said.decode(errors="replace").strip().splitlines()
        if pull.returncode == 0:
            return None
        return (
            lines[-1].removeprefix("Error response from daemon: ") if lines else "the pull failed"
        )

    def _speaks(self, process: subprocess.Popen[bytes]) -> bool:
        with selectors.DefaultSelector() as selector:
            assert process.stdout is not None
            selector.register(process.stdout, selectors.EVENT_READ)
            return bool(selector.select(self._answer_timeout_s))

    def _succeeds(self, *arguments: str) -> bool:
        command = [self._program, *arguments]
        try:
            done = subprocess.run(
                command, capture_output=True, check=False, timeout=self._answer_timeout_s
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


# -- names and waiting ----------------------------------------------------------------------------


def unique_name(prefix: str) -> str:
    """A name that no other test and no other run has; not from the seeded generator."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


def poll_until(consumer: ShareConsumer, count: int, timeout_s: float = 30) -> list[Message]:
    """Polls until `count` messages came (1 in explicit mode: the next poll wants an answer)."""
    found: list[Message] = []

    def enough() -> bool:
        found.extend(consumer.poll(0.2))
        return len(found) >= count

    eventually(enough, timeout_s, f"{count} messages")
    return found


def explicit(address: str, group: str, most: int | None = None) -> dict[str, object]:
    """The configuration of a consumer that acknowledges each record; `most`: of them in a poll."""
    config: dict[str, object] = {
        "bootstrap.servers": address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
    }
    return config if most is None else {**config, "max.poll.records": most}


class _Attempts:
    """Remembers what the last probe gave, and how long to pause before the next one."""

    def __init__(self, deadline_s: float, what: str) -> None:
        self._what = what
        self._deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s
        self._pause_s = FIRST_PAUSE_S
        self._count = 0
        self._error: Exception | None = None
        self._value: object = None

    def failed(self, value: object, error: Exception | None) -> float:
        """Notes a failed probe; returns the pause, or raises AssertionError when time is over."""
        self._count += 1
        self._value, self._error = value, error
        if time.monotonic() >= self._end:
            raise AssertionError(self._text()) from error
        pause_s = min(self._pause_s, max(0.0, self._end - time.monotonic()))
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s

    def _text(self) -> str:
        error = self._error
        last = f"value {self._value!r}" if error is None else f"{type(error).__name__}: {error}"
        tries = f"{self._count} probe{'s' if self._count > 1 else ''}"
        return f"not within {self._deadline_s} s ({tries}): {self._what}; last {last}"


def eventually(
    probe: Callable[[], T | None], deadline_s: float = 10.0, what: str | None = None
) -> T:
    """Calls a probe until it returns something truthy, and returns that.

    An exception of the probe (a failed assert too) counts as not yet. The probe is called at least
    once, and once more when the time is over.

    Args:
        probe: What to try.
        deadline_s: How long to try.
        what: What is waited for, in words, for the message; the probe's name by default.

    Raises:
        AssertionError: Time is over; names the last value or exception.
    """
    attempts = _Attempts(deadline_s, what or _name(probe))
    while True:
        value: T | None = None
        error: Exception | None = None
        try:
            value = probe()
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is reported at the end
            error = raised
        if value:
            return value
        time.sleep(attempts.failed(value, error))


def columns_of(rows: Sequence[tuple[int, int, T]]) -> tuple[list[int], list[int], list[T]]:
    """Ranges (first offset, last offset, value) as three columns."""
    return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]


@overload
async def eventually_async(
    probe: Callable[[], Awaitable[T | None]], deadline_s: float = ..., what: str | None = ...
) -> T: ...
@overload
async def eventually_async(
    probe: Callable[[], T | None], deadline_s: float = ..., what: str | None = ...
) -> T: ...
async def eventually_async(
    probe: Callable[[], Any], deadline_s: float = 10.0, what: str | None = None
) -> Any:
    """The same as `eventually` on the running loop; the probe is a function or a coroutine one.

    A coroutine that does not return is cancelled when the time is over.
    """
    attempts = _Attempts(deadline_s, what or _name(probe))
    end = time.monotonic() + deadline_s
    while True:
        value: Any = None
        error: Exception | None = None
        try:
            answer = probe()
            if inspect.isawaitable(answer):
                # Never less than a moment: the last probe has to have a chance.
                async with asyncio.timeout(max(LONGEST_PAUSE_S, end - time.monotonic())):
                    value = await answer
            else:
                value = answer
        except Exception as raised:  # noqa: BLE001 - whatever it is, it is reported at the end
            error = raised
        if value:
            return value
        await asyncio.sleep(attempts.failed(value, error))


def _name(probe: Callable[[], object]) -> str:
    return getattr(probe, "__qualname__", None) or repr(probe)


def named(*scopes: PauseScope) -> tuple[list[tuple[str, tuple[int, ...]]], list[str]]:
    """Topics and members, as an operator names what is to be paused."""
    topics = [
        (scope.topic, () if scope.partition is None else (scope.partition,))
        for scope in scopes
        if scope.topic
    ]
    return topics, [scope.member_id for scope in scopes if scope.member_id]


class PatientTopics(Topics):
    """Topics of a broker that keeps a deleted name for a moment: those with ZooKeeper do."""

    def create(
        self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None
    ) -> None:
        def created() -> bool:
            try:
                super(PatientTopics, self).create(name, partitions=partitions, config=config)
            except DevenvError as error:
                if "TOPIC_ALREADY_EXISTS" in error.message:
                    return False
                raise
            return True

        eventually(created, 20, what=f"topic {name} can be made")
