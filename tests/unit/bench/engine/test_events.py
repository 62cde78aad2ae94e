"""Trials as rows of the event log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import parquet

from sharecoord.bench.engine.cell import Cell, Consumer
from sharecoord.bench.engine.figures import Interval
from sharecoord.bench.engine.trial import Outcome
from sharecoord.bench.run.events import EventFolder
from sharecoord.eventlog.schema import COLUMN_NAMES
from tests.unit.bench.engine.support import MS, make_samples, make_trial

CELL = Cell(Consumer.KAFKA_SHARE, consumers=2, work_ms=5.0)


def written(tmp_path: Path, cell: Cell, *samples: tuple[int, ...]) -> list[dict[str, Any]]:
    """The rows of a trial of two seconds that began at 1 s of the monotonic clock."""
    folder = EventFolder(tmp_path, 2.0)
    folder.add(
        Outcome(make_trial(0, 1), make_samples(*samples), Interval(1000 * MS, 2000 * MS)),
        cell,
        "kafka, 50 #1",
    )
    (path,) = tmp_path.glob("events/date=*/group=kafka, 50 %231/events-bench-*.parquet")
    table = parquet.read_table(path, partitioning=None)
    assert table.schema.names == list(COLUMN_NAMES)
    rows: list[dict[str, Any]] = table.to_pylist()
    assert {row["group_id"] for row in rows} == {"kafka, 50 #1"}
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    return rows


def test_what_a_consumer_handled_in_a_second_is_told_in_two_rows(tmp_path: Path) -> None:
    rows = written(
        tmp_path,
        CELL,
        (0, 1, 900, 5),
        (0, 1, 1_000, 5, 20),
        (0, 1, 1_010, 7, 30),
        (0, 1, 2_100, 6),
        (1, 3, 2_999, 0),
        (1, 1, 3_000, 5),
    )
    told = [row for row in rows if row["kind"] == "range"]
    names = ("event", "member_id", "records", "age_ms", "held_ms", "work_us")
    assert sorted((tuple(row[name] for name in names) for row in told), key=str) == [
        ("accepted", "consumer-0", 1, None, 6, 6_000),
        ("accepted", "consumer-0", 2, None, 6, 12_000),
        ("accepted", "consumer-1", 3, None, 0, 0),
        ("acquired", "consumer-0", 1, None, None, None),
        ("acquired", "consumer-0", 2, 30, None, None),
        ("acquired", "consumer-1", 3, None, None, None),
    ]
    first = next(row for row in told if row["event"] == "acquired")
    last = max(row["time"] for row in told if row["member_id"] == "consumer-0")
    assert (last - first["time"]).total_seconds() == 1.106


def test_who_got_nothing_wanted_something_all_the_same(tmp_path: Path) -> None:
    rows = written(tmp_path, CELL, (0, 1, 1_000, 5), (0, 300, 2_000, 0))
    samples = [row for row in rows if row["kind"] == "member"]
    assert [(row["member_id"], row["demand"], row["got"]) for row in samples] == [
        ("consumer-0", 200, 1),
        ("consumer-1", 200, 0),
        ("consumer-0", 300, 300),
        ("consumer-1", 200, 0),
    ]


def test_without_work_everybody_wants_what_the_quickest_got(tmp_path: Path) -> None:
    cell = Cell(Consumer.KAFKA_SHARE, consumers=2)
    rows = written(tmp_path, cell, (0, 50, 1_000, 0), (1, 20, 1_000, 0))
    samples = [row for row in rows if row["kind"] == "member"]
    assert [(row["demand"], row["got"]) for row in samples] == [
        (50, 50),
        (50, 20),
        (50, 0),
        (50, 0),
    ]
