"""Errors of admin calls, one class per thing that a program can do about them."""

from __future__ import annotations

from typing import Final

from sharecoord_sdk._core.status import StreamFailure


class AdminError(Exception):
    """An admin call failed; also the class of reasons that have none of their own.

    Attributes:
        reason: Stable name of the coordinator's error table, such as `GROUP_NOT_EMPTY`.
        message: One sentence that names the thing and the fix.
        retriable: Whether the same call can succeed later.
        retry_after_ms: How long to wait before that, or None.
    """

    def __init__(
        self,
        message: str,
        *,
        reason: str = "INTERNAL",
        retriable: bool = False,
        retry_after_ms: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.reason = reason
        self.retriable = retriable
        self.retry_after_ms = retry_after_ms


class InvalidRequestError(AdminError):
    """An argument is missing, malformed or out of bounds."""


class InvalidConfigError(AdminError):
    """A setting (of a group, or of this client) is unknown, malformed or out of bounds."""


class AuthorizationError(AdminError):
    """The credentials are missing or wrong, or do not allow this."""


class GroupNotFoundError(AdminError):
    """There is no such share group."""


class GroupNotEmptyError(AdminError):
    """The group has members, and the operation needs it empty."""


class UnknownTopicOrPartitionError(AdminError):
    """The cluster, or the group, does not have this topic or partition."""


class UnknownDeadLetterError(AdminError):
    """The group has no such dead letter."""


class CoordinatorUnavailableError(AdminError):
    """No coordinator answers, or it can not reach its store or Kafka. A retry may help."""


class NotACoordinatorError(AdminError):
    """Something else answers at the address: a Kafka broker, or another gRPC server."""


_CLASSES: Final[dict[str, type[AdminError]]] = {
    "INVALID_REQUEST": InvalidRequestError,
    "INVALID_CONFIG": InvalidConfigError,
    "UNAUTHENTICATED": AuthorizationError,
    "AUTHORIZATION_FAILED": AuthorizationError,
    "GROUP_ID_NOT_FOUND": GroupNotFoundError,
    "GROUP_NOT_EMPTY": GroupNotEmptyError,
    "UNKNOWN_TOPIC_OR_PARTITION": UnknownTopicOrPartitionError,
    "UNKNOWN_DEAD_LETTER": UnknownDeadLetterError,
    "KEYS_UNAVAILABLE": CoordinatorUnavailableError,
    "NOT_OWNER": CoordinatorUnavailableError,
    "DRAINING": CoordinatorUnavailableError,
    "STORE_UNAVAILABLE": CoordinatorUnavailableError,
    "STORE_OUTCOME_UNKNOWN": CoordinatorUnavailableError,
    "STORE_FENCED": CoordinatorUnavailableError,
    "STORE_FATAL": CoordinatorUnavailableError,
    "KAFKA_UNAVAILABLE": CoordinatorUnavailableError,
}
_CREDENTIALS_FIX: Final = (
    "check sasl.username and sasl.password, the token of sasl.mechanisms=OAUTHBEARER, or"
    " ssl.certificate.location"
)
_PASSING: Final = (
    "DRAINING",
    "GROUP_MAX_SIZE_REACHED",
    "GROUP_PAUSED",
    "LIMIT_EXCEEDED",
    "NOT_OWNER",
    "QUOTA_EXCEEDED",
    "STORE_FENCED",
)


def is_passing(reason: str) -> bool:
    """Whether what the coordinator names passes by itself."""
    return reason in _PASSING or reason.endswith(("_UNAVAILABLE", "_OUTCOME_UNKNOWN"))


def item_error(reason: str, message: str) -> AdminError | None:
    """The error of one item of an answer; None when it has none."""
    if not reason:
        return None
    kind = _CLASSES.get(reason, AdminError)
    return kind(message, reason=reason, retriable=is_passing(reason))


def call_error(failure: StreamFailure, address: str, timeout_s: float) -> AdminError:
    """The error of a call that ended with a grpc status."""
    if failure.reason:
        kind = _CLASSES.get(failure.reason, AdminError)
        return kind(
            failure.details,
            reason=failure.reason,
            retriable=failure.retry_after_ms is not None or is_passing(failure.reason),
            retry_after_ms=failure.retry_after_ms,
        )
    details = failure.details or "no details"
    match failure.code:
        case "UNIMPLEMENTED":
            text = (
                f"{address} answers, but does not know this call ({details}); is it a sharecoord "
                "coordinator, and of this release?"
            )
            return NotACoordinatorError(text, reason="UNIMPLEMENTED")
        case "UNAUTHENTICATED":
            text = f"{address} does not accept the credentials ({details}); {_CREDENTIALS_FIX}"
            return AuthorizationError(text, reason="UNAUTHENTICATED")
        case "PERMISSION_DENIED":
            fix = "no coordinator says so: is there a proxy or gateway in between?"
            return AuthorizationError(f"{address}: {details}; {fix}", reason="AUTHORIZATION_FAILED")
        case "DEADLINE_EXCEEDED":
            text = f"{address} did not answer within {timeout_s:g} s; is it up, or overloaded?"
            return CoordinatorUnavailableError(text, reason="TIMEOUT", retriable=True)
        case "UNAVAILABLE":
            # grpc's text ends with the cause.
            cause = details.rsplit("last error: ", 1)[-1].removeprefix("UNKNOWN: ").strip()
            if "socket closed" in cause.lower() or "reset by peer" in cause.lower():
                # So a handshake ends as well that misses the client's certificate (TLS 1.3).
                text = (
                    f"something listens at {address} and hangs up ({cause}); does it want TLS, or a"
                    " certificate of this client (ssl.certificate.location, ssl.key.location)?"
                )
                return CoordinatorUnavailableError(text, reason="UNREACHABLE", retriable=True)
            text = (
                f"no coordinator answers at {address} ({cause}); start one with `sharecoord serve`,"
                " or give its address (its --listen, by default localhost:7070)"
            )
            return CoordinatorUnavailableError(text, reason="UNREACHABLE", retriable=True)
        case code:
            return AdminError(f"{address}: {code}: {details}", reason=code)


def kafka_broker(address: str) -> NotACoordinatorError:
    text = (
        f"{address} is a Kafka broker, not a sharecoord coordinator; give the coordinator's "
        "address (its --listen, by default localhost:7070)"
    )
    return NotACoordinatorError(text, reason="KAFKA_BROKER")
