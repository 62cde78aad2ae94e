"""Targets as data: how they are read, which cells they mean, how they are judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from sharecoord.bench.engine.cell import Ack, Cell, Compression, Consumer, Mode
from sharecoord.bench.engine.settings import read_settings
from sharecoord.bench.engine.targets import (
    MAX_TARGETS,
    CellVerdict,
    Target,
    Verdict,
    judge,
    read_targets,
    verdict_table,
)
from sharecoord.bench.text import Spread
from sharecoord.errors import InvalidConfigError
from tests.unit.bench.engine.support import make_trial

OURS = Cell(Consumer.SHARECOORD)
PEER = Cell(Consumer.KAFKA_SHARE)
AGAINST = {"figure": "records_per_s", "at-least": 2, "against": {"consumer": "kafka-share"}}


def test_a_target_is_read_and_survives_the_file_of_its_run() -> None:
    given = {**AGAINST, "cells": {"payload-bytes": [100, 1000], "compression": "lz4"}}
    (target,) = read_targets([given])
    assert target == Target(
        *("records_per_s", 2.0, True),
        {"payload_bytes": (100, 1000), "compression": (Compression.LZ4,)},
        {"consumer": (Consumer.KAFKA_SHARE,)},
    )
    most = {"figure": "idle_rss_mb", "at_most": 120}
    settings = read_settings({"targets": [given, most]})
    assert read_settings(yaml.safe_load(settings.to_yaml())).targets == settings.targets
    assert settings.targets[1].at_least is False


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"figure": "x"}, "targets: must be a list of promises"),
        (["fast"], "targets: must be a list of promises"),
        ([AGAINST] * (MAX_TARGETS + 1), "targets: 101 are given, and 100 is the limit"),
        ([{**AGAINST, "of": {}}], "targets: 'of' is not known; use figure, "),
        ([{"at-least": 1}], "targets: figure None is not measured; give one of records_per_s, "),
        ([{"figure": "speed", "at-least": 1}], "targets: figure 'speed' is not measured"),
        ([{"figure": "p50_ms"}], "targets: p50_ms needs one of at-least and at-most"),
        ([{**AGAINST, "at-most": 3}], "targets: records_per_s needs one of"),
        ([{"figure": "p50_ms", "at-most": "3"}], "targets: the bound '3' of p50_ms is not a"),
        ([{"figure": "p50_ms", "at-most": True}], "targets: the bound True of p50_ms is not a"),
        ([{"figure": "p50_ms", "at-most": float("nan")}], "targets: the bound nan of p50_ms is"),
        ([{**AGAINST, "against": {"consumer": "plain,none"}}], "against has several values of"),
        ([{**AGAINST, "cells": [1]}], "targets: cells must be dimensions with values"),
        ([{**AGAINST, "cells": {"size": 1}}], "targets: 'size' of cells is not a dimension; use"),
        ([{**AGAINST, "cells": {"ack": "maybe"}}], "ack: 'maybe' can not be used"),
    ],
)
def test_what_can_not_be_judged_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        read_targets(given)


def judged(
    cells: list[Cell], figures: dict[int, list[float]], *given: dict[str, Any]
) -> list[CellVerdict]:
    """Verdicts when cells have these records/s in their repeats; the rehearsal was slow."""
    trials = [
        make_trial(number, repeat, records_per_s=value)
        for number, values in figures.items()
        for repeat, value in enumerate([0.001, *values])
    ]
    return judge(read_targets(list(given)), cells, trials, Mode.THROUGHPUT)


@pytest.mark.parametrize(("bound", "passed"), [(2.5, True), (2.6, False)])
def test_the_median_of_the_ratios_within_a_repeat_is_judged(bound: float, *, passed: bool) -> None:
    # Other work slows the third repeat down, for both.
    figures = {0: [300.0, 500.0, 2.0], 1: [100.0, 200.0, 1.0]}
    (found,) = judged([OURS, PEER], figures, {**AGAINST, "at-least": bound})
    assert (found.cell, found.peer, found.figure) == (0, 1, "records_per_s")
    assert found.verdict == Verdict(
        "records/s against kafka-share", True, bound, Spread(2.5, 2.0, 3.0), passed, "x"
    )


def test_only_cells_with_the_values_of_a_target_are_judged_and_only_ours() -> None:
    explicit = [replace(cell, ack=Ack.EXPLICIT) for cell in (OURS, PEER)]
    cells = [OURS, PEER, *explicit, replace(OURS, payload_bytes=100)]
    figures = {number: [10.0] for number in range(5)}
    found = judged(cells, figures, AGAINST, {**AGAINST, "cells": {"ack": "explicit"}})
    # The last cell has no peer beside it.
    assert [(each.cell, each.peer) for each in found] == [(0, 1), (2, 3), (2, 3)]
    assert found[1].verdict.title == (
        "records/s against kafka-share: payload-bytes 1000, ack explicit"
    )
    peers = {"figure": "records_per_s", "at-most": 11, "cells": {"consumer": "kafka-share"}}
    assert [each.cell for each in judged(cells, figures, peers)] == [1, 3]


def test_a_cell_can_be_measured_by_another_of_ours_but_not_by_itself() -> None:
    cells = [OURS, replace(OURS, partitions=100)]
    target = {"figure": "records_per_s", "at-least": 0.9, "against": {"partitions": 1}}
    (found,) = judged(cells, {0: [100.0], 1: [89.0]}, target)
    assert (found.cell, found.peer) == (1, 0)
    assert (found.verdict.measured.median, found.verdict.passed) == (0.89, False)
    assert found.verdict.title == "records/s against partitions 1: partitions 100"


def test_a_figure_by_itself_has_its_unit_and_one_that_is_missing_is_no_verdict() -> None:
    targets = read_targets(
        [{"figure": "p99_ms", "at-most": 25}, {"figure": "jain_ratio", "at-least": 1}]
    )
    trials = [make_trial(0, 1, p99_ms=25.0)]
    (found,) = judge(targets, [OURS], trials, Mode.THROUGHPUT)
    assert (found.peer, found.verdict.unit, found.verdict.passed) == (None, "ms", True)
    assert found.verdict.wanted == "<= 25 ms"
    assert "| p99, ms | <= 25 ms | 25.00 ms | PASS |" in verdict_table([found.verdict])
    assert verdict_table([]) == "None of them was measured."


def test_the_cpu_time_of_all_is_not_judged_without_the_brokers() -> None:
    targets = read_targets([{"figure": "cpu_total_s_per_million", "at-most": 9}])
    costs = {"cpu_client_s_per_million": 2.0, "cpu_total_s_per_million": 2.0}
    assert judge(targets, [OURS], [make_trial(0, 1, **costs)], Mode.THROUGHPUT) == []
    whole = make_trial(0, 1, **costs, cpu_broker_s_per_million=1.0)
    (found,) = judge(targets, [OURS], [whole], Mode.THROUGHPUT)
    assert found.verdict.passed
