"""Keys at an address: a real server on loopback, which does what a test wants."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sharecoord.errors import InvalidConfigError, KeysUnavailableError, UnauthenticatedError
from sharecoord.security import remote_keys as module
from sharecoord.security.keys import FileKeys
from sharecoord.security.oidc import Oidc
from sharecoord.security.remote_keys import ANSWER_MAX_BYTES, REFRESH_MIN_S, RemoteKeys, keys_of
from tests.certificates import Authority
from tests.unit.security.support import (
    AUDIENCE,
    EC_KEY,
    ISSUER,
    RSA_KEY,
    Clock,
    jwk,
    key_set,
    signed,
)

Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers as its server's `answer` does."""

    server: Provider

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        try:
            self.server.answer(self)
        except OSError:
            # The other side had enough.
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Nothing."""


class Provider(ThreadingHTTPServer):
    """An identity provider on loopback."""

    daemon_threads = True

    def __init__(self, answer: Answer) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.paths: list[str] = []
        self.ended = threading.Event()
        self.scheme = "http"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/keys?x=1"

    def close(self) -> None:
        self.ended.set()
        self.shutdown()
        self.server_close()


def says(content: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: Handler) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(content)

    return answer


GOOD = says(key_set(jwk(RSA_KEY)))


@pytest.fixture
def provider() -> Iterator[Provider]:
    server = Provider(GOOD)
    yield server
    server.close()


def keys_at(provider: Provider, clock: Clock | None = None, **more: float) -> RemoteKeys:
    return RemoteKeys(provider.address, monotonic_s=(clock or Clock()).monotonic_s, **more)


def oidc_of(keys: RemoteKeys, clock: Clock) -> Oidc:
    return Oidc(
        issuer=ISSUER,
        audience=AUDIENCE,
        keys=keys,
        principal_claim="sub",
        groups_claim="groups",
        clock_skew_ms=0,
        now_ms=clock,
    )


async def test_keys_are_asked_for_where_the_setting_says(provider: Provider) -> None:
    keys = keys_at(provider)
    await keys.refresh()
    assert keys.value is not None
    assert keys.problem == ""
    assert provider.paths == ["/keys?x=1"]


async def test_callers_share_one_question_and_unknown_key_ids_ask_rarely(
    provider: Provider,
) -> None:
    clock = Clock()
    oidc = oidc_of(keys_at(provider, clock), clock)
    found = await asyncio.gather(*(oidc.identify(signed()) for _ in range(50)))
    assert {each.principal.name for each in found} == {"User:anna"}
    assert len(provider.paths) == 1
    for number in range(200):
        with pytest.raises(KeysUnavailableError) as unknown:
            await oidc.identify(signed(EC_KEY, algorithm="ES256", key_id=f"made-up-{number}"))
    assert len(provider.paths) == 1
    assert unknown.value.retry_after_ms == REFRESH_MIN_S * 1000
    # Then one question tells for sure.
    clock.now_ms += round(REFRESH_MIN_S * 1000)
    wrong = await asyncio.gather(
        *(oidc.identify(signed(EC_KEY, algorithm="ES256", key_id=f"k{i}")) for i in range(2, 52)),
        return_exceptions=True,
    )
    assert {type(each) for each in wrong} == {UnauthenticatedError}
    assert len(provider.paths) == 2


async def test_new_keys_are_there_at_the_first_token_that_is_signed_with_one(
    provider: Provider,
) -> None:
    clock = Clock()
    keys = keys_at(provider, clock)
    oidc = oidc_of(keys, clock)
    old, new = signed(), signed(EC_KEY, algorithm="ES256", key_id="k2")
    await oidc.identify(old)
    before = keys.value
    provider.answer = says(key_set(jwk(RSA_KEY), jwk(EC_KEY, "k2")))
    clock.now_ms += round(REFRESH_MIN_S * 1000)
    assert (await oidc.identify(new)).principal.name == "User:anna"
    assert keys.value is not before
    await oidc.identify(old)


async def test_the_same_answer_leaves_what_is_known(provider: Provider) -> None:
    clock = Clock()
    keys = keys_at(provider, clock)
    oidc = oidc_of(keys, clock)
    token = signed()
    await oidc.identify(token)
    await keys.refresh()
    assert len(provider.paths) == 2
    assert oidc.known(token) is not None
    provider.answer = says(key_set(jwk(EC_KEY)))
    await keys.refresh()
    assert oidc.known(token) is None


def endless_headers(handler: Handler) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n")
    while True:
        handler.wfile.write(b"x: " + b"y" * 60_000 + b"\r\n")


def silent(handler: Handler) -> None:
    assert isinstance(handler.server, Provider)
    handler.server.ended.wait()


def dripping(handler: Handler) -> None:
    """A byte now and then, each long before a socket's time-out."""
    assert isinstance(handler.server, Provider)
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.ended.wait(0.02):
        handler.wfile.write(b" ")


def dripping_headers(handler: Handler) -> None:
    assert isinstance(handler.server, Provider)
    while not handler.server.ended.wait(0.02):
        handler.wfile.write(b"H")


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (endless_headers, "got more than 100 headers"),
        (silent, "timed out"),
        (dripping, "time"),
        (dripping_headers, "time"),
        (lambda handler: handler.connection.close(), "127.0.0.1"),
        (says(b"", status=500), "the answer is 500 instead of 200"),
        (says(b"", status=302, Location="http://evil.example/"), "the answer is 302"),
        (says(b"<html>"), "no JSON Web Key Set"),
        (says(key_set()), "no key that can verify"),
        (says(b"not gzip", **{"Content-Encoding": "gzip"}), "no JSON Web Key Set"),
    ],
)
async def test_an_answer_that_is_none_leaves_the_old_keys(
    provider: Provider, answer: Answer, problem: str
) -> None:
    clock = Clock()
    keys = keys_at(provider, clock, answer_max_s=0.2)
    oidc = oidc_of(keys, clock)
    await keys.refresh()
    known = keys.value
    provider.answer = answer
    await keys.refresh()
    assert problem in keys.problem
    assert keys.value is known
    await oidc.identify(signed())
    # Nobody knows whether the key of another token is a new one.
    clock.now_ms += round(REFRESH_MIN_S * 1000)
    with pytest.raises(KeysUnavailableError):
        await oidc.identify(signed(key_id="k2"))
    provider.answer = GOOD
    await keys.refresh()
    assert keys.problem == ""


