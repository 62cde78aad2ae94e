"""The event log's writer as a process: kills, a full disk, a topic that is refused."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource

from sharecoord.devenv.mock_cluster import MockCluster
from sharecoord.errors import InvalidConfigError, KafkaUnavailableError
from sharecoord.events import pipe_sink
from sharecoord.events.folder import EventFolder
from sharecoord.events.spool import spool_files
from sharecoord.kafka.event_producer import PARTITIONS, RETENTION_MS
from sharecoord.ports import EventFigures
from tests.contract.event_worlds import (
    KafkaWorld,
    ParquetWorld,
    lost_said,
    make_sink,
    offsets,
)
from tests.support import KafkaUnderTest, eventually, eventually_async, unique_name
from tests.unit.events.support import block

COORDINATOR = """
import asyncio, sys, time
from sharecoord.eventlog.schema import EventBlock
from sharecoord.events.frames import WriterSettings
from sharecoord.events.pipe_sink import PipeSink

def now_us():
    return time.time_ns() // 1000

def rows(first):
    common = {"kind": "range", "time": now_us(), "group_id": "g"}
    return EventBlock(common, ("first_offset",), [(n,) for n in range(first, first + 10)])

async def main():
    settings = WriterSettings(
        kind="parquet",
        target=sys.argv[1],
        coordinator_id="c",
        file_max_bytes=1 << 20,
        file_max_age_ms=3_600_000,
        kafka={},
    )
    sink = PipeSink(settings, pipe_max_bytes=1 << 24, now_us=now_us)
    await sink.start()
    n = 0
    while True:
        sink.put(rows(n))
        n += 10
        await asyncio.sleep(0.001)
        print(sink.writer_pid, sink.figures.written, "pyarrow" in sys.modules, flush=True)

asyncio.run(main())
"""


@pytest.fixture
def world(tmp_path: Path) -> ParquetWorld:
    return ParquetWorld(tmp_path / "events")


def lines_of(process: subprocess.Popen[str], count: int) -> list[list[str]]:
    assert process.stdout is not None
    return [process.stdout.readline().split() for _ in range(count)]


def is_gone(pid: int) -> bool:
    """Whether a process that is nobody's child here has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.fixture
def coordinator(world: ParquetWorld) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", COORDINATOR, str(world.root)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_kill_9_of_the_coordinator_loses_nothing_that_was_confirmed(
    world: ParquetWorld, coordinator: subprocess.Popen[str]
) -> None:
    with coordinator:
        pid, written, _ = lines_of(coordinator, 500)[-1]
        coordinator.kill()
    assert int(written) > 0
    eventually(lambda: is_gone(int(pid)), 20, "the writer ends by itself")
    found = offsets(world.rows())
    assert len(found) >= int(written)
    assert found == list(range(len(found)))
    assert spool_files(world.root) == []
    assert EventFolder(world.root).check() == []


async def test_kill_9_of_both_leaves_a_spool_that_the_next_writer_finishes(
    world: ParquetWorld, coordinator: subprocess.Popen[str]
) -> None:
    with coordinator:
        _, written, _ = lines_of(coordinator, 500)[-1]
        os.killpg(coordinator.pid, signal.SIGKILL)
    assert int(written) > 0
    assert world.rows() == []
    eventually(lambda: len(EventFolder(world.root).check()) == 1, 20)
    sink = make_sink(world.settings("another"))
    await sink.start()
    await eventually_async(lambda: spool_files(world.root) == [], 20)
    await sink.close()
    rows = world.rows()
    found = offsets(rows)
    assert len(found) >= int(written)
    assert found == list(range(len(found)))
    assert {row["coordinator_id"] for row in rows} == {"c"}


