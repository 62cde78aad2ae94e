"""`sharecoord serve --processes N`: a fleet behind one port, and who looks after it."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import psutil  # type: ignore[import-untyped]
import pytest

from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.processes import LOOPBACK, free_ports
from sharecoord.wire import share_service_pb2_grpc as rpc
from tests.acceptance.bad_input import Member, refusal_of, refused
from tests.acceptance.chaos.crew import Crew
from tests.acceptance.chaos.fleet import (
    BUSY_S,
    DRAIN_MAX_S,
    FleetScene,
    fleet,
    goes_on,
    shared_fleet,
)
from tests.acceptance.chaos.load import Load
from tests.support import eventually, unique_name

__all__ = ["fleet", "shared_fleet"]

pytestmark = pytest.mark.timeout(240)

PROCESSES = 3
CONNECTIONS = 30
"""That all of them end at one process: once in 3^29."""


@pytest.fixture
def parent(shared_fleet: FleetScene) -> CoordinatorProcess:
    """All of them, serving; one for all tests, which start again what they end."""
    known = shared_fleet.processes
    process = known.get("one") or shared_fleet.made("one", coordinator_processes=PROCESSES)
    if not process.running:
        shared_fleet.start("one")
    return process


def children(process: CoordinatorProcess) -> list[psutil.Process]:
    """The processes that serve; multiprocessing has one more that does not."""
    found = psutil.Process(process.pid).children()
    return [each for each in found if any("spawn_main" in part for part in each.cmdline())]


def ended(processes: list[psutil.Process]) -> bool:
    return not any(each.is_running() and each.status() != "zombie" for each in processes)


def test_members_of_one_port_are_spread_over_all(
    shared_fleet: FleetScene, parent: CoordinatorProcess
) -> None:
    group, make = unique_name("g"), rpc.ShareServiceStub
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            alone = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(parent.address, options=alone))
            Member(make(channel), group, unique_name("t")).join()
        rows = shared_fleet.sql(
            f"SELECT gateway, count(*) FROM member WHERE group_id = '{group}' GROUP BY 1"
        )
    print(dict(rows))
    assert sum(count for _, count in rows) == CONNECTIONS
    assert len(rows) >= 2


@pytest.fixture
def crew(shared_fleet: FleetScene, parent: CoordinatorProcess) -> Iterator[Crew]:
    """Workers under load."""
    ids = [f"one-{number}" for number in range(PROCESSES)]
    with shared_fleet.crew(work_ms=1.0, ids=ids) as crew:
        crew.produce(shared_fleet.topics, 100)
        crew.working(crew.hire(), crew.hire(), crew.hire())
        yield crew


def test_one_that_is_killed_is_started_again(
    shared_fleet: FleetScene, parent: CoordinatorProcess, crew: Crew
) -> None:
    with Load(crew, shared_fleet.topics, each_s=0.1, chunk=20):
        victim, *others = children(parent)
        assert len(others) == PROCESSES - 1
        victim.kill()
        goes_on(crew)
        eventually(lambda: len(children(parent)) == PROCESSES, 30.0, "it lives again")
        assert not ended(others)
        eventually(lambda: len(set(shared_fleet.owners(crew.group).values())) == PROCESSES, 60.0)
        goes_on(crew)
    crew.until_finished(shared_fleet.url)
    assert crew.verdict(shared_fleet.url).faults == ()


def test_sigterm_ends_all_of_them(
    shared_fleet: FleetScene, parent: CoordinatorProcess, crew: Crew
) -> None:
    served, said = children(parent), len(shared_fleet.log("one"))
    began_s = time.monotonic()
    os.kill(parent.pid, signal.SIGTERM)
    eventually(lambda: parent.exit_code is not None, 30.0, "it has ended")
    took_s = time.monotonic() - began_s
    print(f"gone after {took_s:.2f} s")
    assert parent.exit_code == 0, parent.log_tail()
    assert ended(served)
    assert "killed: it did not end" not in shared_fleet.log("one")[said:]
    assert took_s <= DRAIN_MAX_S + BUSY_S
    shared_fleet.start("one")
    goes_on_from(shared_fleet, crew)


def goes_on_from(fleet: FleetScene, crew: Crew) -> None:
    """The workers find the next lives, and everything was kept."""
    crew.produce(fleet.topics, 100)
    crew.until_finished(fleet.url)
    assert crew.verdict(fleet.url).faults == ()


def test_kill_9_of_the_parent_ends_all_of_them(
    shared_fleet: FleetScene, parent: CoordinatorProcess, crew: Crew
) -> None:
    served = children(parent)
    # The process alone, not its group.
    os.kill(parent.pid, signal.SIGKILL)
    eventually(lambda: ended(served), 30.0, "they notice and end")
    shared_fleet.start("one")
    goes_on_from(shared_fleet, crew)


# -- what can not be ------------------------------------------------------------------------------


def test_a_port_that_is_taken(fleet: FleetScene) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        address = f"{LOOPBACK}:{taken.getsockname()[1]}"
        process = fleet.made("one", coordinator_processes=PROCESSES, listen_address=address)
        assert address in refusal_of(process)


def test_a_store_that_can_not_be_reached(fleet: FleetScene) -> None:
    (port,) = free_ports(1)
    nowhere = f"postgresql://nobody:secret@{LOOPBACK}:{port}/none"
    error = refusal_of(fleet.made("one", coordinator_processes=PROCESSES, store_url=nowhere))
    assert f"{LOOPBACK}:{port}" in error
    assert "secret" not in error


@pytest.mark.parametrize(
    ("mode", "says"),
    [("fleet", "cannot work on a SQLite file"), ("standalone", "Set coordinator.mode")],
)
def test_sqlite_is_refused(tmp_path: Path, mode: str, says: str) -> None:
    error = refused(
        *("serve", "--processes", str(PROCESSES), "--store", f"sqlite:///{tmp_path / 'store.db'}"),
        environ={"SHARECOORD_COORDINATOR__MODE": mode},
    )
    assert says in error
    assert "store.url to postgresql://" in error
