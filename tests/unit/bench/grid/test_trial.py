"""What a trial decides by itself: the search for a rate, which records belong to a window."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharecoord.bench.coordinator import Counters
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


class Coordinator:
    """A coordinator with figures that a test sets."""

    pid = 1
    rss_mb = 100.0
    peak_rss_mb = 140.0
    written_bytes: int | None = 1000
    counted = Counters(10, 0, 1000)

    def counters(self) -> Counters:
        return self.counted


class LateJoin:
    """A watch that sees all members at its second look."""

    looks = 0
    joined_ns: int | None = None

    def look(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            self.joined_ns = 3_500 * MS
        return self.joined_ns is not None


def staged(tmp_path: Path, members: int) -> tuple[Trials, Any, Any]:
    """Trials whose members have joined, their server and their fleet."""
    found = trials(Settings(), tmp_path)
    coordinator: Any = Coordinator()
    watch: Any = LateJoin()
    found._joins = trial._Joins(watch, coordinator, members)
    server = trial._Server("h:1", "g", coordinator, idle_rss_mb=80.0)
    fleet = SimpleNamespace(board=SimpleNamespace(began_ns=3_000 * MS), cpu_s=lambda: 7.0)
    return found, server, fleet


def test_a_coordinator_has_figures_of_its_own(tmp_path: Path) -> None:
    found, server, fleet = staged(tmp_path, 20)
    before = {"coordinator_rss_mb": 100.0, "coordinator_peak_mb": 140.0}
    assert found._own_figures(server, fleet) == before
    assert found._member_figures(server) == {}
    assert found._joins is not None
    found._joins.look()
    found._joins.look()
    server.coordinator.rss_mb = 500.0  # what comes after the joins is not the members'
    found._joins.look()
    assert found._own_figures(server, fleet)["joined_s"] == 0.5
    assert found._member_figures(server) == {"member_kb": 1000.0}


def test_every_consumer_of_a_cell_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[Any, ...]] = []
    closed: list[bool] = []

    class Watch:
        def __init__(self, *given: Any) -> None:
            asked.append(given)

        def close(self) -> None:
            closed.append(True)

    monkeypatch.setattr(trial, "JoinWatch", Watch)
    found, server, _ = staged(tmp_path, 1)
    cell = Cell(Consumer.SHARECOORD, consumers=30, parallelism="continuous:4")
    with ExitStack() as stack:
        joins = found._watch_joins(stack, cell, server)
        assert joins is not None
        assert joins.members == 30
        assert found._watch_joins(stack, cell, trial._Server("h:1", "g")) is None
        assert not closed
    assert (asked, closed) == ([("h:1", "g", 30)], [True])


def test_few_members_are_not_told_from_the_first_connection(tmp_path: Path) -> None:
    found, server, _ = staged(tmp_path, 9)
    assert found._joins is not None
    found._joins.look()
    found._joins.look()
    assert found._joins.rss_mb == 100
    assert found._member_figures(server) == {}


def test_peers_have_none_of_these(tmp_path: Path) -> None:
    found, _, fleet = staged(tmp_path, 20)
    found._joins = None
    peer = trial._Server("h:1", "g")
    assert found._own_figures(peer, fleet) == {}
    assert found._member_figures(peer) == {}
    window = trial._Watch(Cluster("h:1", None, "h:1"), peer, fleet).read()
    assert (window.counters, window.written_bytes) == (None, None)


def test_a_window_has_what_the_coordinator_did_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "cpu_s", lambda pid: float(pid))
    _, server, fleet = staged(tmp_path, 20)
    watch = trial._Watch(Cluster("h:1", 5, "h:1"), server, fleet)
    begin = watch.read()
    assert begin.cpu_s == {"broker": 5, "coordinator": 1, "client": 7}
    server.coordinator.written_bytes = 5096
    server.coordinator.counted = Counters(30, 0, 5000)
    window = watch.window(begin)
    assert window.cpu_s == {"broker": 0, "coordinator": 0, "client": 0}
    assert (window.commits_per_1000, window.written_bytes) == (5.0, 4096)
    server.coordinator.written_bytes = None
    assert watch.window(begin).written_bytes is None
