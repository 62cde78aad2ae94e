"""The command: refusals before any work, exit codes, files; the work itself is replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sharecoord.bench.engine.figures import Interval, Trial
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.engine.trial import Outcome
from sharecoord.bench.errors import BenchError
from sharecoord.bench.standard import run as bench
from sharecoord.bench.standard.plans import PLANS, Options, throughput_plan
from sharecoord.bench.standard.results import Run
from sharecoord.bench.standard.run import Course
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.errors import DevenvError
from sharecoord.errors import InvalidConfigError
from tests.unit.bench.support import make_run

GOOD = (
    make_run("kafka-implicit", 100_000),
    make_run("sharecoord-implicit", 260_000, cpu_s=0.5),
)
BAD = (make_run("kafka-implicit", 100_000), make_run("sharecoord-implicit", 99_000))


@pytest.fixture(autouse=True)
def no_core_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The script that times the core needs a minute."""
    monkeypatch.setattr(bench, "ROOT", tmp_path)


def pretend(monkeypatch: pytest.MonkeyPatch, runs: Sequence[Run]) -> None:
    monkeypatch.setattr(Course, "runs", lambda _: iter(runs))


@pytest.mark.parametrize(
    ("runs", "strict", "code"), [(GOOD, True, 0), (BAD, False, 0), (BAD, True, 1)]
)
def test_a_missed_target_fails_only_when_it_shall(
    runs: Sequence[Run],
    *,
    strict: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pretend(monkeypatch, runs)
    output = tmp_path / "result"
    assert bench.run(kafka="h:1", output=output, strict=strict) == code
    printed = capsys.readouterr()
    assert printed.out.strip() == (output / "report.md").read_text(encoding="utf-8").strip()
    assert str(output) in printed.err
    stored = json.loads((output / "result.json").read_text(encoding="utf-8"))
    assert stored["machine"]["kafka"] == "h:1"
    assert len(stored["runs"]) == 2


def test_of_all_plans_each_has_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Course, "runs", one_of_each)
    output = tmp_path / "result"
    assert bench.run(plan="all", kafka="h:1", output=output, strict=True) == 1
    assert {path.name for path in output.iterdir()} == set(PLANS)
    stored = json.loads((output / "recovery" / "result.json").read_text(encoding="utf-8"))
    assert [verdict["passed"] for verdict in stored["verdicts"]] == [False, False]
    report = (output / "restart" / "report.md").read_text(encoding="utf-8")
    assert "first delivery after the port opened | <= 1 s | 11.00 s  | **MISS**" in report
    assert "## Speed and cost" not in report
    assert "| SQLite, 10 x 2 ranges" in capsys.readouterr().out


def one_of_each(course: Course) -> Iterator[Run]:
    names = ("commits_per_s", "all_served_s", "first_delivery_s")
    for trial in course._plan.trials:
        yield Run(trial.key, 0, 1, dict.fromkeys(names, 11.0), 0.5)


def test_by_default_the_result_goes_to_a_folder_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, GOOD)
    monkeypatch.chdir(tmp_path)
    assert bench.run(kafka="h:1") == 0
    (folder,) = (tmp_path / "bench-results").iterdir()
    assert {path.name for path in folder.iterdir()} == {"report.md", "result.json"}


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"output: .* is not empty"):
        bench.run(kafka="h:1", output=tmp_path)
    with pytest.raises(InvalidConfigError, match=r"output: .* is a file"):
        bench.run(kafka="h:1", output=tmp_path / "old")
    with pytest.raises(InvalidConfigError, match=r"output: .* can not be made"):
        bench.run(kafka="h:1", output=tmp_path / "old" / "new")


def test_what_is_asked_reaches_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Course] = []

    def keep(self: Course) -> Iterator[Run]:
        seen.append(self)
        return iter(GOOD)

    monkeypatch.setattr(Course, "runs", keep)
    given: dict[str, Any] = {
        "sizes": [1000, 200],
        "records": 60_000,
        "repeats": 2,
        "batch_bytes": 500,
    }
    assert bench.run(kafka="h:1", output=tmp_path / "r", strict=True, **given) == 0
    plan = seen[0]._plan
    assert plan.records == {1000: 60_000, 200: 60_000}
    assert plan.settings.repeats == 2
    assert plan.batch_bytes == 500


def test_what_can_not_be_done_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfigError, match="sizes: 5 must be from 10 to 20000 bytes"):
        bench.run(sizes=[5])

    def no_java(self: KafkaBroker) -> None:
        raise DevenvError("Java is missing: apt-get install")

    monkeypatch.setattr(KafkaBroker, "start", no_java)
    with pytest.raises(DevenvError, match="Java is missing: apt-get install"):
        bench.run(output=tmp_path / "r")


def test_what_was_measured_before_a_failure_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Course) -> Iterator[Run]:
        yield GOOD[0]
        raise BenchError("a consumer failed")

    monkeypatch.setattr(Course, "runs", broken)
    with pytest.raises(BenchError, match="a consumer failed"):
        bench.run(kafka="h:1", output=tmp_path / "r")
    stored = json.loads((tmp_path / "r" / "result.json").read_text(encoding="utf-8"))
    assert (stored["complete"], len(stored["runs"])) == (False, 1)
    assert "Broken off" in (tmp_path / "r" / "report.md").read_text(encoding="utf-8")


def test_a_window_that_time_ended_is_refused() -> None:
    step = next(throughput_plan(Options(records=60_000)).steps())

    def ended(arrived: int, seconds: int) -> Outcome:
        window = Interval(0, seconds * 10**9)
        return Outcome(Trial(0, 1, {}, [arrived]), Samples(), window)

    bench._check_arrived(step, ended(30_000, 72), 72.0)
    # The last tenth ended it: the consumer was fast.
    bench._check_arrived(step, ended(20_500, 1), 72.0)
    with pytest.raises(BenchError, match="was given 29,999 of 60,000 records within 72 s"):
        bench._check_arrived(step, ended(29_999, 72), 72.0)


def script(root: Path, text: str) -> None:
    path = root / bench.CORE_SCRIPT
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_core_is_timed_where_its_script_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.core_figures(tmp_path) is None
    script(tmp_path, "print('acquire: 1/s')")
    assert bench.core_figures(tmp_path) == "acquire: 1/s\n"
    script(tmp_path, "raise SystemExit('it broke')")
    assert "failed with exit code 1: it broke" in (bench.core_figures(tmp_path) or "")
    script(tmp_path, "while True: pass")
    monkeypatch.setattr(bench, "CORE_TIMEOUT_S", 0.1)
    assert "did not end" in (bench.core_figures(tmp_path) or "")
