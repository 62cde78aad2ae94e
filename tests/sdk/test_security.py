"""TLS and credentials: the same for both shells."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from sharecoord_sdk import KafkaError, KafkaException

from tests.sdk.driver import Drivers
from tests.sdk.fake_coordinator import FakeCoordinator, Refusal, make_batch
from tests.support import eventually


@dataclass(frozen=True)
class Certificates:
    """Files of one certificate that is its own CA."""

    certificate: Path
    key: Path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    folder = tmp_path_factory.mktemp("tls")
    made = Certificates(folder / "cert.pem", folder / "key.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(made.key), "-out", str(made.certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return made


@pytest.fixture
def secure(certificates: Certificates) -> Iterator[FakeCoordinator]:
    pair = (certificates.key.read_bytes(), certificates.certificate.read_bytes())
    credentials = grpc.ssl_server_credentials(
        [pair], root_certificates=pair[1], require_client_auth=True
    )
    fake = FakeCoordinator("localhost:0", credentials)
    yield fake
    fake.stop()


def config(address: str, certificates: Certificates, **more: Any) -> dict[str, Any]:
    """A configuration with client certificates."""
    return {
        "bootstrap.servers": address,
        "group.id": "g",
        "security.protocol": "ssl",
        "ssl.ca.location": str(certificates.certificate),
        "ssl.certificate.location": str(certificates.certificate),
        "ssl.key.pem": certificates.key.read_text(),
        **{name.replace("_", "."): value for name, value in more.items()},
    }


def test_tls_with_client_certificates(
    drivers: Drivers, secure: FakeCoordinator, certificates: Certificates
) -> None:
    consumer = drivers.make_with(config(secure.address, certificates))
    consumer.subscribe(["t"])
    stream = secure.stream()
    assert "authorization" not in stream.metadata
    stream.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1
    consumer.close()


def test_plain_credentials_and_their_replacement(
    drivers: Drivers, secure: FakeCoordinator, certificates: Certificates
) -> None:
    secure.script.refusals = [Refusal(grpc.StatusCode.UNAUTHENTICATED, "no such user")]
    consumer = drivers.make_with(
        config(
            secure.address,
            certificates,
            security_protocol="SASL_SSL",
            sasl_mechanism="PLAIN",
            sasl_username="u",
            sasl_password="p",
        )
    )
    consumer.subscribe(["t"])
    assert _plain(secure.stream().metadata) == "u:p"
    with pytest.raises(KafkaException, match=r"sasl\.username") as caught:
        consumer.poll(10)
    assert caught.value.args[0].code() == KafkaError._AUTHENTICATION
    consumer.set_sasl_credentials("v", "q")

    def next_stream() -> Any:
        consumer.poll(0.05)
        return secure.stream_now()

    assert _plain(eventually(next_stream).metadata) == "v:q"
    consumer.close()


def test_new_credentials_are_tried_at_once_and_stand_in_no_error(
    drivers: Drivers, secure: FakeCoordinator, certificates: Certificates
) -> None:
    refusal = Refusal(grpc.StatusCode.UNAUTHENTICATED, "no such user", "UNAUTHENTICATED")
    secure.script.refusals = [refusal] * 4
    plain = {"security_protocol": "sasl_ssl", "sasl_mechanism": "PLAIN", "sasl_username": "u"}
    consumer = drivers.make_with(config(secure.address, certificates, **plain, sasl_password="p"))
    consumer.subscribe(["t"])
    for number in range(4):
        # The waits of somebody who is refused grow to half a minute; this test would see them.
        with pytest.raises(KafkaException, match="no such user"):
            consumer.poll(10)
        with pytest.raises(ValueError, match="argument 2 holds a NUL") as caught:
            consumer.set_sasl_credentials("u", "s3cret\x00")
        assert "s3cret" not in str(caught.value)
        with pytest.raises(ValueError, match="argument 1 must not have a colon"):
            consumer.set_sasl_credentials("u:v", "s3cret")
        consumer.set_sasl_credentials("u", f"p{number}")
    assert consumer.poll(0.05).is_empty()
    seen = [_plain(secure.stream().metadata) for _ in range(5)]
    assert seen == ["u:p", "u:p0", "u:p1", "u:p2", "u:p3"]


def _plain(metadata: dict[str, str]) -> str:
    kind, _, encoded = metadata["authorization"].partition(" ")
    assert kind == "Basic"
    return base64.b64decode(encoded).decode()


def test_oauth_tokens_come_from_the_callback(
    drivers: Drivers, secure: FakeCoordinator, certificates: Certificates
) -> None:
    asked: list[str] = []

    def oauth_cb(given: str) -> tuple[str, float]:
        asked.append(given)
        if len(asked) == 1:
            raise RuntimeError("no token today")
        return "secret", 1e12

    consumer = drivers.make_with(
        config(
            secure.address,
            certificates,
            security_protocol="sasl_ssl",
            sasl_mechanisms="OAUTHBEARER",
            sasl_oauthbearer_config="scope=x",
        )
        | {"oauth_cb": oauth_cb, "reconnect.backoff.ms": 1}
    )
    consumer.subscribe(["t"])
    with pytest.raises(KafkaException, match="no token today"):
        consumer.poll(10)

    def next_stream() -> Any:
        consumer.poll(0.05)
        return secure.stream_now()

    stream = eventually(next_stream)
    assert stream.metadata["authorization"] == "Bearer secret"
    assert asked == ["scope=x", "scope=x"]
    consumer.close()


def test_unreadable_certificates_are_named(
    drivers: Drivers, coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    found = tmp_path / "no-such-ca.pem"
    config = {
        "bootstrap.servers": coordinator.address,
        "group.id": "g",
        "security.protocol": "ssl",
        "ssl.ca.location": str(found),
    }
    with pytest.raises(ValueError, match=r"ssl\.ca\.location.*no-such-ca\.pem.*No such file"):
        drivers.make_with(config)
    found.write_text("-----BEGIN CERTIFICATE-----", encoding="ascii")
    with pytest.raises(ValueError, match=r"ssl\.ca\.location.*no certificates that can be read"):
        drivers.make_with(config)


def test_a_certificate_of_somebody_else_is_not_trusted(
    drivers: Drivers, secure: FakeCoordinator, certificates: Certificates
) -> None:
    heard: list[KafkaError] = []
    wrong = config(secure.address, certificates)
    del wrong["ssl.ca.location"]
    consumer = drivers.make_with(
        wrong | {"error_cb": heard.append, "socket.connection.setup.timeout.ms": 1000}
    )
    consumer.subscribe(["t"])

    def told() -> bool:
        assert consumer.poll(0.05).is_empty()
        return bool(heard)

    eventually(told)
    assert secure.streams_seen == []
    assert heard[0].code() == KafkaError._SSL
    assert "CERTIFICATE_VERIFY_FAILED" in heard[0].str()
    assert "ssl.ca.location" in heard[0].str()


QUIET_PROGRAM = """
import sys, time
from sharecoord_sdk import ShareConsumer
heard = []
conf = {"bootstrap.servers": sys.argv[1], "group.id": "g", "security.protocol": "ssl",
        "error_cb": heard.append, "socket.connection.setup.timeout.ms": 1000}
with ShareConsumer(conf) as consumer:
    consumer.subscribe(["t"])
    until_s = time.monotonic() + 20
    while not heard and time.monotonic() < until_s:
        consumer.poll(0.05)
print(heard[0].str())
"""


def test_a_failed_handshake_is_said_by_the_sdk_alone(secure: FakeCoordinator) -> None:
    """A process of its own: grpc reads how much it prints when it is imported."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", QUIET_PROGRAM, secure.address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "signed by no CA" in done.stdout
    lines = done.stderr.splitlines()
    assert [line for line in lines if "signed by no CA" not in line] == []


def test_an_http_proxy_of_the_environment_is_for_other_programs(
    drivers: Drivers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    coordinator = FakeCoordinator("127.0.0.1:0")
    try:
        consumer = drivers.make(coordinator.address)
        consumer.subscribe(["t"])
        coordinator.stream().send(make_batch([b"a"]))
        assert len(consumer.poll(10)) == 1
        consumer.close()
    finally:
        coordinator.stop()
