"""From `--store URL` to a store. Drivers are imported only for the database that is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from sharecoord.errors import InvalidConfigError
from sharecoord.ports import Store
from sharecoord.store.clock import wall_clock_ms
from sharecoord.store.memory_store import MemoryStore

LOCK_TIMEOUT_MS = 2000

_EXAMPLES = "sqlite:////var/lib/sharecoord/store.db (four slashes: an absolute path), or memory:"

_SERVERS = {
    "postgresql": "PostgreSQL",
    "postgres": "PostgreSQL",
    "mysql": "MySQL",
    "mariadb": "MariaDB",
}


def make_store(
    url: str,
    *,
    fleet: bool = False,
    clock_ms: Callable[[], int] = wall_clock_ms,
    lock_timeout_ms: int = LOCK_TIMEOUT_MS,
    may_need_downtime: bool = False,
) -> Store:
    """Makes the store that `url` names; nothing is touched before `open`.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path` or `memory:`.
        fleet: Whether several coordinators use the store.
        clock_ms: Clock of embedded stores, milliseconds since the epoch.
        lock_timeout_ms: How long a transaction waits for rows that another one has locked.
        may_need_downtime: Whether `open` runs migrations that need all coordinators to be down
            (`sharecoord store migrate`).

    Raises:
        InvalidConfigError: The URL is malformed, or its database is not supported (so).
    """
    scheme, colon, rest = url.partition(":")
    kind = scheme.partition("+")[0].lower()
    if not colon:
        raise InvalidConfigError(f"store: {url!r} is not a URL. Write {_EXAMPLES}")
    if kind == "memory":
        if rest.strip("/"):
            raise InvalidConfigError("store: memory: takes nothing after the colon")
        _refuse_fleet(kind, fleet=fleet)
        return MemoryStore(clock_ms=clock_ms)
    if kind == "sqlite":
        path = _sqlite_path(rest)
        _refuse_fleet(kind, fleet=fleet)
        return _make_sqlite_store(path, clock_ms, lock_timeout_ms, may_need_downtime)
    # Only the scheme is repeated: the rest may hold a password.
    if kind in _SERVERS:
        raise InvalidConfigError(
            f"store: {_SERVERS[kind]} ({scheme}:) is not supported by this release yet. Write "
            f"{_EXAMPLES}"
        )
    raise InvalidConfigError(f"store: {scheme}: is not a store that is known. Write {_EXAMPLES}")


def _make_sqlite_store(
    path: Path,
    clock_ms: Callable[[], int],
    lock_timeout_ms: int,
    may_need_downtime: bool,  # noqa: FBT001 - private
) -> Store:
    # sqlalchemy takes 150 ms to import: not for `memory:`, nor for the command line's --help.
    from sharecoord.store.dialects import SqliteDialect
    from sharecoord.store.sql_store import SqlStore

    dialect = SqliteDialect(path, clock_ms=clock_ms, lock_timeout_ms=lock_timeout_ms)
    return SqlStore(dialect, name=f"store {dialect.path}", may_need_downtime=may_need_downtime)


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
    return Path(name).expanduser()


def _refuse_fleet(kind: str, *, fleet: bool) -> None:
    if fleet:
        raise InvalidConfigError(
            f"store: several coordinators cannot share {kind}:. Use one process, or a store on "
            "PostgreSQL or MySQL"
        )
