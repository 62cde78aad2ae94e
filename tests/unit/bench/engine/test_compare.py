"""Two results beside each other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.bench.engine.cell import Cell, Consumer, Mode
from sharecoord.bench.engine.figures import CellSummary
from sharecoord.bench.run.compare import Difference, comparison, differences
from sharecoord.bench.run.course import compare
from sharecoord.bench.run.folder import ReadSummary, write_summary
from sharecoord.bench.text import Spread
from sharecoord.errors import InvalidConfigError
from tests.unit.bench.engine.support import OURS, PEER, make_result, make_trial

THIRD = Cell(Consumer.PLAIN, consumers=2, work_ms=5.0)
Three = tuple[float, float, float]


def result(
    name: str, cells: dict[Cell, dict[str, Spread]], mode: Mode = Mode.THROUGHPUT
) -> ReadSummary:
    summaries = [CellSummary(cell, figures, 3) for cell, figures in cells.items()]
    return ReadSummary(name, mode, summaries, f"commit-{name}", "Test CPU")


@pytest.mark.parametrize(
    ("metric", "first", "second", "ratio", "verdict"),
    [
        ("records_per_s", (100, 90, 110), (200, 190, 210), 2.0, "better"),
        ("records_per_s", (200, 190, 210), (100, 90, 110), 0.5, "worse"),
        ("p99_ms", (4, 3, 5), (2, 1, 2.9), 0.5, "better"),
        ("p99_ms", (4, 3, 5), (2, 1, 3), 0.5, "overlaps"),
        ("p99_ms", (4, 3, 5), (8, 5, 9), 2.0, "overlaps"),
        ("p99_ms", (4, 3, 5), (8, 5.1, 9), 2.0, "worse"),
        ("starved_consumers", (0, 0, 0), (3, 2, 4), None, "worse"),
        ("most_records", (1, 1, 1), (2, 2, 2), 2.0, "differs"),
    ],
)
def test_a_difference_counts_only_when_the_ranges_do_not_touch(
    metric: str, first: Three, second: Three, ratio: float | None, verdict: str
) -> None:
    found = Difference(OURS, metric, Spread(*first), Spread(*second))
    assert (found.ratio, found.verdict) == (ratio, verdict)
    assert found.overlap == (verdict == "overlaps")


def test_the_cells_that_both_have_are_compared_and_the_others_named() -> None:
    rate = {"records_per_s": Spread(100.0, 90.0, 110.0)}
    faster = {
        "records_per_s": Spread(150.0, 140.0, 160.0),
        "p99_ms": Spread(1.0, 1.0, 1.0),
    }
    first, second = result("a", {OURS: rate, PEER: rate}), result("b", {THIRD: rate, OURS: faster})
    assert differences(first, second) == [
        Difference(OURS, "records_per_s", rate["records_per_s"], faster["records_per_s"])
    ]
    text = comparison(first, second).splitlines()
    assert text[:2] == ["A: a (commit-a)", "B: b (commit-b)"]
    row = next(line for line in text if line.startswith("sharecoord"))
    assert row.split() == [
        "sharecoord",
        "records/s",
        "100",
        "(90-110)",
        "150",
        "(140-160)",
        "1.50",
        "better",
    ]
    assert text[-2:] == ["only in A: kafka-share", "only in B: plain"]


def test_what_can_not_be_compared_is_refused() -> None:
    rate = {"records_per_s": Spread(100.0, 90.0, 110.0)}
    first = result("a", {OURS: rate})
    with pytest.raises(InvalidConfigError, match="b: has no cell that a has too"):
        differences(first, result("b", {PEER: rate}))
    with pytest.raises(InvalidConfigError, match="b: is of mode drain, and a of throughput"):
        differences(first, result("b", {OURS: rate}, Mode.DRAIN))


def test_folders_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, rate in (("one", 100.0), ("two", 50.0)):
        (tmp_path / name).mkdir()
        trials = [make_trial(0, repeat, records_per_s=rate + repeat) for repeat in (1, 2)]
        write_summary(make_result(trials), tmp_path / name)
    assert compare(tmp_path / "one", tmp_path / "two") == 0
    printed = capsys.readouterr().out
    assert "worse" in printed
    assert "0.51" in printed
