"""Two doors: workers do not find the fleet's, and coordinators find nothing else behind theirs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from sharecoord.api.grpc.peer_door import PeerDoor
from sharecoord.api.grpc.peer_service import PeerService
from sharecoord.api.grpc.server import bind, make_server
from sharecoord.config.endpoints import ListenAddress, TcpAddress, UnixAddress
from sharecoord.config.process_settings import CoordinatorConfig, TlsConfig
from sharecoord.core.fleet.belonging import SECRET_BYTES
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.errors import InvalidConfigError, SharecoordError
from sharecoord.peers.links import channel_maker
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair, listener_pair
from sharecoord.wire import peer_service_pb2 as peer
from tests.access import access_of
from tests.certificates import Authority
from tests.unit.runtime.worlds import world_with

DEADLINE_S = 30
LINK = "/sharecoord.peer.v1.PeerService/Link"
OTHERS = [
    "/sharecoord.v1.ShareService/Join",
    "/sharecoord.v1.ShareService/Consume",
    "/sharecoord.v1.AdminService/ListGroups",
    "/grpc.health.v1.Health/Check",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
]
ANYWHERE = TcpAddress(LOOPBACK, 0)


def door_of(**options: Any) -> PeerDoor:
    """The door of a coordinator that has not started: no call may come so far."""
    coordinator = world_with(0).build("owner", fleet=True)
    assert coordinator.fleet is not None
    service = PeerService(coordinator, coordinator.fleet, secret=b"s" * SECRET_BYTES, **options)
    return PeerDoor(service, message_bytes_max=1 << 20)


@contextlib.asynccontextmanager
async def opened(
    listen: ListenAddress = ANYWHERE,
    pair: WatchedFiles[KeyPair] | None = None,
    **options: Any,
) -> AsyncIterator[TcpAddress]:
    door = door_of(**options)
    address = door.bind(listen, CoordinatorConfig(), pair)
    await door.start()
    async with asyncio.timeout(DEADLINE_S):
        yield address
        await door.stop()


async def code_of(channel: Any, method: str, data: bytes = b"", **options: Any) -> Any:
    """The status of a call that is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await channel.unary_unary(method)(data, **options)
    return raised.value.code()


async def test_the_workers_port_does_not_serve_coordinators() -> None:
    """Not even with the right hello: the method is not there."""
    coordinator = world_with(0).build("owner", fleet=True)
    server, _ = make_server(
        coordinator, access_of(coordinator), request_bytes_max=1 << 20, shares_port=False
    )
    address = bind(server, ANYWHERE, None)
    await server.start()
    hello = peer.GatewayItem(hello=peer.Hello(coordinator_id="b", owner_id="owner"))
    said = peer.GatewayMessage(items=[hello]).SerializeToString()
    async with grpc.aio.insecure_channel(str(address)) as channel:
        assert await code_of(channel, LINK, said) is grpc.StatusCode.UNIMPLEMENTED
    await server.stop(None)


@pytest.mark.parametrize("method", OTHERS)
async def test_the_fleets_door_serves_nobody_else(method: str) -> None:
    async with opened() as address, grpc.aio.insecure_channel(str(address)) as channel:
        assert await code_of(channel, method) is grpc.StatusCode.UNIMPLEMENTED


async def test_a_workers_credentials_do_not_open_it() -> None:
    refused: list[tuple[str, SharecoordError]] = []
    token = (("authorization", "Bearer a-good-token-of-a-worker"),)
    async with (
        opened(refused=lambda *said: refused.append(said)) as address,
        grpc.aio.insecure_channel(str(address)) as channel,
    ):
        code = await code_of(channel, LINK, b"", metadata=token)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
    ((came_from, error),) = refused
    assert came_from.startswith(f"{LOOPBACK}:")
    assert "hello is missing" in error.message


async def test_beside_a_unix_socket_it_is_on_this_machine_alone(tmp_path: Path) -> None:
    async with opened(UnixAddress(str(tmp_path / "s"))) as address:
        assert address.is_loopback
        assert address.port > 0


async def test_a_port_that_is_taken_is_named() -> None:
    (port,) = free_ports(1)
    config = CoordinatorConfig(peer_port=port)
    first, second = door_of(), door_of()
    assert first.bind(ANYWHERE, config, None) == TcpAddress(LOOPBACK, port)
    with pytest.raises(InvalidConfigError, match=rf"coordinator\.peer\.port: .*:{port}"):
        second.bind(ANYWHERE, config, None)
    await first.stop()


async def test_it_speaks_tls_and_knows_the_authorities_of_the_fleet(tmp_path: Path) -> None:
    """A certificate of another authority, or none, ends before a message is read."""
    ours, others = Authority(tmp_path, "ours"), Authority(tmp_path, "others")

    def pair_of(authority: Authority, name: str) -> WatchedFiles[KeyPair] | None:
        pair = authority.issue(name)
        return listener_pair(
            TlsConfig(
                cert_file=str(pair.certificate),
                key_file=str(pair.key),
                client_ca_file=str(ours.certificate),
            )
        )

    async with opened(pair=pair_of(ours, "owner")) as address:
        async with channel_maker(pair_of(ours, "gateway"))(str(address)) as channel:
            assert await code_of(channel, LINK) is grpc.StatusCode.INVALID_ARGUMENT
        for stranger in (pair_of(others, "stranger"), None):
            async with channel_maker(stranger)(str(address)) as channel:
                assert await code_of(channel, LINK) is grpc.StatusCode.UNAVAILABLE
