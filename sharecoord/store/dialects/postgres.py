"""PostgreSQL 12 or newer, by psycopg 3."""

# ruff: noqa: D102 - `Dialect` documents the methods

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import psycopg
import structlog
from psycopg.pq import TransactionStatus
from psycopg.waiting import Ready
from sqlalchemy import Connection
from sqlalchemy.dialects import postgresql

from sharecoord.errors import InvalidConfigError
from sharecoord.store.dialects import READ_ONLY, server
from sharecoord.store.dialects.errors import StoreRefusedError
from sharecoord.store.dialects.errors_postgres import read_postgres
from sharecoord.store.dialects.postgres_text import register_text

log = structlog.get_logger(__name__)

OLDEST_VERSION = 120000

_KEY = "hashtextextended(concat('sharecoord/', current_schema(), '/', %s::text), 0)"
_LOCK_ROWS = (
    "FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid "
    "WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()) "
    f"AND ((l.classid::bigint << 32) | l.objid::bigint) = {_KEY}"
)
# One round trip: makes COMMIT durable where somebody had switched that off (a stronger setting of
# the user stays), and tells whether the server takes writes.
_SET_UP = (
    "SELECT current_setting('transaction_read_only') = 'on', CASE WHEN "
    "current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', "
    "false) END"
)
_POLL_S = 0.25
_PIPELINE = "sharecoord_pipeline"


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that does not wait for ever: a frozen server keeps its TCP connections."""

    answer_timeout_s: float = 60.0

    def wait(self, gen: Any, interval: float = _POLL_S, timeout: float | None = None) -> Any:
        """As the base class; OperationalError when no answer came in time."""
        return super().wait(self._bounded(gen), interval=min(interval, _POLL_S))

    def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
        end = time.monotonic() + self.answer_timeout_s
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready == Ready.NONE and time.monotonic() >= end:
                    # What comes later must not be taken for the answer to something else.
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"no answer of the server within {self.answer_timeout_s:g} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class SynchronisedCursor(psycopg.Cursor[Any]):
    """A cursor whose statement over many rows tells the server after each of them that it waits.

    psycopg's `executemany` makes a pipeline with one Sync at its end. A process that is frozen
    before that end keeps its locked rows until it goes on: between two Syncs a session is `active`
    and no timeout of PostgreSQL up to 16 ends it.
    """

    def executemany(
        self, query: Any, params_seq: Iterable[Any], *, returning: bool = False
    ) -> None:
        """As the base class, with a Sync after each row; `rowcount` is of the last row."""
        assert not returning, "SQLAlchemy asks for no rows of an executemany"
        with self.connection.pipeline() as pipeline:
            for params in params_seq:
                self.execute(query, params)
                pipeline.sync()


class PostgresDialect(server.ServerDialect):
    """PostgreSQL: READ COMMITTED, `synchronous_commit` at least `on`, answers within seconds."""

    read_error = staticmethod(read_postgres)
    driver_errors = (psycopg.Error,)
    insert = staticmethod(postgresql.insert)

    try_lock_sql = f"SELECT pg_try_advisory_lock({_KEY})"
    unlock_sql = f"SELECT pg_advisory_unlock({_KEY})"
    session_sql = "SELECT pg_backend_pid()"
    holder_sql = f"SELECT l.pid, coalesce(host(a.client_addr), 'a local socket') {_LOCK_ROWS}"
    end_session_sql = "SELECT pg_terminate_backend(%s)"
    locked_sql = f"SELECT count(*) > 0 {_LOCK_ROWS}"

    def set_autocommit(self, driver_connection: Any) -> None:
        driver_connection.autocommit = True

    def check_server(self, connection: Connection) -> None:
        version = int(connection.exec_driver_sql("SHOW server_version_num").scalar_one())
        if version < OLDEST_VERSION:
            raise InvalidConfigError(
                f"{self.where}: PostgreSQL {version // 10000} is too old. Use 12 or newer"
            )
        for name in ("fsync", "full_page_writes"):
            if connection.exec_driver_sql(f"SHOW {name}").scalar() == "off":
                log.warning(server.NOT_DURABLE, fix=f"{name} = on", store=self.where)
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar()
        if encoding != "UTF8":
            raise InvalidConfigError(
                f"{self.where}: the database has the encoding {encoding}. Make one with CREATE "
                "DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )
        for name in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.exec_driver_sql(f"SET LOCAL {name} = {server.OPEN_TIMEOUT_MS}")
        driver: Any = connection.connection.driver_connection
        driver.answer_timeout_s = server.OPEN_TIMEOUT_MS / 1000

    @contextlib.contextmanager
    def together(self, connection: Connection) -> Iterator[None]:
        driver: Any = connection.connection.driver_connection
        with driver.pipeline() as connection.info[_PIPELINE]:
            yield
        del connection.info[_PIPELINE]

    def catch_up(self, connection: Connection) -> None:
        # Also what lets the server count how long we stand still with locked rows: within a
        # pipeline that is not synchronised it knows no limit for that.
        pipeline = connection.info.get(_PIPELINE)
        if pipeline is not None:
            pipeline.sync()

    def may_have_committed(self, connection: Connection) -> bool:
        if connection.invalidated:
            return True
        # After a failed statement the server leaves out the COMMIT behind it, and says so.
        driver: Any = connection.connection.driver_connection
        return bool(driver.info.transaction_status != TransactionStatus.INERROR)

    def now_ms(self, connection: Connection) -> int:
        sql = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        return int(connection.exec_driver_sql(sql).scalar_one())

    def connect_args(self) -> dict[str, Any]:
        """Ours where the URL says nothing; of `options` the later one wins, so the URL's."""
        settings = {
            "default_transaction_isolation": "read\\ committed",
            "lock_timeout": self._lock_timeout_ms,
            "statement_timeout": server.STATEMENT_TIMEOUT_MS,
            "idle_in_transaction_session_timeout": self._standstill_ms,
            # For the server's end: when our machine is gone, its locks must not stay.
            "tcp_keepalives_idle": server.KEEPALIVE_IDLE_S,
            "tcp_keepalives_interval": server.KEEPALIVE_INTERVAL_S,
            "tcp_keepalives_count": server.KEEPALIVE_COUNT,
            "tcp_user_timeout": server.USER_TIMEOUT_MS,
            # Everything goes by primary key or an index, and the tables change faster than
            # their statistics: a plan made for an empty table must not scan a full one.
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "plan_cache_mode": "force_generic_plan",
            "jit": "off",
        }
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        ours = {
            "connect_timeout": server.CONNECT_TIMEOUT_S,
            "application_name": "sharecoord",
            "keepalives": 1,
            "keepalives_idle": server.KEEPALIVE_IDLE_S,
            "keepalives_interval": server.KEEPALIVE_INTERVAL_S,
            "keepalives_count": server.KEEPALIVE_COUNT,
            "tcp_user_timeout": server.USER_TIMEOUT_MS,
            "client_encoding": "utf8",
        }
        theirs = self.url.query
        made = {name: value for name, value in ours.items() if name not in theirs}
        return {**made, "options": f"{options} {_text(theirs.get('options', ''))}".strip()}

    def connect(
        self, dialect: object, record: object, args: list[Any], params: dict[str, Any]
    ) -> BoundedConnection:
        connection = BoundedConnection.connect(*args, **params)
        connection.answer_timeout_s = self._answer_timeout_ms / 1000
        connection.cursor_factory = SynchronisedCursor
        register_text(connection)
        return connection

    def set_up(self, connection: BoundedConnection, record: object) -> None:
        connection.autocommit = True
        row = connection.execute(_SET_UP).fetchone()
        connection.autocommit = False
        if row is not None and row[0]:
            connection.close()
            raise StoreRefusedError(
                f"{self.where}: the server takes no writes: it is a standby, or "
                "default_transaction_read_only is on. Give the address of the primary, or list "
                "all hosts with ?target_session_attrs=read-write"
            )

    def begin(self, connection: Connection) -> None:
        if connection.get_execution_options().get(READ_ONLY, False):
            # Several statements, one state. Goes with the driver's BEGIN.
            driver: Any = connection.connection.driver_connection
            driver.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            driver.read_only = True


def _text(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else " ".join(value)
