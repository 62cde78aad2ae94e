"""MySQL 8 and MariaDB 10.6 or newer, by PyMySQL. The tables are InnoDB's.

A change of the schema commits by itself here: a migration that fails half-way stays half-way.
"""

# ruff: noqa: D102 - `Dialect` documents the methods

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

import pymysql  # type: ignore[import-untyped]
import structlog
from sqlalchemy import Connection, Insert, Table, func
from sqlalchemy.dialects import mysql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.schema import CreateTable

from sharecoord.errors import InvalidConfigError
from sharecoord.store.dialects import READ_ONLY, server
from sharecoord.store.dialects.errors import StoreRefusedError
from sharecoord.store.dialects.errors_mysql import read_mysql
from sharecoord.store.tables import METADATA

log = structlog.get_logger(__name__)

OLDEST_MYSQL = (8, 0)
OLDEST_MARIADB = (10, 6)
IDLE_TIMEOUT_S = 3600
"""Silence after which the server ends a session; the server's default may be much shorter."""

STATEMENT_BYTES = 16 << 10
"""Most bytes of a statement with one payload that are not the payload: words, numbers, ids."""

WRITTEN_BYTES = 2
"""Most bytes of the statement per byte of payload: values are written as hex digits or escaped."""

# 64 characters at most, one name space for the whole server.
_KEY = "CONCAT('sharecoord.', LEFT(SHA2(CONCAT(DATABASE(), '/', %s), 256), 40))"
_COLLATIONS = {True: "utf8mb4_nopad_bin", False: "utf8mb4_0900_bin"}
"""Collation by whether the server is MariaDB. Bytes decide, and blanks at the end count."""
_SOCKET_OPTIONS = (
    ("TCP_KEEPIDLE", server.KEEPALIVE_IDLE_S),
    ("TCP_KEEPINTVL", server.KEEPALIVE_INTERVAL_S),
    ("TCP_KEEPCNT", server.KEEPALIVE_COUNT),
    ("TCP_USER_TIMEOUT", server.USER_TIMEOUT_MS),
)


@compiles(CreateTable, "mysql", "mariadb")
def _create_table(element: CreateTable, compiler: Any, **options: Any) -> str:
    """Whatever the database's defaults are, and also in migrations."""
    collation = _COLLATIONS[bool(compiler.dialect.is_mariadb)]
    text = compiler.visit_create_table(element, **options).rstrip()
    return f"{text} ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARSET=utf8mb4 COLLATE={collation}\n"


