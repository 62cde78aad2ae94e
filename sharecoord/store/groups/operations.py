"""Operators change share-partitions under traffic: reset, change, delete.

Dead letters were promised to their topic, so an outbox outlives all of that (design 5.11).
"""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, delete, func, or_, select, update

from sharecoord.core.changes import (
    LANE_MARK,
    PartitionChange,
    PartitionClaim,
    PartitionHead,
    PartitionKey,
    PartitionRow,
)
from sharecoord.store.book_entries import DEAD_LETTER, WINDOW_KINDS
from sharecoord.store.dialects import Dialect
from sharecoord.store.dialects.errors import StoreConflictError
from sharecoord.store.groups.groups import change_group, ensure_group, raise_group_epochs
from sharecoord.store.hot.calls import SqlCalls, writing
from sharecoord.store.hot.commit import write_partitions
from sharecoord.store.hot.load import find_ranges
from sharecoord.store.hot.partitions import (
    MEMBER_EPOCH_FLOOR,
    ROUNDS,
    delete_entries,
    find_partitions,
    load_partitions,
    open_partitions,
    raise_floor,
)
from sharecoord.store.row_codec import encode_passed_over, head_values, key_values
from sharecoord.store.tables import (
    BLOCKED_KEY,
    BOOK_ENTRY,
    IN_FLIGHT,
    LETTER_MARK,
    MEMBER,
    SHARE_GROUP,
    SHARE_PARTITION,
)

_E = BOOK_ENTRY.c
_G = SHARE_GROUP.c
_M = MEMBER.c
_P = SHARE_PARTITION.c


class OperatorCalls(SqlCalls):
    """Calls that change share-partitions whoever owns them; owners notice at their next commit."""

    @writing
    def reset_partitions(
        self, connection: Connection, heads: Mapping[PartitionKey, int]
    ) -> dict[PartitionKey, PartitionRow]:
        ids, locked = open_and_lock(connection, self._dialect, list(heads))
        rows: dict[PartitionKey, PartitionRow] = {}
        for old in locked:
            id_, key = old["id"], ids[old["id"]]
            _clear(
                connection,
                id_,
                PartitionHead(heads[key], heads[key], -1, 0, old["change_sequence"] + 1),
            )
            serves = {"closed": False, "stopped_reason": ""}
            connection.execute(update(SHARE_PARTITION).where(_P.id == id_).values(**serves))
            (rows[key],) = find_partitions(connection, _P.id == id_)
        raise_group_epochs(connection, self._dialect, heads)
        return rows

    @writing
    def change_partition(
        self, connection: Connection, key: PartitionKey, change: PartitionChange
    ) -> bool:
        named = [_P[name] == value for name, value in key_values(key).items()]
        locked = _lock_partitions(connection, and_(*named))
        if not locked:
            return False
        (id_,) = [row["id"] for row in locked]
        now_ms = self._dialect.now_ms(connection)
        claim = PartitionClaim(id_, 0, delayed_max=change.delayed_max)
        loaded = load_partitions(connection, claims=[claim], now_ms=now_ms)[id_]
        flight = IN_FLIGHT.c
        touched = flight.first_offset <= change.last, flight.last_offset >= change.first
        commit = change.decide(loaded, find_ranges(connection, id_, *touched))
        if commit is not None:
            write_partitions(connection, self._prepared(), [commit])
            raise_group_epochs(connection, self._dialect, [key])
        return True

    @writing
    def delete_topics(self, connection: Connection, group_id: str, topics: Sequence[str]) -> int:
        names = list(topics)
        # Lanes go with the topic whose records they deliver again.
        itself = (_P.lane == "") & _P.topic.in_(names)
        begins = [f"{name}{LANE_MARK}" for name in names]
        # Not LIKE: SQLite's does not tell upper from lower case.
        of_one = [func.substr(_P.lane, 1, len(begin)) == begin for begin in begins]
        of_topics = (_P.group_id == group_id) & or_(itself, _P.lane.in_(names), *of_one)
        locked = _lock_partitions(connection, of_topics)
        if not locked:
            return 0
        doomed = _delete_all_but_outboxes(connection, of_topics, locked)
        ensure_group(connection, self._dialect, group_id)
        change_group(connection, group_id, {})
        raise_floor(connection, self._dialect, _highest_epoch(doomed))
        return len(locked)

    @writing
    def delete_group(self, connection: Connection, group_id: str) -> bool:
        of_group = _P.group_id == group_id
        locked = _lock_partitions(connection, of_group)
        query = select(_G.group_epoch).where(_G.group_id == group_id).with_for_update()
        group_epoch = connection.execute(query).scalar_one_or_none()
        doomed = _delete_all_but_outboxes(connection, of_group, locked)
        if group_epoch is not None:
            # Else one that is made right now would go, and its epoch with it.
            for table in (SHARE_GROUP, BLOCKED_KEY):
                connection.execute(delete(table).where(table.c.group_id == group_id))
        of_members = _M.group_id == group_id
        query = select(_M.member_epoch).where(of_members).with_for_update()
        member_epochs = connection.execute(query).scalars().all()
        connection.execute(delete(MEMBER).where(of_members))
        highest = max(group_epoch or 0, _highest_epoch(doomed))
        raise_floor(connection, self._dialect, highest)
        highest = max(member_epochs, default=0)
        raise_floor(connection, self._dialect, highest, MEMBER_EPOCH_FLOOR)
        return bool(doomed) or group_epoch is not None or bool(member_epochs)


