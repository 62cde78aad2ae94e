"""The writer's sink for a folder: when files are made, and what becomes of trouble."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from sharecoord.errors import InvalidConfigError
from sharecoord.eventlog.schema import EventBlock
from sharecoord.events import parquet_sink
from sharecoord.events.frames import lost_block
from sharecoord.events.parquet_sink import LOOK_S, RETRY_S, ParquetSink
from sharecoord.events.places import SPOOL
from sharecoord.events.spool import Segment, records_of, spool_files
from tests.unit.events.support import (
    NOON_US,
    block,
    lost_said,
    offsets,
    parquet_files,
    payload,
    table_of,
)

MIB = 1 << 20
AGE_S = 200


class World:
    """A sink, its clock, and its converter, which is waited for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 1000.0
        self.sink = self.restarted()

    def restarted(self, coordinator_id: str = "c", file_max_bytes: int = MIB) -> ParquetSink:
        self.sink = ParquetSink(
            self.root,
            coordinator_id=coordinator_id,
            file_max_bytes=file_max_bytes,
            file_max_age_ms=AGE_S * 1000,
            now_s=lambda: self.now_s,
        )
        return self.sink

    def put(self, *blocks: EventBlock) -> None:
        self.sink.take(payload(*blocks))
        self.sink.work()

    def settle(self) -> None:
        """Works until the converter has nothing to do."""
        self.sink.work()
        while self.sink._job is not None:
            self.sink._job.exception()
            self.sink.work()

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()

    @property
    def counts(self) -> tuple[int, int, int]:
        counts = self.sink.counts
        return counts.settled, counts.written, counts.lost


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "events")
    yield made
    made.sink.close()


# -- when -----------------------------------------------------------------------------------------


def test_rows_are_counted_when_they_are_in_the_spool(world: World) -> None:
    world.settle()
    assert world.sink.wait_s() == LOOK_S
    world.put(block("g", 0, 5))
    assert world.counts == (5, 5, 0)
    assert parquet_files(world.root) == []
    assert world.sink.wait_s() == AGE_S


def test_files_are_made_at_their_age_also_when_nothing_comes_any_more(world: World) -> None:
    world.put(block("quiet", 0, 5))
    world.pass_s(AGE_S - 1)
    world.put(block("busy", 0, 1))
    assert parquet_files(world.root) == []
    assert world.sink.wait_s() == 1
    world.pass_s(1)
    assert offsets(world.root, "quiet") == [0, 1, 2, 3, 4]
    assert offsets(world.root, "busy") == [0]
    assert world.sink.wait_s() == LOOK_S - AGE_S


def test_files_are_made_at_their_size(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_sink, "FILES_PER_SEGMENT", 1)
    world.restarted(file_max_bytes=2_000)
    for n in range(200):
        world.put(block("g", n, 1))
        world.settle()
    made = len(parquet_files(world.root))
    assert made > 3
    assert offsets(world.root) == list(range(len(offsets(world.root))))
    world.sink.close()
    assert offsets(world.root) == list(range(200))


def test_rows_wait_for_a_converter_that_is_behind(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_sink, "FILES_PER_SEGMENT", 1)
    world.restarted(file_max_bytes=1_000)
    for n in range(100):
        world.put(block("g", n, 1))
        assert len(spool_files(world.root)) <= parquet_sink.PENDING_MAX + 2
    world.sink.close()
    assert world.counts == (100, 100, 0)
    assert offsets(world.root) == list(range(100))


