"""Record states, acknowledgement types and the one table of legal moves (KIP-932, design 5).

Numbers are Kafka's. An illegal move is a mistake of ours; `share_partition` answers mistakes of
clients per range, and they never reach the table.
"""

from __future__ import annotations

import enum


class RecordState(enum.IntEnum):
    """The state of a record for one share group."""

    AVAILABLE = 0
    ACQUIRED = 1
    ACKNOWLEDGED = 2
    ARCHIVING = 3
    ARCHIVED = 4


class AcknowledgeType(enum.IntEnum):
    """The type of an acknowledgement. RETURN is ours: handed back unseen (design 5.3)."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4
    RETURN = 16


class AcquireMode(enum.IntEnum):
    """How an acquire takes records (KIP-1206, design 5)."""

    FAIR = 1
    BATCH_OPTIMIZED = 2
    RECORD_LIMIT = 3


class Ordering(enum.StrEnum):
    """The order that a group keeps (design 5.6)."""

    UNORDERED = "unordered"
    KEY = "key"
    PARTITION = "partition"


class ArchiveReason(enum.StrEnum):
    """Why a record is never delivered again."""

    DELIVERY_LIMIT = "DELIVERY_LIMIT"
    REJECTED = "REJECTED"
    GAP = "GAP"
    LOG_START = "LOG_START"
    TRUNCATED = "TRUNCATED"
    ADMIN = "ADMIN"
    PAYLOAD_GONE = "PAYLOAD_GONE"


class ForceAction(enum.StrEnum):
    """The command of an operator for records in flight, also for those under a lock."""

    RELEASE = "release"
    SKIP = "skip"
    FINISH = "finish"


class TakenBackReason(enum.IntEnum):
    """Why a lock ended without a word of its holder; the numbers are those of the wire."""

    CHAIN_BROKE = 1
    """An earlier record of its chain came back (design 5.6)."""
    LOCK_ENDED = 2
    """Its time was over."""
    STATE_CHANGED = 3
    """The store says so: an operator, a reset, another owner, a commit of unknown outcome."""
    TRUNCATED = 4
    """The log lost its end."""
    DELETED = 5
    """The topic is gone, or the group's offsets of it were deleted."""


class AcknowledgeOutcome(enum.IntEnum):
    """The outcome of one acknowledged range (design 5.2)."""

    OK = 1
    ALREADY_FINISHED = 2
    LOCK_LOST = 3
    UNKNOWN_OUTCOME = 4
    INVALID_REQUEST = 5
    RENEW_DISABLED = 6


LEGAL_MOVES: dict[RecordState, frozenset[RecordState]] = {
    RecordState.AVAILABLE: frozenset(RecordState),
    RecordState.ACQUIRED: frozenset(RecordState),
    RecordState.ACKNOWLEDGED: frozenset(),
    RecordState.ARCHIVING: frozenset({RecordState.ARCHIVED}),
    RecordState.ARCHIVED: frozenset(),
}
"""From -> to. A record that was never read counts as AVAILABLE. ACQUIRED -> ACQUIRED is a renewal,
AVAILABLE -> AVAILABLE a change of its delay, AVAILABLE -> ARCHIVED a loss or an operator's word,
AVAILABLE -> ARCHIVING a delivery limit that was lowered, AVAILABLE -> ACKNOWLEDGED a proven gap or
an operator's word. `Window.apply` asserts that each edit is legal."""
