"""Parquet files: a file that is written whole, and the conversion of spool files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
import structlog

from sharecoord.eventlog.rollups import ROWS_MIN
from sharecoord.events.frames import Block
from sharecoord.events.places import (
    PART_SUFFIX,
    SPOOL,
    date_directory,
    events_file,
    group_directory,
    make_directories,
    rollup_part,
    rollup_path,
    segment_of,
    sync,
)
from sharecoord.events.schema import BAD_ROWS, TEXT_COLUMNS, batch_of, schema_of
from sharecoord.events.spool import Key, Segment, time_of

if TYPE_CHECKING:
    from sharecoord.events.rollup import RollupFile

log = structlog.get_logger(__name__)

BATCH_ROWS: Final = 8_192
"""Rows that are Python objects at a time: some 10 MB."""

ROW_GROUP_ROWS: Final = ROWS_MIN
"""Rows of a row group: Spark reads a file by row groups, so they are not to be small. While a row
group is written it is in memory, with a few hundred bytes a row."""


class ParquetFile:
    """A new Parquet file: whole and durable after `finish`, else not there at all.

    Row groups of `ROW_GROUP_ROWS` rows, texts by dictionary, zstd, checksums of pages. A file with
    a whole row group has rollups, which are there before it.
    """

    def __init__(self, part: Path, schema: pa.Schema, root: Path) -> None:
        """Opens the file.

        Args:
            part: Its name while it is written, in a directory on the same file system.
            schema: With metadata.
            root: The folder of the event log.
        """
        self.rows = 0
        self._is_whole = False
        self._part = part
        self._schema = schema
        self._root = root
        self._rollups: RollupFile | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self._file = pa.OSFile(str(part), "wb")
        self._writer = pq.ParquetWriter(
            self._file,
            schema,
            compression="zstd",
            use_dictionary=TEXT_COLUMNS,
            write_page_checksum=True,
            # Arrow's own schema would be larger than the rest of a small file; the metadata, which
            # go with it, are written without.
            store_schema=False,
        )
        self._writer.add_key_value_metadata(schema.metadata)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        # On a full disk the end can not be written either.
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError, pa.ArrowException):
            self._file.close()
        if self._rollups is not None:
            self._rollups.discard()
        if not self._is_whole:
            self._part.unlink(missing_ok=True)

    @property
    def bytes(self) -> int:
        """Size of the file so far."""
        return int(self._file.tell())

    def add(self, batch: pa.RecordBatch) -> None:
        """Takes rows."""
        self._waiting.append(batch)
        self._waiting_rows += batch.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_batches(self._waiting, schema=self._schema)
        self._writer.write_table(table, row_group_size=max(1, table.num_rows))
        if self._rollups is None and table.num_rows >= ROWS_MIN:
            # Imported late: a writer of small files saves the memory.
            from sharecoord.events.rollup import RollupFile

            self._rollups = RollupFile(rollup_part(self._part))
        if self._rollups is not None:
            self._rollups.add(table)
        self.rows += table.num_rows
        self._waiting, self._waiting_rows = [], 0

    def finish(self, path: Path) -> None:
        """Closes the file and gives it its name; a file of that name is replaced."""
        self._close(path)
        self._part.replace(path)
        sync(path.parent)

    def keep(self, path: Path) -> None:
        """Closes the file, durably, under its present name; its rollups are those of `path`."""
        self._close(path)
        self._is_whole = True

    def _close(self, path: Path) -> None:
        if self._waiting:
            self._write()
        if self._rollups is not None:
            self._rollups.finish(rollup_path(path), self._root)
        self._writer.close()
        self._file.close()
        sync(self._part)


def convert(segment: Segment, root: Path, file_max_bytes: int) -> int:
    """Makes the Parquet files of a segment; the segment stays.

    A conversion that was broken off can be done again: files get the same names, and files that
    another run has left are replaced or deleted. Keys that are done leave the segment's index. A
    file is closed with the row group with which it reaches `file_max_bytes`.

    Returns:
        How many rows do not fit the schema, so that no file has them.

    Raises:
        OSError: No room, or no access; nothing is lost.
    """
    segment.sync()
    bad_rows = 0
    for key in list(segment.index):
        bad_rows += _Conversion(segment, root, key, file_max_bytes).run()
        del segment.index[key]
    return bad_rows


class _Conversion:
    """The conversion of the rows of one key into files, one after the other."""

    def __init__(self, segment: Segment, root: Path, key: Key, file_max_bytes: int) -> None:
        day, self._group_id = key
        self._segment = segment
        self._offsets = segment.index[key]
        self._root = root
        self._directory = root / date_directory(day) / group_directory(self._group_id)
        self._part = root / SPOOL / f"{segment.path.stem}{PART_SUFFIX}"
        self._file_max_bytes = file_max_bytes
        self._bad_rows = 0
        self._names: set[str] = set()

    def run(self) -> int:
        """Writes all files; returns how many rows do not fit the schema."""
        make_directories(self._directory, self._root)
        batches = self._batches()
        for first_us, batch in batches:
            with ParquetFile(self._part, schema_of(self._group_id), self._root) as file:
                file.add(batch)
                while file.bytes < self._file_max_bytes:
                    _, more = next(batches, (0, None))
                    if more is None:
                        break
                    file.add(more)
                file.finish(self._directory / self._name(first_us))
        self._remove_others()
        return self._bad_rows

    def _name(self, first_us: int) -> str:
        segment = self._segment
        name = events_file(segment.coordinator_id, first_us, segment.name, len(self._names))
        self._names.add(name)
        return name

    def _remove_others(self) -> None:
        """Deletes files of the same rows that another release made before it was killed."""
        for path in self._directory.iterdir():
            if segment_of(path.name) == self._segment.name and path.name not in self._names:
                path.unlink()
                rollup_path(path).unlink(missing_ok=True)

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Batches of the rows, each with the time of its first row."""
        waiting: list[list[Block]] = []
        count = 0
        for offset in self._offsets:
            waiting.append(self._segment.read(offset))
            count += sum(len(rows) for _, _, rows in waiting[-1])
            if count >= BATCH_ROWS:
                yield from self._good(waiting)
                waiting, count = [], 0
        yield from self._good(waiting)

    def _good(self, records: list[list[Block]]) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The records as one batch; when some do not fit the schema, each of the others as one."""
        if not records:
            return
        segment, blocks = self._segment, (block for record in records for block in record)
        try:
            batch = batch_of(blocks, segment.coordinator_id, segment.schema_version)
            yield time_of(records[0][0]), batch
        except BAD_ROWS as error:
            if len(records) > 1:
                for record in records:
                    yield from self._good([record])
                return
            lost = sum(len(rows) for _, _, rows in records[0])
            self._bad_rows += lost
            log.error("event log: rows do not fit the schema", rows=lost, error=str(error))


def finish(segment: Segment, root: Path, file_max_bytes: int) -> int:
    """Turns a segment into Parquet files, and deletes it.

    Returns:
        How many rows are in no Parquet file.

    Raises:
        OSError: As `convert`; the segment stays.
    """
    try:
        bad_rows = convert(segment, root, file_max_bytes)
    except OSError:
        raise
    except Exception:
        # The segment would fail again and again, and no later one would ever be written.
        log.exception("event log: a spool file is put aside", file=str(segment.path))
        segment.put_aside()
        return segment.rows
    finally:
        pa.default_memory_pool().release_unused()
    segment.remove()
    return bad_rows


def finish_left(path: Path, root: Path, file_max_bytes: int) -> int:
    """As `finish`, for the spool file of a process that has died; does nothing while it lives."""
    segment = Segment.adopt(path)
    if segment is None:
        return 0
    log.info("event log: finishing what a writer has left", file=str(path), rows=segment.rows)
    try:
        part = root / SPOOL / f"{path.stem}{PART_SUFFIX}"
        for left in (part, rollup_part(part)):
            left.unlink(missing_ok=True)
        return finish(segment, root, file_max_bytes)
    finally:
        segment.close()
