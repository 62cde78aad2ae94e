"""Calls of the SQL store: each is one transaction.

The rooms `hot`, `groups`, `letters` and `reads` have the calls of `sharecoord.ports.Store` as
methods that take the transaction's connection; `writing` and `reading` give it to them.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from sharecoord.errors import InternalError
from sharecoord.store.dialects import Dialect
from sharecoord.store.dialects.errors import StoreConflictError
from sharecoord.store.hot.statements import Statements
from sharecoord.store.transactions import Transactions

C = TypeVar("C", bound="SqlCalls")
T = TypeVar("T")
P = ParamSpec("P")

CONFLICT_PAUSES_S = (0.002, 0.01, 0.02, 0.05, 0.1)
"""After a deadlock with another coordinator; together less than a lock is waited for."""

Begin = Callable[[], contextlib.AbstractContextManager[Connection]]


class SqlCalls:
    """The database of all calls, and while it is open its transactions and statements."""

    def __init__(self, dialect: Dialect, *, name: str, fleet: bool) -> None:
        self._dialect = dialect
        self.name = name
        self._fleet = fleet
        self._coordinator_id = ""
        self._transactions: Transactions | None = None
        self._statements: Statements | None = None

    def _opened(self) -> Transactions:
        if self._transactions is None:
            raise InternalError(f"{self.name} is not open")
        return self._transactions

    def _prepared(self) -> Statements:
        if self._statements is None:
            raise InternalError(f"{self.name} is not open")
        return self._statements

    @staticmethod
    def _change_in(begin: Begin, work: Callable[[Connection], T]) -> T:
        """A writing transaction; it is repeated when the server rolls it back for another one."""
        for pause_s in CONFLICT_PAUSES_S:
            try:
                with begin() as connection:
                    return work(connection)
            except StoreConflictError:
                time.sleep(pause_s)
        with begin() as connection:
            return work(connection)


def writing(
    method: Callable[Concatenate[C, Connection, P], T],
) -> Callable[Concatenate[C, P], T]:
    """Makes a call that writes of a method; its connection is in a transaction."""

    @functools.wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._change_in(
            self._opened().write, lambda connection: method(self, connection, *args, **kwargs)
        )

    return call


def reading(
    method: Callable[Concatenate[C, Connection, P], T],
) -> Callable[Concatenate[C, P], T]:
    """Makes a call that reads of a method: it sees one committed state, beside any commit."""

    @functools.wraps(method)
    def call(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._opened().read() as connection:
            return method(self, connection, *args, **kwargs)

    return call
