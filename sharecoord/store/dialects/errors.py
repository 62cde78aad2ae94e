"""Kinds of errors of databases, and the error of this package for each kind.

A dialect reads its driver's error: the kind says what is known of the transaction. It did not
happen (StoreUnavailableError), nobody knows (StoreOutcomeUnknownError), or nothing that the
database says can be trusted (StoreFatalError).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError

from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)


class StoreBusyError(StoreUnavailableError):
    """Another transaction has the file, ours or another process's."""


class StoreConflictError(StoreUnavailableError):
    """Rolled back in favour of another transaction: the same call succeeds when made again."""


class StoreRefusedError(StoreUnavailableError):
    """The server does not let us work: at `open` a mistake in the configuration, later a change."""


class Kind(Enum):
    """Kind of a database's error: what is known of the transaction."""

    CONFLICT = "conflict"
    """Surely rolled back, also when COMMIT raised it; try again at once."""
    BUSY = "busy"
    """Surely not begun, also when COMMIT raised it; another transaction has the file."""
    NOT_COMMITTED = "not committed"
    """Surely rolled back, also when COMMIT raised it; try again later."""
    REFUSED = "refused"
    """Surely rolled back; somebody has to change something."""
    FATAL = "fatal"
    """Nothing that the database says can be trusted."""
    PASSING = "passing"
    """Rolled back, unless COMMIT raised it; try again later."""
    OURS = "ours"
    """A row or a statement that will be refused again; its transaction as with PASSING."""


_SURE: dict[Kind, type[SharecoordError]] = {
    Kind.CONFLICT: StoreConflictError,
    Kind.BUSY: StoreBusyError,
    Kind.NOT_COMMITTED: StoreUnavailableError,
    Kind.REFUSED: StoreRefusedError,
    Kind.FATAL: StoreFatalError,
}
"""Kinds that mean the same whether COMMIT raised the error or a statement before."""


class Reading(NamedTuple):
    """The meaning of a driver's error."""

    kind: Kind
    hint: str
    """Cause and fix in words; "" when the database's own words have to do.
    `{where}` stands for the name of the store."""
    said: str
    """The driver's name or code of the error, and its words."""


Read = Callable[[BaseException], Reading]
"""Reads an error of a driver, which SQLAlchemy does not wrap any more."""

# Mistakes of ours in one row: the driver refuses a value before or while it runs the statement.
_BAD_VALUE = (OverflowError, TypeError, ValueError)


def translate(read: Read, error: BaseException, *, where: str, committing: bool) -> SharecoordError:
    """The error of this package for an error of a driver or of SQLAlchemy.

    Args:
        read: Reads the driver's error.
        error: What was raised inside a transaction or while connecting, wrapped or bare.
        where: The store without its password.
        committing: Whether COMMIT itself raised it.
    """
    if isinstance(error, (DBAPIError, StatementError)) and error.orig is not None:
        error = error.orig
    kind, hint, said = read(error)
    hint = hint.format(where=where)
    text = f"{where}: {hint} ({said})" if hint else f"{where}: {said}"
    if kind in _SURE:
        return _SURE[kind](text)
    if committing:
        return StoreOutcomeUnknownError(
            f"COMMIT at {where} failed, its outcome is not known: {hint or 'see'} ({said})"
        )
    if kind is Kind.PASSING:
        return StoreUnavailableError(text)
    why = f": {hint}" if hint else ""
    return InternalError(f"{where} refused a row or a statement; nothing was changed{why} ({said})")


def is_store_error(error: BaseException, drivers: tuple[type[BaseException], ...]) -> bool:
    """Whether `error` came from the driver or from binding a value, and is to be translated."""
    return isinstance(error, (SQLAlchemyError, *drivers, *_BAD_VALUE))
