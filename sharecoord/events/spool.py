"""Rows on their way into Parquet files: one file per writer, appended to, safe once it is written.

A Parquet file can not be read before its end is written, and one that is open for each group takes
memory for each group. So rows first go, as they came through the pipe, to the end of one spool
file, whatever their groups; after some time, or at some size, it becomes the Parquet files of all
groups at once. What is in it survives the end of the process by whatever means.

A spool file is locked (`flock`) by the process that writes it or makes Parquet files of it. One
that is there and not locked was left by a process that died; whoever takes the lock finishes it.

Record: length and CRC-32 of the payload, payload: blocks in marshal format, of one group and one
date. The first record tells whose rows they are. Reading ends at the first record that is not
whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import marshal
import os
import secrets
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import structlog

from sharecoord.errors import InvalidConfigError
from sharecoord.eventlog.schema import COLUMN_NAMES, SCHEMA_VERSION
from sharecoord.events.frames import MARSHAL_VERSION, Block, unsaid_of
from sharecoord.events.places import (
    DAY_US,
    SPOOL,
    date_directory,
    day_of,
    group_directory,
    segment_of,
)

_HEAD: Final = struct.Struct("<II")
_SUFFIX: Final = ".spool"
ASIDE_SUFFIX: Final = ".bad"
"""Ending of a spool file that no Parquet files can be made of."""
_MODE: Final = 0o600

BAD_ROWS: Final = (ValueError, TypeError, LookupError, AttributeError, EOFError)
"""Errors of reading a payload that no coordinator wrote."""

log = structlog.get_logger(__name__)

Key = tuple[int, str]
"""Days since the epoch, and group id: they decide which Parquet file a row goes to."""


class Record(NamedTuple):
    """Blocks of one key."""

    key: Key
    payload: bytes
    rows: int
    unsaid: int
    """Rows that are missing if these are lost; see `unsaid_of`."""
    time_us: int
    """Time of the first row, microseconds since the epoch."""

    def blocks(self) -> list[Block]:
        """The rows of the record."""
        blocks: list[Block] = marshal.loads(self.payload)
        return blocks


def records_of(payload: bytes) -> list[Record]:
    """The blocks of a frame by key; nearly always there is one key.

    Raises:
        BAD_ROWS: A row has no time or no group, or has too few values.
    """
    blocks: list[Block] = marshal.loads(payload)
    by_key: dict[Key, list[Block]] = {}
    for block in blocks:
        for key, part in _by_key(block):
            by_key.setdefault(key, []).append(part)
    if len(by_key) == 1:
        ((key, found),) = by_key.items()
        return [_record(key, found, payload)]
    return [
        _record(key, found, marshal.dumps(found, MARSHAL_VERSION)) for key, found in by_key.items()
    ]


def _record(key: Key, blocks: list[Block], payload: bytes) -> Record:
    rows = sum(len(rows) for _, _, rows in blocks)
    return Record(key, payload, rows, unsaid_of(blocks), time_of(blocks[0]))


def time_of(block: Block) -> int:
    """The time of a block's first row."""
    common, names, rows = block
    time_us = common["time"] if "time" in common else rows[0][names.index("time")]
    assert isinstance(time_us, int), "checked when it came"
    return time_us


def _by_key(block: Block) -> Iterator[tuple[Key, Block]]:
    common, names, rows = block
    if not rows:
        return
    if "time" in common and "group_id" in common:
        yield (day_of(common["time"]), _group(common["group_id"])), block
        return
    times = _values(block, "time")
    if "group_id" in common and min(times) // DAY_US == max(times) // DAY_US:
        yield (day_of(times[0]), _group(common["group_id"])), block
        return
    parts: dict[Key, list[tuple[Any, ...]]] = {}
    for time_us, group_id, row in zip(times, _values(block, "group_id"), rows, strict=True):
        parts.setdefault((day_of(time_us), _group(group_id)), []).append(row)
    for key, part in parts.items():
        yield key, (common, names, part)


def _values(block: Block, name: str) -> list[Any]:
    common, names, rows = block
    if name in common:
        return [common[name]] * len(rows)
    if name not in names:
        raise ValueError(f"rows without {name}")
    place = names.index(name)
    values = [row[place] for row in rows]
    if None in values:
        raise ValueError(f"a row without {name}")
    return values


def _group(group_id: object) -> str:
    if not isinstance(group_id, str):
        raise ValueError(f"group_id={group_id!r} is not a text")  # noqa: TRY004 - one kind for all
    return group_id


