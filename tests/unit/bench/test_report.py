"""What people and programs read of trials of stores, and of all targets."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from sharecoord.bench.engine.targets import Verdict
from sharecoord.bench.machine import Machine
from sharecoord.bench.standard.plans import Options, restart_plan
from sharecoord.bench.standard.report import Part, markdown, overview, write_report
from sharecoord.bench.standard.results import Result, Run, make_result
from sharecoord.bench.text import Spread
from tests.unit.bench.support import MACHINE

PLAN = restart_plan(Options(repeats=3))


def made(seconds: list[float], *, machine: Machine = MACHINE, core: str | None = None) -> Result:
    key = PLAN.trials[0].key
    runs = [Run(key, at, {"first_delivery_s": s}, 0.5) for at, s in enumerate(seconds, 1)]
    return make_result(PLAN, machine, runs, complete=True, core=core)


def cells(text: str, first: str) -> list[list[str]]:
    """The rows of all tables whose first two cells contain a text."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [row for row in rows if any(first in cell for cell in row[:2])]


def test_targets_are_marked_by_the_median() -> None:
    figures, verdict = cells(markdown(made([0.2, 1.0, 9.0])), "SQLite")[:2]
    assert figures == ["SQLite", "1.00 (0.20-9.00)"]
    assert verdict[1:] == ["<= 1 s", "1.00 s (0.20-9.00)", "PASS"]
    assert cells(markdown(made([1.1])), "SQLite: first")[0][2:] == ["1.10 s", "**MISS**"]
    assert "None of them was measured." in markdown(made([]))


def test_the_machine_is_recorded_and_a_busy_one_is_said_aloud() -> None:
    text = markdown(made([0.2]))
    assert cells(text, "CPU")[-1] == ["CPU", "Test CPU, 2 cores for us"]
    assert cells(text, "load average")[0][1] == "0.10, 0.20, 0.30"
    assert "busy with other work" not in text
    busy = dataclasses.replace(MACHINE, load_average=(1.5, 0.0, 0.0))
    assert "busy with other work" in markdown(made([0.2], machine=busy))


def test_the_figures_of_the_core_stand_as_they_were_printed() -> None:
    assert "```\nacquire: 1/s\n```" in markdown(made([0.2], core="acquire: 1/s\n"))
    assert "pure decisions" not in markdown(made([0.2]))


def test_both_files_are_written(tmp_path: Path) -> None:
    result = made([0.2])
    write_report(result, tmp_path / "new")
    assert (tmp_path / "new" / "report.md").read_text(encoding="utf-8") == markdown(result)
    stored = json.loads((tmp_path / "new" / "result.json").read_text(encoding="utf-8"))
    assert stored["machine"]["load_average"] == [0.1, 0.2, 0.3]
    assert [run["key"] for run in stored["trials"]] == [PLAN.trials[0].key]
    assert stored["verdicts"][0]["passed"] is True


def test_the_targets_of_all_plans_stand_in_one_table() -> None:
    good = Verdict.of("speed", Spread(5.0, 4.0, 6.0), 5.0, at_least=True, unit="x")
    bad = Verdict.of("time", Spread(1.1, 1.1, 1.1), 1.0, at_least=False, unit="s")
    parts = {"shapes": Part([good], "fast"), "restart": Part([bad], ""), "parts": Part([], "x")}
    text = overview(parts, MACHINE)
    assert "1 of 2 are met" in text
    assert cells(text, "speed") == [["shapes", "speed", ">= 5 x", "5.00 x (4.00-6.00)", "PASS"]]
    assert cells(text, "restart") == [["restart", "time", "<= 1 s", "1.10 s", "**MISS**"]]
    assert cells(text, "CPU")[0][1] == "Test CPU, 2 cores for us"
    assert "## Plan shapes\n\nfast\n" in text
