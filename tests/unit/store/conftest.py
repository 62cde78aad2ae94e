"""A store on SQLite, and its backup."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.store_worlds import SqliteWorld
from tests.unit.store.backups import backup_of, filled


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SqliteWorld]:
    made = SqliteWorld(tmp_path / "s.db")
    yield made
    made.close()


@pytest.fixture
def backup(world: SqliteWorld, tmp_path: Path) -> Path:
    """The backup of a filled store."""
    filled(world)
    return backup_of(world.path, tmp_path / "b.gz")
