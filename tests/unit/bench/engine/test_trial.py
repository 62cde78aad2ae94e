"""What a trial decides by itself: the search for a rate, which records belong to a window."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharecoord.bench.cluster import Cluster
from sharecoord.bench.coordinator import Counters
from sharecoord.bench.engine import trial
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Cell, Consumer, Mode
from sharecoord.bench.engine.figures import Interval
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.engine.send import due_ns
from sharecoord.bench.engine.settings import Settings
from sharecoord.bench.engine.trial import Server, Stage, Trials, first_due, missing_ns
from sharecoord.bench.errors import BenchError
from sharecoord.devenv.stores import Stores
from tests.unit.bench.engine.support import MS, make_samples

Steady = tuple[dict[str, float], Samples, Interval]


def trials(settings: Settings, tmp_path: Path) -> Trials:
    stores = Stores(ExitStack(), tmp_path)
    return Trials(settings, Cluster("h:1"), tmp_path, stores=stores)


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
        return figures, samples, Interval(1000 * MS, 2000 * MS)

    monkeypatch.setattr(Trials, "_steady", steady)
    settings = Settings(mode=Mode.MAX_RATE, p99_ms=25, min_rate=100, max_rate=10_000, steps=16)
    outcome = trials(settings, tmp_path).run(3, Cell(Consumer.SHARECOORD), 2)
    figures = outcome.trial.figures
    assert figures["max_rate_per_s"] == pytest.approx(found, rel=0.03)
    # The other figures are those of the rate that was found.
    assert figures["records_per_s"] == (figures["max_rate_per_s"] or 100)
    assert (outcome.trial.cell, outcome.trial.repeat) == (3, 2)
    assert outcome.trial.per_consumer == [1]
    assert outcome.window.begin_ns == 1000 * MS
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


def test_a_group_that_gets_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoRecords:
        total = 0

    class Idle:
        board = NoRecords()

        def check(self) -> None: ...

    monkeypatch.setattr(trial, "FIRST_RECORD_S", -1.0)
    idle: Any = Idle()
    with pytest.raises(BenchError, match="no record was handled within"):
        Stage(Cluster("h:1"), Server("h:1", "g"), idle).first_record()


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
    rss_mb = 0.0

    def __init__(self, members: int) -> None:
        self.members = members

    def look(self) -> bool:
        self.looks += 1
        if self.looks == 2:
            self.joined_ns, self.rss_mb = 3_500 * MS, 100.0
        return self.joined_ns is not None


def staged(members: int, broker_pid: int | None = None) -> tuple[Stage, Any, LateJoin]:
    """A stage, its coordinator, and the watch on its members."""
    coordinator: Any = Coordinator()
    joins: Any = LateJoin(members)
    server = Server("h:1", "g", coordinator, idle_rss_mb=80.0, idle_written_bytes=0)
    fleet: Any = SimpleNamespace(board=SimpleNamespace(began_ns=3_000 * MS), cpu_s=lambda: 7.0)
    made = Stage(Cluster("h:1", broker_pid), server, fleet, joins=joins, settle_s=0.01)
    return made, coordinator, joins


def test_a_coordinator_has_figures_of_its_own() -> None:
    found, coordinator, joins = staged(20)
    before = {"coordinator_rss_mb": 100.0, "coordinator_peak_mb": 140.0}
    assert found.own_figures() == before
    assert found.member_figures() == {}
    joins.look()
    joins.look()
    coordinator.rss_mb = 500.0  # what comes after the joins is not the members'
    assert found.own_figures()["joined_s"] == 0.5
    assert found.member_figures() == {"member_kb": 1000.0}


def test_a_coordinator_that_has_settled_tells_the_costs_of_the_whole_trial() -> None:
    found, coordinator, _ = staged(20)
    assert found.settled_figures() == {
        "idle_rss_mb": 80.0,
        "rss_after_mb": 100.0,
        "commits_per_1000": 10.0,
        "store_bytes_per_record": 1.0,
    }
    coordinator.counted = Counters(10, 0, 0)
    assert found.settled_figures() == {"idle_rss_mb": 80.0, "rss_after_mb": 100.0}


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
    found, server = trials(Settings(), tmp_path), staged(1)[0].server
    cell = Cell(Consumer.SHARECOORD, consumers=30, parallelism="continuous:4")
    with ExitStack() as stack:
        assert found._watch_joins(stack, cell, server) is not None
        assert found._watch_joins(stack, cell, Server("h:1", "g")) is None
        assert not closed
    assert (asked, closed) == ([(server.coordinator, "g", 30)], [True])


def test_few_members_are_not_told_from_the_first_connection() -> None:
    found, _, joins = staged(9)
    joins.look()
    joins.look()
    assert found.member_figures() == {}


def test_peers_have_none_of_these() -> None:
    fleet: Any = SimpleNamespace(cpu_s=lambda: 7.0)
    found = Stage(Cluster("h:1"), Server("h:1", "g"), fleet, settle_s=0.01)
    assert (found.own_figures(), found.settled_figures(), found.member_figures()) == ({}, {}, {})
    reading = found.read()
    assert (reading.counters, reading.written_bytes) == (None, None)


def test_a_window_has_what_the_coordinator_did_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "cpu_s", lambda pid: float(pid))
    found, coordinator, _ = staged(20, broker_pid=5)
    begin = found.read()
    assert begin.cpu_s == {"broker": 5, "coordinator": 1, "client": 7}
    coordinator.written_bytes = 5096
    coordinator.counted = Counters(30, 0, 5000)
    window = found.window(begin)
    assert window.cpu_s == {"broker": 0, "coordinator": 0, "client": 0}
    assert (window.commits_per_1000, window.written_bytes) == (5.0, 4096)
    coordinator.written_bytes = None
    assert found.window(begin).written_bytes is None
