"""Statements of the group commit (design 4), inside a writing transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from sharecoord.core.changes import CommitBatch, PartitionCommit
from sharecoord.store.book_entries import changes_of
from sharecoord.store.dialects import Dialect
from sharecoord.store.hot.partitions import MEMBER_EPOCH_FLOOR, raise_floor
from sharecoord.store.hot.statements import Statements
from sharecoord.store.row_codec import encode_entries, encode_head, encode_passed_over


def write_batch(
    connection: Connection,
    dialect: Dialect,
    statements: Statements,
    batch: CommitBatch,
    coordinator_id: str,
) -> frozenset[int]:
    """Writes all partitions whose epochs hold, and the members; returns the fenced partitions."""
    fenced: frozenset[int] = frozenset()
    if batch.partitions:
        fenced = _fenced(connection, statements, batch.partitions)
        write_partitions(
            connection,
            statements,
            [part for part in batch.partitions if part.partition_id not in fenced]
            if fenced
            else batch.partitions,
        )
    # In order of their keys, as joins lock them.
    if batch.members_removed:
        now_ms = dialect.now_ms(connection)
        removed = [(*each, coordinator_id, now_ms) for each in sorted(batch.members_removed)]
        statements.delete_members(connection, removed)
        highest = max(epoch for _, _, epoch in batch.members_removed)
        raise_floor(connection, dialect, highest, MEMBER_EPOCH_FLOOR)
    return fenced


def _fenced(
    connection: Connection, statements: Statements, parts: Sequence[PartitionCommit]
) -> frozenset[int]:
    wanted = {part.partition_id: (part.owner_epoch, part.state_epoch) for part in parts}
    assert len(wanted) == len(parts), "a partition stands twice in one commit"
    stored = {row[0]: (row[1], row[2]) for row in statements.read_epochs(connection, list(wanted))}
    if stored == wanted:
        return frozenset()
    return frozenset(key for key, epochs in wanted.items() if stored.get(key) != epochs)


def write_partitions(
    connection: Connection, statements: Statements, parts: Sequence[PartitionCommit]
) -> None:
    """Writes the changes of share-partitions whose rows are locked."""
    if not parts:
        return
    for part in parts:
        if part.truncated_at is not None:
            statements.truncate_ranges(connection, part.partition_id, part.truncated_at)
    statements.write_ranges(
        connection,
        [(*encode_head(part.head), part.partition_id) for part in parts if part.head is not None],
        [(part.partition_id, offset) for part in parts for offset in part.deleted],
        [(part.partition_id, *row) for part in parts for row in part.upserted],
    )
    if raised := [(part.partition_id,) for part in parts if part.raises_state_epoch]:
        statements.raise_state_epochs(connection, raised)
    if passed := [
        (part.state_epoch + 1, encode_passed_over(part.passed_over), part.partition_id)
        for part in parts
        if part.passed_over is not None
    ]:
        statements.pass_over(connection, passed)
    gone: list[tuple[str, int, int]] = []
    entries: dict[str, list[tuple[object, ...]]] = {}
    for part in parts:
        id_ = part.partition_id
        for kind, offsets, written in changes_of(part):
            if offsets:
                gone += [(kind, id_, offset) for offset in offsets]
            if written:
                entries.setdefault(kind, []).extend(encode_entries(kind, id_, written))
    if gone:
        statements.delete_entries(connection, gone)
    for kind, rows in entries.items():
        statements.upsert_entries(connection, kind, rows)
