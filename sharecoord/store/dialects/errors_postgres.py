"""Reads errors of psycopg by SQLSTATE; errors of connecting have none, only a text."""

from __future__ import annotations

from sharecoord.store.dialects.errors import Kind, Reading

_LOST = "the connection is lost or could not be made; is the server up, and the network?"
_STARTING = "the server starts, stops or recovers from a crash; wait for it"
_READ_ONLY = (
    "the server takes no writes: it is a standby, or default_transaction_read_only is on. Give the "
    "address of the primary, or list all hosts with ?target_session_attrs=read-write"
)
_TOO_MANY = "the server has no connection left; raise max_connections, or end other clients"
_LOGIN = "the server does not accept this user or password; correct the URL, or pg_hba.conf"
_DATABASE = "the database does not exist; make it with CREATE DATABASE, or correct the URL"
_RIGHTS = (
    "this user may not do that; make it the owner of an empty database, or grant CREATE on its "
    "schema and all rights on its tables"
)
_DAMAGED = "data of the server are damaged. Stop all coordinators, then restore a backup"

# Refused before anything was written, or rolled back by the server: COMMIT says these only when
# it has not happened.
_CODES = {
    "40001": (Kind.CONFLICT, "a concurrent transaction came first"),
    "40P01": (Kind.CONFLICT, "deadlock with another transaction"),
    "40002": (Kind.CONFLICT, "rolled back by the server"),
    "55P03": (Kind.NOT_COMMITTED, "a row or a lock is held by another transaction for too long"),
    "25006": (Kind.REFUSED, _READ_ONLY),
    "42501": (Kind.REFUSED, _RIGHTS),
    "3F000": (Kind.REFUSED, "the schema does not exist; make it with CREATE SCHEMA"),
    "3D000": (Kind.REFUSED, _DATABASE),
    "XX001": (Kind.FATAL, _DAMAGED),
    "XX002": (Kind.FATAL, _DAMAGED),
    "53100": (Kind.PASSING, "the disk of the server is full; free space"),
    "53200": (Kind.PASSING, "the server is out of memory"),
    "53300": (Kind.PASSING, _TOO_MANY),
    "57014": (Kind.PASSING, "a statement took longer than statement_timeout, or was cancelled"),
    "57P01": (Kind.PASSING, "an administrator ended the connection or stops the server"),
    "57P03": (Kind.PASSING, _STARTING),
}
_CLASSES = {
    "08": (Kind.PASSING, _LOST),
    "28": (Kind.REFUSED, _LOGIN),
    "53": (Kind.PASSING, "the server is short of something"),
    "57": (Kind.PASSING, _STARTING),
    "58": (Kind.PASSING, "an error of the server's operating system; look into its log"),
    # idle_in_transaction_session_timeout and the like: the server has rolled back and hung up.
    "25": (Kind.PASSING, "the server ended the transaction"),
}
_CONNECT_TEXTS = (
    ("password authentication failed", Kind.REFUSED, _LOGIN),
    ("no password supplied", Kind.REFUSED, _LOGIN),
    ("no pg_hba.conf entry", Kind.REFUSED, _LOGIN),
    ("peer authentication failed", Kind.REFUSED, _LOGIN),
    ("is not permitted to log in", Kind.REFUSED, _LOGIN),
    ("permission denied for database", Kind.REFUSED, _RIGHTS),
    ("database system is", Kind.PASSING, _STARTING),
    ("the database system", Kind.PASSING, _STARTING),
    ("too many clients", Kind.PASSING, _TOO_MANY),
    ("remaining connection slots", Kind.PASSING, _TOO_MANY),
    ("too many connections", Kind.PASSING, _TOO_MANY),
    ("session is read-only", Kind.REFUSED, _READ_ONLY),
    ("server does not support SSL", Kind.REFUSED, "the server has no TLS; change sslmode"),
)


def read_postgres(error: BaseException) -> Reading:
    """Reads an error of psycopg, or of binding a value."""
    code = getattr(error, "sqlstate", None)
    text = " ".join(str(error).split())
    said = f"{type(error).__name__}{f' {code}' if code else ''}: {text}"
    return Reading(*_kind_of(error, code, text), said)


def _kind_of(error: BaseException, code: str | None, text: str) -> tuple[Kind, str]:
    if code:
        return _CODES.get(code) or _CLASSES.get(code[:2]) or (Kind.OURS, "")
    if type(error).__name__ not in ("OperationalError", "ConnectionTimeout", "InterfaceError"):
        return Kind.OURS, ""
    if text.endswith("does not exist"):
        return Kind.REFUSED, _DATABASE if 'database "' in text else _LOGIN
    for needle, kind, hint in _CONNECT_TEXTS:
        if needle in text:
            return kind, hint
    return Kind.PASSING, _LOST
