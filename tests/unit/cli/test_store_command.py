"""`sharecoord store`."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path

import pytest

from sharecoord.devenv.processes import free_ports
from sharecoord.store.tables import HEAD_REVISION
from sharecoord.store.tools.access import Migration, StoreAccess
from tests.contract.store_worlds import SqliteWorld
from tests.unit.cli.support import run, words
from tests.unit.store.test_check import sound


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A sound store that no coordinator has."""
    world = SqliteWorld(tmp_path / "s.db")
    sound(world)
    world.close()
    return f"sqlite:///{tmp_path}/s.db"


def damage(path: Path, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


# -- check ----------------------------------------------------------------------------------------


def test_check_of_a_sound_store(url: str, tmp_path: Path) -> None:
    result = run("store", "check", "--store", url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == (
        f"store {tmp_path}/s.db: sound; 15 rows, schema {HEAD_REVISION}, Kafka cluster kafka-1\n"
    )
    assert json.loads(run("store", "check", "--store", url, "-o", "json").stdout) == []


def test_check_lists_what_is_wrong(url: str, tmp_path: Path) -> None:
    damage(tmp_path / "s.db", "UPDATE member SET topics = 'orders'")
    table = run("store", "check", "--store", url)
    assert table.exit_code == 1
    header, line = table.stdout.splitlines()
    assert words(header) == ["TABLE", "ROW", "FINDING", "FIX"]
    assert words(line) == words(
        "member group_id=group member_id=m1 topics is no JSON array of texts "
        "delete the row; the member joins again by itself"
    )
    assert "1 finding; 15 rows" in table.stderr
    rows = json.loads(run("store", "check", "--store", url, "-o", "json").stdout)
    assert [(row["table"], row["row"]) for row in rows] == [
        ("member", "group_id=group member_id=m1")
    ]
    assert "  fix: delete the row" in run("store", "check", "--store", url, "-o", "yaml").stdout


def test_check_of_what_can_not_be_checked(url: str, tmp_path: Path) -> None:
    result = run("store", "check", "--store", f"sqlite:///{tmp_path}/none.db")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"sharecoord: error: store: there is no {tmp_path}/none.db" in result.stderr
    (tmp_path / "s.db").write_text("no database")
    result = run("store", "check", "--store", url)
    assert result.exit_code == 2
    assert "is damaged" in result.stderr
    assert "Traceback" not in result.stderr
    assert result.exception is not None
    traced = run("--debug", "store", "check", "--store", url)
    assert type(traced.exception).__name__ == "StoreFatalError"


# -- backup and restore ---------------------------------------------------------------------------


def test_backup_and_restore(url: str, tmp_path: Path) -> None:
    file = tmp_path / "b.gz"
    result = run("store", "backup", str(file), "--store", url)
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(
        f"Backed up 15 rows to {file} (schema {HEAD_REVISION}, Kafka cluster kafka-1, "
    )
    again = run("store", "backup", str(file), "--store", url)
    assert again.exit_code == 1
    assert "exists already. Give another FILE, or --force" in again.stderr
    assert run("store", "backup", str(file), "--store", url, "--force").exit_code == 0

    refused = run("store", "restore", str(file), "--store", url)
    assert refused.exit_code == 1
    assert "is not empty: table share_group has rows" in refused.stderr
    assert run("store", "restore", str(file), "--store", url, "--force").exit_code == 0
    other = f"sqlite:///{tmp_path}/other.db"
    restored = run("store", "restore", str(file), env={"SHARECOORD_STORE__URL": other})
    assert restored.exit_code == 0, restored.stderr
    assert restored.stdout.startswith("Restored 15 rows of ")
    assert "first used after it begin at share.auto.offset.reset" in restored.stderr
    assert run("store", "check", "--store", other).exit_code == 0


def test_restore_into_the_store_of_another_cluster(url: str, tmp_path: Path) -> None:
    file, other = tmp_path / "b.gz", tmp_path / "other.db"
    assert run("store", "backup", str(file), "--store", url).exit_code == 0
    world = SqliteWorld(other)
    world.open(cluster_id="kafka-2")
    world.close()
    restore = ("store", "restore", str(file), "--store", f"sqlite:///{other}")
    refused = run(*restore, "--force")
    assert refused.exit_code == 1
    assert "cluster kafka-2, but" in refused.stderr
    assert "--force-cluster" in refused.stderr
    assert run(*restore, "--force-cluster").exit_code == 0


def test_a_store_that_is_in_use(url: str, tmp_path: Path) -> None:
    """A backup and a check run beside the coordinator; the others are refused."""
    file = tmp_path / "b.gz"
    world = SqliteWorld(tmp_path / "s.db")
    world.open(fleet=False)
    assert run("store", "backup", str(file), "--store", url).exit_code == 0
    assert run("store", "check", "--store", url).exit_code == 0
    for command in (("restore", str(file), "--force"), ("migrate",)):
        result = run("store", *command, "--store", url)
        assert result.exit_code == 1
        assert f"{tmp_path}/s.db is in use by pid " in result.stderr
    world.close()


# -- migrate --------------------------------------------------------------------------------------


def test_migrate_with_nothing_to_do(url: str, tmp_path: Path) -> None:
    result = run("store", "migrate", "--store", url)
    assert result.exit_code == 0
    assert result.stdout == (
        f"store {tmp_path}/s.db has schema {HEAD_REVISION} already; nothing to do.\n"
    )


def test_migrate_makes_the_schema_of_an_empty_database(tmp_path: Path) -> None:
    (tmp_path / "s.db").touch()
    result = run("store", "migrate", "--store", f"sqlite:///{tmp_path}/s.db")
    assert result.stdout == (
        f"Made schema {HEAD_REVISION} in store {tmp_path}/s.db, which was empty.\n"
    )
    missing = run("store", "migrate", "--store", f"sqlite:///{tmp_path}/none.db")
    assert missing.exit_code == 1
    assert "there is no" in missing.stderr


def test_migrate_says_from_where_to_where(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreAccess, "migrate", lambda _: Migration("0001", "0004"))
    result = run("store", "migrate", "--store", url)
    assert result.stdout.endswith("/s.db from schema 0001 to 0004.\n")


def test_migrate_refuses_a_newer_schema(url: str, tmp_path: Path) -> None:
    damage(tmp_path / "s.db", "UPDATE alembic_version SET version_num = '0007'")
    result = run("store", "migrate", "--store", url)
    assert result.exit_code == 1
    assert "has schema 0007, written by sharecoord 0.1.0" in result.stderr
    assert "Run the version that wrote it, or a newer one" in result.stderr


# -- the URL --------------------------------------------------------------------------------------


def test_the_store_is_that_of_serve(url: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"store.url: {url}\n")
    assert run("store", "check", "--config", str(file)).exit_code == 0
    state = {"XDG_STATE_HOME": str(tmp_path / "state")}
    missing = run("store", "check", env=state)
    assert missing.exit_code == 2
    assert f"there is no {tmp_path}/state/sharecoord/sharecoord.db" in missing.stderr


def test_what_is_no_store() -> None:
    result = run("store", "migrate", "--store", "memory:")
    assert result.exit_code == 1
    assert "memory: ends with its process" in result.stderr
    assert "it must be sqlite:///PATH" in run("store", "migrate", "--store", "redis://x").stderr


@pytest.mark.parametrize("command", [["check"], ["backup", "b.gz"], ["restore"], ["migrate"]])
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_server_that_is_away(
    scheme: str, command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """One line without the password, and no file."""
    monkeypatch.chdir(tmp_path)
    if command == ["restore"]:
        assert run("store", "backup", "whole.gz", "--store", url).exit_code == 0
        command = ["restore", "whole.gz"]
    (port,) = free_ports(1)
    away = f"{scheme}://ann:secret@127.0.0.1:{port}/app"
    result = run("store", *command, "--store", away)
    assert result.exit_code == (2 if command == ["check"] else 1)
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"sharecoord: error: store {scheme}+")
    assert "ann:***@" in line
    assert "secret" not in result.output
    assert not (tmp_path / "b.gz").exists()
