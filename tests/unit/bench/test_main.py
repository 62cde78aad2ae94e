"""The command: refusals before any work, exit codes, files; the work itself is replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharecoord.bench.engine.cell import Cell, Consumer
from sharecoord.bench.engine.figures import Trial
from sharecoord.bench.engine.settings import Settings
from sharecoord.bench.errors import BenchError
from sharecoord.bench.machine import Machine
from sharecoord.bench.run.folder import RunResult, write_summary
from sharecoord.bench.run.shapes import MARKS
from sharecoord.bench.standard import run as bench
from sharecoord.bench.standard.plans import PLANS
from sharecoord.bench.standard.results import Run
from sharecoord.bench.standard.run import Course
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.errors import DevenvError
from sharecoord.errors import InvalidConfigError
from tests.unit.bench.engine.support import make_result, make_trial

GOOD, BAD = 10.0, 0.5


@pytest.fixture(autouse=True)
def no_core_figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The script that times the core needs a minute."""
    monkeypatch.setattr(bench, "ROOT", tmp_path)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> list[Cell]:
    """Replaces the work; the list is filled with the cells that would have been measured."""
    return pretended(monkeypatch, GOOD)


def pretended(monkeypatch: pytest.MonkeyPatch, times: float) -> list[Cell]:
    """This project has so many times the speed of its peers, and a part of their costs."""
    made: list[Cell] = []

    def trial(number: int, cell: Cell) -> Trial:
        factor = times if cell.consumer is Consumer.SHARECOORD else 1.0
        figures = {
            "records_per_s": 1000 * factor,
            "cpu_total_s_per_million": 1 / factor,
            "first_record_s": 0.1,
            "idle_rss_mb": 80.0,
        }
        return make_trial(number, 1, [1], **figures)

    def measured(settings: Settings, directory: Path, *, machine: Machine) -> RunResult:
        cells = settings.product().cells
        made.extend(cells)
        trials = [trial(number, cell) for number, cell in enumerate(cells)]
        result = replace(make_result(trials, cells, settings=settings), machine=machine)
        write_summary(result, directory)
        return result

    monkeypatch.setattr(bench, "measure", measured)
    return made


