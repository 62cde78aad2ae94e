"""`AckOutbox`: the table, and the rows that a handler's own transaction writes to it."""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    delete,
    insert,
    select,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sharecoord_sdk._core.records import Message, origin_of

T = TypeVar("T")

#: A batch whose records another worker settles at the same time is begun anew so often.
TRIES: Final = 5


class DeliveryId(NamedTuple):
    """A delivery, by the coordinator's own names.

    The first six fields name the record in its present life, the same at each of its deliveries; a
    reset of the group's offsets begins another one.
    """

    group_id: str
    topic: str
    topic_id: str
    """32 hex digits; "" where the cluster has none."""
    partition_index: int
    record_offset: int
    replay_epoch: int
    member_id: str
    lock_token: int
    """Unsigned 64 bits; 0 = there is no lock: a test made the message."""


def delivery_id_of(message: Message) -> DeliveryId:
    """The delivery that a message came with; a test's message has no group, member or lock.

    Raises:
        ValueError: It names no record: the application made it, or it is an error.
    """
    origin = origin_of(message)
    if origin is None:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        if topic is None or partition is None or offset is None:
            raise ValueError("the message names no record: it has no topic, partition or offset")
        return DeliveryId("", topic, "", partition, offset, 0, "", 0)
    columns, row = origin
    lock = columns.lock_at(row)
    place, (group_id, member_id) = columns.key, columns.holder
    return DeliveryId(
        group_id,
        place.topic,
        place.topic_id.hex(),
        place.partition,
        columns.offset_at(row),
        columns.replay_epoch,
        member_id,
        0 if lock is None else lock.token,
    )


class AlreadySettledError(Exception):
    """Another worker has settled the record meanwhile: this transaction must be rolled back."""


