"""TLS: who is trusted, who is not, and which setting mends it."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from sharecoord.errors import (
    InvalidConfigError,
    KafkaUnavailableError,
    SharecoordError,
    UnauthenticatedError,
)
from sharecoord.kafka.wire import held_files
from sharecoord.kafka.wire import tls as module
from sharecoord.kafka.wire.broker import Broker, BrokerOptions
from sharecoord.kafka.wire.faults import why_not_connected
from sharecoord.kafka.wire.keys import Settings
from sharecoord.kafka.wire.security import security_of
from sharecoord.kafka.wire.tls import Tls
from sharecoord.security.key_pairs import days_left
from tests.certificates import Authority, Live, Pair, replace_file
from tests.unit.kafka.wire.fake_broker import FakeBroker

OPTIONS = BrokerOptions(backoff_s=0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def ca(folder: Path) -> Authority:
    return Authority(folder)


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Authority:
    return Authority(folder, "stranger")


@pytest.fixture(scope="module")
def server(ca: Authority) -> Pair:
    return ca.issue("server")


@pytest.fixture(scope="module")
def client(ca: Authority) -> Pair:
    return ca.issue("client")


def ssl_settings(ca: Authority, **more: str | Path) -> dict[str, str]:
    settings = {"ssl_ca_location": ca.certificate, **more}
    named = {key.replace("_", "."): str(value) for key, value in settings.items() if value}
    return {"security.protocol": "ssl", **named}


def with_pair(pair: Pair) -> dict[str, Path]:
    return {"ssl_certificate_location": pair.certificate, "ssl_key_location": pair.key}


@asynccontextmanager
async def broker_with(pair: Pair, settings: Mapping[str, str], **more: Path):  # type: ignore[no-untyped-def]
    async with FakeBroker(tls=pair.server(**more)) as fake:
        broker = Broker(fake.endpoint, security_of(settings), OPTIONS)
        yield broker
        broker.close()


async def refused(broker: Broker) -> SharecoordError:
    with pytest.raises(SharecoordError) as caught:
        await broker.call_raw(3, 12, b"", timeout_s=10.0)
    return caught.value


async def works(pair: Pair, settings: Mapping[str, str], **more: Path) -> None:
    async with broker_with(pair, settings, **more) as broker:
        await broker.connected()


async def test_a_certificate_of_the_ca_is_trusted(ca: Authority, server: Pair) -> None:
    await works(server, ssl_settings(ca))


async def test_large_answers_are_whole(ca: Authority, server: Pair) -> None:
    content = bytes(range(256)) * 12_288
    async with FakeBroker(tls=server.server()) as fake:
        fake.on(3, lambda request: b"\0" + content)
        broker = Broker(fake.endpoint, security_of(ssl_settings(ca)), OPTIONS)
        asked = (broker.call_raw(3, 12, b"", timeout_s=20.0) for _ in range(3))
        for answer in await asyncio.gather(*asked):
            assert answer == content
        broker.close()


async def test_the_ca_may_be_a_text_or_a_directory(
    ca: Authority, server: Pair, tmp_path: Path
) -> None:
    text = ca.certificate.read_text()
    await works(server, ssl_settings(ca, ssl_ca_location="", ssl_ca_pem=text))
    shutil.copy(ca.certificate, tmp_path / "ca.pem")
    rehash = ["openssl", "rehash", str(tmp_path)]
    await asyncio.to_thread(subprocess.run, rehash, check=True, capture_output=True)
    await works(server, ssl_settings(ca, ssl_ca_location=tmp_path))


async def test_an_unknown_ca_names_the_setting(stranger: Authority, server: Pair) -> None:
    async with broker_with(server, ssl_settings(stranger)) as broker:
        error = await refused(broker)
    assert isinstance(error, UnauthenticatedError)
    assert "is not good: unable to get local issuer certificate" in str(error)
    assert "kafka.ssl.ca.location" in str(error)


async def test_a_wrong_name_names_the_setting_and_may_be_let_pass(ca: Authority) -> None:
    other = ca.issue("other", hosts=("DNS:other.example",))
    async with broker_with(other, ssl_settings(ca)) as broker:
        error = await refused(broker)
    assert isinstance(error, UnauthenticatedError)
    assert "IP address mismatch" in str(error)
    assert "kafka.ssl.endpoint.identification.algorithm=none" in str(error)
    await works(other, ssl_settings(ca, ssl_endpoint_identification_algorithm="none"))


async def test_an_old_certificate_is_to_be_renewed(ca: Authority) -> None:
    old = ca.issue("old", dates=("200101000000Z", "200102000000Z"))
    async with broker_with(old, ssl_settings(ca)) as broker:
        assert "has expired; renew the broker's" in str(await refused(broker))


async def test_nothing_is_verified_where_it_is_switched_off(
    stranger: Authority, server: Pair
) -> None:
    off = {"enable.ssl.certificate.verification": "false"}
    await works(server, {**ssl_settings(stranger), **off})


async def test_a_revoked_certificate(ca: Authority) -> None:
    pair = ca.issue("revoked")
    await works(pair, ssl_settings(ca, ssl_crl_location=ca.revoked()))
    crl = ca.revoked(pair)
    async with broker_with(pair, ssl_settings(ca, ssl_crl_location=crl)) as broker:
        assert "revoked" in str(await refused(broker))


# -- our certificate ------------------------------------------------------------------------------


async def test_a_broker_that_wants_a_certificate(ca: Authority, server: Pair, client: Pair) -> None:
    async with broker_with(server, ssl_settings(ca), clients=ca.certificate) as broker:
        # This server ends the connection without the alert that Kafka's sends.
        error = await refused(broker)
    assert "kafka.ssl.certificate.location and kafka.ssl.key.location" in str(error)
    await works(server, ssl_settings(ca, **with_pair(client)), clients=ca.certificate)
    both = ssl_settings(ca, ssl_certificate_location=client.together())
    await works(server, both, clients=ca.certificate)


@pytest.mark.parametrize(
    ("reason", "kind", "said"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", UnauthenticatedError, "kafka.ssl.certificate.locat"),
        ("TLSV1_ALERT_UNKNOWN_CA", UnauthenticatedError, "to the broker's ssl.truststore"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", UnauthenticatedError, "has expired: renew it"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", KafkaUnavailableError, "kafka.ssl.cipher.suites"),
        ("WRONG_VERSION_NUMBER", KafkaUnavailableError, "kafka.security.protocol=plaintext"),
        ("SOMETHING_NEW", KafkaUnavailableError, "(something new): look at the broker's log"),
    ],
)
def test_what_openssl_says_becomes_a_setting(
    reason: str, kind: type[SharecoordError], said: str
) -> None:
    error = ssl.SSLError(1, "[SSL]")
    error.reason = reason
    found = why_not_connected("kafka:9093", error)
    assert type(found) is kind
    assert said in str(found)


async def test_certificate_and_key_may_be_texts(ca: Authority, server: Pair) -> None:
    pair = ca.issue("locked", password="s3cret")
    texts = {
        "ssl.certificate.pem": pair.certificate.read_text(),
        "ssl.key.pem": pair.key.read_text(),
        "ssl.key.password": "s3cret",
    }
    await works(server, {**ssl_settings(ca), **texts}, clients=ca.certificate)


@pytest.mark.parametrize(
    ("password", "said"), [("", "is not set"), ("wrong", "does not open the key")]
)
def test_an_encrypted_key_is_never_asked_for_at_the_terminal(
    ca: Authority, password: str, said: str
) -> None:
    pair = ca.issue("locked", password="s3cret")
    settings = ssl_settings(ca, **with_pair(pair), ssl_key_password=password)
    with pytest.raises(InvalidConfigError, match=rf"kafka\.ssl\.key\.password {said}"):
        security_of(settings)


def test_what_does_not_belong_together(ca: Authority, server: Pair, client: Pair) -> None:
    mixed = Pair(server.certificate, client.key)
    with pytest.raises(InvalidConfigError, match="is not the key of the certificate"):
        security_of(ssl_settings(ca, **with_pair(mixed)))
    alone = ssl_settings(ca, ssl_certificate_location=client.certificate)
    with pytest.raises(InvalidConfigError, match="the key stands in the file of the certificate"):
        security_of(alone)
    with pytest.raises(InvalidConfigError, match=r"certificate\.location is not"):
        security_of(ssl_settings(ca, ssl_key_location=client.key))


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"ssl.ca.location": "/nowhere.pem"}, "ssl.ca.location can not be used: No such file"),
        ({"ssl.ca.location": __file__}, "ssl.ca.location can not be used"),
        ({"ssl.ca.pem": "-----"}, "ssl.ca.pem can not be used"),
        ({"ssl.crl.location": "/nowhere.pem"}, "ssl.crl.location can not be used"),
        ({"ssl.cipher.suites": "NONE-SUCH"}, "ssl.cipher.suites can not be used"),
        ({"ssl.endpoint.identification.algorithm": "ldaps"}, "it is https or none"),
        ({"enable.ssl.certificate.verification": "no"}, "it is true or false"),
    ],
)
def test_what_can_not_be_used_is_named(settings: dict[str, str], key: str) -> None:
    with pytest.raises(InvalidConfigError, match=key):
        security_of({"security.protocol": "ssl", **settings})


# -- the wrong port -------------------------------------------------------------------------------


async def test_tls_at_a_plaintext_port(ca: Authority) -> None:
    async with FakeBroker() as fake:
        broker = Broker(fake.endpoint, security_of(ssl_settings(ca)), OPTIONS)
        error = await refused(broker)
        broker.close()
    assert isinstance(error, KafkaUnavailableError)
    assert "does the port speak TLS?" in str(error)
    assert "kafka.security.protocol=plaintext" in str(error)


async def test_plaintext_at_a_tls_port(server: Pair) -> None:
    async with broker_with(server, {}) as broker:
        error = await refused(broker)
    assert isinstance(error, KafkaUnavailableError)
    assert "set kafka.security.protocol=ssl" in str(error)


# -- files that change ----------------------------------------------------------------------------


async def test_certificates_are_read_again_when_their_files_change(
    ca: Authority, stranger: Authority, server: Pair, tmp_path: Path
) -> None:
    place = tmp_path / "ca.pem"
    shutil.copy(stranger.certificate, place)
    async with broker_with(server, ssl_settings(ca, ssl_ca_location=place)) as broker:
        await refused(broker)
        shutil.copy(ca.certificate, place)
        await broker.connected()


def test_a_change_that_can_not_be_read_changes_nothing_and_is_said_once(
    ca: Authority, client: Pair, tmp_path: Path
) -> None:
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    shutil.copy(client.certificate, certificate)
    shutil.copy(client.key, key)
    tls = Tls(ssl_settings(ca, **with_pair(Pair(certificate, key))))
    first = tls.context()
    assert tls.context() is first
    renewed = ca.issue("renewed")
    with structlog.testing.capture_logs() as logs:
        shutil.copy(renewed.certificate, certificate)
        assert tls.context() is tls.context() is first
        certificate.unlink()
        assert tls.context() is first
        shutil.copy(renewed.certificate, certificate)
        shutil.copy(renewed.key, key)
        assert tls.context() is not first
    assert [each["log_level"] for each in logs] == ["warning", "warning", "info"]
    assert "is not the key of the certificate" in logs[0]["why"]


def test_a_watch_hears_of_new_files_and_of_problems(
    ca: Authority, client: Pair, tmp_path: Path
) -> None:
    live = Live(tmp_path / "live", client)
    tls = Tls(ssl_settings(ca, **with_pair(Pair(live.certificate, live.key))))
    assert tls.settings == (
        "kafka.ssl.ca.location, kafka.ssl.certificate.location, kafka.ssl.key.location"
    )
    before = tls.context()
    assert (tls.look(), tls.problem) == (False, "")
    replace_file(live.key, b"")
    assert not tls.look()
    assert "kafka.ssl.key.* can not be used" in tls.problem
    assert not tls.look()
    assert tls.context() is before
    assert tls.contents["ssl.key.location"] == client.key.read_bytes()
    renewed = ca.issue("renewed")
    live.put(renewed)
    assert tls.look()
    assert tls.problem == ""
    assert tls.contents["ssl.key.location"] == renewed.key.read_bytes()
    assert tls.context() is not before
    live.key.unlink()
    assert not tls.look()
    assert tls.problem
    live.put(client)
    # A connection may come before the watch, which is told all the same, and once.
    assert tls.context() is not before
    assert tls.look()
    assert not tls.look()


def test_files_that_change_while_they_are_read_wait_for_the_next_look(
    ca: Authority, client: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(tmp_path / "live", client)
    tls = Tls(ssl_settings(ca, **with_pair(Pair(live.certificate, live.key))))
    second, third = ca.issue("second"), ca.issue("third")

    def contents_of(settings: Settings) -> dict[str, bytes]:
        live.put(third)
        return held_files.contents_of(settings)

    live.put(second)
    with monkeypatch.context() as patch:
        patch.setattr(module, "contents_of", contents_of)
        assert not tls.look()
    assert tls.contents["ssl.key.location"] == client.key.read_bytes()
    assert tls.look()
    assert tls.contents["ssl.key.location"] == third.key.read_bytes()


def test_the_end_of_our_certificate_is_known(ca: Authority, client: Pair, tmp_path: Path) -> None:
    setting = "kafka.ssl.certificate.location"
    assert Tls(ssl_settings(ca)).ends_s == {}
    live = Live(tmp_path / "live", client)
    tls = Tls(
        ssl_settings(ca, ssl_certificate_location=live.certificate, ssl_key_location=live.key)
    )
    assert 1.9 < days_left(tls.ends_s)[setting] <= 2.0
    live.put(ca.issue("long", dates=("260101000000Z", "480101000000Z")))
    assert tls.look()
    assert tls.ends_s == {setting: 2_461_449_600.0}
    # Key and certificate in one file.
    both = Tls(ssl_settings(ca, ssl_certificate_location=client.together()))
    assert both.ends_s.keys() == {setting}
    text = ssl_settings(ca, ssl_certificate_pem=client.together().read_text())
    assert Tls(text).ends_s.keys() == {"kafka.ssl.certificate.pem"}


async def test_new_connections_bring_the_new_certificate_and_open_ones_stay(
    ca: Authority, stranger: Authority, server: Pair, client: Pair, tmp_path: Path
) -> None:
    live = Live(tmp_path / "live", client)
    settings = ssl_settings(ca, **with_pair(Pair(live.certificate, live.key)))
    async with FakeBroker(tls=server.server(clients=ca.certificate)) as fake:
        fake.on(3, lambda request: b"\0" + request.body)
        security = security_of(settings)
        first = Broker(fake.endpoint, security, OPTIONS)
        await first.connected()
        live.put(stranger.issue("stranger"))
        assert isinstance(await refused(Broker(fake.endpoint, security, OPTIONS)), SharecoordError)
        await first.call_raw(3, 12, b"x", timeout_s=10.0)
        live.put(ca.issue("renewed"))
        second = Broker(fake.endpoint, security, OPTIONS)
        await second.connected()
        # What can not be used leaves the last good pair in force, for connections to come as well.
        replace_file(live.key, b"broken")
        third = Broker(fake.endpoint, security, OPTIONS)
        await third.connected()
        for each in (first, second, third):
            each.close()
