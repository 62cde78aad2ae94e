"""Migrations: a fresh store equals a migrated one, and older stores are brought up."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Connection, text

from sharecoord.core.changes import (
    Checkpoint,
    DeadLetter,
    GroupRow,
    KeptPayload,
    MemberRow,
    PartitionHead,
)
from sharecoord.devenv.databases import is_postgres
from sharecoord.errors import InternalError, InvalidConfigError, StoreVersionError
from sharecoord.security.principals import NAME_CHARS_MAX, USER
from sharecoord.store.dialects import SqliteDialect
from sharecoord.store.migrations.upgrade import upgrade_schema
from sharecoord.store.schema import Schema, prepare_schema
from sharecoord.store.sql_store import SqlStore
from sharecoord.store.tables import HEAD_REVISION, METADATA, PRINCIPAL_CHARS_MAX
from sharecoord.store.tools.access import StoreAccess
from tests.contract.store_worlds import (
    START_MS,
    AnyStore,
    ServerWorld,
    SqliteWorld,
    change_of,
    claimed,
    commit,
    member_of,
    row_of,
)

LATER = f"{int(HEAD_REVISION) + 1:04}"
"""The revision of a later release."""

SECOND = '''"""Adds a column, fails if asked to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "{later}"
down_revision = "{head}"
needs_downtime = {needs_downtime}


def upgrade() -> None:
    op.add_column("member", sa.Column("colour", sa.Text, nullable=False, server_default="red"))
    op.execute("{statement}")
