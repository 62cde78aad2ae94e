"""The course of a run: order, progress, files, what is kept after a failure; trials are made up."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sharecoord.bench.cluster import Cluster
from sharecoord.bench.engine import trial
from sharecoord.bench.engine.cell import Cell, Consumer, TopicKey
from sharecoord.bench.engine.figures import Interval
from sharecoord.bench.engine.settings import Settings
from sharecoord.bench.engine.stored import StoredBatches
from sharecoord.bench.engine.trial import Outcome, Trials
from sharecoord.bench.errors import BenchError
from sharecoord.bench.progress import (
    BarProgress,
    Estimate,
    PlainProgress,
    open_progress,
    time_left,
)
from sharecoord.bench.run import course
from sharecoord.bench.run.course import run
from sharecoord.bench.run.shapes import MARKS
from sharecoord.cli.main import cli
from sharecoord.devenv.stores import StoreKind, Stores
from sharecoord.errors import InvalidConfigError
from tests.unit.bench.engine.support import MS, make_samples, make_trial


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Replaces Kafka and the trials; the list is filled with what would have been measured."""
    made: list[tuple[int, int]] = []

    def trial(_: Trials, number: int, cell: Cell, repeat: int) -> Outcome:
        made.append((repeat, number))
        found = make_trial(
            number, repeat, [1] * cell.consumers, records_per_s=100.0 * cell.consumers
        )
        return Outcome(found, make_samples((0, 1, 1, 1)), Interval(MS, MS))

    monkeypatch.setattr(Trials, "run", trial)
    monkeypatch.setattr(Trials, "fill", lambda *_: None)
    return made


def test_a_run_measures_all_and_writes_one_folder(
    tmp_path: Path, pretend: list[tuple[int, int]], capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"consumers": "1,2", "work_ms": 5, "repeats": 2, "kafka": "h:1"}
    assert run(given, output=tmp_path / "r") == 0
    assert pretend == [
        *[(0, 0), (0, 1)],
        *[(1, number) for number in (0, 1, 2, 3)],
        *[(2, number) for number in (3, 2, 1, 0)],
    ]
    assert {path.name for path in (tmp_path / "r").iterdir()} == {
        "settings.yaml",
        "events",
        "machine.json",
        "samples.parquet",
        "summary.json",
        "report.html",
        "report.md",
    }
    printed = capsys.readouterr()
    assert "sharecoord, consumers 2: records_per_s 200" in printed.out
    assert "4 cells, 10 trials" in printed.err
    assert "[10/10] kafka-share, consumers 1: records/s 100 (0 s left)" in printed.err


