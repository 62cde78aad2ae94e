"""Where the files of the event log lie, and how a file is made durable.

    DIR/date=2026-11-22/group=orders/events-COORDINATOR-TIME-SEGMENT-PART.parquet
    DIR/_spool/COORDINATOR-SEGMENT.spool

Spark and other readers of Hive's layout skip names that begin with `_` (Spark only without a `=`).
"""

from __future__ import annotations

import hashlib
import os
import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

from sharecoord.eventlog.rollups import DIRECTORY

SPOOL: Final = "_spool"
"""Directory for rows that are in no Parquet file yet."""

PART_SUFFIX: Final = ".part"
"""Ending of files that are not whole yet."""

DAY_US: Final = 86_400_000_000
LAST_DAY: Final = (date.max - date(1970, 1, 1)).days

_EMPTY: Final = "__HIVE_DEFAULT_PARTITION__"
"""How Hive and Spark write the empty value."""

_NAME_BYTES_MAX: Final = 255
"""Longest name that Linux' file systems take."""

# ExternalCatalogUtils.escapePathName of Spark, FileUtils.escapePathName of Hive.
_TO_ESCAPE: Final = re.compile("[\x01-\x1f\"#%'*/:=?\\\\\x7f{\\[\\]^]")
_ESCAPED: Final = re.compile("%([0-9A-Fa-f]{2})")
_EVENTS_FILE: Final = re.compile(
    r"events-.+-[0-9]{8}T[0-9]{6}-(?P<segment>[0-9a-f]{12})-[0-9]+\.parquet", re.ASCII
)


def escape(value: str) -> str:
    """A value as part of a directory's name, percent-encoded as Spark and Hive do."""
    return _TO_ESCAPE.sub(lambda found: f"%{ord(found[0]):02X}", value) or _EMPTY


def unescape(name: str) -> str:
    """The value of a part of a directory's name, unless the name was cut."""
    if name == _EMPTY:
        return ""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), name)


def group_directory(group_id: str) -> str:
    """`group=…`; a name that would be too long for the file system is cut and gets a hash."""
    name = f"group={escape(group_id)}"
    if len(os.fsencode(name)) <= _NAME_BYTES_MAX:
        return name
    mark = "~" + hashlib.sha256(group_id.encode()).hexdigest()[:16]
    cut = os.fsencode(name)[: _NAME_BYTES_MAX - len(mark)].decode("utf-8", "ignore")
    return re.sub("%[0-9A-F]?$", "", cut) + mark


def day_of(time_us: object) -> int:
    """Days since the epoch, UTC; refuses a time that is no number or has a year of five digits."""
    if not isinstance(time_us, int) or not 0 <= time_us // DAY_US <= LAST_DAY:
        raise ValueError(f"time={time_us!r} is not microseconds since 1970")
    return time_us // DAY_US


def date_directory(day: int) -> str:
    """`date=2026-11-22` of days since the epoch."""
    return f"date={(date(1970, 1, 1) + timedelta(days=day)).isoformat()}"


def date_of(directory_name: str) -> date | None:
    """The date of `date=2026-11-22`; None for every other name."""
    try:
        return date.fromisoformat(directory_name.removeprefix("date="))
    except ValueError:
        return None


def events_file(coordinator_id: str, first_us: int, segment: str, part: int) -> str:
    """The name of a Parquet file.

    Args:
        coordinator_id: The coordinator that the events come from.
        first_us: Time of its first row, microseconds since the epoch.
        segment: 12 random hex digits of the spool file that it is made of.
        part: Number of the file among those of the same segment, date and group.
    """
    first = datetime.fromtimestamp(first_us // 1_000_000, UTC)
    return f"events-{coordinator_id}-{first:%Y%m%dT%H%M%S}-{segment}-{part}.parquet"


def segment_of(name: str) -> str:
    """The segment of a Parquet file's name; "" when it has none."""
    found = _EVENTS_FILE.fullmatch(name)
    return found["segment"] if found else ""


def sync(path: Path) -> None:
    """Waits until a file, or the names in a directory, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directories(directory: Path, root: Path) -> None:
    """Makes a directory below `root`, durably."""
    if directory == root or directory.is_dir():
        return
    make_directories(directory.parent, root)
    directory.mkdir(exist_ok=True)
    sync(directory.parent)


def rollup_path(events_path: Path) -> Path:
    """Where the rollups of a file of the event log lie."""
    return events_path.parents[2].joinpath(DIRECTORY, *events_path.parts[-3:])


def events_path(rollups: Path) -> Path:
    """The file of the event log that a file of rollups is made of."""
    return rollups.parents[3].joinpath(*rollups.parts[-3:])


def rollup_part(events_part: Path) -> Path:
    """The name of rollups while they are written, beside the unfinished file of events."""
    return events_part.with_suffix(f".rollups{PART_SUFFIX}")
