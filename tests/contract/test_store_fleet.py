"""What several coordinators need of a store: where rows start, who is there, what is given up."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from dataclasses import replace

import pytest

from sharecoord.core.changes import (
    CommitBatch,
    CoordinatorRow,
    LoadedPartition,
    PartitionHead,
    PartitionKey,
    PartitionRelease,
)
from sharecoord.core.dispatch.pauses import WHOLE_GROUP, Pause
from sharecoord.errors import InternalError, StoreInUseError, StoreOutcomeUnknownError
from sharecoord.store.memory.store import MemoryStore
from tests.contract.store_worlds import (
    START_MS,
    AnyStore,
    ServerWorld,
    SqliteWorld,
    World,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    key_of,
    letter_of,
    member_of,
)

ORDERS = [key_of(0), key_of(1), key_of(2)]
AGAIN = [key_of(n, topic_id="cd" * 16) for n in range(3)]
"""The same topic, made again."""


def zeros(store: AnyStore, keys: Sequence[PartitionKey]) -> list[bool]:
    """Whether these start at zero; made where they are missing."""
    return [row.starts_at_zero for row in store.open_partitions(keys)]


def stored(store: AnyStore) -> list[tuple[PartitionHead | None, bool]]:
    """Of the group: the start, and whether it was to be zero."""
    return [(row.head, row.starts_at_zero) for row in store.list_partitions("group")]


def started(store: AnyStore, keys: Sequence[PartitionKey]) -> list[LoadedPartition]:
    """All of them opened together, then each claimed and initialised."""
    store.open_partitions(keys)
    return [claimed(store, key, incarnation=n + 1) for n, key in enumerate(keys)]


def end_lease(world: World, coordinator_id: str) -> None:
    """As a standalone coordinator does to others that it takes for dead."""
    statement = f"DELETE FROM coordinator WHERE id = '{coordinator_id}'"
    if isinstance(world, ServerWorld):
        world.sql(statement)
    elif isinstance(world, SqliteWorld):
        with contextlib.closing(sqlite3.connect(world.path)) as connection, connection:
            connection.execute(statement)
    else:
        store = world.stores[0]
        assert isinstance(store, MemoryStore)
        del store.database.leases[coordinator_id]


# -- starts_at_zero (design 5.7) ------------------------------------------------------------------


def test_the_share_partitions_of_a_first_use_start_by_the_policy(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    assert zeros(one, ORDERS) == [False] * 3
    claimed(one, ORDERS[1])
    # The others were there before: also for who comes only now, and for a claim.
    assert zeros(two, ORDERS) == [False] * 3
    assert not claimed(two, ORDERS[2]).row.starts_at_zero
    assert stored(one) == [(None, False), (head_of(), False), (head_of(), False)]


def test_what_is_added_while_nothing_is_initialised_belongs_to_the_first_use(world: World) -> None:
    store = world.open()
    assert zeros(store, ORDERS[:2]) == [False] * 2
    claim_partition(store, 1, incarnation=1, previous_incarnation=None)
    assert zeros(store, ORDERS) == [False] * 3


def test_share_partitions_that_are_added_later_start_at_zero(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    claimed(one, ORDERS[0])
    assert zeros(two, ORDERS) == [False, True, True]
    # Said once and for all: to who claims it, after a crash as well, and when it has started.
    loaded = claim_partition(two, 2, incarnation=5, previous_incarnation=None)
    assert loaded is not None
    assert loaded.row.starts_at_zero
    world.crash(two)
    world.time_ms += 60_000
    assert claimed(one, ORDERS[1], incarnation=6).row.starts_at_zero
    assert stored(one) == [(head_of(), False), (head_of(), True), (None, True)]


def test_other_groups_and_other_topics_do_not_count(world: World) -> None:
    store = world.open()
    claimed(store, key_of(0))
    others = [
        key_of(1, group="other"),
        key_of(1, group="Group"),
        key_of(1, topic="pay"),
        key_of(1, topic="Orders"),
        key_of(1, topic="orders "),
    ]
    assert zeros(store, [*others, key_of(1)]) == [False] * 5 + [True]


@pytest.mark.parametrize("closed", [False, True])
def test_a_topic_that_is_made_again_starts_at_zero(world: World, closed: bool) -> None:
    store = world.open()
    (former, *_) = started(store, ORDERS)
    if closed:
        store.close_partition(former.row.partition_id, owner_epoch=former.row.owner_epoch)
    assert zeros(store, AGAIN) == [True] * 3
    # Also one whose id the cluster can not tell any more.
    assert zeros(store, [key_of(0, topic_id="")]) == [True]


def test_a_topic_that_was_never_started_does_not_count(world: World) -> None:
    store = world.open()
    store.open_partitions(ORDERS)
    assert zeros(store, AGAIN) == [False] * 3


def test_deleted_offsets_are_a_first_use_again(world: World) -> None:
    store = world.open()
    claimed(store, ORDERS[0])
    assert zeros(store, ORDERS) == [False, True, True]
    store.delete_topics("group", ["orders"])
    assert zeros(store, ORDERS) == [False] * 3
    claimed(store, ORDERS[0])
    assert zeros(store, [*ORDERS, *AGAIN]) == [False] * 3 + [True] * 3
    store.delete_group("group")
    assert zeros(store, [*AGAIN, *ORDERS]) == [False] * 6


@pytest.mark.parametrize("whole_group", [False, True])
def test_what_is_emptied_with_its_outbox_is_a_first_use_again(
    world: World, whole_group: bool
) -> None:
    store = world.open()
    claimed(store, ORDERS[0])
    added = started(store, ORDERS)[1:]
    assert [part.row.starts_at_zero for part in added] == [True, True]
    commit(store, change_of(added[0], dead_letters=[letter_of(7)]))
    if whole_group:
        store.delete_group("group")
    else:
        store.delete_topics("group", ["orders"])
    assert stored(store) == [(None, False)]
    # Neither it nor what is made beside it.
    assert zeros(store, ORDERS) == [False] * 3
    claimed(store, ORDERS[2], incarnation=9)
    assert zeros(store, [*ORDERS, *AGAIN[:1]]) == [False] * 3 + [True]


def test_a_deletion_of_other_topics_changes_nothing(world: World) -> None:
    store = world.open()
    claimed(store, key_of(0))
    claimed(store, key_of(0, topic="pay"), incarnation=2)
    assert zeros(store, [key_of(1)]) == [True]
    store.delete_topics("group", ["pay"])
    store.delete_group("other")
    assert zeros(store, [key_of(1)]) == [True]


def test_a_first_reset_of_some_leaves_the_policy_to_the_others(world: World) -> None:
    store = world.open()
    store.open_partitions(ORDERS)
    rows = store.reset_partitions({ORDERS[1]: 5})
    assert not rows[ORDERS[1]].starts_at_zero
    assert zeros(store, ORDERS) == [False] * 3


def test_a_reset_makes_all_its_rows_before_one_of_them_has_a_start(world: World) -> None:
    store = world.open()
    pay = key_of(0, topic="pay")
    claimed(store, pay)
    more = [*ORDERS[:2], key_of(1, topic="pay")]
    rows = store.reset_partitions(dict.fromkeys(more, 5))
    assert [rows[key].starts_at_zero for key in more] == [False, False, True]
    # Whoever was not opened before is taken for a later one: `open_partitions` says so.
    assert zeros(store, ORDERS) == [False, False, True]


@pytest.mark.parametrize("after", [False, True])
def test_rows_of_unknown_outcome_are_opened_again(world: World, after: bool) -> None:
    store = world.open()
    claimed(store, ORDERS[0])
    world.break_next_commit(store, after=after)
    with pytest.raises(StoreOutcomeUnknownError):
        store.open_partitions(ORDERS)
    assert zeros(store, ORDERS) == [False, True, True]


# -- coordinators ---------------------------------------------------------------------------------


def test_coordinators_are_seen_before_and_after_they_announce_themselves(world: World) -> None:
    two, one = world.open("two"), world.open("one")
    fresh = CoordinatorRow("one", "one:7070", "", draining=False)
    other = CoordinatorRow("two", "two:7070", "", draining=False)
    assert one.read_fleet().coordinators == (fresh, other)
    one.announce(address="one.example:7070", peer_address="10.0.0.1:7071")
    announced = CoordinatorRow("one", "one.example:7070", "10.0.0.1:7071", draining=False)
    for store in (one, two):
        assert store.read_fleet().coordinators == (announced, other)
    one.announce(address="one.example:7070", peer_address="10.0.0.1:7071", draining=True)
    assert two.read_fleet().coordinators == (replace(announced, draining=True), other)
    # A new process under the same id has neither.
    one.close()
    assert two.read_fleet().coordinators == (other,)
    again = world.open("one")
    assert again.read_fleet().coordinators == (fresh, other)


def test_a_restart_after_a_crash_has_not_announced_itself_yet(world: World) -> None:
    crashed = world.open("one")
    crashed.announce(address="a:1", peer_address="a:2", draining=True)
    world.crash(crashed)
    fresh = CoordinatorRow("one", "one:7070", "", draining=False)
    assert world.open("one").read_fleet().coordinators == (fresh,)


def secrets_of(store: AnyStore) -> dict[str, bytes]:
    return {row.coordinator_id: row.secret for row in store.read_fleet().coordinators}


def test_coordinators_of_one_store_know_each_others_secrets(world: World) -> None:
    one, two = bytes(range(32)), b"\xff" * 32
    store, other = world.open("one", secret=one), world.open("two", secret=two)
    three = world.open("three")
    known = {"one": one, "two": two, "three": b""}
    for each in (store, other, three):
        assert secrets_of(each) == known
    # What is said later leaves it as it is, and nobody sees it who only looks at a row.
    store.announce(address="a:1", peer_address="a:2", draining=True)
    store.renew_lease(duration_ms=4_000)
    assert secrets_of(other) == known
    shown = [*map(repr, other.read_fleet().coordinators), repr(other.read_fleet())]
    assert not any("xff" in each or "secret" in each for each in shown)


def test_a_secret_goes_with_its_process(world: World) -> None:
    first, second = b"1" * 32, b"2" * 32
    crashed, other = world.open("one", secret=first), world.open("two")
    world.crash(crashed)
    # At once, as after kill -9: its lease still lives.
    again = world.open("one", secret=second)
    assert secrets_of(other) == {"one": second, "two": b""}
    again.close()
    assert secrets_of(other) == {"two": b""}
    # A process without a secret does not keep the former one.
    world.open("one")
    assert secrets_of(other) == {"one": b"", "two": b""}


def test_who_does_not_renew_its_lease_is_not_in_the_fleet(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    until_ms = one.renew_lease(duration_ms=5000) + 5000
    two.renew_lease(duration_ms=60_000)
    # To say something is no sign of life.
    one.announce(address="a:1", peer_address="a:2")
    world.time_ms = until_ms
    assert [row.coordinator_id for row in two.read_fleet().coordinators] == ["one", "two"]
    world.time_ms = until_ms + 1
    assert [row.coordinator_id for row in two.read_fleet().coordinators] == ["two"]
    # It was only asleep.
    one.renew_lease(duration_ms=5000)
    assert two.read_fleet().coordinators[0] == CoordinatorRow("one", "a:1", "a:2", draining=False)


def test_coordinators_come_in_order_of_id(world: World) -> None:
    stores = [world.open(name) for name in ("b", "é", "B", "a", "_")]
    found = stores[0].read_fleet().coordinators
    assert [row.coordinator_id for row in found] == ["B", "_", "a", "b", "é"]
    assert all(type(row.draining) is bool for row in found)


def test_who_lost_its_lease_announces_nothing(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    end_lease(world, "one")
    with pytest.raises(StoreInUseError, match=r"coordinator one .*another coordinator took"):
        one.announce(address="a:1", peer_address="a:2")
    with pytest.raises(StoreInUseError, match=r"coordinator one .*another coordinator took"):
        one.renew_lease(duration_ms=4000)
    assert [row.coordinator_id for row in two.read_fleet().coordinators] == ["two"]


def test_the_fleet_knows_the_epochs_of_all_groups(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    assert one.read_fleet().group_epochs == {}
    one.ensure_group("quiet")
    group = two.save_group_config("group", set_values={"a": "1"}, deleted=[])
    assert one.read_fleet().group_epochs == {"quiet": 0, "group": group.group_epoch}
    paused = two.change_pauses("group", pause=[Pause(WHOLE_GROUP, 1, "operator")])
    assert paused is not None
    one.reset_partitions({key_of(0, group="new"): 3})
    assert one.read_fleet().group_epochs == {
        row.group_id: row.group_epoch for row in two.load_groups()
    }
    assert one.read_fleet().group_epochs["group"] == paused.row.group_epoch
    two.delete_group("group")
    assert one.read_fleet().group_epochs.keys() == {"quiet", "new"}


# -- releases -------------------------------------------------------------------------------------


def test_several_are_released_together_but_for_those_that_are_fenced(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    parts = started(one, [*ORDERS, key_of(0, topic="pay")])
    again = claim_partition(one, parts[1].row.partition_id, incarnation=9, previous_incarnation=2)
    assert again is not None
    releases = [PartitionRelease(p.row.partition_id, p.row.owner_epoch) for p in reversed(parts)]
    one.release_partitions([*releases[:3], PartitionRelease(99, 1)])
    owners = {row.key: row.owner for row in one.list_partitions("group")}
    # The first was not named, the second was claimed anew since.
    assert [owners[part.row.key] for part in parts] == ["one", "one", None, None]
    claims = [
        claim_partition(two, part.row.partition_id, incarnation=1, previous_incarnation=None)
        for part in parts
    ]
    assert [claim is not None for claim in claims] == [False, False, True, True]
    # Released and claimed by another: to release it again changes nothing.
    one.release_partitions(releases)
    owners = {row.key: row.owner for row in one.list_partitions("group")}
    assert [owners[part.row.key] for part in parts] == [None, "one", "two", "two"]


def test_nothing_to_release_is_no_transaction(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    store.release_partitions([])
    assert store.list_partitions("group")[0].owner == "one"
    # What was given up keeps its epoch, so its former owner can still finish what it began.
    store.release_partitions([PartitionRelease(loaded.row.partition_id, loaded.row.owner_epoch)])
    assert commit(store, change_of(loaded)) == frozenset()


# -- member epochs --------------------------------------------------------------------------------


def test_a_member_that_comes_again_goes_on_after_its_former_epochs(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    (first,) = one.join_members([member_of("m1")])
    (second,) = two.join_members([member_of("m1")])
    assert (first, second) == (START_MS, START_MS + 1)
    one.commit(CommitBatch(members_removed=[("group", "m1", second)]))
    world.time_ms += 45_000
    (third,) = two.join_members([member_of("m1")])
    assert third == START_MS + 45_000
    # A goodbye of the former life, late: it is not for this one.
    one.commit(CommitBatch(members_removed=[("group", "m1", second)]))
    assert [member.member_epoch for member in one.load_members()] == [third]
    # Nor does the group's end bring an epoch back.
    one.delete_group("group")
    world.time_ms += 1
    assert two.join_members([member_of("m1")]) == [third + 1]


def test_a_clock_that_is_set_back_repeats_no_member_epoch(world: World) -> None:
    store = world.open()
    store.join_members([member_of("m1"), member_of("m2", group="other")])
    store.commit(CommitBatch(members_removed=[("group", "m1", START_MS)]))
    world.time_ms -= 20_000
    assert store.join_members([member_of("m1")]) == [START_MS + 1]
    store.delete_group("group")
    assert store.join_members([member_of("m1")]) == [START_MS + 2]


def test_nobody_removes_a_member_whose_gateway_lives(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    one.join_members([member_of("m1"), member_of("m2")])
    gone = CommitBatch(members_removed=[("group", "m1", START_MS)])
    one.renew_lease(duration_ms=4000)
    # Who stood still may believe that it is dead.
    two.commit(gone)
    assert [member.member_id for member in one.load_members()] == ["m1", "m2"]
    world.time_ms += 4001
    two.commit(gone)
    assert [member.member_id for member in two.load_members()] == ["m2"]
    one.renew_lease(duration_ms=4000)
    one.commit(CommitBatch(members_removed=[("group", "m2", START_MS)]))
    assert one.load_members() == []


def test_a_lone_coordinator_counts_members_epochs_from_1(world: World) -> None:
    store = world.open(fleet=False)
    assert store.join_members([member_of("m1"), member_of("m2")]) == [1, 1]
    assert store.join_members([member_of("m2")]) == [2]
    store.commit(CommitBatch(members_removed=[("group", "m2", 2)]))
    assert store.join_members([member_of("m2")]) == [1]


def test_a_store_that_is_closed_says_so(world: World) -> None:
    store = world.open()
    store.close()
    with pytest.raises(InternalError, match="not open"):
        store.announce(address="a:1", peer_address="")
    with pytest.raises(InternalError, match="not open"):
        store.read_fleet()
