"""Groups and members.

Rows are locked in one order everywhere: share-partitions by id, then group, member, store_meta.
"""

# ruff: noqa: D102 - `sharecoord.ports.Store` documents the methods

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from sharecoord.core.changes import (
    BlockedKey,
    FleetView,
    GroupRow,
    JoinRefusal,
    MemberRow,
    PartitionKey,
    PausesChanged,
)
from sharecoord.core.dispatch.pauses import Pause, PauseScope, changed
from sharecoord.core.order.blocked_keys import merged
from sharecoord.store.dialects import Dialect
from sharecoord.store.dialects.errors import StoreConflictError
from sharecoord.store.hot.calls import SqlCalls, reading, writing
from sharecoord.store.hot.partitions import MEMBER_EPOCH_FLOOR, ROUNDS, read_floor
from sharecoord.store.row_codec import (
    decode_blocked_key,
    decode_coordinator,
    decode_group,
    decode_member,
    encode_config,
    encode_pauses,
    key_digest,
    member_values,
)
from sharecoord.store.tables import BLOCKED_KEY, COORDINATOR, MEMBER, SHARE_GROUP

_B = BLOCKED_KEY.c
_K = COORDINATOR.c
_G = SHARE_GROUP.c
_M = MEMBER.c


def _lock_group(connection: Connection, group_id: str) -> GroupRow | None:
    query = select(SHARE_GROUP).where(_G.group_id == group_id).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else decode_group(row, _blocked_keys(connection, group_id))


def ensure_group(
    connection: Connection, dialect: Dialect, group_id: str, made_by: str = ""
) -> GroupRow:
    """The group's row, locked; made when it is missing.

    The principal named `made_by` has made it, unless that is known of another one.
    """
    if group := _lock_group(connection, group_id):
        return _with_maker(connection, group, made_by)
    for _ in range(ROUNDS):
        values = {
            "group_id": group_id,
            "config": encode_config({}),
            "group_epoch": read_floor(connection),
            "paused": encode_pauses(()),
            "made_by": made_by,
        }
        connection.execute(dialect.insert_or_ignore(SHARE_GROUP), values)
        if group := _lock_group(connection, group_id):
            return _with_maker(connection, _not_below_floor(connection, group), made_by)
        # Another transaction has deleted its row, which was there before ours.
    raise StoreConflictError(f"group {group_id!r} comes and goes")


def _with_maker(connection: Connection, group: GroupRow, made_by: str) -> GroupRow:
    """Notes who made a group of which that is not known; its epoch stays: nobody acts on it."""
    if not made_by or group.made_by:
        return group
    of_group = _G.group_id == group.group_id
    connection.execute(update(SHARE_GROUP).where(of_group).values(made_by=made_by))
    return replace(group, made_by=made_by)


def _not_below_floor(connection: Connection, group: GroupRow) -> GroupRow:
    """Raises the epoch to the floor: a group of this name may have been made and deleted before."""
    floor = read_floor(connection)
    if group.group_epoch >= floor:
        return group
    of_group = _G.group_id == group.group_id
    connection.execute(update(SHARE_GROUP).where(of_group).values(group_epoch=floor))
    return replace(group, group_epoch=floor)


def change_group(connection: Connection, group_id: str, values: dict[str, Any]) -> GroupRow:
    """Changes columns of a group that is there; raises its epoch."""
    connection.execute(
        update(SHARE_GROUP)
        .where(_G.group_id == group_id)
        .values(group_epoch=_G.group_epoch + 1, **values)
    )
    row = connection.execute(select(SHARE_GROUP).where(_G.group_id == group_id)).one()
    return decode_group(row, _blocked_keys(connection, group_id))


def raise_group_epochs(
    connection: Connection, dialect: Dialect, keys: Iterable[PartitionKey]
) -> None:
    """Tells coordinators of a change of share-partitions; makes groups that are missing."""
    for group_id in sorted({key.group_id for key in keys}):
        ensure_group(connection, dialect, group_id)
        change_group(connection, group_id, {})


def _blocked_keys(connection: Connection, group_id: str) -> list[BlockedKey]:
    query = select(_B.record_key, _B.since_ms, _B.reason).where(_B.group_id == group_id)
    return [decode_blocked_key(row) for row in connection.execute(query)]


