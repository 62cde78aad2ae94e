"""Kinds of errors of database servers, and the error of this package for each kind.

A driver's error is put into a `Kind` by its code; the kind says what is known of the transaction.
"""

from __future__ import annotations

from enum import Enum

from sharecoord.errors import (
    InternalError,
    SharecoordError,
    StoreFatalError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)


class StoreConflictError(StoreUnavailableError):
    """Rolled back in favour of another transaction: the same call succeeds when made again."""


class StoreRefusedError(StoreUnavailableError):
    """The server does not let us work: at `open` a mistake in the configuration, later a change."""


class Kind(Enum):
    """Kind of a server's error: what is known of the transaction."""

    CONFLICT = "conflict"
    """Surely rolled back, also when COMMIT raised it; try again at once."""
    NOT_COMMITTED = "not committed"
    """Surely rolled back, also when COMMIT raised it; try again later."""
    REFUSED = "refused"
    """Surely rolled back; somebody has to change something."""
    PASSING = "passing"
    """Rolled back, unless COMMIT raised it."""
    FATAL = "fatal"
    """Nothing that the server says can be trusted."""
    OURS = "ours"
    """A row or a statement that will be refused again."""


def translate(kind: Kind, hint: str, said: str, *, where: str, committing: bool) -> SharecoordError:
    """The error of this package.

    Args:
        kind: What the driver's error is.
        hint: Cause and fix in words; "" when the server's own words have to do.
        said: The driver's name or code and its words.
        where: The store without its password.
        committing: Whether COMMIT itself failed.
    """
    text = f"{where}: {hint} ({said})" if hint else f"{where}: {said}"
    if kind is Kind.FATAL:
        return StoreFatalError(text)
    if kind is Kind.CONFLICT:
        return StoreConflictError(text)
    if kind is Kind.NOT_COMMITTED:
        return StoreUnavailableError(text)
    if kind is Kind.REFUSED:
        return StoreRefusedError(text)
    if committing:
        return StoreOutcomeUnknownError(
            f"COMMIT at {where} failed, its outcome is not known: {hint or 'see'} ({said})"
        )
    if kind is Kind.PASSING:
        return StoreUnavailableError(text)
    return InternalError(f"{where} refused a row or a statement; nothing was changed ({said})")
