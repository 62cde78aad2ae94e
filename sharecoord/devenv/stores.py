"""Fresh stores for coordinators under test or measurement, and what may be put into them before."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path

from sharecoord.core.changes import (
    CommitBatch,
    InFlightRow,
    MemberRow,
    PartitionClaim,
    PartitionCommit,
    PartitionHead,
    PartitionKey,
    PartitionRow,
    PartitionStart,
)
from sharecoord.core.states import RecordState
from sharecoord.devenv.databases import (
    DatabaseServer,
    MariaDbServer,
    PostgresServer,
    drop_space,
    make_space,
    mariadb_program,
)
from sharecoord.devenv.errors import DevenvError
from sharecoord.ports import Store
from sharecoord.store.factory import make_store

LOCK_MS = 3_600_000
"""Locks that are put into a store outlast every measurement."""
BATCH_RECORDS = 500
"""A poll takes so many records by default."""

ROWS_PER_COMMIT = 100_000
GONE_MEMBER = "gone-member"


class StoreKind(StrEnum):
    """A database that a coordinator can keep its state in, as people call it."""

    SQLITE = "SQLite"
    POSTGRESQL = "PostgreSQL"
    MARIADB = "MariaDB"


_SERVERS: dict[StoreKind, type[DatabaseServer]] = {
    StoreKind.POSTGRESQL: PostgresServer,
    StoreKind.MARIADB: MariaDbServer,
}


class Stores:
    """Makes empty stores; a server is started at its first use and ends with the stack."""

    def __init__(self, stack: ExitStack, directory: Path) -> None:
        """Nothing is started yet; `directory` exists, on a disk, and takes files of SQLite."""
        self._stack = stack
        self._directory = directory
        self._servers: dict[StoreKind, DatabaseServer] = {}

    def server(self, kind: StoreKind) -> DatabaseServer | None:
        """The running server of a kind, None for SQLite; DevenvError when it can not be started."""
        if kind is StoreKind.SQLITE:
            return None
        if kind not in self._servers:
            self._servers[kind] = self._stack.enter_context(_SERVERS[kind]())
        return self._servers[kind]

    @contextmanager
    def fresh(self, kind: StoreKind) -> Iterator[str]:
        """The URL of an empty store, which is deleted when the block ends."""
        name = f"store_{uuid.uuid4().hex[:8]}"
        server = self.server(kind)
        if server is None:
            path = self._directory / f"{name}.db"
            try:
                yield f"sqlite:///{path.resolve()}"
            finally:
                for left in self._directory.glob(f"{name}.db*"):
                    left.unlink()
            return
        try:
            yield make_space(server.url, name)
        finally:
            drop_space(server.url, name)


def has_programs(kind: StoreKind) -> bool:
    """Whether the programs of a kind are on this machine."""
    if kind is not StoreKind.MARIADB:
        return True
    try:
        mariadb_program("mariadbd")
    except DevenvError:
        return False
    return True


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """A store that nobody else uses, open until the block ends."""
    store = make_store(url)
    store.open(coordinator_id="devenv", cluster_id="", address="", version="")
    try:
        yield store
    finally:
        store.close()


def owned_partitions(
    store: Store, group: str, topic: str, topic_id: str, partitions: int
) -> list[PartitionRow]:
    """Makes a group and share-partitions that start at offset 0 and that the store's opener owns.

    There is one for each partition from 0 on; `topic_id` has 32 hex digits.
    """
    store.ensure_group(group)
    keys = [PartitionKey(group, topic, topic_id, number) for number in range(partitions)]
    made = store.open_partitions(keys)
    loaded = store.claim_partitions([PartitionClaim(row.partition_id, 1) for row in made])
    rows = [each.row for each in loaded if each is not None]
    head = PartitionHead(0, 0, -1, 0, 0)
    store.initialize_partitions(
        [PartitionStart(row.partition_id, row.owner_epoch, head) for row in rows]
    )
    return rows


def alternating_ranges(row: PartitionRow, ranges: int, now_ms: int) -> PartitionCommit:
    """A commit of ranges of one record each, from offset 0 on, all under locks.

    No two neighbours are alike: the records were taken in batches, then every second one was
    released and taken again.
    """
    until_ms = now_ms + LOCK_MS
    upserted = []
    for offset in range(ranges):
        batch, again = offset // BATCH_RECORDS, offset % 2
        token = (row.owner_epoch << 32) + 1 + 2 * batch + again
        counts = (1 + again, 1 + again)
        place = (batch * BATCH_RECORDS, BATCH_RECORDS)
        upserted.append(
            InFlightRow(
                *(offset, offset, int(RecordState.ACQUIRED), *counts, GONE_MEMBER, token),
                *(until_ms, LOCK_MS, 0, *place, None, None),
            )
        )
    head = PartitionHead(0, ranges, -1, 0, 1)
    return PartitionCommit(row.partition_id, row.owner_epoch, row.state_epoch, head, [], upserted)


def fill_in_flight(
    url: str, *, group: str, topic: str, topic_id: str, partitions: int, ranges: int
) -> None:
    """Fills an empty store as a killed coordinator leaves it: `alternating_ranges` everywhere.

    `ranges` is the number for each share-partition; the others are as of `owned_partitions`.
    """
    with opened(url) as store:
        rows = owned_partitions(store, group, topic, topic_id, partitions)
        # What nobody is known to hold would be released at once.
        store.join_members([MemberRow(group, GONE_MEMBER, 0, "", "", "", (topic,))])
        now_ms = store.now_ms()
        step = max(1, ROWS_PER_COMMIT // ranges)
        for at in range(0, len(rows), step):
            some = [alternating_ranges(row, ranges, now_ms) for row in rows[at : at + step]]
            fenced = store.commit(CommitBatch(partitions=some)).fenced
            assert not fenced, "nobody else has the store"
