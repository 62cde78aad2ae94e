"""One row for each shape: what stands beside what, and what goes into the README."""

from __future__ import annotations

from dataclasses import replace

from sharecoord.bench.engine.cell import Ack, Cell, Compression, Consumer, Mode
from sharecoord.bench.engine.figures import Trial
from sharecoord.bench.engine.settings import read_settings
from sharecoord.bench.run.folder import RunResult
from sharecoord.bench.run.page import page
from sharecoord.bench.run.report import lines, markdown
from sharecoord.bench.run.shapes import MARKS, SHAPE_HEAD, readme_text, shape_rows, shapes
from tests.architecture.sources import ROOT
from tests.unit.bench.engine.support import make_result, make_trial

SETTINGS = read_settings(
    {
        "consumer": "plain,kafka-share,sharecoord",
        "compression": "none,lz4",
        "ack": "implicit,explicit",
        "repeats": 2,
        "targets": [
            {"figure": "records_per_s", "at-least": 3, "against": {"consumer": "kafka-share"}},
            {
                "figure": "cpu_total_s_per_million",
                "at-most": 0.4,
                "against": {"consumer": "kafka-share"},
                "cells": {"compression": "lz4"},
            },
        ],
    }
)
CELLS = SETTINGS.product().cells
SPEEDS = {Consumer.PLAIN: 900_000, Consumer.KAFKA_SHARE: 100_000, Consumer.SHARECOORD: 250_000}


def trial(number: int, cell: Cell, repeat: int) -> Trial:
    """The second repeat is half as fast as the first, for all."""
    costs = {"broker": 10.0, "client": 2.0}
    if cell.consumer is Consumer.SHARECOORD:
        costs = {"broker": 0.5, "coordinator": 3.5, "client": 2.0}
    faster = 1.6 if (cell.consumer, cell.ack) == (Consumer.SHARECOORD, Ack.EXPLICIT) else 1.0
    figures = {f"cpu_{name}_s_per_million": cost for name, cost in costs.items()}
    return make_trial(
        *(number, repeat, [1]),
        **figures,
        cpu_total_s_per_million=sum(costs.values()),
        records_per_s=SPEEDS[cell.consumer] * faster / repeat,
        batch_records=16,
        batch_stored_bytes=16_205 if cell.compression is Compression.NONE else 5_400,
        value_bytes_per_stored=0.99 if cell.compression is Compression.NONE else 2.94,
    )


def made(repeats: int = 2) -> RunResult:
    trials = [
        trial(number, cell, repeat)
        for number, cell in enumerate(CELLS)
        for repeat in range(1, repeats + 1)
    ]
    return make_result(trials, CELLS, settings=SETTINGS)


def test_a_row_has_all_consumers_their_costs_the_ratios_and_what_was_wanted() -> None:
    rows = {
        row[0]: dict(zip(SHAPE_HEAD[1:], row[1:], strict=True))
        for row in shape_rows(shapes(made()))
    }
    assert list(rows) == [
        f"compression {codec}, ack {ack}"
        for codec in ("none", "lz4")
        for ack in ("implicit", "explicit")
    ]
    assert rows["compression lz4, ack implicit"] == {
        "plain, records/s": "675,000 (450,000-900,000)",
        "Kafka's own, records/s": "75,000 (50,000-100,000)",
        "sharecoord, records/s": "187,500 (125,000-250,000)",
        "ratio": "2.50x",
        "wanted": ">= 3 x **MISS**",
        "CPU us, Kafka's own (broker / client)": "12.00 (10.00 / 2.00)",
        "CPU us, sharecoord (broker / coordinator / client)": "6.00 (0.50 / 3.50 / 2.00)",
        "CPU ratio": "0.50x",
        "CPU wanted": "<= 0.4 x **MISS**",
        "records per batch": "16",
        "stored bytes per batch": "5,400",
        "compressed to": "0.34",
    }
    explicit = rows["compression none, ack explicit"]
    assert (explicit["wanted"], explicit["CPU wanted"]) == (">= 3 x PASS", "-")


def test_the_terminal_and_the_page_have_the_same_rows() -> None:
    result = made()
    printed, shown = lines(result), page(result)
    assert "| compression lz4, ack explicit " in printed
    assert "| compression lz4, ack explicit " in markdown(result)
    assert "&lt;= 0.4 x MISS" in shown
    assert "Every shape" in shown
    assert "<h2>Targets</h2>" in shown
    assert "**" not in shown
    assert "records/s against kafka-share: compression none, ack implicit" in shown


def test_what_was_not_measured_is_a_dash_and_without_the_peer_there_is_no_row() -> None:
    ours = Cell(Consumer.SHARECOORD)
    peer = replace(ours, consumer=Consumer.KAFKA_SHARE)
    trials = [make_trial(number, 1, records_per_s=5.0) for number in range(2)]
    (row,) = shape_rows(shapes(make_result(trials, [ours, peer])))
    assert row == ["the one", "-", "5", "5", "1.00x", *["-"] * 8]
    alone = make_result(trials[:1], [ours])
    assert shapes(alone) == []
    assert "shape" not in lines(alone)
    latency = read_settings({"mode": "latency"})
    assert latency.mode is Mode.LATENCY
    assert shapes(make_result(trials, [ours, peer], settings=latency)) == []


def test_the_readme_has_a_line_for_each_topic_with_medians() -> None:
    text = readme_text(made())
    assert "with implicit / explicit acknowledgement" in text
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]
    assert len(rows) == 4
    assert rows[3] == [
        *("1 kB", "16 kB", "lz4", "675,000", "75,000 / 75,000", "187,500 / 300,000"),
        *("**2.5x / 4.0x**", "12.0 / 12.0", "6.0 / 6.0", "0.50x / 0.50x"),
    ]
    assert "Medians of 2" in text
    assert "Kafka 4.3.1, 2 cores (Test CPU), 2026-01-02, commit abc" in text
    assert "lz4 made values 2.9 to 2.9 times smaller." in text


def test_the_readme_has_a_place_for_the_table() -> None:
    MARKS.check(ROOT / "README.md")


def test_the_report_of_any_mode_has_figures_ratios_and_targets() -> None:
    settings = read_settings(
        {"mode": "latency", "targets": [{"figure": "p99_ms", "at-most": 25}], "rate": 1000}
    )
    cells = settings.product().cells
    trials = [make_trial(at, 1, p50_ms=1.0 + at, p99_ms=20.0) for at in range(len(cells))]
    text = markdown(make_result(trials, cells, settings=settings, complete=False))
    assert "**Broken off before the end.**" in text
    assert "Left out: plain can not <refill>." in text
    assert "| kafka-share | 1.00    | 20.00   |" in text
    assert "| sharecoord | kafka-share | 2.00x   | 1.00x   |" in text
    assert "| p99, ms | <= 25 ms | 20.00 ms | PASS |" in text
    assert "Every shape" not in text
    assert "| CPU " in text
