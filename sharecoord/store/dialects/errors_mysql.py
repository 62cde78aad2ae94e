"""Reads errors of PyMySQL by the error number of server or client."""

from __future__ import annotations

from sharecoord.store.dialects.errors import Kind, Reading

_LOST = "the connection is lost or could not be made; is the server up, and the network?"
_FULL = "no space left at the server; free space"
_READ_ONLY = "the server takes no writes (read_only); give the address of the primary"
_LOGIN = "the server does not accept this user or password; correct the URL, or the user's host"
_TOO_MANY = "the server has no connection left; raise max_connections, or end other clients"
_KILLED = "an administrator ended the connection or stops the server"
_SLOW = "a statement took longer than allowed, or was killed"
_DAMAGED = "data of the server are damaged. Stop all coordinators, then restore a backup"
_RIGHTS = "this user may not do that; grant it all rights on the database"
_PACKET = (
    "a dead letter or a list is longer than max_allowed_packet; raise it at the server to more "
    "than the longest record"
)

_CODES = {
    1213: (Kind.CONFLICT, "deadlock with another transaction"),
    1020: (Kind.CONFLICT, "a concurrent transaction came first"),
    1205: (Kind.NOT_COMMITTED, "a row is locked by another transaction for too long"),
    1044: (Kind.REFUSED, "this user may not use the database, or it does not exist; grant it"),
    1130: (Kind.REFUSED, "the server does not accept this host; make a user for it"),
    1049: (Kind.REFUSED, "the database does not exist; make it with CREATE DATABASE"),
    1665: (Kind.REFUSED, "binlog_format=STATEMENT forbids READ COMMITTED; set it to ROW"),
    1153: (Kind.OURS, _PACKET),
    1037: (Kind.PASSING, "the server is out of memory"),
    1047: (Kind.PASSING, "the node does not belong to its cluster (wsrep); wait for it"),
    **dict.fromkeys((1290, 1792, 1836), (Kind.REFUSED, _READ_ONLY)),
    **dict.fromkeys((1045, 1251, 1698, 2059, 2061, 3118), (Kind.REFUSED, _LOGIN)),
    **dict.fromkeys((1142, 1227), (Kind.REFUSED, _RIGHTS)),
    **dict.fromkeys((1194, 1195, 1712), (Kind.FATAL, _DAMAGED)),
    **dict.fromkeys((1021, 1026, 1114), (Kind.PASSING, _FULL)),
    **dict.fromkeys((1040, 1203, 1226), (Kind.PASSING, _TOO_MANY)),
    **dict.fromkeys((1053, 1077, 1079, 1927), (Kind.PASSING, _KILLED)),
    **dict.fromkeys((1317, 1969, 3024), (Kind.PASSING, _SLOW)),
    **dict.fromkeys((1158, 1159, 1160, 1161, 4031), (Kind.PASSING, _LOST)),
}
_CLIENT_CODES = range(2000, 3000)
"""Numbers of the client library: the connection broke, or could not be made."""


def read_mysql(error: BaseException) -> Reading:
    """Reads an error of PyMySQL, or of binding a value."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else None
    words = error.args[1] if code is not None and len(error.args) > 1 else error
    number = f" {code}" if code is not None else ""
    return Reading(*_kind_of(error, code), f"{type(error).__name__}{number}: {words}")


def _kind_of(error: BaseException, code: int | None) -> tuple[Kind, str]:
    if code in _CODES:
        return _CODES[code]
    # The driver's own: a connection that was closed under it, a packet cut short.
    closed = type(error).__name__ == "InterfaceError" or isinstance(error, OSError)
    if closed or (code is not None and code in _CLIENT_CODES):
        return Kind.PASSING, _LOST
    return Kind.OURS, ""
