"""`ProduceOutbox`: the table, and the records for Kafka that a handler's own transaction writes."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    insert,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from sharecoord_sdk._core.texts import to_bytes

Headers = Mapping[str, bytes | str | None] | Iterable[tuple[str, bytes | str | None]]

#: The largest `max_record_bytes`: headers, key and value of one record.
RECORD_BYTES_MAX: Final = 256 << 20

#: Kafka adds about so much to a record, and to each header.
OVERHEAD_BYTES: Final = 70
HEADER_BYTES: Final = 10

_PARTITION_MAX: Final = (1 << 31) - 1
_TIMESTAMP_MAX_MS: Final = (1 << 63) - 1
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")

_ROW_ID: Final = BigInteger().with_variant(Integer(), "sqlite")
_LONG_TEXT: Final = Text().with_variant(mysql.LONGTEXT(), "mysql", "mariadb")
_LONG_BLOB: Final = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql", "mariadb")


class ProduceOutbox:
    """Records that wait for Kafka, in the application's database; safe to share between threads.

    Args:
        name: Of the table; a second one, `<name>_relay`, says who relays it.
        metadata: Where the tables are to stand, for migrations of the application's own; by
            default they stand alone, and `create` makes them.
        schema: Of the tables.
        max_record_bytes: A larger record is refused by `produce`, while its effect can still be
            rolled back. Not more than `max.message.bytes` of the topics, which is 1 MiB by default.
        clock: Seconds since the epoch.

    Raises:
        ValueError: `max_record_bytes` is not 1 to 268435456.
    """

    def __init__(
        self,
        name: str = "sharecoord_output",
        *,
        metadata: MetaData | None = None,
        schema: str | None = None,
        max_record_bytes: int = 1_000_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not 1 <= max_record_bytes <= RECORD_BYTES_MAX:
            text = f"max_record_bytes must be 1 to {RECORD_BYTES_MAX}, not {max_record_bytes}"
            raise ValueError(text)
        self._max_record_bytes = max_record_bytes
        self._clock = clock
        metadata = MetaData() if metadata is None else metadata
        self.table = Table(
            name,
            metadata,
            # The order of the calls in one transaction, and of transactions one after the other.
            Column("id", _ROW_ID, primary_key=True, autoincrement=True),
            Column("topic", String(249), nullable=False),
            # NULL = by the key, as the producer's partitioner has it.
            Column("partition_index", Integer),
            Column("record_key", _LONG_BLOB),
            Column("record_value", _LONG_BLOB),
            # JSON, pairs of name and value; a byte of a value is the character of that number.
            Column("headers", _LONG_TEXT, nullable=False),
            Column("timestamp_ms", BigInteger, nullable=False),
            Column("size_bytes", Integer, nullable=False),
            # The token of the Kafka transaction that the row is part of; NULL = it waits.
            Column("batch", String(32)),
            # Why Kafka never takes it; it stays until somebody decides about it.
            Column("error", _LONG_TEXT),
            Index(f"ix_{name}_batch", "batch"),
            schema=schema,
            # An id is not given twice, so that a later row never has a lower one.
            sqlite_autoincrement=True,
        )
        self.relay_table = Table(
            f"{name}_relay",
            metadata,
            Column("id", Integer, primary_key=True, autoincrement=False),
            # The relay at work; NULL = it went, and left nothing open.
            Column("owner", String(32)),
            # Grows with every change and sign of life.
            Column("turn", BigInteger, nullable=False),
            Column("transactional_id", String(249), nullable=False),
            schema=schema,
        )

    def create(self, engine: Engine) -> None:
        """Makes the tables unless they are there."""
        tables = [self.table, self.relay_table]
        self.table.metadata.create_all(engine, tables=tables)

    async def create_async(self, engine: AsyncEngine) -> None:
        """`create` for an asyncio engine."""
        async with engine.begin() as connection:
            for table in (self.table, self.relay_table):
                await connection.run_sync(table.create, checkfirst=True)

    # -- in the application's transaction -------------------------------------------------------

    def produce(
        self,
        connection: Connection,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Writes a record down that `ProduceRelay` sends once this transaction is committed.

        Args:
            connection: Of the transaction that holds the effect.
            topic: Where to.
            value: The value; text is sent as UTF-8; None = a tombstone.
            key: The key.
            headers: Pairs of name and value, or a mapping.
            partition: Of the topic; None = by the key, as a producer has it.
            timestamp_ms: Milliseconds since the epoch; None = now.

        Raises:
            TypeError: An argument of another type; the connection of an asyncio engine.
            ValueError: A topic that can not be, a number out of bounds, a record over
                `max_record_bytes`.
        """
        given: object = connection
        if isinstance(given, AsyncConnection):
            # `execute` of this class would only make a coroutine.
            raise TypeError("connection: this is one of an asyncio engine, use produce_async")
        row = self._row(topic, value, key, headers, partition, timestamp_ms)
        connection.execute(insert(self.table), row)

    async def produce_async(
        self,
        connection: AsyncConnection,
        topic: str,
        value: bytes | str | None = None,
        key: bytes | str | None = None,
        *,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """`produce` on an asyncio connection."""
        row = self._row(topic, value, key, headers, partition, timestamp_ms)
        await connection.execute(insert(self.table), row)

    def retry_refused(self, connection: Connection) -> int:
        """Queues records again that Kafka refused, once the reason is gone; returns how many.

        They are sent in the order of their ids, behind what was sent meanwhile. Delete with SQL
        what is not to be sent any more.

        Args:
            connection: In a transaction.
        """
        columns = self.table.c
        again = update(self.table).where(columns.error.is_not(None)).values(error=None)
        return connection.execute(again).rowcount

    def _row(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None,
        headers: Headers | None,
        partition: int | None,
        timestamp_ms: int | None,
    ) -> dict[str, object]:
        if not isinstance(topic, str):
            raise TypeError(f"topic must be str, not {type(topic).__name__}")
        if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
            raise ValueError(
                f"topic: Kafka has no topic {topic!r}: use a-z, A-Z, 0-9, '.', '_', '-'"
            )
        found = _headers(headers)
        record_key, record_value = _bytes("key", key), _bytes("value", value)
        sizes = [len(record_key or b""), len(record_value or b"")]
        sizes += [len(name.encode()) + len(each or b"") + HEADER_BYTES for name, each in found]
        size = OVERHEAD_BYTES + sum(sizes)
        if size > self._max_record_bytes:
            raise ValueError(
                f"a record of {size} bytes for {topic!r} is over max_record_bytes "
                f"({self._max_record_bytes}); raise it, and the topic's max.message.bytes"
            )
        now_ms = int(self._clock() * 1000)
        return {
            "topic": topic,
            "partition_index": _number("partition", partition, 0, _PARTITION_MAX),
            "record_key": record_key,
            "record_value": record_value,
            "headers": headers_to_text(found),
            "timestamp_ms": _number("timestamp_ms", timestamp_ms, 1, _TIMESTAMP_MAX_MS) or now_ms,
            "size_bytes": size,
        }


def headers_to_text(headers: Iterable[tuple[str, bytes | None]]) -> str:
    return json.dumps([[n, None if v is None else v.decode("latin-1")] for n, v in headers])


def headers_from_text(text: str) -> list[tuple[str, bytes | None]]:
    return [(n, None if v is None else v.encode("latin-1")) for n, v in json.loads(text)]


def _headers(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    if headers is None:
        return []
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    found = []
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise TypeError(f"headers must be pairs of a name and a value, not {pair!r}")
        to_bytes("header name", pair[0])
        found.append((pair[0], _bytes(f"header {pair[0]!r}", pair[1])))
    return found


def _bytes(name: str, given: object) -> bytes | None:
    if given is None or isinstance(given, bytes):
        return given
    if isinstance(given, str):
        return to_bytes(name, given)
    raise TypeError(f"{name} must be bytes, str or None, not {type(given).__name__}")


def _number(name: str, given: int | None, least: int, most: int) -> int | None:
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int):
        raise TypeError(f"{name} must be int or None, not {type(given).__name__}")
    if not least <= given <= most:
        raise ValueError(f"{name} must be {least} to {most}, or None, not {given}")
    return given
