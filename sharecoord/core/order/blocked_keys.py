"""Keys whose records a group does not hand out: an operator's list (docs/ordering.md)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sharecoord.core.changes import BlockedKey, GroupRow
from sharecoord.core.limits import BLOCKED_KEYS_MAX
from sharecoord.core.records import key_hash
from sharecoord.errors import LimitExceededError


def hash_of(key: bytes) -> int:
    """The number that stands for a key in the state machine."""
    return int.from_bytes(key_hash(key), "big")


def merged(
    group: GroupRow, blocked: Mapping[bytes, str], unblocked: Sequence[bytes], now_ms: int
) -> tuple[BlockedKey, ...]:
    """The blocked keys of a group after a change, by key.

    Raises:
        LimitExceededError: There are too many.
    """
    entries = {entry.key: entry for entry in group.blocked_keys if entry.key not in unblocked}
    for key, reason in blocked.items():
        known = entries.get(key)
        entries[key] = BlockedKey(key, now_ms if known is None else known.since_ms, reason)
    if blocked and len(entries) > BLOCKED_KEYS_MAX:
        raise LimitExceededError(
            f"group {group.group_id!r} would have {len(entries)} blocked keys; {BLOCKED_KEYS_MAX} "
            "are allowed. Unblock some, or pause what feeds them"
        )
    return tuple(sorted(entries.values()))
