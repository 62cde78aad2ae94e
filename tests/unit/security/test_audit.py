"""The audit trail: nobody waits for it, no name forges a line, and what is lost is said."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from sharecoord.config.endpoints import parse_audit_sink
from sharecoord.errors import InvalidConfigError, KafkaUnavailableError, LimitExceededError
from sharecoord.security import audit
from sharecoord.security.audit import (
    ENTRY_CHARS_MAX,
    STALLED_S,
    AuditEntry,
    AuditFigures,
    AuditLog,
    DescriptorSink,
    Done,
    FileSink,
    LineSink,
    Outcome,
    TopicSink,
    line_of,
    make_audit_log,
)
from sharecoord.security.principals import Mechanism
from tests.support import eventually, eventually_async

SMALLEST_QUEUE_BYTES = 64 << 10
"""The lower bound of `security.audit.queue.max.bytes`."""

RETRY_S = 0.001


def entry(number: int = 0, **more: Any) -> AuditEntry:
    given: dict[str, Any] = {
        "time_ms": number,
        "principal": "User:alice",
        "mechanism": Mechanism.TOKEN,
        "address": "10.0.0.7:5000",
        "call": "pause_group",
        "outcome": Outcome.OK,
        "coordinator_id": "c1",
    }
    return AuditEntry(**given | more)


LINE_BYTES = len(line_of(entry(10_000)))


class FakeSink:
    """Takes lines when its gate is open, unless there is an error."""

    def __init__(self, *, is_open: bool = True) -> None:
        self.lines: list[bytes] = []
        self.gate = threading.Event()
        self.entered = threading.Event()
        self.errors: list[Exception] = []
        """What the next attempts fail with."""
        self.is_closed = False
        if is_open:
            self.gate.set()

    def write(self, lines: Sequence[bytes]) -> int:
        self.entered.set()
        self.gate.wait()
        if self.errors:
            raise self.errors.pop(0)
        self.lines += lines
        return len(lines)

    def close(self) -> None:
        self.is_closed = True


def started(sink: LineSink, **more: Any) -> AuditLog:
    return AuditLog(sink, **{"queue_max_bytes": 1 << 20, "retry_s": RETRY_S} | more)


def write(trail: AuditLog, *numbers: int) -> None:
    for number in numbers:
        trail.write(entry(number))


def wait_for(trail: AuditLog, written: int) -> None:
    eventually(lambda: trail.figures.written == written, what=f"{written} lines")


def close(trail: AuditLog) -> None:
    asyncio.run(trail.close())


def numbers(data: bytes | Sequence[bytes]) -> list[int]:
    lines = data.splitlines() if isinstance(data, bytes) else data
    return [json.loads(line)["time_ms"] for line in lines]


# -- lines ----------------------------------------------------------------------------------------


def test_an_entry_is_one_line_of_json_without_what_is_empty() -> None:
    line = line_of(
        entry(
            7,
            resources=("group:orders", "topic:bills"),
            asked={"dry_run": True, "topics": {"bills": [0, 1]}},
            before={"bills[0]": 5, "bills[1]": None},
            after={"bills[0]": 0, "rate": 0.5},
        )
    )
    assert json.loads(line) == {
        "time_ms": 7,
        "outcome": "ok",
        "principal": "User:alice",
        "mechanism": "token",
        "address": "10.0.0.7:5000",
        "call": "pause_group",
        "coordinator_id": "c1",
        "resources": ["group:orders", "topic:bills"],
        "asked": {"dry_run": True, "topics": {"bills": [0, 1]}},
        "before": {"bills[0]": 5, "bills[1]": None},
        "after": {"bills[0]": 0, "rate": 0.5},
    }
    refused = line_of(
        entry(outcome=Outcome.REFUSED, reason="AUTHORIZATION_FAILED", why="rules.yaml:3: deny")
    )
    assert json.loads(refused)["time_ms"] == 0
    assert json.loads(refused)["why"] == "rules.yaml:3: deny"


@pytest.mark.parametrize(
    "name",
    [
        'User:mallory"}\n{"time_ms":1,"outcome":"ok","principal":"User:alice"}',
        "User:a\r\nb",
        "User:a\x0b\x0c\x1c\x85b",
        "User:a\u2028b\u2029c",
        "User:\x1b[2J\x1b]0;title\x07",
        "User:\x9b2J",
        "User:a\x00b\x08\x7f",
        "User:\u202eecila",
        "User:\udc80",
        "User:\U0001f600é",
    ],
)
def test_no_name_forges_a_line_or_moves_a_cursor(name: str) -> None:
    line = line_of(
        entry(principal=name, resources=(name,), asked={name: name}, why=name, address=name)
    )
    assert line.endswith(b"\n")
    assert all(0x20 <= byte < 0x7F for byte in line[:-1])
    found = json.loads(line)
    assert (found["principal"], found["resources"], found["asked"]) == (name, [name], {name: name})


@pytest.mark.parametrize("letter", ["x", "\x00", "é", "\U0001f600"])
def test_names_of_ten_megabytes_are_cut_and_the_line_fits_into_the_smallest_queue(
    letter: str,
) -> None:
    name = letter * 10_000_000
    large = entry(principal=name, address=name, why=name, resources=(name,) * 9, asked={name: name})
    line = line_of(large, dropped=1_000_000)
    assert len(line) < SMALLEST_QUEUE_BYTES
    found = json.loads(line)
    assert found["principal"] == letter * 1_000 + " ... (9999000 characters more)"
    assert found["dropped"] == 1_000_000


def test_what_has_many_entries_says_how_many_are_missing() -> None:
    many = 100_000
    line = line_of(entry(asked=dict.fromkeys(range(many), 0), resources=["group:g"] * many))
    assert len(line) < SMALLEST_QUEUE_BYTES
    found = json.loads(line)
    shown = found["resources"][:-1]
    assert 100 < len(shown) < ENTRY_CHARS_MAX
    assert found["resources"][-1] == f"... {many - len(shown)} more"
    assert found["asked"] == {"...": f"{many} more"}
    found = json.loads(line_of(entry(after={"numbers": range(many)})))["after"]["numbers"]
    assert 100 < len(found) < ENTRY_CHARS_MAX
    assert found[-1] == f"... {many - len(found) + 1} more"


def test_values_that_json_does_not_have_become_texts() -> None:
    found = json.loads(line_of(entry(after={"a": float("nan"), "b": b"\xff", "c": Path("x")})))
    assert found["after"] == {"a": "nan", "b": "b'\\xff'", "c": "x"}


# -- the queue ------------------------------------------------------------------------------------


def test_lines_are_written_in_order_and_all_of_them_before_the_end() -> None:
    sink = FakeSink()
    trail = started(sink)
    write(trail, *range(1_000))
    close(trail)
    assert numbers(sink.lines) == list(range(1_000))
    assert trail.figures == AuditFigures(1_000, 0, is_failing=False)
    assert sink.is_closed


def test_a_sink_that_hangs_holds_nobody_up_and_the_next_line_tells_the_loss() -> None:
    """The sink is held until the test opens its gate: a `write` that waited would never end."""
    now = [100.0]
    sink = FakeSink(is_open=False)
    trail = started(sink, queue_max_bytes=10 * LINE_BYTES, now_s=lambda: now[0])
    write(trail, 10_000)
    assert sink.entered.wait(10)
    with capture_logs() as lines:
        write(trail, *range(10_001, 10_015))
    assert trail.figures == AuditFigures(0, 5, is_failing=False)
    assert [line["event"] for line in lines] == ["audit: entries are dropped"]
    now[0] += STALLED_S
    assert trail.figures.is_failing
    sink.gate.set()
    wait_for(trail, 10)
    write(trail, 20_000, 20_001)
    close(trail)
    assert numbers(sink.lines) == [*range(10_000, 10_010), 20_000, 20_001]
    assert [json.loads(line).get("dropped") for line in sink.lines] == [None] * 10 + [5, None]
    assert trail.figures == AuditFigures(12, 5, is_failing=False)


def test_refusals_never_take_the_place_of_what_was_done() -> None:
    sink = FakeSink(is_open=False)
    refused = entry(10_000, outcome=Outcome.REFUSED)
    size = len(line_of(refused))
    trail = started(sink, queue_max_bytes=10 * size)
    for _ in range(1_000):
        trail.write(refused)
    dropped = trail.figures.dropped
    assert dropped == 1_000 - 6
    write(trail, 10_001, 10_002)
    assert trail.figures.dropped == dropped
    sink.gate.set()
    close(trail)
    assert numbers(sink.lines) == [10_000] * 6 + [10_001, 10_002]


def test_the_end_does_not_wait_for_a_sink_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "CLOSE_S", 0)
    sink = FakeSink(is_open=False)
    trail = started(sink)
    write(trail, 1, 2)
    with capture_logs() as lines:
        close(trail)
    assert trail.figures.dropped == 2
    assert [(line["event"], line["in_all"]) for line in lines] == [
        ("audit: entries were dropped", 2)
    ]
    write(trail, 3)
    assert trail.figures.dropped == 3
    sink.gate.set()


def test_a_sink_that_fails_is_tried_again_and_nothing_is_lost_that_had_room() -> None:
    sink = FakeSink(is_open=False)
    sink.errors = [OSError(errno.ENOSPC, "No space left on device") for _ in range(5)]
    trail = started(sink)
    with capture_logs() as lines:
        write(trail, 1, 2)
        sink.gate.set()
        wait_for(trail, 2)
        close(trail)
    assert numbers(sink.lines) == [1, 2]
    assert [(line["log_level"], line.get("why")) for line in lines] == [
        ("error", "No space left on device"),
        ("warning", None),
    ]
    assert trail.figures == AuditFigures(2, 0, is_failing=False)


def test_a_sink_that_fails_to_the_end_costs_the_lines_that_wait() -> None:
    class Failing(FakeSink):
        def write(self, lines: Sequence[bytes]) -> int:
            assert lines
            attempts.append(is_ending)
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    attempts: list[bool] = []
    is_ending = False
    sink = Failing()
    trail = started(sink)
    with capture_logs() as lines:
        write(trail, 1, 2)
        eventually(lambda: trail.figures.is_failing)
        is_ending = True
        close(trail)
    # One that was under way, and the last one.
    assert sum(attempts) <= 2
    assert trail.figures == AuditFigures(0, 2, is_failing=True)
    assert [line.get("why", line.get("in_all")) for line in lines] == ["Broken pipe", 2]
    assert sink.is_closed


def test_a_line_that_the_sink_never_takes_is_dropped_alone() -> None:
    sink = FakeSink(is_open=False)
    sink.errors = [LimitExceededError("the topic takes no message of that size")]
    trail = started(sink)
    with capture_logs() as lines:
        write(trail, 1, 2)
        sink.gate.set()
        wait_for(trail, 1)
        write(trail, 3)
        close(trail)
    assert numbers(sink.lines) == [2, 3]
    assert json.loads(sink.lines[1])["dropped"] == 1
    assert lines[0]["why"] == "the topic takes no message of that size"
    assert trail.figures == AuditFigures(2, 1, is_failing=False)


def test_an_entry_without_a_text_is_dropped_and_fails_nobody() -> None:
    class Wordless:
        def __str__(self) -> str:
            raise RuntimeError("no words")

    sink = FakeSink()
    trail = started(sink)
    with capture_logs() as lines:
        trail.write(entry(after={"it": Wordless()}))
        write(trail, 2)
        close(trail)
    assert json.loads(sink.lines[0])["dropped"] == 1
    assert trail.figures == AuditFigures(1, 1, is_failing=False)
    assert lines[0]["call"] == "pause_group"


# -- pipes and files ------------------------------------------------------------------------------


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            try:
                os.close(end)
            except OSError:
                pass


class Reader:
    """What comes out of a pipe so far."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.data = b""

    def has(self, text: bytes) -> bool:
        try:
            self.data += os.read(self._descriptor, 1 << 20)
        except BlockingIOError:
            pass
        return text in self.data


