"""The events of one record, key or member from Parquet files, without Spark."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from sharecoord.errors import InvalidConfigError, InvalidRequestError
from sharecoord.eventlog.schema import COLUMN_NAMES, EventKind, RangeEvent

if TYPE_CHECKING:
    import pyarrow.compute as pc

STORY_EVENTS_MAX = 100_000
"""Most events of a story: nobody reads more, and they would fill the memory."""

_CUT: Final = re.compile("~[0-9a-f]{16}$")
"""The end of a directory's name when that of the group is too long: its files are looked into."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The record, key or member of a story: exactly one of `offset`, `key` and `member_id`."""

    group_id: str
    topic: str | None = None
    """None = all, for a key or a member."""
    partition: int | None = None
    """None = all, for a key or a member."""
    offset: int | None = None
    """Offset of the record."""
    key: bytes | None = None
    """The key; the story has its records that failed at least once."""
    member_id: str | None = None
    """Id of the member."""


def read_events(
    folder: Path, wanted: Wanted, spooled: Iterable[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """The rows that tell the story of a record, key or member, in no order.

    For the story of a record `spooled` adds rows of the group that are in no Parquet file yet.

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
    has_spooled, new = False, []
    for row in spooled:
        has_spooled = True
        if _is_about(row, wanted):
            new.append(row)
    files = [str(path) for path in _files(folder, wanted.group_id)]
    if not files and not has_spooled:
        raise InvalidRequestError(
            f"{folder} has no events of group {wanted.group_id!r}; `sharecoord events list "
            f"{folder}` shows what there is"
        )
    if not files:
        return new
    try:
        events = ds.dataset(files, format="parquet")
        return [*_rows(events, _filter(events, wanted)), *new]
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


def _filter(events: Any, wanted: Wanted) -> pc.Expression:
    """The condition on the events of the story."""
    import pyarrow.compute as pc

    if wanted.member_id is not None:
        return of_member(pc.field, wanted)
    changes = changes_of(pc.field, wanted)
    if wanted.key is None:
        return changes & about(pc.field, wanted.offset)
    failed = _rows(events, changes & (pc.field("key") == wanted.key))
    of_key = pc.scalar(False)  # noqa: FBT003 - pyarrow's own signature
    places = {(row["topic"], row["partition"], row["first_offset"]) for row in failed}
    for topic, partition, offset in sorted(places):
        place = (pc.field("topic") == topic) & (pc.field("partition") == partition)
        of_key |= place & about(pc.field, offset)
    return changes & of_key


# -- conditions, in pyarrow and in Spark ----------------------------------------------------------

Field = Callable[[str], Any]
"""A column by its name: `pyarrow.compute.field`, or `pyspark.sql.functions.col`."""


def of_member(field: Field, wanted: Wanted) -> Any:
    """Events of the member."""
    kind = field("kind")
    kinds = (kind == EventKind.RANGE.value) | (kind == EventKind.GROUP.value)
    same_group = field("group_id") == wanted.group_id
    return kinds & same_group & (field("member_id") == wanted.member_id)


def changes_of(field: Field, wanted: Wanted) -> Any:
    """The changes of the group, topic and partition, as far as they are given."""
    condition = (field("kind") == EventKind.RANGE.value) & (field("group_id") == wanted.group_id)
    if wanted.topic is not None:
        condition &= field("topic") == wanted.topic
    if wanted.partition is not None:
        condition &= field("partition") == wanted.partition
    return condition


def about(field: Field, offset: Any) -> Any:
    """Ranges with this offset, a number or a column, and events of all offsets from one on."""
    event = field("event")
    reaches = (field("last_offset") >= offset) | (event == RangeEvent.TRUNCATED.value)
    return ((field("first_offset") <= offset) & reaches) | (event == RangeEvent.RESET.value)


def _is_about(row: Mapping[str, Any], wanted: Wanted) -> bool:
    """Whether a row belongs to the story of a record; the same condition as `about`."""
    assert wanted.offset is not None, "the story of a record"
    place = (row["kind"], row["group_id"], row.get("topic"), row.get("partition"))
    if place != (EventKind.RANGE.value, wanted.group_id, wanted.topic, wanted.partition):
        return False
    first, event = row["first_offset"], row["event"]
    reaches = event == RangeEvent.TRUNCATED.value or wanted.offset <= row["last_offset"]
    return event == RangeEvent.RESET.value or bool(first <= wanted.offset and reaches)
