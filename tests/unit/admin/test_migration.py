"""From a consumer group of Kafka to a share group, and back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sharecoord.core.states import AcknowledgeType
from sharecoord.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidRequestError,
    KafkaUnavailableError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import CommittedOffset
from sharecoord.runtime.admin.migration import ExportCommand, ImportCommand
from tests.unit.admin.support import Bench, virtual
from tests.unit.runtime.test_offsets_export import FakeGroups

Test = Callable[[Bench, FakeGroups], Coroutine[Any, Any, None]]


def beside_kafka(test: Test) -> Callable[[], None]:
    """Runs a test on virtual time; the consumer group `old` is at 40 of 100 and 3 of 5."""

    async def run(bench: Bench) -> None:
        kafka = FakeGroups()
        kafka.groups["old"] = {
            ("orders", 0): CommittedOffset(40, "somebody's words"),
            ("orders", 1): CommittedOffset(3, ""),
        }
        bench.coordinator.context.offsets_export = kafka
        bench.log.append("orders", 5, partition=1)
        await test(bench, kafka)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__module__ = test.__module__
    return virtual(run)


def came(name: str = "old", group: str = "g", **how: Any) -> ImportCommand:
    return ImportCommand(group, name, **how)


@beside_kafka
async def test_a_new_group_starts_where_the_consumer_group_is(
    bench: Bench, kafka: FakeGroups
) -> None:
    first, second = await bench.admin.import_offsets(came())
    assert (first.reset.partition, first.reset.new_offset, first.reset.old_offset) == (0, 40, None)
    assert (first.committed_offset, first.lag) == (40, 60)
    assert (second.reset.new_offset, second.committed_offset, second.lag) == (3, 3, 2)
    assert [(await bench.partition(n)).start_offset for n in (0, 1)] == [40, 3]
    member = await bench.member()
    assert sum(d.records for d in await member.take(1)) > 0
    del kafka


@beside_kafka
async def test_a_dry_run_says_it_all_and_changes_nothing(bench: Bench, kafka: FakeGroups) -> None:
    """Also while the consumer group is at work."""
    kafka.with_members.add("old")
    results = await bench.admin.import_offsets(came(dry_run=True))
    assert [each.reset.new_offset for each in results] == [40, 3]
    assert await bench.admin.list_groups() == []
    with pytest.raises(GroupNotEmptyError, match="old has members"):
        await bench.admin.import_offsets(came())
    assert len(await bench.admin.import_offsets(came(force=True))) == 2


@pytest.mark.parametrize(("policy", "start"), [("earliest", 0), ("latest", 5)])
def test_what_was_not_committed_starts_by_the_reset_policy(policy: str, start: int) -> None:
    @beside_kafka
    async def test(bench: Bench, kafka: FakeGroups) -> None:
        await bench.admin.alter_group_configs("g", {"share.auto.offset.reset": policy}, [])
        del kafka.groups["old"]["orders", 1]
        results = await bench.admin.import_offsets(came())
        assert [each.committed_offset for each in results] == [40, None]
        assert [each.reset.new_offset for each in results] == [40, start]
        assert (await bench.partition(1)).start_offset == start

    test()


@beside_kafka
async def test_unknown_partitions_and_offsets_outside_of_the_log_are_said(
    bench: Bench, kafka: FakeGroups
) -> None:
    kafka.groups["old"]["orders", 7] = CommittedOffset(1, "")
    kafka.groups["old"]["orders", 0] = CommittedOffset(1_000, "")
    first, second, unknown = await bench.admin.import_offsets(came())
    assert (first.reset.new_offset, first.reset.requested_offset, first.lag) == (100, 1_000, 0)
    assert second.reset.error is None
    assert isinstance(unknown.reset.error, UnknownTopicOrPartitionError)
    assert unknown.lag is None


@beside_kafka
async def test_only_some_topics(bench: Bench, kafka: FakeGroups) -> None:
    bench.log.create("pay", 1)
    kafka.groups["old"]["pay", 0] = CommittedOffset(0, "")
    (found,) = await bench.admin.import_offsets(came(topics=("pay",)))
    assert found.reset.topic == "pay"
    assert len(await bench.admin.import_offsets(came(dry_run=True))) == 3


@beside_kafka
async def test_a_group_with_members_is_refused_without_force(
    bench: Bench, kafka: FakeGroups
) -> None:
    member = await bench.member()
    with pytest.raises(GroupNotEmptyError, match="has 1 member; stop them"):
        await bench.admin.import_offsets(came())
    await bench.admin.import_offsets(came(force=True))
    assert (await bench.partition(0)).start_offset == 40
    del kafka, member


@beside_kafka
async def test_a_name_without_offsets_and_one_with_ours_are_refused(
    bench: Bench, kafka: FakeGroups
) -> None:
    with pytest.raises(InvalidRequestError, match=r"'typo' has committed nothing; check its name"):
        await bench.admin.import_offsets(came("typo"))
    with pytest.raises(InvalidRequestError, match="committed nothing for these topics"):
        await bench.admin.import_offsets(came(topics=("pay",)))
    kafka.groups["lag"] = {("orders", 0): CommittedOffset(5, 'sharecoord spso=2 group="x"')}
    with pytest.raises(InvalidRequestError, match='share group "x" exports for its lag'):
        await bench.admin.import_offsets(came("lag"))
    kafka.down = True
    with pytest.raises(KafkaUnavailableError):
        await bench.admin.import_offsets(came())


@beside_kafka
async def test_there_and_back(bench: Bench, kafka: FakeGroups) -> None:
    """What is not finished comes again there, and so does what is finished behind it."""
    await bench.admin.import_offsets(came())
    member = await bench.member()
    deliveries = await member.take(50)
    for delivery in deliveries:
        if delivery.key.partition == 0:
            first = delivery.ranges[0].first
            await member.acknowledge(delivery, AcknowledgeType.ACCEPT, first=first + 1)
    await bench.leave(member)
    start = (await bench.partition(0)).start_offset
    ahead = await bench.admin.export_offsets(ExportCommand("g", "new", dry_run=True))
    assert "new" not in kafka.groups
    results = await bench.admin.export_offsets(ExportCommand("g", "new"))
    assert results == ahead
    assert (results[0].offset, results[0].error) == (start, None)
    assert results[0].finished_ahead_records > 0
    assert kafka.groups["new"]["orders", 0] == CommittedOffset(start, "")
    assert kafka.offset("new", ("orders", 1)) == (await bench.partition(1)).start_offset


@beside_kafka
async def test_an_export_is_refused_where_it_would_lose_its_way(
    bench: Bench, kafka: FakeGroups
) -> None:
    with pytest.raises(GroupNotFoundError):
        await bench.admin.export_offsets(ExportCommand("g", "new"))
    await bench.admin.alter_group_configs("g", {"share.offsets.export.group": "lag"}, [])
    with pytest.raises(InvalidRequestError, match="has no start offsets"):
        await bench.admin.export_offsets(ExportCommand("g", "new"))
    await bench.admin.import_offsets(came())
    with pytest.raises(InvalidRequestError, match=r"share.offsets.export.group of 'g' is 'lag'"):
        await bench.admin.export_offsets(ExportCommand("g", "lag"))
    with pytest.raises(InvalidRequestError, match="no start offsets for these topics"):
        await bench.admin.export_offsets(ExportCommand("g", "new", topics=("pay",)))
    kafka.with_members.add("busy")
    with pytest.raises(GroupNotEmptyError, match="busy has members"):
        await bench.admin.export_offsets(ExportCommand("g", "busy"))
    kafka.unknown.add(("orders", 1))
    results = await bench.admin.export_offsets(ExportCommand("g", "new"))
    assert [type(each.error) for each in results] == [type(None), UnknownTopicOrPartitionError]
    await bench.member()
    with pytest.raises(GroupNotEmptyError, match="'g' has 1 member; stop them first"):
        await bench.admin.export_offsets(ExportCommand("g", "new"))
    assert await bench.admin.export_offsets(ExportCommand("g", "new", force=True))