@pytest.mark.parametrize("said", [b"", b"\x09", b"\x09\x00\x00\x00{"])
def test_a_writer_whose_coordinator_dies_before_the_settings_ends_quietly(said: bytes) -> None:
    command = [sys.executable, "-P", "-m", "sharecoord.events.writer"]
    ended = subprocess.run(command, input=said, capture_output=True, timeout=60, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def test_signals_to_the_group_wait_for_the_coordinator(
    world: ParquetWorld, coordinator: subprocess.Popen[str]
) -> None:
    """It dies of SIGTERM at once here; the writer takes what it had given to the pipe."""
    with coordinator:
        pid, written, _ = lines_of(coordinator, 300)[-1]
        os.killpg(coordinator.pid, signal.SIGTERM)
    eventually(lambda: is_gone(int(pid)), 20)
    assert len(offsets(world.rows())) >= int(written) > 0
    assert spool_files(world.root) == []


def test_the_coordinator_never_loads_pyarrow(coordinator: subprocess.Popen[str]) -> None:
    with coordinator:
        said = lines_of(coordinator, 300)
        coordinator.kill()
    assert int(said[-1][1]) > 0
    assert {loaded for _, _, loaded in said} == {"False"}


async def test_a_full_disk_loses_rows_that_are_counted_and_goes_on(
    world: ParquetWorld, capfd: pytest.CaptureFixture[str]
) -> None:
    sink = make_sink(world.settings())
    await sink.start()
    pid = sink.writer_pid
    assert pid is not None
    sink.put(block("g", 0, 10))
    await eventually_async(lambda: sink.figures.written == 10, 20)
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1_000, limits[1]))
    for n in range(1, 20):
        sink.put(block("g", 10 * n, 10))
    await eventually_async(lambda: sum(sink.figures[:2]) == 200, 20)
    assert sink.figures.lost == 190
    resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    sink.put(block("g", 200, 10))
    await eventually_async(lambda: sink.figures.written == 20, 20)
    assert sink.writer_pid == pid
    await sink.close()
    assert sink.figures == EventFigures(20, 190, 0)
    rows = world.rows()
    assert offsets(rows) == [*range(10), *range(200, 210)]
    assert lost_said(rows) == 190
    told = capfd.readouterr().err
    assert str(world.root) in told
    assert "File too large" in told


async def test_a_slow_writer_costs_rows_not_time(world: ParquetWorld) -> None:
    sink = make_sink(world.settings(), pipe_max_bytes=64 << 10)
    await sink.start()
    pid = sink.writer_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    put = 0
    while sink.figures.lost == 0:
        sink.put(block("g", put, 1_000))
        put += 1_000
    assert sink.figures.waiting_bytes <= 64 << 10
    os.kill(pid, signal.SIGCONT)
    await eventually_async(lambda: sink.figures.waiting_bytes == 0, 20)
    sink.put(block("g", put, 10))
    await sink.close()
    rows = world.rows()
    figures = sink.figures
    assert len(offsets(rows)) + figures.lost == put + 10
    assert lost_said(rows) == figures.lost


async def test_a_writer_that_does_not_end_is_killed_and_its_spool_kept(
    world: ParquetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_sink, "CLOSE_TIMEOUT_S", 0.2)
    sink = make_sink(world.settings())
    await sink.start()
    sink.put(block("g", 0, 10))
    await eventually_async(lambda: sink.figures.written == 10, 20)
    assert sink.writer_pid is not None
    os.kill(sink.writer_pid, signal.SIGSTOP)
    await sink.close()
    monkeypatch.undo()
    assert sink.figures == EventFigures(10, 0, 0)
    again = make_sink(world.settings())
    await again.start()
    await again.close()
    assert offsets(world.rows()) == list(range(10))


@pytest.mark.long
@pytest.mark.timeout(900)
async def test_ten_thousand_groups(world: ParquetWorld) -> None:
    sink = make_sink(world.settings(max_age_ms=1_000))
    await sink.start()
    pid = sink.writer_pid
    for n in range(10_000):
        sink.put(block(f"g{n}", 0, 2))
    await eventually_async(lambda: sink.figures.written == 20_000, 60)
    await eventually_async(lambda: len(list(world.root.glob("date=*/*/*"))) == 10_000, 600)
    assert len(os.listdir(f"/proc/{pid}/fd")) < 20  # noqa: PTH208
    await sink.close()
    assert sink.figures == EventFigures(20_000, 0, 0)


