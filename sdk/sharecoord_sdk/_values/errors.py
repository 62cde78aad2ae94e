"""What is wrong with a value, or with a type that was asked for."""

from __future__ import annotations

from sharecoord_sdk._core.pickling import WholeError


class BadValueError(WholeError, ValueError):
    """The value of a record is not what was asked for; the text names the field and why."""

    def __init__(self, why: str, where: str = "") -> None:
        super().__init__(f"{where}: {why}" if where else why)
        self.why = why
        self.where = where


class UnreadableTypeError(TypeError):
    """Nothing reads values of this type."""
