"""The events of one record, key or member from Parquet files, without Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from sharecoord.errors import InvalidConfigError, InvalidRequestError
from sharecoord.eventlog.schema import COLUMN_NAMES, EventKind, RangeEvent

if TYPE_CHECKING:
    import pyarrow.compute as pc

STORY_EVENTS_MAX = 100_000
"""More is no story that anybody reads, and would fill the memory: ask for less time."""


_CUT: Final = re.compile("~[0-9a-f]{16}$")
"""How the directory of a group ends whose name was too long for one: its files are looked into."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Whose story; one of `offset`, `key` and `member_id`.

    Attributes:
        group_id: The share group.
        topic: None = all (of a member).
        partition: None = all (of a key or a member).
        offset: One record.
        key: One key: the records of it that failed at least once.
        member_id: One member.
    """

    group_id: str
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None
    key: bytes | None = None
    member_id: str | None = None


def read_events(
    folder: Path, wanted: Wanted, spooled: Iterable[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """The rows that tell the story, in no order.

    Args:
        folder: Of the event log (`--events parquet:DIR`).
        wanted: Whose.
        spooled: Rows of the group that are in no Parquet file yet; for the story of one record.

    Raises:
        InvalidRequestError: There is no such folder, it has no events of the group, a file is
            corrupt, or there are more than `STORY_EVENTS_MAX`.
        InvalidConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
        import pyarrow.dataset as ds
    except ImportError as error:
        raise InvalidConfigError(
            "reading events needs pyarrow: pip install 'sharecoord[events]'"
        ) from error
    waiting = list(_told(spooled, wanted))
    files = [str(path) for path in _files(folder, wanted.group_id)]
    if not files and not waiting:
        raise InvalidRequestError(
            f"{folder} has no events of group {wanted.group_id!r}; `sharecoord events list "
            f"{folder}` shows what there is"
        )
    new = [row for row in waiting if row is not None]
    if not files:
        return new
    try:
        events = ds.dataset(files, format="parquet")
        offsets = None if wanted.key is None else _offsets_of(events, wanted)
        return [*_rows(events, _filter(wanted, offsets)), *new]
    except (pa.ArrowInvalid, OSError) as error:
        raise InvalidRequestError(
            f"{folder}: {error}; `sharecoord events check {folder}` names the files that can not "
            "be read"
        ) from error


def _files(folder: Path, group_id: str) -> Iterator[Path]:
    if not folder.is_dir():
        raise InvalidRequestError(f"{folder} is not a folder; give that of --events parquet:DIR")
    for group in sorted(folder.glob("date=*/group=*")):
        name = group.name.removeprefix("group=")
        if unquote(name) == group_id or _CUT.search(name):
            yield from sorted(group.glob("[!_.]*.parquet"))


def _rows(events: Any, where: pc.Expression) -> list[dict[str, Any]]:
    names = [name for name in COLUMN_NAMES if name in events.schema.names]
    table = events.head(STORY_EVENTS_MAX + 1, columns=names, filter=where)
    if table.num_rows > STORY_EVENTS_MAX:
        raise InvalidRequestError(
            f"there are more than {STORY_EVENTS_MAX} events; ask for one record or one partition"
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _offsets_of(events: Any, wanted: Wanted) -> list[tuple[str, int, int]]:
    """(topic, partition, offset) of the records of a key."""
    import pyarrow.compute as pc

    found = _rows(events, _common(wanted) & (pc.field("key") == wanted.key))
    return sorted({(row["topic"], row["partition"], row["first_offset"]) for row in found})


def _common(wanted: Wanted) -> pc.Expression:
    import pyarrow.compute as pc

    where = (pc.field("group_id") == wanted.group_id) & (pc.field("kind") == EventKind.RANGE.value)
    if wanted.topic is not None:
        where &= pc.field("topic") == wanted.topic
    if wanted.partition is not None:
        where &= pc.field("partition") == wanted.partition
    return where


def _filter(wanted: Wanted, offsets: list[tuple[str, int, int]] | None) -> pc.Expression:
    import pyarrow.compute as pc

    if wanted.member_id is not None:
        its_own = (pc.field("group_id") == wanted.group_id) & pc.field("kind").isin(
            [EventKind.RANGE.value, EventKind.GROUP.value]
        )
        return its_own & (pc.field("member_id") == wanted.member_id)
    if offsets is None:
        assert wanted.offset is not None, "one of three"
        return _common(wanted) & _about(wanted.offset)
    where = pc.scalar(False)  # noqa: FBT003 - pyarrow's own signature
    for topic, partition, offset in offsets:
        place = (pc.field("topic") == topic) & (pc.field("partition") == partition)
        where |= place & _about(offset)
    return _common(wanted) & where


def _told(rows: Iterable[Mapping[str, Any]], wanted: Wanted) -> Iterator[Mapping[str, Any] | None]:
    """The rows that tell the story; None once when there are others."""
    others = False
    for row in rows:
        if _is_about(row, wanted):
            yield row
        elif not others:
            others = True
            yield None


def _is_about(row: Mapping[str, Any], wanted: Wanted) -> bool:
    """As `_filter`, of one record and one row."""
    assert wanted.offset is not None, "the story of a record"
    place = (row["kind"], row["group_id"], row.get("topic"), row.get("partition"))
    if place != (EventKind.RANGE.value, wanted.group_id, wanted.topic, wanted.partition):
        return False
    first, event = row["first_offset"], row["event"]
    if event == RangeEvent.RESET.value:
        return True
    last = None if event == RangeEvent.TRUNCATED.value else row["last_offset"]
    return bool(first <= wanted.offset and (last is None or wanted.offset <= last))


def _about(offset: int) -> pc.Expression:
    """Events of ranges with this offset, and those that concern all offsets from one on."""
    import pyarrow.compute as pc

    first, last, event = pc.field("first_offset"), pc.field("last_offset"), pc.field("event")
    return (
        ((first <= offset) & (last >= offset))
        | ((event == RangeEvent.TRUNCATED.value) & (first <= offset))
        | (event == RangeEvent.RESET.value)
    )
