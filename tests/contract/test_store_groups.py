"""Groups, members, operations under traffic, and what people read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sharecoord.core.changes import (
    BlockedKey,
    CommitBatch,
    InFlightRow,
    JoinRefusal,
    LoadedPartition,
    PartitionCommit,
    PausesChanged,
)
from sharecoord.core.dispatch.pauses import PAUSES_MAX, WHOLE_GROUP, Pause, PauseScope
from sharecoord.core.limits import BLOCKED_KEYS_MAX
from sharecoord.errors import InvalidRequestError, LimitExceededError
from sharecoord.security.principals import NAME_CHARS_MAX, USER
from tests.contract.store_worlds import (
    START_MS,
    World,
    change_of,
    claim_partition,
    claimed,
    commit,
    head_of,
    initialize_partition,
    key_of,
    letter_of,
    member_of,
    open_partition,
    ranges,
    row_of,
)

# -- groups ---------------------------------------------------------------------------------------


def test_a_group_is_made_on_first_use(world: World) -> None:
    store = world.open()
    assert store.load_groups() == []
    group = store.ensure_group("group")
    assert (group.group_id, group.config, group.pauses) == ("group", {}, ())
    assert store.ensure_group("group") == group
    assert store.load_groups() == [group]


LONGEST = USER + "ü" * NAME_CHARS_MAX
"""The longest name that a principal can have."""


def test_a_group_knows_who_made_it(world: World) -> None:
    store = world.open()
    made = store.ensure_group("group", made_by=LONGEST)
    assert (made.made_by, made.config) == (LONGEST, {})
    # Whoever comes later has not made it.
    assert store.ensure_group("group", made_by="User:bob") == made
    assert store.ensure_group("group") == made
    changed = store.save_group_config("group", set_values={"a": "1"}, deleted=[])
    assert changed.made_by == LONGEST
    assert store.load_groups() == [changed]


def test_a_group_of_an_unknown_maker_gets_one(world: World) -> None:
    store = world.open()
    group = store.save_group_config("group", set_values={"a": "1"}, deleted=[])
    store.ensure_group("other")
    assert group.made_by == ""
    # Nobody acts on it: no coordinator has to look at the group again.
    assert store.ensure_group("group", made_by="User:alice") == replace(group, made_by="User:alice")
    assert [each.made_by for each in store.load_groups()] == ["User:alice", ""]


def test_a_group_that_is_made_again_is_of_its_new_maker(world: World) -> None:
    store = world.open()
    store.ensure_group("group", made_by="User:alice")
    store.save_group_config("group", set_values={"a": "1"}, deleted=[])
    assert store.delete_group("group")
    assert store.ensure_group("group").made_by == ""
    assert store.ensure_group("group", made_by="User:bob").made_by == "User:bob"


def test_overrides_are_merged_and_deleted(world: World) -> None:
    store = world.open()
    first = store.save_group_config("group", set_values={"a": "1", "ü": "ä\n"}, deleted=[])
    assert first.config == {"a": "1", "ü": "ä\n"}
    second = store.save_group_config("group", set_values={"b": "2"}, deleted=["a", "never set"])
    assert second.config == {"b": "2", "ü": "ä\n"}
    assert second.group_epoch == first.group_epoch + 1
    # A name in both ends up set.
    third = store.save_group_config("group", set_values={"b": "3"}, deleted=["b"])
    assert third.config == {"b": "3", "ü": "ä\n"}
    assert store.load_groups() == [third]


def test_an_answer_is_a_copy(world: World) -> None:
    store = world.open()
    store.save_group_config("group", set_values={"a": "1"}, deleted=[]).config["a"] = "changed"
    store.ensure_group("group").config.clear()
    store.load_groups()[0].config["b"] = "new"
    assert store.ensure_group("group").config == {"a": "1"}


def test_groups_come_in_order_of_id(world: World) -> None:
    store = world.open()
    for name in ["b", "é", "B", "a", "_"]:
        store.ensure_group(name)
    assert [group.group_id for group in store.load_groups()] == ["B", "_", "a", "b", "é"]


def test_pause_and_resume(world: World) -> None:
    store = world.open()
    epoch = store.save_group_config("group", set_values={"a": "1"}, deleted=[]).group_epoch
    topic = Pause(PauseScope("orders"), START_MS, "operator", "ü 'why'")
    place = Pause(PauseScope("orders", 0), START_MS, "operator")
    member = Pause(PauseScope(member_id="m 1"), START_MS, "flood breaker", "words")
    change = store.change_pauses("group", pause=[place, member, topic])
    assert change is not None
    paused = change.row
    assert (change.before, paused.pauses) == ((), (topic, place, member))
    assert (paused.paused, paused.group_epoch, paused.config) == (False, epoch + 1, {"a": "1"})
    assert store.load_groups() == [paused]
    # Again: the older one stays, and nothing is to be seen by anybody.
    again = store.change_pauses("group", pause=[topic._replace(since_ms=9)])
    assert again == PausesChanged(paused.pauses, paused)
    whole = store.change_pauses("group", pause=[Pause(WHOLE_GROUP, 1, "operator")])
    assert whole is not None
    assert whole.row.paused
    resumed = store.change_pauses("group", resume=[WHOLE_GROUP, PauseScope("orders"), WHOLE_GROUP])
    assert resumed is not None
    assert (resumed.row.pauses, resumed.row.group_epoch) == ((place, member), epoch + 3)
    assert store.change_pauses("group", resume=[WHOLE_GROUP]) == PausesChanged(
        resumed.row.pauses, resumed.row
    )


def test_a_group_that_is_not_there_is_not_paused(world: World) -> None:
    store = world.open()
    assert store.change_pauses("new", pause=[Pause(WHOLE_GROUP, 1, "operator")]) is None
    assert store.load_groups() == []


def test_a_group_has_so_many_pauses_and_no_more(world: World) -> None:
    store = world.open()
    store.ensure_group("group")
    most = [Pause(PauseScope("orders", n), 1, "operator") for n in range(PAUSES_MAX)]
    full = store.change_pauses("group", pause=most)
    assert full is not None
    with pytest.raises(LimitExceededError, match=r"1001 pauses in one group, 1000 is the most"):
        store.change_pauses("group", pause=[Pause(WHOLE_GROUP, 1, "operator")])
    assert store.load_groups() == [full.row]


def test_keys_are_blocked_and_unblocked(world: World) -> None:
    store = world.open()
    epoch = store.save_group_config("group", set_values={"a": "1"}, deleted=[]).group_epoch
    blocked = store.save_blocked_keys(
        "group", blocked={b"\x00\xff": "ticket 7", b"": ""}, unblocked=[]
    )
    first, second = BlockedKey(b"", START_MS, ""), BlockedKey(b"\x00\xff", START_MS, "ticket 7")
    assert blocked.blocked_keys == (first, second)
    assert (blocked.group_epoch, blocked.config) == (epoch + 1, {"a": "1"})
    assert store.load_groups() == [blocked]
    assert store.ensure_group("group") == blocked
    world.time_ms += 5
    again = store.save_blocked_keys(
        "group", blocked={b"\x00\xff": "ticket 8", b"k": ""}, unblocked=[b"", b"never"]
    )
    kept = second._replace(reason="ticket 8")
    assert again.blocked_keys == (kept, BlockedKey(b"k", START_MS + 5, ""))
    assert store.save_group_config("group", set_values={}, deleted=[]).blocked_keys == (
        again.blocked_keys
    )
    assert store.save_blocked_keys("new", blocked={b"k": ""}, unblocked=[]).group_id == "new"
    assert store.delete_group("group")
    assert store.ensure_group("group").blocked_keys == ()


def test_too_many_blocked_keys_are_refused_and_change_nothing(world: World) -> None:
    store = world.open()
    most = {b"%d" % number: "" for number in range(BLOCKED_KEYS_MAX)}
    full = store.save_blocked_keys("group", blocked=most, unblocked=[])
    with pytest.raises(LimitExceededError, match="1001 blocked keys; 1000 are allowed"):
        store.save_blocked_keys("group", blocked={b"one more": ""}, unblocked=[])
    assert store.load_groups() == [full]
    store.save_blocked_keys("group", blocked={b"one more": ""}, unblocked=[b"0"])


# -- one share-partition, whoever owns it ---------------------------------------------------------


class Change:
    """Deletes what it is about, and makes one range; keeps what it was shown."""

    def __init__(self, first: int, last: int, *, delayed_max: int | None = None) -> None:
        self.first, self.last, self.delayed_max = first, last, delayed_max
        self.passed_over: tuple[tuple[int, int], ...] = ((70, 71), (80, 80))
        self.shown: list[tuple[LoadedPartition, Sequence[InFlightRow]]] = []

    def decide(
        self, loaded: LoadedPartition, named: Sequence[InFlightRow]
    ) -> PartitionCommit | None:
        self.shown.append((loaded, named))
        assert loaded.row.head is not None
        change = change_of(loaded, head=replace(loaded.row.head, change_sequence=99))
        change.deleted = [row.first_offset for row in named]
        change.upserted = [row_of(500, 501, state=0)]
        change.passed_over = self.passed_over
        return change


def test_a_change_of_a_share_partition_is_seen_by_its_owner(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    loaded = claimed(one, key_of(0))
    rows = [row_of(n, n + 3, state=0) for n in (0, 10, 20)]
    delayed = [row_of(n, n, state=0, available_at_ms=START_MS + n) for n in (31, 32, 33)]
    commit(one, change_of(loaded, upserted=[*rows, *delayed]))
    one.ensure_group("group")
    epoch = one.read_fleet().group_epochs["group"]
    change = Change(12, 32, delayed_max=1)
    assert two.change_partition(key_of(0), change)
    ((shown, named),) = change.shown
    # All that it is about is shown, also what is left to the store.
    assert [row.first_offset for row in named] == [10, 20, 31, 32]
    assert [row.first_offset for row in shown.in_flight] == [0, 10, 20, 31]
    assert shown.parked.offsets.records == 2
    assert [row[:2] for row in ranges(one, loaded.row.partition_id)] == [
        (0, 3),
        (33, 33),
        (500, 501),
    ]
    (row,) = two.list_partitions("group")
    assert row.owner == "one"
    assert (row.owner_epoch, row.state_epoch) == (shown.row.owner_epoch, shown.row.state_epoch + 1)
    assert (row.passed_over, row.replay_epoch) == (change.passed_over, shown.row.replay_epoch)
    assert row.head is not None
    assert row.head.change_sequence == 99
    assert one.read_fleet().group_epochs["group"] == epoch + 1
    # The owner's next commit is fenced.
    assert one.commit(CommitBatch([change_of(loaded)])).fenced == {loaded.row.partition_id}


def test_a_change_that_decides_nothing_or_fails_changes_nothing(world: World) -> None:
    class Nothing(Change):
        def decide(self, loaded: LoadedPartition, named: Sequence[InFlightRow]) -> None:
            super().decide(loaded, named)

    class Refusing(Change):
        def decide(
            self, loaded: LoadedPartition, named: Sequence[InFlightRow]
        ) -> PartitionCommit | None:
            raise InvalidRequestError("not so")

    store = world.open()
    loaded = claimed(store, key_of(0))
    commit(store, change_of(loaded, upserted=[row_of(0, 9, state=0)]))
    store.ensure_group("group")
    before = (
        store.list_partitions("group"),
        store.load_groups(),
        ranges(store, loaded.row.partition_id),
    )
    assert store.change_partition(key_of(0), Nothing(0, 9))
    with pytest.raises(InvalidRequestError, match="not so"):
        store.change_partition(key_of(0), Refusing(0, 9))
    assert not store.change_partition(key_of(1), Change(0, 9))
    after = (
        store.list_partitions("group"),
        store.load_groups(),
        ranges(store, loaded.row.partition_id),
    )
    assert after == before


def test_a_reset_forgets_what_was_to_be_passed_over(world: World) -> None:
    store = world.open()
    claimed(store, key_of(0))
    assert store.change_partition(key_of(0), Change(0, 9))
    assert store.list_partitions("group")[0].passed_over
    store.reset_partitions({key_of(0): 3})
    assert store.list_partitions("group")[0].passed_over == ()


# -- members --------------------------------------------------------------------------------------


def test_a_join_fences_every_earlier_one(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    first = START_MS
    assert one.join_members([member_of("m1", epoch=77)]) == [first]
    assert two.join_members([member_of("m1", epoch=1)]) == [first + 1]
    assert one.join_members([member_of("m2")]) == [first]
    assert one.join_members([member_of("m1", group="other")]) == [first]
    assert two.load_members() == [
        member_of("m1", epoch=first + 1),
        member_of("m2", epoch=first),
        member_of("m1", group="other", epoch=first),
    ]


def test_a_member_is_the_principal_that_joined_first(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    nobody, alice, bob = (
        replace(member_of("m1"), principal=name) for name in ("", LONGEST, "User:bob")
    )
    assert one.join_members([nobody]) == [START_MS]
    assert one.join_members([alice]) == [START_MS + 1]
    for number, other in enumerate((bob, nobody)):
        together = [member_of("m0"), replace(other, join_number=9)]
        assert two.join_members(together) == [START_MS + number, JoinRefusal.ANOTHERS]
        assert one.load_members()[1] == replace(alice, member_epoch=START_MS + 1)
    assert two.join_members([alice]) == [START_MS + 2]
    one.commit(CommitBatch(members_removed=[("group", "m1", START_MS + 2)]))
    assert one.join_members([bob]) == [START_MS + 3]


def test_a_join_that_was_held_up_is_refused_by_its_number(world: World) -> None:
    one, two = world.open("one"), world.open("two")
    late, newest = (replace(member_of("m1"), join_number=number) for number in (1, 2))
    assert two.join_members([newest]) == [START_MS]
    refused = JoinRefusal.OVERTAKEN
    assert one.join_members([late, member_of("m2")]) == [refused, START_MS]
    stored = replace(newest, member_epoch=START_MS)
    assert one.load_members() == [stored, member_of("m2", epoch=START_MS)]
    # The same one again: its answer did not come.
    assert two.join_members([newest]) == [START_MS + 1]
    one.commit(CommitBatch(members_removed=[("group", "m1", START_MS + 1)]))
    assert one.join_members([late]) == [START_MS + 2]


def test_members_that_join_together_have_their_own_epochs(world: World) -> None:
    store = world.open(fleet=False)
    store.join_members([member_of("m2")])
    together = [member_of("m2"), member_of("m1"), member_of("m2", group="another")]
    assert store.join_members(together) == [2, 1, 1]
    assert [(m.group_id, m.member_id, m.member_epoch) for m in store.load_members()] == sorted(
        [("another", "m2", 1), (together[0].group_id, "m1", 1), (together[0].group_id, "m2", 2)]
    )
    assert store.join_members([]) == []


# -- reset ----------------------------------------------------------------------------------------


def test_a_reset_under_traffic(world: World) -> None:
    owner, operator = world.open("owner"), world.open("operator")
    loaded = claimed(owner)
    partition_id = loaded.row.partition_id
    before = owner.ensure_group("group").group_epoch
    commit(
        owner,
        change_of(
            loaded,
            head=head_of(2, 50, finished=9, sequence=40),
            upserted=[row_of(10, 19)],
            dead_letters=[letter_of(4)],
        ),
    )
    rows = operator.reset_partitions({key_of(): 1000})
    assert list(rows) == [key_of()]
    row = rows[key_of()]
    assert row.head is not None
    assert (row.head.start_offset, row.head.end_offset, row.head.finished_count) == (1000, 1000, 0)
    assert (row.head.end_leader_epoch, row.head.change_sequence) == (-1, 41)
    assert row.state_epoch == row.replay_epoch == loaded.row.state_epoch + 1
    assert (row.owner, row.owner_epoch) == ("owner", loaded.row.owner_epoch)
    assert operator.ensure_group("group").group_epoch == before + 1

    # The owner sees it at its next commit, of which nothing is written, and reloads.
    assert commit(owner, change_of(loaded, upserted=[row_of(20, 29)])) == {partition_id}
    again = claim_partition(owner, partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert again.row.head == row.head
    assert again.in_flight == ()
    assert again.dead_letters == (letter_of(4),)
    assert commit(owner, change_of(again, head=head_of(1000, 1010))) == frozenset()


def test_a_reset_makes_what_is_missing(world: World) -> None:
    store = world.open()
    rows = store.reset_partitions({key_of(1): 5, key_of(0): 0, key_of(0, group="new"): 7})
    starts = {key: row.head.start_offset for key, row in rows.items() if row.head is not None}
    assert starts == {key_of(1): 5, key_of(0): 0, key_of(0, group="new"): 7}
    assert store.list_partitions("group") == [rows[key_of(0)], rows[key_of(1)]]
    assert [group.group_id for group in store.load_groups()] == ["group", "new"]
    assert store.reset_partitions({}) == {}


def test_a_reset_opens_what_was_stopped_or_closed(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    epoch = loaded.row.owner_epoch
    store.stop_partition(loaded.row.partition_id, owner_epoch=epoch, reason="LOG_REGRESSED")
    store.close_partition(loaded.row.partition_id, owner_epoch=epoch)
    row = store.reset_partitions({key_of(): 3})[key_of()]
    assert (row.stopped_reason, row.closed) == ("", False)


# -- delete ---------------------------------------------------------------------------------------


def test_topics_of_a_group_are_deleted(world: World) -> None:
    store = world.open()
    doomed = [claimed(store, key_of(n)) for n in range(2)]
    doomed.append(claimed(store, key_of(0, topic_id="")))
    kept = claimed(store, key_of(0, topic="kept"))
    other = claimed(store, key_of(0, group="other"))
    for loaded in [*doomed, kept, other]:
        commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    assert store.delete_topics("group", ["orders", "no such topic"]) == 3
    assert [row.key for row in store.list_partitions("group")] == [kept.row.key]
    for loaded in doomed:
        assert ranges(store, loaded.row.partition_id) == []
        assert commit(store, change_of(loaded)) == {loaded.row.partition_id}
    for loaded in (kept, other):
        assert ranges(store, loaded.row.partition_id) == [row_of(0, 4)]
    assert store.delete_topics("group", ["orders"]) == 0
    assert store.delete_topics("group", []) == 0


def test_an_outbox_outlives_its_topics_deletion(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(
        store,
        change_of(
            loaded,
            head=head_of(0, 9, sequence=5),
            upserted=[row_of(0, 4)],
            dead_letters=[letter_of(7)],
        ),
    )
    assert store.delete_topics("group", ["orders"]) == 1
    assert commit(store, change_of(loaded)) == {loaded.row.partition_id}
    row = open_partition(store, key_of())
    assert (row.partition_id, row.head) == (loaded.row.partition_id, None)
    again = claim_partition(store, row.partition_id, incarnation=2, previous_incarnation=1)
    assert again is not None
    assert (again.in_flight, again.dead_letters) == ((), (letter_of(7),))
    assert initialize_partition(
        store, row.partition_id, owner_epoch=again.row.owner_epoch, head=head_of(3, 3, sequence=6)
    )
    assert store.list_partitions("group")[0].head == head_of(3, 3, sequence=6)


def test_a_group_is_deleted_with_everything_under_it(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    commit(store, change_of(loaded, upserted=[row_of(0, 4)]))
    store.save_group_config("group", set_values={"a": "1"}, deleted=[])
    store.join_members([member_of("m1")])
    other = claimed(store, key_of(group="other"))
    store.ensure_group("other")
    store.join_members([member_of("m1", group="other")])
    assert store.delete_group("group")
    assert not store.delete_group("group")
    assert store.list_partitions("group") == []
    assert ranges(store, loaded.row.partition_id) == []
    assert store.count_in_flight(loaded.row.partition_id) == {}
    assert [group.group_id for group in store.load_groups()] == ["other"]
    assert [member.group_id for member in store.load_members()] == ["other"]
    assert commit(store, change_of(loaded)) == {loaded.row.partition_id}
    assert commit(store, change_of(other)) == frozenset()


def test_an_outbox_outlives_its_groups_deletion(world: World) -> None:
    store = world.open()
    loaded, plain = claimed(store), claimed(store, key_of(1))
    letters = change_of(
        loaded, head=head_of(0, 9), upserted=[row_of(0, 4)], dead_letters=[letter_of(7)]
    )
    commit(store, letters)
    store.save_group_config("group", set_values={"a": "1"}, deleted=[])
    store.join_members([member_of("m1")])
    assert store.delete_group("group")
    # Nothing is left but the outbox, and that is no group.
    assert store.load_groups() == []
    assert store.load_members() == []
    (row,) = store.list_partitions("group")
    assert (row.partition_id, row.head) == (loaded.row.partition_id, None)
    assert ranges(store, row.partition_id) == []
    assert not store.delete_group("group")
    assert commit(store, change_of(loaded), change_of(plain)) == {
        loaded.row.partition_id,
        plain.row.partition_id,
    }
    # A group of this name finds it again.
    again = claimed(store)
    assert again.row.partition_id == loaded.row.partition_id
    assert (again.in_flight, again.dead_letters) == ((), (letter_of(7),))
    assert again.row.owner_epoch > loaded.row.owner_epoch
    commit(store, change_of(again, dead_letters_done=[7]))
    assert store.delete_group("group")
    assert store.list_partitions("group") == []


def test_what_is_made_again_repeats_no_id_and_no_epoch(world: World) -> None:
    store = world.open()
    old = claimed(store)
    for incarnation in range(2, 6):
        again = claim_partition(
            store, old.row.partition_id, incarnation=incarnation, previous_incarnation=None
        )
        assert again is not None
        old = again
    state_epoch = store.reset_partitions({key_of(): 5})[key_of()].state_epoch
    for value in range(20):
        store.save_group_config("group", set_values={"a": str(value)}, deleted=[])
    group_epoch = store.ensure_group("group").group_epoch
    assert store.delete_group("group")
    new = claimed(store)
    assert new.row.partition_id != old.row.partition_id
    assert new.row.owner_epoch > old.row.owner_epoch
    assert new.row.state_epoch >= state_epoch
    assert new.row.replay_epoch >= state_epoch
    assert store.ensure_group("group").group_epoch >= group_epoch
    assert new.dead_letters == ()


# -- reads for people -----------------------------------------------------------------------------


def test_partitions_come_by_topic_and_partition(world: World) -> None:
    store = world.open()
    keys = [key_of(10), key_of(2), key_of(0, topic="a"), key_of(2, topic_id="")]
    rows = [open_partition(store, key) for key in keys]
    assert store.list_partitions("group") == [rows[2], rows[1], rows[3], rows[0]]
    assert store.list_partitions("nobody") == []


def test_ranges_are_read_in_pages(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    partition_id = loaded.row.partition_id
    rows = [row_of(first, first + 4) for first in range(0, 50, 10)]
    commit(store, change_of(loaded, upserted=rows))

    def page(from_offset: int, max_rows: int) -> list[int]:
        read = store.read_in_flight(partition_id, from_offset=from_offset, max_rows=max_rows)
        return [row.first_offset for row in read]

    assert page(0, 2) == [0, 10]
    assert page(14, 100) == [10, 20, 30, 40]
    assert page(15, 2) == [20, 30]
    assert page(45, 10) == []
    assert store.read_in_flight(partition_id + 99, from_offset=0, max_rows=9) == []


def test_records_are_counted_by_state(world: World) -> None:
    store = world.open()
    loaded = claimed(store)
    partition_id = loaded.row.partition_id
    assert store.count_in_flight(partition_id) == {}
    rows = [
        row_of(0, 9),
        row_of(10, 10),
        row_of(11, 13, state=0),
        row_of(14, 14, state=0, available_at_ms=START_MS),
        row_of(15, 20, state=0, available_at_ms=START_MS + 1),
        row_of(21, 21, state=3),
        row_of(22, 26, state=4, available_at_ms=START_MS + 99),
    ]
    commit(store, change_of(loaded, upserted=rows))
    assert store.count_in_flight(partition_id) == {1: 11, 0: 4, -1: 6, 3: 1, 4: 5}
    world.time_ms += 1
    assert store.count_in_flight(partition_id) == {1: 11, 0: 10, 3: 1, 4: 5}
