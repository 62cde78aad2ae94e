"""The SQL of `ProduceRelay`: which relay is at work, and which rows are on their way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, Engine, Row, delete, insert, select, update

from sharecoord_sdk._core.errors import IllegalStateException

from ._produce_outbox import ProduceOutbox
from ._standstill import short_transaction

#: Keys of one statement: databases limit its parameters, older SQLite to 999.
_KEYS_MAX: Final = 100

#: The only row of the relay's table.
_HEAD: Final = 1


class OvertakenError(Exception):
    """Another relay has taken over."""


class Batch(NamedTuple):
    """Rows that go in one Kafka transaction, in order."""

    token: str
    """Unique: a relay that finds the token in Kafka knows that these rows arrived."""
    rows: Sequence[Row[Any]]

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(row.topic for row in self.rows))


class BatchEnd(NamedTuple):
    """The end of a batch: it arrived, it did not, or Kafka never takes it."""

    token: str
    has_arrived: bool = False
    """False = it is certain that nothing of it did."""
    error: str | None = None
    """Why Kafka never takes it."""


class OutputRows:
    """The rows of an outbox, for one relay.

    The owner of the head, a row of its own, alone gives rows a batch: each such transaction changes
    the head first, on the condition that it is still the owner's. So a relay that stood still can
    not touch rows that another one has on their way.
    """

    def __init__(
        self, outbox: ProduceOutbox, engine: Engine, transactional_id: str, takeover_s: float
    ) -> None:
        self._engine = engine
        self._transactional_id = transactional_id
        self._takeover_s = takeover_s
        self._table = outbox.table
        self._head = outbox.relay_table
        self._me = uuid.uuid4().hex
        self._seen: tuple[int, float] | None = None
        """The other relay's last turn, and when it was seen first."""

    def take(self, clock: Callable[[], float]) -> bool:
        """Becomes the owner; False = another relay is at work.

        A relay counts as gone when it has given no sign of life for the time to a takeover, on
        this clock. That is courtesy; the head and Kafka's fence are what holds.

        Raises:
            IllegalStateException: Rows are on their way under another transactional id.
        """
        columns = self._head.c
        with short_transaction(self._engine, self._takeover_s) as connection:
            head = connection.execute(select(self._head).where(columns.id == _HEAD)).one_or_none()
            if head is None:
                mine = {"owner": self._me, "turn": 1, "transactional_id": self._transactional_id}
                connection.execute(insert(self._head), {"id": _HEAD, **mine})
                return True
            if head.owner not in (None, self._me) and not self._is_gone(head.turn, clock()):
                return False
            taken = connection.execute(
                update(self._head)
                .where(columns.id == _HEAD, columns.turn == head.turn)
                .values(owner=self._me, turn=head.turn + 1, transactional_id=self._transactional_id)
            )
            if head.transactional_id != self._transactional_id and self._in_flight(connection):
                raise IllegalStateException(
                    "transactional_id: outputs are on their way under "
                    f"{head.transactional_id!r}, and only its relay can tell whether they arrived; "
                    "run a relay with that one until it is idle, then change it"
                )
            return taken.rowcount == 1

    def _is_gone(self, turn: int, now_s: float) -> bool:
        if self._seen is None or self._seen[0] != turn:
            self._seen = (turn, now_s)
        return now_s - self._seen[1] >= self._takeover_s

    def beat(self) -> None:
        """Gives a sign of life; OvertakenError when another relay has taken over."""
        with short_transaction(self._engine, self._takeover_s) as connection:
            self._guard(connection)

    def leave(self) -> None:
        """Tells other relays that nobody is at work."""
        with short_transaction(self._engine, self._takeover_s) as connection:
            columns = self._head.c
            connection.execute(
                update(self._head)
                .where(columns.id == _HEAD, columns.owner == self._me)
                .values(owner=None, turn=columns.turn + 1)
            )

    def _guard(self, connection: Connection) -> None:
        """Keeps all other relays out until this transaction ends; OvertakenError as of `beat`."""
        columns = self._head.c
        changed = connection.execute(
            update(self._head)
            .where(columns.id == _HEAD, columns.owner == self._me)
            .values(turn=columns.turn + 1)
        )
        if changed.rowcount != 1:
            raise OvertakenError("another relay has taken over")

    # -- what a former relay left ---------------------------------------------------------------

    def in_flight(self) -> list[tuple[str, str]]:
        """Batches that a former relay left, and each of their topics."""
        with self._engine.connect() as connection:
            return self._in_flight(connection)

    def _in_flight(self, connection: Connection) -> list[tuple[str, str]]:
        columns = self._table.c
        query = select(columns.batch, columns.topic).where(columns.batch.is_not(None)).distinct()
        return [(row.batch, row.topic) for row in connection.execute(query)]

    def recover(self, arrived: Collection[str]) -> int:
        """Deletes batches that arrived, returns how many rows; the rows of all others wait again.

        Raises:
            OvertakenError: Another relay has taken over.
        """
        columns = self._table.c
        with short_transaction(self._engine, self._takeover_s) as connection:
            self._guard(connection)
            gone = delete(self._table).where(columns.batch.in_(arrived))
            deleted = connection.execute(gone).rowcount if arrived else 0
            waits = update(self._table).where(columns.batch.is_not(None)).values(batch=None)
            connection.execute(waits)
        return deleted

    # -- one batch after the other --------------------------------------------------------------

    def next(
        self, ended: BatchEnd | None, *, rows_max: int, bytes_max: int, held: Collection[str]
    ) -> Batch | None:
        """Settles the last batch, and puts the rows that are next on their way.

        Args:
            ended: What became of the last batch; None = there was none.
            rows_max: Rows of the new one; 0 = there is to be none.
            bytes_max: Their size, unless one row alone is larger.
            held: Topics whose rows wait.

        Returns:
            None = nothing waits.

        Raises:
            OvertakenError: Another relay has taken over.
        """
        if ended is None:
            with self._engine.connect() as connection:
                if not self._waiting(connection, min(rows_max, 1), bytes_max, held):
                    return None
        token = uuid.uuid4().hex
        with short_transaction(self._engine, self._takeover_s) as connection:
            self._guard(connection)
            if ended is not None:
                self._settle(connection, ended)
            ids = self._waiting(connection, rows_max, bytes_max, held)
            columns = self._table.c
            for at in range(0, len(ids), _KEYS_MAX):
                some = columns.id.in_(ids[at : at + _KEYS_MAX])
                connection.execute(update(self._table).where(some).values(batch=token))
            query = select(self._table).where(columns.batch == token).order_by(columns.id)
            rows = connection.execute(query).all() if ids else []
        return Batch(token, rows) if rows else None

    def _settle(self, connection: Connection, ended: BatchEnd) -> None:
        mine = self._table.c.batch == ended.token
        if ended.has_arrived:
            connection.execute(delete(self._table).where(mine))
        else:
            values = {"batch": None, "error": ended.error}
            connection.execute(update(self._table).where(mine).values(values))

    def _waiting(
        self, connection: Connection, rows_max: int, bytes_max: int, held: Collection[str]
    ) -> list[int]:
        if not rows_max:
            return []
        columns = self._table.c
        query = (
            select(columns.id, columns.size_bytes)
            .where(columns.batch.is_(None), columns.error.is_(None), columns.topic.not_in(held))
            .order_by(columns.id)
            .limit(rows_max)
        )
        ids: list[int] = []
        total = 0
        for row in connection.execute(query):
            total += row.size_bytes
            if ids and total > bytes_max:
                break
            ids.append(row.id)
        return ids
