"""Certificates change while streams are open: those go on, and new connections see the new ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1._async import HealthServicer

from sharecoord.api.grpc.server import bind, make_server
from sharecoord.config.endpoints import TcpAddress
from sharecoord.config.process_settings import TlsConfig
from sharecoord.peers.links import channel_maker
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair, listener_pair
from tests.access import access_of
from tests.certificates import Authority, Live, Pair, pem_of, replace_file, shown_at
from tests.unit.runtime.worlds import world_with

DEADLINE_S = 30
SERVING = health_pb2.HealthCheckResponse.SERVING
SERVICE = "sharecoord.v1.ShareService"


class Certified(NamedTuple):
    """A server's address, what it shows, and its health."""

    port: int
    pair: WatchedFiles[KeyPair]
    statuses: HealthServicer


def watched(live: Live, *, clients: bool) -> WatchedFiles[KeyPair]:
    pair = listener_pair(
        TlsConfig(
            cert_file=str(live.certificate),
            key_file=str(live.key),
            client_ca_file=str(live.authorities) if clients else "",
        )
    )
    assert pair is not None
    return pair


@asynccontextmanager
async def serving(
    live: Live, *, clients: bool, host: str = "127.0.0.1"
) -> AsyncIterator[Certified]:
    coordinator = world_with(0).build("one")
    server, statuses = make_server(
        coordinator, access_of(coordinator), request_bytes_max=1 << 20, shares_port=False
    )
    pair = watched(live, clients=clients)
    bound = bind(server, TcpAddress(host, 0), pair)
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            assert isinstance(bound, TcpAddress)
            yield Certified(bound.port, pair, statuses)
    finally:
        await server.stop(None)


@asynccontextmanager
async def channel_to(port: int, ca: Authority, client: Pair | None = None) -> AsyncIterator[Any]:
    """A channel with a connection of its own."""
    shown = (
        (None, None)
        if client is None
        else (client.key.read_bytes(), client.certificate.read_bytes())
    )
    credentials = grpc.ssl_channel_credentials(ca.certificate.read_bytes(), *shown)
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        yield channel


async def check(channel: Any) -> Any:
    answer = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
    return health_pb2.HealthCheckResponse.FromString(answer).status


def watch(channel: Any) -> Any:
    """A stream of the health of a service: one answer now, and one for each change."""
    asked = health_pb2.HealthCheckRequest(service=SERVICE).SerializeToString()
    return channel.unary_stream("/grpc.health.v1.Health/Watch")(asked)


async def heard(stream: Any) -> Any:
    return health_pb2.HealthCheckResponse.FromString(await stream.read()).status


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def other_ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other"), "other")


async def test_a_new_certificate_is_shown_and_open_streams_go_on(
    tmp_path: Path, ca: Authority
) -> None:
    first, second = ca.issue("first"), ca.issue("second")
    live = Live(tmp_path / "live", first)
    async with serving(live, clients=False) as server, channel_to(server.port, ca) as channel:
        assert await asyncio.to_thread(shown_at, server.port) == pem_of(first)
        stream = watch(channel)
        await heard(stream)
        live.put(second)
        assert server.pair.look()
        assert await asyncio.to_thread(shown_at, server.port) == pem_of(second)
        # Again: an unchanged pair stays.
        assert await asyncio.to_thread(shown_at, server.port) == pem_of(second)
        await server.statuses.set(SERVICE, SERVING)
        assert await heard(stream) == SERVING
        stream.cancel()
        async with channel_to(server.port, ca) as another:
            assert await check(another) == SERVING


async def test_each_address_of_a_host_shows_the_new_certificate(
    tmp_path: Path, ca: Authority
) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    first, second = ca.issue("first"), ca.issue("second")
    live = Live(tmp_path / "live", first)
    async with serving(live, clients=False, host="::") as server:
        live.put(second)
        assert server.pair.look()
        for host in ("127.0.0.1", "::1"):
            assert await asyncio.to_thread(shown_at, server.port, host) == pem_of(second)


async def test_another_authority_takes_over(
    tmp_path: Path, ca: Authority, other_ca: Authority
) -> None:
    live = Live(tmp_path / "live", ca.issue("server"), ca.certificate)
    before, after = ca.issue("client"), other_ca.issue("client")
    async with (
        serving(live, clients=True) as server,
        channel_to(server.port, ca, before) as channel,
    ):
        stream = watch(channel)
        await heard(stream)
        live.put(other_ca.issue("server"), other_ca.certificate)
        assert server.pair.look()
        async with channel_to(server.port, other_ca, after) as renewed:
            assert await check(renewed) == SERVING
        for stale in (before, None):
            # A client that trusts the new server, and shows a certificate of before, or none.
            async with channel_to(server.port, other_ca, stale) as refused:
                with pytest.raises(grpc.aio.AioRpcError) as raised:
                    await check(refused)
            assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
        await server.statuses.set(SERVICE, SERVING)
        assert await heard(stream) == SERVING
        # The connection of before is open still, for new calls as well.
        assert await check(channel) == SERVING
        stream.cancel()


async def test_broken_files_leave_the_old_certificate_in_force(
    tmp_path: Path, ca: Authority
) -> None:
    first = ca.issue("first")
    live = Live(tmp_path / "live", first)
    async with serving(live, clients=False) as server:
        for path, content in (
            (live.key, ca.issue("another").key.read_bytes()),
            (live.certificate, b"no certificate"),
            (live.key, b""),
        ):
            replace_file(path, content)
            assert not server.pair.look()
            assert server.pair.problem
            assert await asyncio.to_thread(shown_at, server.port) == pem_of(first)
        live.certificate.unlink()
        assert not server.pair.look()
        assert await asyncio.to_thread(shown_at, server.port) == pem_of(first)


async def test_new_links_of_a_fleet_bring_the_new_certificate(
    tmp_path: Path, ca: Authority, other_ca: Authority
) -> None:
    live = Live(tmp_path / "live", ca.issue("server"), ca.certificate)
    mine = watched(live, clients=True)
    make = channel_maker(mine, peer_name="localhost")
    async with (
        serving(live, clients=True) as server,
        make(f"127.0.0.1:{server.port}") as link,
    ):
        assert await check(link) == SERVING
        live.put(other_ca.issue("server"), other_ca.certificate)
        assert server.pair.look()
        async with make(f"127.0.0.1:{server.port}") as stale:
            with pytest.raises(grpc.aio.AioRpcError):
                await check(stale)
        assert mine.look()
        async with make(f"127.0.0.1:{server.port}") as renewed:
            assert await check(renewed) == SERVING
        assert await check(link) == SERVING
