"""What coordinators say to each other comes out as it went in."""

from __future__ import annotations

import pytest

from sharecoord.core.changes import PartitionKey
from sharecoord.core.delivery import LostRange, PartitionResult
from sharecoord.core.fleet.peering import (
    Alive,
    AskLockBooks,
    Compared,
    Freed,
    GatewayItem,
    Hungry,
    Lend,
    LockBooks,
    Look,
    MemberDown,
    MemberEnd,
    MemberTakenBack,
    MemberUp,
    OwnerItem,
    Relayed,
    Returned,
    Settle,
    Settled,
    TimedOut,
)
from sharecoord.core.partition.decisions import (
    AcknowledgedRange,
    AcquiredRange,
    HeldRange,
    RangeOutcome,
    TakenBack,
)
from sharecoord.core.states import (
    AcknowledgeOutcome,
    AcknowledgeType,
    AcquireMode,
    RecordState,
    TakenBackReason,
)
from sharecoord.errors import InternalError, MemberFencedError, StoreUnavailableError
from sharecoord.wire import peer_codec
from sharecoord.wire import peer_service_pb2 as peer

TOKEN = 2**64 - 1
PLACE = PartitionKey("", "orders", "0f" * 16, 7)
NAMELESS = PartitionKey("", "orders", "", 0)
KEY = PartitionKey("g", "orders", "0f" * 16, 7)
HELD = HeldRange(3, 9, TOKEN)

FROM_GATEWAY: list[GatewayItem] = [
    MemberUp(
        4,
        "g",
        "m",
        2**40,
        "client",
        "10.0.0.1:5",
        ("orders", "payments"),
        AcquireMode.RECORD_LIMIT,
        500,
        frozenset({("orders", 1), ("orders", 0)}),
        [LostRange(PLACE, HELD), LostRange(NAMELESS, HELD)],
        frozenset({0, 4}),
        "User:alice",
    ),
    MemberDown(4, left=True),
    MemberDown(5, left=False),
    MemberDown(6, left=True, lock_book=[]),
    MemberDown(7, left=True, lock_book=[LostRange(PLACE, HELD)]),
    Lend(4, 2**40, 2**41, recalls=False),
    Lend(4, 0, 0, recalls=True),
    Settle(
        4,
        9,
        PLACE,
        [
            AcknowledgedRange(0, 5, AcknowledgeType.ACCEPT, TOKEN, 0, None),
            AcknowledgedRange(6, 6, AcknowledgeType.RELEASE, 1, 250, "later"),
            AcknowledgedRange(7, 8, AcknowledgeType.RETURN, 2, 0, None),
            AcknowledgedRange(9, 9, AcknowledgeType.RENEW, 2, 0, None, b"half"),
            AcknowledgedRange(10, 10, AcknowledgeType.RENEW, 2, 0, None, b""),
        ],
        may_wait=True,
    ),
    LockBooks(KEY, 12, {4: [HELD], 6: []}),
    Alive(),
    Freed(KEY),
    Look(),
]

FROM_OWNER: list[OwnerItem] = [
    Relayed(4, PLACE, [AcquiredRange(3, 9, 2, TOKEN, 0)], 7, 700, 1_700, b"frame"),
    Settled(4, 9, PartitionResult(PLACE, []), 7),
    Settled(
        4,
        10,
        PartitionResult(
            PLACE,
            [
                RangeOutcome(3, 4, AcknowledgeOutcome.LOCK_LOST),
                RangeOutcome(5, 5, AcknowledgeOutcome.ALREADY_FINISHED, RecordState.ACKNOWLEDGED),
            ],
            None,
            30_000,
        ),
        0,
    ),
    Returned(4, 2**40, 2**41),
    TimedOut(4),
    MemberTakenBack(
        4,
        PLACE,
        [
            TakenBack("", 3, 5, TOKEN, TakenBackReason.LOCK_ENDED),
            TakenBack("", 9, 9, TOKEN, TakenBackReason.CHAIN_BROKE),
        ],
    ),
    Hungry("g", "orders", 17),
    Hungry("g", "orders", 0),
    AskLockBooks(KEY, 12),
    Compared(4, [LostRange(PLACE, HELD)]),
    Compared(5, []),
]


@pytest.mark.parametrize("item", FROM_GATEWAY, ids=lambda item: type(item).__name__)
def test_a_gateways_item_comes_out_as_it_went_in(item: GatewayItem) -> None:
    sent = peer_codec.gateway_message([item, item]).SerializeToString()
    assert peer_codec.gateway_items(peer.GatewayMessage.FromString(sent)) == [item, item]


@pytest.mark.parametrize("item", FROM_OWNER, ids=lambda item: type(item).__name__)
def test_an_owners_item_comes_out_as_it_went_in(item: OwnerItem) -> None:
    sent = peer_codec.owner_message([item, item]).SerializeToString()
    assert peer_codec.owner_items(peer.OwnerMessage.FromString(sent)) == [item, item]


def test_items_keep_their_order() -> None:
    message = peer_codec.gateway_message(FROM_GATEWAY)
    assert peer_codec.gateway_items(message) == FROM_GATEWAY


def test_errors_keep_their_reason() -> None:
    result = PartitionResult(PLACE, error=StoreUnavailableError("away"))
    message = peer_codec.owner_message(
        [Settled(4, 1, result, 0), MemberEnd(4, MemberFencedError("a newer one"))]
    )
    settled, end = peer_codec.owner_items(message)
    assert isinstance(settled, Settled)
    assert isinstance(end, MemberEnd)
    assert isinstance(settled.result.error, StoreUnavailableError)
    assert settled.result.error.message == "away"
    assert isinstance(end.error, MemberFencedError)


@pytest.mark.parametrize(
    ("retriable", "kind"), [(True, StoreUnavailableError), (False, InternalError)]
)
def test_an_error_of_a_later_release_keeps_whether_a_retry_helps(
    retriable: bool,
    kind: type[Exception],
) -> None:
    message = peer.OwnerMessage()
    end = message.items.add().member_end
    end.handle, end.reason, end.message, end.retriable = 4, "NEW_ONE", "why", retriable
    (item,) = peer_codec.owner_items(message)
    assert isinstance(item, MemberEnd)
    assert type(item.error) is kind
    assert item.error.message == "NEW_ONE: why"


def test_what_a_later_release_says_more_is_passed_over() -> None:
    unknown = peer.GatewayMessage()
    unknown.items.add().MergeFromString(b"\xa2\x06\x00")  # field 100
    assert peer_codec.gateway_items(unknown) == []


def test_a_notice_of_no_locks_is_passed_over() -> None:
    message = peer.OwnerMessage()
    message.items.add().taken_back.handle = 4
    message.items.add().timed_out.handle = 5
    assert peer_codec.owner_items(message) == [TimedOut(5)]
