"""Several coordinators at work on the same rows of a server: what must hold whoever comes first.

Every commit replaces the whole state of its share-partition and writes its own number into all of
it, so that a torn or lost one shows at the next claim.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from sharecoord.core.changes import (
    CommitBatch,
    LoadedPartition,
    PartitionClaim,
    PartitionKey,
    PartitionRelease,
    PartitionRow,
)
from sharecoord.errors import StoreUnavailableError
from sharecoord.store.groups import operations
from sharecoord.store.hot import partitions
from sharecoord.store.sql_store import SqlStore
from tests.contract.store_worlds import (
    START_MS,
    ServerWorld,
    change_of,
    claimed,
    head_of,
    initialize_partition,
    key_of,
    member_of,
    row_of,
)

THREADS = 4
STEPS = 60
ROWS = 5
KEYS = [key_of(0), key_of(1), key_of(2), key_of(0, topic="pay")]
MEMBERS = ["m1", "m2", "m3"]


class Seen:
    """What all threads were told, to be compared at the end."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.owner_epochs: Counter[tuple[PartitionKey, int]] = Counter()
        self.group_epochs: Counter[int] = Counter()
        self.member_epochs: Counter[tuple[str, int]] = Counter()
        self.state_epochs: Counter[tuple[PartitionKey, int]] = Counter()
        self.done: Counter[str] = Counter()
        self.problems: list[str] = []
        self.numbers = itertools.count(1)


class Coordinator:
    """One thread with a store of its own."""

    def __init__(self, name: str, store: SqlStore, seen: Seen, *, deletes: bool) -> None:
        self.name = name
        self.store = store
        self.seen = seen
        # Of the thread alone: the seeded generator of the tests is shared.
        self.random = random.Random(name)
        self.owned: dict[PartitionKey, tuple[LoadedPartition, list[int]]] = {}
        self.incarnations = itertools.count(int(name[1:]) * 1_000_000 + 1)
        self.steps: list[Callable[[], None]] = [
            *[self.claim] * 3,
            *[self.commit] * 6,
            self.release,
            self.reset,
            self.join,
            self.configure,
            *[self.look] * 2,
        ]
        if deletes:
            self.steps += [self.delete_topics, self.delete_group]

    def run(self) -> None:
        for _ in range(STEPS):
            step = self.random.choice(self.steps)
            try:
                step()
            except StoreUnavailableError:
                # Rolled back, after the store's own attempts: what is owned has to be read anew.
                self.owned.clear()
            except BaseException as error:  # noqa: BLE001 - reported by the test
                with self.seen.lock:
                    self.seen.problems.append(f"{self.name} {step.__name__}: {error!r}")
                return
            else:
                with self.seen.lock:
                    self.seen.done[step.__name__] += 1

    def some_keys(self) -> list[PartitionKey]:
        """In any order: the store has to lock in its own."""
        return self.random.sample(KEYS, self.random.randint(1, len(KEYS)))

    def claim(self) -> None:
        keys = self.some_keys()
        rows = self.store.open_partitions(keys)
        claims = [PartitionClaim(row.partition_id, next(self.incarnations)) for row in rows]
        for key, loaded in zip(keys, self.store.claim_partitions(claims), strict=True):
            if loaded is None:
                self.owned.pop(key, None)
                continue
            self.check(key, loaded)
            row = loaded.row
            if row.head is None:
                initialize_partition(
                    self.store, row.partition_id, owner_epoch=row.owner_epoch, head=head_of()
                )
            self.owned[key] = (loaded, [each.first_offset for each in loaded.in_flight])

    def check(self, key: PartitionKey, loaded: LoadedPartition) -> None:
        row, tags = loaded.row, {each.lock_token for each in loaded.in_flight}
        with self.seen.lock:
            self.seen.owner_epochs[key, row.owner_epoch] += 1
            if row.owner != self.name:
                self.seen.problems.append(f"{self.name} claimed what is {row.owner}'s")
            if tags:
                whole = len(loaded.in_flight) == ROWS and row.head is not None
                if not whole or tags != {row.head.end_offset if row.head else None}:
                    self.seen.problems.append(f"torn: {row} with {loaded.in_flight}")

    def commit(self) -> None:
        parts, rows_of = [], {}
        for key, (loaded, old) in self.owned.items():
            number = next(self.seen.numbers)
            rows = [
                row_of(number * 10 + n, number * 10 + n)._replace(lock_token=number)
                for n in range(ROWS)
            ]
            rows_of[key] = [row.first_offset for row in rows]
            head = head_of(0, number, sequence=number)
            parts.append(change_of(loaded, head=head, deleted=old, upserted=rows))
        self.random.shuffle(parts)
        fenced = self.store.commit(CommitBatch(partitions=parts)).fenced
        for key, firsts in rows_of.items():
            loaded, _ = self.owned[key]
            if loaded.row.partition_id in fenced:
                del self.owned[key]
            else:
                self.owned[key] = (loaded, firsts)

    def release(self) -> None:
        if self.owned:
            loaded, _ = self.owned.pop(self.random.choice(list(self.owned)))
            self.store.release_partitions(
                [PartitionRelease(loaded.row.partition_id, loaded.row.owner_epoch)]
            )

    def reset(self) -> None:
        rows = self.store.reset_partitions(dict.fromkeys(self.some_keys(), 0))
        with self.seen.lock:
            for key, row in rows.items():
                self.seen.state_epochs[key, row.state_epoch] += 1

    def look(self) -> None:
        """Rows that start at zero were made beside one that had a start; they go together."""
        rows = self.store.list_partitions("group")
        used = {row.key.topic for row in rows if row.head is not None}
        waiting = [row for row in rows if row.head is None and row.starts_at_zero]
        if any(row.key.topic not in used for row in waiting):
            with self.seen.lock:
                self.seen.problems.append(f"added to what nobody has used: {rows}")

    def join(self) -> None:
        names = self.random.sample(MEMBERS, 2)
        epochs = self.store.join_members([member_of(name) for name in names])
        with self.seen.lock:
            self.seen.member_epochs.update(zip(names, epochs, strict=True))

    def configure(self) -> None:
        number = str(next(self.seen.numbers))
        group = self.store.save_group_config("group", set_values={self.name: number}, deleted=[])
        with self.seen.lock:
            self.seen.group_epochs[group.group_epoch] += 1
            if group.config[self.name] != number:
                self.seen.problems.append(f"lost: {self.name}={number} in {group}")

    def delete_topics(self) -> None:
        self.store.delete_topics("group", ["pay"])

    def delete_group(self) -> None:
        # Members go with it, and their epochs begin anew: not for those that are compared.
        self.store.delete_topics("group", ["orders"])


