"""Compaction: few large files replace many small ones.

The files of a date and group are joined so:

1. The new file is written under a name that readers skip, and is durable.
2. A journal beside it names it and the files that it stands for, and is durable.
3. Those files are deleted, 4. the new one gets its name, 5. the journal is deleted.

A process that is killed before 2 leaves everything as it was; after 2 the next run goes on at 3. So
no row is ever lost or there twice: a reader that lists the folder between 3 and 4 (in the moment of
the change, or after a kill until the next run) misses the rows of these files, which shows in
`change_sequence`; rows that are there twice would show nowhere.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from sharecoord.eventlog.rollups import DIRECTORY, ROWS_MIN
from sharecoord.eventlog.schema import SCHEMA_VERSION
from sharecoord.events.folder import JOURNAL, BadFileError, EventFolder, FileFacts, facts_of
from sharecoord.events.parquet_files import BATCH_ROWS, ParquetFile, finish_left
from sharecoord.events.places import (
    PART_SUFFIX,
    events_file,
    events_path,
    rollup_path,
    segment_of,
    sync,
)
from sharecoord.events.rollup import roll_up
from sharecoord.events.schema import SCHEMA, columns_as, schema_of
from sharecoord.events.spool import segment_name, spool_files, waiting_rows

log = structlog.get_logger(__name__)

_NAME: Final = "compacted"
"""Takes the place of the coordinator's id in the name of a file that is made of several."""


class Joined(NamedTuple):
    """Files that became one, or would become one."""

    date: date
    group_id: str
    files: int
    rows: int
    bytes_before: int
    bytes_after: int | None
    """None when nothing was done."""


class EventTools(EventFolder):
    """A folder of the event log with the work of compaction on it."""

    def spooled(self, group_id: str) -> Iterator[dict[str, Any]]:
        """The rows of a group that are in no Parquet file yet; `time` in microseconds."""
        for _, row in waiting_rows(self.root, group_id):
            yield row

    def compact(
        self, *, before: date | None, file_max_bytes: int, dry_run: bool = False
    ) -> Iterator[Joined]:
        """Joins the small files of each date and group.

        First it ends a run that was killed, and makes Parquet files of the spool of writers that
        have died. Files that can not be read, files of a newer release, and files of a segment
        that a writer may write again stay as they are.

        Args:
            before: Only dates before this one; None: those that are over.
            file_max_bytes: About the size of the new files; files of this size stay as they are.
            dry_run: Only yield the files that would be joined.

        Raises:
            EventsFolderInUseError: Another command changes the folder.
            OSError: No room; files that were not joined are as before.
        """
        before = before or datetime.now(UTC).date()
        if dry_run:
            for files in _plan(self, before, file_max_bytes):
                yield _joined(files, None)
            return
        with self.locked():
            for path in spool_files(self.root):
                finish_left(path, self.root, file_max_bytes)
            for _, directory in self.group_directories():
                recover(directory)
            for files in _plan(self, before, file_max_bytes):
                try:
                    yield _joined(files, join(files))
                except BadFileError as error:
                    log.error("event log: files are left as they are", reason=str(error))
            self.roll_up(before)

    def roll_up(self, before: date = date.max) -> None:
        """Makes the rollups of large files that have none; deletes rollups of files that are gone.

        Only for dates before `before`. Files that can not be read are logged and passed over.

        Raises:
            OSError: No room.
        """
        for left in self.root.glob(f"{DIRECTORY}/date=*/group=*/_*{PART_SUFFIX}"):
            left.unlink(missing_ok=True)
        for day, path in self.rollups():
            events = events_path(path)
            if day < before and not (events.exists() or (events.parent / JOURNAL).exists()):
                path.unlink(missing_ok=True)
        for day, path in self.files():
            if day >= before or rollup_path(path).exists():
                continue
            try:
                with pq.ParquetFile(path) as file:
                    is_large = file.metadata.num_rows >= ROWS_MIN
                if is_large:
                    roll_up(path, self.root, _batches(path, ROWS_MIN))
            except FileNotFoundError:
                continue
            except (BadFileError, pa.ArrowException) as error:
                log.error("event log: a file has no rollups", file=str(path), reason=str(error))


def _joined(files: list[FileFacts], bytes_after: int | None) -> Joined:
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return Joined(files[0].date, files[0].group_id, len(files), rows, size, bytes_after)


