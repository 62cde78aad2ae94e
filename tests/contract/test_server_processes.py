"""Servers with real processes: who holds the store, and kill -9 in a storm of commits."""

from __future__ import annotations

import os
import signal

import pytest

from sharecoord.errors import StoreInUseError
from sharecoord.ports import Store
from sharecoord.store.factory import make_store
from tests.contract.store_worlds import ServerWorld
from tests.contract.test_sqlite_processes import check_state, kill_in_a_storm, line_of, process

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


def test_kill_in_a_storm_of_commits(server_world: ServerWorld) -> None:
    number, url = 0, server_world.url
    for confirmed in kill_in_a_storm(url, cycles=KILL_CYCLES, longest=11):
        assert confirmed > number
        # What returned is there; the commit under way may be.
        number = check_state(opened(url), least=confirmed, most=confirmed + 1)
