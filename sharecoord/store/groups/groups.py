"""Groups, members and what operators do under traffic. Each runs inside one transaction.

Rows are locked in one order everywhere: share-partitions by id, then group, member, store_meta.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, insert, or_, select, update

from sharecoord.core.changes import (
    LANE_MARK,
    BlockedKey,
    CoordinatorRow,
    FleetView,
    GroupRow,
    MemberRow,
    PartitionChange,
    PartitionClaim,
    PartitionHead,
    PartitionKey,
    PartitionRow,
    PausesChanged,
)
from sharecoord.core.dispatch.pauses import Pause, PauseScope, changed
from sharecoord.core.order.blocked_keys import merged
from sharecoord.store.book_entries import DEAD_LETTER, WINDOW_KINDS
from sharecoord.store.dialects import Dialect
from sharecoord.store.dialects.errors_servers import StoreConflictError
from sharecoord.store.hot.commit import write_partitions
from sharecoord.store.hot.load import find_ranges
from sharecoord.store.hot.partitions import (
    MEMBER_EPOCH_FLOOR,
    ROUNDS,
    delete_entries,
    find_partitions,
    head_values,
    load_partitions,
    open_partitions,
    raise_floor,
    read_floor,
)
from sharecoord.store.hot.statements import Statements
from sharecoord.store.row_codec import (
    decode_blocked_key,
    decode_group,
    decode_member,
    encode_config,
    encode_member,
    encode_passed_over,
    encode_pauses,
    key_digest,
)
from sharecoord.store.tables import (
    BLOCKED_KEY,
    BOOK_ENTRY,
    COORDINATOR,
    IN_FLIGHT,
    LETTER_MARK,
    MEMBER,
    SHARE_GROUP,
    SHARE_PARTITION,
)

_B = BLOCKED_KEY.c
_E = BOOK_ENTRY.c
_K = COORDINATOR.c
_G = SHARE_GROUP.c
_P = SHARE_PARTITION.c


def read_fleet(connection: Connection, dialect: Dialect) -> FleetView:
    """Coordinators with a live lease, by id; the epochs of all groups."""
    living = _K.lease_until_ms >= dialect.now_ms(connection)
    found = connection.execute(
        select(_K.id, _K.address, _K.peer_address, _K.draining).where(living)
    )
    epochs = connection.execute(select(_G.group_id, _G.group_epoch))
    return FleetView(
        # Sorted here, because collations of databases differ.
        coordinators=tuple(sorted(map(CoordinatorRow._make, found))),
        group_epochs={str(group_id): int(epoch) for group_id, epoch in epochs},
    )


def load_groups(connection: Connection) -> list[GroupRow]:
    """All groups by id."""
    blocked: dict[str, list[BlockedKey]] = {}
    for group_id, *row in connection.execute(
        select(_B.group_id, _B.record_key, _B.since_ms, _B.reason)
    ):
        blocked.setdefault(group_id, []).append(decode_blocked_key(row))
    rows = connection.execute(select(SHARE_GROUP))
    groups = [decode_group(row, blocked.get(row[0], ())) for row in rows]
    return sorted(groups, key=lambda group: group.group_id)


def ensure_group(connection: Connection, dialect: Dialect, group_id: str) -> GroupRow:
    """The group's row, locked; made when it is missing."""
    query = select(SHARE_GROUP).where(_G.group_id == group_id).with_for_update()
    row = connection.execute(query).one_or_none()
    if row is not None:
        return decode_group(row, _blocked_keys(connection, group_id))
    for _ in range(ROUNDS):
        values = {
            "group_id": group_id,
            "config": encode_config({}),
            "group_epoch": read_floor(connection),
            "paused": encode_pauses(()),
        }
        connection.execute(dialect.insert_or_ignore(SHARE_GROUP), values)
        row = connection.execute(query).one_or_none()
        if row is not None:
            return _not_below_floor(connection, decode_group(row))
        # Another transaction has deleted its row, which was there before ours.
    raise StoreConflictError(f"group {group_id!r} comes and goes")


def _not_below_floor(connection: Connection, group: GroupRow) -> GroupRow:
    """Raises the epoch to the floor: a group of this name may have been made and deleted before."""
    floor = read_floor(connection)
    if group.group_epoch >= floor:
        return group
    of_group = _G.group_id == group.group_id
    connection.execute(update(SHARE_GROUP).where(of_group).values(group_epoch=floor))
    return replace(group, group_epoch=floor)


def save_group_config(
    connection: Connection,
    dialect: Dialect,
    group_id: str,
    set_values: Mapping[str, str],
    deleted: Sequence[str],
) -> GroupRow:
    """Merges overrides, raises the group epoch."""
    group = ensure_group(connection, dialect, group_id)
    config = {name: value for name, value in group.config.items() if name not in deleted}
    config.update(set_values)
    return change_group(connection, group_id, {"config": encode_config(config)})


def save_blocked_keys(
    connection: Connection,
    dialect: Dialect,
    group_id: str,
    blocked: Mapping[bytes, str],
    unblocked: Sequence[bytes],
) -> GroupRow:
    """Writes and deletes blocked keys, raises the group epoch."""
    group = ensure_group(connection, dialect, group_id)
    kept = merged(group, blocked, unblocked, dialect.now_ms(connection))
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


def change_pauses(
    connection: Connection, group_id: str, pause: Sequence[Pause], resume: Sequence[PauseScope]
) -> PausesChanged | None:
    """Pauses and resumes; raises the group epoch if that changes anything."""
    query = select(SHARE_GROUP).where(_G.group_id == group_id).with_for_update()
    found = connection.execute(query).one_or_none()
    if found is None:
        return None
    row = decode_group(found, _blocked_keys(connection, group_id))
    before, after = row.pauses, changed(row.pauses, pause, resume)
    if after != before:
        row = change_group(connection, group_id, {"paused": encode_pauses(after)})
    return PausesChanged(before, row)


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


