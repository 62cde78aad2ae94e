"""SASL at the Kafka port, request by request, beside a real broker's SASL listener."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import yaml

from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import free_ports
from tests.kafka_door import KafkaDoor
from tests.sasl import plain

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

USERS = {"alice": "wonder-secret", "bob": "builder-secret"}
ENDED = "the connection ended"
HANDSHAKE, AUTHENTICATE, API_VERSIONS, METADATA, LIST_GROUPS = 17, 36, 18, 3, 16
REAUTHENTICATION_MS = 60_000
ILLEGAL_STATE = 34


class Sides(NamedTuple):
    """Ports of both."""

    broker: int
    coordinator: int


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = " ".join(f'user_{name}="{secret}"' for name, secret in USERS.items())
    listener = "listener.name.sasl."
    settings = {
        f"{listener}sasl.enabled.mechanisms": "PLAIN",
        f"{listener}plain.sasl.jaas.config": f"{module} {users};",
        f"{listener}connections.max.reauth.ms": str(REAUTHENTICATION_MS),
    }
    folder = tmp_path_factory.mktemp("sides")
    (port,) = free_ports(1)
    entries = [
        {"name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest()}
        for name, secret in USERS.items()
    ]
    (folder / "tokens.yaml").write_text(yaml.safe_dump(entries))
    own = {
        "kafka.port.listen": f"localhost:{port}",
        "kafka.port.connections.max.reauth.ms": REAUTHENTICATION_MS,
        "security.tokens.file": str(folder / "tokens.yaml"),
    }
    with (
        KafkaBroker(settings=settings, listeners={"SASL": "SASL_PLAINTEXT"}) as broker,
        CoordinatorProcess(broker.bootstrap_servers, folder, settings=own),
    ):
        yield Sides(int(broker.address("SASL").rpartition(":")[2]), port)


def shake(door: KafkaDoor, mechanism: str = "PLAIN", version: int = 1) -> Any:
    answer = door.ask(HANDSHAKE, version, mechanism=mechanism)
    return answer.error_code.value, answer.mechanisms


def say(door: KafkaDoor, message: bytes, version: int = 2) -> Any:
    answer = door.ask(AUTHENTICATE, version, auth_bytes=message)
    lifetime = getattr(answer, "session_lifetime", None)
    # A broker takes a moment off.
    lives = None if lifetime is None else round(lifetime.total_seconds(), -1)
    return answer.error_code.value, bool(answer.error_message), answer.auth_bytes, lives


def greet(door: KafkaDoor) -> Any:
    names = {"client_software_name": "c", "client_software_version": "1"}
    return door.ask(API_VERSIONS, 3, **names).error_code.value


def groups(door: KafkaDoor) -> Any:
    return door.ask(LIST_GROUPS, 5, states_filter=(), types_filter=("share",)).error_code.value


def good(name: str = "alice") -> bytes:
    return plain(name, USERS[name])


SCRIPTS: dict[str, list[Callable[[KafkaDoor], Any]]] = {
    "the usual way": [greet, shake, lambda d: say(d, good()), groups],
    "without ApiVersions": [shake, lambda d: say(d, good()), groups],
    "an older version": [shake, lambda d: say(d, good(), 1), groups],
    "the oldest version": [shake, lambda d: say(d, good(), 0), groups],
    "an unknown mechanism": [greet, lambda d: shake(d, "GSSAPI"), shake],
    "a wrong password": [shake, lambda d: say(d, plain("alice", "guess")), shake],
    "an unknown user": [shake, lambda d: say(d, plain("eve", "guess")), groups],
    "for somebody else": [shake, lambda d: say(d, plain("alice", USERS["alice"], "bob")), groups],
    "for oneself": [shake, lambda d: say(d, plain("alice", USERS["alice"], "alice")), groups],
    "no message": [shake, lambda d: say(d, b""), groups],
    "a message of another mechanism": [shake, lambda d: say(d, b"n,,n=alice,r=abc"), groups],
    "a request before the handshake": [greet, groups],
    "a handshake in the middle": [shake, shake, groups],
    "proven again": [
        shake, lambda d: say(d, good()), groups, shake, lambda d: say(d, good()), groups
    ],
    "proven again as another": [shake, lambda d: say(d, good()), shake,
                                lambda d: say(d, good("bob")), groups],
    "proven again and wrong": [shake, lambda d: say(d, good()), shake,
                               lambda d: say(d, plain("alice", "guess")), groups],
    "SaslAuthenticate once too often": [
        shake, lambda d: say(d, good()), lambda d: say(d, good())
    ],
}  # fmt: skip


def played(port: int, script: list[Callable[[KafkaDoor], Any]]) -> list[Any]:
    """What each step got, up to the end of the connection."""
    found = []
    with KafkaDoor(port) as door:
        for step in script:
            try:
                found.append(step(door))
            except ConnectionError:
                return [*found, ENDED]
    return found


@pytest.mark.parametrize("script", SCRIPTS)
def test_sasl_is_answered_as_by_a_broker(sides: Sides, script: str) -> None:
    at_broker = played(sides.broker, SCRIPTS[script])
    assert played(sides.coordinator, SCRIPTS[script]) == at_broker


def test_a_request_in_the_middle_ends_the_connection_at_both(sides: Sides) -> None:
    """A broker answers it by the code of SASL out of turn before; here nothing is said."""
    assert played(sides.broker, [shake, groups, groups]) == [(0, ("PLAIN",)), ILLEGAL_STATE, ENDED]
    assert played(sides.coordinator, [shake, groups]) == [(0, ("PLAIN",)), ENDED]
