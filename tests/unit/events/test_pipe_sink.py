"""The coordinator's end of the pipe, with a writer by hand."""

from __future__ import annotations

import asyncio
import marshal
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from sharecoord.config.process import load
from sharecoord.eventlog.schema import EventBlock
from sharecoord.events import pipe_sink
from sharecoord.events.frames import Block, FrameReader, WriterSettings, frame_of_blocks
from sharecoord.events.pipe_sink import FLUSH_ROWS, PipeSink, settings_of
from sharecoord.ports import EventFigures
from tests.unit.events.support import NOON_US, block

PIPE_MAX = 64 << 10
SETTINGS = WriterSettings(
    kind="parquet",
    target="DIR",
    coordinator_id="c",
    file_max_bytes=1 << 20,
    file_max_age_ms=1000,
    kafka={},
)


class FakeWriter:
    """A pipe whose other end the test reads; answers what it is told to."""

    made: list[FakeWriter] = []

    def __init__(self, sink: PipeSink) -> None:
        self.sink = sink
        self.drain, self.source = os.pipe()
        os.set_blocking(self.source, False)
        os.set_blocking(self.drain, False)
        self.sent = self.settled = self.written = self.lost = 0
        self.lived_s = 0.0
        self.problem = ""
        self.is_renewed = False
        self.is_closed = False
        self.gone = asyncio.Event()
        self.answer = asyncio.get_running_loop().create_future()
        self.frames = FrameReader()
        FakeWriter.made.append(self)

    def begin(self) -> None:
        self.answer.set_result(None)
        self.sink.ready()

    def read(self) -> list[bytes]:
        """The frames that have come."""
        found = []
        while True:
            try:
                data = os.read(self.drain, 1 << 16)
            except BlockingIOError:
                return found
            if not data:
                return found
            found += self.frames.feed(data)

    def blocks(self) -> list[Block]:
        return [each for payload in self.read() for each in marshal.loads(payload)]

    def confirm(self, settled: int, lost: int = 0) -> None:
        self.settled, self.written, self.lost = settled, settled - lost, lost
        self.sink.counted()

    def die(self) -> None:
        self.close_pipe()
        self.sink.ended()
        self.gone.set()

    @property
    def is_open(self) -> bool:
        return not self.is_closed

    def close_pipe(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            asyncio.get_running_loop().remove_writer(self.source)
            os.close(self.source)

    async def reap(self) -> int:
        if not self.gone.is_set():
            self.die()
        return -9


@pytest.fixture(autouse=True)
def writers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[FakeWriter]]:
    FakeWriter.made = []
    monkeypatch.setattr(pipe_sink, "_Writer", FakeWriter)
    yield FakeWriter.made
    for each in FakeWriter.made:
        os.close(each.drain)


def make() -> PipeSink:
    return PipeSink(SETTINGS, pipe_max_bytes=PIPE_MAX, now_us=lambda: NOON_US)


async def started(writers: list[FakeWriter]) -> tuple[PipeSink, FakeWriter]:
    sink = make()
    task = asyncio.create_task(sink.start())
    await asyncio.sleep(0)
    assert WriterSettings.read(writers[0].read()[0]) == SETTINGS
    writers[0].begin()
    await task
    return sink, writers[0]


async def closed(sink: PipeSink) -> None:
    if sink._writer is not None:
        sink._writer.gone.set()  # type: ignore[attr-defined]
        sink._writer.die()  # type: ignore[attr-defined]
    await sink.close()


def flush(sink: PipeSink) -> None:
    """What the timer does."""
    assert sink._timer is not None
    sink._flush()


def kinds(blocks: list[Block]) -> list[tuple[Any, Any]]:
    return [(common["kind"], rows[0][0]) for common, _, rows in blocks]


