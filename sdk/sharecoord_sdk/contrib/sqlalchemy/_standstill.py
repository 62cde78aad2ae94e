"""SQL transactions of relays, which end when their relay stands still."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine


@contextmanager
def short_transaction(engine: Engine, standstill_s: float) -> Iterator[Connection]:
    """A transaction that PostgreSQL rolls back when no statement comes for so long.

    The rows of a relay that froze, or whose host is gone, would stay locked for as long as the
    database takes its connection for alive (by TCP's defaults two hours), and no other relay
    could take over. Databases without such a limit of a single transaction keep their own.
    """
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            limit_ms = max(1, int(standstill_s * 1000))
            connection.exec_driver_sql(
                f"SET LOCAL idle_in_transaction_session_timeout = {limit_ms}"
            )
        yield connection
