"""Messages between coordinators (`core/fleet/peering.py`) to protobuf and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from sharecoord import errors
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
from sharecoord.core.partition.decisions import AcquiredRange, HeldRange, TakenBack
from sharecoord.core.partition.share_partition import RangeOutcome
from sharecoord.core.states import AcknowledgeOutcome, AcquireMode, RecordState, TakenBackReason
from sharecoord.errors import SharecoordError
from sharecoord.wire import codec
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire import share_types_pb2 as types

T = TypeVar("T")

_TREE: dict[str, type[SharecoordError]] = {
    found.reason: found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, SharecoordError)
}


def gateway_message(items: Iterable[GatewayItem]) -> peer.GatewayMessage:
    """Items of a gateway, in order."""
    message = peer.GatewayMessage()
    for item in items:
        _TO_OWNER[type(item)](message.items.add(), item)
    return message


def gateway_items(message: peer.GatewayMessage) -> list[GatewayItem]:
    """The items of a gateway that this release knows."""
    return _known(message.items, _FROM_GATEWAY)


def owner_message(items: Iterable[OwnerItem]) -> peer.OwnerMessage:
    """Items of an owner, in order."""
    message = peer.OwnerMessage()
    for item in items:
        _TO_GATEWAY[type(item)](message.items.add(), item)
    return message


def owner_items(message: peer.OwnerMessage) -> list[OwnerItem]:
    """The items of an owner that this release knows."""
    return _known(message.items, _FROM_OWNER)


def _known(items: Iterable[Any], readers: Mapping[str, Callable[[Any], T]]) -> list[T]:
    """Items that have a reader; those of a later release have none and are passed over."""
    named = ((each.WhichOneof("item"), each) for each in items)
    return [readers[name](getattr(each, name)) for name, each in named if name in readers]


# -- parts ----------------------------------------------------------------------------------------


def _key(group_id: str, place: types.TopicPartition) -> PartitionKey:
    return PartitionKey(group_id, place.topic, place.topic_id.hex(), place.partition, place.lane)


def _held(key: PartitionKey, held: HeldRange) -> types.HeldRange:
    return codec.lost_range(LostRange(key, held))


def _lost(item: types.HeldRange) -> LostRange:
    held = HeldRange(item.first_offset, item.last_offset, item.lock_token)
    return LostRange(_key("", item.partition), held)


def _error(reason: str, message: str, *, retriable: bool) -> SharecoordError:
    """An error of the other side; one that this release does not know keeps its policy."""
    known = _TREE.get(reason)
    if known is None:
        known = errors.StoreUnavailableError if retriable else errors.InternalError
        message = f"{reason}: {message}"
    return known(message)


def _range_outcome(found: types.RangeOutcome) -> RangeOutcome:
    outcome = AcknowledgeOutcome(found.outcome)
    finished = outcome is AcknowledgeOutcome.ALREADY_FINISHED
    final_state = RecordState(found.final_state) if finished else None
    return RangeOutcome(found.first_offset, found.last_offset, outcome, final_state)


def _result(outcome: types.PartitionOutcome) -> PartitionResult:
    error = None
    if outcome.error_reason:
        error = _error(
            outcome.error_reason, outcome.error_message, retriable=outcome.error_retriable
        )
    exceptions = [_range_outcome(each) for each in outcome.exceptions]
    return PartitionResult(
        _key("", outcome.partition), exceptions, error, outcome.lock_remaining_ms
    )


# -- from the gateway -----------------------------------------------------------------------------


def _put_member_up(item: peer.GatewayItem, up: MemberUp) -> None:
    into = item.member_up
    into.handle, into.group_id, into.member_id = up.handle, up.group_id, up.member_id
    into.member_epoch, into.client_id, into.host = up.member_epoch, up.client_id, up.host
    into.topics.extend(up.topics)
    into.acquire_mode = int(up.mode)  # type: ignore[assignment]
    into.max_poll_records = up.max_poll_records
    for topic, partition in sorted(up.paused):
        into.paused.add(topic=topic, partition=partition)
    into.lock_book.extend(_held(entry.key, entry.held) for entry in up.lock_book)


def _member_up(found: peer.MemberUp) -> MemberUp:
    return MemberUp(
        found.handle,
        found.group_id,
        found.member_id,
        found.member_epoch,
        found.client_id,
        found.host,
        tuple(found.topics),
        AcquireMode(found.acquire_mode),
        found.max_poll_records,
        frozenset((each.topic, each.partition) for each in found.paused),
        [_lost(each) for each in found.lock_book],
    )


def _put_lend(item: peer.GatewayItem, lend: Lend) -> None:
    into = item.lend
    into.handle, into.recall = lend.handle, lend.recalls
    into.records_total, into.bytes_total = lend.records_total, lend.bytes_total


def _put_settle(item: peer.GatewayItem, settle: Settle) -> None:
    into = item.settle
    into.handle, into.relay_id, into.may_wait = settle.handle, settle.relay_id, settle.may_wait
    into.acknowledgements.partition.CopyFrom(codec.topic_partition(settle.key))
    codec.put_acknowledged_ranges(into.acknowledgements, settle.ranges)


def _settle(found: peer.Settle) -> Settle:
    asked = found.acknowledgements
    key, ranges = _key("", asked.partition), codec.acknowledged_ranges(asked.ranges)
    return Settle(found.handle, found.relay_id, key, ranges, found.may_wait)


def _put_books(item: peer.GatewayItem, books: LockBooks) -> None:
    into = item.books
    into.partition.CopyFrom(codec.topic_partition(books.key))
    into.group_id, into.owner_epoch = books.key.group_id, books.owner_epoch
    for handle, ranges in books.held.items():
        into.books.add(handle=handle, held=[_held(books.key, held) for held in ranges])


def _books(found: peer.PartitionBooks) -> LockBooks:
    held = {each.handle: [_lost(entry).held for entry in each.held] for each in found.books}
    return LockBooks(_key(found.group_id, found.partition), found.owner_epoch, held)


def _put_freed(item: peer.GatewayItem, freed: Freed) -> None:
    item.freed.group_id = freed.key.group_id
    item.freed.partition.CopyFrom(codec.topic_partition(freed.key))


def _put_member_down(item: peer.GatewayItem, down: MemberDown) -> None:
    into = item.member_down
    into.handle, into.left = down.handle, down.left
    if down.lock_book is not None:
        into.lock_book.SetInParent()
        into.lock_book.held.extend(_held(entry.key, entry.held) for entry in down.lock_book)


def _member_down(found: peer.MemberDown) -> MemberDown:
    book = [_lost(each) for each in found.lock_book.held]
    return MemberDown(found.handle, found.left, book if found.HasField("lock_book") else None)


_TO_OWNER: dict[type, Callable[[peer.GatewayItem, Any], None]] = {
    MemberUp: _put_member_up,
    MemberDown: _put_member_down,
    Lend: _put_lend,
    Settle: _put_settle,
    LockBooks: _put_books,
    Alive: lambda item, _: item.alive.SetInParent(),
    Freed: _put_freed,
    Look: lambda item, _: item.look.SetInParent(),
}

_FROM_GATEWAY: dict[str, Callable[[Any], GatewayItem]] = {
    "member_up": _member_up,
    "member_down": _member_down,
    "lend": lambda found: Lend(found.handle, found.records_total, found.bytes_total, found.recall),
    "settle": _settle,
    "books": _books,
    "alive": lambda _: Alive(),
    "freed": lambda found: Freed(_key(found.group_id, found.partition)),
    "look": lambda _: Look(),
}

# -- from the owner -------------------------------------------------------------------------------


def _put_relayed(item: peer.OwnerItem, relayed: Relayed) -> None:
    into = item.deliver
    into.handle, into.records = relayed.handle, relayed.records
    into.credit_bytes, into.send_by_ms = relayed.size_bytes, relayed.send_by_ms
    into.partition.CopyFrom(codec.topic_partition(relayed.key))
    for each in relayed.ranges:
        into.ranges.add(
            first_offset=each.first,
            last_offset=each.last,
            delivery_count=each.delivery_count,
            lock_token=each.lock_token,
        )
    assert isinstance(relayed.frame, bytes), "made by the codec"
    into.frame = relayed.frame


def _relayed(found: peer.Deliver) -> Relayed:
    ranges = [
        AcquiredRange(each.first_offset, each.last_offset, each.delivery_count, each.lock_token, 0)
        for each in found.ranges
    ]
    return Relayed(
        found.handle,
        _key("", found.partition),
        ranges,
        found.records,
        found.credit_bytes,
        found.send_by_ms,
        found.frame,
    )


def _put_settled(item: peer.OwnerItem, settled: Settled) -> None:
    into = item.settled
    into.handle, into.relay_id, into.records = settled.handle, settled.relay_id, settled.records
    into.outcome.CopyFrom(codec.partition_outcome(settled.result))


def _put_returned(item: peer.OwnerItem, returned: Returned) -> None:
    into = item.returned
    into.handle = returned.handle
    into.records_total, into.bytes_total = returned.records_total, returned.bytes_total


def _put_timed_out(item: peer.OwnerItem, timed_out: TimedOut) -> None:
    item.timed_out.handle = timed_out.handle


def _put_taken_back(item: peer.OwnerItem, taken: MemberTakenBack) -> None:
    item.taken_back.handle = taken.handle
    item.taken_back.notices.extend(codec.taken_back(taken.key, taken.ranges))


def _taken_back(found: peer.MemberTakenBack) -> MemberTakenBack:
    ranges = [
        TakenBack("", each.first_offset, each.last_offset, each.lock_token, _reason(notice.reason))
        for notice in found.notices
        for each in notice.ranges
    ]
    return MemberTakenBack(found.handle, _key("", found.notices[0].partition), ranges)


def _reason(number: int) -> TakenBackReason:
    """A reason that this release does not know is told as a change of the state."""
    known = {int(each): each for each in TakenBackReason}
    return known.get(number, TakenBackReason.STATE_CHANGED)


def _put_hungry(item: peer.OwnerItem, hungry: Hungry) -> None:
    into = item.hungry
    into.group_id, into.topic, into.records = hungry.group_id, hungry.topic, hungry.records


def _put_ask_books(item: peer.OwnerItem, ask: AskLockBooks) -> None:
    into = item.ask_books
    into.group_id, into.owner_epoch = ask.key.group_id, ask.owner_epoch
    into.partition.CopyFrom(codec.topic_partition(ask.key))


def _put_compared(item: peer.OwnerItem, compared: Compared) -> None:
    item.compared.handle = compared.handle
    item.compared.lost.extend(codec.lost_range(each) for each in compared.lost)


def _put_member_end(item: peer.OwnerItem, end: MemberEnd) -> None:
    into = item.member_end
    into.handle, into.reason, into.message = end.handle, end.error.reason, end.error.message
    into.retriable = end.error.retriable


_TO_GATEWAY: dict[type, Callable[[peer.OwnerItem, Any], None]] = {
    Relayed: _put_relayed,
    Settled: _put_settled,
    Returned: _put_returned,
    TimedOut: _put_timed_out,
    MemberTakenBack: _put_taken_back,
    Hungry: _put_hungry,
    AskLockBooks: _put_ask_books,
    Compared: _put_compared,
    MemberEnd: _put_member_end,
}

_FROM_OWNER: dict[str, Callable[[Any], OwnerItem]] = {
    "deliver": _relayed,
    "settled": lambda found: Settled(
        found.handle, found.relay_id, _result(found.outcome), found.records
    ),
    "returned": lambda found: Returned(found.handle, found.records_total, found.bytes_total),
    "timed_out": lambda found: TimedOut(found.handle),
    "taken_back": _taken_back,
    "hungry": lambda found: Hungry(found.group_id, found.topic, found.records),
    "ask_books": lambda found: AskLockBooks(
        _key(found.group_id, found.partition), found.owner_epoch
    ),
    "compared": lambda found: Compared(found.handle, [_lost(each) for each in found.lost]),
    "member_end": lambda found: MemberEnd(
        found.handle, _error(found.reason, found.message, retriable=found.retriable)
    ),
}
