"""`AdminClient` and `AsyncAdminClient`: groups, their members, offsets and settings.

    from sharecoord_sdk import AdminClient
    from sharecoord_sdk.admin import ResetTo

    with AdminClient({"bootstrap.servers": "localhost:7070"}) as admin:
        admin.alter_group_configs("workers", {"share.auto.offset.reset": "earliest"})
        admin.reset_offsets("workers", ResetTo.earliest(), ["orders"])
        for group in admin.describe_groups():
            print(group.group_id, group.state.value, sum(p.lag or 0 for p in group.offsets))

The configuration is the one of `ShareConsumer` (address, TLS, credentials), and
`default.api.timeout.ms` is the time for one call. Every call raises an `AdminError` when it fails
as a whole; what fails for one group, topic or partition only stands in the result, as an
`AdminError` too.
"""

from __future__ import annotations

from ._admin.errors import (
    AdminError,
    AuthorizationError,
    CoordinatorUnavailableError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    NotACoordinatorError,
    UnknownDeadLetterError,
    UnknownTopicOrPartitionError,
)
from ._admin.types import (
    AccessDescription,
    BlockedKey,
    ConfigEntry,
    ConfigSource,
    CoordinatorDescription,
    DeadLetter,
    DeadLetterDetails,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLettersResult,
    DeadLetterState,
    ExportedOffsets,
    ForceAction,
    ForcedRange,
    GroupDescription,
    GroupListing,
    GroupState,
    ImportedOffsets,
    InFlightRange,
    MemberDescription,
    PartitionOffsets,
    Pause,
    PauseAnswer,
    PauseResult,
    RecordState,
    ReplayedPartition,
    ReplayOf,
    ResetResult,
    ResetTo,
)
from ._async.admin import AsyncAdminClient
from ._sync.admin import AdminClient

__all__ = [
    "AccessDescription",
    "AdminClient",
    "AdminError",
    "AsyncAdminClient",
    "AuthorizationError",
    "BlockedKey",
    "ConfigEntry",
    "ConfigSource",
    "CoordinatorDescription",
    "CoordinatorUnavailableError",
    "DeadLetter",
    "DeadLetterDetails",
    "DeadLetterFilter",
    "DeadLetterPage",
    "DeadLetterState",
    "DeadLettersResult",
    "ExportedOffsets",
    "ForceAction",
    "ForcedRange",
    "GroupDescription",
    "GroupListing",
    "GroupNotEmptyError",
    "GroupNotFoundError",
    "GroupState",
    "ImportedOffsets",
    "InFlightRange",
    "InvalidConfigError",
    "InvalidRequestError",
    "MemberDescription",
    "NotACoordinatorError",
    "PartitionOffsets",
    "Pause",
    "PauseAnswer",
    "PauseResult",
    "RecordState",
    "ReplayOf",
    "ReplayedPartition",
    "ResetResult",
    "ResetTo",
    "UnknownDeadLetterError",
    "UnknownTopicOrPartitionError",
]
