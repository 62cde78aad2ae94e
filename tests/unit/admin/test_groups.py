"""Lists, descriptions, settings and deletion of groups."""

from __future__ import annotations

import asyncio

import pytest

from sharecoord.config.group import GroupSource
from sharecoord.core.partition.decisions import AcknowledgedRange
from sharecoord.core.states import AcknowledgeType, RecordState
from sharecoord.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidRequestError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.admin.groups import GroupListing, GroupState
from sharecoord.runtime.admin.in_flight import PartitionName
from sharecoord.runtime.admin.reset import ResetKind, ResetTo
from sharecoord.security.principals import Caller, Identity, Principal
from tests.unit.admin.support import INFO, Bench, virtual

ORDERS = PartitionName("orders", 0)

LOCK = "share.record.lock.duration.ms"


@virtual
async def test_groups_are_listed_by_name_and_state(bench: Bench) -> None:
    assert await bench.admin.list_groups() == []
    await bench.member(group="b")
    await bench.admin.alter_group_configs("a", {LOCK: "20000"}, [])
    listed = await bench.admin.list_groups()
    assert listed == [
        GroupListing("a", GroupState.EMPTY, has_settings=True),
        GroupListing("b", GroupState.STABLE),
    ]
    assert await bench.admin.list_groups([GroupState.EMPTY]) == listed[:1]
    assert await bench.admin.list_groups([GroupState.DEAD]) == []


@virtual
async def test_a_description_tells_who_members_are(bench: Bench) -> None:
    for name, principal in (("m1", "User:alice"), ("m2", "User:bob")):
        caller = Caller(Identity(Principal(principal)))
        await bench.world.joined(bench.coordinator, name, caller=caller)
    (group,) = await bench.admin.describe_groups(["g"])
    assert [(each.member_id, each.principal) for each in group.members] == [
        ("m1", "User:alice"),
        ("m2", "User:bob"),
    ]


@virtual
async def test_a_description_counts_what_is_in_flight(bench: Bench) -> None:
    member = await bench.member()
    first = (await member.take(100))[0]
    await member.acknowledge(first, first=first.ranges[0].first, last=first.ranges[0].first)
    await member.acknowledge(first, AcknowledgeType.REJECT, first=50, last=51)
    (group,) = await bench.admin.describe_groups(["g"])
    assert (group.state, group.member_count, group.error) == (GroupState.STABLE, 1, None)
    partition = group.partitions[0]
    assert (partition.start_offset, partition.log_end_offset) == (1, 100)
    assert partition.archived_records in (0, 2)
    assert partition.acquired_records == 97
    assert partition.lag == 97
    (described,) = group.members
    assert (described.member_id, described.client_id) == ("m1", "client-m1")
    assert described.assignment == {"orders": (0, 1)}
    assert described.acquired_records == 97
    assert (described.delivered_total, described.acknowledged_total) == (100, 3)


@virtual
async def test_the_lag_is_kafkas_even_while_reading_is_held_back(bench: Bench) -> None:
    member = await bench.member()
    await member.next_delivery()
    bench.log.append("orders", 1_000)
    actor = bench.coordinator.groups["g"].partitions["orders", 0]
    actor.log.end_offset = 100
    assert (await bench.partition()).lag == 1_100


@virtual
async def test_without_kafka_the_last_known_log_end_is_shown(bench: Bench) -> None:
    member = await bench.member()
    await member.take(100)
    bench.log.set_down(down=True)
    partition = await bench.partition()
    assert (partition.log_end_offset, partition.lag) == (100, 100)


@virtual
async def test_an_unknown_group_is_answered_inside(bench: Bench) -> None:
    await bench.member()
    known, unknown = await bench.admin.describe_groups(["g", "nobody", "g"])
    assert known.group_id == "g"
    assert (unknown.state, unknown.group_id) == (GroupState.DEAD, "nobody")
    assert isinstance(unknown.error, GroupNotFoundError)


@virtual
async def test_only_what_is_asked_for_is_described(bench: Bench) -> None:
    await bench.member()
    (group,) = await bench.admin.describe_groups(include_members=False, include_offsets=False)
    assert (group.members, group.partitions, group.member_count) == ((), (), 1)


@virtual
async def test_settings_are_stored_as_canonical_text_and_act_at_once(bench: Bench) -> None:
    await bench.member()
    await bench.admin.alter_group_configs("g", {LOCK: "20s"}, [])
    live = bench.coordinator.groups["g"]
    assert live.config.lock_duration_ms == 20_000
    assert bench.world.store.ensure_group("g").config == {LOCK: "20000"}
    entries = {entry.name: entry for entry in await bench.admin.describe_group_configs("g")}
    assert (entries[LOCK].value, entries[LOCK].source) == ("20000", GroupSource.GROUP)
    await bench.admin.alter_group_configs("g", {}, [LOCK])
    assert live.config.lock_duration_ms == 30_000
    assert live.settings.lock_duration_ms == 30_000


