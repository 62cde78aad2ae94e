"""Texts with NUL in PostgreSQL, which has none: workers choose some texts, reasons for example.

NUL is kept as ESCAPE + "0" and ESCAPE itself as ESCAPE + "1"; every other text is stored as it is.
"""

from __future__ import annotations

from typing import Any

from psycopg import Connection
from psycopg.pq import Format
from psycopg.types.string import StrDumperUnknown, TextLoader

ESCAPE = "\uf000"
"""A private-use character that hardly any text has."""


def escape(text: str) -> str:
    """The text as PostgreSQL can hold it."""
    if "\0" in text or ESCAPE in text:
        return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")
    return text


def unescape(text: str) -> str:
    """The inverse of `escape`."""
    if ESCAPE in text:
        return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)
    return text


class _Dumper(StrDumperUnknown):
    def dump(self, obj: str) -> Any:
        return super().dump(escape(obj))


class _Loader(TextLoader):
    def load(self, data: Any) -> Any:
        return unescape(bytes(data).decode())


def register_text(connection: Connection[Any]) -> None:
    """Makes the texts of a connection go through `escape` and `unescape`."""
    connection.adapters.register_dumper(str, _Dumper)
    for name in ("text", "varchar"):
        connection.adapters.register_loader(name, _Loader)
    assert _Loader.format == Format.TEXT
