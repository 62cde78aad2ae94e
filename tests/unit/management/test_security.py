"""The management port over TLS, with clients' certificates, and metrics behind a token."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from sharecoord.config.process_settings import ManagementConfig
from sharecoord.errors import InvalidConfigError
from sharecoord.management.server import ManagementServer, metrics_token
from sharecoord.runtime.status.status import StatusBoard
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import ServerTls, management_tls
from tests.certificates import Authority, Live, Pair, replace_file

TIMEOUT_S = 30
HOST = "127.0.0.1"
"""Not a name: at its other address another program may have the same port."""
TOKEN = "0123456789abcdef0123456789abcdef"


class Served(NamedTuple):
    port: int
    tls: WatchedFiles[ServerTls]


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


@pytest.fixture(scope="module")
def pair(ca: Authority) -> Pair:
    return ca.issue("first")


@contextmanager
def running(server: ManagementServer) -> Iterator[int]:
    try:
        yield server.start()
    finally:
        server.stop()


@contextmanager
def serving(live: Live, *, clients: bool = False) -> Iterator[Served]:
    tls = management_tls(
        ManagementConfig(
            tls_cert_file=str(live.certificate),
            tls_key_file=str(live.key),
            tls_client_ca_file=str(live.authorities) if clients else "",
        )
    )
    assert tls is not None
    with running(ManagementServer(StatusBoard(), host=HOST, port=0, tls=tls)) as port:
        yield Served(port, tls)


def client_of(ca: Authority, pair: Pair | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca.certificate))
    if pair is not None:
        context.load_cert_chain(pair.certificate, pair.key)
    return context


def status_of(port: int, context: ssl.SSLContext, path: str = "/metrics") -> int:
    connection = http.client.HTTPSConnection(HOST, port, timeout=TIMEOUT_S, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


def connected(
    port: int, context: ssl.SSLContext, session: ssl.SSLSession | None = None
) -> ssl.SSLSocket:
    plain = socket.create_connection((HOST, port), timeout=TIMEOUT_S)
    return context.wrap_socket(plain, server_hostname=HOST, session=session)


def asked(connection: ssl.SSLSocket) -> bytes:
    """What comes in answer to a request on an open connection, to the end of its head."""
    connection.sendall(b"GET /healthz/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    found = b""
    while b"\r\n\r\n" not in found and (more := connection.recv(4096)):
        found += more
    return found


def answered(port: int, context: ssl.SSLContext, session: ssl.SSLSession | None) -> None:
    """Raises OSError when a new connection is not answered."""
    with connected(port, context, session) as connection:
        if not asked(connection):
            raise ConnectionError("closed without an answer")


def subject_at(port: int, *authorities: Authority) -> str:
    context = ssl.create_default_context()
    for each in authorities:
        context.load_verify_locations(each.certificate)
    with connected(port, context) as connection:
        (((_, name),),) = connection.getpeercert()["subject"]  # type: ignore[index, misc]
    return str(name)


def test_it_speaks_tls_alone(tmp_path: Path, ca: Authority, pair: Pair) -> None:
    with serving(Live(tmp_path / "live", pair)) as server:
        assert status_of(server.port, client_of(ca)) == 200
        with pytest.raises((http.client.HTTPException, OSError)):
            answer_of(server.port, "/metrics", None)


def test_new_connections_see_the_new_certificate_and_open_ones_go_on(
    tmp_path: Path, ca: Authority, pair: Pair
) -> None:
    live = Live(tmp_path / "live", pair)
    with serving(live) as server, connected(server.port, client_of(ca)) as before:
        assert b"HTTP/1.1 " in asked(before)
        live.put(ca.issue("second"))
        assert server.tls.look()
        assert subject_at(server.port, ca) == "second"
        assert b"HTTP/1.1 " in asked(before)


def test_broken_files_leave_the_old_certificate_in_force(
    tmp_path: Path, ca: Authority, pair: Pair
) -> None:
    live = Live(tmp_path / "live", pair)
    with serving(live) as server:
        replace_file(live.key, ca.issue("second").key.read_bytes())
        assert not server.tls.look()
        assert server.tls.problem.startswith("management.tls.key.file: this is not the key")
        assert subject_at(server.port, ca) == "first"


def test_who_shows_no_certificate_of_the_authority_is_refused(
    tmp_path: Path, ca: Authority, other_ca: Authority, pair: Pair
) -> None:
    live = Live(tmp_path / "live", pair, ca.certificate)
    with serving(live, clients=True) as server:
        assert status_of(server.port, client_of(ca, ca.issue("client"))) == 200
        for stranger in (None, other_ca.issue("client")):
            with pytest.raises(OSError):  # noqa: PT011 - which one is a matter of timing
                status_of(server.port, client_of(ca, stranger), "/healthz/live")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_clients_of_an_authority_that_was_taken_away_do_not_come_back(
    tmp_path: Path, ca: Authority, other_ca: Authority, pair: Pair, version: ssl.TLSVersion
) -> None:
    live = Live(tmp_path / "live", pair, ca.certificate)
    context = client_of(ca, ca.issue("client"))
    context.minimum_version = context.maximum_version = version
    with serving(live, clients=True) as server:
        with connected(server.port, context) as first:
            asked(first)
            session = first.session
        with connected(server.port, context, session) as resumed:
            assert b"HTTP/1.1 " in asked(resumed)
            # Else the next step would prove nothing.
            assert resumed.session_reused
        live.put(pair, other_ca.certificate)
        assert server.tls.look()
        for shown in (session, None):
            with pytest.raises(OSError):  # noqa: PT011 - which one is a matter of timing
                answered(server.port, context, shown)
        assert status_of(server.port, client_of(ca, other_ca.issue("client"))) == 200


# -- the token of metrics -------------------------------------------------------------------------


def answer_of(port: int, path: str, authorization: str | None) -> tuple[int, str, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=TIMEOUT_S)
    headers = {} if authorization is None else {"Authorization": authorization}
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        challenge = answer.getheader("WWW-Authenticate") or ""
        return answer.status, answer.read().decode(), challenge
    finally:
        connection.close()


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(TOKEN + "\n")
    return path


@contextmanager
def behind_token(path: Path) -> Iterator[tuple[int, WatchedFiles[bytes]]]:
    token = metrics_token(str(path))
    assert token is not None
    with running(ManagementServer(StatusBoard(), host=HOST, port=0, token=token)) as port:
        yield port, token


def test_metrics_need_the_token_and_probes_do_not(token_file: Path) -> None:
    with behind_token(token_file) as (port, _):
        for shown in (f"Bearer {TOKEN}", f"bearer {TOKEN}"):
            status, said, _ = answer_of(port, "/metrics", shown)
            assert status == 200
            assert "sharecoord_build_info" in said
        for wrong in (
            *(None, "", "Bearer", f"Bearer {TOKEN[:-1]}", f"Bearer {TOKEN}0", f"Basic {TOKEN}"),
            *(TOKEN, f"Bearer {TOKEN} {TOKEN}", f"Bearer {TOKEN.upper()}", "Bearer \xe4"),
        ):
            status, said, challenge = answer_of(port, "/metrics", wrong)
            assert (status, challenge) == (401, "Bearer"), wrong
            assert "management.metrics.token.file" in said
            assert "sharecoord_build_info" not in said
            assert TOKEN not in said
        for probe in ("/healthz/live", "/healthz/ready"):
            assert answer_of(port, probe, None)[0] in (200, 503)


def test_a_new_token_takes_the_place_of_the_old_one(token_file: Path) -> None:
    with behind_token(token_file) as (port, token):
        replace_file(token_file, TOKEN[::-1].encode())
        assert token.look()
        assert answer_of(port, "/metrics", f"Bearer {TOKEN}")[0] == 401
        assert answer_of(port, "/metrics", f"Bearer {TOKEN[::-1]}")[0] == 200
        replace_file(token_file, b"")
        assert not token.look()
        assert answer_of(port, "/metrics", f"Bearer {TOKEN[::-1]}")[0] == 200


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"short", b"two words of a token here", b"\xff" * 32, b"x" * 1025]
)
def test_what_is_no_token_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "token"
    path.write_bytes(content)
    with pytest.raises(
        InvalidConfigError, match=r"management\.metrics\.token\.file.*openssl rand"
    ) as raised:
        metrics_token(str(path))
    assert "two words" not in str(raised.value)
    assert metrics_token("") is None
