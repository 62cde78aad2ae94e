"""Members that speak Kafka's protocol, request by request: epochs, sessions, codes of KIP-932."""

from __future__ import annotations

import asyncio
import itertools
import struct
from typing import Any

import pytest

from sharecoord.api.kafka.members import EPOCH_MAX, ShareSession
from sharecoord.core.changes import CommitBatch
from sharecoord.errors import SharecoordError
from sharecoord.security.principals import Caller
from tests.support import eventually_async
from tests.unit.api.kafka.client import (
    ACCEPT,
    HEARTBEAT,
    REJECT,
    RELEASE,
    REQUEST_BYTES_MAX,
    Fetched,
    fetched,
    port_of,
)
from tests.unit.runtime.worlds import world_with
from tests.world import actor_of

OK, INVALID_REQUEST, UNKNOWN_MEMBER, UNSUPPORTED = 0, 42, 25, 35
INVALID_RECORD_STATE, SESSION_NOT_FOUND, INVALID_SESSION_EPOCH = 121, 122, 123
FENCED_MEMBER_EPOCH = 110


async def test_records_come_once_and_are_finished() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        got = fetched(await member.fetch(0))
        assert got == {0: Fetched([(0, 5, 1)], [0, 1, 2, 3, 4, 5], OK)}
        answer = await member.acknowledge(1, {0: [(0, 5, ACCEPT)]})
        assert answer.error_code.value == OK
        assert [part.error_code.value for part in answer.responses[0].partitions] == [OK]
        assert port.world.start_offset("g", "orders", 0) == 6
        assert fetched(await member.fetch(2, wait_ms=20)) == {}


async def test_acknowledgements_ride_on_the_next_fetch() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        assert fetched(await member.fetch(0, records=4, is_exact=True))[0].acquired == [(0, 3, 1)]
        said = {0: [(0, 0, ACCEPT), (1, 1, RELEASE), (2, 2, REJECT), (3, 3, ACCEPT)]}
        got = fetched(await member.fetch(1, said=said))[0]
        assert got.acknowledge_error == OK
        # The released one comes again, and counts.
        assert got.acquired[0] == (1, 1, 2)
        rest = fetched(await member.fetch(2, wait_ms=100))
        acquired = sorted(got.acquired + (rest[0].acquired if rest else []))
        assert acquired == [(1, 1, 2), (4, 5, 1)]


async def test_what_is_acquired_comes_with_the_same_answer() -> None:
    """However short the fetch: its member may ask for nothing more."""
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        epochs = itertools.count()
        seen: list[tuple[bool, int]] = []

        async def came() -> bool:
            got = fetched(await member.fetch(next(epochs), wait_ms=0))
            given = {"group_ids": ("g",), "include_offsets": False}
            (group,) = await port.operators.call(Caller(), "describe_groups", given)
            seen.extend((bool(got), each.acquired_records) for each in group.members)
            return bool(got)

        await eventually_async(came, 10)
        assert set(seen) <= {(False, 0), (True, 6)}


async def test_an_exact_limit_is_never_passed() -> None:
    async with port_of(world_with(20)) as port:
        member = await port.joined()
        for epoch in range(2):
            got = fetched(await member.fetch(epoch, records=7, is_exact=True))[0]
            (acquired,) = got.acquired
            assert acquired[1] - acquired[0] + 1 == 7


async def test_epochs_of_a_share_session() -> None:
    async with port_of(world_with(0)) as port:
        member = await port.joined()
        assert (await member.fetch(1, wait_ms=1)).error_code.value == SESSION_NOT_FOUND
        assert (await member.acknowledge(1, {})).error_code.value == SESSION_NOT_FOUND
        assert (await member.acknowledge(0, {})).error_code.value == INVALID_SESSION_EPOCH
        said = {0: [(0, 0, ACCEPT)]}
        assert (await member.fetch(0, said=said)).error_code.value == INVALID_REQUEST
        assert (await member.fetch(0, wait_ms=1)).error_code.value == OK
        for wrong in (0 + 2, 7):
            assert (await member.fetch(wrong)).error_code.value == INVALID_SESSION_EPOCH
        assert (await member.fetch(1, wait_ms=1)).error_code.value == OK
        # Both kinds of requests count in one row.
        assert (await member.acknowledge(2, {})).error_code.value == OK
        assert (await member.acknowledge(-1, {})).error_code.value == OK
        assert (await member.fetch(3)).error_code.value == SESSION_NOT_FOUND


def test_after_the_last_epoch_comes_the_first() -> None:
    session = ShareSession(None, epoch=EPOCH_MAX)
    assert session.takes(EPOCH_MAX)
    assert not session.takes(EPOCH_MAX)
    assert session.takes(1)