@pytest.mark.parametrize(
    ("times", "strict", "code"), [(GOOD, True, 0), (BAD, False, 0), (BAD, True, 1)]
)
def test_a_missed_target_fails_only_when_it_shall(
    times: float,
    *,
    strict: bool,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = pretended(monkeypatch, times)
    output = tmp_path / "result"
    assert bench.run(kafka="h:1", output=output, strict=strict, quick=True) == code
    # Without a name the shapes are measured.
    assert len(made) == 60
    printed = capsys.readouterr()
    assert ("**MISS**" in printed.out) == (times == BAD)
    assert str(output) in printed.err
    stored = json.loads((output / "summary.json").read_text(encoding="utf-8"))
    assert stored["machine"]["kafka"] == "h:1"
    assert {each["verdict"]["passed"] for each in stored["verdicts"] if each["peer"]} == {
        times == GOOD
    }


def test_of_all_plans_each_has_a_folder_and_all_targets_stand_in_one_report(
    tmp_path: Path,
    pretend: list[Cell],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Course, "runs", one_of_each)
    output = tmp_path / "result"
    assert bench.run(plan="all", kafka="h:1", output=output, strict=True, quick=True) == 1
    assert {path.name for path in output.iterdir()} == {*PLANS, "report.md"}
    stored = json.loads((output / "recovery" / "result.json").read_text(encoding="utf-8"))
    assert [verdict["passed"] for verdict in stored["verdicts"]] == [False, False]
    report = (output / "report.md").read_text(encoding="utf-8")
    for plan, target in (
        ("shapes", "records/s against kafka-share: payload-bytes 100, batch-bytes 16384"),
        ("partitions", "records/s against partitions 1"),
        ("fairness", "records/s against none"),
        ("stores", "records/s against store sqlite"),
        ("restart", "SQLite: first delivery after the port opened"),
    ):
        assert f"| {plan} " in report
        assert target in report
    printed = capsys.readouterr().out
    assert report.strip() in printed
    assert "| SQLite, 10 x 2 ranges" in printed


def one_of_each(course: Course) -> Iterator[Run]:
    names = ("commits_per_s", "all_served_s", "first_delivery_s")
    for trial in course._plan.trials:
        yield Run(trial.key, 1, dict.fromkeys(names, 11.0), 0.5)


def test_by_default_the_result_goes_to_a_folder_of_its_time(
    tmp_path: Path, pretend: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench.run(kafka="h:1", quick=True) == 0
    (folder,) = (tmp_path / "bench-results").iterdir()
    assert "summary.json" in {path.name for path in folder.iterdir()}


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"output: .* is not empty"):
        bench.run(kafka="h:1", output=tmp_path)
    with pytest.raises(InvalidConfigError, match=r"output: .* is a file"):
        bench.run(kafka="h:1", output=tmp_path / "old")
    with pytest.raises(InvalidConfigError, match=r"output: .* can not be made"):
        bench.run(kafka="h:1", output=tmp_path / "old" / "new")


def test_what_is_asked_reaches_the_plan(tmp_path: Path, pretend: list[Cell]) -> None:
    given: dict[str, Any] = {"sizes": [1000, 200], "repeats": 2, "batch_bytes": 500}
    assert bench.run(kafka="h:1", output=tmp_path / "r", **given) == 0
    assert {(cell.payload_bytes, cell.batch_bytes) for cell in pretend} == {(1000, 500), (200, 500)}
    # Two sizes, three codecs, five contenders each.
    assert len(pretend) == 2 * 3 * 5
    stored = yaml.safe_load((tmp_path / "r" / "settings.yaml").read_text(encoding="utf-8"))
    assert (stored["repeats"], stored["kafka"]) == (2, "h:1")


def test_the_table_of_shapes_is_put_between_the_marks_of_a_page(
    tmp_path: Path, pretend: list[Cell]
) -> None:
    page = tmp_path / "README.md"
    page.write_text("\n".join(["above", *MARKS, "below", ""]), encoding="utf-8")
    assert bench.run(kafka="h:1", output=tmp_path / "r", update=page, repeats=1) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("above\n")
    assert text.endswith("below\n")
    rows = [line for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + 1 + 12
    assert "**10.0x / 10.0x**" in rows[2]


@pytest.mark.parametrize(
    "given",
    [
        {"quick": True},
        {"sizes": [100]},
        {"batch_bytes": 500},
        {"plan": "latency"},
        {"plan": "parts"},
    ],
)
def test_a_page_takes_all_shapes_or_nothing(given: dict[str, Any], tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("\n".join(MARKS), encoding="utf-8")
    with pytest.raises(InvalidConfigError, match="update: a page is for all shapes"):
        bench.run(kafka="h:1", output=tmp_path / "r", update=page, **given)
    page.write_text("no marks", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match="has no place for the figures"):
        bench.run(kafka="h:1", output=tmp_path / "r", update=page)
    assert not (tmp_path / "r").exists()


def test_what_can_not_be_done_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidConfigError, match="sizes: 5 must be from 16 to 20000 bytes"):
        bench.run(sizes=[5])

    def no_java(self: KafkaBroker) -> None:
        raise DevenvError("Java is missing: apt-get install")

    monkeypatch.setattr(KafkaBroker, "start", no_java)
    for plan in ("shapes", "restart"):
        with pytest.raises(DevenvError, match="Java is missing: apt-get install"):
            bench.run(plan=plan, output=tmp_path / plan)


def test_what_was_measured_before_a_failure_is_kept(
    tmp_path: Path, pretend: list[Cell], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(course: Course) -> Iterator[Run]:
        yield next(one_of_each(course))
        raise BenchError("a consumer failed")

    monkeypatch.setattr(Course, "runs", broken)
    with pytest.raises(BenchError, match="a consumer failed"):
        bench.run(plan="all", kafka="h:1", output=tmp_path / "r", quick=True)
    stored = json.loads((tmp_path / "r" / "parts" / "result.json").read_text(encoding="utf-8"))
    assert (stored["complete"], len(stored["trials"])) == (False, 1)
    broken_off = (tmp_path / "r" / "parts" / "report.md").read_text(encoding="utf-8")
    assert "Broken off" in broken_off
    assert "| shapes" in (tmp_path / "r" / "report.md").read_text(encoding="utf-8")


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
