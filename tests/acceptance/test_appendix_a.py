"""What broke in other systems, row by row: each is a test here or stands in `ROWS` with its proofs.

The rows are symptoms that users of comparable systems have reported in public. `ROWS` maps a row
to the tests that prove it; rows of parts that this release does not have name the test that shows
that the part is refused by name instead of being half there (`NOT_BUILT`).
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import threading
import time
from bisect import bisect
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from sharecoord_sdk import ShareConsumer
from sharecoord_sdk.admin import AdminClient

from sharecoord.config.group import GroupConfig
from sharecoord.demo.ledger import Verb
from sharecoord.devenv.coordinator import CoordinatorProcess
from sharecoord.devenv.topics import Topics
from sharecoord.testing.virtual_time import virtual
from sharecoord.wire import share_service_pb2_grpc as rpc
from tests.acceptance.bad_input import Member, acknowledged, exceptions
from tests.acceptance.chaos.crew import ROOT
from tests.acceptance.chaos.fixtures import broker, everybody_is_up, scene
from tests.acceptance.chaos.load import Load
from tests.acceptance.chaos.scene import Scene, configure, let_pass
from tests.architecture.test_evidence import exists
from tests.support import eventually, unique_name
from tests.unit.runtime.worlds import offsets, world_with
from tests.world import running

__all__ = ["broker", "everybody_is_up", "scene"]

HERE = "tests/acceptance/test_appendix_a.py"
KILLS = "tests/acceptance/test_faults_kill.py"
STORE = "tests/acceptance/test_faults_store.py"
DISPATCH = "tests/unit/runtime/test_dispatch.py"
WORKER_CORE = "tests/sdk/test_worker_core.py"
BAD_CALLS = "tests/acceptance/test_bad_calls.py"
BAD_INPUT = "tests/acceptance/test_bad_input.py"
COMMIT = "tests/contract/test_store_commit.py"

ROWS: dict[str, list[str]] = {
    "work stands still while members come and go": [
        f"{HERE}::test_work_never_stands_still_while_everybody_is_replaced",
    ],
    "holes between acknowledgements are forgotten at a restart": [
        f"{STORE}::test_50_000_alternating_acknowledgements_survive_kill_9",
    ],
    "a full window is silent": [
        f"{HERE}::test_a_full_window_says_so",
        f"{DISPATCH}::test_a_full_window_stops_new_data_and_goes_on_redelivering",
    ],
    "concurrent acquires pass the limit in flight": [
        f"{HERE}::test_concurrent_members_never_pass_the_limit_in_flight",
    ],
    "a lock that ends while the stable end of the log moves": [
        f"{HERE}::test_locks_that_end_among_aborted_transactions",
    ],
    "acknowledgements wait behind a long poll": [
        f"{HERE}::test_an_acknowledgement_is_answered_while_a_long_poll_waits",
    ],
    "records grow old in the client's buffer": [
        "tests/sdk/test_poll.py::test_records_whose_lock_ended_in_the_buffer_go_back",
        f"{WORKER_CORE}::test_locks_are_renewed_at_half_their_time_while_a_handler_runs",
    ],
    "one record more than was asked for": [
        f"{HERE}::test_a_limit_of_one_never_sees_two",
        "tests/sdk/test_poll.py::test_max_poll_records_is_strict_and_acks_follow_the_polls",
    ],
    "a late acknowledgement is accepted": [
        f"{BAD_CALLS}::test_after_the_lock_ended_an_acknowledgement_settles_nothing",
        f"{STORE}::test_a_paused_worker_loses_its_locks_and_its_late_acknowledgements_settle_nothing",
    ],
    "records are lost at a redeployment": [
        f"{HERE}::test_a_redeployment_loses_nothing_and_repeats_nothing",
        f"{KILLS}::test_the_coordinator_is_ended",
    ],
    "two replicas break each other": [
        f"{BAD_INPUT}::test_a_second_coordinator_on_one_file_is_refused_and_disturbs_nothing",
    ],
    "an idle client is forgotten": [
        f"{HERE}::test_a_client_that_was_idle_for_two_hours_goes_on",
    ],
    "a dead letter loses its headers": [
        "tests/integration/test_dead_letters.py::test_they_arrive_byte_for_byte",
    ],
    "a dead letter that can not be produced is given up": [
        "tests/integration/test_dead_letters.py::test_the_topic_is_gone_and_comes_back_and_none_is_lost",
    ],
    "a record that always fails is tried for ever": [
        f"{HERE}::test_the_default_delivery_limit_is_finite",
        "tests/integration/test_share_group.py::test_released_rejected_and_worn_out",
    ],
    "a record whose end is never told stays for ever": [
        f"{HERE}::test_a_forgotten_record_goes_to_another_member_and_the_window_moves",
        "tests/sdk/test_worker_end.py::test_a_lost_lock_is_told_with_the_handlers_name",
    ],
    "a benchmark that has no order to keep": [
        "tests/unit/bench/engine/test_pure.py::test_keys_follow_zipf",
    ],
    "two owners for a while": [
        "tests/unit/runtime/test_store_failures.py::test_a_claim_by_another_coordinator_fences",
        f"{COMMIT}::test_a_partition_of_another_epoch_is_left_out_and_the_rest_commits",
    ],
}
"""Row -> the tests that prove it."""

NOT_BUILT = frozenset(
    {
        "two replicas break each other",
        "a dead letter loses its headers",
        "a dead letter that can not be produced is given up",
    }
)
"""Rows of parts that this release does not have; their proof is that it says so."""

ROWS_TOTAL = 18


def test_every_row_has_a_proof_that_exists() -> None:
    assert len(ROWS) == ROWS_TOTAL
    missing = [(row, p) for row, proofs in ROWS.items() for p in proofs if not exists(p, ROOT)]
    assert missing == []
    assert all(ROWS.values())
    assert ROWS.keys() >= NOT_BUILT


def test_every_test_of_this_file_belongs_to_a_row() -> None:
    body = ast.parse((ROOT / HERE).read_text(encoding="utf-8")).body
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {n.name for n in body if isinstance(n, kinds) and n.name.startswith("test_")}
    used = {proof.partition("::")[2] for proofs in ROWS.values() for proof in proofs}
    assert {name for name in names - used if not name.startswith("test_every_")} == set()


# -- with processes -------------------------------------------------------------------------------

STANDSTILL = 4
"""So many replacements without a delivery in between are a standstill, on a slow machine too."""


@pytest.mark.timeout(2_400)  # 300 take twelve minutes on a machine that does other work
@pytest.mark.parametrize("times", [8, pytest.param(300, marks=pytest.mark.long)])
def test_work_never_stands_still_while_everybody_is_replaced(scene: Scene, times: int) -> None:
    with scene.crew(poll_records=20) as crew:
        workers = [crew.hire() for _ in range(3)]
        crew.produce(scene.topics, 10)
        crew.working(*workers)
        with Load(crew, scene.topics, each_s=0.1, chunk=10):
            replaced_s: list[float] = []
            for number in range(times):
                if number % 4 == 3:
                    scene.coordinator.kill()
                    scene.coordinator.restart()
                else:
                    crew.kill(workers.pop(0))
                    workers.append(crew.hire())
                    crew.working(workers[-1])
                replaced_s.append(time.monotonic())
                let_pass(1.0)
        crew.until_finished(scene.coordinator)
        got_s = sorted(e.time_s for e in crew.tally.entries if e.verb is Verb.GOT)
        meanwhile = [
            bisect(replaced_s, after) - bisect(replaced_s, before)
            for before, after in itertools.pairwise(got_s)
        ]
        assert crew.verdict(scene.coordinator).faults == ()
    assert max(meanwhile) < STANDSTILL


def test_a_redeployment_loses_nothing_and_repeats_nothing(scene: Scene) -> None:
    """Duplicates could be as many as were in hand; locks that survive make it none."""
    with scene.crew(work_ms=1.0) as crew:
        # No lock may end for the mere reason that the machine is slow.
        configure(scene.coordinator, crew.group, share_record_lock_duration_ms=60_000)
        crew.working(crew.hire(), crew.hire())
        for goal in (300, 900):
            crew.at_work(scene.topics, goal)
            scene.coordinator.stop()
            scene.coordinator.restart()
        crew.until_finished(scene.coordinator)
        findings = crew.verdict(scene.coordinator)
    assert findings.faults == ()
    assert findings.redelivered == 0


# -- with one coordinator -------------------------------------------------------------------------

TopicFactory = Callable[..., str]


@pytest.fixture
def stub(coordinator: CoordinatorProcess) -> Iterator[rpc.ShareServiceStub]:
    with grpc.insecure_channel(coordinator.address) as channel:
        make: Any = rpc.ShareServiceStub
        yield make(channel)


def explicit(coordinator: CoordinatorProcess, group: str, **more: object) -> ShareConsumer:
    config = {
        "bootstrap.servers": coordinator.address,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        **more,
    }
    return ShareConsumer(config)


def configured(coordinator: CoordinatorProcess, **settings: str) -> str:
    """A new group with settings; `_` stands for `.`."""
    group = unique_name("g")
    configure(coordinator, group, **settings)
    return group


def test_a_full_window_says_so(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics, stub: rpc.ShareServiceStub
) -> None:
    """Every second record is kept, so that each of them is a range of its own."""
    room = 1_000
    name = topic()
    topics.produce(name, 3 * room)
    group = configured(
        coordinator,
        share_partition_max_record_locks=str(room),
        share_partition_max_window_ranges=str(room),
    )
    member = Member(stub, group, name)
    member.join()

    def is_full() -> bool:
        for batch in member.fetch(max_records=room, max_wait_ms=500).batches:
            for each in batch.ranges:
                offsets_ = range(each.first_offset, each.last_offset + 1)
                done = [acknowledged(o, o, each.lock_token) for o in offsets_ if o % 2]
                assert exceptions(member.acknowledge(batch.partition, *done)) == []
        (view,) = admin.describe_groups([group])
        (place,) = view.offsets
        return place.window_full_at == 0

    with AdminClient({"bootstrap.servers": coordinator.address}) as admin:
        eventually(is_full, 30, "the listing names the offset that everything waits for")


def test_concurrent_members_never_pass_the_limit_in_flight(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics, stub: rpc.ShareServiceStub
) -> None:
    limit, members = 100, 12
    name = topic()
    topics.produce(name, 5_000)
    group = configured(coordinator, share_partition_max_record_locks=str(limit))
    gate = threading.Barrier(members)

    def fetch(_: int) -> int:
        member = Member(stub, group, name)
        member.join()
        gate.wait(60)
        batches = member.fetch(max_records=50, max_wait_ms=2_000).batches
        return sum(batch.record_count for batch in batches)

    with ThreadPoolExecutor(members) as pool:
        got = list(pool.map(fetch, range(members)))
    assert 0 < sum(got) <= limit, got


def test_locks_that_end_among_aborted_transactions(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics
) -> None:
    name = topic()
    group = configured(
        coordinator,
        share_isolation_level="read_committed",
        share_record_lock_duration_ms="1000",
        share_delivery_count_limit="1000",
    )
    seen = Transacted()
    with explicit(coordinator, group, **{"max.poll.records": 10}) as consumer:
        consumer.subscribe([name])
        for commit in (False, True, False):
            seen.write(topics, name, commit=commit)

            def all_settled() -> bool:
                seen.take(consumer)
                return seen.confirmed >= seen.visible

            eventually(all_settled, 60, "every record that may be seen is settled")
    assert set(seen.counts) == seen.visible
    assert max(seen.counts.values()) > 1, "locks did end"


class Transacted:
    """Plain, committed and aborted records, and a consumer that lets some locks end."""

    def __init__(self) -> None:
        self.visible: set[int] = set()
        self.counts: dict[int, int] = {}
        self.confirmed: set[int] = set()

    def write(self, topics: Topics, name: str, *, commit: bool) -> None:
        first, last = topics.produce(name, 10).offsets[0]
        self.visible |= set(range(first, last + 1))
        first, last = topics.produce_transaction(name, 10, commit=commit).offsets[0]
        if commit:
            self.visible |= set(range(first, last + 1))

    def take(self, consumer: ShareConsumer) -> None:
        batch = list(consumer.poll(0.2))
        fresh = [m.offset() or 0 for m in batch if m.delivery_count() == 1]
        for message in batch:
            offset, count = message.offset(), message.delivery_count()
            assert offset is not None
            assert count is not None
            self.counts[offset] = count
            consumer.acknowledge(message)
        if fresh and fresh[0] % 20 == 0:
            # Kept beyond the end of their locks: they come again with a higher count.
            let_pass(1.5)
        outcome = consumer.commit_sync(20.0)
        if all(error is None for error in outcome.values()):
            self.confirmed |= {m.offset() or 0 for m in batch}


def test_an_acknowledgement_is_answered_while_a_long_poll_waits(
    topic: TopicFactory, topics: Topics, stub: rpc.ShareServiceStub
) -> None:
    name = topic()
    topics.produce(name, 5)
    member = Member(stub, unique_name("g"), name)
    member.join()
    held = member.receive(5)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(member.fetch, max_records=1, max_wait_ms=15_000)
        outcome = member.acknowledge(held.partition, *held.of(0, 4))
        assert exceptions(outcome) == []
        assert not waiting.done(), "the poll still waits for its first record"
        topics.produce(name, 1)
        assert waiting.result(20).batches[0].record_count == 1


def test_a_limit_of_one_never_sees_two(
    coordinator: CoordinatorProcess, topic: TopicFactory, topics: Topics
) -> None:
    name, group = topic(), unique_name("g")
    topics.produce(name, 20)
    seen: list[int] = []
    consumers = [explicit(coordinator, group, **{"max.poll.records": 1}) for _ in range(2)]
    for consumer in consumers:
        consumer.subscribe([name])

    def step() -> bool:
        for consumer in consumers:
            batch = list(consumer.poll(0.05))
            assert len(batch) <= 1
            for message in batch:
                seen.append(message.offset() or 0)
                consumer.acknowledge(message)
            consumer.commit_sync(20.0)
        return len(seen) >= 20

    eventually(step, 60, "20 records, one at a time")
    for consumer in consumers:
        consumer.close()
    assert sorted(seen) == list(range(20))


def test_the_default_delivery_limit_is_finite() -> None:
    assert GroupConfig().delivery_count_limit == 5


# -- on virtual time ------------------------------------------------------------------------------

TWO_HOURS_S, POLL_EACH_S = 7_200, 60


@virtual
async def test_a_client_that_was_idle_for_two_hours_goes_on() -> None:
    world = world_with(0)
    async with running(world) as coordinator:
        member = world.member("m")
        await member.join(coordinator, "g", ("orders",), max_poll_records=10)
        for _ in range(TWO_HOURS_S // POLL_EACH_S):
            await asyncio.sleep(POLL_EACH_S)
            member.joined_group.polled(member.joined_session)
        world.log.append("orders", 3)
        (delivery,) = await member.take(3)
        assert offsets(delivery) == [0, 1, 2]
        assert not (await member.acknowledge(delivery)).exceptions


@virtual
async def test_a_forgotten_record_goes_to_another_member_and_the_window_moves() -> None:
    world = world_with(10)
    async with running(world) as coordinator:
        forgetful, other = world.member("forgetful"), world.member("other")
        await forgetful.join(coordinator, "g", ("orders",), credit=10, max_poll_records=10)
        (delivery,) = await forgetful.take(10)
        await forgetful.acknowledge(delivery, first=1)
        await other.join(coordinator, "g", ("orders",), max_poll_records=10)
        (again,) = await other.take(1)
        assert offsets(again) == [0]
        await other.acknowledge(again)
        assert world.start_offset("g", "orders") == 10
