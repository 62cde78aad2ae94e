"""What people and programs read."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from sharecoord.bench.standard.report import markdown, write_report
from tests.unit.bench.support import MACHINE, make_result, make_run

RUNS = [
    make_run("plain", 900_000),
    make_run("kafka-implicit", 100_000, first_record_s=5.0, repeat=1),
    make_run("kafka-implicit", 110_000, first_record_s=5.0, repeat=2),
    make_run("sharecoord-implicit", 400_000, repeat=1, idle_rss_mb=90),
    make_run("sharecoord-implicit", 220_000, repeat=2, idle_rss_mb=94),
]


def cells(text: str, first: str) -> list[list[str]]:
    """The rows of all tables whose first two cells contain a text."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    return [row for row in rows if any(first in cell for cell in row[:2])]


def test_a_line_per_consumer_with_its_costs() -> None:
    text = markdown(make_result(RUNS))
    assert cells(text, "plain consumer") == [
        ["1 kB", "plain consumer", "900,000", "-", "1.00", "-", "1.00", "2.00", "0.10"]
    ]
    ours = cells(text, "sharecoord, implicit")[0]
    assert ours[2:4] == ["310,000 (220,000-400,000)", "3.00x (2.00-4.00)"]
    assert ours[4:] == ["1.00", "1.00", "1.00", "3.00", "0.10"]


def test_targets_are_marked() -> None:
    text = markdown(make_result(RUNS))
    speed, cpu = cells(text, "sharecoord, implicit, 1 kB")
    assert speed[1:] == [">= 2.5 x", "3.00 x (2.00-4.00)", "PASS"]
    # As much CPU in each run, a coordinator on top of broker and client.
    assert cpu[1:] == ["<= 0.6 x", "1.50 x", "**MISS**"]
    memory = cells(text, "idle coordinator")[0]
    assert memory[1:] == ["<= 120 MB", "92.00 MB (90.00-94.00)", "PASS"]
    slow = [make_run("kafka-implicit", 100_000), make_run("sharecoord-implicit", 100_000)]
    assert cells(markdown(make_result(slow)), "sharecoord, implicit, 1 kB")[0][3] == "**MISS**"


def test_memory_after_the_work_is_told_too() -> None:
    text = markdown(make_result(RUNS))
    assert cells(text, "before its first client")[0][1] == "92 MB (90-94)"
    assert cells(text, "after a run with 1 kB")[0][1] == "132 MB (130-134)"


def test_the_machine_is_recorded() -> None:
    text = markdown(make_result(RUNS))
    assert "600,000 x 1 kB, in batches of at most 16,384 B." in text
    assert cells(text, "CPU")[-1] == ["CPU", "Test CPU, 2 cores for us"]
    assert cells(text, "SQLAlchemy")[0][1] == "not installed"
    assert cells(text, "load average")[0][1] == "0.10, 0.20, 0.30"
    assert "busy with other work" not in text


def test_a_busy_machine_and_repeated_records_are_said_aloud() -> None:
    busy = dataclasses.replace(MACHINE, load_average=(1.5, 0.0, 0.0))
    text = markdown(make_result([make_run("plain", 1, repeated=1234)], machine=busy))
    assert "busy with other work" in text
    assert "1,234 records were handed out more than once" in text


def test_without_ours_there_are_no_targets() -> None:
    assert "None of them was measured." in markdown(make_result([make_run("plain", 1)]))


def test_the_figures_of_the_core_stand_as_they_were_printed() -> None:
    assert "```\nacquire: 1/s\n```" in markdown(make_result(RUNS, core="acquire: 1/s\n"))
    assert "pure decisions" not in markdown(make_result(RUNS))


def test_both_files_are_written(tmp_path: Path) -> None:
    result = make_result(RUNS)
    write_report(result, tmp_path / "new")
    assert (tmp_path / "new" / "report.md").read_text(encoding="utf-8") == markdown(result)
    stored = json.loads((tmp_path / "new" / "result.json").read_text(encoding="utf-8"))
    assert stored["machine"]["load_average"] == [0.1, 0.2, 0.3]
    assert [run["key"] for run in stored["runs"]] == [run.key for run in RUNS]
    assert stored["verdicts"][0]["passed"] is True
    assert stored["records"] == {"1000": 600_000}
