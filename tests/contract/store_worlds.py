"""Databases for the store suite: one clock, any number of coordinators on one database."""

from __future__ import annotations

import abc
import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import make_url

from sharecoord.core.changes import (
    Checkpoint,
    CommitBatch,
    DeadLetter,
    InFlightRow,
    KeptPayload,
    LoadedPartition,
    MemberRow,
    PartitionClaim,
    PartitionCommit,
    PartitionHead,
    PartitionKey,
    PartitionRow,
    PartitionStart,
)
from sharecoord.devenv.databases import drop_space, execute, is_postgres, make_space
from sharecoord.errors import StoreOutcomeUnknownError
from sharecoord.store.dialects import SqliteDialect
from sharecoord.store.dialects.mysql import MySqlDialect
from sharecoord.store.dialects.postgres import PostgresDialect
from sharecoord.store.dialects.server import STANDSTILL_MS, ServerDialect
from sharecoord.store.hot import commit as commit_queries
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.store.memory.store import MemoryStore
from sharecoord.store.sql_store import SqlStore

START_MS = 1_700_000_000_000

AnyStore = MemoryStore | SqlStore


class World(abc.ABC):
    """One database, its clock, and the handles that were opened on it."""

    def __init__(self) -> None:
        self.time_ms = START_MS
        self.stores: list[AnyStore] = []

    @abc.abstractmethod
    def make(self, *, fleet: bool = True) -> AnyStore:
        """A handle that is not open yet."""

    @abc.abstractmethod
    def break_next_commit(self, store: AnyStore, *, after: bool) -> None:
        """The connection breaks in the store's next COMMIT, after or before it has happened."""

    def open(
        self,
        coordinator_id: str = "one",
        *,
        cluster_id: str = "kafka-1",
        fleet: bool = True,
        secret: bytes = b"",
    ) -> AnyStore:
        """An open handle."""
        store = self.make(fleet=fleet)
        store.open(
            coordinator_id=coordinator_id,
            cluster_id=cluster_id,
            address=f"{coordinator_id}:7070",
            version="0.1.0",
            secret=secret,
        )
        return store

    def crash(self, store: AnyStore) -> None:
        """Ends a handle as kill -9 of its process would: its lease stays."""
        if isinstance(store, MemoryStore):
            store.crash()
            return
        assert store._transactions is not None
        store._transactions.close()
        store._dialect.give_back()

    def close(self) -> None:
        """Closes every handle."""
        for store in self.stores:
            store.close()


class MemoryWorld(World):
    """Over the reference."""

    def __init__(self) -> None:
        super().__init__()
        self._database = MemoryDatabase(clock_ms=lambda: self.time_ms)

    def make(self, *, fleet: bool = True) -> AnyStore:
        store = MemoryStore(self._database, fleet=fleet, check_ranges=True)
        self.stores.append(store)
        return store

    def break_next_commit(self, store: AnyStore, *, after: bool) -> None:
        assert isinstance(store, MemoryStore)
        if after:
            store.fail_next(StoreOutcomeUnknownError("broken"), after_commit=True)
        else:
            store.fail_next(StoreOutcomeUnknownError("broken"))


class BreakableSqlite(SqliteDialect):
    """SQLite whose COMMIT can lose its answer."""

    fault: str = ""

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        event.listen(engine, "commit", self._on_commit)
        return engine

    def _on_commit(self, connection: Connection) -> None:
        fault, self.fault = self.fault, ""
        if fault == "after":
            driver: Any = connection.connection.driver_connection
            driver.commit()
        if fault:
            raise sqlite3.OperationalError("connection broken")


class SqliteWorld(World):
    """Over a SQLite file; FULL waits for the disk, which the suite does not need."""

    def __init__(self, path: Path, *, pragmas: Mapping[str, str | int] | None = None) -> None:
        super().__init__()
        self.path = path
        self._pragmas = {"synchronous": "OFF", **(pragmas or {})}
        self._dialects: dict[int, BreakableSqlite] = {}

    def make(self, *, fleet: bool = True) -> AnyStore:
        dialect = BreakableSqlite(
            self.path, clock_ms=lambda: self.time_ms, lock_timeout_ms=50, pragmas=self._pragmas
        )
        store = SqlStore(dialect, name=f"store {self.path}", fleet=fleet)
        self._dialects[id(store)] = dialect
        self.stores.append(store)
        return store

    def break_next_commit(self, store: AnyStore, *, after: bool) -> None:
        self._dialects[id(store)].fault = "after" if after else "before"