class GroupCalls(SqlCalls):
    """Calls about groups, their members, and the coordinators that serve them."""

    @reading
    def read_fleet(self, connection: Connection) -> FleetView:
        living = _K.lease_until_ms >= self._dialect.now_ms(connection)
        found = connection.execute(
            select(_K.id, _K.address, _K.peer_address, _K.draining, _K.secret).where(living)
        )
        epochs = connection.execute(select(_G.group_id, _G.group_epoch))
        return FleetView(
            # Sorted here, because collations of databases differ.
            coordinators=tuple(
                sorted(map(decode_coordinator, found), key=lambda row: row.coordinator_id)
            ),
            group_epochs={str(group_id): int(epoch) for group_id, epoch in epochs},
        )

    @reading
    def load_groups(self, connection: Connection) -> list[GroupRow]:
        blocked: dict[str, list[BlockedKey]] = {}
        for group_id, *row in connection.execute(
            select(_B.group_id, _B.record_key, _B.since_ms, _B.reason)
        ):
            blocked.setdefault(group_id, []).append(decode_blocked_key(row))
        rows = connection.execute(select(SHARE_GROUP))
        groups = [decode_group(row, blocked.get(row[0], ())) for row in rows]
        return sorted(groups, key=lambda group: group.group_id)

    @writing
    def ensure_group(self, connection: Connection, group_id: str, *, made_by: str = "") -> GroupRow:
        return ensure_group(connection, self._dialect, group_id, made_by)

    @writing
    def save_group_config(
        self,
        connection: Connection,
        group_id: str,
        *,
        set_values: Mapping[str, str],
        deleted: Sequence[str],
    ) -> GroupRow:
        group = ensure_group(connection, self._dialect, group_id)
        config = {name: value for name, value in group.config.items() if name not in deleted}
        config.update(set_values)
        return change_group(connection, group_id, {"config": encode_config(config)})

    @writing
    def save_blocked_keys(
        self,
        connection: Connection,
        group_id: str,
        *,
        blocked: Mapping[bytes, str],
        unblocked: Sequence[bytes],
    ) -> GroupRow:
        group = ensure_group(connection, self._dialect, group_id)
        kept = merged(group, blocked, unblocked, self._dialect.now_ms(connection))
        digests = [key_digest(key) for key in {*blocked, *unblocked}]
        of_group = _B.group_id == group_id
        if digests:
            connection.execute(delete(BLOCKED_KEY).where(of_group, _B.key_digest.in_(digests)))
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

    @writing
    def change_pauses(
        self,
        connection: Connection,
        group_id: str,
        *,
        pause: Sequence[Pause] = (),
        resume: Sequence[PauseScope] = (),
    ) -> PausesChanged | None:
        row = _lock_group(connection, group_id)
        if row is None:
            return None
        before, after = row.pauses, changed(row.pauses, pause, resume)
        if after != before:
            row = change_group(connection, group_id, {"paused": encode_pauses(after)})
        return PausesChanged(before, row)

    @writing
    def join_members(
        self, connection: Connection, members: Sequence[MemberRow]
    ) -> list[int | JoinRefusal]:
        # In a fleet it must not repeat: see the port.
        first_epoch = 1
        if self._fleet:
            floor = read_floor(connection, MEMBER_EPOCH_FLOOR)
            first_epoch = max(self._dialect.now_ms(connection), floor + 1)
        return _join(connection, self._dialect, members, first_epoch=first_epoch)

    @reading
    def load_members(self, connection: Connection) -> list[MemberRow]:
        rows = [decode_member(row._mapping) for row in connection.execute(select(MEMBER))]
        return sorted(rows, key=lambda member: (member.group_id, member.member_id))


def _join(
    connection: Connection, dialect: Dialect, members: Sequence[MemberRow], *, first_epoch: int
) -> list[int | JoinRefusal]:
    """Saves members; those that are refused leave the stored rows as they are."""
    by_group: dict[str, dict[str, MemberRow]] = {}
    for member in members:
        of_group = by_group.setdefault(member.group_id, {})
        assert member.member_id not in of_group, "a member stands twice in one transaction"
        of_group[member.member_id] = member
    found: dict[tuple[str, str], int | JoinRefusal] = {}
    for group_id, joining in sorted(by_group.items()):
        # Of two principals that join at the same time as a new member the later one has it.
        anothers = [
            stored.member_id
            for stored in _members(connection, group_id, joining)
            if not joining[stored.member_id].may_join_as(stored)
        ]
        for member_id in anothers:
            del joining[member_id]
            found[group_id, member_id] = JoinRefusal.ANOTHERS
        if not joining:
            continue
        _replace_members(connection, dialect, joining, first_epoch=first_epoch)
        for stored in _members(connection, group_id, joining):
            is_newest = stored.join_number == joining[stored.member_id].join_number
            epoch = stored.member_epoch if is_newest else JoinRefusal.OVERTAKEN
            found[group_id, stored.member_id] = epoch
    return [found[member.group_id, member.member_id] for member in members]


def _replace_members(
    connection: Connection, dialect: Dialect, joining: Mapping[str, MemberRow], *, first_epoch: int
) -> None:
    """Writes members of one group, unless their stored rows have higher numbers."""
    upsert = dialect.upsert(
        MEMBER, keys=["group_id", "member_id"], counter="member_epoch", not_older_by="join_number"
    )
    rows = [
        member_values(joining[name]) | {"member_epoch": first_epoch} for name in sorted(joining)
    ]
    connection.execute(upsert, rows)


def _members(connection: Connection, group_id: str, member_ids: Iterable[str]) -> Iterator[Any]:
    """Members of a group as they are stored, those of them that are: the columns of a join."""
    columns = (_M.member_id, _M.member_epoch, _M.join_number, _M.principal)
    query = select(*columns).where(_M.group_id == group_id, _M.member_id.in_(list(member_ids)))
    yield from connection.execute(query)