'''


def run(path: Path, work: Callable[[Connection], None]) -> None:
    """One transaction on a file."""
    engine = SqliteDialect(path, clock_ms=lambda: START_MS).make_engine()
    with engine.begin() as connection:
        work(connection)


def migrate(connection: Connection, head: str = HEAD_REVISION) -> None:
    """From nothing, by the revisions alone."""
    upgrade_schema(
        connection,
        where="store",
        scripts=Schema().scripts,
        head=head,
        revision="base",
        release="",
        may_need_downtime=True,
    )


def schema_of(path: Path) -> list[tuple[str, ...]]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return sorted(
            (kind, name, table, " ".join((sql or "").split()))
            for kind, name, table, sql in connection.execute(
                "SELECT type, name, tbl_name, sql FROM sqlite_master"
            )
        )


def test_a_fresh_store_equals_a_migrated_one(tmp_path: Path) -> None:
    run(tmp_path / "fresh.db", lambda connection: prepare_schema(connection, where="store"))
    run(tmp_path / "migrated.db", migrate)
    assert schema_of(tmp_path / "fresh.db") == schema_of(tmp_path / "migrated.db")
    for name in ("fresh.db", "migrated.db"):
        with contextlib.closing(sqlite3.connect(tmp_path / name)) as connection:
            stamp = connection.execute("SELECT version_num FROM alembic_version").fetchall()
        assert stamp == [(HEAD_REVISION,)]


def test_the_tables_need_no_further_revision(tmp_path: Path) -> None:
    found: list[object] = []

    def compare(connection: Connection) -> None:
        migrate(connection)
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        found.extend(compare_metadata(context, METADATA))

    run(tmp_path / "s.db", compare)
    assert found == []


def scripts_with(tmp_path: Path, *, needs_downtime: bool = False, statement: str = "") -> Path:
    """The migrations of a later release."""
    scripts = tmp_path / "migrations"
    shutil.copytree(Schema().scripts, scripts, ignore=shutil.ignore_patterns("__pycache__"))
    second = SECOND.format(
        later=LATER,
        head=HEAD_REVISION,
        needs_downtime=needs_downtime,
        statement=statement or "SELECT 1",
    )
    (scripts / "versions" / f"r{LATER}_colour.py").write_text(second)
    return scripts


def later_release(path: Path, scripts: Path) -> SqlStore:
    dialect = SqliteDialect(path, clock_ms=lambda: START_MS)
    return SqlStore(dialect, name=f"store {path}", schema=Schema(scripts, LATER))


def migrated(store: SqlStore) -> SqlStore:
    """The store after `sharecoord store migrate`."""
    StoreAccess(store._dialect, name=store.name, schema=store._schema).migrate()
    return store


def open_it(store: SqlStore) -> None:
    store.open(coordinator_id="one", cluster_id="kafka-1", address="one:1", version="0.2.0")


def old_store(path: Path) -> int:
    """A store of this release with a range in it; returns the partition's id."""
    world = SqliteWorld(path)
    store = world.open(fleet=False)
    loaded = claimed(store)
    commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    world.close()
    return loaded.row.partition_id


def test_an_older_store_is_upgraded_at_open(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    partition_id = old_store(path)
    store = later_release(path, scripts_with(tmp_path))
    open_it(store)
    assert store.read_in_flight(partition_id, from_offset=0, max_rows=9) == [row_of(0, 4)]
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        columns = [row[1] for row in connection.execute("PRAGMA table_info(member)")]
        stamp = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    assert columns[-1] == "colour"
    assert stamp == [(LATER,)]
    # And the older release now refuses it.
    with pytest.raises(StoreVersionError, match=rf"schema {LATER}, written by sharecoord 0\.2\.0"):
        SqliteWorld(path).open(fleet=False)


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    old_store(path)
    before = schema_of(path)
    store = later_release(path, scripts_with(tmp_path, statement="SELECT * FROM no_such_table"))
    with pytest.raises(InternalError, match="no_such_table"):
        open_it(store)
    assert schema_of(path) == before
    SqliteWorld(path).open(fleet=False).close()


def test_a_migration_that_needs_downtime_waits_for_an_operator(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    old_store(path)
    scripts = scripts_with(tmp_path, needs_downtime=True)
    with pytest.raises(StoreVersionError, match=rf"migration {LATER}.*sharecoord store migrate"):
        open_it(later_release(path, scripts))
    store = migrated(later_release(path, scripts))
    open_it(store)
    store.close()


# -- the view for people --------------------------------------------------------------------------

READABLE = (
    "SELECT group_id, topic, partition_index, first_offset, last_offset, state, delivery_count, "
    "member_id, client_id, host, locked_until_utc, available_at_utc FROM records_in_flight "
    "ORDER BY first_offset"
)


def store_with_ranges(store: AnyStore) -> None:
    """Of a member, due, waiting, of a member that is gone; and one of a former life."""
    loaded = claimed(store)
    store.join_members([member_of("member-1")])
    rows = [
        row_of(0, 4),
        row_of(5, 5, state=0),
        row_of(6, 9, state=0, available_at_ms=START_MS + 60_000),
        row_of(10, 10)._replace(member_id="gone"),
        row_of(11, 11, state=3),
    ]
    commit(store, change_of(loaded, upserted=rows))
    former = claimed(store, replace(loaded.row.key, partition=1))
    commit(store, change_of(former, upserted=[row_of(0, 0)]))
    store.close_partition(former.row.partition_id, owner_epoch=former.row.owner_epoch)


def readable(rows: Iterable[tuple[object, ...]]) -> list[str]:
    """One line for each row."""
    return [" ".join("-" if cell is None else str(cell) for cell in row) for row in rows]


READ = [
    "group orders 0 0 4 acquired 1 member-1 client 10.0.0.1 2023-11-14 22:13:50 -",
    "group orders 0 5 5 available 1 - - - - -",
    "group orders 0 6 9 available 1 - - - - 2023-11-14 22:14:20",
    "group orders 0 10 10 acquired 1 gone - - 2023-11-14 22:13:50 -",
    "group orders 0 11 11 archiving 1 - - - - -",
]


def test_what_is_in_flight_can_be_read_by_a_person(tmp_path: Path) -> None:
    world = SqliteWorld(tmp_path / "s.db")
    store_with_ranges(world.open(fleet=False))
    world.close()
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        assert readable(connection.execute(READABLE)) == READ


def test_what_is_in_flight_on_a_server_can_be_read_by_a_person(server_world: ServerWorld) -> None:
    store_with_ranges(server_world.open(fleet=False))
    assert readable(server_world.sql(READABLE)) == READ


def test_alembic_and_sqlalchemy_are_loaded_only_when_needed(tmp_path: Path) -> None:
    program = """
import sys
from sharecoord.store.factory import make_store
make_store("memory:").open(coordinator_id="a", cluster_id="", address="a", version="1")
print("sqlalchemy" in sys.modules)
for _ in range(2):
    store = make_store("sqlite:///" + sys.argv[1])
    store.open(coordinator_id="a", cluster_id="", address="a", version="1")
    store.ensure_group("g")
    store.close()
print("sqlalchemy" in sys.modules, "alembic" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "s.db")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["False", "True False"]


# -- servers --------------------------------------------------------------------------------------


def on_server(world: ServerWorld, work: Callable[[Connection], None]) -> None:
    """One transaction in the space of a server."""
    store = world.make()
    engine = world.dialects[id(store)].make_engine()
    with engine.begin() as connection:
        work(connection)


def described(world: ServerWorld) -> list[tuple[object, ...]]:
    """Everything that the server knows of the space's tables, without the space's name."""
    here = "current_schema()" if is_postgres(world.url) else "DATABASE()"
    columns = (
        # PostgreSQL's own numbers have gaps where columns were dropped.
        "table_name, row_number() OVER (PARTITION BY table_name ORDER BY ordinal_position), "
        "column_name, column_default, is_nullable, data_type, character_maximum_length, "
        "collation_name"
    )
    own = "" if is_postgres(world.url) else ", column_type, extra"
    found: list[tuple[object, ...]] = world.sql(
        f"SELECT {columns}{own} FROM information_schema.columns WHERE table_schema = {here} "
        "ORDER BY 1, 2"
    )
    found += world.sql(
        "SELECT table_name, constraint_name, constraint_type FROM "
        f"information_schema.table_constraints WHERE table_schema = {here} "
        "AND constraint_name NOT LIKE '%_not_null' ORDER BY 1, 2"
    )
    if is_postgres(world.url):
        found += world.sql(f"SELECT indexdef FROM pg_indexes WHERE schemaname = {here} ORDER BY 1")
    else:
        found += world.sql(
            "SELECT table_name, index_name, seq_in_index, column_name, non_unique FROM "
            f"information_schema.statistics WHERE table_schema = {here} ORDER BY 1, 2, 3"
        )
    return [tuple(str(value).replace(world.space, "SPACE") for value in row) for row in found]


def test_a_fresh_server_equals_a_migrated_one(server_world: ServerWorld) -> None:
    on_server(server_world, lambda connection: prepare_schema(connection, where="store"))
    other = ServerWorld(server_world.server_url)
    try:
        on_server(other, migrate)
        assert described(server_world) == described(other)
        assert other.sql("SELECT version_num FROM alembic_version") == [(HEAD_REVISION,)]
    finally:
        other.close()


def test_the_tables_on_a_server_need_no_further_revision(server_world: ServerWorld) -> None:
    found: list[object] = []

    def compare(connection: Connection) -> None:
        migrate(connection)
        # Those are SQLite's alone.
        options = {
            "compare_type": True,
            "include_object": lambda _o, _n, kind, *_: "foreign" not in kind,
        }
        context = MigrationContext.configure(connection, opts=options)
        found.extend(compare_metadata(context, METADATA))

    on_server(server_world, compare)
    assert found == []


def test_an_older_server_is_upgraded_at_open(server_world: ServerWorld, tmp_path: Path) -> None:
    store = server_world.open(fleet=False)
    loaded = claimed(store)
    commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    store.close()
    later = server_world.make(fleet=False, schema=Schema(scripts_with(tmp_path), LATER))
    open_it(later)
    assert later.read_in_flight(loaded.row.partition_id, from_offset=0, max_rows=9) == [
        row_of(0, 4)
    ]
    later.close()
    assert server_world.sql("SELECT version_num FROM alembic_version") == [(LATER,)]
    with pytest.raises(StoreVersionError, match=f"schema {LATER}"):
        server_world.open(fleet=False)


# -- a store of schema 0002 -----------------------------------------------------------------------

LETTER = DeadLetter(
    5,
    "REJECTED",
    3,
    "cannot parse",
    b"k",
    None,
    (("trace", b"\xff"),),
    START_MS - 1,
    member_id="m1",
    members=("m1", "m2"),
    first_failed_at_ms=START_MS - 9,
    failed_at_ms=START_MS - 3,
    state_epoch=2,
    kept=True,
    checkpoint=b"half",
    sequence=7,
    topic="dead",
    exactly_once=True,
)


ROWS_0002: dict[str, dict[str, object]] = {
    "share_partition": {
        "group_id": "group",
        "topic": "orders",
        "topic_id": "ab" * 16,
        "partition_index": 0,
        "start_offset": 0,
        "end_offset": 10,
        "end_leader_epoch": -1,
        "finished_count": 10,
        "change_sequence": 1,
        "owner_epoch": 4,
        "incarnation": 0,
        "state_epoch": 2,
        "replay_epoch": 2,
        "closed": False,
        "stopped_reason": "",
        "starts_at_zero": False,
        "lane": "",
        "rate_limit": 0,
        "passed_over": "[]",
    },
    "member": {
        "group_id": "group",
        "member_id": "m1",
        "member_epoch": 3,
        "client_id": "client",
        "host": "10.0.0.1",
        "gateway": "one",
        "topics": '["orders","pay,ments"]',
        "last_fetch_id": 9,
        "join_number": 0,
    },
    "dead_letter": {
        "partition_id": 1,
        "record_offset": 5,
        "reason": "REJECTED",
        "delivery_count": 3,
        "message": "cannot parse",
        "record_key": b"k",
        "headers": '[["trace",{"base64":"/w=="}]]',
        "timestamp_ms": START_MS - 1,
        "payload_known": True,
        "member_id": "m1",
        "failed_at_ms": START_MS - 3,
        "state_epoch": 2,
        "kept": True,
        "checkpoint": b"half",
        "members": '["m1","m2"]',
        "first_failed_at_ms": START_MS - 9,
        "sequence": 7,
        "topic": "dead",
        "exactly_once": True,
    },
    "record_checkpoint": {"partition_id": 1, "record_offset": 3, "data": b"", "at_ms": 8},
    "kept_payload": {
        "partition_id": 1,
        "record_offset": 5,
        "size_bytes": 70,
        "record_value": b"whole",
        "headers": "[]",
        "timestamp_ms": START_MS,
        "timestamp_type": 1,
    },
}


def fill_0002(connection: Connection) -> None:
    """A store of schema 0002: a share-partition with an entry of each kind, and a member."""
    migrate(connection, "0002")
    for name, values in ROWS_0002.items():
        columns, places = ", ".join(values), ", ".join(f":{column}" for column in values)
        insert = text(f"INSERT INTO {name} ({columns}) VALUES ({places})")
        connection.execute(insert, values)


def check_migrated(store: AnyStore) -> None:
    """Whether an opened store has everything that `fill_0002` has written."""
    loaded = claimed(store)
    assert loaded.row.head == PartitionHead(0, 10, -1, 10, 1)
    assert loaded.dead_letters == (LETTER,)
    assert loaded.checkpoints == (Checkpoint(3, b"", 8),)
    assert loaded.kept == {5: 70}
    payload = KeptPayload(5, 70, None, b"whole", (), START_MS, 1)
    assert store.read_kept(loaded.row.partition_id, [5]) == [payload]
    assert store.load_members() == [member_of(epoch=3)]


def test_a_store_of_schema_0002_keeps_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(path, fill_0002)
    with pytest.raises(StoreVersionError, match=r"schema 0002; migration 0003 cannot run beside"):
        SqliteWorld(path).open(fleet=False)
    dialect = SqliteDialect(path, clock_ms=lambda: START_MS)
    store = migrated(SqlStore(dialect, name=f"store {path}"))
    open_it(store)
    check_migrated(store)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT * FROM records_in_flight").fetchall() == []
    run(tmp_path / "fresh.db", lambda connection: prepare_schema(connection, where="store"))
    assert schema_of(path) == schema_of(tmp_path / "fresh.db")


def test_a_server_of_schema_0002_keeps_its_rows(server_world: ServerWorld) -> None:
    on_server(server_world, fill_0002)
    with pytest.raises(StoreVersionError, match=r"schema 0002; migration 0003 cannot run beside"):
        server_world.open(fleet=False)
    store = migrated(server_world.make(fleet=False))
    open_it(store)
    check_migrated(store)
    assert server_world.sql("SELECT * FROM records_in_flight") == []
    other = ServerWorld(server_world.server_url)
    try:
        on_server(other, lambda connection: prepare_schema(connection, where="store"))
        assert described(server_world) == described(other)
    finally:
        other.close()


LEASE = "'one', 'one:1', 'one:2', '0.1.0', 5, {draining}"


def older_coordinators(connection: Connection) -> list[tuple[object, ...]]:
    """Leases of coordinators of schema 0003, before the migration beside them and after it."""
    row = LEASE.format(draining="true" if connection.dialect.name == "postgresql" else "1")
    names = "id, address, peer_address, version, lease_until_ms, draining"
    migrate(connection, "0003")
    connection.execute(text(f"INSERT INTO coordinator ({names}) VALUES ({row})"))
    upgrade_schema(
        connection,
        where="store",
        scripts=Schema().scripts,
        head=HEAD_REVISION,
        revision="0003",
        release="",
        # It must not need any.
        may_need_downtime=False,
    )
    row = row.replace("'one'", "'two'")
    connection.execute(text(f"INSERT INTO coordinator ({names}) VALUES ({row})"))
    found = connection.execute(text("SELECT id, address, secret FROM coordinator ORDER BY id"))
    return [tuple(each) for each in found]


OLDER = [("one", "one:1", None), ("two", "one:1", None)]


def test_coordinators_of_schema_0003_keep_their_leases(tmp_path: Path) -> None:
    found: list[tuple[object, ...]] = []
    run(tmp_path / "s.db", lambda connection: found.extend(older_coordinators(connection)))
    assert found == OLDER


def test_coordinators_of_schema_0003_on_a_server_keep_their_leases(
    server_world: ServerWorld,
) -> None:
    found: list[tuple[object, ...]] = []
    on_server(server_world, lambda connection: found.extend(older_coordinators(connection)))
    assert found == OLDER


GROUP_0004 = (
    "INSERT INTO share_group (group_id, config, group_epoch, paused) "
    "VALUES ('{0}', '{{}}', 7, '[]')"
)
MEMBER_0004 = (
    "INSERT INTO member (group_id, member_id, member_epoch, client_id, host, gateway, topics, "
    "join_number) VALUES ('{0}', 'm1', 3, 'client', '10.0.0.1', 'one', '[\"orders\"]', 2)"
)
AGAIN_0004 = (
    " ON CONFLICT (group_id, member_id) DO UPDATE SET member_epoch = member.member_epoch + 1, "
    "join_number = excluded.join_number"
)
"""A coordinator of schema 0004 writes so: a group, a member, and a member that joins again."""


def migrate_from_0004(connection: Connection) -> None:
    """Rows of an older coordinator, before the migration beside it and after it."""
    migrate(connection, "0004")
    for statement in (GROUP_0004, MEMBER_0004):
        connection.execute(text(statement.format("before")))
    upgrade_schema(
        connection,
        where="store",
        scripts=Schema().scripts,
        head=HEAD_REVISION,
        revision="0004",
        release="",
        # It must not need any.
        may_need_downtime=False,
    )
    for statement in (GROUP_0004, MEMBER_0004):
        connection.execute(text(statement.format("after")))


def check_from_0004(store: AnyStore) -> None:
    """Whether a store has the rows of `migrate_from_0004`, and gets principals."""
    assert store.load_groups() == [GroupRow("after", {}, 7), GroupRow("before", {}, 7)]
    after, before = (
        MemberRow(group, "m1", 3, "client", "10.0.0.1", "one", ("orders",), 2)
        for group in ("after", "before")
    )
    assert store.load_members() == [after, before]
    assert store.ensure_group("before", made_by="User:alice").made_by == "User:alice"
    assert store.join_members([replace(after, principal="User:alice")]) == [4]
    assert [member.principal for member in store.load_members()] == ["User:alice", ""]


def test_a_store_of_schema_0004_is_upgraded_beside_its_coordinator(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(path, migrate_from_0004)
    world = SqliteWorld(path)
    check_from_0004(world.open(fleet=False))
    world.close()
    run(tmp_path / "fresh.db", lambda connection: prepare_schema(connection, where="store"))
    assert schema_of(path) == schema_of(tmp_path / "fresh.db")


def test_a_join_through_a_coordinator_of_schema_0004_keeps_the_principal(tmp_path: Path) -> None:
    path = tmp_path / "s.db"
    run(path, migrate_from_0004)
    world = SqliteWorld(path)
    check_from_0004(world.open(fleet=False))
    world.close()
    again = text(MEMBER_0004.format("after") + AGAIN_0004)
    run(path, lambda connection: connection.execute(again).close())
    store = world.open(fleet=False)
    assert [(each.member_epoch, each.principal) for each in store.load_members()] == [
        (5, "User:alice"),
        (3, ""),
    ]
    world.close()


def test_a_server_of_schema_0004_is_upgraded_beside_its_coordinator(
    server_world: ServerWorld,
) -> None:
    on_server(server_world, migrate_from_0004)
    store = server_world.open(fleet=False)
    check_from_0004(store)
    store.close()
    # MariaDB commits each change of the schema by itself: a crash comes before the stamp.
    server_world.sql("UPDATE alembic_version SET version_num = '0004'")
    assert server_world.open(fleet=False).load_members()[0].principal == "User:alice"
    other = ServerWorld(server_world.server_url)
    try:
        on_server(other, lambda connection: prepare_schema(connection, where="store"))
        assert described(server_world) == described(other)
    finally:
        other.close()


def test_principals_have_room_for_the_longest_name() -> None:
    assert len(USER) + NAME_CHARS_MAX == PRINCIPAL_CHARS_MAX


def test_a_migration_that_stopped_half_way_is_finished(mariadb_world: ServerWorld) -> None:
    """Each change of the schema commits by itself there, before the stamp is written."""
    on_server(mariadb_world, fill_0002)
    mariadb_world.sql(
        "CREATE TABLE kept AS SELECT * FROM kept_payload",
        "CREATE TABLE stamp AS SELECT * FROM alembic_version",
    )
    store = migrated(mariadb_world.make(fleet=False))
    open_it(store)
    store.close()
    # As it is when the last of the former tables is copied and not dropped yet.
    mariadb_world.sql(
        "RENAME TABLE kept TO kept_payload",
        "UPDATE alembic_version SET version_num = (SELECT version_num FROM stamp)",
        "DROP TABLE stamp",
    )
    again = migrated(mariadb_world.make(fleet=False))
    open_it(again)
    check_migrated(again)


def test_a_migration_that_fails_on_a_server_can_be_made_again(
    server_world: ServerWorld, tmp_path: Path
) -> None:
    server_world.open(fleet=False).close()
    scripts = scripts_with(tmp_path, statement="SELECT * FROM no_such_table")
    later = server_world.make(fleet=False, schema=Schema(scripts, LATER))
    with pytest.raises(InternalError, match="no_such_table"):
        open_it(later)
    # The stamp stays; PostgreSQL rolls the rest back as well.
    assert server_world.sql("SELECT version_num FROM alembic_version") == [(HEAD_REVISION,)]
    columns = "SELECT count(*) FROM information_schema.columns WHERE column_name = 'colour' AND "
    if is_postgres(server_world.url):
        assert server_world.sql(columns + "table_schema = current_schema()") == [(0,)]
        server_world.open(fleet=False).close()


def test_a_schema_that_was_never_finished_is_made_anew(mariadb_world: ServerWorld) -> None:
    """Every CREATE commits by itself there: a crash leaves some of the tables."""
    mariadb_world.open(fleet=False).close()
    everything = described(mariadb_world)
    mariadb_world.sql("DELETE FROM alembic_version", "DELETE FROM store_meta", "DROP TABLE member")
    store = mariadb_world.open(fleet=False)
    store.ensure_group("group")
    store.close()
    assert described(mariadb_world) == everything
    # A store that was used is not taken for one.
    mariadb_world.sql("DELETE FROM alembic_version", "DROP TABLE alembic_version")
    with pytest.raises(StoreVersionError):
        mariadb_world.open(fleet=False)
    assert mariadb_world.sql("SELECT group_id FROM share_group") == [("group",)]


@pytest.mark.parametrize(
    ("statement", "fix"),
    [
        ("ALTER TABLE store_meta ENGINE=MyISAM", "ALTER TABLE store_meta ENGINE=InnoDB"),
        (
            "ALTER TABLE share_group CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
            "ALTER TABLE share_group CONVERT TO CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
        ),
    ],
)
def test_tables_that_can_not_hold_the_state_are_refused(
    mariadb_world: ServerWorld, statement: str, fix: str
) -> None:
    mariadb_world.open().close()
    mariadb_world.sql(statement)
    with pytest.raises(InvalidConfigError) as caught:
        mariadb_world.open()
    assert fix in caught.value.message
    mariadb_world.sql(fix)
    mariadb_world.open().close()
