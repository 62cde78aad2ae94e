"""The file of a backup: gzip, one JSON value per line, the same for every database.

    {"format": "sharecoord-store-backup", "version": 1, "schema_revision": "0005", ...}
    {"table": "share_group", "columns": ["group_id", ...]}
    ["orders", ...]                          one line per row, as many as the first line says
    {"table": "share_partition", ...}
    ...
    {"sha256": "..."}                        of all lines before

`zcat FILE | head -1` says what it holds.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from sqlalchemy import Table

from sharecoord.errors import (
    InvalidRequestError,
    SharecoordError,
    StoreUnavailableError,
    StoreVersionError,
)
from sharecoord.store.tools.new_file import new_file
from sharecoord.store.tools.raw_rows import Row, from_json, to_json

FORMAT: Final = "sharecoord-store-backup"
VERSION: Final = 1
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
"""Longer than any row; bounds the memory that a damaged file can take."""

Section = tuple[Table, AbstractContextManager[Iterable[Row]]]
"""A table, and its rows for the length of a block."""

T = TypeVar("T", str, int)


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """The first line of a backup."""

    schema_revision: str
    release: str
    """Version of sharecoord that wrote the file."""
    cluster_id: str
    """The store's Kafka cluster; "" = not known."""
    taken_at_ms: int
    """Milliseconds since the epoch by the store's clock."""
    rows: Mapping[str, int]
    """Number of rows by table."""

    @property
    def taken_at(self) -> str:
        """The time in UTC, to the second."""
        moment = datetime.fromtimestamp(self.taken_at_ms / 1000, UTC)
        return moment.strftime("%Y-%m-%d %H:%M:%S UTC")

    @property
    def total(self) -> int:
        """Number of all rows."""
        return sum(self.rows.values())


# -- writing --------------------------------------------------------------------------------------


def write_backup(
    path: Path, header: BackupHeader, sections: Iterable[Section], *, replace: bool
) -> None:
    """Writes the file whole or not at all; durable when this returns, readable by this user only.

    Args:
        path: The file to write.
        header: Its first line; `rows` must fit `sections`.
        sections: Tables with their rows, which are taken one by one.
        replace: Whether a file of this name may be replaced.

    Raises:
        InvalidRequestError: The path cannot be written, with the reason.
        StoreUnavailableError: The disk is full; nothing was left behind.
    """
    try:
        with (
            new_file(path, replace=replace) as file,
            gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        ):
            _write_lines(packed, header, sections)
    except FileExistsError:
        raise InvalidRequestError(
            f"{path} exists already. Give another FILE, or --force to replace it"
        ) from None
    except OSError as error:
        raise _cannot_write(path, error) from error


def _write_lines(packed: gzip.GzipFile, header: BackupHeader, sections: Iterable[Section]) -> None:
    digest = hashlib.sha256()

    def put(text: str) -> None:
        line = text.encode() + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise InvalidRequestError(f"a row has {len(line)} bytes; {LINE_BYTES_MAX} is the most")
        digest.update(line)
        packed.write(line)

    first = {"format": FORMAT, "version": VERSION, "taken_at": header.taken_at, **asdict(header)}
    put(json.dumps(first, ensure_ascii=False))
    for table, opened in sections:
        put(json.dumps({"table": table.name, "columns": table.columns.keys()}))
        with opened as rows:
            for row in rows:
                put(to_json(table, row))
    put(json.dumps({"sha256": digest.hexdigest()}))


def _cannot_write(path: Path, error: OSError) -> SharecoordError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StoreUnavailableError(
            f"{path}: {error.strerror}; nothing was left behind. Free space, or give a FILE on "
            "another disk"
        )
    return InvalidRequestError(
        f"{path}: cannot be written: {error.strerror}. Give a FILE in a directory that exists and "
        "that this user can write to"
    )


# -- reading --------------------------------------------------------------------------------------