@pytest.mark.parametrize("is_blocking", [True, False])
def test_a_pipe_that_nobody_reads_fills_the_queue_and_no_more(*, is_blocking: bool) -> None:
    lines = 4 * SMALLEST_QUEUE_BYTES // LINE_BYTES
    with pipe() as (source, target):
        os.set_blocking(target, is_blocking)
        trail = started(DescriptorSink(target), queue_max_bytes=SMALLEST_QUEUE_BYTES)
        write(trail, *range(10_000, 10_000 + lines))
        dropped = trail.figures.dropped
        assert lines // 4 < dropped < lines
        reader = Reader(source)
        eventually(lambda: not reader.has(b"\n\n") and trail.figures.written == lines - dropped)
        write(trail, 99_999)
        eventually(lambda: reader.has(b"99999"))
        close(trail)
    found = [json.loads(line) for line in reader.data.splitlines()]
    assert [each["time_ms"] for each in found] == sorted(each["time_ms"] for each in found)
    assert len(found) == lines - dropped + 1
    assert sum(each.get("dropped", 0) for each in found) == dropped


def test_a_reader_that_is_gone_is_waited_for() -> None:
    with pipe() as (source, target), capture_logs() as lines:
        os.close(source)
        trail = started(DescriptorSink(target))
        write(trail, 1)
        eventually(lambda: trail.figures.is_failing)
        close(trail)
    assert trail.figures.dropped == 1
    assert lines[0]["why"] == "Broken pipe"


