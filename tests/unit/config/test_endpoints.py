"""Listen addresses, store URLs, events sinks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from sharecoord.config.endpoints import (
    EventsSink,
    EventsSinkKind,
    ListenAddress,
    StoreKind,
    TcpAddress,
    UnixAddress,
    check_listen_security,
    default_store_url,
    mask_url,
    parse_events_sink,
    parse_listen_address,
    parse_store_url,
)
from sharecoord.errors import InvalidConfigError


@pytest.mark.parametrize(
    ("text", "expected", "canonical"),
    [
        ("localhost:7070", TcpAddress("localhost", 7070), "localhost:7070"),
        ("0.0.0.0:0", TcpAddress("0.0.0.0", 0), "0.0.0.0:0"),
        ("[::1]:65535", TcpAddress("::1", 65535), "[::1]:65535"),
        ("[0:0:0:0:0:0:0:1]:1", TcpAddress("::1", 1), "[::1]:1"),
        ("[fe80::1%eth0]:80", TcpAddress("fe80::1%eth0", 80), "[fe80::1%eth0]:80"),
        ("my-host.example.com.:80", TcpAddress("my-host.example.com.", 80), None),
        ("unix:/run/s.sock", UnixAddress("/run/s.sock"), "unix:/run/s.sock"),
        ("unix:///run/s.sock", UnixAddress("/run/s.sock"), "unix:/run/s.sock"),
        ("unix:s.sock", UnixAddress("s.sock"), "unix:s.sock"),
    ],
)
def test_listen_addresses_are_read(
    text: str, expected: ListenAddress, canonical: str | None
) -> None:
    address = parse_listen_address(text)
    assert address == expected
    assert str(address) == (canonical or text)
    assert parse_listen_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("localhost", "HOST:PORT"),
        ("localhost:", "HOST:PORT"),
        ("localhost:65536", "HOST:PORT"),
        ("localhost:-1", "HOST:PORT"),
        ("localhost:http", "HOST:PORT"),
        ("localhost:٣", "HOST:PORT"),
        (":7070", "with a host"),
        ("*:7070", "with a host"),
        ("::1:7070", r"\[ADDRESS\]:PORT"),
        ("[::g]:7070", "IP address between the brackets"),
        ("[localhost]:7070", "IP address between the brackets"),
        ("256.0.0.1:7070", "IPv4"),
        ("ho st:7070", "host name"),
        ("-x:7070", "host name"),
        ("http://x:7070", r"\[ADDRESS\]"),
        ("unix:", "socket file"),
        ("unix:/run/", "socket file"),
        ("unix:/" + "x" * 107, "at most 107 bytes"),
    ],
)
def test_bad_listen_addresses_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_listen_address(text)


LOOPBACKS = [
    "localhost:1",
    "LOCALHOST.:1",
    "127.0.0.1:1",
    "127.9.9.9:1",
    "[::1]:1",
    "[::ffff:127.0.0.1]:1",
    "unix:/x",
]
OPEN = ["0.0.0.0:1", "[::]:1", "10.0.0.1:1", "host:1", "[::ffff:10.0.0.1]:1", "localhost.x:1"]


@pytest.mark.parametrize("text", LOOPBACKS)
def test_loopback_needs_no_tls(text: str) -> None:
    address = parse_listen_address(text)
    assert address.is_loopback
    assert not check_listen_security(address, tls=False, knows_clients=False, insecure=False)


@pytest.mark.parametrize("text", OPEN)
@pytest.mark.parametrize(
    ("tls", "knows_clients", "missing", "there"),
    [
        (False, False, ("there is no TLS", "nothing tells who connects"), ()),
        (False, True, ("there is no TLS",), ("nothing tells who connects",)),
        (True, False, ("nothing tells who connects",), ("there is no TLS",)),
    ],
)
def test_what_is_open_to_other_machines_must_be_asked_for(
    text: str, missing: Sequence[str], there: Sequence[str], *, tls: bool, knows_clients: bool
) -> None:
    address = parse_listen_address(text)
    assert not address.is_loopback
    with pytest.raises(InvalidConfigError, match=r"accept it with --insecure") as raised:
        check_listen_security(address, tls=tls, knows_clients=knows_clients, insecure=False)
    warning = check_listen_security(address, tls=tls, knows_clients=knows_clients, insecure=True)
    for said in (raised.value.message, warning):
        assert all(word in said for word in missing)
        assert not any(word in said for word in there)
        assert ("set tls.cert.file and tls.key.file" in said) == (not tls)
        assert ("security.tokens.file or security.oidc.issuer" in said) == (not knows_clients)


@pytest.mark.parametrize("text", OPEN)
def test_tls_and_known_clients_leave_nothing_open(text: str) -> None:
    address = parse_listen_address(text)
    for insecure in (False, True):
        assert not check_listen_security(address, tls=True, knows_clients=True, insecure=insecure)


def test_a_fleet_is_told_that_its_coordinators_would_speak_in_clear_text() -> None:
    open_to = partial(check_listen_security, TcpAddress("h", 1), knows_clients=True, is_fleet=True)
    with pytest.raises(InvalidConfigError, match=r"and coordinators send\. .*tls\.cert\.file"):
        open_to(tls=False, insecure=False)
    assert "what workers and coordinators send" in open_to(tls=False, insecure=True)
    assert open_to(tls=True, insecure=False) == ""


@pytest.mark.parametrize(
    ("text", "kind", "url", "shared"),
    [
        ("memory:", StoreKind.MEMORY, "memory:", False),
        ("sqlite:////var/x.db", StoreKind.SQLITE, "sqlite:////var/x.db", False),
        ("postgresql://u:p@h/d", StoreKind.POSTGRESQL, "postgresql+psycopg://u:p@h/d", True),
        ("postgres://h/d", StoreKind.POSTGRESQL, "postgresql+psycopg://h/d", True),
        (
            "postgresql+psycopg:///d?host=/run",
            StoreKind.POSTGRESQL,
            "postgresql+psycopg:///d?host=/run",
            True,
        ),
        ("mysql://u@h:3306/d?x=1", StoreKind.MYSQL, "mysql+pymysql://u@h:3306/d?x=1", True),
        ("mariadb://h/d", StoreKind.MYSQL, "mysql+pymysql://h/d", True),
    ],
)
def test_store_urls_are_read(text: str, kind: StoreKind, url: str, *, shared: bool) -> None:
    store = parse_store_url(text)
    assert (store.kind, store.url, store.shared) == (kind, url, shared)
    assert parse_store_url(store.url) == store


def test_a_relative_sqlite_path_is_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/h/u")
    assert parse_store_url("sqlite:///a/../b.db").path == tmp_path / "b.db"
    assert parse_store_url("sqlite:///~/b.db").path == Path("/h/u/b.db")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "oracle://u:secret@h/d",
        "postgresql+asyncpg://u:secret@h/d",
        "postgresql:/u:secret@h/d",
        "postgresql://u:secret@h",
        "postgresql://u:secret@h/",
        "postgresql://u:secret@h:port/d",
        "postgresql://u:secret/x@h/d",
        "postgresql://u:12/secret@h/d",
        "mysql:///d",
        "sqlite://",
        "sqlite:///",
        "sqlite://x.db",
        "sqlite:///:memory:",
        "sqlite:////dir/",
        "sqlite:///x.db?mode=ro",
        "sqlite:///file:x",
        "memory",
    ],
)
def test_bad_store_urls_are_refused_without_their_password(text: str) -> None:
    with pytest.raises(ValueError, match=r"URL|://|sqlite:///") as caught:
        parse_store_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/sharecoord/sharecoord.db"),
        ({"XDG_STATE_HOME": "rel", "HOME": "/h"}, "/h/.local/state/sharecoord/sharecoord.db"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/sharecoord/sharecoord.db"),
        ({"HOME": "/h"}, "/h/.local/state/sharecoord/sharecoord.db"),
    ],
)
def test_the_default_store_is_a_file_of_the_user(environ: dict[str, str], expected: str) -> None:
    store = default_store_url(environ)
    assert store.path == Path(expected)
    assert store.url == f"sqlite:///{expected}"
    assert parse_store_url(store.url) == store


def _homeless() -> Path:
    raise RuntimeError("Could not determine home directory.")


def test_a_user_without_a_home_is_told_to_name_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user id is in no list of users."""
    monkeypatch.setattr(Path, "home", _homeless)
    with pytest.raises(InvalidConfigError, match=r"Give --store .* or set HOME"):
        default_store_url({})


