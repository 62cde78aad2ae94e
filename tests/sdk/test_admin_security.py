"""Credentials and certificates of the admin clients, against a server that keeps what they show."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from sharecoord_sdk._proto import admin_service_pb2 as admin_pb
from sharecoord_sdk.admin import (
    AdminClient,
    AsyncAdminClient,
    AuthorizationError,
    InvalidConfigError,
)

from sharecoord.wire import admin_service_pb2_grpc as admin_grpc
from tests.certificates import Authority, Pair

FOREVER = 1e12


class Server(admin_grpc.AdminServiceServicer):
    """Answers one call, or refuses it with what stands in `refusals`."""

    def __init__(self, address: str, credentials: grpc.ServerCredentials | None = None) -> None:
        self.shown: list[str] = []
        self.names: list[str] = []
        self.refusals: list[grpc.StatusCode] = []
        self._server = grpc.server(futures.ThreadPoolExecutor(max_workers=4))
        admin_grpc.add_AdminServiceServicer_to_server(self, self._server)  # type: ignore[no-untyped-call]
        if credentials is None:
            self._server.add_insecure_port(address)
            self.address = address
        else:
            self.address = f"localhost:{self._server.add_secure_port(address, credentials)}"
        self._server.start()

    def DescribeCoordinator(self, request: Any, context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Notes what the caller shows."""
        self.shown.append(dict(context.invocation_metadata()).get("authorization", ""))
        names = context.auth_context().get("x509_common_name", [b""])
        self.names.append(names[0].decode())
        if self.refusals:
            context.abort(self.refusals.pop(0), "no")
        return admin_pb.DescribeCoordinatorResponse(coordinator_id="c1")

    def stop(self) -> None:
        """Frees the address."""
        self._server.stop(None).wait(10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(f"unix:{tmp_path / 's'}")
    yield made
    made.stop()


Ask = Callable[[dict[str, Any], int], None]


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """Makes a client and asks so many times."""

    def ask_sync(conf: dict[str, Any], times: int) -> None:
        with AdminClient(conf) as client:
            for _ in range(times):
                assert client.describe_coordinator().coordinator_id == "c1"

    async def ask_async(conf: dict[str, Any], times: int) -> None:
        async with AsyncAdminClient(conf) as client:
            for _ in range(times):
                assert (await client.describe_coordinator()).coordinator_id == "c1"

    if request.param == "sync":
        return ask_sync
    return lambda conf, times: asyncio.run(ask_async(conf, times))


def config(server: Server, callback: Callable[..., Any]) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.address,
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": callback,
    }


def counted(life_s: float = FOREVER) -> Callable[[str], tuple[str, float]]:
    numbers = iter(range(1, 1000))
    return lambda _: (f"t{next(numbers)}", time.time() + life_s)


def test_one_token_serves_until_it_is_to_be_renewed(ask: Ask, server: Server) -> None:
    ask(config(server, counted()), 3)
    assert server.shown == ["Bearer t1"] * 3


def test_a_token_that_is_refused_is_replaced_once(ask: Ask, server: Server) -> None:
    server.refusals = [grpc.StatusCode.UNAUTHENTICATED]
    ask(config(server, counted()), 2)
    assert server.shown == ["Bearer t1", "Bearer t2", "Bearer t2"]


def test_a_fresh_token_that_is_refused_is_an_error(ask: Ask, server: Server) -> None:
    server.refusals = [grpc.StatusCode.UNAUTHENTICATED] * 2
    with pytest.raises(AuthorizationError, match=r"check sasl\.username") as caught:
        ask(config(server, counted()), 1)
    assert caught.value.reason == "UNAUTHENTICATED"
    assert server.shown == ["Bearer t1", "Bearer t2"]


def test_who_may_not_is_not_asked_again(ask: Ask, server: Server) -> None:
    server.refusals = [grpc.StatusCode.PERMISSION_DENIED]
    with pytest.raises(AuthorizationError, match="proxy or gateway"):
        ask(config(server, counted()), 1)
    assert server.shown == ["Bearer t1"]


