"""What SQLite adds to the store suite: the file, its errors, and SELECT by a person."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, event, text

from sharecoord.core.changes import DeadLetter
from sharecoord.errors import (
    InvalidConfigError,
    StoreFatalError,
    StoreInUseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
    StoreVersionError,
)
from sharecoord.store.dialects import SqliteDialect
from tests.contract.store_worlds import (
    START_MS,
    SqliteWorld,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    key_of,
    letter_of,
    long_commit,
    member_of,
    ranges,
    row_of,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "s.db"


@pytest.fixture
def world(path: Path) -> Iterator[SqliteWorld]:
    made = SqliteWorld(path)
    yield made
    made.close()


def by_hand(path: Path) -> contextlib.closing[sqlite3.Connection]:
    """Another program's connection, which commits each statement."""
    return contextlib.closing(sqlite3.connect(path, isolation_level=None, timeout=0))


# -- the file -------------------------------------------------------------------------------------


def test_file_and_directory_are_for_their_owner_alone(world: SqliteWorld, path: Path) -> None:
    claimed(world.open(fleet=False))
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    names = {".db", ".db-wal", ".db-shm", ".db.lock"}
    modes = {file.name.removeprefix("s"): file.stat().st_mode for file in path.parent.iterdir()}
    assert set(modes) == names
    assert {stat.S_IMODE(mode) for mode in modes.values()} == {0o600}


def test_what_a_commit_says_is_on_disk(path: Path) -> None:
    engine = SqliteDialect(path, clock_ms=lambda: START_MS).make_engine()
    with engine.connect() as connection:
        found = {
            name: connection.execute(text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "busy_timeout", "foreign_keys")
        }
    assert found == {
        "journal_mode": "wal",
        "synchronous": 2,
        "busy_timeout": 2000,
        "foreign_keys": 1,
    }


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="is not a file"):
        SqliteWorld(tmp_path).open()
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidConfigError, match=r"cannot make the directory .*file/below"):
        SqliteWorld(tmp_path / "file" / "below" / "s.db").open()


def test_it_can_be_read_with_select(world: SqliteWorld, path: Path) -> None:
    store = world.open()
    loaded = claimed(store)
    letter = DeadLetter(
        7, "REJECTED", 2, "bad", b"k", None, (("a", b"x"), ("b", b"\xff"), ("c", None)), START_MS
    )
    commit(store, change_of(loaded, upserted=[row_of(0, 4)], dead_letters=[letter]))
    store.save_group_config("group", set_values={"share.ordering": "key"}, deleted=[])
    store.join_members([member_of("m1")])
    with by_hand(path) as connection:
        connection.row_factory = sqlite3.Row
        row = connection.execute(
            "SELECT * FROM in_flight JOIN share_partition ON id = partition_id"
        ).fetchone()
        assert (row["topic"], row["first_offset"], row["member_id"]) == ("orders", 0, "member-1")
        row = connection.execute("SELECT * FROM book_entry WHERE kind = 'dead_letter'").fetchone()
        assert row["headers"] == '[["a","x"],["b",{"base64":"/w=="}],["c",null]]'
        row = connection.execute("SELECT * FROM share_group").fetchone()
        assert json.loads(row["config"]) == {"share.ordering": "key"}
        assert connection.execute("SELECT topics FROM member").fetchone()[0] == (
            '["orders","pay,ments"]'
        )
        row = connection.execute("SELECT * FROM coordinator").fetchone()
        assert tuple(row) == ("one", "one:7070", "", "0.1.0", START_MS + 4000, 0, None)


# -- errors ---------------------------------------------------------------------------------------


def test_a_full_disk_rolls_back_and_space_heals_it(path: Path) -> None:
    world = SqliteWorld(path, pragmas={"max_page_count": 40})
    store = world.open()
    first, second = claimed(store, key_of(0)), claimed(store, key_of(1))
    done: list[int] = []

    def fill() -> None:
        for base in range(0, 100_000, 20):
            rows = [row_of(offset, offset) for offset in range(base, base + 20)]
            change = change_of(first, head=head_of(0, base + 20), upserted=rows)
            commit(store, change_of(second, head=head_of(0, base)), change)
            done.append(base)

    with pytest.raises(StoreUnavailableError, match="no space left") as caught:
        fill()
    last = len(done) * 20
    assert type(caught.value) is StoreUnavailableError
    assert last > 0
    assert len(ranges(store, first.row.partition_id)) == last
    heads = [row.head for row in store.list_partitions("group")]
    assert heads == [head_of(0, last), head_of(0, last - 20)]
    # What frees space is still possible, and then everything is.
    assert commit(store, change_of(first, deleted=list(range(last)))) == frozenset()
    assert commit(store, change_of(first, upserted=[row_of(0, 4)])) == frozenset()
    assert ranges(store, first.row.partition_id) == [row_of(0, 4)]
    world.close()