@pytest.mark.parametrize("parse", [parse_store_url, parse_events_sink])
def test_a_home_that_is_not_known_is_no_place(
    monkeypatch: pytest.MonkeyPatch, parse: Callable[[str], object]
) -> None:
    monkeypatch.setattr(Path, "expanduser", lambda _: _homeless())
    kind = "sqlite:///" if parse is parse_store_url else "parquet:"
    with pytest.raises(ValueError, match="without ~"):
        parse(f"{kind}~/x")


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("postgresql://u:p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p@q@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u:p:q@h/d", "postgresql://u:***@h/d"),
        ("postgresql://u@h:5432/d", "postgresql://u@h:5432/d"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("postgresql://h/d?passwd=p&SSLPassword=p", "postgresql://h/d?passwd=***&SSLPassword=***"),
        ("postgresql://h/d?pass%77ord=p", "postgresql://h/d?pass%77ord=***"),
        ("postgresql://h/d?oauth_client_secret=p", "postgresql://h/d?oauth_client_secret=***"),
        ("https://u:p@h/token?x=1", "https://u:***@h/token?x=1"),
        ("postgresql://u:${file:/run/p}@h/d", "postgresql://u:${file:/run/p}@h/d"),
        ("postgresql://u:${env:A}p@h/d", "postgresql://u:***@h/d"),
        ("postgresql://h/d?password=${env:A}", "postgresql://h/d?password=${env:A}"),
        ("sqlite:////a:b@c/d", "sqlite:////a:b@c/d"),
    ],
)
def test_passwords_in_urls_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("off", EventsSink()),
        ("", EventsSink()),
        ("parquet:/var/e", EventsSink(EventsSinkKind.PARQUET, "/var/e")),
        ("kafka:events", EventsSink(EventsSinkKind.KAFKA, "events")),
    ],
)
def test_events_sinks_are_read(text: str, expected: EventsSink) -> None:
    assert parse_events_sink(text) == expected
    assert parse_events_sink(str(expected)) == expected


@pytest.mark.parametrize("text", ["parquet", "parquet:", "kafka:", "off:x", "csv:x", "kafka:a b"])
def test_bad_events_sinks_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"parquet:DIRECTORY|a topic name"):
        parse_events_sink(text)
