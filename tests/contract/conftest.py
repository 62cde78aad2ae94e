"""Each test of the store suite runs over every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.store_worlds import MemoryWorld, ServerWorld, SqliteWorld, World
from tests.databases import MARIADB

SERVERS = ["postgresql", pytest.param("mariadb", marks=MARIADB)]


@pytest.fixture(params=["memory", "sqlite", *SERVERS])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """An empty database of each kind."""
    made: World
    if request.param == "memory":
        made = MemoryWorld()
    elif request.param == "sqlite":
        made = SqliteWorld(tmp_path / "s.db")
    else:
        made = ServerWorld(request.getfixturevalue(request.param).url)
    yield made
    made.close()


@pytest.fixture(params=SERVERS)
def server_world(request: pytest.FixtureRequest) -> Iterator[ServerWorld]:
    """An empty space on each server."""
    made = ServerWorld(request.getfixturevalue(request.param).url)
    yield made
    made.close()


@pytest.fixture(params=[pytest.param("mariadb", marks=MARIADB)])
def mariadb_world(request: pytest.FixtureRequest) -> Iterator[ServerWorld]:
    """An empty space on MariaDB, where it differs from PostgreSQL."""
    made = ServerWorld(request.getfixturevalue(request.param).url)
    yield made
    made.close()