class AckOutbox:
    """The table in the application's database, one for all groups; safe to share between threads.

    Args:
        name: Of the table.
        metadata: Where the table is to stand, for migrations of the application's own; by default
            it stands alone, and `create` makes it.
        schema: Of the table.
        relay_after_s: So long `AckRelay` leaves a row to its worker's own acknowledgement.
        clock: Seconds since the epoch.

    Raises:
        ValueError: `relay_after_s` is negative.
    """

    def __init__(
        self,
        name: str = "sharecoord_ack",
        *,
        metadata: MetaData | None = None,
        schema: str | None = None,
        relay_after_s: float = 10.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not relay_after_s >= 0:
            raise ValueError(f"relay_after_s must be 0 seconds or more, not {relay_after_s}")
        self._relay_after_ms = int(relay_after_s * 1000)
        self._clock = clock
        self.table = Table(
            name,
            MetaData() if metadata is None else metadata,
            Column("group_id", String(255), primary_key=True),
            Column("topic", String(249), primary_key=True),
            Column("topic_id", String(32), primary_key=True),
            Column("partition_index", Integer, primary_key=True, autoincrement=False),
            Column("record_offset", BigInteger, primary_key=True, autoincrement=False),
            # Grows when the group's offsets are reset: then the record is to be processed again.
            Column("replay_epoch", BigInteger, primary_key=True, autoincrement=False),
            Column("member_id", String(64), nullable=False),
            Column("lock_token", BigInteger, nullable=False),
            Column("settled_at_ms", BigInteger, nullable=False),
            # When it is said to the coordinator next; NULL = it is known to be finished there.
            Column("relay_at_ms", BigInteger),
            Index(f"ix_{name}_relay", "relay_at_ms"),
            Index(f"ix_{name}_settled", "settled_at_ms"),
            schema=schema,
        )

    def create(self, engine: Engine) -> None:
        """Makes the table unless it is there."""
        self.table.metadata.create_all(engine, tables=[self.table])

    async def create_async(self, engine: AsyncEngine) -> None:
        """`create` for an asyncio engine."""
        async with engine.begin() as connection:
            await connection.run_sync(self.table.create, checkfirst=True)

    # -- in the application's transaction -------------------------------------------------------

    def settle(self, connection: Connection, message: Message) -> bool:
        """Writes down that a record is processed, in a transaction that holds its effect.

        Args:
            connection: Of the transaction.
            message: The record.

        Returns:
            False = it was processed before: roll back, or leave its effect out; and return from
            the handler, so that it is acknowledged.

        Raises:
            AlreadySettledError: Another worker settles it at the same moment: roll back.
            ValueError: The message names no record.
        """
        return bool(self.settle_all(connection, [message]))

    def settle_all(self, connection: Connection, messages: Sequence[Message]) -> list[Message]:
        """`settle` for a batch; returns those that were not processed before, in order.

        Raises:
            AlreadySettledError: As `settle`.
            ValueError: As `settle`.
        """
        ids = [delivery_id_of(message) for message in messages]
        known = self._known(connection, ids)
        fresh = {each[:6]: each for each in ids if each[:6] not in known}
        if fresh:
            now_ms = int(self._clock() * 1000)
            # A test's message has no lock to acknowledge.
            relay_at_ms = now_ms + self._relay_after_ms
            rows = [
                {
                    **each._asdict(),
                    "settled_at_ms": now_ms,
                    "relay_at_ms": relay_at_ms if each.lock_token else None,
                }
                for each in fresh.values()
            ]
            try:
                connection.execute(insert(self.table), rows)
            except IntegrityError as error:
                raise AlreadySettledError(
                    "another worker has settled the record meanwhile; roll this transaction back"
                ) from error
        return [
            message
            for message, each in zip(messages, ids, strict=True)
            if fresh.pop(each[:6], None) is not None
        ]

    def _known(
        self, connection: Connection, ids: Sequence[DeliveryId]
    ) -> set[tuple[str, str, str, int, int, int]]:
        """The deliveries that have a row; one query for each partition."""
        columns = self.table.c
        found: set[tuple[str, str, str, int, int, int]] = set()
        by_place: dict[tuple[str, str, str, int], list[int]] = {}
        for each in ids:
            by_place.setdefault(each[:4], []).append(each.record_offset)
        for place, offsets in by_place.items():
            query = select(columns.record_offset, columns.replay_epoch).where(
                columns.group_id == place[0],
                columns.topic == place[1],
                columns.topic_id == place[2],
                columns.partition_index == place[3],
                columns.record_offset.between(min(offsets), max(offsets)),
            )
            found.update((*place, offset, epoch) for offset, epoch in connection.execute(query))
        return found

    async def settle_async(self, connection: AsyncConnection, message: Message) -> bool:
        """`settle` on an asyncio connection."""
        return await connection.run_sync(self.settle, message)

    async def settle_all_async(
        self, connection: AsyncConnection, messages: Sequence[Message]
    ) -> list[Message]:
        """`settle_all` on an asyncio connection."""
        return await connection.run_sync(self.settle_all, messages)

    def purge(self, connection: Connection, *, keep_s: float) -> int:
        """Deletes rows of records that are finished at the coordinator; returns how many.

        Args:
            connection: In a transaction.
            keep_s: Rows that are younger stay. It must be longer than any transaction of a
                handler can be open: a worker that stood still for longer, and then commits, would
                find no row in its way.
        """
        columns, before_ms = self.table.c, int((self._clock() - keep_s) * 1000)
        doomed = columns.relay_at_ms.is_(None) & (columns.settled_at_ms < before_ms)
        return connection.execute(delete(self.table).where(doomed)).rowcount

    # -- around a handler -----------------------------------------------------------------------

    def once(self, engine: Engine | AsyncEngine) -> Callable[[Callable[..., Any]], Any]:
        """Makes a handler out of a function that also takes the connection of a transaction.

        The transaction begins before the function, commits when it returns, and rolls back when
        it raises. The function is not called for a record that was processed before; of a batch it
        gets the others.

        Args:
            engine: Of the application's database; an `AsyncEngine` for an `async def` function.

        Returns:
            A decorator: `(connection, message)` or `(connection, messages)` becomes `(message)` or
            `(messages)`, for `Worker.handler`.

        Raises:
            TypeError: A plain function with an `AsyncEngine`, or the other way round.
        """

        def decorate(function: Callable[..., Any]) -> Any:
            is_async = inspect.iscoroutinefunction(function)
            if is_async is not isinstance(engine, AsyncEngine):
                name = getattr(function, "__qualname__", repr(function))
                kind, wanted = ("async", "an AsyncEngine") if is_async else ("plain", "an Engine")
                raise TypeError(f"{name} is a {kind} function: it needs {wanted}, not {engine!r}")
            return self._once_async(engine, function) if is_async else self._once(engine, function)

        return decorate

    def _once(self, engine: Engine | AsyncEngine, function: Callable[..., None]) -> Any:
        assert isinstance(engine, Engine), "checked"

        @functools.wraps(function)
        def handle(given: Message | list[Message]) -> None:
            for left in reversed(range(TRIES)):
                try:
                    with engine.begin() as connection:
                        found = self.settle_all(connection, _listed(given))
                        if (fresh := _left(given, found)) is not None:
                            function(connection, fresh)
                        return
                except AlreadySettledError:
                    if not left:
                        raise

        return _without_first(handle, function)

    def _once_async(
        self, engine: Engine | AsyncEngine, function: Callable[..., Awaitable[None]]
    ) -> Any:
        assert isinstance(engine, AsyncEngine), "checked"

        @functools.wraps(function)
        async def handle(given: Message | list[Message]) -> None:
            for left in reversed(range(TRIES)):
                try:
                    async with engine.begin() as connection:
                        found = await self.settle_all_async(connection, _listed(given))
                        if (fresh := _left(given, found)) is not None:
                            await function(connection, fresh)
                        return
                except AlreadySettledError:
                    if not left:
                        raise

        return _without_first(handle, function)


def _listed(given: Message | list[Message]) -> list[Message]:
    return [given] if isinstance(given, Message) else given


def _left(given: Message | list[Message], fresh: list[Message]) -> Message | list[Message] | None:
    """The fresh messages in the form in which they were given; None = there are none."""
    if not fresh:
        return None
    return fresh[0] if isinstance(given, Message) else fresh


def _without_first(handle: Callable[..., Any], function: Callable[..., Any]) -> Any:
    """Shows the handler's signature without the connection, for readers of type hints."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[1:]
    shown = cast("Any", handle)
    shown.__signature__ = signature.replace(parameters=parameters)
    return shown