# -- refusals at the start ------------------------------------------------------------------------


async def test_a_directory_that_can_not_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    sink = make_sink(ParquetWorld(tmp_path / "file" / "events").settings())
    with pytest.raises(InvalidConfigError, match="can not be made or written"):
        await sink.start()
    await sink.close()


async def test_without_pyarrow_the_fix_is_named(
    world: ParquetWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    sink = make_sink(world.settings())
    with pytest.raises(InvalidConfigError, match=r"pip install 'sharecoord\[events\]'"):
        await sink.start()


async def test_a_writer_that_ends_at_once_is_an_error(
    world: ParquetWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe_sink.sys, "executable", "/bin/false")
    with pytest.raises(InvalidConfigError, match="the writer ended at once"):
        await make_sink(world.settings()).start()


# -- Kafka ----------------------------------------------------------------------------------------


async def test_what_a_message_looks_like(mock_cluster: MockCluster) -> None:
    world = KafkaWorld(mock_cluster.bootstrap_servers, unique_name("events"))
    AdminClient({"bootstrap.servers": world.bootstrap_servers}).list_topics(world.topic, timeout=10)
    sink = make_sink(world.settings())
    await sink.start()
    sink.put(block("g", 0, 2_500))
    sink.put(block("h", 0, 1))
    await sink.close()
    messages = world.messages()
    keys = [message.key() for message in messages]
    assert keys.count(b"h") == 1
    assert keys.count(b"g") >= 2
    for message in messages:
        value = message.value()
        assert value is not None
        assert len(value) <= 512 << 10
        headers = message.headers()
        assert isinstance(headers, list)
        assert dict(headers) == {
            "sharecoord-schema-version": b"1",
            "content-type": b"application/vnd.apache.arrow.stream",
        }


@pytest.mark.parametrize(
    ("kafka", "kind", "text"),
    [
        ({"bootstrap.servers": "127.0.0.1:1"}, KafkaUnavailableError, "no answer from Kafka"),
        ({"sasl.passwort": "x"}, InvalidConfigError, 'Did you mean "sasl.password"'),
    ],
)
async def test_a_cluster_that_can_not_be_used_is_refused(
    kafka: Mapping[str, str], kind: type[Exception], text: str
) -> None:
    world = KafkaWorld("127.0.0.1:1", "events")
    settings = world.settings()
    settings.kafka.update(kafka)
    with pytest.raises(kind, match=text):
        await make_sink(settings).start()


async def test_a_missing_topic_is_made(kafka_broker: KafkaUnderTest) -> None:
    world = KafkaWorld(kafka_broker.bootstrap_servers, unique_name("events"))
    sink = make_sink(world.settings())
    await sink.start()
    sink.put(block("g", 0, 5))
    await sink.close()
    assert sink.figures == EventFigures(5, 0, 0)
    assert offsets(world.rows()) == [0, 1, 2, 3, 4]
    admin = AdminClient({"bootstrap.servers": world.bootstrap_servers})
    assert len(admin.list_topics(timeout=10).topics[world.topic].partitions) == PARTITIONS
    resource_ = ConfigResource(ConfigResource.Type.TOPIC, world.topic)
    config = admin.describe_configs([resource_])[resource_].result(10)
    assert config["retention.ms"].value == str(RETENTION_MS)
    again = make_sink(world.settings())
    await again.start()
    await again.close()


async def test_a_topic_that_kafka_refuses_is_refused(kafka_broker: KafkaUnderTest) -> None:
    world = KafkaWorld(kafka_broker.bootstrap_servers, "not a name")
    with pytest.raises(InvalidConfigError, match="Kafka refuses the topic") as caught:
        await make_sink(world.settings()).start()
    assert 'events.sink="kafka:not a name"' in caught.value.message
