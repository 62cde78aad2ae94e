"""Messages between coordinators (`core/fleet/peering.py`) to protobuf and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeVar

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
from sharecoord.errors import SharecoordError, UnsupportedVersionError
from sharecoord.wire import PEER_PROTOCOL_VERSION, codec
from sharecoord.wire import peer_service_pb2 as peer
from sharecoord.wire import share_types_pb2 as types

M = TypeVar("M", peer.GatewayMessage, peer.OwnerMessage)

NAME_CHARS_MAX: Final = 128
"""Longest id of a coordinator (coordinator.id)."""

_TREE: dict[str, type[SharecoordError]] = {
    found.reason: found
    for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, SharecoordError)
}


def check_version(other: peer.Hello | peer.Welcome) -> None:
    """Refuses a coordinator that speaks another version of the protocol between coordinators.

    Raises:
        UnsupportedVersionError: Names both versions.
    """
    if other.protocol_version != PEER_PROTOCOL_VERSION:
        raise UnsupportedVersionError(
            f"coordinator {quoted(other.coordinator_id)} (version {quoted(other.version)}) speaks "
            f"version {other.protocol_version} of the protocol between coordinators, this one "
            f"{PEER_PROTOCOL_VERSION}: bring both to one release"
        )


def quoted(name: str) -> str:
    """A name that a stranger may have made up, as a message shows it: on one line, and short."""
    return ascii(name[:NAME_CHARS_MAX])


def gateway_message(items: Iterable[GatewayItem]) -> peer.GatewayMessage:
    """Items of a gateway, in order."""
    return _filled(peer.GatewayMessage(), items)


def gateway_items(message: peer.GatewayMessage) -> list[GatewayItem]:
    """The items of a gateway that this release knows."""
    return _known(message)


def owner_message(items: Iterable[OwnerItem]) -> peer.OwnerMessage:
    """Items of an owner, in order."""
    return _filled(peer.OwnerMessage(), items)


def owner_items(message: peer.OwnerMessage) -> list[OwnerItem]:
    """The items of an owner that this release knows."""
    return _known(message)


def _filled(message: M, items: Iterable[GatewayItem | OwnerItem]) -> M:
    for item in items:
        name, (put, _) = _KINDS[type(item)]
        into = getattr(message.items.add(), name)
        into.SetInParent()
        put(into, item)
    return message


def _known(message: peer.GatewayMessage | peer.OwnerMessage) -> list[Any]:
    """Items that have a reader, and something to tell; those of a later release have no reader."""
    named = ((each.WhichOneof("item"), each) for each in message.items)
    read = (_READERS[name](getattr(each, name)) for name, each in named if name in _READERS)
    return [item for item in read if item is not None]


# -- parts ----------------------------------------------------------------------------------------


def _key(group_id: str, place: types.TopicPartition) -> PartitionKey:
    return PartitionKey(group_id, place.topic, place.topic_id.hex(), place.partition, place.lane)


def _put_key(into: Any, key: PartitionKey) -> None:
    into.group_id = key.group_id
    into.partition.CopyFrom(codec.topic_partition(key))


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


def _put_member_up(into: peer.MemberUp, up: MemberUp) -> None:
    into.handle, into.group_id, into.member_id = up.handle, up.group_id, up.member_id
    into.member_epoch, into.client_id, into.host = up.member_epoch, up.client_id, up.host
    into.topics.extend(up.topics)
    into.acquire_mode = int(up.mode)  # type: ignore[assignment]
    into.max_poll_records = up.max_poll_records
    for topic, partition in sorted(up.paused):
        into.paused.add(topic=topic, partition=partition)
    into.lock_book.extend(map(codec.lost_range, up.lock_book))
    into.opens.extend(sorted(up.opens))  # type: ignore[arg-type]
    into.principal = up.principal
    into.takes_batches, into.is_atomic = up.takes_batches, up.is_atomic


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
        codec.opened(found.opens),
        found.principal,
        found.takes_batches,
        found.is_atomic,
    )


def _put_settle(into: peer.Settle, settle: Settle) -> None:
    into.handle, into.relay_id, into.may_wait = settle.handle, settle.relay_id, settle.may_wait
    into.acknowledgements.partition.CopyFrom(codec.topic_partition(settle.key))
    codec.put_acknowledged_ranges(into.acknowledgements, settle.ranges)


def _settle(found: peer.Settle) -> Settle:
    asked = found.acknowledgements
    key, ranges = _key("", asked.partition), codec.acknowledged_ranges(asked.ranges)
    return Settle(found.handle, found.relay_id, key, ranges, found.may_wait)


def _put_books(into: peer.PartitionBooks, books: LockBooks) -> None:
    _put_key(into, books.key)
    into.owner_epoch = books.owner_epoch
    for handle, ranges in books.held.items():
        held = [codec.lost_range(LostRange(books.key, each)) for each in ranges]
        into.books.add(handle=handle, held=held)


def _books(found: peer.PartitionBooks) -> LockBooks:
    held = {each.handle: [_lost(entry).held for entry in each.held] for each in found.books}
    return LockBooks(_key(found.group_id, found.partition), found.owner_epoch, held)


def _put_member_down(into: peer.MemberDown, down: MemberDown) -> None:
    into.handle, into.left = down.handle, down.left
    if down.lock_book is not None:
        into.lock_book.SetInParent()
        into.lock_book.held.extend(map(codec.lost_range, down.lock_book))


def _member_down(found: peer.MemberDown) -> MemberDown:
    book = [_lost(each) for each in found.lock_book.held]
    return MemberDown(found.handle, found.left, book if found.HasField("lock_book") else None)


# -- from the owner -------------------------------------------------------------------------------


def _put_relayed(into: peer.Deliver, relayed: Relayed) -> None:
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
    into.frame, into.has_batches = relayed.frame, relayed.has_batches


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
        found.has_batches,
    )


def _put_taken_back(into: peer.MemberTakenBack, taken: MemberTakenBack) -> None:
    into.handle = taken.handle
    into.notices.extend(codec.taken_back(taken.key, taken.ranges))


def _taken_back(found: peer.MemberTakenBack) -> MemberTakenBack | None:
    if not found.notices:
        return None
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


def _put_member_end(into: peer.MemberEnd, end: MemberEnd) -> None:
    into.handle, into.reason, into.message = end.handle, end.error.reason, end.error.message
    into.retriable = end.error.retriable


def _member_end(found: peer.MemberEnd) -> MemberEnd:
    error = _error(found.reason, found.message, retriable=found.retriable)
    return MemberEnd(found.handle, error)


# -- the table ------------------------------------------------------------------------------------

_PUT_PARTS: dict[str, Callable[[Any, Any], None]] = {
    "key": _put_key,
    "outcome": lambda into, result: into.outcome.CopyFrom(codec.partition_outcome(result)),
    "lost": lambda into, lost: into.lost.extend(map(codec.lost_range, lost)),
}
_READ_PARTS: dict[str, Callable[[Any], Any]] = {
    "key": lambda found: _key(found.group_id, found.partition),
    "outcome": lambda found: _result(found.outcome),
    "lost": lambda found: list(map(_lost, found.lost)),
}
"""Parts of flat items that are no plain values."""

_Put = Callable[[Any, Any], None]
_Read = Callable[[Any], GatewayItem | OwnerItem | None]


def _flat(kind: Callable[..., GatewayItem | OwnerItem], *fields: str) -> tuple[_Put, _Read]:
    """For a tuple whose parts are these fields of its message, in this order."""
    puts = [_PUT_PARTS.get(field, partial(_set, field)) for field in fields]
    reads = [_READ_PARTS.get(field, attrgetter(field)) for field in fields]

    def put(into: Any, item: Any) -> None:
        for put_part, part in zip(puts, item, strict=True):
            put_part(into, part)

    return put, lambda found: kind(*(read_part(found) for read_part in reads))


def _set(field: str, into: Any, value: object) -> None:
    setattr(into, field, value)


_KINDS: dict[type, tuple[str, tuple[_Put, _Read]]] = {
    MemberUp: ("member_up", (_put_member_up, _member_up)),
    MemberDown: ("member_down", (_put_member_down, _member_down)),
    Lend: ("lend", _flat(Lend, "handle", "records_total", "bytes_total", "recall")),
    Settle: ("settle", (_put_settle, _settle)),
    LockBooks: ("books", (_put_books, _books)),
    Alive: ("alive", _flat(Alive)),
    Freed: ("freed", _flat(Freed, "key")),
    Look: ("look", _flat(Look)),
    Relayed: ("deliver", (_put_relayed, _relayed)),
    Settled: ("settled", _flat(Settled, "handle", "relay_id", "outcome", "records")),
    Returned: ("returned", _flat(Returned, "handle", "records_total", "bytes_total")),
    TimedOut: ("timed_out", _flat(TimedOut, "handle")),
    MemberTakenBack: ("taken_back", (_put_taken_back, _taken_back)),
    Hungry: ("hungry", _flat(Hungry, "group_id", "topic", "records")),
    AskLockBooks: ("ask_books", _flat(AskLockBooks, "key", "owner_epoch")),
    Compared: ("compared", _flat(Compared, "handle", "lost")),
    MemberEnd: ("member_end", (_put_member_end, _member_end)),
}
"""Items of both directions: their field in messages, and how they are written and read."""

_READERS: dict[str | None, _Read] = {name: read for name, (_, read) in _KINDS.values()}
