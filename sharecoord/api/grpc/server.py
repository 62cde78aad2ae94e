"""The gRPC server: services, health, reflection, limits of the transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from sharecoord.api.grpc.calls import ServicerContext, host_of, unary, without_context
from sharecoord.api.grpc.consume import ConsumeStream
from sharecoord.api.grpc.credentials import CredentialsRefused
from sharecoord.api.grpc.unary import UnaryCalls
from sharecoord.api.grpc.validation import join_command
from sharecoord.api.sockets import check_free
from sharecoord.config.endpoints import ListenAddress, TcpAddress, UnixAddress
from sharecoord.config.process_settings import TlsConfig
from sharecoord.errors import InvalidConfigError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire.transport import keepalive, read_pem

SERVICES = ("sharecoord.v1.ShareService", "sharecoord.v1.AdminService")

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    # Clients may ping each 5 s without calls; dead ones are noticed within 30 s.
    *keepalive(quiet_ms=20_000, answer_ms=10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]


class ShareService:
    """ShareService of share_service.proto."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._calls = UnaryCalls(coordinator)

    async def consume(self, _: object, context: ServicerContext) -> None:
        """The stream of one member; read and written by hand, for generators cost more."""
        await ConsumeStream(self._coordinator, context).run()

    def _unary_handlers(self) -> dict[str, Any]:
        calls = self._calls

        async def join(request: service.JoinRequest, context: ServicerContext) -> Message:
            group_id, command = join_command(request.join, host_of(context))
            return await calls.join(group_id, command)

        plain: dict[str, tuple[Callable[[Any], Awaitable[Message]], type[Message]]] = {
            "Fetch": (calls.fetch, service.FetchRequest),
            "Acknowledge": (calls.acknowledge, service.AcknowledgeRequest),
            "Heartbeat": (calls.heartbeat, service.HeartbeatRequest),
            "Leave": (calls.leave, service.LeaveRequest),
        }
        handlers = {
            name: unary(name, without_context(call), kind) for name, (call, kind) in plain.items()
        }
        return {**handlers, "Join": unary("Join", join, service.JoinRequest)}

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Method handlers; Consume's answers are bytes already."""
        # No serializer: stream messages are serialised when they are queued.
        consume = grpc.stream_stream_rpc_method_handler(self.consume)
        return grpc.method_handlers_generic_handler(
            "sharecoord.v1.ShareService", {**self._unary_handlers(), "Consume": consume}
        )


def make_server(
    coordinator: Coordinator, *, request_bytes_max: int, shares_port: bool
) -> tuple[grpc.aio.Server, HealthServicer]:
    """A server with every service, not yet listening, and its health service.

    Args:
        coordinator: The coordinator behind the services.
        request_bytes_max: Largest message of a client.
        shares_port: Whether other processes listen at the same port.
    """
    options = [
        *OPTIONS,
        ("grpc.max_receive_message_length", request_bytes_max),
        ("grpc.so_reuseport", int(shares_port)),
    ]
    server = grpc.aio.server(options=options, interceptors=[CredentialsRefused()])
    server.add_generic_rpc_handlers((ShareService(coordinator).handlers(),))
    statuses = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
    reflection.enable_server_reflection([*SERVICES, health.SERVICE_NAME], server)
    return server, statuses


async def set_serving(statuses: HealthServicer) -> None:
    """Reports every service as serving."""
    for name in SERVICES:
        await statuses.set(name, health_pb2.HealthCheckResponse.SERVING)


def bind(
    server: grpc.aio.Server, address: ListenAddress, tls: TlsConfig, *, is_shared: bool = False
) -> ListenAddress:
    """Listens; returns the address with the port that it got.

    Args:
        server: Of `make_server`.
        address: Where to listen; port 0 = any free one.
        tls: Certificate of the listener; without one it speaks clear text.
        is_shared: Whether other coordinators of this fleet listen at the address, too.

    Raises:
        InvalidConfigError: The address can not be had, or a TLS file can not be read.
    """
    if not is_shared:
        check_free(address)
    try:
        if tls.cert_file:
            port = server.add_secure_port(str(address), _server_credentials(tls))
        else:
            port = server.add_insecure_port(str(address))
    except RuntimeError as error:
        raise InvalidConfigError(
            f"listen.address: can not listen on {address}; is another process there? Choose "
            "another port (0 = any free one) or stop that process"
        ) from error
    return address if isinstance(address, UnixAddress) else TcpAddress(address.host, port)


def _server_credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    pairs = [(read_pem("tls.key.file", tls.key_file), read_pem("tls.cert.file", tls.cert_file))]
    if not tls.client_ca_file:
        return grpc.ssl_server_credentials(pairs)
    roots = read_pem("tls.client.ca.file", tls.client_ca_file)
    return grpc.ssl_server_credentials(pairs, roots, require_client_auth=True)
