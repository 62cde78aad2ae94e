"""The store and the memory run out; many small ranges survive a crash; workers are too slow."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import psutil  # type: ignore[import-untyped]
import pytest
from sharecoord_sdk._proto import share_types_pb2 as types

from sharecoord.core.states import RecordState
from sharecoord.demo.window_view import read_window
from sharecoord.devenv.broker import KafkaBroker
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from sharecoord.wire import share_service_pb2_grpc as rpc
from tests.acceptance.bad_input import Member, acknowledged, exceptions
from tests.acceptance.chaos.fixtures import broker, everybody_is_up, scene
from tests.acceptance.chaos.scene import FAST_SETTINGS, Scene, configure, let_pass
from tests.acceptance.chaos.verdict import LOCK_MARGIN_S
from tests.support import eventually, unique_name

__all__ = ["broker", "everybody_is_up", "scene"]

pytestmark = pytest.mark.timeout(300)

MEBIBYTE = 1 << 20
DISK_BYTES = 12 * MEBIBYTE
HOUR_MS = 3_600_000


# -- a full disk ----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes."""
    if os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root")
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(disk: Path) -> Path:
    """Takes what is free; returns the file that holds it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (64 << 10, 4 << 10, 1):
            try:
                while True:
                    file.write(b"." * size)
            except OSError:
                continue
    return filler


def test_a_full_disk_stops_and_loses_nothing_and_space_heals_it(
    broker: KafkaBroker, small_disk: Path, tmp_path: Path
) -> None:
    settings = {**FAST_SETTINGS, "store.url": f"sqlite:///{small_disk / 'store.db'}"}
    process = CoordinatorProcess(broker.bootstrap_servers, tmp_path, settings=settings)
    process.store_path = small_disk / "store.db"
    with process:
        scene = Scene(broker, Topics(broker.bootstrap_servers), process, tmp_path)
        with scene.crew(work_ms=0.5, release_each=3) as crew:
            names = crew.hire(), crew.hire()
            crew.produce(scene.topics, 300)
            crew.working(*names)
            crew.until_finished(process)
            filler = fill(small_disk)
            crew.produce(scene.topics, 4_000)
            log = tmp_path / "coordinator.log"
            crew.until(
                lambda: "no space left" in log.read_text(encoding="utf-8"), 60, "the disk is full"
            )
            assert process.exit_code is None, "a full disk does not end it"
            filler.unlink()
            crew.until_finished(process)
            assert crew.verdict(process).faults == ()


# -- 50,000 alternating acknowledgements ----------------------------------------------------------


def test_50_000_alternating_acknowledgements_survive_kill_9(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    records, chunk = 100_000, 10_000
    settings = {
        "group.share.partition.max.record.locks": records,
        "group.share.record.lock.duration.ms": HOUR_MS,
        "group.share.session.timeout.ms": HOUR_MS,
    }
    topics, name = Topics(broker.bootstrap_servers), unique_name("t")
    topics.create(name)
    topics.produce(name, records, value_bytes=10)
    process = CoordinatorProcess(broker.bootstrap_servers, tmp_path, settings=settings)
    with process, grpc.insecure_channel(process.address, options=UNLIMITED) as channel:
        make: type = rpc.ShareServiceStub
        member = Member(make(channel), unique_name("g"), name)
        member.join()
        partition, token = take_all(member, records)
        for half in (0, 1):
            if half:
                before = read_window(process.store_path, name)
                process.kill()
                process.restart()
                assert read_window(process.store_path, name) == before
                assert before is not None
                assert before.finished_count + before.start_offset == records // 2
                unfinished = [r for r in before.ranges if r.state is RecordState.ACQUIRED]
                assert [r.first for r in unfinished] == list(range(1, records, 2))
            for first in range(half, records, chunk):
                settle(member, partition, token, range(first, min(first + chunk, records), 2))
        after = read_window(process.store_path, name)
        assert after is not None
        assert after.start_offset == records
        assert after.ranges == ()
    topics.delete(name)


UNLIMITED = [("grpc.max_receive_message_length", -1)]


def take_all(member: Member, records: int) -> tuple[types.TopicPartition, dict[int, int]]:
    """Fetches everything and keeps it; returns the partition, and the token of each offset."""
    batches: list[types.RecordBatch] = []
    token: dict[int, int] = {}

    def has_all() -> bool:
        for batch in member.fetch(max_records=10_000, max_wait_ms=1_000).batches:
            batches.append(batch)
            for each in batch.ranges:
                offsets = range(each.first_offset, each.last_offset + 1)
                token.update(dict.fromkeys(offsets, each.lock_token))
        return len(token) == records

    eventually(has_all, 100, f"{records} records in hand")
    return batches[0].partition, token


def settle(
    member: Member, partition: types.TopicPartition, token: dict[int, int], chosen: range
) -> None:
    """Accepts some, each as a range of its own, under the tokens of before the crash."""
    ranges = [acknowledged(offset, offset, token[offset]) for offset in chosen]

    def taken() -> bool:
        # Said again when an answer was too late: then it was taken already.
        outcome = exceptions(member.acknowledge(partition, *ranges))
        return {name for _, _, name in outcome} <= {"ALREADY_FINISHED"}

    eventually(taken, 60, f"{chosen} are settled")


# -- little memory --------------------------------------------------------------------------------

LIMIT_BYTES = 64 * MEBIBYTE
BESIDE_THE_LIMIT_BYTES = 160 * MEBIBYTE
"""Python, its libraries, librdkafka's own queues: what `memory.limit` does not count."""


