"""Rows as Arrow columns."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from sharecoord.eventlog.schema import COLUMN_NAMES, COLUMNS, SCHEMA_VERSION, ColumnType
from sharecoord.events.schema import BAD_ROWS, SCHEMA, TEXT_COLUMNS, VERSION_KEY, batch_of
from tests.unit.events.support import NAMES, NOON_US


def test_the_schema_is_that_of_the_core() -> None:
    assert tuple(SCHEMA.names) == COLUMN_NAMES
    assert all(field.nullable for field in SCHEMA)
    assert SCHEMA.metadata == {VERSION_KEY: str(SCHEMA_VERSION).encode()}
    assert SCHEMA.field("time").type == pa.timestamp("us", tz="UTC")
    assert SCHEMA.field("key").type == pa.binary()
    assert len(TEXT_COLUMNS) == sum(c.type is ColumnType.STRING for c in COLUMNS)


def test_blocks_of_different_columns_become_one_batch() -> None:
    batch = batch_of(
        [
            ({"kind": "range", "time": NOON_US, "group_id": "g"}, NAMES, [("acquired", 1, 2, 2)]),
            (
                {"kind": "member", "group_id": "g"},
                ("time", "got"),
                [(NOON_US, 7), (NOON_US + 1, 8)],
            ),
            ({"kind": "range", "time": NOON_US, "group_id": "h"}, ("key",), [(b"\xff",)]),
        ],
        "c1",
    )
    assert batch.schema == SCHEMA
    found = batch.to_pylist()
    assert [row["kind"] for row in found] == ["range", "member", "member", "range"]
    assert [row["first_offset"] for row in found] == [1, None, None, None]
    assert [row["got"] for row in found] == [None, 7, 8, None]
    assert [row["key"] for row in found] == [None, None, None, b"\xff"]
    assert {row["coordinator_id"] for row in found} == {"c1"}
    assert {row["schema_version"] for row in found} == {SCHEMA_VERSION}
    assert found[2]["time"] == datetime(2026, 11, 22, 12, 0, 0, 1, tzinfo=UTC)
    assert {row["window_max"] for row in found} == {None}


@pytest.mark.parametrize(
    ("names", "row"),
    [
        (("records",), ("many",)),
        (("partition",), (1 << 31,)),
        (("records",), (1 << 63,)),
        (("reason",), ("\udc80",)),
        (("records", "event"), (1,)),
        (("records",), (1, 2)),
    ],
)
def test_a_value_that_does_not_fit_is_refused(names: tuple[str, ...], row: tuple[object]) -> None:
    with pytest.raises(BAD_ROWS):
        batch_of([({"kind": "range", "time": NOON_US, "group_id": "g"}, names, [row])], "c1")
