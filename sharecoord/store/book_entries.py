"""Entries of books: what is stored beside a record, the rows of table `book_entry`.

There are three kinds; a record has one entry of each at most (docs/decisions/0042).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sharecoord.core.changes import Checkpoint, DeadLetter, KeptPayload, PartitionCommit

DEAD_LETTER: Final = "dead_letter"
CHECKPOINT: Final = "checkpoint"
KEPT_PAYLOAD: Final = "kept_payload"

KINDS: Final = (DEAD_LETTER, CHECKPOINT, KEPT_PAYLOAD)
WINDOW_KINDS: Final = (CHECKPOINT, KEPT_PAYLOAD)
"""Kinds that end with the share-partition's window; dead letters outlive it."""

ENTRY_KEYS: Final = ("kind", "partition_id", "record_offset")
"""The primary key."""

LETTER_FIELDS: Final = (
    "reason",
    "delivery_count",
    "message",
    "payload_known",
    "member_id",
    "first_failed_at_ms",
    "failed_at_ms",
    "state_epoch",
    "kept",
    "sequence",
    "topic",
    "exactly_once",
)
"""Columns that only dead letters have, by the names of their fields; `members` follows."""

_RECORD = (*ENTRY_KEYS, "record_key", "record_value", "headers", "timestamp_ms")

COLUMNS_OF_KIND: Final = {
    DEAD_LETTER: (*_RECORD, "checkpoint", *LETTER_FIELDS, "members"),
    CHECKPOINT: (*ENTRY_KEYS, "checkpoint", "at_ms"),
    KEPT_PAYLOAD: (*_RECORD, "timestamp_type", "size_bytes"),
}
"""Columns that an entry of a kind has; the others are NULL."""

Entry = DeadLetter | Checkpoint | KeptPayload


def changes_of(part: PartitionCommit) -> tuple[tuple[str, Sequence[int], Sequence[Entry]], ...]:
    """Per kind: offsets whose entries go, then entries that are written."""
    return (
        (DEAD_LETTER, part.dead_letters_done, part.dead_letters),
        (CHECKPOINT, part.checkpoints_done, part.checkpoints),
        (KEPT_PAYLOAD, part.kept_done, part.kept),
    )