@pytest.mark.parametrize(
    ("raised", "retriable"), [(RuntimeError("no luck"), False), (OSError("no luck"), True)]
)
def test_a_callback_that_fails_is_the_calls_error(
    ask: Ask, server: Server, raised: Exception, retriable: bool
) -> None:
    def callback(_: str) -> tuple[str, float]:
        raise raised

    with pytest.raises(AuthorizationError, match="no luck") as caught:
        ask(config(server, callback), 1)
    assert caught.value.retriable is retriable
    assert server.shown == []


def test_a_renewal_that_fails_leaves_the_old_token(
    ask: Ask, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sharecoord_sdk._core.credentials.RENEW_PART", 0.0)
    monkeypatch.setattr("sharecoord_sdk._core.credentials.RENEW_MIN_S", 0.0)
    tokens = ["t1"]

    def callback(_: str) -> tuple[str, float]:
        return tokens.pop(), FOREVER

    ask(config(server, callback), 2)
    assert server.shown == ["Bearer t1"] * 2
    assert "the old one serves until it ends" in caplog.text


def test_threads_fetch_one_token_together(server: Server) -> None:
    asked: list[str] = []
    started = threading.Barrier(4, timeout=10)

    def callback(_: str) -> tuple[str, float]:
        asked.append("")
        return f"t{len(asked)}", FOREVER

    with AdminClient(config(server, callback)) as client:

        def call() -> None:
            started.wait()
            client.describe_coordinator()

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert server.shown == ["Bearer t1"] * 4


async def _token(_: str) -> tuple[str, float]:
    await asyncio.sleep(0)
    return "async", FOREVER


async def test_an_async_callback(server: Server) -> None:
    async with AsyncAdminClient(config(server, _token)) as client:
        await client.describe_coordinator()
    assert server.shown == ["Bearer async"]
    with pytest.raises(TypeError, match="AsyncAdminClient"):
        AdminClient(config(server, _token))


# -- certificates ---------------------------------------------------------------------------------


def _put(folder: Path, pair: Pair) -> None:
    for name, path in (("cert", pair.certificate), ("key", pair.key)):
        fresh = folder / "fresh"
        fresh.write_bytes(path.read_bytes())
        fresh.replace(folder / name)


def test_calls_after_a_rotation_show_the_new_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, two, three = map(authority.issue, ("one", "two", "three"))
    credentials = grpc.ssl_server_credentials(
        [(one.key.read_bytes(), one.certificate.read_bytes())],
        root_certificates=authority.certificate.read_bytes(),
        require_client_auth=True,
    )
    server = Server("localhost:0", credentials)
    _put(tmp_path, one)
    conf = {
        "bootstrap.servers": server.address,
        "security.protocol": "ssl",
        "ssl.ca.location": str(authority.certificate),
        "ssl.certificate.location": str(tmp_path / "cert"),
        "ssl.key.location": str(tmp_path / "key"),
    }

    async def ask_async() -> None:
        async with AsyncAdminClient(conf) as client:
            for pair in (two, three, one):
                await client.describe_coordinator()
                _put(tmp_path, pair)
            await client.describe_coordinator()

    try:
        with AdminClient(conf) as client:
            for pair in (two, three, one):
                client.describe_coordinator()
                _put(tmp_path, pair)
            client.describe_coordinator()
        assert server.names == ["one", "two", "three", "one"]
        asyncio.run(ask_async())
        assert server.names[4:] == ["one", "two", "three", "one"]
    finally:
        server.stop()


@pytest.mark.parametrize("client", [AdminClient, AsyncAdminClient])
def test_bad_files_are_refused_by_name(client: type[Any], tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    path.write_text("-----BEGIN CERTIFICATE-----")
    conf = {"bootstrap.servers": "h:1", "security.protocol": "ssl", "ssl.ca.location": str(path)}
    with pytest.raises(InvalidConfigError, match=r"^ssl\.ca\.location .*ca\.pem.*can be read"):
        client(conf)
