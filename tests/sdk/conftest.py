"""Fixtures of the SDK's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from sharecoord_sdk.contrib.sqlalchemy import ProduceOutbox, ProduceRelay
from sqlalchemy import Engine, create_engine, event

from tests.sdk.driver import Drivers
from tests.sdk.fake_coordinator import FakeCoordinator
from tests.sdk.fake_kafka import FakeBroker
from tests.sdk.output_world import CONF, Clock, Relays, created
from tests.sdk.worker_running import Make, Running


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


# -- outputs to Kafka: output_world.py -------------------------------------------------------------


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> FakeBroker:
    made = FakeBroker("invoices", "mails")
    monkeypatch.setattr(confluent_kafka, "Producer", made.producer)
    monkeypatch.setattr(confluent_kafka, "Consumer", made.consumer)
    return made


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    event.listen(made, "connect", lambda raw, _: raw.execute("PRAGMA synchronous = OFF"))
    yield made
    made.dispose()


@pytest.fixture
def outputs(engine: Engine, clock: Clock) -> ProduceOutbox:
    return created(ProduceOutbox(clock=clock), engine)


@pytest.fixture
def relay_of(engine: Engine, outputs: ProduceOutbox, broker: FakeBroker, clock: Clock) -> Relays:
    """Makes relays from the outbox to the broker."""

    def make(**settings: Any) -> ProduceRelay:
        given = {"transactional_id": "ledger", "clock": clock, **settings}
        return ProduceRelay(outputs, engine, CONF, **given)

    return make