def test_a_locked_file_is_unavailable_for_a_while(world: SqliteWorld, path: Path) -> None:
    store = world.open()
    loaded = claimed(store)
    change = change_of(loaded, upserted=[row_of(0, 4)])
    with by_hand(path) as tool:
        tool.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked by another process") as caught:
            commit(store, change)
        assert not isinstance(caught.value, StoreOutcomeUnknownError)
        assert str(path) in caught.value.message
        # Reads go on, of what was committed.
        assert ranges(store, loaded.row.partition_id) == []
        assert store.list_partitions("group")[0].owner == "one"
        tool.execute("ROLLBACK")
    assert commit(store, change) == frozenset()
    assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]


def test_a_file_that_is_no_database(world: SqliteWorld, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all, " * 1000)
    with pytest.raises(StoreFatalError, match="damaged or no SQLite database") as caught:
        world.open(fleet=False)
    assert str(path) in caught.value.message
    assert f"sqlite3 {path} .recover" in caught.value.message
    # The failed open holds nothing back.
    path.unlink()
    world.open(fleet=False).close()


def test_a_damaged_page_ends_the_store(world: SqliteWorld, path: Path) -> None:
    store = world.open()
    loaded = claimed(store)
    rows = [row_of(number, number) for number in range(2000)]
    commit(store, change_of(loaded, upserted=rows, dead_letters=[letter_of(1)]))
    store.close()
    with by_hand(path) as connection:
        page = connection.execute(
            "SELECT rootpage FROM sqlite_master WHERE name = 'in_flight'"
        ).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    store = world.open()
    change = change_of(loaded, deleted=[0])
    with pytest.raises(StoreFatalError, match=r"damaged.*\.recover"):
        commit(store, change)
    with pytest.raises(StoreFatalError, match=r"damaged.*\.recover"):
        claim_partition(store, loaded.row.partition_id, incarnation=2, previous_incarnation=None)


def test_a_file_that_is_moved_away_ends_the_store(world: SqliteWorld, path: Path) -> None:
    store = world.open()
    loaded = claimed(store)
    moved = path.rename(path.with_name("moved.db"))
    with pytest.raises(StoreFatalError, match="was moved, deleted or replaced"):
        commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    with pytest.raises(StoreFatalError, match="was moved, deleted or replaced"):
        store.list_partitions("group")
    assert not path.exists()
    moved.rename(path)
    assert commit(store, change_of(loaded, upserted=[row_of(0, 4)])) == frozenset()


# -- versions -------------------------------------------------------------------------------------


def test_a_newer_schema_is_refused(world: SqliteWorld, path: Path) -> None:
    world.open(fleet=False).close()
    with by_hand(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0099'")
        connection.execute("UPDATE store_meta SET value = '7.1.0' WHERE name = 'release'")
    with pytest.raises(StoreVersionError, match=r"schema 0099, written by sharecoord 7\.1\.0") as c:
        world.open(fleet=False)
    assert str(path) in c.value.message
    with by_hand(path) as connection:
        row = connection.execute("SELECT value FROM store_meta WHERE name = 'release'").fetchone()
    assert row == ("7.1.0",)


def test_a_database_of_another_program_is_refused(world: SqliteWorld, path: Path) -> None:
    path.parent.mkdir()
    with by_hand(path) as connection:
        connection.execute("CREATE TABLE invoices (id INTEGER)")
    with pytest.raises(StoreVersionError, match=r"another program.*invoices"):
        world.open()
    with by_hand(path) as connection:
        names = connection.execute("SELECT name FROM sqlite_master").fetchall()
    assert names == [("invoices",)]


# -- standalone -----------------------------------------------------------------------------------


def test_a_lease_that_another_coordinator_made_void_is_gone(world: SqliteWorld) -> None:
    first = world.open("one")
    first.renew_lease(duration_ms=60_000)
    world.open("two", fleet=False)
    with pytest.raises(StoreInUseError, match=r"coordinator one.*another coordinator took"):
        first.renew_lease(duration_ms=4000)


def test_a_lone_coordinator_keeps_its_lease_over_a_long_commit_of_its_own(
    world: SqliteWorld, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = world.open(fleet=False)
    loaded = claimed(store)
    with long_commit(store, change_of(loaded), monkeypatch):
        assert store.renew_lease(duration_ms=4000) == START_MS
    with by_hand(path) as other:
        # Whoever else has the file keeps it from us as well: that is no lease to rely on.
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailableError, match="locked by another process"):
            store.renew_lease(duration_ms=4000)
    assert store.renew_lease(duration_ms=4000) == START_MS


# -- what calls cost ------------------------------------------------------------------------------


def test_who_made_a_group_costs_a_statement_when_it_becomes_known_and_no_more(
    world: SqliteWorld,
) -> None:
    store = world.open(fleet=False)
    store.ensure_group("group")
    run: list[str] = []

    def note(_: Connection, __: object, statement: str, *___: object) -> None:
        run.append(statement.split()[0])

    def statements_of(made_by: str) -> list[str]:
        run.clear()
        store.ensure_group("group", made_by=made_by)
        return run.copy()

    event.listen(Engine, "before_cursor_execute", note)
    try:
        without, first, again = map(statements_of, ("", "User:alice", "User:alice"))
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert "SELECT" in without
    assert first == [*without, "UPDATE"]
    assert again == without
