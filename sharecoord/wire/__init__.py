"""The wire: the generated stubs, how they become values of the core, errors as gRPC status."""

from __future__ import annotations

from sharecoord_sdk._messages import Mapper
from sharecoord_sdk._proto import admin_service_pb2, share_service_pb2, share_types_pb2

from ._proto import (
    admin_service_pb2_grpc,
    peer_service_pb2,
    peer_service_pb2_grpc,
    share_service_pb2_grpc,
)

PROTOCOL_VERSION = 1
"""Highest protocol version that is served; the two before it are served too, once they exist."""

PEER_PROTOCOL_VERSION = 2
"""The one version of the protocol between coordinators that is spoken. Since 2, links begin with
proofs of belonging: whoever spoke 1 as well would let everybody in."""

__all__ = [
    "PEER_PROTOCOL_VERSION",
    "PROTOCOL_VERSION",
    "Mapper",
    "admin_service_pb2",
    "admin_service_pb2_grpc",
    "peer_service_pb2",
    "peer_service_pb2_grpc",
    "share_service_pb2",
    "share_service_pb2_grpc",
    "share_types_pb2",
]