class MySqlDialect(server.ServerDialect):
    """MySQL or MariaDB: InnoDB, READ COMMITTED, strict, UTC, texts compared by their bytes."""

    read_error = staticmethod(read_mysql)
    driver_errors = (pymysql.Error, OSError)
    insert = staticmethod(mysql.insert)
    given = "inserted"
    ddl_commits = True

    # The server looks for a vanished machine only after hours; `keep` speaks every second.
    guard_sql = "SET SESSION wait_timeout = 20"
    try_lock_sql = f"SELECT GET_LOCK({_KEY}, 0)"
    unlock_sql = f"SELECT RELEASE_LOCK({_KEY})"
    session_sql = "SELECT CONNECTION_ID()"
    holder_sql = (
        f"SELECT ID, HOST FROM information_schema.PROCESSLIST WHERE ID = IS_USED_LOCK({_KEY})"
    )
    end_session_sql = "KILL %s"
    locked_sql = f"SELECT IS_USED_LOCK({_KEY}) IS NOT NULL"

    _packet_max_bytes: int | None = None
    """The server's max_allowed_packet; None = not known yet."""

    def fits(self, payload: Sequence[bytes | None]) -> bool:
        if self._packet_max_bytes is None:
            return True
        size = sum(len(part) for part in payload if part)
        return WRITTEN_BYTES * size <= self._packet_max_bytes - STATEMENT_BYTES

    def connect_args(self) -> dict[str, Any]:
        answer_s = self._answer_timeout_ms / 1000
        return {
            "charset": "utf8mb4",
            "connect_timeout": server.CONNECT_TIMEOUT_S,
            "read_timeout": answer_s,
            "write_timeout": answer_s,
        }

    def set_autocommit(self, driver_connection: Any) -> None:
        driver_connection.autocommit(True)  # noqa: FBT003 - the driver's interface

    def check_server(self, connection: Connection) -> None:
        core: Any = connection.dialect
        version = tuple(core.server_version_info[:2])
        name, oldest = ("MariaDB", OLDEST_MARIADB) if core.is_mariadb else ("MySQL", OLDEST_MYSQL)
        if version < oldest:
            raise InvalidConfigError(
                f"{self.where}: {name} {version[0]}.{version[1]} is too old. Use "
                f"{oldest[0]}.{oldest[1]} or newer"
            )
        flush, binlog, sync, packet_max_bytes = connection.exec_driver_sql(
            "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, "
            "@@max_allowed_packet"
        ).one()
        self._packet_max_bytes = int(packet_max_bytes)
        if int(flush) != 1:
            log.warning(
                server.NOT_DURABLE, fix="innodb_flush_log_at_trx_commit = 1", store=self.where
            )
        if int(binlog) and int(sync) != 1:
            log.warning(server.NOT_DURABLE, fix="sync_binlog = 1", store=self.where)
        if core.is_mariadb:
            connection.exec_driver_sql("SET SESSION max_statement_time = 0")
        driver: Any = connection.connection.driver_connection
        driver._read_timeout = server.OPEN_TIMEOUT_MS / 1000

    def check_schema(self, connection: Connection) -> None:
        core: Any = connection.dialect
        wanted = _COLLATIONS[bool(core.is_mariadb)]
        found = connection.exec_driver_sql(
            "SELECT TABLE_NAME, ENGINE, TABLE_COLLATION FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = DATABASE()"
        )
        for name, engine, collation in found:
            if name not in METADATA.tables:
                continue
            if engine != "InnoDB":
                raise InvalidConfigError(
                    f"{self.where}: table {name} is {engine}'s, which can not roll back. Run: "
                    f"ALTER TABLE {name} ENGINE=InnoDB"
                )
            if collation != wanted:
                raise InvalidConfigError(
                    f"{self.where}: table {name} has the collation {collation}, under which "
                    "different names of groups are the same. Run: ALTER TABLE "
                    f"{name} CONVERT TO CHARACTER SET utf8mb4 COLLATE {wanted}"
                )

    def now_ms(self, connection: Connection) -> int:
        sql = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(3)) * 1000 AS SIGNED)"
        return int(connection.exec_driver_sql(sql).scalar_one())

    def replacing(
        self, insert: Any, keys: Sequence[str], replaced: dict[str, Any], not_older_by: str | None
    ) -> Insert:
        if not_older_by is not None:
            stored = insert.table.c
            newer = insert.inserted[not_older_by] >= stored[not_older_by]
            replaced = {
                name: func.if_(newer, value, stored[name]) for name, value in replaced.items()
            }
            # Assignments run from left to right and see those before: what all look at goes last.
            replaced[not_older_by] = replaced.pop(not_older_by)
        made: Insert = insert.on_duplicate_key_update(list(replaced.items()))
        return made

    def insert_or_ignore(self, table: Table) -> Insert:
        # INSERT IGNORE would also ignore values that do not fit.
        same = next(column for column in table.columns if column.name != "id")
        return mysql.insert(table).on_duplicate_key_update({same.name: same})

    def connect(
        self, dialect: object, record: object, args: list[Any], params: dict[str, Any]
    ) -> Any:
        connection = pymysql.connect(*args, **params, defer_connect=True)
        try:
            connection.connect()
        except RuntimeError as error:
            connection._force_close()
            # MySQL's usual login without TLS needs a package that PyMySQL does not bring along.
            raise InvalidConfigError(
                f"{self.where}: {error}. Run: pip install cryptography, or connect with TLS "
                "(?ssl_ca=FILE)"
            ) from error
        except BaseException:
            # Cut off within the handshake it would leave its socket to the garbage collector.
            connection._force_close()
            raise
        own: socket.socket = connection._sock
        if own.family in (socket.AF_INET, socket.AF_INET6):
            for name, value in _SOCKET_OPTIONS:
                if hasattr(socket, name):  # Linux has all of them
                    own.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return connection

    def set_up(self, connection: Any, record: object) -> None:
        lock_s = max(1, self._lock_timeout_ms // 1000)
        with connection.cursor() as cursor:
            # Of hours that come twice the server's own time zone would make one.
            cursor.execute(
                "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
                f"time_zone = '+00:00', innodb_lock_wait_timeout = {lock_s}, "
                f"lock_wait_timeout = {2 * lock_s}, wait_timeout = {IDLE_TIMEOUT_S}"
            )
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute("SELECT @@global.read_only, @@version")
            read_only, version = cursor.fetchone()
            if "MariaDB" in str(version):
                standstill_s = max(1, self._standstill_ms // 1000)
                cursor.execute(
                    f"SET SESSION max_statement_time = {server.STATEMENT_TIMEOUT_MS / 1000}, "
                    f"idle_transaction_timeout = {standstill_s}"
                )
        if str(read_only) not in ("0", "OFF"):
            connection.close()
            raise StoreRefusedError(
                f"{self.where}: the server takes no writes: it is a replica, or read_only is on. "
                "Give the address of the primary"
            )

    def begin(self, connection: Connection) -> None:
        if connection.get_execution_options().get(READ_ONLY, False):
            # Several statements, one state.
            driver: Any = connection.connection.driver_connection
            with driver.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
                cursor.execute("START TRANSACTION READ ONLY")