def test_many_groups_take_two_open_files(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put(block("g0", 0, 1))
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the files themselves do not matter
    seen = []
    real = parquet_sink.finish

    def finish(segment: Segment, root: Path, size: int) -> int:
        seen.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
        return real(segment, root, size)

    monkeypatch.setattr(parquet_sink, "finish", finish)
    world.put(*(block(f"g{n}", n, 1) for n in range(1, 100)))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    world.pass_s(AGE_S)
    assert len(parquet_files(world.root)) == 100
    assert seen == [before]
    assert len(os.listdir("/proc/self/fd")) < before  # noqa: PTH208


def test_close_makes_files_of_everything(world: World) -> None:
    world.put(block("g", 0, 5))
    world.sink.take(payload(block("g", 5, 1)))
    world.sink.close()
    assert offsets(world.root) == [0, 1, 2, 3, 4, 5]
    assert list((world.root / SPOOL).iterdir()) == []
    assert world.counts == (6, 6, 0)


# -- what others have left ------------------------------------------------------------------------


def left_by_another(world: World, coordinator_id: str, first: int) -> Segment:
    segment = Segment.create(world.root, coordinator_id)
    segment.append(records_of(payload(block("g", first, 2))))
    return segment


@pytest.mark.parametrize("coordinator_id", ["c", "other"])
def test_the_spool_of_a_dead_writer_is_finished_at_the_start(
    world: World, coordinator_id: str
) -> None:
    left_by_another(world, coordinator_id, 0).close()
    world.restarted()
    world.settle()
    assert offsets(world.root) == [0, 1]
    assert set(table_of(world.root)["coordinator_id"].to_pylist()) == {coordinator_id}
    assert spool_files(world.root) == []
    assert world.counts == (0, 0, 0)


def test_the_spool_of_a_live_writer_stays(world: World) -> None:
    other = left_by_another(world, "c", 0)
    world.restarted()
    world.settle()
    assert parquet_files(world.root) == []
    assert spool_files(world.root) == [other.path]
    other.remove()


def test_a_writer_that_dies_later_is_found_too(world: World) -> None:
    other = left_by_another(world, "other", 0)
    world.settle()
    world.put(block("g", 10, 1))
    other.close()
    world.pass_s(AGE_S)
    assert offsets(world.root) == [10]
    world.pass_s(LOOK_S - AGE_S)
    assert offsets(world.root) == [0, 1, 10]
    assert world.counts == (1, 1, 0)


def test_what_is_left_does_not_keep_new_rows_from_their_files(world: World) -> None:
    segment = left_by_another(world, "other", 0)
    segment.close()
    world.restarted()
    segment.path.chmod(0)
    if os.access(segment.path, os.R_OK):  # root may read everything
        segment.path.unlink()
        segment.path.mkdir()  # can be opened by nobody for writing
    world.settle()
    world.put(block("g", 10, 1))
    world.pass_s(AGE_S)
    assert offsets(world.root) == [10]


# -- trouble --------------------------------------------------------------------------------------


def no_room(*_: Any, **__: Any) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@contextmanager
def full_disk(where: str) -> Iterator[None]:
    """What writes finds no room, for the length of a block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"sharecoord.events.{where}", no_room)
        yield


def test_rows_that_find_no_room_are_counted_and_said_later(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.put(block("g", 0, 2))
    with full_disk("spool.os.pwrite"):
        world.put(block("g", 2, 3))
        world.put(block("g", 5, 1))
        assert world.counts == (6, 2, 4)
        assert world.sink.wait_s() == RETRY_S
    told = capsys.readouterr().out
    assert told.count("rows are lost") == 1
    assert str(world.root) in told
    assert "No space left on device" in told
    world.put(block("g", 6, 1, time_us=NOON_US + 7))
    assert world.counts == (7, 3, 4)
    world.sink.close()
    assert offsets(world.root) == [0, 1, 6]
    assert lost_said(world.root) == 4
    rows = [row for row in table_of(world.root).to_pylist() if row["kind"] == "lost"]
    assert [(row["group_id"], row["time"].microsecond) for row in rows] == [("", 7)]


def test_the_loss_is_said_also_when_no_more_rows_come(world: World) -> None:
    world.put(block("g", 0, 2))
    with full_disk("spool.os.pwrite"):
        world.put(block("g", 2, 3))
        world.pass_s(RETRY_S)
        assert world.sink.counts.unsaid == 3
        assert world.sink.wait_s() == RETRY_S
    world.pass_s(RETRY_S)
    assert world.sink.counts.unsaid == 0
    world.sink.close()
    assert lost_said(world.root) == 3


def test_a_row_of_kind_lost_that_is_lost_is_said_again(world: World) -> None:
    with full_disk("spool.os.pwrite"):
        world.put(lost_block(NOON_US, 40))
        world.put(lost_block(NOON_US, 2))
    assert world.counts == (2, 0, 2)
    world.put(block("g", 0, 1))
    world.sink.close()
    assert lost_said(world.root) == 44


def test_rows_wait_in_the_spool_while_files_can_not_be_written(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    with full_disk("parquet_files.make_directories"):
        world.put(block("g", 0, 2))
        world.pass_s(AGE_S)
        world.put(block("g", 2, 2))
        assert parquet_files(world.root) == []
        assert world.sink.wait_s() == RETRY_S
    assert "wait in the spool" in capsys.readouterr().out
    assert world.counts == (4, 4, 0)
    world.pass_s(RETRY_S)
    assert offsets(world.root) == [0, 1]
    world.sink.close()
    assert offsets(world.root) == [0, 1, 2, 3]


def test_the_spool_is_bounded_while_files_can_not_be_written(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_sink, "FILES_PER_SEGMENT", 1)
    world.restarted(file_max_bytes=2_000)
    with full_disk("parquet_files.make_directories"):
        for n in range(200):
            world.put(block("g", n, 1))
            world.settle()
        sizes = [path.stat().st_size for path in spool_files(world.root)]
        assert len(sizes) == parquet_sink.PENDING_MAX + 1
        assert max(sizes) < 2_500
        settled, written, lost = world.counts
        assert settled == written + lost == 200
        assert lost > 100
    world.pass_s(RETRY_S)
    world.sink.close()
    assert offsets(world.root) == list(range(written))
    assert lost_said(world.root) == lost


def test_a_close_that_finds_no_room_leaves_the_spool(world: World) -> None:
    world.put(block("g", 0, 2))
    with full_disk("parquet_files.make_directories"):
        world.sink.close()
    assert len(spool_files(world.root)) == 1
    world.restarted()
    world.settle()
    assert offsets(world.root) == [0, 1]


def test_frames_that_no_coordinator_sends_are_counted(world: World) -> None:
    world.put(EventBlock({"group_id": "g"}, ("event",), [("x",), ("y",)]))
    assert world.counts == (2, 0, 2)
    world.put(block("g", 0, 1))
    bad = EventBlock({"time": NOON_US, "group_id": "g"}, ("first_offset",), [("x",)])
    world.put(bad)
    world.sink.close()
    assert offsets(world.root) == [0]
    assert world.counts == (4, 2, 3)
    assert lost_said(world.root) == 3


# -- the folder -----------------------------------------------------------------------------------


def test_the_folder_is_made_and_the_spool_is_for_this_user_alone(world: World) -> None:
    world.put(block())
    (path,) = spool_files(world.root)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def under_a_file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "events"


def is_a_file(tmp_path: Path) -> Path:
    (tmp_path / "events").write_text("")
    return tmp_path / "events"


@pytest.mark.parametrize("make", [under_a_file, is_a_file])
def test_a_folder_that_can_not_be_made_is_refused(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    root = make(tmp_path)
    with pytest.raises(InvalidConfigError, match="can not be made or written") as caught:
        World(root)
    assert str(root) in caught.value.message
    assert caught.value.metadata["key"] == "events.sink"


def test_a_folder_that_can_not_be_locked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("sharecoord.events.spool.fcntl.flock", flock)
    with pytest.raises(InvalidConfigError, match="another file system"):
        World(tmp_path)
