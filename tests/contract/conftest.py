"""Each test of the store suite runs over every implementation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.store_worlds import MemoryWorld, SqliteWorld, World


@pytest.fixture(params=["memory", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """An empty database of each kind."""
    made: World = MemoryWorld() if request.param == "memory" else SqliteWorld(tmp_path / "s.db")
    yield made
    made.close()
