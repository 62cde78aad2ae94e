"""A call that brings credentials is refused, whatever it asks for: nothing would check them."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2
from sharecoord_sdk import KafkaError, KafkaException, ShareConsumer
from sharecoord_sdk.admin import AdminClient, AuthorizationError

from sharecoord.api.grpc.calls import ServicerContext, host_of
from sharecoord.api.grpc.server import bind, make_server
from sharecoord.config.endpoints import TcpAddress, UnixAddress
from sharecoord.config.process_settings import TlsConfig
from sharecoord.security.key_pairs import listener_pair
from tests.access import access_of
from tests.unit.runtime.worlds import world_with

DEADLINE_S = 30
SERVING = health_pb2.HealthCheckResponse.SERVING
NAMED = r"security\.tokens\.file"
"""What the error tells an operator to set."""
BROUGHT = (("authorization", "Basic dTpw"),)
CREDENTIALS = {"sasl.mechanisms": "PLAIN", "sasl.username": "u", "sasl.password": "p"}


@asynccontextmanager
async def serving(address: TcpAddress | UnixAddress, tls: TlsConfig) -> AsyncIterator[str]:
    """A server of a coordinator that has not started: no call may come so far."""
    coordinator = world_with(0).build("one")
    server, _ = make_server(
        coordinator, access_of(coordinator), request_bytes_max=1 << 20, shares_port=False
    )
    bound = bind(server, address, listener_pair(tls))
    await server.start()
    try:
        async with asyncio.timeout(DEADLINE_S):
            yield str(bound)
    finally:
        await server.stop(None)


@asynccontextmanager
async def channel_at(path: Path) -> AsyncIterator[Any]:
    """A channel to such a server, in clear text."""
    async with (
        serving(UnixAddress(str(path)), TlsConfig()) as address,
        grpc.aio.insecure_channel(address) as channel,
    ):
        yield channel


@pytest.mark.parametrize(
    ("method", "request_bytes"),
    [
        ("/sharecoord.v1.ShareService/Consume", b""),
        ("/sharecoord.v1.ShareService/Join", b""),
        ("/sharecoord.v1.AdminService/ListGroups", b""),
        ("/grpc.health.v1.Health/Check", health_pb2.HealthCheckRequest().SerializeToString()),
        ("/nobody.Knows/This", b""),
    ],
)
async def test_every_method_refuses_what_nobody_checks(
    tmp_path: Path, method: str, request_bytes: bytes
) -> None:
    async with channel_at(tmp_path / "s") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await channel.unary_unary(method)(request_bytes, metadata=BROUGHT)
        error: Any = raised.value
        assert error.code() is grpc.StatusCode.UNAUTHENTICATED
        assert "security.tokens.file" in error.details()
        found = dict(error.trailing_metadata())
        assert found["sharecoord-reason"] == "UNAUTHENTICATED"
        assert "sharecoord-retry-after-ms" not in found


async def test_a_call_without_credentials_passes(tmp_path: Path) -> None:
    async with channel_at(tmp_path / "s") as channel:
        answer = await channel.unary_unary("/grpc.health.v1.Health/Check")(b"")
        assert health_pb2.HealthCheckResponse.FromString(answer).status == SERVING


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    return TlsConfig(cert_file=str(certificate), key_file=str(key))


async def test_the_clients_say_so(tls: TlsConfig) -> None:
    async with serving(TcpAddress("localhost", 0), tls) as address:
        conf = {
            "bootstrap.servers": address,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": tls.cert_file,
            **CREDENTIALS,
        }
        await asyncio.to_thread(_refused, conf)


def _refused(conf: dict[str, Any]) -> None:
    with AdminClient(conf) as admin, pytest.raises(AuthorizationError, match=NAMED):
        admin.list_groups()
    with ShareConsumer({**conf, "group.id": "g"}) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(KafkaException, match=NAMED) as raised:
            consumer.poll(20.0)
    error = raised.value.args[0]
    assert error.code() == KafkaError._AUTHENTICATION
    assert not error.retriable()


class Peer:
    def __init__(self, text: str) -> None:
        self._text = text

    def peer(self) -> str:
        return self._text


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv6:%5B::1%5D:49972", "[::1]:49972"),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "[fe80::1%eth0]:1"),
        ("ipv4:127.0.0.1:5", "127.0.0.1:5"),
        ("unix:", ""),
    ],
)
def test_the_host_of_a_member_is_an_address(peer: str, host: str) -> None:
    assert host_of(cast("ServicerContext", Peer(peer))) == host
