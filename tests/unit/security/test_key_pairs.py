"""A server's certificate and key: what is refused, what is kept, and when it ends."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from sharecoord.config.process_settings import ManagementConfig, TlsConfig
from sharecoord.errors import InvalidConfigError
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair, days_left, listener_pair, management_tls
from tests.certificates import Authority, Live, Pair, replace_file


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def first(ca: Authority) -> Pair:
    return ca.issue("first")


@pytest.fixture(scope="module")
def second(ca: Authority) -> Pair:
    return ca.issue("second")


@pytest.fixture
def live(tmp_path: Path, ca: Authority, first: Pair) -> Live:
    return Live(tmp_path / "live", first, ca.certificate)


def settings_of(live: Live) -> TlsConfig:
    return TlsConfig(
        cert_file=str(live.certificate),
        key_file=str(live.key),
        client_ca_file=str(live.authorities),
    )


def watched(live: Live) -> WatchedFiles[KeyPair]:
    pair = listener_pair(settings_of(live))
    assert pair is not None
    return pair


def test_without_a_certificate_there_is_nothing_to_watch() -> None:
    assert listener_pair(TlsConfig()) is None
    assert management_tls(ManagementConfig()) is None


def test_a_new_pair_takes_the_place_of_the_old_one(live: Live, first: Pair, second: Pair) -> None:
    pair = watched(live)
    assert pair.value.chain == first.certificate.read_bytes()
    live.put(second)
    assert pair.look()
    assert pair.value.chain == second.certificate.read_bytes()
    assert pair.value.key == second.key.read_bytes()
    assert not pair.look()


def test_a_new_certificate_waits_for_its_key(live: Live, first: Pair, second: Pair) -> None:
    pair = watched(live)
    replace_file(live.certificate, second.certificate.read_bytes())
    assert not pair.look()
    assert "not the key of the first certificate in tls.cert.file" in pair.problem
    assert pair.value.chain == first.certificate.read_bytes()
    replace_file(live.key, second.key.read_bytes())
    assert pair.look()
    assert pair.problem == ""
    assert pair.value.chain == second.certificate.read_bytes()


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("certificate", b"", "tls.cert.file: no certificate can be read"),
        ("certificate", b"\xff\x00", "tls.cert.file: no certificate can be read"),
        (
            "certificate",
            b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
            "tls.cert.file: no certificate can be read",
        ),
        ("key", b"", "tls.key.file: no private key can be read"),
        (
            "key",
            b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
            "tls.key.file: no private key can be read",
        ),
        ("authorities", b"# none yet\n", "tls.client.ca.file: no certificate can be read"),
    ],
)
def test_what_can_not_be_used_is_refused_and_changes_nothing(
    live: Live, file: str, content: bytes, said: str
) -> None:
    pair = watched(live)
    before = pair.value
    replace_file(getattr(live, file), content)
    assert not pair.look()
    assert said in pair.problem
    assert pair.value is before
    with pytest.raises(InvalidConfigError, match=said):
        watched(live)


def test_a_file_that_is_gone_changes_nothing(live: Live) -> None:
    pair = watched(live)
    live.key.unlink()
    assert not pair.look()
    assert "tls.key.file: can not read" in pair.problem
    assert pair.value.key


def test_an_encrypted_key_is_refused_with_the_command(tmp_path: Path, ca: Authority) -> None:
    live = Live(tmp_path / "locked", ca.issue("locked", password="s3cret"), ca.certificate)
    with pytest.raises(InvalidConfigError, match=r"tls\.key\.file: the key is encrypted.*openssl"):
        watched(live)


def test_the_first_end_of_each_file_is_told(tmp_path: Path, ca: Authority, first: Pair) -> None:
    short = ca.issue("short", dates=("260101000000Z", "490101000000Z"))
    soon = ca.issue("soon", dates=("260101000000Z", "480101000000Z"))
    both = tmp_path / "both.pem"
    both.write_bytes(short.certificate.read_bytes() + soon.certificate.read_bytes())
    pair = watched(Live(tmp_path / "live", first, both))
    # 1 January 2048, and the two days of `Authority`.
    assert pair.value.ends_s["tls.client.ca.file"] == 2_461_449_600.0
    left = days_left(pair.value.ends_s)
    assert set(left) == {"tls.cert.file", "tls.client.ca.file"}
    assert 1.9 < left["tls.cert.file"] <= 2.0


def test_a_certificate_that_has_ended_is_used_and_said(tmp_path: Path, ca: Authority) -> None:
    old = ca.issue("old", dates=("200101000000Z", "200102000000Z"))
    with structlog.testing.capture_logs() as logs:
        pair = watched(Live(tmp_path / "old", old, ca.certificate))
    assert [(each["log_level"], each["setting"]) for each in logs] == [("warning", "tls.cert.file")]
    assert days_left(pair.value.ends_s)["tls.cert.file"] < 0


def test_a_pair_is_shown_without_its_key(live: Live) -> None:
    assert "PRIVATE" not in repr(watched(live).value)
