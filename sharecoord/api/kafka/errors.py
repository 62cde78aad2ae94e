"""Kafka's error codes for the errors of this package: one table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kio.schema.errors import ErrorCode

from sharecoord.core.delivery import PartitionResult
from sharecoord.core.partition.decisions import RangeOutcome
from sharecoord.core.states import AcknowledgeOutcome
from sharecoord.errors import (
    GroupMaxSizeReachedError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    MemberFencedError,
    QuotaExceededError,
    SharecoordError,
    UnauthenticatedError,
    UnauthorizedError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from sharecoord.security.actions import Kind

_CODES: Final[dict[type[SharecoordError], ErrorCode]] = {
    GroupMaxSizeReachedError: ErrorCode.group_max_size_reached,
    GroupNotEmptyError: ErrorCode.non_empty_group,
    GroupNotFoundError: ErrorCode.group_id_not_found,
    InvalidConfigError: ErrorCode.invalid_config,
    InvalidRequestError: ErrorCode.invalid_request,
    MemberFencedError: ErrorCode.fenced_member_epoch,
    # Clients wait and try again. Members may leave, and calls are counted over ten seconds.
    QuotaExceededError: ErrorCode.coordinator_load_in_progress,
    UnauthenticatedError: ErrorCode.sasl_authentication_failed,
    UnknownMemberError: ErrorCode.unknown_member_id,
    UnknownTopicOrPartitionError: ErrorCode.unknown_topic_or_partition,
    UnsupportedVersionError: ErrorCode.unsupported_version,
}
"""The codes of errors that are not of this coordinator's making."""


_REFUSED: Final[dict[str, ErrorCode]] = {
    Kind.TOPIC: ErrorCode.topic_authorization_failed,
    Kind.DEAD_LETTER_TOPIC: ErrorCode.topic_authorization_failed,
    Kind.CLUSTER: ErrorCode.cluster_authorization_failed,
}
"""The codes of refusals, by what the rules do not allow; of groups otherwise."""


def code_of(error: SharecoordError) -> ErrorCode:
    """The code for an error; who may try again is told so by a code that is retriable."""
    if isinstance(error, UnauthorizedError):
        kind = error.metadata.get("resource", "").partition(":")[0]
        return _REFUSED.get(kind, ErrorCode.group_authorization_failed)
    if type(error) in _CODES:
        return _CODES[type(error)]
    if error.retriable:
        return ErrorCode.coordinator_not_available
    return ErrorCode.unknown_server_error


def is_refused(exceptions: Iterable[RangeOutcome]) -> bool:
    """Whether acknowledgements failed: all of a partition, as a broker does it."""
    return any(each.outcome is not AcknowledgeOutcome.UNKNOWN_OUTCOME for each in exceptions)


def acknowledge_code(result: PartitionResult) -> ErrorCode:
    """The code for the acknowledgements of one share-partition: that of the first error.

    Offsets below the start offset are finished, whoever finished them: no error at a broker.
    """
    if result.error is not None:
        return code_of(result.error)
    for each in result.exceptions:
        if each.outcome is AcknowledgeOutcome.INVALID_REQUEST:
            return ErrorCode.invalid_request
        if is_refused([each]):
            return ErrorCode.invalid_record_state
    return ErrorCode.none
