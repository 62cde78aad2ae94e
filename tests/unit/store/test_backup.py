"""Backup and restore: the same state, under traffic, whole or not at all; and dead epochs."""

from __future__ import annotations

import contextlib
import errno
import gzip
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sharecoord.core.changes import CommitBatch, CoordinatorRow
from sharecoord.core.dispatch.pauses import WHOLE_GROUP, Pause
from sharecoord.errors import (
    InvalidConfigError,
    InvalidRequestError,
    StoreClusterMismatchError,
    StoreInUseError,
    StoreUnavailableError,
)
from sharecoord.store.dialects import SqliteDialect
from sharecoord.store.tools.access import StoreAccess
from sharecoord.store.tools.backup import EPOCH_STEP, backup_store, restore_store
from tests.contract.store_process import change_number
from tests.contract.store_worlds import (
    START_MS,
    SqliteWorld,
    change_of,
    claim_partition,
    claimed,
    commit,
    key_of,
    letter_of,
    member_of,
    open_partition,
    ranges,
    row_of,
)
from tests.contract.test_store_stateful import (
    checkpoints,
    heads,
    kept_payloads,
    layouts,
    letters,
    members,
)
from tests.unit.store.backups import (
    Lines,
    access_of,
    backup_of,
    filled,
    header_with,
    refused,
    restored_state,
    state_of,
    swap,
    with_lines,
)

# -- the same state -------------------------------------------------------------------------------