async def test_rows_wait_for_each_other_and_travel_together(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    sink.put(block("g", 0, 2))
    sink.put(block("h", 0, 1))
    sink.put(block("g", 2, 1))
    assert writer.read() == []
    flush(sink)
    (blocks,) = [marshal.loads(payload) for payload in writer.read()]
    assert blocks == [
        tuple(each) for each in (block("g", 0, 2), block("h", 0, 1), block("g", 2, 1))
    ]
    assert sink._timer is None
    assert sink.figures == EventFigures(0, 0, 0)
    writer.confirm(4)
    assert sink.figures == EventFigures(4, 0, 0)
    await closed(sink)


async def test_many_rows_do_not_wait(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    sink.put(block("g", 0, FLUSH_ROWS - 1))
    assert writer.read() == []
    sink.put(block("g", FLUSH_ROWS, 1))
    assert len(writer.blocks()) == 2
    assert sink._timer is None
    await closed(sink)


async def test_a_block_without_rows_is_nothing(writers: list[FakeWriter]) -> None:
    sink, _ = await started(writers)
    sink.put(EventBlock({"group_id": "g"}, (), []))
    assert sink._timer is None
    assert sink.figures == EventFigures(0, 0, 0)
    await closed(sink)


async def fill(sink: PipeSink) -> int:
    """Puts rows until some are dropped; returns how many were put."""
    first = 0
    while not sink.figures.lost:
        sink.put(block("g", first, FLUSH_ROWS))
        first += FLUSH_ROWS
    return first


async def test_what_finds_no_room_is_dropped_counted_and_said(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    put = await fill(sink)
    lost = sink.figures.lost
    assert lost == FLUSH_ROWS
    assert PIPE_MAX - 20_000 < sink.figures.waiting_bytes <= PIPE_MAX
    sink.put(block("g", put, FLUSH_ROWS))
    assert sink.figures.lost == 2 * FLUSH_ROWS
    # The writer reads: all that had room comes, in order, then what is missing, then new rows.
    found = writer.blocks()
    while sink._frames:
        sink._write()
        found += writer.blocks()
    assert [rows[0][1] for _, _, rows in found] == list(range(0, put - FLUSH_ROWS, FLUSH_ROWS))
    sink.put(block("g", 9_000_000, 1))
    flush(sink)
    lost_row, row = writer.blocks()
    assert (lost_row[0]["kind"], lost_row[0]["time"], lost_row[2]) == (
        "lost",
        NOON_US,
        [(2 * FLUSH_ROWS,)],
    )
    assert row[2][0][1] == 9_000_000
    assert sink.figures.waiting_bytes == 0
    await closed(sink)


async def test_the_loss_is_said_also_when_no_more_rows_come(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    await fill(sink)
    while sink._frames:
        writer.read()
        sink._write()
    writer.read()
    flush(sink)
    assert kinds(writer.blocks()) == [("lost", FLUSH_ROWS)]
    await closed(sink)


async def test_a_frame_larger_than_the_limit_is_dropped(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    sink.put(EventBlock({"kind": "range", "group_id": "g"}, ("reason",), [("x" * PIPE_MAX,)]))
    flush(sink)
    assert writer.read() == []
    assert sink.figures == EventFigures(0, 1, 0)
    await closed(sink)


async def test_values_of_other_types_are_counted(
    writers: list[FakeWriter], capsys: pytest.CaptureFixture[str]
) -> None:
    sink, writer = await started(writers)
    sink.put(EventBlock({"kind": "range", "group_id": "g"}, ("reason",), [(1.5,), (object(),)]))
    flush(sink)
    assert sink.figures == EventFigures(0, 2, 0)
    assert "values of a type that no column has" in capsys.readouterr().out
    flush(sink)
    assert kinds(writer.blocks()) == [("lost", 2)]
    await closed(sink)


async def test_nothing_is_written_once_the_pipe_is_closed(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    task = asyncio.create_task(sink.close())
    await asyncio.sleep(0)
    assert writer.is_closed
    descriptor = os.open(os.devnull, os.O_RDONLY)  # takes the number of the pipe
    assert descriptor == writer.source
    sink._drop(1)
    sink._flush()
    os.close(descriptor)
    writer.die()
    await task


async def test_what_a_dead_writer_had_not_confirmed_is_lost(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    sink.put(block("g", 0, 10))
    flush(sink)
    writer.confirm(6, lost=1)
    sink.put(block("g", 10, 5))
    flush(sink)
    sink.put(block("g", 15, 2))
    writer.die()
    assert sink.figures == EventFigures(5, 1 + 4 + 5, 0)
    flush(sink)
    waiting = sink.figures.waiting_bytes
    assert waiting == sum(map(len, [data for data, _ in sink._frames])) > 0
    sink._spawn()
    writers[1].read()
    writers[1].begin()
    found = writers[1].blocks()
    assert kinds(found) == [("lost", 9), ("range", "acquired")]
    writers[1].confirm(3)
    assert sink.figures == EventFigures(5 + 3, 10, 0)
    await closed(sink)


async def test_a_frame_that_was_taken_in_part_is_sent_again_whole(
    writers: list[FakeWriter],
) -> None:
    sink, writer = await started(writers)
    await fill(sink)
    assert sink._taken_bytes > 0
    begun = sink._frames[0][0]
    sent = writer.sent
    writer.die()
    assert sink.figures.lost == sent + FLUSH_ROWS
    waiting = sum(len(data) for data, _ in sink._frames)
    assert sink.figures.waiting_bytes == waiting
    sink._spawn()
    writers[1].read()
    writers[1].begin()
    assert writers[1].read()[0] == begun[4:]
    await closed(sink)


async def test_a_row_of_kind_lost_that_dies_with_the_writer_is_said_again(
    writers: list[FakeWriter],
) -> None:
    sink, writer = await started(writers)
    sink.put(block("g", 0, 10))
    flush(sink)
    writer.die()
    sink._spawn()
    writers[1].read()
    writers[1].begin()
    flush(sink)
    assert kinds(writers[1].blocks()) == [("lost", 10)]
    writers[1].die()
    assert sink.figures.lost == 10 + 1
    sink._spawn()
    writers[2].read()
    writers[2].begin()
    flush(sink)
    assert kinds(writers[2].blocks()) == [("lost", 11)]
    writers[2].confirm(1)
    writers[2].die()
    assert sink._unsaid == 0
    await sink.close()


async def test_a_dead_writer_is_started_again_with_a_pause(
    writers: list[FakeWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        await real_sleep(0)

    sink, _ = await started(writers)
    monkeypatch.setattr(pipe_sink.asyncio, "sleep", sleep)
    for life in range(8):
        while len(writers) == life:
            await real_sleep(0)
        if life == 7:
            writers[life].lived_s = 30.0
        writers[life].die()
    while len(writers) == 8:
        await real_sleep(0)
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 1]
    monkeypatch.undo()
    await closed(sink)


async def test_a_renewed_writer_makes_room_for_another_and_no_row_is_lost(
    writers: list[FakeWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_sleep = asyncio.sleep

    async def no_pause(seconds: float) -> None:
        assert seconds == 0

    monkeypatch.setattr(sys.modules[__name__], "SETTINGS", replace(SETTINGS, kafka={"a": "b"}))
    sink, writer = await started(writers)
    sink.put(block("g", 0, 10))
    flush(sink)
    monkeypatch.setattr(pipe_sink.asyncio, "sleep", no_pause)
    sink.renew({"ssl.ca.location": b"CA"})
    assert writer.is_closed
    assert len(writer.blocks()) == 1
    sink.put(block("g", 10, 5))
    flush(sink)
    # It ends as told, after it has written everything.
    writer.confirm(10)
    writer.die()
    while len(writers) == 1:
        await real_sleep(0)
    (told,) = writers[1].read()
    assert WriterSettings.read(told).files == {"ssl.ca.location": b"CA"}
    writers[1].begin()
    assert [rows[0][1] for _, _, rows in writers[1].blocks()] == [10]
    writers[1].confirm(5)
    assert sink.figures == EventFigures(15, 0, 0)
    monkeypatch.undo()
    await closed(sink)


async def test_a_writer_of_files_needs_no_renewal(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    sink.renew({})
    assert writer.is_open
    await closed(sink)


async def test_a_writer_that_can_not_be_started_is_tried_again(
    writers: list[FakeWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    real_sleep = asyncio.sleep
    sink, writer = await started(writers)
    tries = []

    def broken(sink: PipeSink) -> FakeWriter:
        tries.append(sink)
        if len(tries) == 1:
            raise OSError(12, "Cannot allocate memory")
        if len(tries) == 2:
            raise ValueError("nobody foresaw this")
        return FakeWriter(sink)

    async def sleep(_: float) -> None:
        await real_sleep(0)

    monkeypatch.setattr(pipe_sink, "_Writer", broken)
    monkeypatch.setattr(pipe_sink.asyncio, "sleep", sleep)
    writer.die()
    while len(writers) == 1:
        await real_sleep(0)
    assert len(tries) == 3
    monkeypatch.undo()
    await closed(sink)


async def test_close_sends_what_waits_and_closes_the_pipe(writers: list[FakeWriter]) -> None:
    sink, writer = await started(writers)
    sink.put(block("g", 0, 3))
    task = asyncio.create_task(sink.close())
    await asyncio.sleep(0)
    assert writer.is_closed
    assert len(writer.blocks()) == 1
    writer.confirm(3)
    writer.die()
    await task
    assert sink.figures == EventFigures(3, 0, 0)
    sink.put(block("g", 3, 1))
    await sink.close()
    assert sink.figures == EventFigures(3, 1, 0)


async def test_close_counts_what_a_writer_did_not_take(
    writers: list[FakeWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_sink, "CLOSE_TIMEOUT_S", 0.0)
    sink, writer = await started(writers)
    put = await fill(sink)
    assert sink._frames
    await sink.close()
    assert writer.gone.is_set()
    assert sink.figures == EventFigures(0, put, 0)


# -- without a loop -------------------------------------------------------------------------------


def test_settings_for_the_writer_come_from_the_configuration() -> None:
    flags = {"events.sink": "parquet:/var/events", "log.level": "warning"}
    made = settings_of(load(None, {}, flags), "c1", log_json=False)
    assert (made.kind, made.target, made.coordinator_id) == ("parquet", "/var/events", "c1")
    assert (made.file_max_bytes, made.file_max_age_ms) == (128 << 20, 300_000)
    assert (made.log_level, made.log_json, made.kafka) == ("warning", False, {})
    kafka = settings_of(load(None, {}, {"events.sink": "kafka:t"}), "c1", log_json=True)
    assert (kafka.kind, kafka.target) == ("kafka", "t")
    assert "bootstrap.servers" in kafka.kafka
    marshal.loads(kafka.frame()[4:])


def test_names_and_texts_that_repeat_travel_once() -> None:
    data = frame_of_blocks([block("g", n, 1) for n in range(100)])
    assert data.count(b"change_sequence") == data.count(b"acquired") == 1
