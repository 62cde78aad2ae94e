"""Fixtures of the SDK's tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from .driver import Drivers
from .fake_coordinator import FakeCoordinator
from .worker_running import Make, Running


@pytest.fixture
def coordinator() -> Iterator[FakeCoordinator]:
    fake = FakeCoordinator()
    yield fake
    fake.stop()


@pytest.fixture(params=["sync", "async"])
def drivers(request: pytest.FixtureRequest, coordinator: FakeCoordinator) -> Iterator[Drivers]:
    made = Drivers(request.param)
    yield made
    # A test that made the coordinator silent must not make `close` wait for it.
    coordinator.script.answers_acknowledgements = True
    coordinator.script.answers_leaves = True
    made.finish()


@pytest.fixture
def make(coordinator: FakeCoordinator) -> Iterator[Make]:
    """Makes workers, and stops what a test left running."""
    made: list[Running] = []

    def make_one(**settings: Any) -> Running:
        made.append(Running(coordinator, **settings))
        return made[-1]

    yield make_one
    for running in made:
        running.stop()
