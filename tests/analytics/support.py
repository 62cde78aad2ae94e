"""Events by hand: as frames, and as files like those of a coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from sharecoord.analytics import frames
from sharecoord.eventlog.schema import COLUMN_NAMES, COLUMNS, SCHEMA_VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = datetime(2026, 1, 5, tzinfo=UTC)
Row = dict[str, Any]

ARROW_SCHEMA = pa.schema([(column.name, column.type.in_arrow(pa)) for column in COLUMNS])


def at(seconds: float) -> datetime:
    """A time after the first."""
    return T0 + timedelta(seconds=seconds)


def event(kind: str, seconds: float, **values: Any) -> Row:
    """A row of any kind."""
    common = {"schema_version": SCHEMA_VERSION, "coordinator_id": "c1", "group_id": "g"}
    return {**common, "kind": kind, "time": at(seconds), **values}


def sample(seconds: float, member: str, demand: int, got: int, **values: Any) -> Row:
    """What a member wanted and got in the second that ends then."""
    given = {"member_id": member, "demand": demand, "got": got, "held": 0, "interval_ms": 1_000}
    return event("member", seconds, **{**given, **values})


def change(seconds: float, what: str, member: str, records: int, **values: Any) -> Row:
    """A change of a range."""
    given = {"topic": "t", "topic_id": "0" * 32, "partition": 0, "client_id": f"client-{member}"}
    return event(
        "range", seconds, event=what, member_id=member, records=records, **{**given, **values}
    )


def handed(seconds: float, member: str, records: int, **values: Any) -> Row:
    """Records that a member was handed."""
    return change(seconds, "acquired", member, records, **values)


def busy(first: int, last: int, *, group: str = "g", starving: range = range(0)) -> list[Row]:
    """Seconds from `first` to before `last`: a and b want 10 records each and get 6 and 4."""
    rows = []
    for second in range(first, last):
        hungry = second in starving
        got = {"a": 10 if hungry else 6, "b": 0 if hungry else 4}
        for place, (member, records) in enumerate(got.items()):
            named = {"group_id": group, "coordinator_id": f"c{place}"}
            rows.append(sample(second + 1, member, 10, records, **named))
            if records:
                change = {"change_sequence": 2 * second + place, "first_offset": 20 * second}
                given = {**change, "available_ms": 5 * second, "partition": place}
                rows.append(handed(second + 0.5, member, records, **named, **given))
        placed = {"topic": "t", "topic_id": "x", "partition": 0, "lag": second, "group_id": group}
        rows.append(event("partition", second + 1, **placed, interval_ms=1_000))
    return rows


def end(second: int) -> list[Row]:
    """A row of another group: what lies more than the watermark before it is over."""
    return [sample(second + 6, "z", 1, 1, group_id="other")]


def frame(spark: SparkSession, rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """Rows as a frame with all columns of the events."""
    listed = [tuple(row.get(name) for name in COLUMN_NAMES) for row in rows]
    made: DataFrame = spark.createDataFrame(listed, frames.schema())
    return made


def escaped(group: str) -> str:
    """As Hive and Spark escape a value in the name of a folder."""
    return "".join(f"%{ord(c):02X}" if c in "\"#%'*/:=?\\{[]^" or c < " " else c for c in group)


def write(
    folder: Path,
    rows: Iterable[Mapping[str, Any]],
    *,
    name: str = "events-1",
    schema: pa.Schema = ARROW_SCHEMA,
) -> list[Path]:
    """Writes rows to the folders of their dates and groups; returns the files."""
    parts: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        group = row["group_id"] or "__HIVE_DEFAULT_PARTITION__"
        parts.setdefault((row["time"].date().isoformat(), group), []).append(row)
    made = []
    for (date, group), part in parts.items():
        place = folder / f"date={date}" / f"group={escaped(group)}"
        place.mkdir(parents=True, exist_ok=True)
        path = place / f"{name}.parquet"
        columns = {each: [row.get(each) for row in part] for each in schema.names}
        pq.write_table(pa.table(columns, schema=schema), path)
        made.append(path)
    return made


def dicts(found: DataFrame) -> list[Row]:
    """All rows of a small frame."""
    return [row.asDict() for row in found.collect()]


def by(found: DataFrame | list[Row], *keys: str) -> dict[Any, Row]:
    """Rows by the values of these columns."""
    rows = found if isinstance(found, list) else dicts(found)
    named = {tuple(row[key] for key in keys): row for row in rows}
    assert len(named) == len(rows), f"{keys} are not unique"
    return {key[0] if len(keys) == 1 else key: row for key, row in named.items()}


class Scenes:
    """Rows of many tests, whose tables Spark makes at once: each scene has groups of its own.

    A job of Spark takes as long for one row as for a thousand.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._count = 0

    def add(self, rows: Iterable[Row]) -> int:
        """Takes the rows of a scene; returns its number."""
        self._count += 1
        self.rows += [row | {"group_id": f"{self._count}/{row['group_id']}"} for row in rows]
        return self._count


def by_scene(found: DataFrame) -> dict[int, list[Row]]:
    """The rows of a table by the scene that they are of, with the groups' own names."""
    scenes: dict[int, list[Row]] = {}
    for row in dicts(found):
        number, _, group_id = row["group_id"].partition("/")
        scenes.setdefault(int(number), []).append(row | {"group_id": group_id})
    return scenes
