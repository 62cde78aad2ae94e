"""Errors as gRPC status: one table, both ways, with google.rpc details and plain metadata."""

from __future__ import annotations

from urllib.parse import quote

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import code_pb2, error_details_pb2, status_pb2

from sharecoord.errors import SharecoordError

DOMAIN = "sharecoord"
REASON_KEY = "sharecoord-reason"
RETRY_KEY = "sharecoord-retry-after-ms"
RESOURCE_KEY = "sharecoord-resource"
"""What a caller may not use, such as `group:orders`, percent-encoded."""
DETAILS_KEY = "grpc-status-details-bin"

CODES: dict[str, grpc.StatusCode] = {
    "INTERNAL": grpc.StatusCode.INTERNAL,
    "INVALID_REQUEST": grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_CONFIG": grpc.StatusCode.INVALID_ARGUMENT,
    "UNKNOWN_MEMBER": grpc.StatusCode.NOT_FOUND,
    "MEMBER_FENCED": grpc.StatusCode.FAILED_PRECONDITION,
    "UNKNOWN_TOPIC_OR_PARTITION": grpc.StatusCode.NOT_FOUND,
    "UNKNOWN_DEAD_LETTER": grpc.StatusCode.NOT_FOUND,
    "GROUP_ID_NOT_FOUND": grpc.StatusCode.NOT_FOUND,
    "GROUP_NOT_EMPTY": grpc.StatusCode.FAILED_PRECONDITION,
    "UNSUPPORTED_VERSION": grpc.StatusCode.FAILED_PRECONDITION,
    "UNAUTHENTICATED": grpc.StatusCode.UNAUTHENTICATED,
    "AUTHORIZATION_FAILED": grpc.StatusCode.PERMISSION_DENIED,
    "LIMIT_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "GROUP_MAX_SIZE_REACHED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "QUOTA_EXCEEDED": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "KEYS_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "NOT_OWNER": grpc.StatusCode.UNAVAILABLE,
    "DRAINING": grpc.StatusCode.UNAVAILABLE,
    "STORE_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "STORE_OUTCOME_UNKNOWN": grpc.StatusCode.UNAVAILABLE,
    "STORE_FENCED": grpc.StatusCode.UNAVAILABLE,
    "STORE_FATAL": grpc.StatusCode.INTERNAL,
    "STORE_IN_USE": grpc.StatusCode.FAILED_PRECONDITION,
    "STORE_VERSION": grpc.StatusCode.FAILED_PRECONDITION,
    "STORE_CLUSTER_MISMATCH": grpc.StatusCode.FAILED_PRECONDITION,
    "EVENTS_FOLDER_IN_USE": grpc.StatusCode.FAILED_PRECONDITION,
    "KAFKA_UNAVAILABLE": grpc.StatusCode.UNAVAILABLE,
    "OFFSET_OUT_OF_RANGE": grpc.StatusCode.OUT_OF_RANGE,
    "UNREADABLE_RECORDS": grpc.StatusCode.DATA_LOSS,
}
"""Every reason of `sharecoord.errors`; a test holds the two complete."""

Metadata = tuple[tuple[str, str | bytes], ...]


def code_of(error: SharecoordError) -> grpc.StatusCode:
    """The gRPC code of an error."""
    return CODES[error.reason]


TEXT_BEGINNING, TEXT_END = 350, 150
"""Characters that a longer text keeps: it travels in headers, percent-encoded, of which clients
take 8 KiB. Our errors have the problem at the beginning and the fix at the end."""


def text_of(error: SharecoordError) -> str:
    """The error's text, short enough for a status even when it quotes a client's megabyte."""
    return _cut(error.message)


def _cut(text: str) -> str:
    if len(text) <= TEXT_BEGINNING + TEXT_END:
        return text
    return f"{text[:TEXT_BEGINNING]} … {text[-TEXT_END:]}"


def trailing_metadata(error: SharecoordError) -> Metadata:
    """Reason and retry delay, once as google.rpc details and once as plain text."""
    facts = {name: _cut(value) for name, value in error.metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=error.reason, domain=DOMAIN, metadata=facts)
    details = [_packed(info)]
    plain: list[tuple[str, str | bytes]] = [(REASON_KEY, error.reason)]
    if error.retriable:
        delay_ms = 100 if error.retry_after_ms is None else error.retry_after_ms
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(delay_ms)
        details.append(_packed(error_details_pb2.RetryInfo(retry_delay=delay)))
        plain.append((RETRY_KEY, str(delay_ms)))
    if resource := error.metadata.get("resource"):
        plain.append((RESOURCE_KEY, quote(_cut(resource), safe=":")))
    status = status_pb2.Status(
        code=code_pb2.Code.Value(code_of(error).name), message=text_of(error), details=details
    )
    return (*plain, (DETAILS_KEY, status.SerializeToString()))


def _packed(message: error_details_pb2.ErrorInfo | error_details_pb2.RetryInfo) -> any_pb2.Any:
    packed = any_pb2.Any()
    packed.Pack(message)
    return packed