class Segment:
    """A spool file; locked by this process, unless `peek` made the object.

    Attributes:
        name: 12 hex digits, part of the names of its Parquet files.
        size: Bytes of the file.
        index: Where the records of each key begin, in the order in which they came.
    """

    def __init__(self, path: Path, descriptor: int, coordinator_id: str) -> None:
        self.path = path
        self.name = segment_name(path)
        self.coordinator_id = coordinator_id
        self.schema_version = SCHEMA_VERSION
        self.size = 0
        self.rows = 0
        self.index: dict[Key, array[int]] = {}
        self._descriptor = descriptor

    @staticmethod
    def create(root: Path, coordinator_id: str) -> Segment:
        """Makes a new segment without rows."""
        while True:
            path = root / SPOOL / f"{coordinator_id}-{secrets.token_hex(6)}{_SUFFIX}"
            descriptor = _locked(path, os.O_CREAT | os.O_EXCL)
            if descriptor is None:  # another process took it for one that was left
                continue
            segment = Segment(path, descriptor, coordinator_id)
            try:
                segment._write([marshal.dumps((SCHEMA_VERSION, coordinator_id), MARSHAL_VERSION)])
            except OSError:
                segment.remove()
                raise
            return segment

    @staticmethod
    def peek(path: Path) -> Segment | None:
        """Opens a segment of any process for reading; None = it is gone, or can not be read."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        segment = Segment(path, descriptor, "")
        try:
            segment._scan()
        except BAD_ROWS:
            segment.close()
            return None
        return segment

    @staticmethod
    def adopt(path: Path) -> Segment | None:
        """Takes over the segment of a dead process; None = a process has its lock."""
        descriptor = _locked(path, 0)
        if descriptor is None:
            return None
        segment = Segment(path, descriptor, "")
        try:
            segment._scan()
        except BAD_ROWS:
            log.exception("event log: a spool file is put aside", file=str(path))
            segment.put_aside()
            return None
        return segment

    def append(self, records: Sequence[Record]) -> None:
        """Writes records, which then survive the end of this process.

        Raises:
            OSError: They could not be written; the file is as before.
        """
        offset = self.size
        self._write([record.payload for record in records])
        for record in records:
            self.index.setdefault(record.key, array("Q")).append(offset)
            offset += _HEAD.size + len(record.payload)
        self.rows += sum(record.rows for record in records)

    def _write(self, payloads: list[bytes]) -> None:
        parts: list[bytes] = []
        for payload in payloads:
            parts += (_HEAD.pack(len(payload), zlib.crc32(payload)), payload)
        data = memoryview(b"".join(parts))
        at = self.size
        try:
            while data:
                written = os.pwrite(self._descriptor, data, at)
                data, at = data[written:], at + written
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.size)
            raise
        self.size = at

    def read(self, offset: int) -> list[Block]:
        """The blocks of the record at an offset of the index."""
        payload = self._payload(offset)
        assert payload is not None, "only whole records are in the index"
        blocks: list[Block] = marshal.loads(payload)
        return blocks

    def _payload(self, offset: int) -> bytes | None:
        head = os.pread(self._descriptor, _HEAD.size, offset)
        if len(head) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack(head)
        if offset + _HEAD.size + length > os.fstat(self._descriptor).st_size:
            return None
        payload = os.pread(self._descriptor, length, offset + _HEAD.size)
        return payload if len(payload) == length and zlib.crc32(payload) == checksum else None

    def _scan(self) -> None:
        """Makes the index of a file that another process wrote."""
        while (payload := self._payload(self.size)) is not None:
            if self.size == 0:
                self.schema_version, self.coordinator_id = marshal.loads(payload)
            else:
                (record,) = records_of(payload)
                self.index.setdefault(record.key, array("Q")).append(self.size)
                self.rows += record.rows
            self.size += _HEAD.size + len(payload)

    def sync(self) -> None:
        """Waits until the file survives a loss of power."""
        os.fsync(self._descriptor)

    def put_aside(self) -> None:
        """Keeps the file for people to look at, under a name that no writer takes."""
        self.path.rename(self.path.with_suffix(ASIDE_SUFFIX))
        self.close()

    def remove(self) -> None:
        """Deletes the file and gives up the lock."""
        self.path.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        """Gives up the lock; the file stays for the next process."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def segment_name(path: Path) -> str:
    """The 12 hex digits in a spool file's name."""
    return path.name.removesuffix(_SUFFIX).rpartition("-")[2]


def spool_files(root: Path) -> list[Path]:
    """The spool files of all coordinators below a folder."""
    return sorted((root / SPOOL).glob(f"*{_SUFFIX}"))


def waiting_rows(root: Path, group_id: str | None = None) -> Iterator[tuple[Key, dict[str, Any]]]:
    """Rows of all writers that are in no Parquet file yet, in no order; with all columns.

    A reader that looks at Parquet files as well looks here first, so that it misses none.

    Args:
        root: Folder of the event log.
        group_id: Only rows of this group; None: of all groups.
    """
    for path in spool_files(root):
        segment = Segment.peek(path)
        if segment is None:
            continue
        try:
            named = dict.fromkeys(COLUMN_NAMES) | {
                "coordinator_id": segment.coordinator_id,
                "schema_version": segment.schema_version,
            }
            for key, offsets in segment.index.items():
                if group_id not in (None, key[1]) or _has_files(root, key, segment.name):
                    continue
                for common, names, rows in (b for at in offsets for b in segment.read(at)):
                    for row in rows:
                        yield key, {**named, **common, **dict(zip(names, row, strict=True))}
        finally:
            segment.close()


def _has_files(root: Path, key: Key, segment: str) -> bool:
    """Whether there are Parquet files of a segment's rows of this key."""
    day, group_id = key
    place = root / date_directory(day) / group_directory(group_id)
    return any(segment_of(each.name) == segment for each in place.glob("events-*.parquet"))


def is_left(path: Path) -> bool:
    """Whether the process that wrote a spool file has died."""
    descriptor = _locked(path, 0)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _locked(path: Path, flags: int) -> int | None:
    """A descriptor of a file, locked; None = another process has the lock, or the file is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, _MODE)
    except (FileNotFoundError, FileExistsError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Another process may have deleted the file between the two calls.
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except BlockingIOError:
        pass
    except OSError as error:
        os.close(descriptor)
        raise InvalidConfigError(
            f"the file system of {path} can not lock files ({error.strerror}), so nobody could "
            "tell which spool files are in use. Put the event log on one that can"
        ) from error
    os.close(descriptor)
    return None
