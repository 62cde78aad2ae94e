"""A replay: exactly the part that was asked for goes to the side group, then nothing more."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidRequestError,
    KafkaUnavailableError,
    LimitExceededError,
    UnknownTopicOrPartitionError,
)
from sharecoord.runtime.admin.admin import Admin
from sharecoord.runtime.admin.replay import OffsetRange, ReplayCommand
from sharecoord.runtime.letters.lanes import SPANS_MAX
from sharecoord.testing.harness import FakeMember
from tests.unit.admin.support import INFO, Bench, virtual
from tests.unit.runtime.worlds import now_s, offsets, until

ACCEPT = AcknowledgeType.ACCEPT
TIMES = ReplayCommand("g", "side", {"orders": (0,)}, from_ms=1_020, to_ms=1_050)


async def all_of(bench: Bench, member: FakeMember, count: int) -> list[int]:
    """The offsets that a member gets and accepts."""
    found: list[int] = []
    while len(found) < count:
        delivery = await member.next_delivery()
        found += offsets(delivery)
        await member.settle(delivery, ACCEPT)
    return found


@virtual
async def test_a_range_of_times_goes_to_the_side_group_and_nothing_else(bench: Bench) -> None:
    first = await bench.member()
    await all_of(bench, first, 100)
    before = await bench.partition()
    planned = await bench.admin.replay(replace(TIMES, dry_run=True))
    assert [(p.start_offset, p.stops_at, p.records) for p in planned] == [(20, 50, 30), (0, 0, 0)]
    assert [group.group_id for group in await bench.admin.list_groups()] == ["g"]
    assert await bench.admin.replay(TIMES) == planned
    view = await bench.partition(group="side")
    assert (view.start_offset, view.stops_at, view.lag) == (20, 50, 30)
    member = await bench.member("m2", "side")
    bench.log.append("orders", 50)
    bench.log.append("orders", 50, partition=1)
    assert await all_of(bench, member, 30) == list(range(20, 50))
    with pytest.raises(TimeoutError):
        await member.next_delivery(30)
    view = await bench.partition(group="side")
    assert (view.start_offset, view.lag) == (50, 0)
    assert (await bench.partition()).start_offset == before.start_offset


@virtual
async def test_what_is_added_to_the_topic_is_not_replayed(bench: Bench) -> None:
    await bench.member()
    await bench.admin.replay(TIMES)
    member = await bench.member("m2", "side")
    await all_of(bench, member, 30)
    bench.log.create("orders", 3)
    bench.log.append("orders", 10, partition=2)
    await until(lambda: ("orders", 2) in bench.coordinator.groups["side"].partitions, step_s=0.5)
    with pytest.raises(TimeoutError):
        await member.next_delivery(30)


@virtual
async def test_single_offsets_are_replayed(bench: Bench) -> None:
    await bench.member()
    bench.log.append("orders", 5, partition=1)
    found = ((0, 7, 7), (0, 90, 92), (1, 4, 4), (0, 8, 9))
    wanted = tuple(OffsetRange("orders", *each) for each in found)
    parts = await bench.admin.replay(ReplayCommand("g", "side", offsets=wanted))
    assert [(p.key.partition, p.records, p.stops_at) for p in parts] == [(0, 6, 93), (1, 1, 5)]
    member = await bench.member("m2", "side")
    got: set[tuple[int, int]] = set()
    while len(got) < 7:
        delivery = await member.next_delivery()
        got |= {(delivery.key.partition, offset) for offset in offsets(delivery)}
        await member.settle(delivery, ACCEPT)
    assert got == {(0, 7), (0, 8), (0, 9), (0, 90), (0, 91), (0, 92), (1, 4)}
    with pytest.raises(TimeoutError):
        await member.next_delivery(30)


@virtual
async def test_records_that_are_gone_meanwhile_are_left_out(bench: Bench) -> None:
    await bench.member()
    await bench.admin.replay(TIMES)
    bench.log.compact("orders", [*range(22, 30), *range(45, 60)])
    bench.log.move_log_start("orders", 21)
    member = await bench.member("m2", "side")
    assert await all_of(bench, member, 16) == [21, *range(30, 45)]
    await until(lambda: bench.world.start_offset("side", "orders") == 50, step_s=0.1)


@virtual
async def test_a_rate_is_kept_and_failures_do_not_lose(bench: Bench) -> None:
    await bench.member()
    await bench.admin.replay(replace(TIMES, rate_per_s=10))
    member, began_s, got = await bench.member("m2", "side"), now_s(), 0
    assert (await bench.partition(group="side")).rate_limit == 10
    while got < 30:
        delivery = await member.next_delivery()
        got += delivery.records
        assert got <= (now_s() - began_s) * 10 + 2
        await member.settle(delivery, ACCEPT)
    assert 2.7 <= now_s() - began_s <= 3.5


@virtual
async def test_a_finished_replay_makes_room_for_another(bench: Bench) -> None:
    await bench.member()
    await bench.admin.replay(TIMES)
    with pytest.raises(GroupNotEmptyError, match="not finished"):
        await bench.admin.replay(TIMES)
    member = await bench.member("m2", "side")
    await all_of(bench, member, 30)
    with pytest.raises(GroupNotEmptyError, match="1 member"):
        await bench.admin.replay(TIMES)
    await bench.leave(member)
    again = replace(TIMES, from_ms=1_010, to_ms=1_012)
    await bench.admin.replay(again)
    member = await bench.member("m3", "side")
    assert await all_of(bench, member, 2) == [10, 11]


@virtual
async def test_a_group_with_records_of_its_own_is_no_side_group(bench: Bench) -> None:
    await bench.member()
    other = await bench.member("m2", "own")
    await all_of(bench, other, 100)
    await bench.leave(other)
    with pytest.raises(GroupNotEmptyError, match="records of its own"):
        await bench.admin.replay(replace(TIMES, into_group_id="own"))


@virtual
async def test_settings_are_copied_when_asked_for(bench: Bench) -> None:
    await bench.admin.alter_group_configs("g", {"share.record.lock.duration.ms": "60000"}, [])
    await bench.admin.replay(TIMES)
    await bench.admin.replay(replace(TIMES, into_group_id="side2", with_settings=True))
    groups = {row.group_id: row.config for row in bench.world.store.load_groups()}
    assert groups["side"] == {}
    assert groups["side2"] == {"share.record.lock.duration.ms": "60000"}


@virtual
async def test_a_replay_goes_on_after_a_crash(bench: Bench) -> None:
    await bench.member()
    await bench.admin.replay(TIMES)
    member = await bench.member("m2", "side")
    (delivery,) = await member.take(1)
    await bench.world.kill(bench.coordinator)
    bench.coordinator = await bench.world.start("c2")
    await member.join(bench.coordinator, "side", ("orders",), max_poll_records=500)
    await member.settle(delivery, ACCEPT)
    rest = await all_of(bench, member, 30 - delivery.records) if delivery.records < 30 else []
    assert sorted([*offsets(delivery), *rest]) == list(range(20, 50))
    await bench.coordinator.close()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"group_id": "nobody"}, GroupNotFoundError, "nobody"),
    ({"into_group_id": "g"}, InvalidRequestError, "group itself"),
    ({"topics": {"nothing": ()}}, UnknownTopicOrPartitionError, "'nothing'"),
    ({"topics": {"orders": (9,)}}, UnknownTopicOrPartitionError, "no partition 9"),
    ({"topics": {}}, InvalidRequestError, "topics is empty"),
    ({"from_ms": 1_050, "to_ms": 1_050}, InvalidRequestError, "nothing lies between"),
    ({"from_ms": -1}, InvalidRequestError, "from_ms is -1"),
    ({"duration_ms": 5}, InvalidRequestError, "exclude"),
    ({"from_ms": None, "to_ms": None}, InvalidRequestError, "range of times or offsets"),
    ({"offsets": (OffsetRange("orders", 0, 0, 1),)}, InvalidRequestError, "times or offsets"),
    ({"rate_per_s": 2_000_000}, InvalidRequestError, "rate_per_s"),
]
BAD_OFFSETS: list[tuple[list[OffsetRange], type[Exception], str]] = [
    ([OffsetRange("orders", 0, 99, 100)], InvalidRequestError, "which has 0 to 99"),
    ([OffsetRange("orders", 0, 6, 5)], InvalidRequestError, "6 to 5 of .* is no range"),
    ([OffsetRange("orders", 1, 0, 0)], UnknownTopicOrPartitionError, "not among"),
    (
        [OffsetRange("orders", 0, n, n) for n in range(SPANS_MAX + 1)],
        LimitExceededError,
        "50000 are the most",
    ),
]


@virtual
async def test_bad_replays_are_refused_one_clear_error_each(bench: Bench) -> None:
    await bench.member()
    for change, kind, match in BAD:
        with pytest.raises(kind, match=match):
            await bench.admin.replay(replace(TIMES, **change))
    for found, kind, match in BAD_OFFSETS:
        command = ReplayCommand("g", "side", {"orders": (0,)}, offsets=tuple(found))
        with pytest.raises(kind, match=match):
            await bench.admin.replay(command)
    bench.log.set_down(down=True)
    with pytest.raises(KafkaUnavailableError):
        await bench.admin.replay(TIMES)
    assert [group.group_id for group in await bench.admin.list_groups()] == ["g"]


@virtual
async def test_what_is_written_behind_a_truncation_is_not_part_of_a_replay(bench: Bench) -> None:
    await bench.member()
    await bench.admin.replay(TIMES)
    member = await bench.member("m2", "side")
    await member.take(30)
    await bench.world.kill(bench.coordinator)
    bench.log.log("orders").log_end = 30
    bench.coordinator = await bench.world.start()
    bench.admin = Admin(bench.coordinator, INFO)
    again = await bench.member("m3", "side")
    assert await all_of(bench, again, 10) == list(range(20, 30))
    bench.log.append("orders", 50)
    with pytest.raises(TimeoutError):
        await again.next_delivery(30)
    view = await bench.partition(group="side")
    assert (view.start_offset, view.stops_at, view.lag) == (30, 30, 0)


def cut(bench: Bench, offset: int, end: int) -> None:
    """The log loses its end and grows again; no turn of the loop sees it shorter."""
    bench.log.truncate("orders", offset)
    bench.log.append("orders", end - offset)
    bench.world.ledger.truncated(bench.world.partition("side", "orders"), offset)


@virtual
async def test_what_a_cut_log_has_in_their_place_is_not_replayed(bench: Bench) -> None:
    bench.log.compares_epochs = True
    await bench.member()
    await bench.admin.replay(TIMES)
    member = bench.world.member("m2")
    await member.join(bench.coordinator, "side", ("orders",), max_poll_records=10, credit=10)
    await member.take(10)
    await bench.world.kill(bench.coordinator)
    cut(bench, 25, 150)
    bench.coordinator = await bench.world.start()
    bench.admin = Admin(bench.coordinator, INFO)
    again = await bench.member("m3", "side")
    assert await all_of(bench, again, 5) == list(range(20, 25))
    with pytest.raises(TimeoutError):
        await again.next_delivery(30)
    view = await bench.partition(group="side")
    assert (view.start_offset, view.stops_at, view.lag) == (25, 25, 0)


@virtual
async def test_what_is_read_again_for_a_replay_is_not_another_record(bench: Bench) -> None:
    """All was read, so nothing reads on; a re-read shows that the log was cut, with any reader."""
    await bench.member()
    await bench.admin.replay(TIMES)
    member = await bench.member("m2", "side")
    (delivery,) = await member.take(30)
    bench.coordinator.groups["side"].partitions["orders", 0].cache.clear()
    cut(bench, 30, 150)
    await member.settle(delivery, AcknowledgeType.RELEASE)
    assert await all_of(bench, member, 10) == list(range(20, 30))
    with pytest.raises(TimeoutError):
        await member.next_delivery(30)
    view = await bench.partition(group="side")
    assert (view.start_offset, view.stops_at, view.lag) == (30, 30, 0)