@settings(max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_state_comes_back(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = SqliteWorld(Path(folder) / "s.db")
        store = world.open()
        keys = [key_of(0), key_of(1), key_of(0, topic="pay")]
        for key in data.draw(st.lists(st.sampled_from(keys), unique=True)):
            loaded = claimed(store, key)
            drawn_letters = data.draw(st.lists(letters, max_size=3, unique_by=lambda x: x.offset))
            change = change_of(
                loaded,
                head=data.draw(heads),
                upserted=data.draw(layouts()),
                dead_letters=drawn_letters,
                checkpoints=data.draw(checkpoints),
                kept=data.draw(kept_payloads),
            )
            commit(store, change)
        unique = {"unique_by": lambda member: (member.group_id, member.member_id)}
        store.join_members(data.draw(st.lists(members, max_size=3, **unique)))
        for group in data.draw(st.sets(st.sampled_from(["group", "Gruppe ä", "x\n'\""]))):
            store.ensure_group(group)
            if data.draw(st.booleans()):
                store.change_pauses(group, pause=[Pause(WHOLE_GROUP, 7, "operator", "why")])
        if data.draw(st.booleans()):
            store.delete_topics("group", ["pay"])
        before = state_of(world.path)
        file, other = Path(folder) / "b.gz", Path(folder) / "other.db"
        backup_of(world.path, file)
        assert state_of(world.path) == before
        restore_store(access_of(other), file, replace=False)
        assert state_of(other) == restored_state(before)
        world.close()


def test_where_rows_start_comes_back_and_who_drained_does_not(
    world: SqliteWorld, tmp_path: Path
) -> None:
    store, _ = filled(world)
    assert open_partition(store, key_of(1)).starts_at_zero
    store.announce(address="a:1", peer_address="a:2", draining=True)
    file = backup_of(world.path, tmp_path / "b.gz")
    world.close()
    restore_store(access_of(world.path), file, replace=True)
    again = world.open()
    fresh = CoordinatorRow("one", "one:7070", "", draining=False)
    assert again.read_fleet().coordinators == (fresh,)
    assert [row.starts_at_zero for row in again.list_partitions("group")] == [False, True]


@pytest.mark.parametrize("revision", ["0003", "0004"])
def test_a_backup_without_principals_is_restored(
    world: SqliteWorld, tmp_path: Path, revision: str
) -> None:
    """As releases before schema 0005 have written them."""
    filled(world)
    wanted = restored_state(state_of(world.path))
    file = backup_of(world.path, tmp_path / "b.gz")

    def older(lines: Lines) -> None:
        header_with(lines, schema_revision=revision)
        swap(lines, b', "made_by"]', b"]")
        swap(lines, b', "principal"]', b"]")
        swap(lines, b'2,"[]",""]', b'2,"[]"]')
        swap(
            lines, b'"[\\"orders\\",\\"pay,ments\\"]",0,""]', b'"[\\"orders\\",\\"pay,ments\\"]",0]'
        )

    with_lines(file, older)
    restore_store(access_of(tmp_path / "o.db"), file, replace=False)
    assert state_of(tmp_path / "o.db") == wanted
    # A row of the new form is none of that schema.
    with_lines(file, lambda lines: swap(lines, b'2,"[]"]', b'2,"[]",""]'))
    assert "no row of share_group: not a list of 4 values" in refused(file)


def test_principals_come_back(world: SqliteWorld, tmp_path: Path) -> None:
    store = world.open(fleet=False)
    store.ensure_group("group", made_by="User:alice")
    store.join_members([replace(member_of(), principal="User:büro\u2028")])
    file = backup_of(world.path, tmp_path / "b.gz")
    world.close()
    restored = SqliteWorld(tmp_path / "o.db")
    restore_store(access_of(restored.path), file, replace=False)
    again = restored.open(fleet=False)
    assert [group.made_by for group in again.load_groups()] == ["User:alice"]
    assert [member.principal for member in again.load_members()] == ["User:büro\u2028"]
    restored.close()


def test_an_empty_store_comes_back(world: SqliteWorld, tmp_path: Path) -> None:
    world.open()
    file = backup_of(world.path, tmp_path / "b.gz")
    header = restore_store(access_of(tmp_path / "deep" / "er" / "o.db"), file, replace=False)
    assert (header.cluster_id, header.taken_at_ms, header.total) == ("kafka-1", START_MS, 2)
    assert header.taken_at == "2023-11-14 22:13:20 UTC"


def test_the_file_can_be_read_by_people(backup: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress(backup.read_bytes()).splitlines()]
    assert lines[0]["format"] == "sharecoord-store-backup"
    assert lines[0]["rows"] == {
        "store_meta": 2,
        "share_group": 1,
        "blocked_key": 1,
        "share_partition": 1,
        "in_flight": 2,
        "member": 1,
        "book_entry": 3,
        "letter_mark": 0,
    }
    assert ["group", '{"share.ordering":"key"}', 2, "[]", ""] in lines
    assert backup.stat().st_mode & 0o777 == 0o600


def test_a_backup_under_commits_is_one_state(world: SqliteWorld, tmp_path: Path) -> None:
    """Each commit rewrites three share-partitions and their ranges: none is seen half."""
    store = world.open()
    loaded = [claimed(store, key_of(number)) for number in range(3)]
    numbers: list[int] = []
    stop = threading.Event()

    def storm() -> None:
        while not stop.is_set():
            numbers.append(len(numbers) + 1)
            store.commit(CommitBatch([change_number(part, numbers[-1]) for part in loaded]))

    thread = threading.Thread(target=storm)
    thread.start()
    try:
        files = [backup_of(world.path, tmp_path / f"{index}.gz") for index in range(6)]
    finally:
        stop.set()
        thread.join()
    seen = []
    for file in files:
        path = file.with_suffix(".db")
        restore_store(access_of(path), file, replace=False)
        state = state_of(path)
        (number,) = {row[9] for row in state["share_partition"]}
        firsts = [[r[1] for r in state["in_flight"] if r[0] == p.row.partition_id] for p in loaded]
        assert firsts == [[number * 100 + i for i in range(8)] if number else []] * 3
        assert len(state["book_entry"]) == (3 if number else 0)
        seen.append(number)
    assert seen == sorted(seen)
    assert numbers, "commits went on"


def test_large_rows_do_not_fill_the_memory(world: SqliteWorld, tmp_path: Path) -> None:
    """Dead letters of 15 MB, by 3 MB at a time."""
    store = world.open()
    loaded = claimed(store)
    for start in range(0, 250, 50):
        some = [letter_of(start + index, value=b"v" * 60_000) for index in range(50)]
        commit(store, change_of(loaded, dead_letters=some))
    tracemalloc.start()
    try:
        file = backup_of(world.path, tmp_path / "b.gz")
        restore_store(access_of(tmp_path / "o.db"), file, replace=False)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 9_000_000
    assert state_of(tmp_path / "o.db")["book_entry"] == state_of(world.path)["book_entry"]


# -- whole or not at all --------------------------------------------------------------------------


def test_a_file_that_is_there_is_kept(world: SqliteWorld, backup: Path) -> None:
    before = backup.read_bytes()
    with pytest.raises(InvalidRequestError, match=r"b\.gz exists already.*--force"):
        backup_store(access_of(world.path), backup, replace=False)
    assert backup.read_bytes() == before
    world.open("two").ensure_group("more")
    backup_store(access_of(world.path), backup, replace=True)
    assert b'"more"' in gzip.decompress(backup.read_bytes())
    assert backup.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("replace", [False, True])
def test_without_unnamed_files_there_is_a_part_until_the_end(
    world: SqliteWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    monkeypatch.delattr(os, "O_TMPFILE")
    filled(world)
    folder = tmp_path / "backups"
    folder.mkdir()
    file = folder / "b.gz"
    if replace:
        file.write_text("old")
    backup_store(access_of(world.path), file, replace=replace)
    assert [*folder.iterdir()] == [file]
    assert file.stat().st_mode & 0o777 == 0o600
    restore_store(access_of(tmp_path / "o.db"), file, replace=False)
    with pytest.raises(InvalidRequestError, match="exists already"):
        backup_store(access_of(world.path), file, replace=False)


@pytest.mark.parametrize("unnamed", [True, False])
def test_what_fails_in_the_middle_leaves_nothing(
    world: SqliteWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """A row that could not be restored is met after others were written."""
    if not unnamed:
        monkeypatch.delattr(os, "O_TMPFILE")
    store, loaded = filled(world)
    commit(store, change_of(loaded, upserted=[row_of(50, 50)._replace(reason=b"x")]))  # type: ignore[arg-type]
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "b.gz").write_text("old")
    with pytest.raises(
        InvalidRequestError,
        match=r"in_flight partition_id=1 first_offset=50: reason is bytes b'x', not text.*check",
    ):
        backup_store(access_of(world.path), folder / "b.gz", replace=True)
    assert [path.name for path in folder.iterdir()] == ["b.gz"]
    assert (folder / "b.gz").read_text() == "old"


STOPPED = """
import resource, signal, sys
from pathlib import Path
from sharecoord.errors import SharecoordError
from sharecoord.store.tools import backup_file
from sharecoord.store.tools.backup import backup_store
from tests.unit.store.backups import access_of
how, store, file = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if how == "full":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
else:
    plain, rows = backup_file.to_json, []
    def to_json(table, row):
        rows.append(row)
        if len(rows) == 6:
            print("middle", flush=True)
            sys.stdin.read()
        return plain(table, row)
    backup_file.to_json = to_json
try:
    backup_store(access_of(store), file, replace=True)
except SharecoordError as error:
    print(type(error).__name__, error.message, flush=True)
"""


def stopped(how: str, store: Path, file: Path) -> subprocess.Popen[str]:
    """A process that backs up and is stopped in the middle."""
    command = [sys.executable, "-c", STOPPED, how, str(store), str(file)]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )


def test_kill_9_in_the_middle_leaves_nothing(world: SqliteWorld, tmp_path: Path) -> None:
    filled(world)
    folder = tmp_path / "backups"
    folder.mkdir()
    (folder / "b.gz").write_text("old")
    with stopped("kill", world.path, folder / "b.gz") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "middle\n"
        process.kill()
        process.wait()
    assert [path.name for path in folder.iterdir()] == ["b.gz"]
    assert (folder / "b.gz").read_text() == "old"


def test_a_full_disk_leaves_nothing(world: SqliteWorld, tmp_path: Path) -> None:
    store, loaded = filled(world)
    commit(store, change_of(loaded, dead_letters=[letter_of(50, value=os.urandom(300_000))]))
    folder = tmp_path / "backups"
    folder.mkdir()
    with stopped("full", world.path, folder / "b.gz") as process:
        told, _ = process.communicate(timeout=60)
    assert told.startswith(f"{StoreUnavailableError.__name__} {folder / 'b.gz'}: File too large")
    assert "nothing was left behind" in told
    assert [*folder.iterdir()] == []


@pytest.mark.parametrize("name", ["s.db", "s.db-wal", "s.db-shm", "s.db.lock", "link"])
def test_the_store_is_not_overwritten(world: SqliteWorld, tmp_path: Path, name: str) -> None:
    filled(world)
    before = state_of(world.path)
    (tmp_path / "link").symlink_to(world.path)
    with pytest.raises(InvalidRequestError, match="a file of the store itself"):
        backup_store(access_of(world.path), tmp_path / name, replace=True)
    assert state_of(world.path) == before


def test_where_no_file_can_be(world: SqliteWorld, tmp_path: Path) -> None:
    filled(world)
    with pytest.raises(InvalidRequestError, match=r"none/b\.gz: cannot be written: No such file"):
        backup_store(access_of(world.path), tmp_path / "none" / "b.gz", replace=False)
    with pytest.raises(InvalidRequestError, match="cannot be written: Is a directory"):
        backup_store(access_of(world.path), tmp_path, replace=True)
    with pytest.raises(InvalidRequestError, match="cannot be written: Not a directory"):
        backup_store(access_of(world.path), world.path / "b.gz", replace=False)


def test_where_this_user_may_not(
    world: SqliteWorld, backup: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand: root, who may run the tests, may everything."""
    plain = os.open

    def denied(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if dir_fd is not None:
            raise PermissionError(errno.EACCES, "Permission denied")
        return plain(path, flags, mode)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(InvalidRequestError, match=r"new\.gz: cannot be written: Permission denied"):
        backup_store(access_of(world.path), backup.with_name("new.gz"), replace=False)
    monkeypatch.undo()

    def closed(self: Path, *_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", closed)
    assert f"{backup}: cannot be read: Permission denied" in refused(backup)


def test_no_store_is_no_backup(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"there is no .*s\.db\. Give --store"):
        backup_store(access_of(tmp_path / "s.db"), tmp_path / "b.gz", replace=False)
    assert [*tmp_path.iterdir()] == []
    (tmp_path / "s.db").touch()
    with pytest.raises(InvalidConfigError, match="is empty: no coordinator has used it yet"):
        backup_store(access_of(tmp_path / "s.db"), tmp_path / "b.gz", replace=False)
    assert not (tmp_path / "b.gz").exists()


# -- what is left alone ---------------------------------------------------------------------------


def test_a_store_that_is_used_is_left_alone(
    world: SqliteWorld, backup: Path, tmp_path: Path
) -> None:
    world.open("two").ensure_group("more")
    before = state_of(world.path)
    with pytest.raises(InvalidRequestError, match=r"s\.db is not empty: .*--force"):
        restore_store(access_of(world.path), backup, replace=False)
    assert state_of(world.path) == before
    other = SqliteWorld(tmp_path / "other.db")
    other.open(fleet=False)
    with pytest.raises(StoreInUseError, match=r"other\.db is in use by pid \d+, coordinator one"):
        restore_store(access_of(other.path), backup, replace=True)
    assert state_of(other.path)["share_group"] == []
    other.close()
    restore_store(access_of(other.path), backup, replace=False)


def test_a_store_of_another_cluster_is_left_alone(backup: Path, tmp_path: Path) -> None:
    other = SqliteWorld(tmp_path / "other.db")
    other.open(cluster_id="kafka-2", fleet=False).ensure_group("theirs")
    other.close()
    access = access_of(other.path)
    with pytest.raises(StoreClusterMismatchError, match=r"kafka-2, but .* cluster kafka-1\."):
        restore_store(access, backup, replace=True)
    assert [row[0] for row in state_of(other.path)["share_group"]] == ["theirs"]
    restore_store(access, backup, replace=True, other_cluster=True)
    assert ("cluster_id", "kafka-1") in state_of(other.path)["store_meta"]
    assert [row[0] for row in state_of(other.path)["share_group"]] == ["group"]


def test_a_row_that_the_database_refuses_changes_nothing(world: SqliteWorld, backup: Path) -> None:
    """A range of no share-partition passes every check of the file, not the foreign key."""
    with_lines(backup, lambda lines: swap(lines, b"[1,7,9,", b"[2,7,9,"))
    before = state_of(world.path)
    with pytest.raises(InvalidRequestError, match=r"rows 1 to 2 of in_flight do not go into this"):
        restore_store(access_of(world.path), backup, replace=True)
    assert state_of(world.path) == before


def test_a_disk_that_fills_up_during_a_restore_changes_nothing(
    world: SqliteWorld, tmp_path: Path
) -> None:
    store, loaded = filled(world)
    commit(store, change_of(loaded, dead_letters=[letter_of(50, value=os.urandom(300_000))]))
    file = backup_of(world.path, tmp_path / "b.gz")
    small = SqliteWorld(tmp_path / "small.db")
    small.open(fleet=False).ensure_group("kept")
    small.close()
    before = state_of(small.path)
    dialect = SqliteDialect(small.path, clock_ms=lambda: START_MS, pragmas={"max_page_count": 40})
    with pytest.raises(StoreUnavailableError, match="no space left"):
        restore_store(StoreAccess(dialect, name="store small"), file, replace=True)
    assert state_of(small.path) == before


# -- epochs ---------------------------------------------------------------------------------------


def test_a_coordinator_of_before_is_a_stranger(world: SqliteWorld, backup: Path) -> None:
    """It was only asleep: what it commits, claims again and initialises changes nothing."""
    store = world.stores[0]
    row = open_partition(store, key_of())
    # After the backup: a new claim, a reset, another partition under the next id.
    loaded = claim_partition(store, row.partition_id, incarnation=2, previous_incarnation=1)
    assert loaded is not None
    late = claimed(store, key_of(1), incarnation=3)
    restore_store(access_of(world.path), backup, replace=True)
    with contextlib.closing(sqlite3.connect(world.path)) as connection, connection:
        # As in a new database: ids that were given out after the backup come back.
        connection.execute("DELETE FROM sqlite_sequence")
    before = state_of(world.path)
    newer = world.open("two")
    again = claimed(newer, key_of(2), incarnation=9)
    assert again.row.partition_id == late.row.partition_id, "the id comes back, the epochs do not"
    mine = [change_of(part, upserted=[row_of(0, 9)]) for part in (loaded, late)]
    assert commit(store, *mine) == {loaded.row.partition_id, late.row.partition_id}
    for number, previous in ((1, 1), (2, 1), (5, 2)):
        claim = claim_partition(
            store, row.partition_id, incarnation=number, previous_incarnation=previous
        )
        assert claim is None
    assert ranges(newer, late.row.partition_id) == []
    assert state_of(world.path)["in_flight"] == before["in_flight"]


def test_no_token_is_given_out_twice(world: SqliteWorld, backup: Path, tmp_path: Path) -> None:
    """Claims after the backup raise the epoch; each restore goes beyond all of them."""
    store = world.stores[0]
    row = open_partition(store, key_of())
    used = []
    for number in range(2, 6):
        loaded = claim_partition(
            store, row.partition_id, incarnation=number, previous_incarnation=number - 1
        )
        assert loaded is not None
        used.append(loaded.row.owner_epoch)
    for times in range(1, 4):
        # Into another database, which does not know what was used; then over it.
        path = tmp_path / "o.db"
        restore_store(access_of(path), backup, replace=True)
        other = SqliteWorld(path)
        handle = other.open("one")
        taken = claim_partition(handle, row.partition_id, incarnation=1, previous_incarnation=None)
        fresh = claimed(handle, key_of(7), incarnation=2)
        other.close()
        assert taken is not None
        assert min(taken.row.owner_epoch, fresh.row.owner_epoch) > max(used)
        assert taken.row.state_epoch >= times * EPOCH_STEP
        # What comes again after a restore is not delivered anew, as after a reset.
        assert taken.row.replay_epoch == row.replay_epoch
        used += [taken.row.owner_epoch, fresh.row.owner_epoch]


def test_epochs_end_before_a_lock_token_overflows(
    world: SqliteWorld, backup: Path, tmp_path: Path
) -> None:
    with_lines(backup, lambda lines: swap(lines, b',"one",1,1,0,', b',"one",2147000000,1,0,'))
    with pytest.raises(InvalidRequestError, match="this state was restored too often"):
        restore_store(access_of(tmp_path / "o.db"), backup, replace=False)
