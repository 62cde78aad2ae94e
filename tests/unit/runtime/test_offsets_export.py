"""Offsets for the lag of other tools: what is written when, and which names are refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import structlog

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import PartitionResult
from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotEmptyError,
    InvalidConfigError,
    KafkaUnavailableError,
    SharecoordError,
    StoreUnavailableError,
)
from sharecoord.ports import CommittedOffset
from sharecoord.runtime.admin.admin import Admin, CoordinatorInfo
from sharecoord.runtime.coordinator import Coordinator
from sharecoord.runtime.group import offsets_export
from sharecoord.runtime.group.offsets_export import (
    EXPORT_INTERVAL_S,
    LOOK_INTERVAL_S,
    ExportFigures,
)
from sharecoord.testing.harness import FakeMember
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import now_s, until, world_with
from tests.world import TOPICS, World, actor_of

SETTING = "share.offsets.export.group"
NAME = "sharecoord.g"
PLACE = ("orders", 0)
ROUND_S = EXPORT_INTERVAL_S + 0.5
LOOK_S = LOOK_INTERVAL_S + 2 * ROUND_S


class FakeGroups:
    """Consumer groups of a Kafka, as `ports.OffsetsExport` sees them."""

    def __init__(self) -> None:
        self.groups: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        self.with_members: set[str] = set()
        self.share_groups: set[str] = set()
        self.unknown: set[tuple[str, int]] = set()
        self.down = False
        self.answer_s = 0.01
        self.reads_s: list[float] = []
        self.writes: list[tuple[float, str, dict[tuple[str, int], CommittedOffset]]] = []
        self.closed = False

    def _answer(self, group_id: str) -> None:
        if self.down:
            # Two texts for one cause.
            raise KafkaUnavailableError(f"no answer ({len(self.reads_s) % 2})")
        if group_id in self.with_members:
            raise GroupNotEmptyError(f"{group_id} has members")

    async def read(
        self, group_id: str, *, even_with_members: bool = False
    ) -> dict[tuple[str, int], CommittedOffset]:
        self.reads_s.append(now_s())
        await asyncio.sleep(self.answer_s)
        if not even_with_members:
            self._answer(group_id)
        return dict(self.groups.get(group_id, {}))

    async def write(
        self, group_id: str, offsets: Mapping[tuple[str, int], CommittedOffset]
    ) -> set[tuple[str, int]]:
        await asyncio.sleep(self.answer_s)
        self._answer(group_id)
        if group_id in self.share_groups:
            raise InvalidConfigError(f"{group_id} is a share group")
        taken = {place: offset for place, offset in offsets.items() if place not in self.unknown}
        self.writes.append((now_s(), group_id, taken))
        self.groups.setdefault(group_id, {}).update(taken)
        return set(taken)

    async def close(self) -> None:
        self.closed = True

    def offset(self, name: str = NAME, place: tuple[str, int] = PLACE) -> int | None:
        found = self.groups.get(name, {}).get(place)
        return None if found is None else found.offset


def exported(records: int, *, partitions: int = 1, name: str = NAME) -> World:
    """A world whose groups are exported; no lock ends by itself in the hours of these tests."""
    return world_with(
        records,
        partitions=partitions,
        offsets_export_group=name,
        record_lock_duration_ms="43200000",
    )


@asynccontextmanager
async def exporting(world: World, kafka: FakeGroups) -> AsyncIterator[Coordinator]:
    """A coordinator that exports to this Kafka; closed in good order."""
    coordinator = world.build()
    coordinator.context.offsets_export = kafka
    await coordinator.start()
    yield coordinator
    await coordinator.drain()
    await coordinator.close()
    assert kafka.closed
    assert not world.fatal


async def member_of(world: World, coordinator: Coordinator, group: str = "g") -> FakeMember:
    member = world.member(f"m-{group}")
    await member.join(coordinator, group, TOPICS, max_poll_records=10)
    return member


@asynccontextmanager
async def exporting_to(
    kafka: FakeGroups, world: World
) -> AsyncIterator[tuple[Coordinator, FakeMember]]:
    """The same with a member of group `g`."""
    async with exporting(world, kafka) as coordinator:
        yield coordinator, await member_of(world, coordinator)


def admin(coordinator: Coordinator) -> Admin:
    return Admin(coordinator, CoordinatorInfo("test", "", "", "memory:"))


def reasons(coordinator: Coordinator) -> dict[str, str]:
    return {each.group: each.reason for each in coordinator.offsets_exporter.figures()}


def decided_start(coordinator: Coordinator) -> int:
    """SPSO in memory, durable or not."""
    core = actor_of(coordinator, "orders").partition
    return -1 if core is None else core.window.start_offset


def said(logs: list[Any], event: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == event]


@virtual
async def test_the_offset_gives_the_lag_and_the_metadata_the_start() -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        delivery = await member.next_delivery()
        await member.acknowledge(delivery, first=2, last=4)
        await asyncio.sleep(ROUND_S)
        assert kafka.groups == {NAME: {PLACE: CommittedOffset(3, 'sharecoord spso=0 group="g"')}}
        (view,) = await admin(coordinator).describe_groups(["g"])
        assert view.partitions[0].lag == 100 - 3
        await member.acknowledge(delivery, AcknowledgeType.REJECT, first=0, last=1)
        await asyncio.sleep(ROUND_S)
        assert kafka.groups[NAME][PLACE] == CommittedOffset(5, 'sharecoord spso=5 group="g"')
        assert coordinator.offsets_exporter.figures() == (ExportFigures("g", NAME, ""),)


@virtual
async def test_without_the_setting_kafka_is_not_asked() -> None:
    world, kafka = world_with(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        await member.settle(await member.next_delivery())
        await asyncio.sleep(2 * LOOK_S)
        assert (kafka.reads_s, kafka.writes) == ([], [])
        assert coordinator.offsets_exporter.figures() == ()


@asynccontextmanager
async def accepting_slowly() -> AsyncIterator[
    tuple[World, FakeGroups, asyncio.Task[PartitionResult]]
]:
    """A member accepts ten records; that is decided, and the store takes three rounds for it."""
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        delivery = await member.next_delivery()
        await until(lambda: kafka.offset() == 0, step_s=0.1)
        world.caller.delay_s = 3 * ROUND_S
        accepting = asyncio.create_task(member.acknowledge(delivery))
        await until(lambda: decided_start(coordinator) == 10, step_s=0.001)
        yield world, kafka, accepting


@virtual
async def test_nothing_goes_out_before_it_is_durable() -> None:
    async with accepting_slowly() as (world, kafka, accepting):
        await asyncio.sleep(ROUND_S)
        # Decided, and a round has passed; the store has not taken it.
        assert world.start_offset("g", "orders") == 0
        assert kafka.offset() == 0
        await until(lambda: kafka.offset() == 10, step_s=0.1)
        assert world.start_offset("g", "orders") == 10
        world.caller.delay_s = 0.001
        await accepting


@virtual
async def test_what_a_reset_made_void_is_not_written() -> None:
    async with accepting_slowly() as (world, kafka, accepting):
        # Another coordinator's reset is there first: the commit under way will be fenced.
        world.store.reset_partitions({world.partition("g", "orders"): 50})
        await until(lambda: kafka.offset() != 0, step_s=0.1)
        assert kafka.offset() == 50
        world.caller.delay_s = 0.001
        assert (await accepting).error is not None
        assert [w[2][PLACE].offset for w in kafka.writes] == [0, 50]


@virtual
async def test_a_commit_that_fails_is_said_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting(world, kafka) as coordinator:

        async def committed() -> SharecoordError:
            return StoreUnavailableError("away")

        with monkeypatch.context() as patched:
            patched.setattr(coordinator.context, "committed", committed)
            await member_of(world, coordinator)
            await asyncio.sleep(ROUND_S)
            assert reasons(coordinator) == {"g": "STORE_UNAVAILABLE"}
            assert kafka.writes == []
        await asyncio.sleep(2 * ROUND_S)
        assert kafka.offset() == 0
        assert reasons(coordinator) == {"g": ""}


@virtual
async def test_only_what_changed_is_written_and_all_again_each_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert offsets_export.EXPORT_AGAIN_S == 24 * 3600
    monkeypatch.setattr(offsets_export, "EXPORT_AGAIN_S", 600.0)
    world = exported(10, partitions=2)
    kafka = FakeGroups()
    async with exporting_to(kafka, world) as (_, member):
        delivery = await member.next_delivery()
        await asyncio.sleep(ROUND_S)
        await member.acknowledge(delivery)
        await asyncio.sleep(500)
        places = [("orders", 0), ("orders", 1)]
        changed = ("orders", delivery.key.partition)
        assert [sorted(written) for _, _, written in kafka.writes] == [places, [changed]]
        await asyncio.sleep(120)
        assert sorted(p for _, _, written in kafka.writes[2:] for p in written) == places


@virtual
async def test_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_export, "WRITE_PARTITIONS_MAX", 2)
    world, kafka = exported(1, partitions=5), FakeGroups()
    async with exporting(world, kafka) as coordinator:
        await world.joined(coordinator, credit=0)
        await asyncio.sleep(ROUND_S)
        assert [len(written) for _, _, written in kafka.writes] == [2, 2, 1]
        assert sorted(kafka.groups[NAME]) == [("orders", p) for p in range(5)]


@pytest.mark.parametrize(
    ("hinders", "reason", "what"),
    [
        ("members", "GROUP_NOT_EMPTY", "has members"),
        ("another tool", "INVALID_CONFIG", "offsets of somebody else, bills[3] first"),
        ("another share group", "INVALID_CONFIG", 'offsets of share group "other"'),
        ("another type", "INVALID_CONFIG", "is a share group"),
    ],
)
@virtual
async def test_a_name_of_others_is_refused_until_it_is_free(
    hinders: str, reason: str, what: str
) -> None:
    world, kafka = exported(100), FakeGroups()
    if hinders == "members":
        kafka.with_members.add(NAME)
    elif hinders == "another type":
        kafka.share_groups.add(NAME)
    else:
        mark = 'sharecoord spso=7 group="other"' if hinders == "another share group" else ""
        kafka.groups[NAME] = {("bills", 3): CommittedOffset(7, mark)}
    with structlog.testing.capture_logs() as logs:
        async with exporting_to(kafka, world) as (coordinator, member):
            await member.settle(await member.next_delivery())
            await asyncio.sleep(2 * LOOK_S)
            assert kafka.writes == []
            assert reasons(coordinator) == {"g": reason}
            (line,) = said(logs, "offsets not exported")
            assert (line["group"], line["export_group"], line["reason"]) == ("g", NAME, reason)
            assert what in line["why"]
            looks = [b - a for a, b in zip(kafka.reads_s, kafka.reads_s[1:], strict=False)]
            assert all(LOOK_INTERVAL_S <= each <= LOOK_INTERVAL_S + ROUND_S for each in looks)
            kafka.with_members.clear()
            kafka.share_groups.clear()
            kafka.groups.clear()
            await asyncio.sleep(LOOK_S)
            assert kafka.offset() == 10
            assert reasons(coordinator) == {"g": ""}
            assert len(said(logs, "offsets are exported")) == 1


@virtual
async def test_a_name_that_others_take_later_is_left_to_them() -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        await until(lambda: kafka.offset() == 0, step_s=0.1)
        kafka.groups[NAME][PLACE] = CommittedOffset(77, "")
        await asyncio.sleep(LOOK_S)
        assert reasons(coordinator) == {"g": "INVALID_CONFIG"}
        await member.settle(await member.next_delivery())
        await asyncio.sleep(2 * LOOK_S)
        assert kafka.offset() == 77


@virtual
async def test_two_share_groups_can_not_have_one_name() -> None:
    world, kafka = exported(100, name="one"), FakeGroups()
    async with exporting(world, kafka) as coordinator:
        for group in ("a", "b"):
            member = await member_of(world, coordinator, group)
            await member.settle(await member.next_delivery())
        await asyncio.sleep(ROUND_S)
        assert reasons(coordinator) == {"a": "", "b": "INVALID_CONFIG"}
        assert kafka.groups["one"][PLACE].metadata == 'sharecoord spso=10 group="a"'


@virtual
async def test_a_kafka_that_is_away_is_asked_less_and_less_and_delivery_goes_on() -> None:
    world, kafka = exported(100), FakeGroups()
    kafka.down = True
    with structlog.testing.capture_logs() as logs:
        async with exporting_to(kafka, world) as (coordinator, member):
            for _ in range(10):
                await member.settle(await member.next_delivery())
            await asyncio.sleep(300)
            waits = [
                round((b - a) / EXPORT_INTERVAL_S)
                for a, b in zip(kafka.reads_s, kafka.reads_s[1:], strict=False)
            ]
            assert waits[:4] == sorted(waits[:4])
            assert set(waits[4:]) <= {12, 13}
            assert len(said(logs, "offsets not exported")) == 1
            assert reasons(coordinator) == {"g": "KAFKA_UNAVAILABLE"}
            kafka.down = False
            await asyncio.sleep(LOOK_S)
            assert kafka.offset() == 100
            kafka.down = True
            await asyncio.sleep(LOOK_S)
            assert len(said(logs, "offsets not exported")) == 2


@virtual
async def test_another_name_is_used_at_once_and_none_leaves_what_is_there() -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        await until(lambda: kafka.offset() == 0, step_s=0.1)
        await admin(coordinator).alter_group_configs("g", {SETTING: "other"}, [])
        await member.settle(await member.next_delivery())
        await asyncio.sleep(ROUND_S)
        assert (kafka.offset(), kafka.offset("other")) == (0, 10)
        await admin(coordinator).alter_group_configs("g", {SETTING: ""}, [])
        await member.settle(await member.next_delivery())
        await asyncio.sleep(2 * LOOK_S)
        assert (kafka.offset(), kafka.offset("other")) == (0, 10)
        assert coordinator.offsets_exporter.figures() == ()


@virtual
async def test_a_name_that_is_changed_under_way_gets_nothing() -> None:
    world, kafka = exported(100), FakeGroups()
    kafka.answer_s = 3 * ROUND_S
    async with exporting(world, kafka) as coordinator:
        await member_of(world, coordinator)
        await until(lambda: kafka.reads_s, step_s=0.1)
        await admin(coordinator).alter_group_configs("g", {SETTING: "other"}, [])
        await until(lambda: kafka.offset("other") == 0, step_s=0.1)
        assert [name for _, name, _ in kafka.writes] == ["other"]


@virtual
async def test_after_a_write_without_an_answer_the_name_is_looked_at_again() -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        await until(lambda: kafka.offset() == 0, step_s=0.1)
        assert len(kafka.reads_s) == 1
        kafka.down = True
        await member.settle(await member.next_delivery())
        await until(lambda: reasons(coordinator) == {"g": "KAFKA_UNAVAILABLE"}, step_s=0.1)
        kafka.down = False
        await asyncio.sleep(2 * ROUND_S)
        assert len(kafka.reads_s) == 2
        assert kafka.offset() == 10


@virtual
async def test_what_is_missing_in_kafka_is_written_anew() -> None:
    world, kafka = exported(100, partitions=2), FakeGroups()
    kafka.unknown.add(("orders", 1))
    async with exporting(world, kafka) as coordinator:
        await world.joined(coordinator, credit=0)
        await asyncio.sleep(2 * ROUND_S)
        assert list(kafka.groups[NAME]) == [PLACE]
        # A partition that Kafka did not know yet.
        kafka.unknown.clear()
        await asyncio.sleep(ROUND_S)
        assert kafka.offset(place=("orders", 1)) == 0
        # Deleted by hand, and overwritten late by a former owner.
        kafka.groups[NAME] = {PLACE: CommittedOffset(9, 'sharecoord spso=9 group="g"')}
        await asyncio.sleep(LOOK_S)
        assert (kafka.offset(), kafka.offset(place=("orders", 1))) == (0, 0)
        # Read without its end it still is what was written.
        mark = 'sharecoord spso=0 group="g"'
        assert kafka.groups[NAME][PLACE].metadata == mark
        kafka.groups[NAME][PLACE] = CommittedOffset(0, f'{mark}"E\x7f')
        written = len(kafka.writes)
        await asyncio.sleep(LOOK_S)
        assert len(kafka.writes) == written
        assert reasons(coordinator) == {"g": ""}


@virtual
async def test_the_next_coordinator_goes_on_under_the_same_name() -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (_, member):
        await member.settle(await member.next_delivery())
        await until(lambda: kafka.offset() == 10, step_s=0.1)
    async with exporting(world, kafka) as coordinator:
        await member.join(coordinator, "g", TOPICS)
        await member.settle(await member.next_delivery())
        await until(lambda: kafka.offset() == 20, step_s=0.1)


@virtual
async def test_a_deleted_group_is_exported_no_more() -> None:
    world, kafka = exported(100), FakeGroups()
    async with exporting_to(kafka, world) as (coordinator, member):
        await until(lambda: kafka.offset() == 0, step_s=0.1)
        member.leave()
        assert await admin(coordinator).delete_groups(["g"]) == {"g": None}
        reads = len(kafka.reads_s)
        await asyncio.sleep(2 * LOOK_S)
        assert len(kafka.reads_s) == reads
        assert coordinator.offsets_exporter.figures() == ()
        assert world.database.ids.keys().isdisjoint({PartitionKey("g", "orders", "", 0)})
