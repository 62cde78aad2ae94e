"""Certificates and keys: what can be wrong with them, and what happens when they change."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from sharecoord_sdk import KafkaError
from sharecoord_sdk._core.tls_files import (
    LOOK_EVERY_S,
    PEM_BYTES_MAX,
    Pem,
    TlsConfig,
    TlsFiles,
    TlsFilesError,
)

from tests.certificates import Authority, Pair
from tests.sdk.driver import Driver, Drivers
from tests.sdk.fake_coordinator import FakeCoordinator, FakeStream, Refusal, make_batch
from tests.support import eventually

LOGGER = logging.getLogger("sharecoord_sdk.test")
GONE = Refusal(grpc.StatusCode.UNAVAILABLE, "goes down")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def one(authority: Authority) -> Pair:
    return authority.issue("one")


@pytest.fixture(scope="module")
def two(authority: Authority) -> Pair:
    return authority.issue("two")


@pytest.fixture(scope="module")
def locked(authority: Authority) -> Pair:
    return authority.issue("locked", password="s3cret")


class Files:
    """The files that a client is configured with."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.ca, self.certificate, self.key = (folder / name for name in ("ca", "cert", "key"))
        self.ca.write_bytes(authority.certificate.read_bytes())

    def put(self, pair: Pair) -> None:
        """Replaces certificate and key, as an atomic writer does."""
        for path, new in ((self.certificate, pair.certificate), (self.key, pair.key)):
            self.write(path, new.read_bytes())

    def write(self, path: Path, content: bytes) -> None:
        fresh = path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(path)

    def config(self, password: str = "") -> TlsConfig:
        pems = (Pem(str(path), None) for path in (self.ca, self.certificate, self.key))
        return TlsConfig(*pems, password)

    def settings(self, address: str, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": address,
            "group.id": "g",
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.ca),
            "ssl.certificate.location": str(self.certificate),
            "ssl.key.location": str(self.key),
            "reconnect.backoff.ms": 1,
            **{name.replace("_", "."): value for name, value in more.items()},
        }


@pytest.fixture
def files(tmp_path: Path, authority: Authority, one: Pair) -> Files:
    made = Files(tmp_path, authority)
    made.put(one)
    return made


# -- files that can not be used -------------------------------------------------------------------


def test_good_files(files: Files, one: Pair) -> None:
    material = TlsFiles(files.config(), LOGGER).current()
    assert material.certificate == one.certificate.read_bytes()
    assert material.key == one.key.read_bytes()
    assert "PRIVATE KEY" not in repr(material)


Damage = Callable[[Files, Pair], None]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda files, _: files.ca.unlink(), r"ssl\.ca\.location '.*': No such file"),
        (lambda files, _: files.key.write_bytes(b""), r"ssl\.key\.location '.*': no PEM"),
        (lambda files, _: files.ca.write_bytes(b"\xff\x00"), r"ssl\.ca\.location '.*': no PEM"),
        (
            lambda files, _: files.ca.write_text("-----BEGIN CERTIFICATE-----\nx\n"),
            "no certificates that can be read",
        ),
        (
            lambda files, _: files.certificate.write_text(files.certificate.read_text()[:200]),
            r"ssl\.certificate\.location.*can not be read",
        ),
        (
            lambda files, two: files.key.write_bytes(two.key.read_bytes()),
            "the key is not the certificate's",
        ),
        (
            lambda files, _: files.ca.write_bytes(b" " * (PEM_BYTES_MAX + 1)),
            "more than 4 MiB",
        ),
    ],
)
def test_bad_files_are_refused_by_name(files: Files, two: Pair, damage: Damage, said: str) -> None:
    damage(files, two)
    with pytest.raises(TlsFilesError, match=said):
        TlsFiles(files.config(), LOGGER)


def test_a_folder_is_no_file(files: Files, tmp_path: Path) -> None:
    files.ca = tmp_path
    with pytest.raises(TlsFilesError, match=r"ssl\.ca\.location"):
        TlsFiles(files.config(), LOGGER)


def test_a_text_that_is_no_certificate() -> None:
    nothing = Pem(None, None)
    config = TlsConfig(Pem(None, "-----BEGIN CERTIFICATE-----\nx"), nothing, nothing)
    with pytest.raises(TlsFilesError, match=r"ssl\.ca\.pem: no certificates"):
        TlsFiles(config, LOGGER)


# -- keys with a password -------------------------------------------------------------------------


def test_a_key_with_a_password_is_opened(files: Files, locked: Pair) -> None:
    files.put(locked)
    material = TlsFiles(files.config("s3cret"), LOGGER).current()
    assert material.key is not None
    assert material.key.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert "s3cret" not in repr(files.config("s3cret"))


