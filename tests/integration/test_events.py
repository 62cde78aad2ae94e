"""The event log of a real coordinator: what it tells, and what a crash costs."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from confluent_kafka import Consumer, TopicPartition
from sharecoord_sdk import AcknowledgeType, Message, ShareConsumer

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK
from sharecoord.devenv.topics import Record, Topics
from tests.acceptance.bad_input import run_cli
from tests.conftest import TopicFactory
from tests.support import KafkaUnderTest, eventually, unique_name

RECORDS = 300


def events_of(folder: Path) -> list[dict[str, Any]]:
    """All rows that a reader sees."""
    files = [str(path) for path in sorted(folder.glob("date=*/group=*/[!_.]*.parquet"))]
    rows: list[dict[str, Any]] = ds.dataset(files, format="parquet").to_table().to_pylist()
    return rows


def changes_stored(process: CoordinatorProcess) -> int:
    """The change sequence of the only share-partition."""
    with closing(sqlite3.connect(f"file:{process.store_path}?mode=ro", uri=True)) as store:
        ((found,),) = store.execute("SELECT change_sequence FROM share_partition").fetchall()
    return int(found)


def coordinator_with(
    kafka: KafkaUnderTest, directory: Path, sink: str, **settings: object
) -> CoordinatorProcess:
    """A coordinator that writes events."""
    return CoordinatorProcess(
        kafka.bootstrap_servers, directory, settings={"events.sink": sink, **settings}
    )


def member(process: CoordinatorProcess, group: str) -> ShareConsumer:
    """Explicit, at most 50 records a time."""
    return ShareConsumer(
        {
            "bootstrap.servers": process.address,
            "group.id": group,
            "client.id": "the-worker",
            "share.acknowledgement.mode": "explicit",
            "max.poll.records": 50,
        }
    )


def settle(consumer: ShareConsumer, count: int, failing: int | None = None) -> list[int]:
    """Accepts so many records; `failing` is released when it comes first. Offsets, as they came."""
    offsets: list[int] = []
    while len(offsets) < count:
        some: Sequence[Message] = eventually(lambda: consumer.poll(0.2), 40, "records")
        for message in some:
            fails = message.offset() == failing and failing not in offsets
            consumer.acknowledge(
                message, AcknowledgeType.RELEASE if fails else AcknowledgeType.ACCEPT
            )
            offsets.append(message.offset() or 0)
        assert set(consumer.commit_sync(30).values()) == {None}
    return offsets


def test_a_run_is_told_from_the_first_record_to_the_last(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, group, folder = topic(), unique_name("g"), tmp_path / "events"
    topics.produce(name, [Record(f"k{n}".encode(), b"v") for n in range(RECORDS)])
    with coordinator_with(kafka_broker, tmp_path, f"parquet:{folder}") as process:
        with member(process, group) as consumer:
            consumer.subscribe([name])
            settle(consumer, RECORDS + 1, failing=42)
            # Members are sampled once a second, as long as they are there.
            eventually(lambda: b"pace_us" in spool_of(folder), 20, "a sample of the member")
            live = run_cli(
                "records", "explain", name, "0", "42", "--group", group,
                "--bootstrap-server", process.address, "-o", "json",
            )  # fmt: skip
            assert json.loads(live.out)[-1]["text"].startswith("finished"), live
        process.stop()
        changes = changes_stored(process)
        told = events_of(folder)
        assert {row["group_id"] for row in told} == {group}
        assert {row["coordinator_id"] for row in told} == {"standalone"}
        ranges = [row for row in told if row["kind"] == "range"]
        # Every change is there, once.
        assert {row["change_sequence"] for row in ranges} == set(range(1, changes + 1))
        of = {
            event: [row for row in ranges if row["event"] == event]
            for event in ("acquired", "accepted", "released")
        }
        assert sum(row["records"] for row in of["accepted"]) == RECORDS
        assert sum(row["records"] for row in of["acquired"]) == RECORDS + 1
        (released,) = of["released"]
        assert (released["first_offset"], released["key"]) == (42, b"k42")
        assert {row["client_id"] for row in ranges} == {"the-worker"}
        assert all(row["available_ms"] is not None for row in of["acquired"])
        assert all(0 <= row["held_ms"] < 60_000 for row in of["accepted"])
        events = [row["event"] for row in told if row["kind"] == "group"]
        assert events.count("joined") == events.count("left") == events.count("owned") == 1
        assert any(row["got"] for row in told if row["kind"] == "member")
    for command in ("list", "check"):
        done = run_cli("events", command, str(folder), "-o", "json")
        assert done.exit_code == 0, done.err


@pytest.fixture
def begun(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> Iterator[tuple[CoordinatorProcess, ShareConsumer, Path]]:
    """A coordinator, a member that has settled 100 records of `RECORDS`, and the events' folder."""
    name, folder = topic(), tmp_path / "events"
    topics.produce(name, RECORDS)
    with (
        coordinator_with(kafka_broker, tmp_path, f"parquet:{folder}") as process,
        member(process, unique_name("g")) as consumer,
    ):
        consumer.subscribe([name])
        settle(consumer, 100)
        yield process, consumer, folder


