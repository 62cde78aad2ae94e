"""What a trial decides by itself: the search for a rate, which records belong to a window."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharecoord.bench.errors import BenchError
from sharecoord.bench.grid import trial
from sharecoord.bench.grid.board import Board
from sharecoord.bench.grid.cell import Cell, Consumer, Mode
from sharecoord.bench.grid.figures import Window
from sharecoord.bench.grid.recorder import Samples
from sharecoord.bench.grid.send import due_ns
from sharecoord.bench.grid.settings import Settings
from sharecoord.bench.grid.trial import Trials, first_due, missing_ns
from sharecoord.bench.runner import Cluster
from tests.unit.bench.grid.support import MS, make_samples

Steady = tuple[dict[str, float], Samples, Window]


def trials(settings: Settings, tmp_path: Path) -> Trials:
    return Trials(settings, Cluster("h:1", None, "h:1"), tmp_path, lambda: None)


@pytest.mark.parametrize(
    ("limit", "missing_above", "found"), [(3000, 1e9, 3000), (9e9, 2000, 2000), (50, 1e9, 0)]
)
def test_the_highest_rate_is_the_last_that_kept_its_bound_and_lost_nothing(
    limit: float,
    missing_above: float,
    found: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def steady(_: Trials, cell: Cell) -> Steady:
        assert cell.rate is not None
        figures = {
            "p99_ms": 20.0 if cell.rate <= limit else 30.0,
            "missing_records": float(cell.rate > missing_above),
            "records_per_s": cell.rate,
        }
        samples = make_samples((0, 1, 1500, 1))
        return figures, samples, Window(1000 * MS, 2000 * MS)

    monkeypatch.setattr(Trials, "_steady", steady)
    settings = Settings(mode=Mode.MAX_RATE, p99_ms=25, min_rate=100, max_rate=10_000, steps=16)
    outcome = trials(settings, tmp_path).run(3, Cell(Consumer.SHARECOORD), 2)
    figures = outcome.trial.figures
    assert figures["max_rate_per_s"] == pytest.approx(found, rel=0.03)
    # The other figures are those of the rate that was found.
    assert figures["records_per_s"] == (figures["max_rate_per_s"] or 100)
    assert (outcome.trial.cell, outcome.trial.repeat) == (3, 2)
    assert outcome.trial.per_consumer == [1]
    assert outcome.origin_ns == 1000 * MS
    assert 0 < len(outcome.trial.probes) <= 16


@pytest.mark.parametrize("rate", [1.0, 3.0, 1000.0, 7777.7])
@pytest.mark.parametrize("after_ns", [0, 1, 999_999_999, 1_000_000_000, 12_345_678_901])
def test_the_first_record_of_a_window_is_the_first_that_is_due_in_it(
    rate: float, after_ns: int
) -> None:
    number = first_due(55 + after_ns, 55, rate)
    assert due_ns(55, rate, number) >= 55 + after_ns
    assert number == 0 or due_ns(55, rate, number - 1) < 55 + after_ns


def test_what_nobody_handled_is_missing_since_it_was_due(tmp_path: Path) -> None:
    board = Board.create(tmp_path / "b", consumers=1, processes=1, records=10)
    try:
        for number in (3, 4, 6):
            board.seen[number] = 1
        # Of the records 3 to 6 one was not handled: it was due at 5 s.
        assert missing_ns(board, 3, 7, start_ns=0, rate=1.0, now_ns=9_000 * MS) == [4_000 * MS]
        assert missing_ns(board, 3, 5, start_ns=0, rate=1.0, now_ns=9_000 * MS) == []
    finally:
        board.close()


def test_a_group_that_gets_nothing_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NoRecords:
        total = 0

    class Idle:
        board = NoRecords()

        def check(self) -> None: ...

    monkeypatch.setattr(trial, "FIRST_RECORD_S", -1.0)
    with pytest.raises(BenchError, match="no record was handled within"):
        trials(Settings(), tmp_path)._first_record(Idle())  # type: ignore[arg-type]