def test_a_password_for_a_key_that_has_none_is_not_needed(files: Files, one: Pair) -> None:
    assert TlsFiles(files.config("x"), LOGGER).current().key == one.key.read_bytes()


@pytest.mark.parametrize(
    ("password", "said"),
    [("", r"give it in ssl\.key\.password"), ("wr0ng", r"ssl\.key\.password does not open")],
)
def test_a_key_that_stays_closed(files: Files, locked: Pair, password: str, said: str) -> None:
    files.put(locked)
    with pytest.raises(TlsFilesError, match=said) as caught:
        TlsFiles(files.config(password), LOGGER)
    assert "wr0ng" not in str(caught.value)


def test_without_cryptography_the_fix_is_named(
    files: Files, locked: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put(locked)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives", None)
    with pytest.raises(TlsFilesError, match=r"pip install 'sharecoord-sdk\[tls\]'.*openssl pkey"):
        TlsFiles(files.config("s3cret"), LOGGER)


# -- files that change ----------------------------------------------------------------------------


def test_changed_files_are_used_and_told(
    files: Files, two: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    watched = TlsFiles(files.config(), LOGGER)
    before = watched.current()
    with caplog.at_level("INFO", LOGGER.name):
        assert watched.current() is before
        assert caplog.messages == []
        files.put(two)
        assert watched.current().certificate == two.certificate.read_bytes()
    assert caplog.messages == ["changed files of TLS are in use from the next connection on"]


def test_the_same_content_again_is_no_change(files: Files, one: Pair) -> None:
    watched = TlsFiles(files.config(), LOGGER)
    before = watched.current()
    files.put(one)
    assert watched.current() == before


def test_half_of_a_rotation_waits_for_the_other_half(
    files: Files, one: Pair, two: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    watched = TlsFiles(files.config(), LOGGER)
    files.write(files.certificate, two.certificate.read_bytes())
    for _ in range(3):
        assert watched.current().certificate == one.certificate.read_bytes()
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert "the former one stays in use" in warning.getMessage()
    assert "the key is not the certificate's" in warning.getMessage()
    files.write(files.key, two.key.read_bytes())
    assert watched.current().certificate == two.certificate.read_bytes()


def test_a_file_that_vanishes_or_may_not_be_read(
    files: Files, one: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    watched = TlsFiles(files.config(), LOGGER)
    files.key.unlink()
    assert watched.current().key == one.key.read_bytes()
    files.put(one)
    assert watched.current().key == one.key.read_bytes()
    assert len(caplog.records) == 1
    files.key.unlink()
    watched.current()
    assert len(caplog.records) == 2, "a problem that comes back is told again"


def test_a_connected_client_looks_at_its_files_now_and_then(
    files: Files, two: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    watched = TlsFiles(files.config(), LOGGER)
    watched.look(100.0)
    files.put(two)
    watched.look(100.0 + LOOK_EVERY_S)
    files.key.unlink()
    watched.look(100.1 + LOOK_EVERY_S)
    assert caplog.messages == []
    watched.look(100.0 + 2 * LOOK_EVERY_S)
    assert len(caplog.messages) == 1
    # Nothing was connected meanwhile, and the good version between the bad ones is there.
    assert watched.current().certificate == two.certificate.read_bytes()


def test_a_poll_says_that_a_file_of_its_connection_is_broken(
    drivers: Drivers,
    secure: FakeCoordinator,
    files: Files,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sharecoord_sdk._core.tls_files.LOOK_EVERY_S", 0.0)
    consumer = drivers.make_with(files.settings(secure.address))
    consumer.subscribe(["t"])
    stream = secure.stream()
    files.key.unlink()
    assert consumer.poll(0.01).is_empty()
    assert any("stays in use" in message for message in caplog.messages)
    assert not stream.is_over


def test_a_link_that_is_moved_is_a_change(files: Files, two: Pair, tmp_path: Path) -> None:
    """As Kubernetes replaces a mounted secret."""
    for version, pair in (("v1", None), ("v2", two)):
        folder = tmp_path / version
        folder.mkdir()
        for name, path in (("cert", files.certificate), ("key", files.key)):
            new = path if pair is None else (pair.certificate if name == "cert" else pair.key)
            (folder / name).write_bytes(new.read_bytes())
    data = tmp_path / "data"
    data.symlink_to("v1")
    files.certificate, files.key = data / "cert", data / "key"
    watched = TlsFiles(files.config(), LOGGER)
    fresh = tmp_path / "fresh"
    fresh.symlink_to("v2")
    fresh.replace(data)
    assert watched.current().certificate == two.certificate.read_bytes()


# -- connections ----------------------------------------------------------------------------------


def credentials_of(pair: Pair, authority: Authority) -> grpc.ServerCredentials:
    return grpc.ssl_server_credentials(
        [(pair.key.read_bytes(), pair.certificate.read_bytes())],
        root_certificates=authority.certificate.read_bytes(),
        require_client_auth=True,
    )


@pytest.fixture
def secure(authority: Authority, one: Pair) -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator("localhost:0", credentials_of(one, authority))
    yield fake
    fake.stop()


def next_stream(consumer: Driver, coordinator: FakeCoordinator) -> FakeStream:
    def look() -> FakeStream | None:
        assert consumer.poll(0.05).is_empty()
        return coordinator.stream_now()

    return eventually(look)


def test_a_rotation_drops_no_stream_and_the_next_one_shows_the_new_certificate(
    drivers: Drivers, secure: FakeCoordinator, files: Files, two: Pair
) -> None:
    consumer = drivers.make_with(files.settings(secure.address))
    consumer.subscribe(["t"])
    stream = secure.stream()
    assert stream.certificate_name == "one"
    files.put(two)
    stream.send(make_batch([b"a"]))
    assert len(consumer.poll(10)) == 1
    assert not stream.is_over
    stream.end(GONE)
    assert next_stream(consumer, secure).certificate_name == "two"
    assert len(secure.streams_seen) == 2


def test_a_broken_rotation_keeps_the_old_certificate_and_says_so(
    drivers: Drivers,
    secure: FakeCoordinator,
    files: Files,
    two: Pair,
    caplog: pytest.LogCaptureFixture,
) -> None:
    consumer = drivers.make_with(files.settings(secure.address))
    consumer.subscribe(["t"])
    stream = secure.stream()
    files.write(files.key, b"-----BEGIN PRIVATE KEY-----\nhalf of")
    stream.end(GONE)
    again = next_stream(consumer, secure)
    assert again.certificate_name == "one"
    told = [r.getMessage() for r in caplog.records if "stays in use" in r.getMessage()]
    assert len(told) == 1
    assert "half of" not in told[0]
    files.put(two)
    again.end(GONE)
    assert next_stream(consumer, secure).certificate_name == "two"


def test_a_certificate_that_has_ended_is_replaced_without_a_word(
    drivers: Drivers, secure: FakeCoordinator, files: Files, two: Pair
) -> None:
    consumer = drivers.make_with(files.settings(secure.address))
    consumer.subscribe(["t"])
    stream = secure.stream()
    stream.wait_for(lambda s: s.requests)
    assert consumer.poll(0.05).is_empty()
    files.put(two)
    stream.end(Refusal(grpc.StatusCode.UNAUTHENTICATED, "it has ended", "UNAUTHENTICATED"))
    assert next_stream(consumer, secure).certificate_name == "two"


def test_a_consumer_gets_in_once_its_ca_is_the_right_one(
    drivers: Drivers, secure: FakeCoordinator, files: Files, tmp_path: Path
) -> None:
    right = files.ca.read_bytes()
    stranger = Authority(tmp_path, "stranger")
    files.write(files.ca, stranger.certificate.read_bytes())
    heard: list[KafkaError] = []
    settings = files.settings(secure.address, socket_connection_setup_timeout_ms=1000)
    consumer = drivers.make_with({**settings, "error_cb": heard.append})
    consumer.subscribe(["t"])

    def told() -> bool:
        assert consumer.poll(0.05).is_empty()
        return bool(heard)

    eventually(told)
    assert heard[0].code() == KafkaError._SSL
    files.write(files.ca, right)
    assert next_stream(consumer, secure).certificate_name == "one"


def test_consumers_of_a_loop_share_a_channel_of_equal_certificates(
    secure: FakeCoordinator, files: Files, two: Pair
) -> None:
    drivers = Drivers("async")
    try:
        streams = []
        for turn in range(3):
            if turn == 2:
                files.put(two)
            consumer = drivers.make_with(files.settings(secure.address))
            consumer.subscribe(["t"])
            streams.append(secure.stream())
        assert [stream.certificate_name for stream in streams] == ["one", "one", "two"]
        assert streams[0].peer == streams[1].peer != streams[2].peer
    finally:
        drivers.finish()


def test_a_key_with_a_password_gets_a_consumer_in(
    drivers: Drivers, secure: FakeCoordinator, files: Files, locked: Pair
) -> None:
    files.put(locked)
    consumer = drivers.make_with(files.settings(secure.address, ssl_key_password="s3cret"))
    consumer.subscribe(["t"])
    assert secure.stream().certificate_name == "locked"