def test_kill_9_leaves_no_half_file_and_no_lie(
    begun: tuple[CoordinatorProcess, ShareConsumer, Path],
) -> None:
    """The writer dies with it; the next one makes files of what is in its spool."""
    process, consumer, folder = begun
    eventually(lambda: b"accepted" in spool_of(folder), 20, "events in the spool")
    process.kill()
    before = changes_stored(process)
    process.restart()
    settle(consumer, RECORDS - 100)
    consumer.close()
    process.stop()
    changes = changes_stored(process)
    ranges = [row for row in events_of(folder) if row["kind"] == "range"]
    told = {row["change_sequence"] for row in ranges}
    assert told <= set(range(1, changes + 1))
    assert told & set(range(1, before + 1)), "nothing of the first life"
    # After the restart nothing is missing; before it at most what waited for the pipe.
    assert told >= set(range(before + 1, changes + 1))
    pairs = [(row["change_sequence"], row["first_offset"]) for row in ranges]
    assert len(pairs) == len(set(pairs))
    accepted = [row for row in ranges if row["event"] == "accepted"]
    assert sum(row["records"] for row in accepted) <= RECORDS
    assert run_cli("events", "check", str(folder)).exit_code == 0


def spool_of(folder: Path) -> bytes:
    """What no Parquet file was made of yet."""
    return b"".join(path.read_bytes() for path in folder.glob("_spool/*.spool"))


def test_a_writer_that_dies_is_replaced_and_its_loss_is_said(
    begun: tuple[CoordinatorProcess, ShareConsumer, Path],
) -> None:
    process, consumer, folder = begun
    first = writer_of(process)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: writer_of(process) not in (None, first), 40, "a new writer")
    settle(consumer, RECORDS - 100)
    consumer.close()
    process.stop()
    changes = changes_stored(process)
    rows = events_of(folder)
    told = {row["change_sequence"] for row in rows if row["kind"] == "range"}
    assert max(told) == changes
    missing = changes - len(told)
    lost = sum(row["records"] for row in rows if row["kind"] == "lost")
    assert lost >= missing


def writer_of(process: CoordinatorProcess) -> int | None:
    """The process that writes its events."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rsplit(")", 1)[1].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(words[1]) == process.pid and b"sharecoord.events.writer" in command:
            return int(path.parent.name)
    return None


def test_events_go_to_a_topic_as_arrow_streams(
    kafka_broker: KafkaUnderTest, topic: TopicFactory, topics: Topics, tmp_path: Path
) -> None:
    name, group, sink = topic(), unique_name("g"), unique_name("events")
    topics.produce(name, RECORDS)
    with coordinator_with(kafka_broker, tmp_path, f"kafka:{sink}") as process:
        with member(process, group) as consumer:
            consumer.subscribe([name])
            settle(consumer, RECORDS)
        process.stop()
        changes = changes_stored(process)
    rows = rows_of_topic(kafka_broker, sink)
    ranges = [row for row in rows if row["kind"] == "range"]
    assert {row["change_sequence"] for row in ranges} == set(range(1, changes + 1))
    topics.delete(sink)


def rows_of_topic(kafka: KafkaUnderTest, name: str) -> list[dict[str, Any]]:
    """All rows of all messages."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "nobody"})
    try:
        found = consumer.list_topics(name, timeout=20).topics[name]
        ends = {
            n: consumer.get_watermark_offsets(TopicPartition(name, n), 20)[1]
            for n in found.partitions
        }
        consumer.assign([TopicPartition(name, n, 0) for n in ends])
        rows: list[dict[str, Any]] = []
        for _ in range(sum(ends.values())):
            message = eventually(lambda: consumer.poll(1), 40, "a message")
            assert message.error() is None
            assert dict(message.headers())["sharecoord-schema-version"] == b"1"
            rows += pa.ipc.open_stream(message.value()).read_all().to_pylist()
        return rows
    finally:
        consumer.close()


@pytest.mark.parametrize(
    ("sink", "named"),
    [("parquet:/proc/nowhere/events", "/proc/nowhere/events"), ("kafka:..", "events.sink")],
)
def test_a_place_that_takes_no_events_is_named_at_the_start(
    sink: str, named: str, kafka_broker: KafkaUnderTest, tmp_path: Path
) -> None:
    refused = run_cli(
        "serve", "--kafka", kafka_broker.bootstrap_servers, "--listen", f"{LOOPBACK}:0",
        "--store", f"sqlite:///{tmp_path}/store.db", "--events", sink,
    )  # fmt: skip
    assert refused.exit_code != 0
    assert named in refused.err
    assert "Traceback" not in refused.err
