"""Blocked keys of groups (table `blocked_key`). The group's row is locked before them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, delete, insert

from sharecoord.core.changes import GroupRow
from sharecoord.core.order.blocked_keys import merged
from sharecoord.store.dialects import Dialect
from sharecoord.store.group_queries import change_group, ensure_group
from sharecoord.store.row_codec import key_digest
from sharecoord.store.tables import BLOCKED_KEY


def save_blocked_keys(
    connection: Connection,
    dialect: Dialect,
    *,
    group_id: str,
    blocked: Mapping[bytes, str],
    unblocked: Sequence[bytes],
) -> GroupRow:
    """Writes and deletes blocked keys, raises the group epoch."""
    group = ensure_group(connection, dialect, group_id)
    kept = merged(group, blocked, unblocked, dialect.now_ms(connection))
    digests = [key_digest(key) for key in {*blocked, *unblocked}]
    of_group = BLOCKED_KEY.c.group_id == group_id
    if digests:
        connection.execute(
            delete(BLOCKED_KEY).where(of_group, BLOCKED_KEY.c.key_digest.in_(digests))
        )
    rows = [
        {
            "group_id": group_id,
            "key_digest": key_digest(entry.key),
            "record_key": entry.key,
            "since_ms": entry.since_ms,
            "reason": entry.reason,
        }
        for entry in kept
        if entry.key in blocked
    ]
    if rows:
        connection.execute(insert(BLOCKED_KEY), rows)
    return change_group(connection, group_id, {})