def join_members(
    connection: Connection,
    dialect: Dialect,
    members: Sequence[MemberRow],
    *,
    first_epoch: int,
) -> list[int | None]:
    """Saves the members with their next epochs, new ones with the first; returns these.

    None for a join that a later join of the same member has overtaken: the stored row stays.
    """
    names = MEMBER.columns.keys()
    by_group: dict[str, dict[str, dict[str, Any]]] = {}
    for member in members:
        values: dict[str, Any] = dict(zip(names, encode_member(member), strict=True))
        values["member_epoch"] = first_epoch
        of_group = by_group.setdefault(member.group_id, {})
        assert member.member_id not in of_group, "a member stands twice in one transaction"
        of_group[member.member_id] = values
    upsert = dialect.upsert(
        MEMBER,
        keys=["group_id", "member_id"],
        counter="member_epoch",
        not_older_by="join_number",
    )
    epochs: dict[tuple[str, str], int] = {}
    for group_id, rows in sorted(by_group.items()):
        connection.execute(upsert, [rows[member_id] for member_id in sorted(rows)])
        columns = MEMBER.c.member_id, MEMBER.c.member_epoch, MEMBER.c.join_number
        query = select(*columns).where(
            MEMBER.c.group_id == group_id, MEMBER.c.member_id.in_(list(rows))
        )
        for member_id, epoch, number in connection.execute(query):
            if number == rows[member_id]["join_number"]:
                epochs[group_id, member_id] = epoch
    return [epochs.get((member.group_id, member.member_id)) for member in members]


def load_members(connection: Connection) -> list[MemberRow]:
    """All members by group and id."""
    rows = map(decode_member, connection.execute(select(MEMBER)))
    return sorted(rows, key=lambda member: (member.group_id, member.member_id))


# -- operations under traffic ---------------------------------------------------------------------


def reset_partitions(
    connection: Connection, dialect: Dialect, heads: Mapping[PartitionKey, int]
) -> dict[PartitionKey, PartitionRow]:
    """New start offsets; the partitions serve again, also those that were closed or stopped."""
    ids, locked = open_and_lock(connection, dialect, list(heads))
    rows: dict[PartitionKey, PartitionRow] = {}
    for old in locked:
        key = ids[old["id"]]
        start = heads[key]
        head = PartitionHead(
            start_offset=start,
            end_offset=start,
            end_leader_epoch=-1,
            finished_count=0,
            change_sequence=old["change_sequence"] + 1,
        )
        _clear(connection, old["id"], head)
        connection.execute(
            update(SHARE_PARTITION)
            .where(_P.id == old["id"])
            .values(closed=False, stopped_reason="")
        )
        (rows[key],) = find_partitions(connection, _P.id == old["id"])
    raise_group_epochs(connection, dialect, heads)
    return rows


def change_partition(
    connection: Connection,
    dialect: Dialect,
    statements: Statements,
    key: PartitionKey,
    change: PartitionChange,
) -> bool:
    """Locks and reads a share-partition, writes what is decided; raises the group epoch."""
    place = (_P.group_id == key.group_id) & (_P.topic == key.topic)
    place &= (_P.topic_id == key.topic_id) & (_P.partition_index == key.partition)
    place &= _P.lane == key.lane
    locked = _lock_partitions(connection, place)
    if not locked:
        return False
    (id_,) = [row["id"] for row in locked]
    claim = PartitionClaim(id_, 0, delayed_max=change.delayed_max)
    loaded = load_partitions(connection, claims=[claim], now_ms=dialect.now_ms(connection))[id_]
    flight = IN_FLIGHT.c
    touched = flight.first_offset <= change.last, flight.last_offset >= change.first
    commit = change.decide(loaded, find_ranges(connection, id_, *touched))
    if commit is not None:
        write_partitions(connection, statements, [commit])
        raise_group_epochs(connection, dialect, [key])
    return True


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


def delete_topics(
    connection: Connection, dialect: Dialect, group_id: str, topics: Sequence[str]
) -> int:
    """Deletes share-partitions; those with an outbox are emptied and stay until it is done."""
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
    ensure_group(connection, dialect, group_id)
    change_group(connection, group_id, {})
    raise_floor(connection, dialect, _highest_epoch(doomed))
    return len(locked)


def delete_group(connection: Connection, dialect: Dialect, group_id: str) -> bool:
    """Deletes the group, its share-partitions and members; an outbox stays until it is done."""
    of_group = _P.group_id == group_id
    locked = _lock_partitions(connection, of_group)
    query = select(_G.group_epoch).where(_G.group_id == group_id).with_for_update()
    group_epoch = connection.execute(query).scalar_one_or_none()
    doomed = _delete_all_but_outboxes(connection, of_group, locked)
    if group_epoch is not None:  # else one that is made right now would go, and its epoch with it
        connection.execute(delete(SHARE_GROUP).where(_G.group_id == group_id))
        connection.execute(delete(BLOCKED_KEY).where(_B.group_id == group_id))
    of_members = MEMBER.c.group_id == group_id
    query = select(MEMBER.c.member_epoch).where(of_members).with_for_update()
    member_epochs = connection.execute(query).scalars().all()
    connection.execute(delete(MEMBER).where(of_members))
    raise_floor(connection, dialect, max(group_epoch or 0, _highest_epoch(doomed)))
    raise_floor(connection, dialect, max(member_epochs, default=0), MEMBER_EPOCH_FLOOR)
    return bool(doomed) or group_epoch is not None or bool(member_epochs)


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
