"""Backup and restore of a store (docs/operations.md), the same for every database.

A restored store is one whose coordinator was killed when the backup was taken and starts now, with
one difference: its epochs are higher than any that there can have been since. So nothing that a
coordinator of before still wants to commit is accepted, and no lock token is given out twice.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, delete, exists, false, func, literal, select, update
from sqlalchemy.exc import SQLAlchemyError

from sharecoord import __version__
from sharecoord.errors import (
    InternalError,
    InvalidRequestError,
    StoreClusterMismatchError,
    StoreVersionError,
)
from sharecoord.store.hot.partitions import raise_floor, read_floor
from sharecoord.store.schema import read_meta
from sharecoord.store.tables import (
    COORDINATOR,
    HEAD_REVISION,
    MEMBER,
    METADATA,
    SHARE_GROUP,
    SHARE_PARTITION,
)
from sharecoord.store.tools.access import StoreAccess
from sharecoord.store.tools.backup_file import BackupHeader, BackupReader, write_backup
from sharecoord.store.tools.raw_rows import Row, name_of, problems_of, rows_at_once, stored_rows

TABLES = [table for table in METADATA.tables.values() if table is not COORDINATOR]
"""The tables of a backup, parents before children. Leases of coordinators end too soon to keep."""

RESTORED = ("0003", "0004", HEAD_REVISION)
"""Schemas whose backups can be restored: their tables are the same but for columns with `since`."""

EPOCH_STEP = 1 << 20
"""Added to the highest known epoch: more claims or resets than a share-partition can have had
between a backup and its restore."""

EPOCH_MAX = (1 << 31) - 1
"""The owner epoch is the high half of a lock token of 64 bits with a sign."""


# -- backup ---------------------------------------------------------------------------------------


def backup_store(access: StoreAccess, path: Path, *, replace: bool) -> BackupHeader:
    """Writes one consistent state to a file while coordinators go on.

    Args:
        access: The store.
        path: The file to write; see `write_backup`.
        replace: Whether a file of this name may be replaced.

    Raises:
        InvalidConfigError: There is no store.
        InvalidRequestError: The path cannot be written, or a row is not what its table says.
        StoreVersionError: The schema is of another release.
    """
    _refuse_own_file(access, path)
    with access.snapshot() as (connection, facts):
        header = BackupHeader(
            schema_revision=facts.revision,
            release=__version__,
            cluster_id=facts.cluster_id,
            taken_at_ms=access.dialect.now_ms(connection),
            rows={table.name: _count(connection, table) for table in TABLES},
        )
        sections = ((table, _sound_rows(connection, table)) for table in TABLES)
        write_backup(path, header, sections, replace=replace)
    return header


def _refuse_own_file(access: StoreAccess, path: Path) -> None:
    if path.resolve() in access.files:
        raise InvalidRequestError(f"{path} is a file of the store itself. Give another FILE")


def _count(connection: Connection, table: Table) -> int:
    return int(connection.execute(select(func.count()).select_from(table)).scalar_one())


@contextlib.contextmanager
def _sound_rows(connection: Connection, table: Table) -> Iterator[Iterator[Row]]:
    with stored_rows(connection, table) as rows:
        yield (_sound(table, row) for row in rows)


def _sound(table: Table, row: Row) -> Row:
    problems = problems_of(table, row)
    if problems:
        raise InvalidRequestError(
            f"{table.name} {name_of(table, row)}: {', '.join(problems)}. A backup with this row "
            "could not be restored: `sharecoord store check` says how to mend it"
        )
    return row


# -- restore --------------------------------------------------------------------------------------


def restore_store(
    access: StoreAccess, path: Path, *, replace: bool, other_cluster: bool = False
) -> BackupHeader:
    """Puts the state of a backup into a store that no coordinator has; all or nothing.

    Args:
        access: The store; it is made where there is none.
        path: The backup.
        replace: Whether state that is there may be replaced.
        other_cluster: Whether a store of another Kafka cluster may be replaced.

    Raises:
        InvalidRequestError: No backup, a damaged one, or the store is not empty.
        StoreInUseError: A coordinator has the store.
        StoreClusterMismatchError: The store belongs to another Kafka cluster.
        StoreVersionError: The backup or the store is of another release.
    """
    reader = BackupReader(path, TABLES)
    header = reader.verify(_refuse_other_schema)
    with access.exclusive() as connection:
        access.prepare(connection)
        if not replace:
            _refuse_used(access, connection)
        if not other_cluster:
            _refuse_other_cluster(access, connection, header, path)
        epoch = _highest_epoch(connection)
        for table in (COORDINATOR, *reversed(TABLES)):
            connection.execute(delete(table))
        # Closed at once, also after an error, whose traceback holds what was being read.
        with contextlib.closing(reader.rows()) as rows:
            _insert(access, connection, rows, path)
        _raise_epochs(access, connection, max(epoch, _highest_epoch(connection)) + EPOCH_STEP)
        _continue_ids(connection)
    return header


def _refuse_other_schema(header: BackupHeader) -> None:
    if header.schema_revision not in RESTORED:
        raise StoreVersionError(
            f"the backup has schema {header.schema_revision}, written by sharecoord "
            f"{header.release}; this version restores {', '.join(RESTORED)}. Restore it with "
            "the version that wrote it, then open the store with this one"
        )


def _refuse_used(access: StoreAccess, connection: Connection) -> None:
    for table in (SHARE_GROUP, SHARE_PARTITION, MEMBER):
        if connection.execute(select(exists(select(literal(1)).select_from(table)))).scalar():
            raise InvalidRequestError(
                f"{access.name} is not empty: table {table.name} has rows. Give --store the URL "
                "of a new or empty database, or --force to replace what is there"
            )


def _refuse_other_cluster(
    access: StoreAccess, connection: Connection, header: BackupHeader, path: Path
) -> None:
    stored = read_meta(connection).get("cluster_id")
    if stored is not None and stored != header.cluster_id:
        raise StoreClusterMismatchError(
            f"{access.name} holds the share groups of Kafka cluster {stored}, but {path} is of "
            f"cluster {header.cluster_id or '(unknown)'}. Give another --store, or "
            "--force-cluster to replace them"
        )


def _insert(
    access: StoreAccess, connection: Connection, stored: Iterator[tuple[Table, Row]], path: Path
) -> None:
    for table, found in groupby(stored, key=itemgetter(0)):
        names, size, done = table.columns.keys(), rows_at_once(table), 0
        while rows := [dict(zip(names, row, strict=True)) for _, row in islice(found, size)]:
            try:
                connection.execute(table.insert(), rows)
            except SQLAlchemyError as error:
                told = access.dialect.translate(error, committing=False)
                if not isinstance(told, InternalError):
                    raise told from error
                raise InvalidRequestError(
                    f"{path}: rows {done + 1} to {done + len(rows)} of {table.name} do not go "
                    f"into this database, nothing was changed: {told.message}"
                ) from error
            done += len(rows)


def _highest_epoch(connection: Connection) -> int:
    """The highest epoch of share-partitions and groups, present or deleted."""
    part = SHARE_PARTITION.c
    epochs = (part.owner_epoch, part.state_epoch, SHARE_GROUP.c.group_epoch)
    found = [connection.execute(select(func.max(epoch))).scalar() or 0 for epoch in epochs]
    return max(read_floor(connection), *map(int, found))


def _raise_epochs(access: StoreAccess, connection: Connection, epoch: int) -> None:
    """Raises all epochs to `epoch`, so that coordinators from before the restore are fenced."""
    if epoch > EPOCH_MAX - EPOCH_STEP:
        raise InvalidRequestError(
            f"the highest epoch would become {epoch}: this state was restored too often. Reset the "
            "groups in a new store instead"
        )
    values: dict[str, Any] = {"owner_epoch": epoch, "state_epoch": epoch}
    # A coordinator that reloads shows its name and its last incarnation.
    values |= {"owner": None, "incarnation": 0}
    connection.execute(update(SHARE_PARTITION).values(**values))
    connection.execute(update(SHARE_GROUP).values(group_epoch=epoch))
    raised = MEMBER.c.member_epoch + EPOCH_STEP
    connection.execute(update(MEMBER).values(member_epoch=raised))
    raise_floor(connection, access.dialect, epoch)


def _continue_ids(connection: Connection) -> None:
    """Makes PostgreSQL give new share-partitions higher ids; other databases do so themselves."""
    if connection.dialect.name == "postgresql":
        sequence = func.pg_get_serial_sequence(SHARE_PARTITION.name, "id")
        highest = select(func.coalesce(func.max(SHARE_PARTITION.c.id), 0) + 1).scalar_subquery()
        after = func.greatest(highest, func.nextval(sequence))
        connection.execute(select(func.setval(sequence, after, false())))
