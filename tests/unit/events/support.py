"""Rows by hand, and what a folder holds."""

from __future__ import annotations

import marshal
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sharecoord.eventlog.schema import EventBlock
from sharecoord.events.frames import LENGTH, frame_of_blocks
from sharecoord.events.parquet_files import finish
from sharecoord.events.places import SPOOL
from sharecoord.events.spool import Segment, records_of

NOON_US = int(datetime(2026, 11, 22, 12, tzinfo=UTC).timestamp()) * 1_000_000
DAY_US = 86_400_000_000
NAMES = ("event", "first_offset", "last_offset", "records")


def block(
    group_id: str = "g", first: int = 0, count: int = 3, *, time_us: int = NOON_US
) -> EventBlock:
    """`count` changes of one record each, from offset `first` on."""
    common: dict[str, Any] = {
        "kind": "range",
        "time": time_us,
        "group_id": group_id,
        "topic": "orders",
        "partition": 0,
        "change_sequence": first,
    }
    return EventBlock(common, NAMES, [("acquired", n, n, 1) for n in range(first, first + count)])


def payload(*blocks: EventBlock) -> bytes:
    """The blocks as a frame, without its length."""
    return frame_of_blocks(list(blocks))[LENGTH.size :]


def raw_payload(*blocks: tuple[Any, ...]) -> bytes:
    """Whatever a coordinator would never send."""
    return marshal.dumps(list(blocks))


def parquet_files(root: Path) -> list[Path]:
    """What Spark would read, in order of path."""
    return [
        path
        for path in sorted(root.rglob("*.parquet"))
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)
    ]


def table_of(root: Path) -> pa.Table:
    """All rows of all files."""
    return pa.concat_tables(pq.ParquetFile(path).read() for path in parquet_files(root))


def offsets(root: Path, group_id: str = "g") -> list[int]:
    """The first offsets of a group's rows, sorted."""
    if not parquet_files(root):
        return []
    rows = table_of(root).select(["group_id", "kind", "first_offset"]).to_pylist()
    return sorted(
        row["first_offset"] for row in rows if (row["group_id"], row["kind"]) == (group_id, "range")
    )


def lost_said(root: Path) -> int:
    """What the rows of kind `lost` say."""
    rows: Sequence[dict[str, Any]] = table_of(root).select(["kind", "records"]).to_pylist()
    return sum(row["records"] for row in rows if row["kind"] == "lost")


def write_files(root: Path, *blocks: EventBlock) -> list[Path]:
    """Makes the Parquet files of blocks, as a writer does; returns those that are new."""
    before = set(parquet_files(root))
    finish(spool(root, *blocks), root, 1 << 30)
    return [path for path in parquet_files(root) if path not in before]


def spool(root: Path, *blocks: EventBlock) -> Segment:
    """Rows that are in no Parquet file yet."""
    (root / SPOOL).mkdir(parents=True, exist_ok=True)
    made = Segment.create(root, "c")
    made.append(records_of(payload(*blocks)))
    return made


def flip_a_bit(path: Path) -> None:
    """Damages the last value of the column `time`, which its checksum tells."""
    with pq.ParquetFile(path) as parquet:
        column = parquet.metadata.row_group(0).column(2)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 2] ^= 1
    path.write_bytes(data)