def _plan(folder: EventFolder, before: date, file_max_bytes: int) -> Iterator[list[FileFacts]]:
    """Groups of files to be joined into one file each, in order of time."""
    for day, directory in folder.group_directories():
        if day >= before:
            continue
        by_group: dict[str, list[FileFacts]] = {}
        for facts in _candidates(folder, directory, day, file_max_bytes):
            by_group.setdefault(facts.group_id, []).append(facts)
        for files in by_group.values():
            yield from _runs(sorted(files, key=lambda f: (f.first, f.path.name)), file_max_bytes)


def _candidates(
    folder: EventFolder, directory: Path, day: date, file_max_bytes: int
) -> list[FileFacts]:
    """The files of a directory that may be joined."""
    found = []
    for path in sorted(directory.glob("[!_.]*.parquet")):
        try:
            facts = facts_of(path, day)
        except BadFileError as error:
            log.warning("event log: a file is left alone", file=str(path), reason=str(error))
            continue
        if facts.bytes < file_max_bytes and facts.schema_version <= SCHEMA_VERSION:
            found.append(facts)
    # Looked up after the files: a segment is gone by then, or belongs to a writer that was killed
    # and makes the same files again.
    under_way = {segment_name(path) for path in spool_files(folder.root)}
    return [facts for facts in found if segment_of(facts.path.name) not in under_way]


def _runs(files: list[FileFacts], bytes_max: int) -> Iterator[list[FileFacts]]:
    """Groups of two neighbours or more that are together not larger than the limit."""
    run: list[FileFacts] = []
    size = 0
    for file in files:
        if run and size + file.bytes > bytes_max:
            if len(run) > 1:
                yield run
            run, size = [], 0
        run.append(file)
        size += file.bytes
    if len(run) > 1:
        yield run


def join(files: list[FileFacts]) -> int:
    """Puts one file into the place of several of one directory; returns its size in bytes.

    Raises:
        BadFileError: A file is corrupt; all are as before.
        OSError: No room, or no access.
    """
    directory, group_id = files[0].path.parent, files[0].group_id
    first_us = int(files[0].first.timestamp()) * 1_000_000
    name = events_file(_NAME, first_us, secrets.token_hex(6), 0)
    part = _part(directory, name)
    with ParquetFile(part, schema_of(group_id), directory.parents[1]) as new:
        for file in files:
            for batch in _batches(file.path):
                new.add(batch)
        new.keep(directory / name)
    rows = sum(file.rows for file in files)
    if new.rows != rows:
        part.unlink()
        rollup_path(directory / name).unlink(missing_ok=True)
        raise BadFileError(f"{directory}: {new.rows} rows were read of {rows}")
    size = part.stat().st_size
    _write_journal(directory, {"output": name, "inputs": [file.path.name for file in files]})
    recover(directory)
    return size


def _batches(path: Path, rows: int = BATCH_ROWS) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as old:
            for batch in old.iter_batches(batch_size=rows):
                # Times in nanoseconds are Spark's; an older release has fewer columns.
                yield pa.record_batch(columns_as(SCHEMA, batch), schema=SCHEMA)
    except (OSError, pa.ArrowException) as error:
        raise BadFileError(f"{path} can not be read: {error}") from error


def _write_journal(directory: Path, journal: dict[str, object]) -> None:
    part = directory / f"{JOURNAL}{PART_SUFFIX}"
    part.write_text(json.dumps(journal), encoding="utf-8")
    sync(part)
    part.replace(directory / JOURNAL)
    sync(directory)


def recover(directory: Path) -> None:
    """Ends the change that a directory's journal names; deletes files of changes without one."""
    path = directory / JOURNAL
    if path.exists():
        journal = json.loads(path.read_text(encoding="utf-8"))
        for name in journal["inputs"]:
            (directory / name).unlink(missing_ok=True)
            rollup_path(directory / name).unlink(missing_ok=True)
        part = _part(directory, journal["output"])
        if part.exists():
            part.replace(directory / journal["output"])
        sync(directory)
        path.unlink()
        sync(directory)
    for left in directory.glob(f"_*{PART_SUFFIX}"):
        left.unlink()


def _part(directory: Path, name: str) -> Path:
    return directory / f"_{name}{PART_SUFFIX}"
