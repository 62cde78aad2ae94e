"""Helpers of all gRPC methods: errors as status, requests out of bytes, unary handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from sharecoord.errors import DrainingError, InternalError, InvalidRequestError, SharecoordError
from sharecoord.security.principals import Caller
from sharecoord.wire.status import code_of, text_of, trailing_metadata

log = structlog.get_logger(__name__)

ServicerContext = grpc.aio.ServicerContext[Any, Any]
Call = Callable[[Any, Caller], Awaitable[Message]]
"""A method: its request, and who calls."""

CallerOf = Callable[[ServicerContext, str], Awaitable[Caller]]
"""`Access.caller_of`."""


async def abort(context: ServicerContext, error: SharecoordError) -> None:
    """Ends a call with an error; does not return."""
    await context.abort(code_of(error), text_of(error), trailing_metadata(error))


def unexpected(call: str, error: Exception) -> SharecoordError:
    """The error for a mistake of ours: the log gets the traceback, the caller a sentence.

    A server that has stopped while a call was read is no mistake; the class of that is private to
    gRPC, which gives it no public name.
    """
    if type(error).__name__ == "_ServerStoppedError":
        return DrainingError.of_this_coordinator()
    log.error("call failed", call=call, exc_info=error)
    return InternalError(f"{call} failed inside of the coordinator; its log says why")


def host_of(context: ServicerContext) -> str:
    """The peer's address without the scheme; gRPC quotes it as in a URL."""
    return unquote(context.peer().partition(":")[2])


def parsed(request_type: type[Message], data: bytes) -> Any:
    """A request out of its bytes.

    gRPC's own deserialisation answers UNKNOWN without a reason, and on a stream it raises.

    Raises:
        InvalidRequestError: The bytes are no such message.
    """
    try:
        return request_type.FromString(data)
    except DecodeError as error:
        raise InvalidRequestError(
            f"the request is not a {request_type.DESCRIPTOR.full_name}: {error}; use stubs of this "
            "coordinator's release"
        ) from error


def unary(
    name: str, call: Call, request_type: type[Message], caller_of: CallerOf
) -> grpc.RpcMethodHandler[Any, Any]:
    """A unary method whose typed errors become a status with reason and details.

    Nothing of a request is read before its caller is known.
    """

    async def guarded(request: bytes, context: ServicerContext) -> Message | None:
        try:
            caller = await caller_of(context, name)
            return await call(parsed(request_type, request), caller)
        except SharecoordError as error:
            await abort(context, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, the caller must hear of it
            await abort(context, unexpected(name, error))
        return None

    return grpc.unary_unary_rpc_method_handler(
        guarded, response_serializer=lambda message: message.SerializeToString()
    )
