"""Kafka's error codes for failed streams and refused acknowledgements: tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .errors import KafkaError

#: Trailing metadata of every error of the coordinator.
REASON_KEY: Final = "sharecoord-reason"
RETRY_AFTER_KEY: Final = "sharecoord-retry-after-ms"
#: What a caller may not use: `group:NAME` or `topic:NAME`; beside AUTHORIZATION_FAILED.
RESOURCE_KEY: Final = "sharecoord-resource"


@dataclass(frozen=True, slots=True)
class StreamFailure:
    """The end of a stream, in grpc's words and the coordinator's.

    Attributes:
        code: Name of the grpc status, "OK" when the coordinator ended the stream in order.
        details: Text of the status.
        reason: `sharecoord-reason` of the trailing metadata, "" without.
        retry_after_ms: `sharecoord-retry-after-ms`, or None.
        resource: `sharecoord-resource`, "" without.
    """

    code: str
    details: str = ""
    reason: str = ""
    retry_after_ms: int | None = None
    resource: str = ""

    @property
    def is_unauthenticated(self) -> bool:
        """Whether the other side did not accept the credential, or its time is over."""
        return self.code == "UNAUTHENTICATED"

    @property
    def is_refusal(self) -> bool:
        """Whether who calls is refused, so that a retry helps after somebody's change alone."""
        return self.code in ("UNAUTHENTICATED", "PERMISSION_DENIED")

    @property
    def is_silence(self) -> bool:
        """Whether the other side kept its connection and answered no ping: it stands still."""
        return self.details.endswith(_SILENCE) and not self.reason


# grpc's own words when keepalive gives a connection up: the socket took the ping, or nothing more.
_SILENCE: Final = ("(ping timeout)", "(keepalive timeout)")

# Reasons of the coordinator's error table -> Kafka's codes.
_BY_REASON: Final[dict[str, int]] = {
    "INVALID_REQUEST": KafkaError.INVALID_REQUEST,
    "INVALID_CONFIG": KafkaError.INVALID_CONFIG,
    "INVALID_RECORD_STATE": KafkaError.INVALID_RECORD_STATE,
    "LOCK_LOST": KafkaError.INVALID_RECORD_STATE,
    "UNKNOWN_MEMBER": KafkaError.UNKNOWN_MEMBER_ID,
    "MEMBER_FENCED": KafkaError.FENCED_MEMBER_EPOCH,
    "UNKNOWN_TOPIC_OR_PARTITION": KafkaError.UNKNOWN_TOPIC_OR_PART,
    "UNKNOWN_DEAD_LETTER": KafkaError.RESOURCE_NOT_FOUND,
    "GROUP_ID_NOT_FOUND": KafkaError.GROUP_ID_NOT_FOUND,
    "GROUP_NOT_EMPTY": KafkaError.NON_EMPTY_GROUP,
    "GROUP_PAUSED": KafkaError.COORDINATOR_NOT_AVAILABLE,
    "UNSUPPORTED_VERSION": KafkaError.UNSUPPORTED_VERSION,
    "UNAUTHENTICATED": KafkaError._AUTHENTICATION,
    "AUTHORIZATION_FAILED": KafkaError.GROUP_AUTHORIZATION_FAILED,
    "LIMIT_EXCEEDED": KafkaError.THROTTLING_QUOTA_EXCEEDED,
    "GROUP_MAX_SIZE_REACHED": KafkaError.GROUP_MAX_SIZE_REACHED,
    "QUOTA_EXCEEDED": KafkaError.THROTTLING_QUOTA_EXCEEDED,
    "KEYS_UNAVAILABLE": KafkaError.COORDINATOR_NOT_AVAILABLE,
    "NOT_OWNER": KafkaError.NOT_LEADER_FOR_PARTITION,
    "DRAINING": KafkaError.COORDINATOR_NOT_AVAILABLE,
    "STORE_UNAVAILABLE": KafkaError.COORDINATOR_NOT_AVAILABLE,
    "STORE_OUTCOME_UNKNOWN": KafkaError.COORDINATOR_NOT_AVAILABLE,
    "STORE_FENCED": KafkaError.FENCED_STATE_EPOCH,
    "STORE_FATAL": KafkaError.KAFKA_STORAGE_ERROR,
    "KAFKA_UNAVAILABLE": KafkaError.BROKER_NOT_AVAILABLE,
    "OFFSET_OUT_OF_RANGE": KafkaError.OFFSET_OUT_OF_RANGE,
    "UNREADABLE_RECORDS": KafkaError.INVALID_MSG,
    "LOG_REGRESSED": KafkaError.KAFKA_STORAGE_ERROR,
}

