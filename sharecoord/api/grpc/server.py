"""The gRPC server: services, health, reflection, limits of the transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha.reflection import enable_server_reflection

from sharecoord.api.grpc.access import AUTHORIZATION, Access
from sharecoord.api.grpc.calls import Call, ServicerContext, abort, unary
from sharecoord.api.grpc.consume import ConsumeStream
from sharecoord.api.grpc.unary import UnaryCalls
from sharecoord.api.sockets import check_free, closed_to_others
from sharecoord.config.endpoints import ListenAddress, TcpAddress, UnixAddress
from sharecoord.errors import InvalidConfigError, SharecoordError
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.security.files import WatchedFiles
from sharecoord.security.key_pairs import KeyPair
from sharecoord.wire import share_service_pb2 as service
from sharecoord.wire.transport import keepalive

SERVICES = ("sharecoord.v1.ShareService", "sharecoord.v1.AdminService")

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", -1),
    # Clients may ping each 5 s without calls; dead ones are noticed within 30 s.
    *keepalive(quiet_ms=20_000, answer_ms=10_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
]


def share_service(coordinator: Coordinator, access: Access) -> grpc.GenericRpcHandler[Any, Any]:
    """ShareService of share_service.proto: its method handlers."""
    calls = UnaryCalls(coordinator)
    quotas = coordinator.context.guard.quotas

    async def consume(_: object, context: ServicerContext) -> None:
        # Read and written by hand: generators cost more.
        try:
            caller = await access.caller_of(context, "Consume")
            access.check_stream(caller)
        except SharecoordError as error:
            await abort(context, error)
            return
        quotas.stream(caller.principal, 1)
        try:
            await ConsumeStream(coordinator, context, caller, access).run()
        finally:
            quotas.stream(caller.principal, -1)

    plain: dict[str, tuple[Call, type[Message]]] = {
        "Join": (calls.join, service.JoinRequest),
        "Fetch": (calls.fetch, service.FetchRequest),
        "Acknowledge": (calls.acknowledge, service.AcknowledgeRequest),
        "Heartbeat": (calls.heartbeat, service.HeartbeatRequest),
        "Leave": (calls.leave, service.LeaveRequest),
    }
    handlers = {
        name: unary(name, call, kind, access.caller_of) for name, (call, kind) in plain.items()
    }
    # No serializer: stream messages are serialised when they are queued.
    handlers["Consume"] = grpc.stream_stream_rpc_method_handler(consume)
    return grpc.method_handlers_generic_handler("sharecoord.v1.ShareService", handlers)


Details = grpc.HandlerCallDetails


class CredentialsRefused(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses each call that brings credentials, where nothing checks them, whatever it asks for.

    A client that sends a password or a token believes that it decides what it may do; to ignore it
    would let the client go on believing so.
    """

    def __init__(self, access: Access) -> None:
        async def refuse(_: object, context: ServicerContext) -> None:
            try:
                await access.caller_of(context, "call")
            except SharecoordError as error:
                await abort(context, error)

        # A stream handler fits every kind of method: it refuses before a message is read.
        self._refusal = grpc.stream_stream_rpc_method_handler(refuse)

    async def intercept_service(
        self,
        continuation: Callable[[Details], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: Details,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The method, or the refusal."""
        shown = handler_call_details.invocation_metadata or ()
        if any(key == AUTHORIZATION for key, _ in shown):
            return self._refusal
        return await continuation(handler_call_details)


# -- the server -----------------------------------------------------------------------------------


def make_server(
    coordinator: Coordinator,
    access: Access,
    *,
    request_bytes_max: int,
    shares_port: bool,
    reflection: bool = True,
) -> tuple[grpc.aio.Server, HealthServicer]:
    """A server with every service, not yet listening, and its health service.

    Args:
        coordinator: The coordinator behind the services.
        access: Tells who calls. Health and reflection answer everybody.
        request_bytes_max: Largest message of a client.
        shares_port: Whether other processes listen at the same port.
        reflection: Whether the server tells which calls there are.
    """
    options = [
        *OPTIONS,
        ("grpc.max_receive_message_length", request_bytes_max),
        ("grpc.so_reuseport", int(shares_port)),
    ]
    refused = [] if access.checks_authorization else [CredentialsRefused(access)]
    server = grpc.aio.server(options=options, interceptors=refused)
    server.add_generic_rpc_handlers((share_service(coordinator, access),))
    statuses = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(statuses, server)
    if reflection:
        enable_server_reflection([*SERVICES, health.SERVICE_NAME], server)
    return server, statuses


def make_peer_server(
    handlers: grpc.GenericRpcHandler[Any, Any], *, message_bytes_max: int
) -> grpc.aio.Server:
    """The server of the fleet's own door, not yet listening: other coordinators and nobody else.

    Args:
        handlers: Of the peer service.
        message_bytes_max: Largest message of another coordinator.
    """
    options = [
        *OPTIONS,
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((handlers,))
    return server


async def set_serving(statuses: HealthServicer) -> None:
    """Reports every service as serving."""
    for name in SERVICES:
        await statuses.set(name, health_pb2.HealthCheckResponse.SERVING)


def bind(
    server: grpc.aio.Server,
    address: ListenAddress,
    pair: WatchedFiles[KeyPair] | None,
    *,
    is_shared: bool = False,
    socket_mode: int = 0o600,
    setting: str = "listen.address",
) -> ListenAddress:
    """Listens; returns the address with the port that it got.

    Args:
        server: Of `make_server`.
        address: Where to listen; port 0 = any free one.
        pair: What the listener shows, as it is at each connection; None = it speaks clear text.
        is_shared: Whether other coordinators of this fleet listen at the address, too.
        socket_mode: Mode of the file of a Unix socket (listen.socket.mode).
        setting: Name of the setting that says where.

    Raises:
        InvalidConfigError: The address can not be had.
    """
    if not is_shared:
        check_free(address, setting)
    try:
        if isinstance(address, UnixAddress):
            with closed_to_others(address, socket_mode):
                _add_port(server, address, pair)
            return address
        return TcpAddress(address.host, _add_port(server, address, pair))
    except (RuntimeError, OSError) as error:
        raise InvalidConfigError(
            f"{setting}: can not listen on {address}; is another process there? Choose "
            "another port (0 = any free one) or stop that process"
        ) from error


def _add_port(
    server: grpc.aio.Server, address: ListenAddress, pair: WatchedFiles[KeyPair] | None
) -> int:
    if pair is None:
        return int(server.add_insecure_port(str(address)))
    return int(server.add_secure_port(str(address), _server_credentials(pair)))


def _server_credentials(pair: WatchedFiles[KeyPair]) -> grpc.ServerCredentials:
    """Credentials that are those of the pair's value at each handshake."""
    shown = pair.value

    def present() -> grpc.ServerCertificateConfiguration | None:
        """Asked by a thread of gRPC before each handshake; None = as at the last one."""
        nonlocal shown
        if (value := pair.value) is shown:
            return None
        shown = value
        return _configuration(value)

    return grpc.dynamic_ssl_server_credentials(
        _configuration(shown),
        present,  # type: ignore[arg-type]  # gRPC takes None, and the types of others do not say so
        require_client_authentication=bool(shown.client_authorities),
    )


def _configuration(pair: KeyPair) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(pair.key, pair.chain)], pair.client_authorities or None
    )
