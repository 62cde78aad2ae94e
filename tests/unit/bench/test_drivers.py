"""Options, stopwatch and loop of the drivers, without a broker."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest

from sharecoord.bench.drivers.meter import Measured, Meter
from sharecoord.bench.drivers.options import DriverOptions, parse_options
from sharecoord.bench.drivers.share_loop import take_all
from sharecoord.bench.errors import BenchError

OPTIONS = DriverOptions(
    bootstrap_servers="h:1",
    group="g",
    topic="t",
    records=50_000,
    explicit=True,
    watched={"broker": 7, "coordinator": 8},
    deadline_s=120.0,
)


class Stopwatch:
    """A clock that a test turns; CPU time runs at half its speed, the more the higher the id."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s

    def cpu_s(self, pid: int) -> float:
        return self.now_s / 2 * (1 if pid == os.getpid() else pid)


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


@pytest.fixture
def meter(stopwatch: Stopwatch) -> Meter:
    return Meter(OPTIONS, clock=stopwatch, cpu=stopwatch.cpu_s)


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize("explicit", [True, False])
def test_options_survive_the_command_line(*, explicit: bool) -> None:
    options = DriverOptions("h:1,h:2", "g", "t", 60_000, explicit, {"broker": 7}, 12.5)
    assert parse_options(options.argv()) == options


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--records", "49999"], "too few, use 50000"),
        (["--records", "many"], "invalid _count value"),
        (["--watch", "broker"], "'broker' is not NAME=PID"),
        (["--watch", "broker=x"], "'broker=x' is not NAME=PID"),
    ],
)
def test_wrong_options_are_named(
    wrong: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_options([*OPTIONS.argv(), *wrong])
    assert message in capsys.readouterr().err


# -- the stopwatch --------------------------------------------------------------------------------


def test_the_clock_runs_from_the_first_tenth_to_the_last(
    meter: Meter, stopwatch: Stopwatch
) -> None:
    # Batches of 500, one each second, the first after five.
    stopwatch.now_s += 4
    for last_offset in itertools.count(499, 500):
        if not meter.running:
            break
        stopwatch.now_s += 1
        meter.add(500, 5_000, last_offset)
    measured = meter.measured()
    assert measured.first_record_s == 5
    assert (measured.records, measured.value_bytes, measured.seconds) == (40_000, 400_000, 80)
    assert measured.cpu_s == {"broker": 280, "coordinator": 320, "client": 40}
    assert measured.repeated == 0


def test_records_that_come_again_are_counted(meter: Meter) -> None:
    for last_offset in (19_999, 19_999, 44_999):
        meter.add(20_000, 1, last_offset)
    assert meter.measured().repeated == 15_000


def test_a_run_that_stands_still_ends_with_how_far_it_came(
    meter: Meter, stopwatch: Stopwatch
) -> None:
    meter.add(500, 1, 499)
    stopwatch.now_s += OPTIONS.deadline_s
    assert meter.running
    stopwatch.now_s += 1
    with pytest.raises(BenchError, match=r"^500 of 50000 records arrived within 120 s$"):
        _ = meter.running


def test_figures_survive_the_pipe() -> None:
    measured = Measured(0.25, 40_000, 400_000, 1.5, {"client": 0.75}, 3)
    assert Measured.from_json(measured.to_json()) == measured


@pytest.mark.parametrize("line", ["", "no json", "[]", '{"records": 1}'])
def test_something_else_on_the_pipe_is_refused(line: str) -> None:
    with pytest.raises((TypeError, ValueError)):
        Measured.from_json(line)


# -- the loop of the share consumers --------------------------------------------------------------


class FakeMessage:
    """What the loop looks at."""

    def __init__(self, offset: int, error: str | None = None) -> None:
        self._offset, self._error = offset, error

    def error(self) -> str | None:
        return self._error

    def value(self) -> bytes:
        return b"0123456789"

    def offset(self) -> int:
        return self._offset


class FakeConsumer:
    """Hands out batches of 500, an empty one before each; keeps what it is told."""

    def __init__(self, error: str | None = None) -> None:
        self.acknowledged: list[int] = []
        self.commits = 0
        self._error = error
        self._batches = self._all()

    def _all(self) -> Iterator[list[FakeMessage]]:
        for base in itertools.count(0, 500):
            yield []
            yield [FakeMessage(base + number, self._error) for number in range(500)]

    def poll(self, timeout: float) -> list[FakeMessage]:
        assert timeout > 0
        return next(self._batches)

    def acknowledge(self, message: Any) -> None:
        self.acknowledged.append(message.offset())

    def commit_async(self) -> None:
        self.commits += 1


def test_explicit_mode_acknowledges_each_record_and_commits_each_batch(meter: Meter) -> None:
    consumer = FakeConsumer()
    take_all(consumer, meter, explicit=True)
    assert consumer.acknowledged == list(range(45_000))
    assert consumer.commits == 90
    assert meter.measured().value_bytes == 400_000


def test_implicit_mode_leaves_acknowledging_to_the_consumer(meter: Meter) -> None:
    consumer = FakeConsumer()
    take_all(consumer, meter, explicit=False)
    assert (consumer.acknowledged, consumer.commits) == ([], 0)
    assert meter.measured().records == 40_000


def test_a_message_that_is_an_error_ends_the_run(meter: Meter) -> None:
    with pytest.raises(BenchError, match="given an error: broken"):
        take_all(FakeConsumer(error="broken"), meter, explicit=False)