@virtual
async def test_settings_can_be_set_before_the_group_exists(bench: Bench) -> None:
    entries = {entry.name: entry for entry in await bench.admin.describe_group_configs("new")}
    assert entries["share.auto.offset.reset"].source is GroupSource.COORDINATOR
    await bench.admin.alter_group_configs("new", {"share.auto.offset.reset": "latest"}, [])
    await bench.member(group="new")
    await asyncio.sleep(1)
    assert (await bench.partition(group="new")).start_offset == 100


@virtual
async def test_bad_settings_change_nothing(bench: Bench) -> None:
    alter = bench.admin.alter_group_configs
    with pytest.raises(InvalidConfigError, match=LOCK):
        await alter("g", {LOCK: "soon", "share.delivery.count.limit": "7"}, [])
    with pytest.raises(InvalidConfigError, match=r"share\.delivery\.count\.limit"):
        await alter("g", {}, ["share.delivery.count.limits"])
    with pytest.raises(InvalidConfigError, match=r"share\.session\.timeout\.ms"):
        await alter(
            "g",
            {"share.session.timeout.ms": "5000", "share.heartbeat.interval.ms": "6000"},
            [],
        )
    with pytest.raises(InvalidRequestError, match="set and deleted at once"):
        await alter("g", {LOCK: "20s"}, [LOCK])
    await alter("g", {LOCK: "20s"}, [], validate_only=True)
    assert await bench.admin.list_groups() == []


@virtual
async def test_changes_at_the_same_time_do_not_undo_each_other(bench: Bench) -> None:
    names = [LOCK, "share.delivery.count.limit", "share.session.timeout.ms"]
    values = ["20000", "7", "50000"]
    pairs = zip(names, values, strict=True)
    await asyncio.gather(*(bench.admin.alter_group_configs("g", {n: v}, []) for n, v in pairs))
    config = bench.coordinator.groups["g"].config
    assert (config.lock_duration_ms, config.delivery_count_limit) == (20_000, 7)
    assert config.session_timeout_ms == 50_000


@virtual
async def test_a_failed_write_leaves_the_live_group_as_stored(bench: Bench) -> None:
    await bench.member()
    error = StoreUnavailableError("database is away")
    bench.world.store.fail_next(error, method="save_group_config")
    with pytest.raises(StoreUnavailableError):
        await bench.admin.alter_group_configs("g", {LOCK: "20s"}, [])
    assert bench.coordinator.groups["g"].config.lock_duration_ms == 30_000


@virtual
async def test_deleted_offsets_start_again_by_the_reset_policy(bench: Bench) -> None:
    member = await bench.member()
    for delivery in await member.take(100):
        await member.acknowledge(delivery)
    with pytest.raises(GroupNotEmptyError, match="1 member subscribed to 'orders'"):
        await bench.admin.delete_offsets("g", ["orders"])
    await bench.leave(member)
    results = await bench.admin.delete_offsets("g", ["orders", "nowhere"])
    assert results["orders"] is None
    assert isinstance(results["nowhere"], UnknownTopicOrPartitionError)
    (group,) = await bench.admin.describe_groups(["g"])
    assert group.partitions == ()
    again = await bench.member("m2")
    assert (await again.next_delivery()).ranges[0].first == 0


@virtual
async def test_offsets_of_a_topic_nobody_reads_go_while_others_work(bench: Bench) -> None:
    bench.log.create("other")
    await bench.member()
    await bench.reset(ResetTo(ResetKind.EARLIEST), force=True, other=())
    assert await bench.admin.delete_offsets("g", ["other"]) == {"other": None}
    (group,) = await bench.admin.describe_groups(["g"])
    assert {p.topic for p in group.partitions} == {"orders"}


@virtual
async def test_a_failed_deletion_leaves_the_offsets(bench: Bench) -> None:
    member = await bench.member()
    for delivery in await member.take(100):
        await member.acknowledge(delivery)
    await bench.leave(member)
    bench.world.store.fail_next(StoreUnavailableError("away"), method="delete_topics")
    with pytest.raises(StoreUnavailableError):
        await bench.admin.delete_offsets("g", ["orders"])
    bench.log.append("orders", 1)
    again = await bench.member("m2")
    assert (await again.next_delivery()).ranges[0].first == 100


