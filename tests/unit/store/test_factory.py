"""Store URLs: what they make, and what a wrong one is told."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.store.factory import make_store
from sharecoord.store.memory.store import MemoryStore
from sharecoord.store.sql_store import SqlStore


def test_memory() -> None:
    assert isinstance(make_store("memory:"), MemoryStore)
    assert isinstance(make_store("memory://"), MemoryStore)


def test_embedded_stores_have_the_clock_of_the_host(tmp_path: Path) -> None:
    for url in ("memory:", f"sqlite:///{tmp_path}/s.db"):
        store = make_store(url)
        store.open(coordinator_id="one", cluster_id="", address="one:1", version="0.1.0")
        assert abs(store.now_ms() - 1_000 * time.time()) < 60_000
        store.close()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:////var/lib/s.db", "/var/lib/s.db"),
        ("sqlite+pysqlite:////var/lib/s.db", "/var/lib/s.db"),
        ("SQLITE:////var/lib/with%20space.db", "/var/lib/with space.db"),
        ("sqlite:///below/s.db", "{cwd}/below/s.db"),
        ("sqlite:///~/s.db", "{home}/s.db"),
    ],
)
def test_sqlite_paths(url: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    store = make_store(url)
    assert isinstance(store, SqlStore)
    wanted = path.format(cwd=tmp_path.resolve(), home=(tmp_path / "home").resolve())
    assert store.name == f"store {wanted}"
    # Nothing was made before `open`.
    assert not (tmp_path / "below").exists()


@pytest.mark.parametrize("fleet", [False, True])
@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://user:secret@db/s", "postgresql+psycopg://user:***@db/s"),
        ("postgres://user:secret@db:99/s", "postgresql+psycopg://user:***@db:99/s"),
        ("postgresql+psycopg://user:secret@db/s", "postgresql+psycopg://user:***@db/s"),
        ("mysql://user:secret@db/s", "mysql+pymysql://user:***@db/s"),
        ("mariadb://user:secret@db/s", "mysql+pymysql://user:***@db/s"),
        ("mysql+pymysql://user:secret@db/s", "mysql+pymysql://user:***@db/s"),
    ],
)
def test_servers(url: str, name: str, fleet: bool) -> None:
    store = make_store(url, fleet=fleet)
    assert isinstance(store, SqlStore)
    assert store.name == f"store {name}"
    store.close()


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("postgresql://u@db/s", "psycopg", "postgres"),
        ("mysql://u@db/s", "pymysql", "mysql"),
    ],
)
def test_a_missing_driver_is_named(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "postgres" if extra == "postgres" else "mysql"
    monkeypatch.delitem(sys.modules, f"sharecoord.store.dialects.{kind}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidConfigError, match=rf"pip install 'sharecoord\[{extra}\]'"):
        make_store(url)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("state.db", "is not a URL. Write sqlite:"),
        ("", "is not a URL"),
        ("sqlite://", "memory:"),
        ("sqlite:///", "memory:"),
        ("sqlite:///:memory:", "memory:"),
        ("sqlite:/var/lib/s.db", "three slashes"),
        ("sqlite://var/lib/s.db", "three slashes"),
        ("sqlite:///s.db?mode=ro", "no options"),
        ("sqlite:///file:s.db", "not a file: URI"),
        ("memory:somewhere", "takes nothing"),
        ("postgresql://user:secret@db", "names no database"),
        ("mysql://user:secret@db/", "names no database"),
        ("postgresql://user:secret@db:port/s", "cannot be read; special characters"),
        ("oracle://user:secret@db/s", "oracle: is not a store that is known"),
    ],
)
def test_wrong_urls_name_the_fix_and_no_password(url: str, message: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        make_store(url)
    assert message in caught.value.message
    assert caught.value.message.startswith("store: ")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["memory:", "sqlite:////var/lib/s.db"])
def test_a_fleet_needs_a_server(url: str) -> None:
    with pytest.raises(InvalidConfigError, match="PostgreSQL or MySQL"):
        make_store(url, fleet=True)
