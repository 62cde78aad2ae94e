"""The contract of `EventSink`, for a directory and a topic, with the real writer process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.eventlog.schema import (
    COLUMN_NAMES,
    SCHEMA_VERSION,
    EventBlock,
    EventKind,
    RangeEvent,
)
from sharecoord.ports import EventFigures, EventSink
from tests.contract.event_worlds import (
    KafkaWorld,
    ParquetWorld,
    World,
    lost_said,
    make_sink,
    offsets,
)
from tests.support import eventually_async, unique_name
from tests.unit.events.support import NOON_US, block


@pytest.fixture(params=["parquet", "kafka"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Each place."""
    if request.param == "parquet":
        return ParquetWorld(tmp_path / "events")
    cluster: MockCluster = request.getfixturevalue("mock_cluster")
    name = unique_name("events")
    cluster_topic(cluster, name)
    return KafkaWorld(cluster.bootstrap_servers, name)


def cluster_topic(cluster: MockCluster, name: str) -> None:
    """A mock cluster has no controller to create a topic; asking for one makes it."""
    from confluent_kafka.admin import AdminClient

    AdminClient({"bootstrap.servers": cluster.bootstrap_servers}).list_topics(name, timeout=10)


async def test_what_was_put_can_be_read(world: World) -> None:
    sink: EventSink = make_sink(world.settings("coordinator-1"))
    await sink.start()  # type: ignore[attr-defined]
    sink.put(block("g", 0, 600))
    sink.put(block("g", 600, 3))
    sink.put(block("Größe/%", 0, 2))
    await sink.close()
    assert sink.figures == EventFigures(605, 0, 0)
    rows = world.rows()
    assert offsets(rows) == list(range(603))
    assert offsets(rows, "Größe/%") == [0, 1]
    row = next(row for row in rows if row["first_offset"] == 602)
    assert tuple(row) == COLUMN_NAMES
    assert {name: value for name, value in row.items() if value is not None} == {
        "schema_version": SCHEMA_VERSION,
        "kind": "range",
        "time": row["time"],
        "coordinator_id": "coordinator-1",
        "group_id": "g",
        "topic": "orders",
        "partition": 0,
        "change_sequence": 600,
        "event": "acquired",
        "first_offset": 602,
        "last_offset": 602,
        "records": 1,
    }
    assert int(row["time"].timestamp()) * 1_000_000 == NOON_US


async def test_all_types_and_members_of_enums_arrive(world: World) -> None:
    sink = make_sink(world.settings())
    await sink.start()
    common = {"kind": EventKind.RANGE, "time": NOON_US, "group_id": "g", "partition": 7}
    names = ("event", "first_offset", "key", "reason", "held_ms", "oldest_time")
    big = (1 << 63) - 1
    rows = [(RangeEvent.RELEASED, 1, b"\0\xff", "ü\n\0", big, NOON_US), ("reset", 2, *[None] * 4)]
    sink.put(EventBlock(common, names, rows))
    await sink.close()
    first, second = sorted(world.rows(), key=lambda row: row["first_offset"])
    assert (first["event"], first["key"], first["reason"]) == ("released", b"\0\xff", "ü\n\0")
    assert (first["held_ms"], first["partition"]) == (big, 7)
    assert first["oldest_time"] == first["time"]
    assert [second[name] for name in names] == ["reset", 2, None, None, None, None]


async def test_rows_are_written_without_a_close(world: World) -> None:
    sink = make_sink(world.settings(max_age_ms=1_000))
    await sink.start()
    sink.put(block("g", 0, 5))
    await eventually_async(lambda: sink.figures.written == 5, 20)
    await eventually_async(lambda: offsets(world.rows()) == [0, 1, 2, 3, 4], 20)
    await sink.close()
    assert offsets(world.rows()) == [0, 1, 2, 3, 4]


async def test_a_killed_writer_is_started_again_and_nothing_is_lost_in_silence(
    world: World,
) -> None:
    sink = make_sink(world.settings(max_age_ms=1_000))
    await sink.start()
    killed = 0
    for n in range(200):
        sink.put(block("g", 10 * n, 10))
        if n in (60, 120) and sink.writer_pid is not None:
            await eventually_async(lambda: sink.figures.written > 0, 20)
            os.kill(sink.writer_pid, signal.SIGKILL)
            pid, killed = sink.writer_pid, killed + 1
            await eventually_async(lambda: sink.writer_pid not in (None, pid), 20)  # noqa: B023
        if n % 20 == 0:
            await eventually_async(lambda: sink.figures.waiting_bytes == 0 and not sink._blocks, 20)
    await eventually_async(lambda: sink._is_ready, 20)
    await sink.close()
    assert killed == 2
    figures = sink.figures
    rows = world.rows()
    found = offsets(rows)
    assert len(found) == len(set(found)), "nothing is there twice"
    said = lost_said(rows)
    # Every row was confirmed or counted, and all that is counted was said. What was confirmed is
    # there; of what was not, some may be there. Each start says what is missing in a row of its
    # own, which the next kill may meet on its way.
    lost_rows = sum(row["kind"] == "lost" for row in rows)
    assert 2_000 + lost_rows <= figures.written + figures.lost <= 2_000 + killed
    assert figures.written - lost_rows <= len(found) <= 2_000
    assert 2_000 - len(found) <= said <= figures.lost + lost_rows


async def test_signals_to_the_process_group_do_not_end_the_writer(world: World) -> None:
    sink = make_sink(world.settings())
    await sink.start()
    pid = sink.writer_pid
    assert pid is not None
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(pid, signum)
    sink.put(block("g", 0, 5))
    await eventually_async(lambda: sink.figures.written == 5, 20)
    assert sink.writer_pid == pid
    await sink.close()
    assert offsets(world.rows()) == [0, 1, 2, 3, 4]


async def test_a_close_without_rows(world: World) -> None:
    sink = make_sink(world.settings())
    await sink.start()
    await sink.close()
    assert world.rows() == []
    assert sink.figures == EventFigures(0, 0, 0)
