"""The gRPC server: services, health, reflection, limits of the transport."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from sharecoord.api.grpc.consume import ConsumeStream, ServicerContext
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.wire import share_service_pb2 as service

MESSAGE_BYTES_MAX = 64 << 20
"""Largest message of a client: acknowledgements of a full window are far below."""

OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # Clients may ping each 5 s without calls; dead ones are noticed within 30 s.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
]


def _frame(message: bytes) -> bytes:
    """Stream messages are serialised when they are queued."""
    return message


class ShareService:
    """ShareService of share_service.proto."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    async def consume(
        self, requests: AsyncIterator[service.ConsumeRequest], context: ServicerContext
    ) -> AsyncIterator[bytes]:
        """The stream of one member."""
        async for frame in ConsumeStream(self._coordinator, context).frames(requests):
            yield frame

    def handlers(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Method handlers; Consume's answers are bytes already."""
        return grpc.method_handlers_generic_handler(
            "sharecoord.v1.ShareService",
            {
                "Consume": grpc.stream_stream_rpc_method_handler(
                    self.consume,
                    request_deserializer=service.ConsumeRequest.FromString,
                    response_serializer=_frame,
                ),
            },
        )


def make_server(coordinator: Coordinator) -> grpc.aio.Server:
    """A server with every service, not yet listening."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((ShareService(coordinator).handlers(),))
    return server
