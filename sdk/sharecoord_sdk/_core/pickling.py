"""How exceptions with constructors of their own are pickled and copied."""

from __future__ import annotations

import copyreg
from typing import Any


class WholeError(Exception):
    """An exception that comes out of a pickle with all its fields.

    By default Python makes it anew by calling its class with `args`, the text alone; that fails, or
    loses fields, when the constructor takes something else. Here the constructor is not called:
    arguments and fields are put back as they were, also those of an application's subclasses.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]
