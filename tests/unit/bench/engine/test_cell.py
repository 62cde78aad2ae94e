"""The product of dimensions: which cells there are, and which there can not be."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from sharecoord.bench.engine.cell import (
    BY_NAME,
    DIMENSIONS,
    MAX_CELLS,
    Ack,
    Cell,
    Client,
    Compression,
    Consumer,
    Mode,
    Parallelism,
    cell_from_json,
    label,
    product,
    varied,
)
from sharecoord.errors import InvalidConfigError


def cells(mode: Mode = Mode.THROUGHPUT, **texts: str) -> list[Cell]:
    values = {name: BY_NAME[name].read(text) for name, text in texts.items()}
    return list(product(values, mode).cells)


def test_every_combination_stands_once_and_peers_stand_beside_each_other() -> None:
    found = cells(consumer="kafka-share,sharecoord", consumers="1,4", payload_bytes="100,1000")
    assert [(cell.consumers, cell.payload_bytes, str(cell.consumer)) for cell in found] == [
        (consumers, payload, consumer)
        for consumers in (1, 4)
        for payload in (100, 1000)
        for consumer in ("kafka-share", "sharecoord")
    ]


def test_every_dimension_can_have_several_values() -> None:
    two = {
        "consumer": "kafka-share,sharecoord",
        "consumers": "1,2",
        "partitions": "1,2",
        "payload_bytes": "16,17",
        "batch_bytes": "1,16384",
        "compression": "none,zstd",
        "work_ms": "1,2.5",
        "work_distribution": "uniform,lognormal:0.5",
        "max_poll_records": "default,20",
        "record_locks": "default,100",
        "ack": "implicit,explicit",
        "parallelism": "blocking,blocking:4",
        "key_skew": "none,1.2",
        "keys": "1,20",
        "ordering": "unordered,key",
        "rate": "10,20",
        "handler": "record,batch:5",
        "client": "threads,tasks",
        "events": "none,kafka",
        "store": "sqlite,postgresql",
        "security": "none,rules",
    }
    assert set(two) == set(BY_NAME)
    for name, text in two.items():
        base = {"work_ms": "1", "consumer": "sharecoord"}
        if name == "handler":
            # Batches belong to workers, and have no work.
            base = {"work_ms": "0", "consumer": "sharecoord", "parallelism": "continuous:2"}
        if name == "keys":
            base["key_skew"] = "0"
        if name == "ordering":
            base["parallelism"] = "continuous:2"
        found = cells(Mode.LATENCY, **{**base, name: text})
        assert [each.name for each in varied(found)] == [name]
        assert len(found) == 2


def test_too_many_cells_are_refused_with_their_number() -> None:
    many = ",".join(str(number) for number in range(1, 52))
    with pytest.raises(InvalidConfigError, match=rf"102 cells, and {MAX_CELLS} is the limit"):
        cells(consumer="plain,sharecoord", consumers=many)
    assert len(cells(consumer="plain,sharecoord", consumers=many.rsplit(",", 1)[0])) == MAX_CELLS


def test_what_means_nothing_in_a_cell_makes_no_second_one() -> None:
    found = cells(consumer="plain,sharecoord", ack="implicit,explicit", record_locks="default,500")
    plain = [cell for cell in found if cell.consumer is Consumer.PLAIN]
    assert plain == [Cell(Consumer.PLAIN)]
    assert len(found) == 5
    assert len(cells(consumer="plain,kafka-share,sharecoord", events="none,parquet,kafka")) == 5
    assert len(cells(consumer="plain,sharecoord", security="none,socket,rules")) == 4
    assert cells(consumer="sharecoord", work_ms="0", work_distribution="constant,uniform") == [
        Cell(Consumer.SHARECOORD)
    ]


def test_rates_belong_to_the_mode_latency() -> None:
    assert [cell.rate for cell in cells(consumer="plain", rate="10,20")] == [None]
    assert [cell.rate for cell in cells(Mode.LATENCY, consumer="plain", rate="10,20")] == [10, 20]
    assert [cell.rate for cell in cells(Mode.LATENCY, consumer="plain")] == [1000]


def test_what_can_not_be_is_left_out_with_the_reason() -> None:
    values: dict[str, list[Any]] = {
        "consumer": list(Consumer),
        "parallelism": ["continuous:8"],
        "work_ms": [1.0],
    }
    found = product(values, Mode.THROUGHPUT)
    assert {(cell.consumer, cell.ack) for cell in found.cells} == {
        (Consumer.NONE, Ack.IMPLICIT),
        # Each record is acknowledged by itself.
        (Consumer.SHARECOORD, Ack.EXPLICIT),
        (Consumer.PARALLEL_CONSUMER, Ack.IMPLICIT),
    }
    assert len(found.left_out) == 3
    assert all("continuous needs sharecoord" in reason for reason in found.left_out)


PC, OURS = Consumer.PARALLEL_CONSUMER, Consumer.SHARECOORD


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (Cell(OURS, parallelism="continuous:2", handler="batch:5", work_ms=1.0), "without work"),
        (Cell(OURS, max_poll_records=10_001), "takes at most 10000 as max.poll.records"),
        (Cell(Consumer.PLAIN, client=Client.TASKS), "plain has no asynchronous client"),
        (Cell(PC, client=Client.TASKS), "parallel-consumer has no asynchronous client"),
        (Cell(OURS, client=Client.TASKS, parallelism="blocking:2"), "tasks needs blocking"),
        (Cell(PC, parallelism="blocking:2"), "it needs blocking or continuous:N"),
        (Cell(PC, parallelism="continuous:1001"), "a thread for each slot, and 1000 is the limit"),
    ],
)
def test_a_peer_that_can_not_do_it_is_left_out_and_the_others_are_measured(
    cell: Cell, reason: str
) -> None:
    values = {name: [value] for name, value in asdict(cell).items()}
    if reason == "without work":
        values["handler"].append("record")
        kept = [replace(cell, ack=Ack.EXPLICIT, handler="record")]
    else:
        values |= {"consumer": [cell.consumer, Consumer.NONE], "work_ms": [1.0]}
        if cell.parallel.slots > 1 and cell.client is Client.TASKS:
            values["consumer"] = [cell.consumer]
            values["client"] = [Client.TASKS, Client.THREADS]
        kept = []
    found = product(values, Mode.THROUGHPUT)
    assert any(reason in said for said in found.left_out)
    assert found.cells
    assert cell not in found.cells
    assert set(kept) <= set(found.cells)


def test_what_runs_on_a_loop_may_be_many() -> None:
    (cell,) = cells(consumer="sharecoord", consumers="20000", client="tasks", work_ms="50")
    assert (cell.client, cell.on_loop, cell.slots) == (Client.TASKS, True, 20_000)
    with pytest.raises(InvalidConfigError, match="1000 is the limit; use continuous:N or client"):
        cells(consumer="sharecoord", consumers="20000", client="tasks,threads")


def test_workers_and_parallel_consumers_say_the_same_once() -> None:
    every = {"ack": "implicit,explicit", "client": "threads,tasks", "parallelism": "continuous:9"}
    peers = {"consumer": "sharecoord,parallel-consumer", "max_poll_records": "default,7"}
    assert cells(Mode.THROUGHPUT, **every, **peers) == [
        Cell(OURS, parallelism="continuous:9", ack=Ack.EXPLICIT),
        Cell(PC, parallelism="continuous:9"),
        Cell(PC, parallelism="continuous:9", max_poll_records=7),
    ]
    found = cells(consumer="kafka-share,sharecoord", handler="record,batch:5")
    assert {cell.handler for cell in found} == {"record"}
    assert Cell(OURS, handler="batch:5").batch == 5


@pytest.mark.parametrize(
    ("values", "mode", "message"),
    [
        ({"consumer": [Consumer.NONE]}, Mode.THROUGHPUT, "consumer none has no queue"),
        ({"consumer": [Consumer.NONE], "work_ms": [1.0]}, Mode.DRAIN, "consumer none has no"),
        ({"consumer": [Consumer.PLAIN], "rate": [None]}, Mode.LATENCY, "needs a rate"),
        ({"consumers": [1001]}, Mode.THROUGHPUT, "1001 handlers at once, and 1000 is the limit"),
        (
            {"consumers": [201], "parallelism": ["continuous:100"]},
            Mode.THROUGHPUT,
            "20100 handlers at once, and 20000 is the limit",
        ),
        ({"record_locks": [20_000]}, Mode.THROUGHPUT, "takes at most 10000, not 20000"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    values: dict[str, Any], mode: Mode, message: str
) -> None:
    if "parallelism" in values:
        values = {**values, "consumer": [Consumer.SHARECOORD]}
    with pytest.raises(InvalidConfigError, match=message):
        product(values, mode)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumer", "rabbit"),
        ("consumers", "0"),
        ("consumers", "many"),
        ("partitions", "1001"),
        ("payload_bytes", "15"),
        ("batch_bytes", "0"),
        ("batch_bytes", "1000001"),
        ("compression", "lzma"),
        ("work_ms", "-1"),
        ("work_ms", "nan"),
        ("work_distribution", "normal"),
        ("work_distribution", "lognormal"),
        ("work_distribution", "lognormal:0"),
        ("work_distribution", "uniform:3"),
        ("max_poll_records", "0"),
        ("record_locks", "99"),
        ("ack", "maybe"),
        ("parallelism", "continuous"),
        ("parallelism", "blocking:0"),
        ("parallelism", "other:3"),
        ("key_skew", "6"),
        ("rate", "0"),
        ("handler", "batch"),
        ("handler", "batch:0"),
        ("handler", "batch:10001"),
        ("handler", "record:2"),
        ("client", "processes"),
        ("events", "off"),
        ("security", "off"),
    ],
)
def test_a_value_that_can_not_be_is_named_with_the_fix(name: str, text: str) -> None:
    dimension = BY_NAME[name]
    with pytest.raises(InvalidConfigError) as caught:
        dimension.read(text)
    assert caught.value.message.startswith(f"{dimension.flag}: {text!r} can not be used; give ")
    assert dimension.wanted in caught.value.message


def test_a_value_named_twice_or_none_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match="consumers: 1,01 names one twice"):
        BY_NAME["consumers"].read("1,01")
    with pytest.raises(InvalidConfigError, match="consumers: no value is given"):
        BY_NAME["consumers"].read([])


def test_lists_numbers_and_texts_are_read_alike() -> None:
    assert BY_NAME["consumers"].read([1, 4]) == BY_NAME["consumers"].read("1, 4") == [1, 4]
    assert BY_NAME["work_ms"].read(5) == [5.0]


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda each: each.name)
def test_values_survive_being_written(dimension: Any) -> None:
    values = dimension.read(dimension.default)
    assert dimension.read([dimension.text(value) for value in values]) == values


def test_parallelism_says_how_many_slots() -> None:
    assert Parallelism.parse("blocking") == Parallelism(False, 1)
    assert str(Parallelism.parse("blocking:1")) == "blocking"
    assert str(Parallelism.parse("continuous:10")) == "continuous:10"
    cell = Cell(Consumer.SHARECOORD, consumers=3, parallelism="continuous:10", work_ms=5.0)
    assert (cell.slots, cell.capacity_per_s) == (30, 6000)
    assert Cell(Consumer.PLAIN).capacity_per_s is None


def test_a_cell_survives_json() -> None:
    cell = Cell(
        *(Consumer.KAFKA_SHARE, 2, 3, 100, 4096, Compression.LZ4),
        *(1.5, "uniform", 20, 500, Ack.EXPLICIT),
    )
    assert cell_from_json(asdict(cell)) == cell
    new = Cell(Consumer.SHARECOORD, handler="batch:7", client=Client.TASKS)
    assert cell_from_json(asdict(new)) == new


def test_results_of_older_versions_can_be_read() -> None:
    old = asdict(Cell(Consumer.PLAIN))
    del old["handler"], old["client"], old["events"], old["batch_bytes"], old["compression"]
    del old["security"]
    assert cell_from_json(old) == Cell(Consumer.PLAIN)


def test_a_label_says_what_differs() -> None:
    found = cells(consumer="plain,sharecoord", consumers="1,4")
    names = varied(found)
    assert label(found[-1], names) == "sharecoord, consumers 4"
    assert label(found[0], []) == "plain"