def open_and_lock(
    connection: Connection, dialect: Dialect, keys: Sequence[PartitionKey]
) -> tuple[dict[int, PartitionKey], list[Mapping[str, Any]]]:
    """Rows of share-partitions, made where they are missing, locked in order of id."""
    for _ in range(ROUNDS):
        ids = {row.partition_id: row.key for row in open_partitions(connection, dialect, keys)}
        locked = _lock_partitions(connection, _P.id.in_(list(ids)))
        if len(locked) == len(ids):
            return ids, locked
        # One was deleted before it was locked.
    raise StoreConflictError("share-partitions come and go")


def _clear(connection: Connection, partition_id: int, head: PartitionHead | None) -> None:
    """Deletes everything in flight and raises epochs; dead letters stay (design 5.11)."""
    _empty(connection, partition_id)
    epoch = _P.state_epoch + 1
    connection.execute(
        update(SHARE_PARTITION)
        .where(_P.id == partition_id)
        # In this order: MySQL computes the second from what the first has just become.
        .ordered_values(
            (_P.replay_epoch, epoch),
            (_P.state_epoch, epoch),
            (_P.passed_over, encode_passed_over(())),
            *head_values(head).items(),
        )
    )


def _empty(connection: Connection, partition_id: int) -> None:
    """Deletes ranges, checkpoints and kept payloads of a share-partition."""
    connection.execute(delete(IN_FLIGHT).where(IN_FLIGHT.c.partition_id == partition_id))
    delete_entries(connection, WINDOW_KINDS, partition_id)


def _lock_partitions(connection: Connection, which: ColumnElement[bool]) -> list[Mapping[str, Any]]:
    query = select(_P.id, _P.owner_epoch, _P.state_epoch, _P.change_sequence).where(which)
    rows = connection.execute(query.order_by(_P.id).with_for_update())
    return [dict(row) for row in rows.mappings()]


def _highest_epoch(rows: Iterable[Mapping[str, Any]]) -> int:
    return max((max(row["owner_epoch"], row["state_epoch"]) for row in rows), default=0)


def _delete_all_but_outboxes(
    connection: Connection, which: ColumnElement[bool], locked: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Deletes locked share-partitions, empties those with an outbox; returns which it deleted.

    Dead letters were promised to their topic (design 5.11): their share-partition stays,
    uninitialised, until they are sent.
    """
    if not locked:
        return []
    ids = [row["id"] for row in locked]
    connection.execute(delete(LETTER_MARK).where(LETTER_MARK.c.partition_id.in_(ids)))
    is_letter = _E.kind == DEAD_LETTER, _E.partition_id.in_(ids)
    query = select(_E.partition_id).where(*is_letter).distinct()
    with_outbox = set(connection.execute(query).scalars())
    for partition_id in sorted(with_outbox):
        _clear(connection, partition_id, None)
    doomed = [row for row in locked if row["id"] not in with_outbox]
    for row in doomed:
        _empty(connection, row["id"])
        connection.execute(delete(SHARE_PARTITION).where(_P.id == row["id"]))
    # Whatever is left begins as at a first use; also rows that were made while this one waited for
    # its locks, which it does not have among them.
    connection.execute(update(SHARE_PARTITION).where(which).values(starts_at_zero=False))
    return doomed
