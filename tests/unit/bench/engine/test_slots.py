"""Workers and asynchronous members on one event loop; a test plays the coordinator."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from sharecoord.bench.engine import slots
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Ack, Cell, Client, Consumer
from sharecoord.bench.engine.job import HEAD, NO_NUMBER
from sharecoord.bench.engine.samples import NO_LATENCY, Samples
from sharecoord.bench.engine.slots import run_slots
from sharecoord.bench.engine.tally import Bucket, Tally
from sharecoord.bench.errors import BenchError
from tests.sdk.fake_coordinator import FakeCoordinator, FakeStream, Refusal, make_batch
from tests.unit.bench.engine.test_load import RECORDS, make_job

WORKER = Cell(Consumer.SHARECOORD, parallelism="continuous:3", ack=Ack.EXPLICIT, payload_bytes=20)
MEMBER = Cell(Consumer.SHARECOORD, client=Client.TASKS, payload_bytes=20)
VALUES = [HEAD.pack(5, number) + b"...." for number in (NO_NUMBER, *range(RECORDS))]
ALL = len(VALUES)
EACH_KIND = pytest.mark.parametrize(
    "cell", [WORKER, replace(WORKER, handler="batch:5"), MEMBER], ids=["worker", "batch", "member"]
)


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCoordinator]:
    # A member that waits for records sees the end of the trial when its poll returns.
    monkeypatch.setattr(slots, "_POLL_S", 0.02)
    fake = FakeCoordinator()
    yield fake
    fake.stop()


def accepted(stream: FakeStream) -> set[int]:
    return {
        offset
        for ack in stream.acks()
        if ack.kind == "ACCEPT"
        for offset in range(ack.first, ack.last + 1)
    }


def run_cell(
    coordinator: FakeCoordinator, directory: Path, cell: Cell, *, per_record: bool
) -> tuple[Samples, Board]:
    """All records go to the first member that joins; the trial ends when it has accepted them."""
    sizes = {"consumers": cell.consumers, "processes": 1, "records": RECORDS}
    Board.create(directory / "board", **sizes).close()
    board = Board(directory / "board", **sizes)

    def feed() -> None:
        stream = coordinator.stream()
        stream.send(make_batch(VALUES, token=3))
        try:
            stream.wait_for(lambda it: accepted(it) == set(range(ALL)))
        finally:
            board.stop()

    feeder = threading.Thread(target=feed, daemon=True)
    feeder.start()
    job = replace(
        make_job(directory, cell, per_record=per_record), bootstrap_servers=coordinator.address
    )
    samples = run_slots(job, board)
    feeder.join()
    return samples, board


@pytest.mark.parametrize(
    "cell",
    [
        WORKER,
        replace(WORKER, handler="batch:5"),
        replace(WORKER, work_ms=1.0),
        MEMBER,
        replace(MEMBER, ack=Ack.EXPLICIT, work_ms=1.0),
        replace(MEMBER, consumers=3),
    ],
    ids=lambda cell: f"{cell.client}-{cell.handler}-{cell.work_ms:g}ms-{cell.consumers}",
)
def test_every_record_is_handled_counted_and_accepted(
    cell: Cell, coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    samples, board = run_cell(coordinator, tmp_path, cell, per_record=True)
    assert (board.total, board.distinct(), board.all_ready) == (ALL, RECORDS, True)
    assert list(samples.records) == [1] * ALL
    assert len(set(samples.consumer)) == 1
    late = zip(samples.began_ns, samples.latency_ns, strict=True)
    assert sorted(began - latency for began, latency in late if latency != NO_LATENCY) == (
        [5] * RECORDS
    )
    assert min(samples.busy_ns) >= cell.work_ms * 1e6
    assert len(coordinator.streams_seen) == cell.consumers, "a worker is one member"
    board.close()


@EACH_KIND
def test_without_work_many_records_are_one_sample(
    cell: Cell, coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    samples, board = run_cell(coordinator, tmp_path, cell, per_record=False)
    assert (sum(samples.records), board.total) == (ALL, ALL)
    assert len(samples) < ALL
    assert set(samples.busy_ns) == {0}
    if cell.batch:
        assert max(samples.records) == cell.batch
    board.close()


@EACH_KIND
def test_records_of_another_length_end_the_trial(
    cell: Cell, coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    feeder = threading.Thread(target=lambda: coordinator.stream().send(make_batch(VALUES)))
    feeder.start()
    with pytest.raises(BenchError, match="bytes: not those of the topic"):
        run_alone(coordinator, tmp_path, replace(cell, payload_bytes=21))
    feeder.join()


@pytest.mark.parametrize("cell", [WORKER, MEMBER], ids=["worker", "member"])
def test_a_consumer_that_is_refused_ends_the_trial(
    cell: Cell, coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    coordinator.script.refusals.append(Refusal(grpc.StatusCode.INVALID_ARGUMENT, "no such group"))
    with pytest.raises(BenchError, match=r"KafkaException: .*no such group"):
        run_alone(coordinator, tmp_path, cell)


def run_alone(coordinator: FakeCoordinator, directory: Path, cell: Cell) -> None:
    """A trial that nobody stops."""
    board = Board.create(directory / "board", consumers=1, processes=1, records=RECORDS)
    job = make_job(directory, cell, per_record=False)
    try:
        run_slots(replace(job, bootstrap_servers=coordinator.address), board)
    finally:
        board.close()


def test_a_bucket_is_a_sample_every_few_milliseconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ns = 1_000_000_000
    monkeypatch.setattr("sharecoord.bench.engine.load.time.monotonic_ns", lambda: now_ns)
    board = Board.create(tmp_path / "board", consumers=1, processes=1, records=0)
    samples = Samples()
    bucket = Bucket(Tally(make_job(tmp_path, WORKER), board, 0, samples))
    bucket.add(20)
    assert list(samples.records) == [1], "the first is seen at once"
    for _ in range(3):
        bucket.add(20)
    assert list(samples.records) == [1]
    now_ns += 5_000_000
    bucket.add(20)
    assert list(samples.records) == [1, 4]
    bucket.add(20)
    bucket.flush()
    bucket.flush()
    assert list(samples.records) == [1, 4, 1]
    assert board.total == 6
    board.close()
