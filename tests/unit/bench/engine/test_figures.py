"""From raw samples to figures."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Ack, Cell, Consumer, Events, Mode, SecurityKind
from sharecoord.bench.engine.figures import (
    METRICS,
    CellSummary,
    Interval,
    exact_interval,
    latency_figures,
    peer_ratios,
    records_per_consumer,
    speed_figures,
    summarize,
)
from sharecoord.bench.engine.samples import Samples
from sharecoord.bench.text import Spread
from tests.unit.bench.engine.support import MS, OURS, PEER, make_samples, make_trial

WINDOW = Interval(1000 * MS, 3000 * MS, {"broker": 0.5, "client": 1.5})


def test_a_record_counts_in_the_window_in_which_its_handler_ended() -> None:
    samples = make_samples(
        (0, 1, 990, 9), (0, 1, 995, 5), (1, 1, 2990, 9), (1, 1, 2995, 5), (1, 7, 2000, 0)
    )
    assert records_per_consumer(samples, WINDOW, 3) == [1, 8, 0]


def test_speed_use_fairness_and_cost() -> None:
    samples = make_samples((0, 1, 900, 600), (0, 1, 1500, 1000), (1, 1, 2900, 600))
    figures = speed_figures(OURS, samples, WINDOW)
    assert figures["records_per_s"] == 1.0
    # 500 + 1000 of the first one, 100 of the second one, of two times 2000.
    assert figures["busy_percent"] == pytest.approx(40)
    assert figures["fewest_records"] == 0
    assert figures["most_records"] == 2
    assert figures["starved_consumers"] == 1
    assert figures["jain_ratio"] == pytest.approx(0.5)
    assert figures["cpu_broker_s_per_million"] == pytest.approx(250_000)
    assert figures["cpu_total_s_per_million"] == pytest.approx(1_000_000)
    assert set(figures) <= set(METRICS)


def test_without_records_there_is_no_cost_per_record() -> None:
    figures = speed_figures(PEER, Samples(), WINDOW)
    assert figures["records_per_s"] == 0
    assert figures["starved_consumers"] == 2
    assert not [name for name in figures if name.startswith("cpu")]


def test_fairness_is_that_of_queues_and_use_that_of_work() -> None:
    samples = make_samples((0, 1, 1500, 5))
    assert "jain_ratio" not in speed_figures(Cell(Consumer.NONE, work_ms=5.0), samples, WINDOW)
    assert "busy_percent" not in speed_figures(Cell(Consumer.PLAIN), samples, WINDOW)


def test_latency_counts_from_the_intended_time_of_the_windows_records() -> None:
    samples = make_samples(
        (0, 1, 1100, 0, 101),  # intended before the window
        (0, 1, 1100, 0, 100),
        (0, 1, 3500, 0, 501),  # handled behind the window, intended within
        (0, 1, 3500, 0, 500),  # intended behind it
        (0, 1, 1200, 0),  # a record that only woke the group up
    )
    figures = latency_figures(samples, WINDOW)
    assert figures == {
        "p50_ms": 100,
        "p95_ms": 501,
        "p99_ms": 501,
        "max_ms": 501,
        "missing_records": 0,
    }


def test_a_record_that_never_arrived_counts_with_the_time_it_was_waited_for() -> None:
    samples = make_samples((0, 1, 1100, 0, 10))
    figures = latency_figures(samples, WINDOW, [9000 * MS])
    assert (figures["max_ms"], figures["missing_records"]) == (9000, 1)


def test_a_drain_lasts_from_the_first_handler_to_the_last() -> None:
    samples = make_samples((0, 1, 1500, 5), (1, 1, 1400, 5), (1, 1, 1700, 9))
    exact = exact_interval(samples, WINDOW)
    assert (exact.begin_ns, exact.end_ns) == (1400 * MS, 1709 * MS + 1)
    assert exact.cpu_s == WINDOW.cpu_s
    assert sum(records_per_consumer(samples, exact, 2)) == 3


def test_summaries_are_medians_with_least_and_greatest_without_the_rehearsal() -> None:
    trials = [
        make_trial(0, 0, records_per_s=1),
        make_trial(0, 1, records_per_s=300),
        make_trial(0, 2, records_per_s=100, drain_s=2),
        make_trial(0, 3, records_per_s=200),
        make_trial(1, 0, records_per_s=5),
    ]
    (line,) = summarize([OURS, PEER], trials)
    assert (line.cell, line.repeats) == (OURS, 3)
    assert line.figures == {"records_per_s": (200, 100, 300), "drain_s": (2, 2, 2)}
    assert CellSummary.from_json(asdict(line)) == line


def test_ratios_are_taken_within_a_repeat_against_the_cell_with_another_consumer() -> None:
    many = [replace(cell, consumers=9) for cell in (OURS, PEER)]
    explicit = replace(OURS, ack=Ack.EXPLICIT)
    nobody = Cell(Consumer.NONE, consumers=2, work_ms=5.0)
    cells = [OURS, PEER, *many, explicit, nobody]
    speeds = {0: (300, 120), 1: (100, 60), 2: (7, 7), 4: (500, 500), 5: (600, 240)}
    trials = [
        make_trial(number, repeat, records_per_s=speed)
        for number, both in speeds.items()
        for repeat, speed in enumerate(both, 1)
    ]
    trials += [make_trial(0, 0, records_per_s=1), make_trial(1, 0, records_per_s=1)]
    found = peer_ratios(cells, trials, Mode.THROUGHPUT)
    assert [(ratio.cell, ratio.peer, ratio.spread) for ratio in found] == [
        (0, Consumer.NONE, (0.5, 0.5, 0.5)),
        (0, Consumer.KAFKA_SHARE, (2.5, 2, 3)),
        # The mode of acknowledgement means nothing without a queue; Kafka's was not measured in it.
        (4, Consumer.NONE, (pytest.approx(1.458, abs=0.001), 500 / 600, 500 / 240)),
    ]
    assert {ratio.metric for ratio in found} == {"records_per_s"}


def test_no_queue_is_compared_by_its_speed_alone() -> None:
    cells = [OURS, Cell(Consumer.NONE, consumers=2, work_ms=5.0)]
    figures = {"records_per_s": 5.0, "first_record_s": 1.0, "cpu_total_s_per_million": 2.0}
    trials = [make_trial(0, 1, (1, 1), **figures), make_trial(1, 1, (1, 1), **figures)]
    (ratio,) = peer_ratios(cells, trials, Mode.THROUGHPUT)
    assert (ratio.metric, ratio.spread) == ("records_per_s", (1, 1, 1))


def test_events_are_compared_with_none() -> None:
    cells = [OURS, replace(OURS, events=Events.PARQUET), replace(OURS, events=Events.KAFKA)]
    trials = [make_trial(number, 1, records_per_s=100.0 - number) for number in range(3)]
    found = peer_ratios(cells, trials, Mode.THROUGHPUT)
    assert [(ratio.cell, ratio.peer, ratio.spread[0]) for ratio in found] == [
        (1, "without events", 0.99),
        (2, "without events", 0.98),
    ]


def test_rules_are_compared_with_the_same_socket_without() -> None:
    cells = [replace(OURS, security=kind) for kind in SecurityKind]
    trials = [make_trial(number, 1, records_per_s=100.0 - number) for number in range(3)]
    (ratio,) = peer_ratios(cells, trials, Mode.THROUGHPUT)
    assert (ratio.cell, ratio.peer) == (2, "without security")
    assert ratio.spread[0] == pytest.approx(98 / 99)


def test_a_peer_without_the_figure_gives_no_ratio() -> None:
    trials = [
        make_trial(0, 1, records_per_s=5, first_record_s=1),
        make_trial(1, 1, records_per_s=0),
    ]
    assert peer_ratios([OURS, PEER], trials, Mode.THROUGHPUT) == []


def test_samples_survive_their_file(tmp_path: Path) -> None:
    samples = make_samples((0, 1, 2, 3, 4), (5, 6, 7, 8))
    samples.write(tmp_path / "s")
    assert Samples.read(tmp_path / "s") == samples
    whole = (tmp_path / "s").read_bytes()
    (tmp_path / "s").write_bytes(whole[:-1])
    with pytest.raises((EOFError, ValueError)):
        Samples.read(tmp_path / "s")


def test_a_board_is_shared_by_those_who_map_it(tmp_path: Path) -> None:
    mine = Board.create(tmp_path / "b", consumers=3, processes=2, records=10)
    other = Board(tmp_path / "b", consumers=3, processes=2, records=10)
    try:
        assert (mine.stopped(), mine.all_ready, mine.total, mine.began_ns) == (False, False, 0, 0)
        other.set_ready(1, 70)
        assert not mine.all_ready
        other.set_ready(0, 80)
        other.set_count(0, 4)
        other.set_count(2, 5)
        other.seen[0] = other.seen[9] = 1
        assert (mine.all_ready, mine.total, mine.began_ns) == (True, 9, 70)
        assert (mine.distinct(), mine.distinct(1), mine.distinct(0, 9)) == (2, 1, 1)
        mine.stop()
        assert other.stopped()
        # The last count and the first byte are neighbours.
        assert mine.total == 9
    finally:
        mine.close()
        other.close()


def test_the_store_costs_what_was_written_in_the_window() -> None:
    samples = make_samples((0, 1, 1500, 10), (1, 3, 2000, 0))
    window = replace(WINDOW, commits_per_1000=2.5, written_bytes=8192)
    figures = speed_figures(OURS, samples, window)
    assert figures["commits_per_1000"] == 2.5
    assert figures["store_bytes_per_record"] == 2048
    peer = speed_figures(PEER, samples, WINDOW)
    assert not {"commits_per_1000", "store_bytes_per_record"} & set(peer)
    nothing = speed_figures(OURS, Samples(), window)
    assert "store_bytes_per_record" not in nothing
    # The window of a drain is cut to the records; what was paid for them stays.
    cut = exact_interval(samples, window)
    assert (cut.begin_ns, cut.end_ns) == (1500 * MS, 2000 * MS + 1)
    assert (cut.cpu_s, cut.written_bytes) == (window.cpu_s, 8192)


def test_figures_are_written_once() -> None:
    summary = CellSummary(OURS, {"p99_ms": Spread(2.0, 1.0, 3.0)}, 3)
    assert summary.text("p99_ms") == "2.00 (1.00-3.00)"
    assert summary.text("p50_ms") == "-"