def test_a_small_memory_limit_is_kept_and_everything_is_delivered(
    broker: KafkaBroker, tmp_path: Path
) -> None:
    settings = {**FAST_SETTINGS, "memory.limit": LIMIT_BYTES}
    process = CoordinatorProcess(broker.bootstrap_servers, tmp_path, settings=settings)
    with process:
        scene = Scene(broker, Topics(broker.bootstrap_servers), process, tmp_path)
        with scene.crew(poll_records=200) as crew:
            crew.produce(scene.topics, 12_000, value_bytes=10_000)
            names = crew.hire(), crew.hire()
            crew.working(*names)
            watched = psutil.Process(process.pid)
            most = 0

            def rest_came() -> bool:
                nonlocal most
                most = max(most, watched.memory_info().rss)
                return len(crew.confirmed) >= len(crew.produced)

            crew.until(rest_came, 200, "120 MB went through 64 MiB")
            crew.until_finished(process)
            print(f"resident memory: {most / MEBIBYTE:.0f} MiB at most")
            assert crew.verdict(process).faults == ()
        assert most < LIMIT_BYTES + BESIDE_THE_LIMIT_BYTES


# -- workers that are too slow --------------------------------------------------------------------


@pytest.mark.parametrize("commit_each", [True, False], ids=["each", "batch"])
def test_a_worker_slower_than_its_lock_gets_on(scene: Scene, commit_each: bool) -> None:
    """Fifty records of 40 ms under a lock of 1 s.

    Acknowledged one by one, half of them are in time and the rest comes again. Acknowledged
    together, all are late, until the coordinator hands them out in parts that fit.
    """
    limit = 5
    with scene.crew(work_ms=40.0, poll_records=50, commit_each=commit_each) as crew:
        configure(
            scene.coordinator,
            crew.group,
            share_record_lock_duration_ms=1_000,
            share_delivery_count_limit=limit,
        )
        crew.produce(scene.topics, 100)
        crew.working(crew.hire(), crew.hire())
        crew.until_finished(scene.coordinator)
        findings = crew.verdict(scene.coordinator, delivery_limit=limit)
    print(findings)
    assert findings.faults == ()
    assert findings.redelivered > 0


SHORT_LOCK_MS = 1_000
STOPPED_S = 2 * SHORT_LOCK_MS / 1000
LATE_S = LOCK_MARGIN_S + STOPPED_S
"""What was on its way while somebody was stopped is counted from when it arrived."""


def test_a_paused_worker_loses_its_locks_and_its_late_acknowledgements_settle_nothing(
    scene: Scene,
) -> None:
    with scene.crew(work_ms=5.0, poll_records=50) as crew:
        configure(scene.coordinator, crew.group, share_record_lock_duration_ms=SHORT_LOCK_MS)
        crew.working(crew.hire(), crew.hire())
        held: dict[int, int] = {}

        def caught() -> bool:
            """Stopped with records in hand; who has just finished them goes on."""
            crew.send_signal("w1", signal.SIGSTOP)
            held.update(crew.look().in_hand["w1"])
            if not held:
                crew.send_signal("w1", signal.SIGCONT)
            return bool(held)

        crew.until_busy(scene.topics, caught, "the victim is stopped with records in hand")
        crew.until(
            lambda: all(crew.tally.highest_count[o] > count for o, count in held.items()),
            100,
            f"what w1 held goes to w2: {sorted(held)}",
        )
        crew.send_signal("w1", signal.SIGCONT)
        crew.until_finished(scene.coordinator)
        assert crew.verdict(scene.coordinator, LATE_S).faults == ()


def test_a_coordinator_that_stands_still_keeps_every_promise(scene: Scene) -> None:
    with scene.crew(work_ms=1.0, release_each=10) as crew:
        configure(scene.coordinator, crew.group, share_record_lock_duration_ms=SHORT_LOCK_MS)
        crew.working(crew.hire(), crew.hire())
        crew.at_work(scene.topics, 200)
        os.kill(scene.coordinator.pid, signal.SIGSTOP)
        let_pass(STOPPED_S)
        os.kill(scene.coordinator.pid, signal.SIGCONT)
        crew.until_finished(scene.coordinator)
        assert crew.verdict(scene.coordinator, LATE_S).faults == ()