@virtual
async def test_groups_are_deleted_one_by_one(bench: Bench) -> None:
    await bench.member(group="busy")
    member = await bench.member("m2", group="idle")
    await member.next_delivery()
    await bench.leave(member)
    results = await bench.admin.delete_groups(["busy", "idle", "nobody"])
    assert isinstance(results["busy"], GroupNotEmptyError)
    assert results["idle"] is None
    assert isinstance(results["nobody"], GroupNotFoundError)
    assert [g.group_id for g in await bench.admin.list_groups()] == ["busy"]
    assert "idle" not in bench.coordinator.groups
    again = await bench.member("m3", group="idle")
    delivery = await again.next_delivery()
    assert (delivery.ranges[0].first, delivery.ranges[0].delivery_count) == (0, 1)


@virtual
async def test_a_group_that_could_not_be_deleted_goes_on(bench: Bench) -> None:
    member = await bench.member()
    await member.next_delivery()
    await bench.leave(member)
    bench.world.store.fail_next(StoreUnavailableError("away"), method="delete_group")
    results = await bench.admin.delete_groups(["g"])
    assert isinstance(results["g"], StoreUnavailableError)
    again = await bench.member("m2")
    assert (await again.next_delivery()).ranges[0].delivery_count == 2


@virtual
async def test_checkpoints_are_counted_by_range(bench: Bench) -> None:
    """Their content is the worker's own: it is not shown."""
    member = await bench.member()
    (delivery, *_) = await member.take(100)
    for offset, data in ((0, b""), (7, b"seven"), (99, b"the last")):
        said = AcknowledgedRange(
            offset, offset, AcknowledgeType.RENEW, delivery.ranges[0].lock_token, checkpoint=data
        )
        await member.send([(delivery.key.topic, delivery.key.topic_id, 0, [said])])
    await member.acknowledge(delivery, AcknowledgeType.ACCEPT, first=20, last=29)

    async def listed(**which: int) -> list[tuple[int, int, tuple[int, int]]]:
        found = await bench.admin.list_in_flight("g", ORDERS, **which)
        return [(r.first_offset, r.last_offset, (r.checkpoints, r.checkpoint_bytes)) for r in found]

    every = await listed()
    assert [each for each in every if each[2][0]] == [
        (0, 0, (1, 0)),
        (7, 7, (1, 5)),
        (99, 99, (1, 8)),
    ]
    assert await listed(from_offset=7, max_ranges=2) == every[2:4]


@virtual
async def test_ranges_in_flight_are_listed_in_pages(bench: Bench) -> None:
    member = await bench.member()
    (delivery, *_) = await member.take(100)
    for offset in (10, 20, 30):
        await member.acknowledge(delivery, AcknowledgeType.ACCEPT, first=offset, last=offset)
    found = await bench.admin.list_in_flight("g", ORDERS, max_ranges=2)
    assert [(r.first_offset, r.last_offset) for r in found] == [(0, 9), (11, 19)]
    first = found[0]
    assert (first.state, first.member_id) == (RecordState.ACQUIRED, "m1")
    assert first.lock_remaining_ms is not None
    assert 0 < first.lock_remaining_ms <= 30_000
    rest = await bench.admin.list_in_flight("g", ORDERS, from_offset=20)
    assert [(r.first_offset, r.last_offset) for r in rest] == [(21, 29), (31, 99)]
    assert {each.checkpoints for each in (*found, *rest)} == {0}


@virtual
async def test_listing_what_is_not_there_names_it(bench: Bench) -> None:
    listing = bench.admin.list_in_flight
    with pytest.raises(GroupNotFoundError):
        await listing("g", ORDERS)
    await bench.member()
    with pytest.raises(UnknownTopicOrPartitionError, match=r"orders\[9\]"):
        await listing("g", PartitionName("orders", 9))
    with pytest.raises(UnknownTopicOrPartitionError):
        await listing("g", PartitionName("orders", 0, "00" * 16))
    with pytest.raises(InvalidRequestError, match="max_ranges is 10001"):
        await listing("g", ORDERS, max_ranges=10_001)
    with pytest.raises(InvalidRequestError, match="from_offset is -1"):
        await listing("g", ORDERS, from_offset=-1)


@virtual
async def test_nothing_named_is_an_error(bench: Bench) -> None:
    with pytest.raises(InvalidRequestError, match="group_ids is empty"):
        await bench.admin.delete_groups([])
    with pytest.raises(InvalidRequestError, match="topics is empty"):
        await bench.admin.delete_offsets("g", [])


@virtual
async def test_the_coordinator_describes_itself(bench: Bench) -> None:
    await asyncio.sleep(5)
    view = await bench.admin.describe_coordinator()
    assert (view.coordinator_id, view.info) == ("c1", INFO)
    assert 5_000 <= view.uptime_ms < 6_000
