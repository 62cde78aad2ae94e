"""Makes the store that `--store URL` names. Only the driver of that database is imported."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from sharecoord.errors import InvalidConfigError
from sharecoord.ports import LOCK_TIMEOUT_MS, Store
from sharecoord.store.memory.store import MemoryStore

if TYPE_CHECKING:
    from sharecoord.store.dialects.server import ServerDialect

_EXAMPLES = (
    "sqlite:////var/lib/sharecoord/store.db (four slashes: an absolute path), "
    "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, mysql://USER:PASSWORD@HOST:PORT/DATABASE, or "
    "memory:"
)

# Scheme to the driver that is used for it, and the extra that installs that.
_SERVERS = {
    "postgresql": ("postgresql+psycopg", "postgres"),
    "postgres": ("postgresql+psycopg", "postgres"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mysql+pymysql", "mysql"),
}


def make_store(
    url: str,
    *,
    fleet: bool = False,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
) -> Store:
    """Makes the store that `url` names; nothing is touched before `open`.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path`, `postgresql://…`, `mysql://…`
            (MariaDB too) or `memory:`.
        fleet: Whether several coordinators use the store.
        lock_timeout_ms: How long a transaction waits for rows that another one has locked.

    Raises:
        InvalidConfigError: The URL is malformed, names a database or a mode that is not supported,
            or the database's driver is not installed.
    """
    scheme, colon, rest = url.partition(":")
    kind = scheme.partition("+")[0].lower()
    if not colon:
        raise InvalidConfigError(f"store: {url!r} is not a URL. Write {_EXAMPLES}")
    if kind == "memory":
        if rest.strip("/"):
            raise InvalidConfigError("store: memory: takes nothing after the colon")
        _refuse_fleet(kind, fleet=fleet)
        return MemoryStore()
    if kind == "sqlite":
        path = _sqlite_path(rest)
        _refuse_fleet(kind, fleet=fleet)
        # sqlalchemy takes 150 ms to import: not for `memory:`, nor for the command line's --help.
        from sharecoord.store.dialects import SqliteDialect
        from sharecoord.store.sql_store import SqlStore

        dialect = SqliteDialect(path, lock_timeout_ms=lock_timeout_ms)
        return SqlStore(dialect, name=f"store {dialect.path}")
    if kind in _SERVERS:
        return _make_server_store(kind, rest, fleet=fleet, lock_timeout_ms=lock_timeout_ms)
    # Only the scheme is repeated: the rest may hold a password.
    raise InvalidConfigError(f"store: {scheme}: is not a store that is known. Write {_EXAMPLES}")


def _make_server_store(kind: str, rest: str, *, fleet: bool, lock_timeout_ms: int) -> Store:
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    from sharecoord.store.sql_store import SqlStore

    scheme, extra = _SERVERS[kind]
    try:
        url = make_url(f"{scheme}:{rest}")
    except (ArgumentError, ValueError):
        # The text of the error would show a password.
        raise InvalidConfigError(
            f"store: this {kind}: URL cannot be read; special characters in user and password are "
            f"written as %XX. Write {_EXAMPLES}"
        ) from None
    if not url.database:
        raise InvalidConfigError(f"store: the {kind}: URL names no database. Write {_EXAMPLES}")
    try:
        dialect: ServerDialect
        if extra == "postgres":
            from sharecoord.store.dialects.postgres import PostgresDialect

            dialect = PostgresDialect(url, lock_timeout_ms=lock_timeout_ms)
        else:
            from sharecoord.store.dialects.mysql import MySqlDialect

            dialect = MySqlDialect(url, lock_timeout_ms=lock_timeout_ms)
    except ImportError as error:
        raise InvalidConfigError(
            f"store: the driver for {kind}: is not installed ({error}). Run: pip install "
            f"'sharecoord[{extra}]'"
        ) from None
    return SqlStore(dialect, name=dialect.where, fleet=fleet)


def _sqlite_path(rest: str) -> Path:
    """The path of `sqlite:` + rest, as SQLAlchemy reads such URLs."""
    location, question, _ = rest.partition("?")
    if question:
        raise InvalidConfigError("store: sqlite: takes no options after '?'. Remove them")
    name = unquote(location.removeprefix("///")) if location.startswith("///") else None
    if name is None and location != "//":
        raise InvalidConfigError(
            f"store: sqlite: needs three slashes before the path. Write {_EXAMPLES}"
        )
    if not name or name == ":memory:":
        raise InvalidConfigError(
            "store: SQLite without a file would lose everything at each connection. Write memory: "
            "for a store that ends with the process, or sqlite:///PATH"
        )
    if name.startswith("file:"):
        raise InvalidConfigError(
            "store: sqlite: takes a path, not a file: URI. Write sqlite:///PATH"
        )
    try:
        return Path(name).expanduser()
    except RuntimeError as error:
        raise InvalidConfigError(
            f"store: no home directory is known for {name} (HOME is not set). Write the whole path"
        ) from error


def _refuse_fleet(kind: str, *, fleet: bool) -> None:
    if fleet:
        raise InvalidConfigError(
            f"store: several coordinators cannot share {kind}:. Use one process, or a store on "
            "PostgreSQL or MySQL"
        )
