"""`check_store`: no finding in a sound store, each damage named with its fix; and `migrate`."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from sharecoord.core.changes import Checkpoint, LoadedPartition
from sharecoord.core.letters.lanes import Marking, MarkKind, Selection
from sharecoord.errors import (
    InternalError,
    InvalidConfigError,
    StoreFatalError,
    StoreInUseError,
    StoreVersionError,
)
from sharecoord.store.dialects import SqliteDialect
from sharecoord.store.schema import Schema
from sharecoord.store.tables import HEAD_REVISION
from sharecoord.store.tools import check
from sharecoord.store.tools.access import StoreAccess
from sharecoord.store.tools.check import CheckReport, Finding, check_store
from tests.contract.store_worlds import (
    START_MS,
    AnyStore,
    SqliteWorld,
    change_of,
    claimed,
    commit,
    head_of,
    kept_of,
    key_of,
    letter_of,
    member_of,
    row_of,
)
from tests.contract.test_store_schema import LATER, scripts_with
from tests.unit.store.backups import access_of

RESET = "sharecoord groups --reset-offsets --group group --topic orders:0 --to-offset 0 --execute"


def sound(world: SqliteWorld) -> tuple[AnyStore, LoadedPartition]:
    """A store with a row in every table and in every state, as a coordinator leaves it."""
    store = world.open()
    loaded = claimed(store)
    token = (loaded.row.owner_epoch << 32) + 1
    rows = [
        row_of(0, 4)._replace(lock_token=token, key_hashes=b"12345678" * 5),
        row_of(7, 9, state=0, available_at_ms=START_MS + 5)._replace(lock_token=token),
        row_of(20, 20, state=3)._replace(lock_token=0, reason="REJECTED"),
        row_of(21, 29, state=4)._replace(lock_token=0, reason="GAP"),
    ]
    letters = [letter_of(20)]
    head = head_of(0, 100, finished=91)
    half, kept = [Checkpoint(3, b"half", START_MS)], [kept_of(8)]
    change = change_of(
        loaded, head=head, upserted=rows, dead_letters=letters, checkpoints=half, kept=kept
    )
    commit(store, change)
    store.join_members([member_of()])
    store.save_group_config("group", set_values={"share.ordering": "key"}, deleted=[])
    lane = replace(key_of(topic="dead"), lane="orders")
    store.take_in([Selection(lane, ((3, 4),))], Marking(MarkKind.DISCARDED, "run"))
    store.save_blocked_keys("group", blocked={b"k": "ticket 7"}, unblocked=[])
    return store, loaded


def checked(world: SqliteWorld) -> CheckReport:
    return check_store(access_of(world.path))


def damage(world: SqliteWorld, *statements: str) -> None:
    """What another program did to the file."""
    with contextlib.closing(sqlite3.connect(world.path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_a_sound_store_has_no_findings(world: SqliteWorld) -> None:
    sound(world)
    report = checked(world)
    assert report.findings == []
    assert report.facts == (HEAD_REVISION, "0.1.0", "kafka-1")
    assert report.rows == {
        "store_meta": 2,
        "coordinator": 1,
        "share_group": 1,
        "blocked_key": 1,
        "share_partition": 2,
        "in_flight": 4,
        "member": 1,
        "book_entry": 3,
        "letter_mark": 1,
    }


def test_what_the_store_itself_does_is_sound(world: SqliteWorld) -> None:
    """Resets, deletions with an outbox, claims by others, and an empty store."""
    store, loaded = sound(world)
    store.reset_partitions({loaded.row.key: 50})
    assert checked(world).findings == []
    assert store.open_partitions([key_of(1)])[0].starts_at_zero
    assert checked(world).findings == []
    for address, peer in (("unix:/run/sharecoord.sock", ""), ("[::1]:7070", "[::1]:7071")):
        store.announce(address=address, peer_address=peer, draining=True)
        assert checked(world).findings == []
    store.delete_group("group")
    assert checked(world).findings == []
    world.time_ms += 60_000
    claimed(world.open("two"), incarnation=5)
    assert checked(world).findings == []


RANGE = "partition_id=1 first_offset="


@pytest.mark.parametrize(
    ("statement", "table", "row", "problem", "fix"),
    [
        (
            "UPDATE share_partition SET finished_count = 3 WHERE id = 1",
            "share_partition",
            "id=1",
            "finished_count is 3, its ranges leave 91",
            "writes it anew",
        ),
        (
            "UPDATE share_partition SET end_leader_epoch = NULL WHERE id = 1",
            "share_partition",
            "id=1",
            "partition 0: start_offset, end_offset, finished_count, end_leader_epoch are not all",
            RESET,
        ),
        (
            "UPDATE share_partition SET start_offset = -1, finished_count = 92 WHERE id = 1",
            "share_partition",
            "id=1",
            "start_offset -1 and end_offset 100 are no window",
            RESET,
        ),
        (
            "UPDATE share_partition SET stops_at = -1 WHERE id = 2",
            "share_partition",
            "id=2",
            "lane orders: end_offset 0 is beyond stops_at -1",
            "--again",
        ),
        (
            "UPDATE share_partition SET rate_limit = -1 WHERE id = 1",
            "share_partition",
            "id=1",
            "rate_limit is -1",
            "UPDATE",
        ),
        (
            "UPDATE letter_mark SET kind = 'lost'",
            "letter_mark",
            "partition_id=2 first_offset=3 run_id=run",
            "kind 'lost' is neither redriven nor discarded",
            "UPDATE",
        ),
        (
            "UPDATE letter_mark SET last_offset = 2",
            "letter_mark",
            "partition_id=2 first_offset=3 run_id=run",
            "[3, 2] are no offsets",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET topic_id = 'AB' WHERE id = 1",
            "share_partition",
            "id=1",
            "topic_id 'AB' is not 32 hex digits",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET partition_index = -1 WHERE id = 1",
            "share_partition",
            "id=1",
            "partition_index is negative",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET owner = '' WHERE id = 1",
            "share_partition",
            "id=1",
            "owner is empty text, not NULL",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET state_epoch = -1 WHERE id = 1",
            "share_partition",
            "id=1",
            "state_epoch is -1",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET replay_epoch = -1",
            "share_partition",
            "id=1",
            "replay_epoch is -1",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET owner_epoch = 0 WHERE id = 1",
            "in_flight",
            f"{RANGE}0",
            "[0, 4]: its lock token is of owner epoch 1, beyond 0",
            RESET,
        ),
        (
            "UPDATE share_partition SET start_offset = 3, finished_count = 88 WHERE id = 1",
            "in_flight",
            f"{RANGE}0",
            "group group, topic orders, partition 0, [0, 4]: it is not inside the window [3, 100)",
            "--to-offset 3 ",
        ),
        (
            "UPDATE share_partition SET end_offset = 29, finished_count = 20 WHERE id = 1",
            "in_flight",
            f"{RANGE}21",
            "[21, 29]: it is not inside the window [0, 29)",
            RESET,
        ),
        (
            "UPDATE in_flight SET last_offset = 20 WHERE first_offset = 7",
            "in_flight",
            f"{RANGE}20",
            "[20, 20]: it overlaps the range before it, which ends at 20",
            RESET,
        ),
        (
            "UPDATE in_flight SET last_offset = 19 WHERE first_offset = 20",
            "in_flight",
            f"{RANGE}20",
            "[20, 19]: it ends before it begins",
            RESET,
        ),
        (
            "UPDATE in_flight SET state = 2 WHERE first_offset = 7",
            "in_flight",
            f"{RANGE}7",
            "state 2 is none of AVAILABLE 0",
            RESET,
        ),
        (
            "UPDATE in_flight SET member_id = NULL WHERE first_offset = 0",
            "in_flight",
            f"{RANGE}0",
            "it is ACQUIRED without member, lock token or deadline",
            RESET,
        ),
        (
            "UPDATE in_flight SET deadline_ms = 5 WHERE first_offset = 20",
            "in_flight",
            f"{RANGE}20",
            "it is ARCHIVING and has a lock",
            RESET,
        ),
        (
            "UPDATE in_flight SET delivery_count = 1001, hand_outs = 1001 WHERE first_offset = 7",
            "in_flight",
            f"{RANGE}7",
            "delivery_count 1001 is not between 0 and 1000",
            RESET,
        ),
        (
            "UPDATE in_flight SET hand_outs = 0 WHERE first_offset = 7",
            "in_flight",
            f"{RANGE}7",
            "hand_outs 0 is less than delivery_count 1",
            RESET,
        ),
        (
            "UPDATE in_flight SET key_hashes = x'00' WHERE first_offset = 0",
            "in_flight",
            f"{RANGE}0",
            "key_hashes has 1 bytes for 5 records",
            RESET,
        ),
        (
            "UPDATE in_flight SET history = '{}' WHERE first_offset = 0",
            "in_flight",
            f"{RANGE}0",
            "history is not as the coordinator writes it",
            RESET,
        ),
        (
            "UPDATE in_flight SET partition_id = 9 WHERE first_offset = 21",
            "in_flight",
            "partition_id=9 first_offset=21",
            "there is no such share-partition",
            "delete the row",
        ),
        (
            "UPDATE in_flight SET granted_ms = 'long' WHERE first_offset = 21",
            "in_flight",
            f"{RANGE}21",
            "granted_ms is str 'long', not an integer",
            "restore a backup",
        ),
        (
            "UPDATE share_group SET config = '{\"share.ordering\": 1}'",
            "share_group",
            "group_id=group",
            "config is no JSON object of texts",
            "--entity-name group --alter",
        ),
        (
            "UPDATE share_group SET config = '{'",
            "share_group",
            "group_id=group",
            "config is no JSON object of texts",
            "set config to {}",
        ),
        (
            'UPDATE share_group SET config = \'{"share.ordering": "random"}\'',
            "share_group",
            "group_id=group",
            "share.ordering",
            "set config to {}",
        ),
        (
            "UPDATE share_group SET paused = '[{}]'",
            "share_group",
            "group_id=group",
            "paused is not as the coordinator writes it",
            "set paused to []",
        ),
        (
            "UPDATE share_group SET group_epoch = -3",
            "share_group",
            "group_id=group",
            "group_epoch is -3",
            "UPDATE",
        ),
        (
            "UPDATE share_partition SET passed_over = '[[1]]'",
            "share_partition",
            "id=1",
            "passed_over is no JSON array of [first, last]",
            "set it to []",
        ),
        (
            "UPDATE member SET topics = '[1]'",
            "member",
            "group_id=group member_id=m1",
            "topics is no JSON array of texts",
            "joins again",
        ),
        (
            "UPDATE member SET member_epoch = -1",
            "member",
            "group_id=group member_id=m1",
            "member_epoch is -1",
            "joins again",
        ),
        (
            "UPDATE member SET host = x'ff'",
            "member",
            "group_id=group member_id=m1",
            "host is bytes b'\\xff', not text",
            "joins again",
        ),
        (
            'UPDATE book_entry SET headers = \'[["a",{"base64":"%"}]]\' WHERE record_offset = 20',
            "book_entry",
            "kind=dead_letter partition_id=1 record_offset=20",
            "headers are not as the coordinator writes them",
            "restore a backup",
        ),
        (
            "UPDATE book_entry SET delivery_count = -1 WHERE kind = 'dead_letter'",
            "book_entry",
            "kind=dead_letter partition_id=1 record_offset=20",
            "delivery_count is -1",
            "restore a backup",
        ),
        (
            "UPDATE book_entry SET reason = NULL WHERE kind = 'dead_letter'",
            "book_entry",
            "kind=dead_letter partition_id=1 record_offset=20",
            "reason is missing",
            "restore a backup",
        ),
        (
            "UPDATE book_entry SET at_ms = NULL WHERE kind = 'checkpoint'",
            "book_entry",
            "kind=checkpoint partition_id=1 record_offset=3",
            "at_ms is missing",
            "delete the row; its record is worked on anew",
        ),
        (
            "UPDATE book_entry SET kind = 'note' WHERE kind = 'checkpoint'",
            "book_entry",
            "kind=note partition_id=1 record_offset=3",
            "kind 'note' is none of dead_letter, checkpoint, kept_payload",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET partition_id = 9 WHERE kind = 'dead_letter'",
            "book_entry",
            "kind=dead_letter partition_id=9 record_offset=20",
            "there is no such share-partition",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET partition_id = 9 WHERE kind = 'checkpoint'",
            "book_entry",
            "kind=checkpoint partition_id=9 record_offset=3",
            "there is no such share-partition",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET record_offset = 100 WHERE kind = 'checkpoint'",
            "book_entry",
            "kind=checkpoint partition_id=1 record_offset=100",
            "offset 100 is not inside its window",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET checkpoint = zeroblob(65537) WHERE kind = 'checkpoint'",
            "book_entry",
            "kind=checkpoint partition_id=1 record_offset=3",
            "checkpoint has 65537 bytes; 65536 is the most",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET partition_id = 9 WHERE kind = 'kept_payload'",
            "book_entry",
            "kind=kept_payload partition_id=9 record_offset=8",
            "there is no such share-partition",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET record_offset = 100 WHERE kind = 'kept_payload'",
            "book_entry",
            "kind=kept_payload partition_id=1 record_offset=100",
            "offset 100 is not inside its window",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET headers = '{' WHERE kind = 'kept_payload'",
            "book_entry",
            "kind=kept_payload partition_id=1 record_offset=8",
            "headers are not as the coordinator writes them",
            "delete the row",
        ),
        (
            "UPDATE book_entry SET size_bytes = -1 WHERE kind = 'kept_payload'",
            "book_entry",
            "kind=kept_payload partition_id=1 record_offset=8",
            "size_bytes is -1",
            "delete the row",
        ),
        (
            f"UPDATE coordinator SET lease_until_ms = {START_MS + 3_600_000}",
            "coordinator",
            "id=one",
            "the lease lasts 3600 s more",
            "set the clock right",
        ),
        (
            "UPDATE coordinator SET draining = 2",
            "coordinator",
            "id=one",
            "draining is int 2, not 0 or 1",
            "writes a new one at its start",
        ),
        (
            "UPDATE coordinator SET address = ''",
            "coordinator",
            "id=one",
            "address '' is neither HOST:PORT nor unix:PATH",
            "with that coordinator stopped",
        ),
        (
            "UPDATE coordinator SET peer_address = 'ten:65536'",
            "coordinator",
            "id=one",
            "peer_address 'ten:65536' is not HOST:PORT",
            "with that coordinator stopped",
        ),
        (
            "UPDATE coordinator SET secret = 'hunter2'",
            "coordinator",
            "id=one",
            "secret is not 64 hexadecimal digits: it gets no links",
            "with that coordinator stopped",
        ),
        (
            "UPDATE share_partition SET starts_at_zero = 'no' WHERE id = 1",
            "share_partition",
            "id=1",
            "starts_at_zero is str 'no', not 0 or 1",
            "mend the row",
        ),
        (
            "INSERT INTO store_meta VALUES ('epoch_floor', 'high')",
            "store_meta",
            "name=epoch_floor",
            "value is 'high', not a number",
            "the highest owner_epoch",
        ),
        (
            "INSERT INTO store_meta VALUES ('member_epoch_floor', '-1')",
            "store_meta",
            "name=member_epoch_floor",
            "value is '-1', not a number",
            "the store's clock in milliseconds",
        ),
    ],
)
def test_damage_is_named(
    world: SqliteWorld, statement: str, table: str, row: str, problem: str, fix: str
) -> None:
    sound(world)
    damage(world, statement)
    findings = checked(world).findings
    found = [finding for finding in findings if problem in finding.problem]
    assert found, findings
    assert (found[0].table, found[0].row) == (table, row)
    assert fix in found[0].fix


def test_names_of_groups_are_quoted_in_commands(world: SqliteWorld) -> None:
    sound(world)
    damage(world, "UPDATE share_partition SET group_id = 'a; b', end_offset = -5 WHERE id = 1")
    assert any("--group 'a; b' " in finding.fix for finding in checked(world).findings)


def test_a_range_of_a_partition_without_a_start(world: SqliteWorld) -> None:
    sound(world)
    names = ("start_offset", "end_offset", "finished_count", "end_leader_epoch")
    damage(world, f"UPDATE share_partition SET {' = NULL, '.join(names)} = NULL WHERE id = 1")
    problems = {finding.problem.rpartition(": ")[2] for finding in checked(world).findings}
    assert problems == {"the share-partition has no start offset yet"}


def test_findings_are_bounded(world: SqliteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "FINDINGS_MAX", 2)
    sound(world)
    damage(world, "UPDATE in_flight SET state = 9 WHERE state < 4")
    report = checked(world)
    assert (len(report.findings), report.more) == (2, 1)


def test_another_schema_is_a_finding(world: SqliteWorld) -> None:
    sound(world)
    damage(world, "UPDATE alembic_version SET version_num = '0007'", "DROP TABLE member")
    assert checked(world).findings == [
        Finding(
            "alembic_version",
            "version_num=0007",
            "the schema is 0007, written by sharecoord 0.1.0; this version knows "
            f"{HEAD_REVISION}: nothing else was looked at",
            "check with the version that wrote it, or run: sharecoord store migrate",
        )
    ]


def test_what_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"there is no .*none\.db\. Give --store"):
        check_store(access_of(tmp_path / "none.db"))
    assert [*tmp_path.iterdir()] == []
    theirs = tmp_path / "theirs.db"
    with contextlib.closing(sqlite3.connect(theirs)) as connection, connection:
        connection.execute("CREATE TABLE notes (text)")
    with pytest.raises(StoreVersionError, match=r"of another program \(it has the table notes\)"):
        check_store(access_of(theirs))
    (tmp_path / "text.db").write_text("name,value\n" * 1000)
    with pytest.raises(StoreFatalError, match="damaged or no SQLite database"):
        check_store(access_of(tmp_path / "text.db"))


# -- migrate --------------------------------------------------------------------------------------


def later_release(path: Path, scripts: Path) -> StoreAccess:
    """The tools of a release with one more revision."""
    dialect = SqliteDialect(path, clock_ms=lambda: START_MS)
    return StoreAccess(dialect, name=f"store {path}", schema=Schema(scripts, LATER))


def columns_of_member(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        return [row[1] for row in connection.execute("PRAGMA table_info(member)")]


def test_migrations_that_need_downtime_run_when_nobody_is_there(
    world: SqliteWorld, tmp_path: Path
) -> None:
    access = later_release(world.path, scripts_with(tmp_path, needs_downtime=True))
    world.open(fleet=False)
    with pytest.raises(StoreInUseError, match="coordinator one"):
        access.migrate()
    assert "colour" not in columns_of_member(world.path)
    world.close()
    with (
        pytest.raises(
            StoreVersionError, match=rf"reads {LATER}\. .* run: sharecoord store migrate"
        ),
        access.snapshot(),
    ):
        pass
    assert access.migrate() == (HEAD_REVISION, LATER)
    assert columns_of_member(world.path)[-1] == "colour"
    assert access.migrate() == (LATER, LATER)


def test_a_migration_that_fails_changes_nothing(world: SqliteWorld, tmp_path: Path) -> None:
    sound(world)
    scripts = scripts_with(tmp_path, needs_downtime=True, statement="SELECT * FROM nothing")
    with pytest.raises(InternalError, match="nothing"):
        later_release(world.path, scripts).migrate()
    assert checked(world).findings == []