def test_a_file_is_continued_and_a_new_one_is_nobody_elses_business(tmp_path: Path) -> None:
    new, old = tmp_path / "new.log", tmp_path / "old.log"
    old.write_bytes(line_of(entry(1)))
    old.chmod(0o640)
    before = os.umask(0o022)
    try:
        for path in (new, old):
            trail = started(FileSink(str(path)))
            write(trail, 2, 3)
            close(trail)
    finally:
        os.umask(before)
    assert numbers(new.read_bytes()) == [2, 3]
    assert numbers(old.read_bytes()) == [1, 2, 3]
    assert [path.stat().st_mode & 0o777 for path in (new, old)] == [0o600, 0o640]


def test_a_file_that_was_moved_away_is_made_anew(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.log", tmp_path / "audit.log.1"
    trail = started(FileSink(str(path)))
    write(trail, 1)
    wait_for(trail, 1)
    path.rename(moved)
    write(trail, 2)
    wait_for(trail, 2)
    path.unlink()
    write(trail, 3)
    close(trail)
    assert numbers(moved.read_bytes()) == [1]
    assert numbers(path.read_bytes()) == [3]
    assert trail.figures == AuditFigures(3, 0, is_failing=False)


def test_a_folder_that_goes_away_is_waited_for(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    path = folder / "audit.log"
    trail = started(FileSink(str(path)))
    with capture_logs() as lines:
        write(trail, 1)
        wait_for(trail, 1)
        path.unlink()
        folder.rmdir()
        write(trail, 2)
        eventually(lambda: trail.figures.is_failing)
        write(trail, 3)
        folder.mkdir()
        wait_for(trail, 3)
        close(trail)
    assert numbers(path.read_bytes()) == [2, 3]
    assert lines[0]["why"] == "No such file or directory"
    assert len(lines) == 2


def test_a_full_disk_is_waited_for_and_named_once(tmp_path: Path) -> None:
    path, room = tmp_path / "audit.log", tmp_path / "room"
    path.symlink_to("/dev/full")
    trail = started(FileSink(str(path)))
    with capture_logs() as lines:
        write(trail, 1, 2)
        eventually(lambda: trail.figures.is_failing)
        assert trail.figures == AuditFigures(0, 0, is_failing=True)
        room.touch()
        another = tmp_path / "link"
        another.symlink_to(room)
        another.rename(path)
        wait_for(trail, 2)
        close(trail)
    assert numbers(room.read_bytes()) == [1, 2]
    assert [line.get("why") for line in lines] == ["No space left on device", None]


def test_a_line_that_was_written_in_part_comes_again_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up at every byte of two lines."""
    lines = [line_of(entry(1)), line_of(entry(2))]
    real = os.write
    for room in range(sum(map(len, lines)) + 1):
        path = tmp_path / f"{room}.log"
        sink = FileSink(str(path))
        left = [room]

        def limited(descriptor: int, data: memoryview, left: list[int] = left) -> int:
            if not left[0]:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = real(descriptor, data[: left[0]])
            left[0] -= taken
            return taken

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", limited)
            try:
                taken = sink.write(lines)
            except OSError:
                taken = 0
        # A line of which the end alone is missing is whole: the end comes with the next one.
        assert taken == sum(room + 1 >= end for end in (len(lines[0]), sum(map(len, lines))))
        while taken < len(lines):
            taken += sink.write(lines[taken:])
        sink.close()
        found = [each + b"\n" for each in path.read_bytes().splitlines()]
        torn = [each for each in found if each not in lines]
        assert [each for each in found if each in lines] == lines
        assert len(torn) <= 1


# -- a topic --------------------------------------------------------------------------------------


class FakeTopic:
    """Answers in a later turn of the loop, as producers do."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.errors: dict[bytes, list[Exception]] = {}
        """By message, what its next attempts end with."""

    def send(self, topic: str, value: bytes, done: Done) -> None:
        assert topic == "audit-trail"
        errors = self.errors.get(value, [])
        error = errors.pop(0) if errors else None
        if error is not None and not isinstance(error, KafkaUnavailableError | LimitExceededError):
            raise error
        if error is None:
            self.messages.append(value)
        asyncio.get_running_loop().call_soon(done, error)


def test_a_topic_gets_a_message_for_each_line() -> None:
    async def main() -> None:
        topic = FakeTopic()
        sink = parse_audit_sink("kafka:audit-trail")
        trail = make_audit_log(sink, queue_max_bytes=1 << 20, send=topic.send)
        assert trail is not None
        write(trail, *range(100))
        await trail.close()
        assert numbers(topic.messages) == list(range(100))
        assert not topic.messages[0].endswith(b"\n")

    asyncio.run(main())


@pytest.mark.parametrize("error", [KafkaUnavailableError("away"), RuntimeError("no producer")])
def test_a_message_that_kafka_did_not_take_comes_again_with_those_behind_it(
    error: Exception,
) -> None:
    async def main() -> None:
        topic = FakeTopic()
        first, second = (line_of(entry(number)).rstrip() for number in (1, 2))
        topic.errors = {first: [error], second: [error]}
        trail = started(TopicSink("audit-trail", topic.send, asyncio.get_running_loop()))
        write(trail, 1, 2, 3)
        await eventually_async(lambda: trail.figures.written == 3)
        await trail.close()
        found = list(dict.fromkeys(numbers(topic.messages)))
        assert sorted(found) == [1, 2, 3]
        # Whatever came twice, the last copies are in order.
        assert numbers(topic.messages)[-2:] == [2, 3]
        assert trail.figures == AuditFigures(3, 0, is_failing=False)

    asyncio.run(main())


def test_a_message_that_is_too_large_for_the_topic_holds_up_no_other() -> None:
    async def main() -> None:
        topic = FakeTopic()
        topic.errors = {line_of(entry(2)).rstrip(): [LimitExceededError("too large")] * 2}
        trail = started(TopicSink("audit-trail", topic.send, asyncio.get_running_loop()))
        write(trail, 1, 2, 3)
        await eventually_async(lambda: trail.figures.written == 2)
        await trail.close()
        assert set(numbers(topic.messages)) == {1, 3}
        assert trail.figures == AuditFigures(2, 1, is_failing=False)

    asyncio.run(main())


# -- settings -------------------------------------------------------------------------------------


def made(sink: str) -> AuditLog | None:
    async def main() -> AuditLog | None:
        return make_audit_log(
            parse_audit_sink(sink), queue_max_bytes=1 << 20, send=FakeTopic().send
        )

    return asyncio.run(main())


def test_off_is_no_trail() -> None:
    assert made("off") is None


def test_standard_output_and_files_are_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for sink in ("stdout", f"file:{tmp_path}/audit.log"):
        trail = made(sink)
        assert trail is not None
        write(trail, 5)
        close(trail)
    assert numbers((tmp_path / "audit.log").read_bytes()) == [5]
    assert numbers(capfd.readouterr().out.encode()) == [5]


def test_a_file_that_can_not_be_written_stops_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "no" / "audit.log", "No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "pipe", "No such device or address"),
    ):
        with pytest.raises(InvalidConfigError) as raised:
            made(f"file:{path}")
        assert raised.value.message.startswith(
            f"security.audit.sink=file:{path}: can not append to '{path}': {why}. Name a file"
        )


def test_standard_output_that_is_closed_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.__stdout__", None)
    with pytest.raises(InvalidConfigError, match=r"security\.audit\.sink=stdout: .* closed"):
        made("stdout")