async def test_who_has_not_joined_gets_nothing() -> None:
    async with port_of(world_with(6)) as port:
        stranger = await port.connect()
        assert (await stranger.fetch(0)).error_code.value == UNKNOWN_MEMBER
        assert (await stranger.acknowledge(1, {})).error_code.value == UNKNOWN_MEMBER
        assert (await stranger.heartbeat(3)).error_code.value == UNKNOWN_MEMBER
        assert (await stranger.heartbeat(-1)).error_code.value == UNKNOWN_MEMBER


async def test_what_a_member_does_not_hold_it_can_not_settle() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0, records=3, is_exact=True)
        other = await port.joined("other")
        assert fetched(await other.fetch(0))[0].acquired == [(3, 5, 1)]
        answer = await member.acknowledge(1, {0: [(2, 4, ACCEPT)]})
        assert answer.responses[0].partitions[0].error_code.value == INVALID_RECORD_STATE
        # Nothing of it was done: what the member holds it can settle.
        assert port.world.start_offset("g", "orders", 0) == 0
        answer = await member.acknowledge(2, {0: [(0, 2, ACCEPT)]})
        assert answer.responses[0].partitions[0].error_code.value == OK
        assert port.world.start_offset("g", "orders", 0) == 3


async def test_records_of_a_connection_that_is_lost_come_again_and_count() -> None:
    async with port_of(world_with(6)) as port:
        gone, other = await port.joined("gone"), await port.joined("other")
        assert fetched(await gone.fetch(0))[0].acquired == [(0, 5, 1)]
        await gone.close()
        assert fetched(await other.fetch(0, wait_ms=5_000))[0].acquired == [(0, 5, 2)]


async def test_records_of_a_share_session_that_is_closed_come_again_and_count() -> None:
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0)
        answer = await member.fetch(-1, said={0: [(0, 1, ACCEPT)]})
        assert fetched(answer)[0].acknowledge_error == OK
        assert fetched(await member.fetch(0, wait_ms=5_000))[0].acquired == [(2, 5, 2)]


async def test_last_acknowledgements_may_come_after_the_member_has_left() -> None:
    """librdkafka leaves the group first."""
    async with port_of(world_with(6)) as port:
        member, heart = await port.joined(), await port.connect()
        await member.fetch(0)
        left = await heart.heartbeat(-1)
        assert (left.error_code.value, left.member_epoch) == (OK, -1)
        answer = await member.acknowledge(1, {0: [(0, 3, ACCEPT)]})
        assert answer.responses[0].partitions[0].error_code.value == OK
        assert (await member.acknowledge(-1, {})).error_code.value == OK
        other = await port.joined("other")
        assert fetched(await other.fetch(0, wait_ms=5_000))[0].acquired == [(4, 5, 2)]
        assert [each.member_id for each in port.world.database.members.values()] == ["other"]


async def test_only_fetched_partitions_come() -> None:
    async with port_of(world_with(3, partitions=2)) as port:
        member = await port.joined()
        assert list(fetched(await member.fetch(0, partitions=[1]))) == [1]
        assert fetched(await member.fetch(1, wait_ms=20, partitions=())) == {}
        got = fetched(await member.fetch(2, partitions=[0], forgotten=[1], wait_ms=5_000))
        assert list(got) == [0]


async def test_a_heartbeat_tells_the_assignment_once_and_after_each_change() -> None:
    async with port_of(world_with(0, partitions=2)) as port:
        member = await port.connect()
        first = await member.heartbeat(0, "orders")
        (topic,) = first.assignment.topic_partitions
        assert (first.member_epoch, topic.partitions) == (1, (0, 1))
        assert (await member.heartbeat(1)).assignment is None
        port.world.log.create("bills", 1)
        answer = await member.heartbeat(1, "orders", "bills")

        async def grown() -> bool:
            nonlocal answer
            answer = await member.heartbeat(answer.member_epoch)
            return bool(answer.member_epoch == 2)

        if answer.member_epoch == 1:
            await eventually_async(grown, 10)
        # The answer with the new epoch was lost: it is told again.
        again = await member.heartbeat(1)
        assert (again.member_epoch, len(again.assignment.topic_partitions)) == (2, 2)
        assert (await member.heartbeat(9)).error_code.value == FENCED_MEMBER_EPOCH


