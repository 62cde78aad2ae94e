"""The ledger notices every kind of broken promise."""

from __future__ import annotations

import pytest

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import Delivery, PartitionResult, Slice
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    HeldRange,
    RangeOutcome,
)
from sharecoord.core.states import AcknowledgeOutcome, AcknowledgeType, RecordState
from sharecoord.testing.fake_log import FakeRecord, build_chunk
from sharecoord.testing.ledger import Ledger
from sharecoord.testing.virtual_time import virtual
from tests.unit.runtime.worlds import world_with

KEY = PartitionKey("g", "orders", "0" * 32, 0)
KIND = AcknowledgeType


def delivery(*, count: int = 1, token: int = 1, until_ms: int = 30_000, last: int = 4) -> Delivery:
    records = [FakeRecord(o, None, str(o).encode(), [], 0) for o in range(5)]
    slices = [Slice(build_chunk(records, 0), 0, 5)]
    return Delivery(KEY, slices, [AcquiredRange(0, last, count, token, until_ms)], 5, 100)


def said(kind: AcknowledgeType, token: int = 1) -> list[AcknowledgedRange]:
    return [AcknowledgedRange(0, 4, kind, token)]


def settled(
    ledger: Ledger, kind: AcknowledgeType, *exceptions: RangeOutcome, member: str = "a"
) -> None:
    ledger.sent(member, KEY, said(kind))
    ledger.answered(member, said(kind), PartitionResult(KEY, exceptions, None, 20_000), 100)


def broken(ledger: Ledger, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        ledger.check()


def test_two_valid_locks() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(), 0)
    ledger.delivered("b", delivery(count=2, token=2), 29_999)
    broken(ledger, "while a has a valid lock")


def test_a_lock_that_ended_or_was_given_up_is_none() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(), 0)
    ledger.delivered("b", delivery(count=2, token=2, until_ms=60_000), 30_000)
    ledger.gone("b")
    ledger.delivered("c", delivery(count=3, token=3, until_ms=90_000), 31_000)
    ledger.sent("c", KEY, said(KIND.RELEASE, 3))
    ledger.delivered("d", delivery(count=4, token=4, until_ms=90_000), 32_000)
    ledger.lost("d", KEY, HeldRange(0, 4, 4))
    ledger.delivered("e", delivery(count=5, token=5, until_ms=90_000), 33_000)
    ledger.check()


def test_a_renewed_lock_is_valid_for_longer() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(until_ms=150), 0)
    settled(ledger, KIND.RENEW)
    assert ledger.book("a") == [(("orders", "0" * 32, 0), HeldRange(0, 4, 1))]
    ledger.delivered("b", delivery(count=2, token=2), 20_099)
    broken(ledger, "valid lock")


@pytest.mark.parametrize("kind", [KIND.ACCEPT, KIND.REJECT])
def test_a_record_that_comes_after_its_end(kind: AcknowledgeType) -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(), 0)
    settled(ledger, kind)
    assert ledger.confirmed(kind) == 5
    assert not ledger.book("a")
    ledger.delivered("b", delivery(count=2, token=2), 40_000)
    broken(ledger, f"after a confirmed {kind.name}")


def test_what_is_answered_as_finished_is_final_too() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(), 0)
    finished = AcknowledgeOutcome.ALREADY_FINISHED
    settled(ledger, KIND.ACCEPT, RangeOutcome(0, 4, finished, RecordState.ACKNOWLEDGED))
    assert ledger.confirmed() == 5


def test_a_late_acknowledgement_that_is_confirmed() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(), 0)
    ledger.delivered("b", delivery(count=2, token=2), 30_000)
    settled(ledger, KIND.ACCEPT)
    broken(ledger, "ACCEPT of a was late, OK")


def test_what_failed_or_was_refused_is_not_confirmed() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(), 0)
    settled(ledger, KIND.ACCEPT, RangeOutcome(0, 4, AcknowledgeOutcome.LOCK_LOST))
    assert ledger.confirmed() == 0
    assert not ledger.book("a")


def test_counts_that_do_not_grow() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(count=2), 0)
    settled(ledger, KIND.RELEASE)
    ledger.delivered("b", delivery(count=2, token=2), 40_000)
    broken(ledger, "delivery count 2 after 2")


def test_counts_of_what_was_handed_back() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(count=2), 0)
    settled(ledger, KIND.RETURN)
    ledger.delivered("b", delivery(count=2, token=2), 10)
    ledger.forgot("b")
    ledger.joined("b", [])
    ledger.delivered("c", delivery(count=2, token=3), 20)
    ledger.check()
    ledger.joined("c", ledger.book("c"))
    ledger.delivered("a", delivery(count=2, token=4), 40_000)
    broken(ledger, "delivery count 2 after 2")


def test_a_count_beyond_the_limit() -> None:
    ledger = Ledger(delivery_limit=3)
    ledger.delivered("a", delivery(count=4), 0)
    broken(ledger, "beyond the limit")


def test_ranges_without_their_payload() -> None:
    ledger = Ledger()
    ledger.delivered("a", delivery(last=5), 0)
    broken(ledger, "do not fill")


def test_another_record_s_payload() -> None:
    ledger = Ledger()
    wrong = delivery()
    wrong.slices[0].chunk.values[3] = b"4"
    ledger.delivered("a", wrong, 0)
    broken(ledger, "others'")


@virtual
async def test_records_that_are_finished_without_a_reason() -> None:
    world = world_with(5)
    coordinator = await world.start()
    member, found = await world.handed(coordinator, 5)
    assert world.ledger.check_nothing_lost(world.database, world.log, "g") == 5
    await member.acknowledge(found)
    assert world.ledger.check_nothing_lost(world.database, world.log, "g") == 0
    life = world.ledger.life(found.key, 3)
    life.said.clear()
    with pytest.raises(AssertionError, match="@3: finished without a reason"):
        world.ledger.check_nothing_lost(world.database, world.log, "g")
    await world.kill(coordinator)


@virtual
async def test_confirmed_records_that_are_not_finished() -> None:
    world = world_with(5)
    coordinator = await world.start()
    _, found = await world.handed(coordinator, 5)
    world.ledger.life(found.key, 2).final = KIND.ACCEPT
    with pytest.raises(AssertionError, match="@2: confirmed, yet not finished"):
        world.ledger.check_nothing_lost(world.database, world.log, "g")
    await world.kill(coordinator)