async def test_of_a_gigabyte_no_more_than_a_key_set_is_read(provider: Provider) -> None:
    sent: list[int] = []

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(1 << 30))
        handler.end_headers()
        sent.extend(handler.wfile.write(b" " * (1 << 16)) for _ in range(1 << 14))

    provider.answer = answer
    keys = keys_at(provider)
    await keys.refresh()
    assert f"more than {ANSWER_MAX_BYTES} bytes" in keys.problem
    # What the sockets of both sides hold comes on top.
    assert sum(sent) < 64 << 20


async def test_without_any_keys_callers_may_try_again() -> None:
    away = Provider(GOOD)
    away.close()
    clock = Clock()
    keys = keys_at(away, clock)
    oidc = oidc_of(keys, clock)
    with pytest.raises(KeysUnavailableError) as first:
        await oidc.identify(signed())
    assert "Connection refused" in keys.problem
    # A stranger hears neither where the provider is nor what is wrong with it.
    assert "127.0.0.1" not in first.value.message
    assert "refused" not in first.value.message
    clock.now_ms += 4_000
    with pytest.raises(KeysUnavailableError) as second:
        await oidc.identify(signed())
    assert (first.value.retry_after_ms, second.value.retry_after_ms) == (10_000, 6_000)


async def test_too_many_that_wait_are_told_to_come_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "WAITING_MAX", 3)
    asked = threading.Event()
    go_on = threading.Event()

    def answer(handler: Handler) -> None:
        asked.set()
        go_on.wait()
        GOOD(handler)

    provider.answer = answer
    keys = keys_at(provider)
    waiting = [asyncio.create_task(keys.look_for("k1")) for _ in range(3)]
    await asyncio.to_thread(asked.wait)
    with pytest.raises(KeysUnavailableError):
        await keys.look_for("k1")
    # Who goes away takes the answer from nobody.
    waiting[0].cancel()
    go_on.set()
    await asyncio.wait(waiting)
    assert [each.cancelled() for each in waiting] == [True, False, False]
    assert keys.value is not None
    assert len(provider.paths) == 1


async def test_the_keys_are_asked_for_again_and_again(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    provider.answer = says(b"", status=503)
    keys = keys_at(provider)

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        provider.answer = GOOD
        if len(waits) == 3:
            raise asyncio.CancelledError

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await keys.run()
    assert waits == [10.0, 300.0, 300.0]
    assert len(provider.paths) == 3


# -- the address ----------------------------------------------------------------------------------


async def test_https_with_an_authority_of_its_own(provider: Provider, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    context = authority.issue("provider").server()
    provider.socket = context.wrap_socket(provider.socket, server_side=True)
    provider.scheme = "https"
    keys = RemoteKeys(provider.address, ca_file=str(authority.certificate))
    await keys.refresh()
    assert keys.problem == ""
    assert keys.value is not None
    stranger = RemoteKeys(provider.address, ca_file=str(Authority(tmp_path, "other").certificate))
    await stranger.refresh()
    assert "CERTIFICATE_VERIFY_FAILED" in stranger.problem
    assert stranger.value is None


@pytest.mark.parametrize(
    "address",
    [
        "http://idp.example/keys",
        "http://10.0.0.1/keys",
        "http://localhost.evil.example/keys",
        "http://127.0.0.1@idp.example/keys",
        "https://user:secret@idp.example/keys",
        "https://idp.example/a b",
        "https://idp.example/é",
        "https://idp.example:port/keys",
        "https:///keys",
        "ftp://idp.example/keys",
        "file:///etc/keys.json",
        "https://[::1/keys",
    ],
)
def test_an_address_that_is_not_safe_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"security\.oidc\.jwks") as refused:
        keys_of(address, "")
    assert "secret" not in refused.value.message


@pytest.mark.parametrize(
    "address", ["http://localhost:1/k", "http://[::1]/k", "https://idp.example"]
)
def test_an_address_that_is_safe(address: str) -> None:
    assert isinstance(keys_of(address, ""), RemoteKeys)


async def test_no_proxy_of_the_environment_is_asked(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    keys = keys_at(provider)
    await keys.refresh()
    assert keys.problem == ""


def test_files(tmp_path: Path) -> None:
    path, other = tmp_path / "keys.json", tmp_path / "ca.pem"
    path.write_bytes(key_set(jwk(RSA_KEY)))
    other.write_text("no certificate")
    assert isinstance(keys_of(str(path), ""), FileKeys)
    for place in (str(path), "http://localhost/keys"):
        with pytest.raises(InvalidConfigError, match=r"security\.oidc\.jwks\.ca\.file is set"):
            keys_of(place, str(other))
    with pytest.raises(InvalidConfigError, match="has no certificates"):
        keys_of("https://idp.example", str(other))
    with pytest.raises(InvalidConfigError, match="can not read"):
        keys_of("https://idp.example", str(tmp_path / "missing.pem"))
    with pytest.raises(InvalidConfigError, match="can not read"):
        keys_of(str(tmp_path / "missing.json"), "")
