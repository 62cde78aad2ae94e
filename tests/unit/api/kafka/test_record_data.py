"""Batches of several deliveries of a partition in one answer: no record is there twice."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from sharecoord.api.kafka.record_data import fits, record_data
from sharecoord.core.changes import key_of
from sharecoord.core.fleet.peering import Relayed
from sharecoord.core.partition.decisions import AcquiredRange
from sharecoord.runtime.status.status import StatusBoard
from tests.unit.api.kafka.client import fetched, port_of
from tests.unit.runtime.worlds import world_with

KEY = key_of("g", "orders", "", 0)


def batch(first: int, last: int, text: bytes = b"records") -> bytes:
    """A batch of which the head alone is looked at."""
    rest = struct.pack(">11xi", last - first) + text
    return struct.pack(">qi", first, len(rest)) + rest


def relayed(first: int, last: int, *batches: bytes) -> Relayed:
    """What an owner elsewhere sends for these offsets."""
    ranges = [AcquiredRange(first, last, 1, 7, 0)]
    return Relayed(1, KEY, ranges, last - first + 1, 10, 99, b"".join(batches), has_batches=True)


def test_a_batch_of_two_deliveries_is_there_once() -> None:
    """A record that was released, and the new ones behind it in the same batch."""
    one, two = batch(308, 310), batch(311, 320)
    deliveries = [relayed(309, 315, one, two), relayed(308, 308, one)]
    assert fits(deliveries[:1], deliveries[1])
    assert b"".join(record_data(deliveries)) == one + two


def test_a_single_delivery_is_passed_on_as_it_is() -> None:
    (data,) = record_data([relayed(0, 4, batch(0, 2), batch(3, 4))])
    assert data == batch(0, 2) + batch(3, 4)


@pytest.mark.parametrize(
    ("first", "last", "is_together"),
    [(309, 309, False), (308, 308, False), (310, 312, False), (308, 310, True), (311, 311, True)],
)
def test_batches_that_overlap_go_into_different_answers(
    first: int, last: int, is_together: bool
) -> None:
    whole, other = relayed(308, 310, batch(308, 310)), relayed(first, last, batch(first, last))
    assert fits([whole], other) is fits([other], whole) is is_together


async def test_what_does_not_fit_comes_with_the_next_fetch() -> None:
    async with port_of(world_with(0)) as port:
        client = await port.joined()
        assert fetched(await client.fetch(0, wait_ms=1)) == {}
        (member,) = port.kafka._membership._members.values()
        key = key_of("g", "orders", member.group.topic_ids["orders"], 0)
        sent = [
            replace(relayed(first, last, batch(first, last)), key=key)
            for first, last in ((308, 310), (309, 309))
        ]
        member.waiting += sent
        id_of, (share,) = port.kafka._fetching._ids.id_of, member.shares.values()
        assert member.take(share, 0, id_of) == sent[:1]
        assert member.waiting == sent[1:]
        assert member.take(share, 0, id_of) == sent[1:]
        member.held.clear()


async def test_what_comes_again_comes_in_the_logs_batches_too_and_counts_so() -> None:
    async with port_of(world_with(10)) as port:
        client = await port.joined()
        (first,) = fetched(await client.fetch(0)).values()
        (again,) = fetched(await client.fetch(1, said={0: [(0, 9, 2)]})).values()
        assert (first.acquired, again.acquired) == ([(0, 9, 1)], [(0, 9, 2)])
        assert first.offsets == again.offsets == list(range(10))
        board = StatusBoard()
        board.update(port.coordinator)
        assert board.latest is not None
        (place,) = board.latest.partitions
        assert (place.delivered, place.delivered_whole) == (20, 20)
