"""Messages between coordinator and writer: rows one way, counts the other.

To the writer, on its standard input: frames, each a length and a value in Python's marshal format
(the writer is the same Python executable). The first one holds the `WriterSettings`, so passwords
never stand on a command line; every other one a list of blocks. Back, on its standard output: lines
of JSON, `{"ready": true}` or `{"error": REASON, "text": SENTENCE}` once, then `[settled, written,
lost]`: rows since the writer began.
"""

from __future__ import annotations

import marshal
import struct
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from sharecoord.eventlog.schema import EventBlock, EventKind

LENGTH: Final = struct.Struct("<I")
"""Number of bytes that follow; little-endian."""

MARSHAL_VERSION: Final = 4
"""From version 3 on, texts that repeat are written once; newer Pythons read older versions, and so
the spool of a writer of another Python."""

Value = str | int | bytes | None
Block = tuple[dict[str, Any], tuple[str, ...], list[tuple[Value, ...]]]
"""An `EventBlock` as a plain tuple: marshal takes no subclasses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterSettings:
    """Settings of a writer; texts and numbers only, so that they can be marshalled."""

    kind: str
    """`parquet` or `kafka`."""
    target: str
    """Directory or topic."""
    coordinator_id: str
    file_max_bytes: int
    """Size at which a Parquet file is closed."""
    file_max_age_ms: int
    """Longest time until rows are in a Parquet file that readers see."""
    kafka: dict[str, str] = field(repr=False)
    """librdkafka's keys."""
    files: dict[str, bytes] = field(default_factory=dict, repr=False)
    """Contents of files that those keys name, by key; others are read from the disk."""
    log_level: str = "info"
    log_json: bool = True

    def frame(self) -> bytes:
        """The first frame."""
        return frame(asdict(self))

    @staticmethod
    def read(payload: bytes) -> WriterSettings:
        """The settings of the first frame."""
        return WriterSettings(**marshal.loads(payload))


def frame(value: Any) -> bytes:
    """A value with its length.

    Raises:
        ValueError: A value of a type that marshal does not take, such as a member of an enum.
    """
    payload = marshal.dumps(value, MARSHAL_VERSION)
    return LENGTH.pack(len(payload)) + payload


def frame_of_blocks(blocks: list[EventBlock]) -> bytes:
    """A frame of rows; members of enums travel as their values, but take longer."""
    try:
        return frame([tuple(block) for block in blocks])
    except ValueError:
        return frame([_plain(block) for block in blocks])


def _plain(value: Any) -> Any:
    """The value without subclasses of the plain types."""
    if isinstance(value, dict):
        return {_plain(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    if isinstance(value, list):
        return list(map(_plain, value))
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, int) else value


def lost_block(time_us: int, records: int) -> EventBlock:
    """The row that tells how many rows before it are missing."""
    common: dict[str, str | int | None] = {
        "kind": EventKind.LOST.value,
        "group_id": "",
        "time": time_us,
    }
    return EventBlock(common, ("records",), [(records,)])


def unsaid_of(blocks: list[Block]) -> int:
    """How many rows are missing if these are lost: these, and those that they tell of."""
    total = 0
    for common, columns, rows in blocks:
        total += len(rows)
        if common.get("kind") == EventKind.LOST and columns == ("records",):
            total += sum(row[0] for row in rows if isinstance(row[0], int))
    return total


def rows_of(payload: bytes) -> int:
    """How many rows a frame of blocks has."""
    return sum(len(rows) for _, _, rows in marshal.loads(payload))


class FrameReader:
    """Cuts the bytes of a pipe into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Takes bytes; returns the payloads of the frames that they complete."""
        buffer, begin, found = self._buffer, 0, []
        buffer += data
        while len(buffer) - begin >= LENGTH.size:
            end = begin + LENGTH.size + LENGTH.unpack_from(buffer, begin)[0]
            if len(buffer) < end:
                break
            found.append(bytes(buffer[begin + LENGTH.size : end]))
            begin = end
        del buffer[:begin]
        return found
