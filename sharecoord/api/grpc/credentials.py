"""Credentials of a call: nothing checks them yet, so a call that brings some is refused.

Whoever sends a password or a token believes that it decides what they may do; to ignore it would
let them go on believing so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import grpc

from sharecoord.api.grpc.calls import ServicerContext, abort
from sharecoord.errors import UnauthenticatedError

_HEADER: Final = "authorization"

_TEXT: Final = (
    "this coordinator checks no user names, passwords or tokens, so it refuses a call that brings "
    "some (authorization) instead of ignoring them. In the client, remove sasl.* and set "
    "security.protocol to ssl, or to plaintext; who may connect is decided by client certificates "
    "(tls.client.ca.file of the coordinator) and by the network"
)


async def _refuse(_: object, context: ServicerContext) -> None:
    await abort(context, UnauthenticatedError(_TEXT))


# Of this kind, whatever the method is: it needs no message to be read before.
_REFUSAL: Final = grpc.stream_stream_rpc_method_handler(_refuse)

Details = grpc.HandlerCallDetails


class CredentialsRefused(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Ends each call that brings credentials, of every service."""

    async def intercept_service(
        self,
        continuation: Callable[[Details], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: Details,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The method, or the refusal."""
        if any(key == _HEADER for key, _ in handler_call_details.invocation_metadata or ()):
            return _REFUSAL
        return await continuation(handler_call_details)
