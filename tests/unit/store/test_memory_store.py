"""The reference store's switches for tests: faults, crashes, and checks of its callers."""

from __future__ import annotations

import pytest

from sharecoord.core.changes import CommitBatch
from sharecoord.errors import (
    InternalError,
    StoreFatalError,
    StoreInUseError,
    StoreOutcomeUnknownError,
    StoreUnavailableError,
)
from sharecoord.store.memory.database import MemoryDatabase
from sharecoord.store.memory.store import MemoryStore
from tests.contract.store_worlds import (
    change_of,
    claim_partition,
    claimed,
    commit,
    key_of,
    ranges,
    row_of,
)


def opened(database: MemoryDatabase | None = None, name: str = "one") -> MemoryStore:
    store = MemoryStore(database, fleet=database is not None, check_ranges=True)
    store.open(coordinator_id=name, cluster_id="", address=f"{name}:1", version="0.1.0")
    return store


def test_a_fault_before_the_commit_changes_nothing() -> None:
    store = opened()
    loaded = claimed(store)
    store.fail_next(StoreUnavailableError("down"))
    change = change_of(loaded, upserted=[row_of(0, 4)])
    with pytest.raises(StoreUnavailableError, match="down"):
        commit(store, change)
    assert ranges(store, loaded.row.partition_id) == []
    assert commit(store, change) == frozenset()
    assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]


def test_a_fault_after_the_commit_keeps_it() -> None:
    store = opened()
    loaded = claimed(store)
    store.fail_next(StoreOutcomeUnknownError("lost"), after_commit=True)
    with pytest.raises(StoreOutcomeUnknownError):
        commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]


def test_faults_queue_up_and_can_wait_for_a_method() -> None:
    store = opened()
    store.fail_next(StoreUnavailableError("first"), method="commit")
    store.fail_next(StoreFatalError("second"))
    store.load_groups()
    with pytest.raises(StoreUnavailableError, match="first"):
        store.commit(CommitBatch())
    with pytest.raises(StoreFatalError, match="second"):
        store.load_groups()
    assert store.load_groups() == []


def test_a_crash_leaves_the_lease_and_frees_the_standalone_lock() -> None:
    database = MemoryDatabase(clock_ms=lambda: 1000)
    one, two = opened(database, "one"), opened(database, "two")
    partition_id = claimed(one).row.partition_id
    one.crash()
    assert claim_partition(two, partition_id, incarnation=1, previous_incarnation=None) is None
    with pytest.raises(InternalError, match="not open"):
        one.load_groups()

    alone = MemoryStore()
    alone.open(coordinator_id="one", cluster_id="", address="one:1", version="0.1.0")
    other = MemoryStore(alone.database)
    with pytest.raises(StoreInUseError, match="coordinator one"):
        other.open(coordinator_id="two", cluster_id="", address="two:1", version="0.1.0")
    alone.crash()
    other.open(coordinator_id="two", cluster_id="", address="two:1", version="0.1.0")


def test_mistakes_of_the_caller_are_caught() -> None:
    store = opened()
    loaded = claimed(store, key_of())
    with pytest.raises(AssertionError, match="overlap"):
        commit(store, change_of(loaded, upserted=[row_of(0, 4), row_of(4, 9)]))
    with pytest.raises(AssertionError, match="both deleted and upserted"):
        commit(store, change_of(loaded, deleted=[0], upserted=[row_of(0, 4)]))
    with pytest.raises(AssertionError, match="twice"):
        commit(store, change_of(loaded), change_of(loaded))
