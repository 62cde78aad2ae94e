"""Channels and credentials of grpc, and the method of the stream. To be imported before grpc."""

from __future__ import annotations

import os
from typing import Any, Final, cast

# Read by grpc when it is imported. With it, a fork in a process that uses grpc leaves parent and
# child in order (the child must make its own consumers); a value that the user set is kept.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "true")
# grpc prints two lines of its own for each TLS handshake that fails, at each attempt; the SDK says
# once what is wrong. A value that the user set is kept.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from google.protobuf.message import Message
from grpc import aio

from ._core.status import REASON_KEY, RESOURCE_KEY, RETRY_AFTER_KEY, StreamFailure
from ._core.tls_files import TlsMaterial
from ._proto import share_service_pb2 as service_pb

_SERVICE: Final = service_pb.DESCRIPTOR.services_by_name["ShareService"].full_name
CONSUME: Final = f"/{_SERVICE}/Consume"

# Liveness is HTTP/2 keepalive: a peer that is gone is noticed within 10 + 5 s. The coordinator's
# server permits pings at this rate. The ping's own limit, a minute by default, is the one that
# counts while the socket takes bytes, as that of a stopped process does.
_OPTIONS: Final = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # How much arrives is bounded by credits, not here.
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Back-off is the SDK's own (it goes round the addresses); grpc's must not add to it.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),
    # As Kafka's clients, which know no HTTP proxy: http_proxy is there for other programs.
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # Deliveries are large: fewer frames and fewer reads of them, 4% more records/s (measured). A
    # stream that waits takes no more memory for it.
    ("grpc.http2.max_frame_size", 1 << 20),
    ("grpc.experimental.tcp_read_chunk_size", 1 << 18),
    ("grpc.experimental.tcp_min_read_chunk_size", 1 << 16),
    ("grpc.experimental.tcp_max_read_chunk_size", 1 << 20),
)


def encode(request: Message) -> bytes:
    return request.SerializeToString()


def open_channel(address: str, tls: TlsMaterial | None) -> grpc.Channel:
    """A channel of the synchronous stack. Connects at the first call."""
    if tls is None:
        return grpc.insecure_channel(address, options=_OPTIONS)
    return grpc.secure_channel(address, _credentials(tls), options=_OPTIONS)


def open_aio_channel(address: str, tls: TlsMaterial | None) -> aio.Channel:
    if tls is None:
        return aio.insecure_channel(address, options=_OPTIONS)
    return aio.secure_channel(address, _credentials(tls), options=_OPTIONS)


def _credentials(tls: TlsMaterial) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(
        root_certificates=tls.ca, private_key=tls.key, certificate_chain=tls.certificate
    )


def failure_of(error: BaseException) -> StreamFailure:
    """The end of a stream, from grpc's error."""
    if not isinstance(error, grpc.RpcError):
        return StreamFailure("UNKNOWN", f"{type(error).__name__}: {error}")
    call = cast("Any", error)
    found = dict(call.trailing_metadata() or ())
    wait = str(found.get(RETRY_AFTER_KEY, ""))
    return StreamFailure(
        call.code().name,
        call.details() or "",
        str(found.get(REASON_KEY, "")),
        int(wait) if wait.isdecimal() else None,
        str(found.get(RESOURCE_KEY, "")),
    )
