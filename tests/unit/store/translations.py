"""What the tests of the translation of drivers' errors share."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.exc import OperationalError

from sharecoord.errors import SharecoordError


def check_translation(
    translate: Callable[..., SharecoordError],
    error: Exception,
    kinds: tuple[type[SharecoordError], type[SharecoordError]],
    *said: str,
    where: str,
) -> None:
    """Bare or wrapped, an error is of one kind while working and of one while committing."""
    for raised in (error, OperationalError("SELECT 1", None, error)):
        first = translate(raised, where=where, committing=False)
        second = translate(raised, where=where, committing=True)
        assert (type(first), type(second)) == kinds
        for translated in (first, second):
            assert where in translated.message
            for words in said:
                assert words in translated.message
