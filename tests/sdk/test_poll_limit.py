"""`max.poll.records`: a coordinator takes a bounded number, and the SDK asks for no more."""

from __future__ import annotations

import pytest
from sharecoord_sdk._core.config_table import POLL_RECORDS_MAX

from sharecoord.api.grpc.validation import MAX_POLL_RECORDS_MAX
from tests.sdk.fake_coordinator import make_batch
from tests.sdk.worker_running import Make
from tests.sdk.worker_world import WorkerWorld, credit_of
from tests.sdk.world import World


def test_the_limit_is_the_coordinators() -> None:
    assert POLL_RECORDS_MAX == MAX_POLL_RECORDS_MAX


@pytest.mark.parametrize("given", [MAX_POLL_RECORDS_MAX, MAX_POLL_RECORDS_MAX + 1, 2**31 - 1])
def test_more_than_the_limit_is_taken_and_bounded_in_the_join(given: int) -> None:
    world = World(max_poll_records=given)
    world.join()
    (join,) = (request.join for request in world.sent if request.HasField("join"))
    assert join.max_poll_records == MAX_POLL_RECORDS_MAX


def test_a_worker_of_more_slots_joins_within_the_limit(make: Make) -> None:
    running = make(concurrency=2 * MAX_POLL_RECORDS_MAX)
    running.worker.handler("t")(lambda message: None)
    assert running.start().join.max_poll_records == MAX_POLL_RECORDS_MAX


def test_a_worker_of_more_slots_fills_all_of_them() -> None:
    slots = 2 * MAX_POLL_RECORDS_MAX
    world = WorkerWorld(concurrency=slots)
    world.join()
    received = 0
    while world.locks.running < slots:
        count = credit_of(world) - received
        assert count > 0, f"{world.locks.running} slots have a record, and none is asked for"
        world.receive(make_batch([b"x"] * count, base=received))
        received += count
        world.start()
        world.publish()