class BackupReader:
    """Reader of a backup, line by line; each method reads the file from its start."""

    def __init__(self, path: Path, tables: Sequence[Table]) -> None:
        """Touches nothing.

        Args:
            path: The file.
            tables: The tables that it must have, in this order.
        """
        self._path = path
        self._tables = tables

    def verify(self, check: Callable[[BackupHeader], None]) -> BackupHeader:
        """Reads all of it: checksum, number of rows, and the type of every value.

        Args:
            check: Refuses a header; called before anything else is read.

        Raises:
            InvalidRequestError: No backup, or a damaged one; says in which line.
            StoreVersionError: Of a newer release.
        """
        with _opened(self._path) as lines:
            header = self._header(lines)
            check(header)
            for _, _ in self._rows(lines, header):
                pass
        return header

    def rows(self) -> Generator[tuple[Table, Row], None, None]:
        """All rows in order; raises as `verify`."""
        with _opened(self._path) as lines:
            yield from self._rows(lines, self._header(lines))

    def _header(self, lines: _Lines) -> BackupHeader:
        found = lines.next_object()
        if found is None or found.get("format") != FORMAT:
            raise InvalidRequestError(
                f"{self._path} is not a backup of a store. Give a FILE that `sharecoord store "
                "backup` wrote"
            )
        version = found.get("version")
        if version != VERSION:
            raise StoreVersionError(
                f"{self._path} has format version {version}, written by sharecoord "
                f"{found.get('release')}; this version reads format {VERSION}. Use the version "
                "that wrote it"
            )
        counts = found.get("rows")
        if not isinstance(counts, dict):
            raise lines.damaged("rows is no object")
        return BackupHeader(
            schema_revision=lines.checked(found, "schema_revision", str),
            release=lines.checked(found, "release", str),
            cluster_id=lines.checked(found, "cluster_id", str),
            taken_at_ms=lines.checked(found, "taken_at_ms", int),
            rows={table.name: lines.checked(counts, table.name, int) for table in self._tables},
        )

    def _rows(self, lines: _Lines, header: BackupHeader) -> Iterator[tuple[Table, Row]]:
        for table in self._tables:
            names, added = _columns_in(table, header.schema_revision)
            if lines.next_object() != {"table": table.name, "columns": names}:
                raise lines.damaged(f"table {table.name} does not begin here")
            for _ in range(header.rows[table.name]):
                yield table, lines.next_row(table, added)
        digest = lines.sha256
        if lines.next_object() != {"sha256": digest}:
            raise lines.damaged("the checksum is not that of its lines")
        if lines.next_bytes():
            raise lines.damaged("it goes on after its end")


def _columns_in(table: Table, revision: str) -> tuple[list[str], list[object]]:
    """The columns that a table had in a schema, and the values of those that it has got since."""
    later = [column for column in table.columns if column.info.get("since", "") > revision]
    names = table.columns.keys()[: len(table.columns) - len(later)]
    return names, [column.info["before"] for column in later]


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Lines]:
    """The lines of a backup, for the length of a block."""
    try:
        raw = path.open("rb")
    except OSError as error:
        raise InvalidRequestError(
            f"{path}: cannot be read: {error.strerror}. Give the FILE of a backup that this user "
            "can read"
        ) from error
    with raw, gzip.GzipFile(fileobj=raw, mode="rb") as packed:
        yield _Lines(path, packed)


class _Lines:
    """Reads a file line by line, with line number and checksum."""

    def __init__(self, path: Path, packed: gzip.GzipFile) -> None:
        self._path = path
        self._packed = packed
        self._number = 0
        self._digest = hashlib.sha256()

    @property
    def sha256(self) -> str:
        """Checksum of all lines that were read so far."""
        return self._digest.hexdigest()

    def damaged(self, why: str) -> InvalidRequestError:
        """The error for a damaged line."""
        return InvalidRequestError(
            f"{self._path} is damaged at line {self._number}: {why}. Copy it again from where it "
            "was written, or give another backup"
        )

    def checked(self, found: Mapping[str, Any], name: str, kind: type[T]) -> T:
        """A field of the line, which must be of this type; numbers are not negative."""
        value = found.get(name)
        if not isinstance(value, kind) or (isinstance(value, int) and not 0 <= value < 1 << 47):
            raise self.damaged(f"{name} is {value!r}")
        return value

    def next_bytes(self) -> bytes:
        """The next line; b"" at the end."""
        try:
            line = self._packed.readline(LINE_BYTES_MAX)
        except EOFError:
            raise self.damaged("the rest is missing (truncated)") from None
        except (gzip.BadGzipFile, zlib.error) as error:
            if self._number:
                raise self.damaged(f"it cannot be unpacked ({error})") from None
            return b""
        except OSError as error:
            raise self.damaged(f"it cannot be read ({error.strerror})") from error
        self._number += 1
        self._digest.update(line)
        return line

    def next_object(self) -> dict[str, Any] | None:
        """The next line as an object; None when it is none."""
        try:
            found = json.loads(self.next_bytes())
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def next_row(self, table: Table, added: Sequence[object]) -> Row:
        """The next line as a row of a table, with the values of columns that it does not have."""
        line = self.next_bytes()
        try:
            return from_json(table, json.loads(line), added)
        except (ValueError, RecursionError) as error:
            raise self.damaged(f"no row of {table.name}: {error}") from error
