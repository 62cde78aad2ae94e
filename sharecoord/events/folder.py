"""A folder of the event log, for people: its listing, its check, the deletion of old dates.

Coordinators may write to it meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from sharecoord.errors import EventsFolderInUseError, InvalidRequestError
from sharecoord.eventlog.rollups import DIRECTORY, EVERY_VERSION
from sharecoord.eventlog.schema import SCHEMA_VERSION
from sharecoord.events.places import SPOOL, date_of, events_path, sync, unescape
from sharecoord.events.rollup import rows_of
from sharecoord.events.schema import GROUP_KEY, SCHEMA, VERSION_KEY
from sharecoord.events.spool import ASIDE_SUFFIX, is_left, spool_files, waiting_rows

JOURNAL: Final = "_compaction.json"
"""In the directory of a group while files are joined; see `sharecoord.events.compaction`."""

_EPOCH: Final = date(1970, 1, 1)
_DELETED: Final = "_deleted-"
_LOCK: Final = "maintenance.lock"
_TIME: Final = SCHEMA.get_field_index("time")


class BadFileError(Exception):
    """A file that is no sound Parquet file of the event log; says why."""


class FileFacts(NamedTuple):
    """Facts about a Parquet file, read from its end."""

    path: Path
    date: date
    group_id: str
    rows: int
    bytes: int
    first: datetime
    last: datetime
    schema_version: int


class Listed(NamedTuple):
    """The rows of a date and group together."""

    date: date
    group_id: str
    files: int
    rows: int
    """Rows in files."""
    bytes: int
    """Size of the files."""
    spooled: int
    """Rows that are in no file yet."""
    first: datetime
    last: datetime
    schema_versions: tuple[int, ...]


class _Spooled(NamedTuple):
    """Rows of a date and group that are in no file yet."""

    rows: int
    first_us: int
    last_us: int
    schema_versions: frozenset[int]


class Finding(NamedTuple):
    """A problem of a file, and its fix."""

    path: str
    finding: str
    fix: str


class Deleted(NamedTuple):
    """A date that was deleted, or would be."""

    date: date
    files: int
    bytes: int


class EventFolder:
    """A folder of the event log; a directory that is none raises InvalidRequestError."""

    def __init__(self, root: Path) -> None:
        self.root = root
        if not (root / SPOOL).is_dir() and not any(root.glob("date=*")):
            raise InvalidRequestError(
                f"{root} is no folder of the event log: it has neither {SPOOL} nor date=… in it. "
                "Give the directory of events.sink=parquet:DIRECTORY"
            )

    def listed(self) -> tuple[list[Listed], int]:
        """Rows by date and group, in files and in the spool; and how many files can not be read."""
        spooled = self._spooled()
        found: dict[tuple[date, str], list[FileFacts]] = {key: [] for key in spooled}
        bad = 0
        for day, path in self.files():
            try:
                facts = facts_of(path, day)
            except FileNotFoundError:
                continue  # joined or deleted meanwhile
            except BadFileError:
                bad += 1
            else:
                found.setdefault((day, facts.group_id), []).append(facts)
        return [_listed(key, found[key], spooled.get(key)) for key in sorted(found)], bad

    def _spooled(self) -> dict[tuple[date, str], _Spooled]:
        found: dict[tuple[date, str], _Spooled] = {}
        for (day, group_id), row in waiting_rows(self.root):
            key, at = (_EPOCH + timedelta(days=day), group_id), row["time"]
            before = found.get(key, _Spooled(0, at, at, frozenset()))
            found[key] = _Spooled(
                before.rows + 1,
                min(before.first_us, at),
                max(before.last_us, at),
                before.schema_versions | {row["schema_version"]},
            )
        return found

    def files(self) -> Iterator[tuple[date, Path]]:
        """The Parquet files that readers see, in order of date and directory."""
        for day, directory in self.group_directories():
            for path in sorted(directory.glob("[!_.]*.parquet")):
                yield day, path

    def rollups(self) -> Iterator[tuple[date, Path]]:
        """Files of rollups, in order of date and directory."""
        for path in sorted(self.root.glob(f"{DIRECTORY}/date=*/group=*/[!_.]*.parquet")):
            day = date_of(path.parents[1].name)
            if day is not None:
                yield day, path

    def group_directories(self) -> Iterator[tuple[date, Path]]:
        """The directories with files."""
        for directory in sorted(self.root.glob("date=*")):
            day = date_of(directory.name)
            if day is not None:
                for below in sorted(directory.glob("group=*")):
                    yield day, below

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other commands from changing files that readers see.

        Raises:
            EventsFolderInUseError: Another command has the lock.
        """
        (self.root / SPOOL).mkdir(exist_ok=True)
        descriptor = os.open(self.root / SPOOL / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise EventsFolderInUseError(
                    f"another `sharecoord events` command changes {self.root}. Wait for its end"
                ) from None
            yield
        finally:
            os.close(descriptor)

    def retain(self, keep: timedelta, *, now: datetime, dry_run: bool = False) -> list[Deleted]:
        """Deletes the dates that ended before `keep` ago.

        A date vanishes at once for readers. Dates that a killed call left half deleted go, too.
        """
        first_kept = (now.astimezone(UTC) - keep).date()
        with contextlib.nullcontext() if dry_run else self.locked():
            gone = []
            for directory in sorted(self.root.glob("date=*")):
                day = date_of(directory.name)
                if day is None or day >= first_kept:
                    continue
                sizes = [path.stat().st_size for path in directory.glob("*/[!_.]*.parquet")]
                gone.append(Deleted(day, len(sizes), sum(sizes)))
                if not dry_run:
                    # The new name has no "=": Spark reads names with one, also behind "_".
                    for each in (directory, *self.root.glob(f"{EVERY_VERSION}/{directory.name}")):
                        if each.is_dir():
                            each.rename(self.root / f"{_DELETED}{day}-{secrets.token_hex(4)}")
            if not dry_run:
                sync(self.root)
                for left in self.root.glob(f"{_DELETED}*"):
                    shutil.rmtree(left)
        return gone

    def check(self) -> list[Finding]:
        """All problems of the folder; reads every row."""
        return [
            *self._check_spool(),
            *self._check_names(),
            *self._check_files(),
            *self._check_rollups(),
        ]

    def _check_spool(self) -> Iterator[Finding]:
        for path in spool_files(self.root):
            if is_left(path):
                yield self._finding(
                    path,
                    "a writer died, and these rows are in no Parquet file yet",
                    "start its coordinator, or run sharecoord events compact",
                )
        for path in sorted((self.root / SPOOL).glob(f"*{ASIDE_SUFFIX}")):
            yield self._finding(
                path, "no Parquet files can be made of it", "keep it for a bug report, or delete it"
            )

    def _check_names(self) -> Iterator[Finding]:
        """Remains of a killed command, and files that Spark would take for events."""
        for path in sorted(self.root.iterdir()):
            if path.name.startswith(_DELETED):
                yield self._finding(path, "half deleted", "run sharecoord events retain again")
            elif path.is_dir() and date_of(path.name):
                for below in sorted(path.iterdir()):
                    if not _is_hidden(below) and not below.name.startswith("group="):
                        yield self._foreign(below)
            elif not _is_hidden(path):
                yield self._foreign(path)
        for _, directory in self.group_directories():
            yield from self._check_group(directory)

    def _check_group(self, directory: Path) -> Iterator[Finding]:
        for path in sorted(directory.iterdir()):
            if path.name == JOURNAL or path.suffix == ".part":
                with contextlib.suppress(EventsFolderInUseError), self.locked():
                    yield self._finding(
                        path, "left by a compact that was killed", "run sharecoord events compact"
                    )
            elif not _is_hidden(path) and path.suffix != ".parquet":
                yield self._foreign(path)

    def _check_files(self) -> Iterator[Finding]:
        for day, path in self.files():
            try:
                read_all(facts_of(path, day))
            except FileNotFoundError:
                continue
            except BadFileError as error:
                yield self._finding(path, str(error), "move it out of the folder")

    def _check_rollups(self) -> Iterator[Finding]:
        for day, path in self.rollups():
            try:
                rows, facts = rows_of(path), facts_of(events_path(path), day)
            except FileNotFoundError:
                continue  # a reader passes over those of a file that is gone
            except BadFileError:
                continue  # reported with its file
            if rows != facts.rows:
                what = (
                    "not whole" if rows is None else f"of {rows} rows, and there are {facts.rows}"
                )
                yield self._finding(
                    path, f"rollups {what}", "delete it, and run sharecoord events compact"
                )

    def _foreign(self, path: Path) -> Finding:
        return self._finding(path, "not of the event log", "move it out of the folder")

    def _finding(self, path: Path, finding: str, fix: str) -> Finding:
        return Finding(str(path.relative_to(self.root)), finding, fix)


def _is_hidden(path: Path) -> bool:
    return path.name.startswith(("_", "."))


def _listed(key: tuple[date, str], files: list[FileFacts], spooled: _Spooled | None) -> Listed:
    spans = [(file.first, file.last) for file in files]
    versions = {file.schema_version for file in files}
    if spooled is not None:
        spans.append((_time(spooled.first_us), _time(spooled.last_us)))
        versions |= spooled.schema_versions
    return Listed(
        *key,
        len(files),
        sum(file.rows for file in files),
        sum(file.bytes for file in files),
        0 if spooled is None else spooled.rows,
        min(first for first, _ in spans),
        max(last for _, last in spans),
        tuple(sorted(versions)),
    )


def _time(time_us: int) -> datetime:
    return datetime.fromtimestamp(time_us / 1_000_000, UTC)


def facts_of(path: Path, day: date) -> FileFacts:
    """Facts about a file; only its end is read.

    Raises:
        BadFileError: The file is not whole, or not of the event log.
        FileNotFoundError: The file is gone.
    """
    try:
        with pq.ParquetFile(path) as file:
            metadata, schema = file.metadata, file.schema_arrow
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise BadFileError(f"not a whole Parquet file: {_line(error)}") from error
    texts = metadata.metadata or {}
    version = texts.get(VERSION_KEY, b"").decode("ascii", "replace")
    if not version.isdecimal():
        raise BadFileError(f"no {VERSION_KEY.decode()} in its metadata: not of the event log")
    for field in schema:
        place = SCHEMA.get_field_index(field.name)
        if place >= 0 and SCHEMA.field(place).type != field.type:
            wanted = SCHEMA.field(place).type
            raise BadFileError(f"column {field.name} is of type {field.type}, not {wanted}")
    first, last = _span(metadata, schema)
    group = texts.get(GROUP_KEY)
    group_id = group.decode() if group is not None else unescape(path.parent.name[len("group=") :])
    size = path.stat().st_size
    return FileFacts(path, day, group_id, metadata.num_rows, size, first, last, int(version))


def _span(metadata: pq.FileMetaData, schema: pa.Schema) -> tuple[datetime, datetime]:
    """The first and the last time of a file's rows."""
    place = schema.get_field_index("time")
    if place < 0 or not metadata.num_row_groups:
        raise BadFileError("no rows with a time in it")
    spans = [
        metadata.row_group(number).column(place).statistics
        for number in range(metadata.num_row_groups)
    ]
    if not all(span is not None and span.has_min_max for span in spans):
        raise BadFileError("no times in its statistics: not of the event log")
    return min(span.min for span in spans), max(span.max for span in spans)


def read_all(facts: FileFacts) -> None:
    """Reads every row of a file, with the checksums of its pages.

    Raises:
        BadFileError: The file is corrupt, or of a newer release.
    """
    if facts.schema_version > SCHEMA_VERSION:
        raise BadFileError(
            f"schema version {facts.schema_version} is not known to this release "
            f"(it knows {SCHEMA_VERSION})"
        )
    if {facts.first.date(), facts.last.date()} != {facts.date}:
        raise BadFileError(f"rows from {facts.first} to {facts.last}, which is not its date")
    try:
        with pq.ParquetFile(facts.path, page_checksum_verification=True) as file:
            for _ in file.iter_batches():
                pass
    except FileNotFoundError:
        raise
    except (OSError, pa.ArrowException) as error:
        raise BadFileError(f"corrupt: {_line(error)}") from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
