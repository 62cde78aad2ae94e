"""Transactions per second of a store alone, without a coordinator."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sharecoord.core.changes import CommitBatch, PartitionCommit
from sharecoord.devenv.stores import alternating_ranges, opened, owned_partitions
from sharecoord.ports import Store

_WARM_COMMITS: Final = 6  # a driver prepares a statement that it has seen a few times
_TOPIC_ID: Final = "0" * 31 + "1"


def measure_commits(url: str, *, partitions: int, ranges: int, seconds: float) -> dict[str, float]:
    """Writes ranges and deletes them again, in turn, one group commit after the other.

    Returns:
        `commits_per_s`; `rows_per_s`: rows of ranges that were written or deleted.
    """
    with opened(url) as store:
        batches = _batches(store, partitions, ranges)
        count = 0

        def commit() -> None:
            nonlocal count
            store.commit(batches[count % 2])
            count += 1

        for _ in range(_WARM_COMMITS):
            commit()
        rate = rate_of(commit, seconds, time.perf_counter)
    return {"commits_per_s": rate, "rows_per_s": rate * partitions * ranges}


def _batches(store: Store, partitions: int, ranges: int) -> tuple[CommitBatch, CommitBatch]:
    """A commit that writes the ranges, and a commit that deletes them."""
    rows = owned_partitions(store, "bench", "bench", _TOPIC_ID, partitions)
    now_ms = store.now_ms()
    write = [alternating_ranges(row, ranges, now_ms) for row in rows]
    delete = [
        PartitionCommit(
            each.partition_id,
            each.owner_epoch,
            each.state_epoch,
            each.head,
            deleted=[row.first_offset for row in each.upserted],
        )
        for each in write
    ]
    return CommitBatch(partitions=write), CommitBatch(partitions=delete)


def rate_of(call: Callable[[], None], seconds: float, clock_s: Callable[[], float]) -> float:
    """How often per second `call` can be called, one call after the other."""
    count, began_s = 0, clock_s()
    while True:
        call()
        count += 1
        passed_s = clock_s() - began_s
        if passed_s >= seconds:
            return count / passed_s
