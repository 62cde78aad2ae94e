"""A process that uses a store: `python -m tests.contract.store_process MODE URL`.

`hold` opens the store, says so, and waits for its standard input to end. `storm` commits as fast
as it can and prints the number of each commit that has returned. `limited` commits until a write
fails, with the size of files limited by the system, and prints the error.
"""

from __future__ import annotations

import resource
import signal
import sys

from sharecoord.core.changes import (
    CommitBatch,
    DeadLetter,
    LoadedPartition,
    PartitionCommit,
    PartitionHead,
)
from sharecoord.errors import SharecoordError
from sharecoord.ports import Store
from sharecoord.store.factory import make_store
from tests.contract.store_worlds import (
    claim_partition,
    key_of,
    open_partition,
    row_of,
)

PARTITIONS = 3
ROWS = 8


def change_number(loaded: LoadedPartition, number: int) -> PartitionCommit:
    """The whole state after commit `number`: every row says which commit wrote it."""
    base = number * 100
    return PartitionCommit(
        partition_id=loaded.row.partition_id,
        owner_epoch=loaded.row.owner_epoch,
        state_epoch=loaded.row.state_epoch,
        head=PartitionHead(base, base + ROWS, 0, 0, change_sequence=number),
        deleted=[base - 100 + index for index in range(ROWS)],
        upserted=[row_of(base + index, base + index) for index in range(ROWS)],
        dead_letters=[DeadLetter(number, "x", 1, None, None, b"v", (), 0)],
        dead_letters_done=[number - 1],
    )


def opened(url: str, coordinator_id: str, partitions: int) -> tuple[Store, list[LoadedPartition]]:
    """Opens the store and claims its share-partitions."""
    store = make_store(url)
    store.open(coordinator_id=coordinator_id, cluster_id="kafka-1", address="a:1", version="0.1.0")
    all_loaded = []
    for number in range(partitions):
        row = open_partition(store, key_of(number))
        loaded = claim_partition(store, row.partition_id, incarnation=1, previous_incarnation=None)
        assert loaded is not None, "a claim after a crash must succeed at once"
        all_loaded.append(loaded)
    return store, all_loaded


def storm(url: str) -> None:
    """Commits until the process is killed."""
    store, all_loaded = opened(url, "storm", PARTITIONS)
    head = all_loaded[0].row.head
    number = 0 if head is None else head.change_sequence
    while True:
        number += 1
        changes = [change_number(loaded, number) for loaded in all_loaded]
        assert store.commit(CommitBatch(changes)).fenced == frozenset()
        print(number, flush=True)


def hold(url: str) -> None:
    """Holds the store until standard input ends."""
    store, _ = opened(url, "holder", 0)
    print("open", flush=True)
    sys.stdin.read()
    store.close()


def limited(url: str) -> None:
    """Commits until a write fails for good."""
    store, all_loaded = opened(url, "limited", 1)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
    for number in range(1, 10_000):
        try:
            store.commit(CommitBatch([change_number(all_loaded[0], number)]))
        except SharecoordError as error:
            print(type(error).__name__, error.message, flush=True)
            return


if __name__ == "__main__":
    {"storm": storm, "hold": hold, "limited": limited}[sys.argv[1]](sys.argv[2])