# grpc statuses that no retry of the same call mends -> Kafka's codes.
_FINAL_BY_CODE: Final[dict[str, int]] = {
    "INVALID_ARGUMENT": KafkaError.INVALID_REQUEST,
    "FAILED_PRECONDITION": KafkaError._STATE,
    "UNAUTHENTICATED": KafkaError._AUTHENTICATION,
    "PERMISSION_DENIED": KafkaError.GROUP_AUTHORIZATION_FAILED,
    "UNIMPLEMENTED": KafkaError.UNSUPPORTED_VERSION,
    "NOT_FOUND": KafkaError.RESOURCE_NOT_FOUND,
    "ALREADY_EXISTS": KafkaError.DUPLICATE_RESOURCE,
    "OUT_OF_RANGE": KafkaError.INVALID_REQUEST,
}

# A retry helps, but Kafka's client tells the application at once (GroupMaxSizeReachedException).
_TOLD_THOUGH_RETRIABLE: Final = ("GROUP_MAX_SIZE_REACHED",)

# Joining again is the whole answer: a new stream does so anyway.
_MENDED_BY_JOINING: Final = ("UNKNOWN_MEMBER",)

_HTTP_FIX: Final = "an HTTP server or proxy answers there; is bootstrap.servers right?"

_HINTS: Final[dict[str, str]] = {
    "UNIMPLEMENTED": "the peer speaks gRPC but not sharecoord.v1; is the address right?",
    "UNAUTHENTICATED": "check sasl.username and sasl.password, or oauth_cb",
    "PERMISSION_DENIED": "no coordinator says so: is there a proxy or gateway in between?",
    "RESOURCE_EXHAUSTED": "the coordinator's limits.request.max.bytes is the most that it takes",
}


def code_of_reason(reason: str) -> int:
    """Kafka's code for a reason of the coordinator; UNKNOWN for a new one."""
    return _BY_REASON.get(reason, KafkaError.UNKNOWN)


def error_for_application(failure: StreamFailure, address: str) -> KafkaError | None:
    """The error that the next poll raises, or None when reconnecting is the whole answer."""
    told = failure.reason in _TOLD_THOUGH_RETRIABLE
    retriable = (
        failure.code not in _FINAL_BY_CODE
        or failure.retry_after_ms is not None
        or failure.reason in _MENDED_BY_JOINING
    )
    if retriable and not told:
        return None
    code = _BY_REASON.get(failure.reason, _FINAL_BY_CODE.get(failure.code, KafkaError.UNKNOWN))
    if code == KafkaError.GROUP_AUTHORIZATION_FAILED and failure.resource.startswith("topic:"):
        code = KafkaError.TOPIC_AUTHORIZATION_FAILED
    return KafkaError(code, describe(failure, address), retriable=retriable)


def describe(failure: StreamFailure, address: str) -> str:
    """The failure in one line, with the address."""
    # Only a coordinator gives a reason; without one it may be anybody.
    who = f"coordinator {address}" if failure.reason else address
    hint = "" if failure.reason else _hint(failure)
    return f"{who}: {failure_text(failure)}{hint and '; '}{hint}"


def failure_text(failure: StreamFailure) -> str:
    """The failure in one line."""
    why = f" ({failure.reason})" if failure.reason else ""
    return f"{failure.code}{why}: {failure.details or 'no details'}"


def _hint(failure: StreamFailure) -> str:
    if "http2 header with status" in failure.details:
        return _HTTP_FIX
    return _HINTS.get(failure.code, "")