async def test_a_member_that_joins_again_goes_on_with_its_share_session() -> None:
    """As a client does that changes its subscription: it leaves, and joins again."""
    async with port_of(world_with(8)) as port:
        member, heart = await port.joined(), await port.connect()
        assert fetched(await member.fetch(0, records=6, is_exact=True))[0].acquired == [(0, 5, 1)]
        for epoch in (-1, 0):
            assert (await heart.heartbeat(epoch, "orders")).error_code.value == OK
        answer = await member.acknowledge(1, {0: [(0, 1, ACCEPT)]})
        assert answer.responses[0].partitions[0].error_code.value == OK
        answer = await member.fetch(2, said={0: [(2, 3, ACCEPT)]}, wait_ms=5_000)
        assert fetched(answer) == {0: Fetched([(6, 7, 1)], fetched(answer)[0].offsets, OK)}
        await member.close()
        other = await port.joined("other")
        assert fetched(await other.fetch(0, wait_ms=5_000))[0].acquired == [(4, 5, 2), (6, 7, 2)]


async def test_a_share_session_that_is_opened_again_leaves_the_locks() -> None:
    async with port_of(world_with(8)) as port:
        member = await port.joined()
        assert fetched(await member.fetch(0, records=6, is_exact=True))[0].acquired == [(0, 5, 1)]
        assert fetched(await member.fetch(0))[0].acquired == [(6, 7, 1)]
        answer = await member.acknowledge(1, {0: [(0, 7, ACCEPT)]})
        assert answer.responses[0].partitions[0].error_code.value == OK


@pytest.mark.parametrize(
    "names",
    [
        {"group_id": ""},
        {"group_id": "x" * 250},
        {"member_id": "x" * 65},
        {"subscribed_topic_names": ("a b",)},
        {"subscribed_topic_names": ("orders", *map(str, range(1_000)))},
    ],
)
async def test_names_that_no_store_keeps_are_refused(names: dict[str, Any]) -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        given = {"group_id": "g", "member_id": "m", "subscribed_topic_names": ("orders",), **names}
        answer = await client.ask(HEARTBEAT, 1, member_epoch=0, **given)
        assert answer.error_code.value == INVALID_REQUEST
        assert answer.error_message
        assert not port.world.database.members


async def test_a_version_that_is_not_served_is_answered_in_the_oldest_form() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        answer = await client.raw(struct.pack(">hhih", 18, 99, 5, -1))
        correlation_id, error, count = struct.unpack_from(">ihi", answer)
        assert (correlation_id, error) == (5, UNSUPPORTED)
        assert len(answer) == 10 + 6 * count


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(struct.pack(">ihhih", 10, 78, 99, 1, -1), id="version"),
        pytest.param(struct.pack(">ihhih", 10, 999, 0, 1, -1), id="api"),
        pytest.param(struct.pack(">i", 3) + b"abc", id="no head"),
        pytest.param(struct.pack(">i", -1), id="negative length"),
        pytest.param(struct.pack(">i", REQUEST_BYTES_MAX + 1), id="too long"),
        pytest.param(b"GET / HTTP/1.1\r\n\r\n", id="http"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", id="tls"),
    ],
)
async def test_who_breaks_the_protocol_loses_the_connection_alone(frame: bytes) -> None:
    async with port_of(world_with(6)) as port:
        member, stranger = await port.joined(), await port.connect()
        stranger.writer.write(frame)
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await stranger.raw(b"")
        assert fetched(await member.fetch(0))[0].acquired == [(0, 5, 1)]


async def test_requests_are_answered_in_order() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.connect()
        numbers = range(20)
        for number in numbers:
            frame = struct.pack(">hhih", 18, 0, number, -1)
            client.writer.write(struct.pack(">i", len(frame)) + frame)
        frame = struct.pack(">hhih", 18, 0, 99, -1)
        answers = [await client.raw(frame)]
        assert struct.unpack_from(">i", answers[0]) == (0,)


async def test_a_fetch_is_decided_before_the_acknowledgements_ahead_of_it_are_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So both go into one commit, and the answers keep their order."""
    async with port_of(world_with(6)) as port:
        member = await port.joined()
        await member.fetch(0, records=2, is_exact=True)
        committer = port.coordinator.context.committer
        write, may_write = committer._write, asyncio.Event()

        async def gated(batch: CommitBatch) -> dict[int, SharecoordError]:
            await may_write.wait()
            return await write(batch)

        monkeypatch.setattr(committer, "_write", gated)
        said = asyncio.create_task(member.acknowledge(1, {0: [(0, 1, ACCEPT)]}))
        await asyncio.sleep(0)
        got = asyncio.create_task(member.fetch(2))
        partition = actor_of(port.coordinator, "orders").partition
        assert partition is not None
        await eventually_async(lambda: partition.window.acquired == 4, 10)
        assert not said.done()
        may_write.set()
        assert (await said).responses[0].partitions[0].error_code.value == OK
        assert fetched(await got)[0].acquired == [(2, 5, 1)]
