"""Who writes a line never waits for it; what is dropped is counted and said."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sharecoord.observability.logs import configure_logging
from sharecoord.observability.standard_error import (
    LINE_CHARS_MAX,
    QUEUE_CHARS_MAX,
    LineWriter,
    QueuedStream,
)
from tests.support import eventually

LINE = "x" * 99 + "\n"
FLUSH_S = 10.0


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends, as far as the test has not closed them."""
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            try:
                os.close(end)
            except OSError:
                pass


def log_to(writer: LineWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", QueuedStream(io.StringIO(), writer))
    configure_logging(level="info", json=True)


def read_all(descriptor: int, until: str) -> str:
    """What comes out of a pipe, until a text is in it."""
    os.set_blocking(descriptor, False)
    found = b""

    def look() -> bool:
        nonlocal found
        try:
            found += os.read(descriptor, 1 << 20)
        except BlockingIOError:
            return False
        return until.encode() in found

    eventually(look, FLUSH_S, until)
    return found.decode()


def test_lines_come_in_order_and_whole() -> None:
    with pipe() as (source, target):
        writer = LineWriter(target)
        stream = QueuedStream(io.StringIO(), writer)
        print("one", 1, file=stream)
        stream.write("two\nthr")
        stream.write("ee \udc80\n")
        writer.flush(FLUSH_S)
        assert os.read(source, 1000) == b"one 1\ntwo\nthree \\udc80\n"
        assert writer.dropped == 0


def test_a_pipe_that_nobody_reads_holds_nobody_up_and_is_told_the_loss_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = 2 * (QUEUE_CHARS_MAX // len(LINE))
    with pipe() as (source, target):
        writer = LineWriter(target)
        log_to(writer, monkeypatch)
        for _ in range(lines):
            writer.put(LINE)
        assert lines // 3 < writer.dropped < lines
        text = read_all(source, "were dropped")
        assert f'"lines": {writer.dropped}' in text
        assert text.count(LINE) == lines - writer.dropped
        assert "more slowly" in text


def test_a_reader_that_is_gone_costs_lines_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with pipe() as (source, target):
        writer = LineWriter(target)
        log_to(writer, monkeypatch)
        os.close(source)
        for _ in range(3):
            writer.put(LINE)
        writer.flush(FLUSH_S)
        assert writer.dropped == 3


def test_a_full_disk_costs_lines_alone() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        writer = LineWriter(full)
        for _ in range(3):
            writer.put(LINE)
        writer.flush(FLUSH_S)
        assert writer.dropped == 3
    finally:
        os.close(full)


def test_a_descriptor_that_does_not_wait_is_waited_for() -> None:
    """A parent may have made its end of a shared terminal non-blocking."""
    lines = 1000
    with pipe() as (source, target):
        os.set_blocking(target, False)
        writer = LineWriter(target)
        for number in range(lines):
            writer.put(f"{number:099}\n")
        text = read_all(source, f"{lines - 1:099}\n")
        assert text.splitlines() == [f"{number:099}" for number in range(lines)]
        assert writer.dropped == 0


def test_a_line_without_end_is_cut() -> None:
    with pipe() as (source, target):
        writer = LineWriter(target)
        writer.put("y" * (LINE_CHARS_MAX + 10) + "\n")
        text = read_all(source, "more)\n")
        assert text.endswith("y … (11 characters more)\n")