class _Breakable(ServerDialect):
    """A server with the test's clock, whose connection can break at COMMIT."""

    fault: str = ""
    world: World

    def make_engine(self) -> Engine:
        engine = super().make_engine()
        if not event.contains(engine, "commit", self._on_commit):
            event.listen(engine, "commit", self._on_commit)
        return engine

    def now_ms(self, connection: Connection) -> int:
        return self.world.time_ms

    def _on_commit(self, connection: Connection) -> None:
        fault, self.fault = self.fault, ""
        driver: Any = connection.connection.driver_connection
        if fault == "after":
            driver.commit()
        if fault:
            # The driver finds its connection gone, and says so in its own words.
            driver.close()


class BreakablePostgres(_Breakable, PostgresDialect):
    """PostgreSQL."""


class BreakableMySql(_Breakable, MySqlDialect):
    """MariaDB or MySQL."""


class ServerWorld(World):
    """A space of its own on a server."""

    def __init__(self, server_url: str) -> None:
        super().__init__()
        self.server_url = server_url
        # Not from the seeded generator: tests in parallel processes share the server.
        self.space = f"t{uuid.uuid4().hex[:12]}"
        self.url = make_space(server_url, self.space)
        self.dialects: dict[int, _Breakable] = {}

    def make(
        self,
        *,
        fleet: bool = True,
        url: str = "",
        lock_timeout_ms: int = 300,
        standstill_ms: int = STANDSTILL_MS,
        **options: Any,
    ) -> SqlStore:
        kind = BreakablePostgres if is_postgres(self.url) else BreakableMySql
        scheme = "postgresql+psycopg" if is_postgres(self.url) else "mysql+pymysql"
        address = make_url(scheme + ":" + (url or self.url).partition(":")[2])
        dialect = kind(
            address,
            lock_timeout_ms=lock_timeout_ms,
            take_wait_ms=200,
            answer_timeout_ms=4000,
            standstill_ms=standstill_ms,
        )
        dialect.world = self
        store = SqlStore(dialect, name=dialect.where, fleet=fleet, **options)
        self.dialects[id(store)] = dialect
        self.stores.append(store)
        return store

    def break_next_commit(self, store: AnyStore, *, after: bool) -> None:
        self.dialects[id(store)].fault = "after" if after else "before"

    def sql(self, *statements: str) -> list[tuple[Any, ...]]:
        """Another program's statements; the rows of the last one."""
        return execute(self.url, *statements)

    def close(self) -> None:
        super().close()
        drop_space(self.server_url, self.space)


# -- values ---------------------------------------------------------------------------------------


def key_of(
    partition: int = 0, *, group: str = "group", topic: str = "orders", topic_id: str = "ab" * 16
) -> PartitionKey:
    """A share-partition's name."""
    return PartitionKey(group_id=group, topic=topic, topic_id=topic_id, partition=partition)


def head_of(start: int = 0, end: int = 0, *, finished: int = 0, sequence: int = 0) -> PartitionHead:
    """A head."""
    return PartitionHead(
        start_offset=start,
        end_offset=end,
        end_leader_epoch=3,
        finished_count=finished,
        change_sequence=sequence,
    )


def row_of(first: int, last: int, *, state: int = 1, available_at_ms: int = 0) -> InFlightRow:
    """A range; ACQUIRED by default."""
    return InFlightRow(
        first_offset=first,
        last_offset=last,
        state=state,
        delivery_count=1,
        hand_outs=2,
        member_id="member-1" if state == 1 else None,
        lock_token=(7 << 32) + first,
        deadline_ms=START_MS + 30_000 if state == 1 else 0,
        granted_ms=30_000 if state == 1 else 0,
        available_at_ms=available_at_ms,
        batch_base=first,
        batch_size=last - first + 1,
        reason=None,
        key_hashes=None,
    )


def letter_of(offset: int, *, reason: str = "REJECTED", value: bytes | None = b"v") -> DeadLetter:
    """An outbox row."""
    return DeadLetter(
        offset=offset,
        reason=reason,
        delivery_count=5,
        message="cannot parse",
        key=b"k",
        value=value,
        headers=(("trace", b"1"),),
        timestamp_ms=START_MS - 1,
    )


