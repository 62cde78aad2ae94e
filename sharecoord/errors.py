"""The errors that this package raises on purpose, in one tree.

Every class says its reason, whose fault it is, and whether a retry helps; `sharecoord.wire.status`
maps the reasons to gRPC codes, one table for both ways. The message of an error names the thing
that is wrong and the fix.
"""

from __future__ import annotations

from typing import ClassVar, Self


class SharecoordError(Exception):
    """Root of all errors that this package raises on purpose.

    Attributes:
        reason: Stable name for programs, UPPER_SNAKE.
        retriable: Whether the same call can succeed later without a change by the caller.
        retry_after_ms: How long to wait before the retry, or None.
    """

    reason: ClassVar[str] = "INTERNAL"
    retriable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        retry_after_ms: int | None = None,
        metadata: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        self.metadata = metadata or {}


class InternalError(SharecoordError):
    """A mistake of ours: an invariant did not hold."""


# -- the caller's fault ---------------------------------------------------------------------------


class InvalidRequestError(SharecoordError):
    """A field of a request is missing, malformed or out of bounds."""

    reason = "INVALID_REQUEST"


class InvalidConfigError(SharecoordError):
    """A setting is unknown, malformed or out of bounds."""

    reason = "INVALID_CONFIG"


class UnknownMemberError(SharecoordError):
    """The member is not known (any more): join again."""

    reason = "UNKNOWN_MEMBER"


class MemberFencedError(SharecoordError):
    """A newer stream of the same member id exists."""

    reason = "MEMBER_FENCED"


class UnknownTopicOrPartitionError(SharecoordError):
    """The cluster does not have this topic or partition."""

    reason = "UNKNOWN_TOPIC_OR_PARTITION"


class UnknownDeadLetterError(SharecoordError):
    """The group has no such dead letter, neither waiting nor in the topic."""

    reason = "UNKNOWN_DEAD_LETTER"


class GroupNotFoundError(SharecoordError):
    """There is no such share group."""

    reason = "GROUP_ID_NOT_FOUND"


class GroupNotEmptyError(SharecoordError):
    """The group has members, and the operation needs it empty."""

    reason = "GROUP_NOT_EMPTY"


class UnsupportedVersionError(SharecoordError):
    """The protocol version of the client is not served here."""

    reason = "UNSUPPORTED_VERSION"


class UnauthenticatedError(SharecoordError):
    """The credentials of a call are not checked here, or are not good."""

    reason = "UNAUTHENTICATED"


class UnauthorizedError(SharecoordError):
    """The principal may not do this."""

    reason = "AUTHORIZATION_FAILED"


# -- limits ---------------------------------------------------------------------------------------


class LimitExceededError(SharecoordError):
    """A named limit was reached; nothing was queued."""

    reason = "LIMIT_EXCEEDED"
    retriable = True


class GroupMaxSizeReachedError(LimitExceededError):
    """The group has as many members as it may have."""

    reason = "GROUP_MAX_SIZE_REACHED"


class QuotaExceededError(LimitExceededError):
    """The principal uses as much as it may; others are not concerned."""

    reason = "QUOTA_EXCEEDED"


# -- the world's fault ----------------------------------------------------------------------------


class NotOwnerError(SharecoordError):
    """Another coordinator owns the partition now."""

    reason = "NOT_OWNER"
    retriable = True


class DrainingError(SharecoordError):
    """The coordinator is shutting down: go to another one."""

    reason = "DRAINING"
    retriable = True

    @classmethod
    def of_this_coordinator(cls) -> Self:
        """The answer to all who come while it shuts down."""
        return cls("this coordinator is shutting down", retry_after_ms=1000)


class StoreUnavailableError(SharecoordError):
    """The store does not answer; nothing was changed."""

    reason = "STORE_UNAVAILABLE"
    retriable = True


class StoreOutcomeUnknownError(StoreUnavailableError):
    """The store broke while committing: the commit may have happened or not."""

    reason = "STORE_OUTCOME_UNKNOWN"


class StoreFencedError(SharecoordError):
    """The rows belong to a newer owner epoch or a newer state epoch."""

    reason = "STORE_FENCED"
    retriable = True


class StoreFatalError(SharecoordError):
    """The store can not be trusted any more (I/O error, corruption): the process must end."""

    reason = "STORE_FATAL"


class StoreInUseError(SharecoordError):
    """Another coordinator uses this store, and both are not a fleet."""

    reason = "STORE_IN_USE"


class StoreVersionError(SharecoordError):
    """The schema of the store is from another release."""

    reason = "STORE_VERSION"


class StoreClusterMismatchError(SharecoordError):
    """The store belongs to another Kafka cluster."""

    reason = "STORE_CLUSTER_MISMATCH"


class EventsFolderInUseError(SharecoordError):
    """Another command changes the files of this event log."""

    reason = "EVENTS_FOLDER_IN_USE"


class KafkaUnavailableError(SharecoordError):
    """Kafka does not answer."""

    reason = "KAFKA_UNAVAILABLE"
    retriable = True


class KeysUnavailableError(SharecoordError):
    """The identity provider's keys can not be had, so nobody knows whether a token is good."""

    reason = "KEYS_UNAVAILABLE"
    retriable = True


class OffsetOutOfRangeError(SharecoordError):
    """The offset is below the log start or beyond the log end."""

    reason = "OFFSET_OUT_OF_RANGE"


class UnreadableRecordsError(SharecoordError):
    """A batch of records can not be opened; the share-partition stands still before it."""

    reason = "UNREADABLE_RECORDS"

    @classmethod
    def of(cls, topic: str, partition: int, offset: int, why: object) -> Self:
        """The error of the batch at an offset, with what an operator can do."""
        return cls(
            f"the records of {topic}[{partition}] at offset {offset} can not be read: {why}. "
            "Nothing is left out by itself: if every try fails, reset the group's offset behind "
            "them, or have the topic's owner delete them"
        )
