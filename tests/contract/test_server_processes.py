"""Servers with real processes: who holds the store, and kill -9 in a storm of commits."""

from __future__ import annotations

import os
import signal

import pytest

from sharecoord.errors import StoreInUseError
from sharecoord.ports import Store
from sharecoord.store.factory import make_store
from tests.contract.store_process import PARTITIONS, ROWS
from tests.contract.store_worlds import ServerWorld, claim_partition, row_of
from tests.contract.test_sqlite_processes import line_of, process

KILL_CYCLES = 4


def opened(url: str) -> Store:
    """The store in this process, under another id than the child's."""
    store = make_store(url)
    store.open(coordinator_id="test", cluster_id="kafka-1", address="b:2", version="0.1.0")
    return store


def test_a_second_process_is_refused_by_name_and_kill_frees_the_store_at_once(
    server_world: ServerWorld,
) -> None:
    with process("hold", server_world.url) as child:
        assert line_of(child) == "open"
        with pytest.raises(StoreInUseError, match="coordinator holder at a:1") as caught:
            opened(server_world.url)
        assert "for-tests" not in caught.value.message
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        opened(server_world.url).close()


def check_state(url: str, *, least: int, most: int) -> int:
    """Every partition is exactly as one commit left it; returns that commit's number."""
    store = opened(url)
    rows = store.list_partitions("group")
    assert len(rows) == PARTITIONS
    numbers = {row.head.change_sequence for row in rows if row.head is not None}
    assert len(numbers) == 1, "partitions of one commit stand at different commits"
    number = numbers.pop()
    assert least <= number <= most
    for row in rows:
        loaded = claim_partition(store, row.partition_id, incarnation=9, previous_incarnation=None)
        assert loaded is not None, "the lease of who was killed is void"
        base = number * 100
        wanted = tuple(row_of(base + index, base + index) for index in range(ROWS))
        assert loaded.in_flight == wanted
        assert [letter.offset for letter in loaded.dead_letters] == [number]
    store.close()
    return number


def test_kill_in_a_storm_of_commits(server_world: ServerWorld) -> None:
    number = 0
    for cycle in range(KILL_CYCLES):
        with process("storm", server_world.url) as child:
            # Another moment in each cycle.
            said = [int(line_of(child)) for _ in range(1 + cycle * cycle * 11)]
            os.kill(child.pid, signal.SIGKILL)
            assert child.stdout is not None
            rest = child.stdout.read().split("\n")
            child.wait()
        confirmed = [*said, *(int(line) for line in rest[:-1])][-1]
        assert confirmed > number
        # What returned is there; the commit under way may be.
        number = check_state(server_world.url, least=confirmed, most=confirmed + 1)