def member_of(member_id: str = "m1", *, group: str = "group", epoch: int = 0) -> MemberRow:
    """A member."""
    return MemberRow(
        group_id=group,
        member_id=member_id,
        member_epoch=epoch,
        client_id="client",
        host="10.0.0.1",
        gateway="one",
        topics=("orders", "pay,ments"),
    )


def open_partition(store: AnyStore, key: PartitionKey) -> PartitionRow:
    """One share-partition's row, made on first use."""
    (row,) = store.open_partitions([key])
    return row


def claim_partition(
    store: AnyStore,
    partition_id: int,
    *,
    incarnation: int,
    previous_incarnation: int | None,
    delayed_max: int | None = None,
) -> LoadedPartition | None:
    """One claim."""
    claim = PartitionClaim(partition_id, incarnation, previous_incarnation, delayed_max)
    (loaded,) = store.claim_partitions([claim])
    return loaded


def initialize_partition(
    store: AnyStore, partition_id: int, *, owner_epoch: int, head: PartitionHead
) -> bool:
    """One share-partition's beginning."""
    (done,) = store.initialize_partitions([PartitionStart(partition_id, owner_epoch, head)])
    return done


def claimed(
    store: AnyStore, key: PartitionKey | None = None, *, incarnation: int = 1, start: int = 0
) -> LoadedPartition:
    """A share-partition that the store's coordinator owns, initialised at `start`."""
    row = open_partition(store, key or key_of())
    loaded = claim_partition(
        store, row.partition_id, incarnation=incarnation, previous_incarnation=None
    )
    assert loaded is not None
    assert initialize_partition(
        store, row.partition_id, owner_epoch=loaded.row.owner_epoch, head=head_of(start, start)
    )
    return loaded


def kept_of(offset: int, **changed: Any) -> KeptPayload:
    """A kept payload with awkward bytes in every field."""
    headers = (("a", b"1"), ("a", None), ("", b"\xff\x00"), ("größe", b""))
    sample = KeptPayload(offset, 300, b"\x00k", b"\xff" * 9, headers, START_MS, 1)
    return sample._replace(**changed)


def change_of(
    loaded: LoadedPartition,
    *,
    head: PartitionHead | None = None,
    deleted: list[int] | None = None,
    upserted: list[InFlightRow] | None = None,
    dead_letters: list[DeadLetter] | None = None,
    dead_letters_done: list[int] | None = None,
    checkpoints: list[Checkpoint] | None = None,
    checkpoints_done: list[int] | None = None,
    kept: list[KeptPayload] | None = None,
    kept_done: list[int] | None = None,
) -> PartitionCommit:
    """One partition's part of a commit, under the epochs of its claim."""
    return PartitionCommit(
        partition_id=loaded.row.partition_id,
        owner_epoch=loaded.row.owner_epoch,
        state_epoch=loaded.row.state_epoch,
        head=head or head_of(0, 100),
        deleted=deleted or [],
        upserted=upserted or [],
        dead_letters=dead_letters or [],
        dead_letters_done=dead_letters_done or [],
        checkpoints=checkpoints or [],
        checkpoints_done=checkpoints_done or [],
        kept=kept or [],
        kept_done=kept_done or [],
    )


def commit(store: AnyStore, *changes: PartitionCommit) -> frozenset[int]:
    """Commits partitions; returns the fenced ones."""
    return store.commit(CommitBatch(partitions=list(changes))).fenced


def ranges(store: AnyStore, partition_id: int) -> list[InFlightRow]:
    """All ranges of a partition as committed."""
    return store.read_in_flight(partition_id, from_offset=0, max_rows=1_000_000)


@contextlib.contextmanager
def long_commit(
    store: AnyStore, change: PartitionCommit, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """A commit in a thread that has written everything, and goes on after the block."""
    write, written, goes_on = commit_queries.write_batch, threading.Event(), threading.Event()

    def slow(*args: Any, **kwargs: Any) -> frozenset[int]:
        fenced = write(*args, **kwargs)
        written.set()
        assert goes_on.wait(60), "the block has ended"
        return fenced

    monkeypatch.setattr(commit_queries, "write_batch", slow)
    with ThreadPoolExecutor(1) as thread:
        committed = thread.submit(commit, store, change)
        assert written.wait(60), "the commit runs"
        try:
            yield
            assert not committed.done()
        finally:
            goes_on.set()
        assert committed.result(60) == frozenset()
    monkeypatch.undo()
