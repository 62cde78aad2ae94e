"""Settings: bounds, limits, files, plans that ship."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from sharecoord.bench.engine.cell import Ack, Cell, Client, Consumer, Mode, TopicKey
from sharecoord.bench.engine.settings import (
    Settings,
    backlog_records,
    backlogs,
    consumers_per_process,
    expected_run_s,
    plan_names,
    read_plan,
    read_settings,
    rehearsals,
)
from sharecoord.bench.run.course import steps
from sharecoord.errors import InvalidConfigError


def test_nothing_given_is_the_default() -> None:
    settings = read_settings({})
    assert settings == Settings()
    assert [cell.consumer for cell in settings.product().cells] == [
        Consumer.KAFKA_SHARE,
        Consumer.SHARECOORD,
    ]


def test_dimensions_stand_anywhere_and_with_dashes_or_underscores() -> None:
    one = read_settings({"work-ms": "5", "consumers": "1,4", "mode": "throughput"})
    two = read_settings({"dimensions": {"work_ms": [5], "consumers": [1, 4]}, "mode": None})
    assert one == two
    assert len(one.product().cells) == 4


@pytest.mark.parametrize("name", plan_names())
def test_a_plan_that_ships_can_be_run_and_survives_its_own_file(name: str) -> None:
    settings = read_settings(read_plan(name))
    assert len(settings.product().cells) > 1
    assert read_settings(yaml.safe_load(settings.to_yaml())).product() == settings.product()
    again = read_settings(yaml.safe_load(settings.to_yaml()))
    assert (again.mode, again.duration_s, again.seed) == (
        settings.mode,
        settings.duration_s,
        settings.seed,
    )


def test_there_are_plans() -> None:
    assert {"fairness", "latency", "drain", "max-rate", "members", "workers"} <= set(plan_names())


def test_variants_are_products_of_their_own() -> None:
    settings = read_settings(
        {
            "consumer": "sharecoord",
            "variants": [
                {"consumers": [1, 2], "work-ms": [5]},
                {"consumers": [10], "work_ms": [50]},
                {"consumers": [2], "work_ms": [5]},
            ],
        }
    )
    cells = settings.product().cells
    assert [(cell.consumers, cell.work_ms) for cell in cells] == [(1, 5), (2, 5), (10, 50)]


def test_what_is_given_outside_of_variants_wins() -> None:
    variants = [{"consumers": [1], "work-ms": [5]}, {"consumers": [10], "work-ms": [50]}]
    settings = read_settings({"consumer": "plain", "variants": variants, "consumers": "3"})
    cells = settings.product().cells
    assert [(cell.consumers, cell.work_ms) for cell in cells] == [(3, 5), (3, 50)]


def test_the_plan_of_members_offers_all_of_them_the_same_rate() -> None:
    cells = read_settings(read_plan("members")).product().cells
    ours = [cell for cell in cells if cell.consumer is Consumer.SHARECOORD]
    assert {cell.consumers for cell in ours} == {1000, 10_000}
    assert {cell.client for cell in ours} == {Client.TASKS}
    assert len({cell.capacity_per_s for cell in cells}) == 1


def test_the_plan_of_security_judges_rules_against_the_same_without() -> None:
    settings = read_settings(read_plan("security"))
    cells = settings.product().cells
    judged = [
        (target.figure, cell.consumers, cell.ack, other)
        for target in settings.targets
        for cell in cells
        if target.means(cell) and (other := target.other(cell, settings.mode))
    ]
    assert [each[:3] for each in judged] == [
        ("records_per_s", 1, Ack.IMPLICIT),
        ("records_per_s", 1, Ack.EXPLICIT),
        ("joined_s", 10_000, Ack.IMPLICIT),
    ]
    assert {each[3] for each in judged} <= set(cells)


def test_the_plan_of_workers_has_a_peer_for_every_cell() -> None:
    cells = read_settings(read_plan("workers")).product().cells
    found = {
        consumer: {
            (cell.work_ms, cell.slots, cell.handler) for cell in cells if cell.consumer is consumer
        }
        for consumer in (Consumer.SHARECOORD, Consumer.PARALLEL_CONSUMER)
    }
    assert found[Consumer.SHARECOORD] == found[Consumer.PARALLEL_CONSUMER]
    assert found[Consumer.SHARECOORD] == {
        (0.0, 100, "record"),
        (0.0, 100, "batch:500"),
        (10.0, 100, "record"),
        (10.0, 1000, "record"),
        (100.0, 1000, "record"),
    }


def test_a_plan_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match=r"neither a file nor one of drain, events, fair"):
        read_plan("fast")
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"bad.yaml can not be read"):
        read_plan(str(bad))
    bad.write_text("- a", encoding="utf-8")
    with pytest.raises(InvalidConfigError, match=r"bad.yaml has no settings"):
        read_plan(str(bad))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "fast"}, "mode: 'fast' is none of throughput, latency, drain, max-rate"),
        ({"speed": 3}, "speed: is not a setting of the benchmark; use ack, "),
        ({"repeats": 0}, "repeats: 0 must be from 1 to 20"),
        ({"repeats": "x"}, "repeats: 'x' is not a number"),
        ({"duration_s": 601}, "duration_s: 601 must be from 1 to 600"),
        ({"duration_s": float("nan")}, "duration_s: nan must be from"),
        ({"steps": 17}, "steps: 17 must be"),
        ({"rehearsal": "no"}, "rehearsal: 'no' must be true or false"),
        ({"min_rate": 10, "max_rate": 5}, "min_rate: 10 is above max_rate"),
        ({"dimensions": [1]}, "dimensions: must be names with values"),
        ({"records": 5_000_001}, "records: 5000001 must be"),
        ({"records": 2_000_001, "payload_bytes": 1000}, "2 GB are the limits"),
        (
            {"consumers": 1000, "work_ms": 1, "duration_s": 600, "payload_bytes": 16},
            "records: .* are needed in one topic",
        ),
        (
            {"payload_bytes": ",".join(str(size) for size in range(1000, 1012))},
            "topics take 12.0 GB, and 10 GB is the limit",
        ),
        (
            {"mode": "latency", "rate": 200_000, "duration_s": 20},
            "rate: 200000 records/s of 1000 B",
        ),
        (
            {"mode": "max-rate", "payload_bytes": 2000},
            "max_rate: 50000 records/s of 2000 B",
        ),
        (
            {"mode": "drain", "work_ms": 50, "records": 20_000},
            "records: 1 x blocking with 50 ms of work need 1,000 s at least, and 900 s is",
        ),
        ({"variants": {"consumers": 1}}, "variants: must be a list of dimensions"),
        ({"variants": [{"repeats": [1]}]}, "variants: repeats is not a dimension; use ack, "),
        (
            {
                "variants": [
                    {"consumers": list(range(1, 51)), "work_ms": [work]} for work in (1, 2, 3)
                ],
                "consumer": "sharecoord",
            },
            "variants: they make 150 cells, and 100 is the limit",
        ),
        (
            {
                "consumer": "none",
                "consumers": 10_000,
                "client": "tasks",
                "work_ms": 10,
                "duration_s": 20,
            },
            "consumer none with 10 ms of work handle 26,000,000 records, and 5,000,000 is",
        ),
        (
            {"work_ms": 10, "duration_s": 600, "consumers": "1,2,3,4", "repeats": 20},
            "repeats: 8 cells x 20 would take about 28 h, and 12 h is the limit",
        ),
    ],
)
def test_what_is_out_of_bounds_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidConfigError, match=message):
        read_settings(given)


def test_a_backlog_lasts_for_the_window_of_the_cell_that_needs_most() -> None:
    settings = read_settings(
        {"consumers": "10,50", "work_ms": "5", "duration_s": 20, "warm_up_s": 5, "partitions": 2}
    )
    # 50 workers of 200 records/s for 25 s, and a quarter more.
    assert backlogs(settings, settings.product().cells) == {TopicKey(2, 1000, None): 312_500}


@pytest.mark.parametrize(
    ("settings", "cell", "records"),
    [
        (Settings(), Cell(Consumer.PLAIN), 1_000_000),
        (Settings(), Cell(Consumer.PLAIN, payload_bytes=100), 1_500_000),
        (Settings(records=777), Cell(Consumer.PLAIN), 777),
        (Settings(mode=Mode.DRAIN), Cell(Consumer.PLAIN), 100_000),
        (Settings(mode=Mode.LATENCY), Cell(Consumer.PLAIN, rate=10.0), 0),
        (Settings(), Cell(Consumer.NONE, work_ms=5.0), 0),
    ],
)
def test_how_many_records_a_cell_needs(settings: Settings, cell: Cell, records: int) -> None:
    assert backlog_records(settings, cell) == records


@pytest.mark.parametrize(
    ("cell", "per_process"),
    [
        (Cell(Consumer.SHARECOORD, consumers=50, work_ms=5.0), 25),
        (Cell(Consumer.SHARECOORD, consumers=50, work_ms=5.0, parallelism="blocking:10"), 2),
        (Cell(Consumer.SHARECOORD, consumers=50, work_ms=5.0, parallelism="blocking:100"), 1),
        (Cell(Consumer.SHARECOORD, consumers=4, parallelism="continuous:1000", work_ms=5.0), 2),
        # Without work several on one loop would measure the interpreter lock.
        (Cell(Consumer.SHARECOORD, consumers=4, parallelism="continuous:1000"), 1),
        (Cell(Consumer.SHARECOORD, consumers=10_000, client=Client.TASKS, work_ms=5.0), 2500),
        (Cell(Consumer.SHARECOORD, consumers=10_000, client=Client.TASKS), 1250),
        (Cell(Consumer.PARALLEL_CONSUMER, consumers=50, work_ms=5.0), 50),
        (Cell(Consumer.SHARECOORD, consumers=4), 1),
        (Cell(Consumer.SHARECOORD, consumers=64), 8),
    ],
)
def test_as_few_processes_as_is_honest(
    cell: Cell, per_process: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    assert consumers_per_process(Settings(), cell) == per_process
    assert consumers_per_process(Settings(per_process=7), cell) == 7


def test_repeats_are_interleaved_and_every_second_round_goes_backwards() -> None:
    settings = read_settings({"consumers": "1,2", "repeats": 2})
    cells = settings.product().cells
    assert [(step.repeat, step.number) for step in steps(settings, cells)] == [
        *((0, number) for number in (0, 1)),
        *((1, number) for number in (0, 1, 2, 3)),
        *((2, number) for number in (3, 2, 1, 0)),
    ]


def test_the_rehearsal_is_one_trial_for_each_kind_that_has_a_queue() -> None:
    settings = read_settings(
        {"consumer": "none,plain,sharecoord", "consumers": "1,2", "work_ms": 1}
    )
    cells = settings.product().cells
    assert [(cell.consumer, cell.consumers) for cell in rehearsals(settings, cells)] == [
        (Consumer.PLAIN, 1),
        (Consumer.SHARECOORD, 1),
    ]
    silent = read_settings({"rehearsal": False})
    assert rehearsals(silent, silent.product().cells) == []


@pytest.mark.parametrize("mode", list(Mode))
def test_more_repeats_take_longer(mode: Mode) -> None:
    once = read_settings({"mode": mode, "repeats": 1, "steps": 2})
    twice = read_settings({"mode": mode, "repeats": 2, "steps": 2})
    assert 0 < expected_run_s(once) < expected_run_s(twice)