def patient(world: ServerWorld, name: str) -> SqlStore:
    """A coordinator that waits for the locks of others, however slow they are."""
    store = world.make(lock_timeout_ms=5000)
    store.open(coordinator_id=name, cluster_id="k", address=name, version="0.1.0")
    return store


def run_all(world: ServerWorld, *, deletes: bool) -> tuple[Seen, list[Coordinator]]:
    seen = Seen()
    workers = []
    for number in range(THREADS):
        name = f"c{number}"
        workers.append(Coordinator(name, patient(world, name), seen, deletes=deletes))
    threads = [threading.Thread(target=worker.run, name=worker.name) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen, workers


def check_all(seen: Seen, workers: list[Coordinator]) -> None:
    assert seen.problems == []
    told = (seen.owner_epochs, seen.group_epochs, seen.member_epochs, seen.state_epochs)
    for epochs in told:
        assert epochs, seen.done
        twice = [epoch for epoch, count in epochs.items() if count > 1]
        assert twice == [], "an epoch was given to two"
    # Conflicts are made again by the store: nearly all steps have to be done.
    assert seen.done.total() >= THREADS * STEPS * 0.9, seen.done
    store = workers[0].store
    for member in store.load_members():
        mine = [epoch for name, epoch in seen.member_epochs if name == member.member_id]
        assert sorted(mine) == list(range(START_MS, member.member_epoch + 1)), "a join was lost"


def test_nothing_is_lost_and_nothing_is_given_twice(server_world: ServerWorld) -> None:
    seen, workers = run_all(server_world, deletes=False)
    check_all(seen, workers)
    store = workers[0].store
    # Each has set a name of its own, in one text.
    (group,) = store.load_groups()
    configured = {worker.name for worker in workers} & set(group.config)
    assert configured == set(group.config)
    assert group.group_epoch == sum(seen.group_epochs.values()) + seen.done["reset"]


def test_what_is_deleted_and_made_again_at_the_same_time_repeats_no_epoch(
    server_world: ServerWorld,
) -> None:
    seen, workers = run_all(server_world, deletes=True)
    check_all(seen, workers)


def test_groups_that_come_and_go_repeat_no_epoch(server_world: ServerWorld) -> None:
    stores = [server_world.open(f"c{number}") for number in range(THREADS)]
    epochs: Counter[int] = Counter()
    problems: list[str] = []
    lock = threading.Lock()

    def run(number: int) -> None:
        for step in range(STEPS // 2):
            try:
                if step % 5 == number:
                    stores[number].delete_group("group")
                    continue
                row = stores[number].open_partitions([key_of(step % 2)])[0]
                group = stores[number].save_group_config("group", set_values={}, deleted=[])
            except StoreUnavailableError:
                continue
            except BaseException as error:  # noqa: BLE001 - reported below
                problems.append(f"{number}: {error!r}")
                return
            with lock:
                epochs[group.group_epoch] += 1
                if row.key != key_of(step % 2):
                    problems.append(f"{row}")

    threads = [threading.Thread(target=run, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert len(epochs) > STEPS // 4
    assert [epoch for epoch, count in epochs.items() if count > 1] == []


def test_a_row_that_is_reset_while_another_makes_it_keeps_its_state_epoch(
    server_world: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = server_world.open("c0"), server_world.open("c1")
    key, other = key_of(0), key_of(0, topic="pay")
    read_floor = partitions.read_floor
    told: list[int] = []

    def meanwhile(connection: Connection) -> int:
        # The slow one has seen no row and no floor; now both come to be.
        floor = read_floor(connection)
        monkeypatch.setattr(partitions, "read_floor", read_floor)
        told.extend(quick.reset_partitions({key: 0})[key].state_epoch for _ in range(3))
        quick.reset_partitions({other: 0})
        quick.delete_topics("group", ["pay"])
        return floor

    monkeypatch.setattr(partitions, "read_floor", meanwhile)
    slow.open_partitions([key])
    told.append(quick.reset_partitions({key: 0})[key].state_epoch)

    assert told == sorted(set(told))


def run_beside(work: Callable[[], object]) -> threading.Thread:
    """Another coordinator at work, which may have to wait for this one's locks."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_rows_that_two_make_at_once_belong_to_the_first_use(
    server_world: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = server_world.open("c0"), server_world.open("c1")
    keys = [key_of(0), key_of(1), key_of(2)]
    read_floor = partitions.read_floor

    def meanwhile(connection: Connection) -> int:
        # The slow one has seen no row; now the other one makes them, and starts one of them.
        monkeypatch.setattr(partitions, "read_floor", read_floor)
        quick.open_partitions(keys)
        claimed(quick, keys[0])
        return read_floor(connection)

    monkeypatch.setattr(partitions, "read_floor", meanwhile)
    assert [row.starts_at_zero for row in slow.open_partitions(keys)] == [False] * 3
    assert [row.starts_at_zero for row in quick.open_partitions([*keys, key_of(3)])] == [
        *[False] * 3,
        True,
    ]


def test_rows_that_are_made_while_their_topic_is_deleted_belong_to_its_next_first_use(
    server_world: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, operator = patient(server_world, "c0"), patient(server_world, "c1")
    claimed(maker, key_of(0))
    read_floor, lock_rows = partitions.read_floor, operations._lock_partitions
    asked = threading.Event()
    deletions: list[threading.Thread] = []

    def asking(*args: Any) -> Any:
        asked.set()
        return lock_rows(*args)

    def meanwhile(connection: Connection) -> int:
        # The maker has seen that the topic is used; the deletion has to wait for its rows.
        monkeypatch.setattr(partitions, "read_floor", read_floor)
        deletions.append(run_beside(lambda: operator.delete_topics("group", ["orders"])))
        asked.wait()
        return read_floor(connection)

    monkeypatch.setattr(operations, "_lock_partitions", asking)
    monkeypatch.setattr(partitions, "read_floor", meanwhile)
    made = maker.open_partitions([key_of(0), key_of(1)])
    deletions[0].join()

    assert [row.starts_at_zero for row in made] == [False, True]
    assert [row.starts_at_zero for row in operator.list_partitions("group")] in ([], [False])
    assert not any(row.starts_at_zero for row in maker.open_partitions([key_of(0), key_of(1)]))


def test_rows_that_wait_for_the_deletion_of_their_topic_do_not_start_at_zero(
    server_world: ServerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    maker, operator = patient(server_world, "c0"), patient(server_world, "c1")
    claimed(maker, key_of(0))
    delete_rows = operations._delete_all_but_outboxes
    makers: list[threading.Thread] = []
    made: list[PartitionRow] = []

    def locked(*args: Any) -> Any:
        # The deletion has its locks.
        makers.append(run_beside(lambda: made.extend(maker.open_partitions([key_of(1)]))))
        return delete_rows(*args)

    monkeypatch.setattr(operations, "_delete_all_but_outboxes", locked)
    operator.delete_topics("group", ["orders"])
    makers[0].join()

    assert [row.starts_at_zero for row in maker.open_partitions([key_of(1)])] == [False]
    assert [row.key for row in made] == [key_of(1)]