def test_what_was_measured_before_a_failure_is_kept(
    tmp_path: Path,
    pretend: list[tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    good: Callable[..., Outcome] = Trials.run

    def trial(self: Trials, number: int, cell: Cell, repeat: int) -> Outcome:
        if number == 1 and repeat == 1:
            raise BenchError("a load process ended")
        return good(self, number, cell, repeat)

    monkeypatch.setattr(Trials, "run", trial)
    with pytest.raises(BenchError, match="a load process ended"):
        run({"kafka": "h:1", "work_ms": 5}, output=tmp_path / "r")
    stored = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert (stored["complete"], len(stored["cells"]), len(stored["trials"])) == (False, 1, 3)
    assert "Broken off" in (tmp_path / "r" / "report.html").read_text(encoding="utf-8")
    assert "not finished; what was measured is in" in capsys.readouterr().err


def test_what_is_said_wins_over_the_plan(tmp_path: Path, pretend: list[tuple[int, int]]) -> None:
    given = {"repeats": 1, "consumers": "3", "kafka": "h:1"}
    assert run(given, plan="fairness", output=tmp_path / "r") == 0
    stored = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert len(stored["trials"]) == len(pretend) == 3
    assert {each["cell"]["consumers"] for each in stored["cells"]} == {3}
    assert {each["cell"]["work_ms"] for each in stored["cells"]} == {5.0}


def test_nothing_is_started_for_settings_that_can_not_be(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="consumers: 'x' can not be used"):
        run({"consumers": "x"}, output=tmp_path / "r")
    assert not (tmp_path / "r").exists()
    (tmp_path / "old").write_text("", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match="is not empty"):
        run({"kafka": "h:1"}, output=tmp_path)


def test_only_limits_of_the_broker_are_raised_and_only_when_needed() -> None:
    few = Cell(Consumer.KAFKA_SHARE)
    assert course._broker_settings([few, Cell(Consumer.SHARECOORD, consumers=300)]) == {}
    many = Cell(Consumer.KAFKA_SHARE, consumers=201)
    assert course._broker_settings([few, many]) == {"group.share.max.size": "1000"}
    locks = Cell(Consumer.KAFKA_SHARE, record_locks=5000)
    assert set(course._broker_settings([locks])) == {"group.share.max.partition.max.record.locks"}


def test_a_store_whose_programs_are_missing_is_left_out(
    tmp_path: Path, pretend: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "has_programs", lambda kind: kind is not StoreKind.MARIADB)
    given = {"repeats": 1, "kafka": "h:1", "consumer": "sharecoord"}
    assert run({**given, "store": "sqlite,mariadb"}, output=tmp_path / "r") == 0
    stored = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert [each["cell"]["store"] for each in stored["cells"]] == ["SQLite"]
    assert stored["left_out"] == ["the programs of MariaDB are not installed"]
    with pytest.raises(InvalidConfigError, match="store: the programs of MariaDB are not inst"):
        run({**given, "store": "mariadb"}, output=tmp_path / "none")


@pytest.mark.parametrize(("bound", "strict", "code"), [(1, True, 0), (2, True, 1), (2, False, 0)])
def test_a_missed_target_of_a_plan_fails_only_when_it_shall(
    bound: int, *, strict: bool, code: int, tmp_path: Path, pretend: list[tuple[int, int]]
) -> None:
    target = {"figure": "records_per_s", "at-least": bound, "against": {"consumer": "kafka-share"}}
    given = {"repeats": 1, "kafka": "h:1", "targets": [target]}
    assert run(given, output=tmp_path / "r", strict=strict) == code
    stored = json.loads((tmp_path / "r" / "summary.json").read_text(encoding="utf-8"))
    assert [each["verdict"]["passed"] for each in stored["verdicts"]] == [bound == 1]
    assert len(pretend) == 4


def test_a_page_is_refused_before_any_work_and_updated_after_it(
    tmp_path: Path, pretend: list[tuple[int, int]]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("\n".join(MARKS), encoding="utf-8")
    given = {"repeats": 1, "kafka": "h:1"}
    for wrong in ({"mode": "drain"}, {"consumer": "sharecoord"}):
        with pytest.raises(InvalidConfigError, match="update: a page is for the table of shapes"):
            run({**given, **wrong}, output=tmp_path / "r", update=page)
    assert not pretend
    assert run(given, output=tmp_path / "r", update=page) == 0
    assert "| 1 kB  | 16 kB   | none " in page.read_text(encoding="utf-8")


def test_the_files_of_a_brokers_log_are_read_where_they_are_in_reach(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = StoredBatches(((7, 3),), 1100)
    monkeypatch.setattr(trial, "stored_batches", lambda *_: found)
    stores = Stores(ExitStack(), tmp_path)
    for log_dir, stored in ((None, None), (tmp_path, found)):
        cluster = Cluster("h:1", 1, log_dir)
        made = Trials(Settings(), cluster, tmp_path, stores=stores)
        assert made._stored(TopicKey(1, 100, batch_bytes=1000), "t") == stored
    with pytest.raises(BenchError, match="its batches have 7 records, and 125 of 100 B go into"):
        made._stored(TopicKey(1, 100), "t")


# -- the command line -----------------------------------------------------------------------------


def command(*arguments: str) -> Any:
    return CliRunner().invoke(cli, ["bench", *arguments], catch_exceptions=False)


def test_flags_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def take(given: dict[str, Any], **more: Any) -> int:
        seen.update(given, **more)
        return 0

    monkeypatch.setattr(course, "run", take)
    arguments = ["run", "--plan", "latency", "--consumer", "plain,sharecoord", "--work-ms", "1,2"]
    arguments += ["--duration", "3", "--warm-up", "1", "--no-rehearsal", "--payload-bytes", "16"]
    assert command(*arguments, "--output", "out", "--mode", "drain").exit_code == 0
    assert seen == {
        "plan": "latency",
        "output": Path("out"),
        "update": None,
        "strict": False,
        "consumer": "plain,sharecoord",
        "work_ms": "1,2",
        "payload_bytes": "16",
        "duration_s": 3.0,
        "warm_up_s": 1.0,
        "rehearsal": False,
        "mode": "drain",
    }


def test_what_can_not_be_run_is_one_line() -> None:
    result = command("run", "--consumers", "0")
    assert result.exit_code == 1
    assert result.stderr.startswith("sharecoord: error: consumers: '0' can not be used; give ")


def test_options_of_the_standard_plan_do_not_go_astray() -> None:
    result = command("--repeats", "1", "run")
    assert result.exit_code == 2
    assert "--repeats stands before run" in result.stderr


def test_compare_wants_results(tmp_path: Path) -> None:
    result = command("compare", str(tmp_path), str(tmp_path))
    assert result.exit_code == 1
    assert "has no summary.json" in result.stderr
    assert command("compare", str(tmp_path), str(tmp_path / "x")).exit_code == 2


# -- progress -------------------------------------------------------------------------------------


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_the_time_left_follows_the_pace_so_far() -> None:
    clock = Clock()
    estimate = Estimate(40.0, clock)
    assert estimate.left_s() == 40
    estimate.begin(10.0)
    clock.now_s += 4
    assert estimate.left_s() == 36
    clock.now_s += 16
    estimate.end()
    # The step took twice as long as expected, so will the others.
    assert estimate.left_s() == 60
    estimate.begin(30.0)
    clock.now_s += 100
    assert estimate.left_s() == 0


def test_time_left_in_words() -> None:
    assert time_left(59.4) == "59 s left"
    assert time_left(125) == "2 min 05 s left"


def test_without_a_terminal_there_are_plain_lines() -> None:
    stream = io.StringIO()
    with open_progress(2, 0.0, stream) as progress:
        assert isinstance(progress, PlainProgress)
        progress.say("hello")
        progress.begin("a cell", 0.0)
        progress.tick()
        assert stream.getvalue() == "hello\n"
        progress.end("100 records/s")
    assert stream.getvalue() == "hello\n[1/2] a cell: 100 records/s (0 s left)\n"


def test_in_a_terminal_there_is_a_bar_with_the_time_left() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    with open_progress(2, 125.0, stream) as progress:
        assert isinstance(progress, BarProgress)
        progress.begin("a cell", 60.0)
        progress.tick()
        progress.end("100 records/s")
    text = stream.getvalue()
    assert "[1/2] a cell: 100 records/s" in text
    assert "left" in text
