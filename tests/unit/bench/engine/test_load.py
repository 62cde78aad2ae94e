"""Consumers of one process, without a broker: what they count, and when they end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sharecoord_sdk import ShareConsumer

from sharecoord.bench.engine import load, slots
from sharecoord.bench.engine.board import Board
from sharecoord.bench.engine.cell import Ack, Cell, Consumer, SecurityKind, TopicKey
from sharecoord.bench.engine.consumers import open_source, share_config, worker_config
from sharecoord.bench.engine.fleet import Fleet
from sharecoord.bench.engine.job import HEAD, NO_NUMBER, LoadJob, SendJob
from sharecoord.bench.engine.load import Worker, run_threads
from sharecoord.bench.engine.samples import NO_LATENCY, Samples
from sharecoord.bench.engine.send import fill_backlog, send_steadily
from sharecoord.bench.errors import BenchError
from sharecoord.devenv.mock_cluster import MockCluster
from tests.support import eventually

CELL = Cell(Consumer.SHARECOORD, ack=Ack.EXPLICIT, payload_bytes=20)
RECORDS = 12


class FakeMessage:
    """A record with a number, due at 5 ns of the clock."""

    def __init__(self, number: int, error: str | None = None) -> None:
        self.number, self._error = number, error

    def value(self) -> bytes:
        return HEAD.pack(5, self.number) + b"...."

    def error(self) -> str | None:
        return self._error

    def offset(self) -> int:
        return self.number


class FakeSource:
    """Hands out one that only wakes up, then batches of four, then stops the trial."""

    def __init__(self, board: Board, error: str | None = None) -> None:
        self.acknowledged: list[int] = []
        self.commits = 0
        self.closed = False
        self._board = board
        self._error = error
        self._batches = self._all()

    def _all(self) -> Iterator[list[FakeMessage]]:
        yield []
        yield [FakeMessage(NO_NUMBER)]
        for base in range(0, RECORDS, 4):
            yield [FakeMessage(number, self._error) for number in range(base, base + 4)]

    def poll(self) -> list[FakeMessage]:
        batch = next(self._batches, None)
        if batch is None:
            self._board.stop()
        return batch or []

    def done(self, message: Any) -> None:
        self.acknowledged.append(message.number)

    def commit(self) -> None:
        self.commits += 1

    def close(self) -> None:
        self.closed = True


def make_job(path: Path, cell: Cell = CELL, *, per_record: bool = True) -> LoadJob:
    return LoadJob(
        cell=cell,
        bootstrap_servers="h:1",
        group="g",
        topic="t",
        consumers=cell.consumers,
        per_record=per_record,
        latency=True,
        board=str(path / "board"),
        board_records=RECORDS,
        samples=str(path / "samples"),
        seed=1,
    )


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    made = Board.create(tmp_path / "board", consumers=1, processes=1, records=RECORDS)
    yield made
    made.close()


@pytest.mark.parametrize("parallelism", ["blocking", "blocking:3"])
def test_every_record_is_handled_counted_and_acknowledged_in_order(
    parallelism: str, tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource(board)
    monkeypatch.setattr(load, "open_source", lambda *_: source)
    samples = run_threads(make_job(tmp_path, replace(CELL, parallelism=parallelism)), board)
    assert source.acknowledged == [NO_NUMBER, *range(RECORDS)]
    assert source.closed
    assert (board.total, board.distinct(), board.all_ready) == (RECORDS + 1, RECORDS, True)
    assert list(samples.records) == [1] * (RECORDS + 1)
    # What only wakes a group up has no latency; the others were due at 5 ns.
    assert samples.latency_ns[0] == NO_LATENCY
    assert all(
        began - latency == 5
        for began, latency in zip(samples.began_ns[1:], samples.latency_ns[1:], strict=True)
    )


def test_without_work_a_batch_is_one_sample(
    tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = FakeSource(board)
    monkeypatch.setattr(load, "open_source", lambda *_: source)
    samples = run_threads(make_job(tmp_path, per_record=False), board)
    assert list(samples.records) == [1, 4, 4, 4]
    assert set(samples.latency_ns) == {NO_LATENCY}
    assert source.commits == 4
    assert (board.total, board.end) == (RECORDS + 1, RECORDS)


def test_records_of_another_length_are_refused(
    tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "open_source", lambda *_: FakeSource(board))
    job = make_job(tmp_path, replace(CELL, payload_bytes=21), per_record=False)
    with pytest.raises(BenchError, match="1 records had 20 bytes: not those of the topic"):
        run_threads(job, board)


@pytest.mark.parametrize("per_record", [True, False])
def test_an_error_in_a_records_place_ends_the_trial(
    per_record: bool, tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "open_source", lambda *_: FakeSource(board, "broken"))
    with pytest.raises(BenchError, match="a consumer was given an error: broken"):
        run_threads(make_job(tmp_path, per_record=per_record), board)


def test_a_handler_works_for_its_time_and_not_when_the_trial_is_over(
    tmp_path: Path, board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr("sharecoord.bench.engine.load.time.sleep", slept.append)
    worker = Worker(make_job(tmp_path, replace(CELL, work_ms=7.0)), board, 0)
    handled = worker._handle(FakeMessage(3))
    assert handled is not None
    assert (handled.number, slept) == (3, [0.007])
    board.stop()
    assert worker._handle(FakeMessage(4)) is None
    assert slept == [0.007]


def test_both_share_consumers_get_the_same_configuration() -> None:
    cell = replace(CELL, max_poll_records=20)
    assert share_config(cell, "h:1", "g") == {
        "bootstrap.servers": "h:1",
        "group.id": "g",
        "share.acknowledgement.mode": "explicit",
        "max.poll.records": 20,
    }
    assert "max.poll.records" not in share_config(CELL, "h:1", "g")


def test_a_client_shows_a_token_where_one_is_asked_for() -> None:
    cell = replace(CELL, security=SecurityKind.RULES)
    assert worker_config(replace(cell, security=SecurityKind.SOCKET), "unix:/s", "g") == {
        "bootstrap.servers": "unix:/s",
        "group.id": "g",
    }
    shown = worker_config(cell, "unix:/s", "g")
    assert shown["security.protocol"] == "sasl_plaintext"
    with ShareConsumer(share_config(cell, "unix:/s", "g")):
        """The client takes the configuration."""


def test_without_a_queue_there_is_always_a_record() -> None:
    source = open_source(Cell(Consumer.NONE, work_ms=1.0), "", "", "")
    (message, *more) = source.poll()
    assert HEAD.unpack_from(message.value()) == (0, NO_NUMBER)
    assert message.error() is None
    assert more


def test_slots_are_filled_at_once_until_the_trial_is_over(tmp_path: Path) -> None:
    cell = Cell(Consumer.NONE, consumers=2, work_ms=0.01, parallelism="continuous:3")
    job = replace(make_job(tmp_path, cell), board_records=0)
    board = Board.create(tmp_path / "board", consumers=2, processes=1, records=0)

    class Stopping(Board):
        def set_count(self, consumer: int, records: int) -> None:
            super().set_count(consumer, records)
            if records >= 5:
                self.stop()

    mine = Stopping(tmp_path / "board", consumers=2, processes=1, records=0)
    try:
        samples = slots.run_slots(job, mine)
        assert board.all_ready
        assert max(samples.consumer) == 1
        assert board.total == len(samples) >= 6
    finally:
        mine.close()
        board.close()


def test_consumers_may_have_groups_and_topics_of_their_own(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    assert {(job.group_of(number), job.topic_of(number)) for number in range(2)} == {
        (job.group, job.topic)
    }
    own = replace(job, group="g", topic="t", own_groups=True, own_topics=True)
    assert [(own.group_of(number), own.topic_of(number)) for number in range(2)] == [
        ("g-0", "t-0"),
        ("g-1", "t-1"),
    ]


def test_jobs_survive_their_files(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    job.write(tmp_path / "j")
    assert LoadJob.read(tmp_path / "j") == job
    send = SendJob("h:1", "t", TopicKey(2, 20, 1.2, 10), 1, 5.0, 7, 9, "o")
    send.write(tmp_path / "s")
    assert SendJob.read(tmp_path / "s") == send


# -- processes ------------------------------------------------------------------------------------


def make_fleet(directory: Path, cell: Cell) -> Fleet:
    job = LoadJob(cell, "127.0.0.1:1", "g", "t", per_record=True)
    return Fleet(job, directory, per_process=2)


def test_a_fleet_runs_all_consumers_and_gathers_their_samples(tmp_path: Path) -> None:
    with make_fleet(tmp_path, Cell(Consumer.NONE, consumers=3, work_ms=1.0)) as fleet:
        assert len(fleet._processes) == 2
        fleet.wait_ready()
        fleet.check()
        eventually(lambda: fleet.board.total >= 20, deadline_s=30.0)
        assert fleet.cpu_s() >= 0
        samples = fleet.finish()
    assert set(samples.consumer) == {0, 1, 2}
    assert len(samples) >= 20
    assert min(samples.busy_ns) >= 1_000_000


def test_a_load_process_that_fails_is_quoted(tmp_path: Path) -> None:
    cell = replace(CELL, max_poll_records=1)
    with make_fleet(tmp_path, cell) as fleet:
        # The twin refuses what is no topic; anything that a consumer raises will do.
        job = json.loads((tmp_path / "0.job").read_text(encoding="utf-8"))
        (tmp_path / "0.job").write_text(json.dumps({**job, "topic": ""}), encoding="utf-8")
        with pytest.raises(BenchError, match="a load process ended"):
            fleet.wait_ready()


def test_a_process_started_by_hand_writes_its_samples(tmp_path: Path) -> None:
    cell = Cell(Consumer.NONE, work_ms=1.0)
    board = Board.create(tmp_path / "board", consumers=1, processes=1, records=0)
    replace(make_job(tmp_path, cell), board_records=0).write(tmp_path / "job")
    board.stop()
    board.close()
    done = subprocess.run(
        [sys.executable, "-m", "sharecoord.bench.engine.load", str(tmp_path / "job")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(Samples.read(tmp_path / "samples")) == 0


# -- producing ------------------------------------------------------------------------------------


def consumed(cluster: MockCluster, topic: str, partitions: int, records: int) -> list[Any]:
    from confluent_kafka import Consumer as PlainConsumer
    from confluent_kafka import TopicPartition

    settings = {"bootstrap.servers": cluster.bootstrap_servers, "group.id": "g", "log_level": 0}
    consumer = PlainConsumer({**settings, "fetch.wait.max.ms": 5})
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
        return consumer.consume(records, 20.0)
    finally:
        consumer.close()


def test_a_backlog_is_numbered_and_goes_round_the_partitions() -> None:
    with MockCluster(topics=["t"]) as cluster:
        address = cluster.bootstrap_servers
        fill_backlog(address, "t", TopicKey(2, 20, batch_bytes=1000), 1000, seed=1)
        messages = consumed(cluster, "t", 2, 1000)
    heads = sorted(HEAD.unpack_from(message.value()) for message in messages)
    assert heads == [(0, number) for number in range(1000)]
    assert {len(message.value()) for message in messages} == {20}
    assert all(HEAD.unpack_from(each.value())[1] % 2 == each.partition() for each in messages)


def test_values_may_be_shorter_than_their_head() -> None:
    with MockCluster(topics=["t"]) as cluster:
        key = TopicKey(1, 10, batch_bytes=1000)
        fill_backlog(cluster.bootstrap_servers, "t", key, 100, seed=1)
        messages = consumed(cluster, "t", 1, 100)
    assert [len(message.value()) for message in messages] == [10] * 100


def test_a_steady_rate_carries_the_intended_times_even_when_it_is_behind() -> None:
    with MockCluster(topics=["t"]) as cluster:
        # Due long ago: everything is late, and its payload says when it was to be sent.
        job = SendJob(
            cluster.bootstrap_servers, "t", TopicKey(1, 20, 1.0, 3), 1, 1000.0, 77, 50, ""
        )
        late_ns = send_steadily(job)
        messages = consumed(cluster, "t", 1, 50)
    assert [HEAD.unpack_from(each.value()) for each in messages] == [
        (77 + number * 1_000_000, number) for number in range(50)
    ]
    assert late_ns > 0
    assert {each.key() for each in messages} <= {b"key-0", b"key-1", b"key-2"}
