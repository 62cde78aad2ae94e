"""A database with an outbox of outputs, without a Kafka; the fixtures are in conftest.py."""

from __future__ import annotations

from typing import Any, TypeVar

from sharecoord_sdk.contrib.sqlalchemy import AckOutbox, ProduceOutbox, ProduceReport
from sqlalchemy import Engine, select

NOTHING = ProduceReport(0, 0)
STANDBY = ProduceReport(0, 0, is_standby=True)
CONF = {"bootstrap.servers": "localhost:9092"}


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now_s


Outbox = TypeVar("Outbox", AckOutbox, ProduceOutbox)

Relays = Any
"""Makes relays of the outbox, with settings."""


def created(outbox: Outbox, engine: Engine) -> Outbox:
    """The outbox with its tables; a second time does nothing."""
    outbox.create(engine)
    outbox.create(engine)
    return outbox


def put(engine: Engine, outputs: ProduceOutbox, topic: str, *values: bytes) -> None:
    with engine.begin() as connection:
        for value in values:
            outputs.produce(connection, topic, value)


def waiting(engine: Engine, outputs: ProduceOutbox) -> list[tuple[bytes, str | None]]:
    """Value and error of each row."""
    columns = outputs.table.c
    query = select(columns.record_value, columns.error).order_by(columns.id)
    with engine.connect() as connection:
        return [tuple(row) for row in connection.execute(query)]


def owner(engine: Engine, outputs: ProduceOutbox) -> Any:
    with engine.connect() as connection:
        return connection.execute(select(outputs.relay_table.c.owner)).scalar()
