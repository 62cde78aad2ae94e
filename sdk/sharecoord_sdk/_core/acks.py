"""Acknowledgements on their way: batched, numbered, kept until answered, and what the answers mean.

Acknowledging is safe to repeat, because every range shows the token of its delivery. So what was
not answered when a stream broke is sent again on the next one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Final

from sharecoord_sdk._proto import share_service_pb2 as service_pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .columns import LOST, LOST_ACKNOWLEDGED, NO_DETAILS, AckDetails, Columns, PartitionKey, Span
from .errors import KafkaError
from .status import code_of_reason

ACCEPT: Final = int(types_pb.ACKNOWLEDGE_TYPE_ACCEPT)
RELEASE: Final = int(types_pb.ACKNOWLEDGE_TYPE_RELEASE)
REJECT: Final = int(types_pb.ACKNOWLEDGE_TYPE_REJECT)
RENEW: Final = int(types_pb.ACKNOWLEDGE_TYPE_RENEW)
#: Return of records that the application never saw: uncounted.
RETURN: Final = int(types_pb.ACKNOWLEDGE_TYPE_RETURN)

# Waits before an acknowledgement that failed for a passing reason is tried again.
_RETRY_FIRST_S: Final = 0.1
_RETRY_LONGEST_S: Final = 1.0

# A message of acknowledgements stays far below 128 KiB, the smallest limit that a coordinator can
# have; a checkpoint in it may take half of that.
_MESSAGE_BYTES: Final = 24 * 1024
_RANGE_BYTES: Final = 48

# Acknowledgements wait until they are for so many records: a message costs both sides as much as
# hundreds of records, and the records that come in their place are sent together.
HOLD_RECORDS: Final = 2_000
# They wait only while so many records are at hand, the default of max.poll.records: the next poll
# has enough, and may come at once.
HOLD_AT_HAND: Final = 500
# They wait no longer than this, whatever the program does meanwhile.
HOLD_S: Final = 0.005

_ARCHIVED: Final = (types_pb.RECORD_STATE_ARCHIVED, types_pb.RECORD_STATE_ARCHIVING)


@dataclass(slots=True)
class AckRange:
    """Records of one lock with one acknowledgement."""

    span: Span
    kind: int
    details: AckDetails = NO_DETAILS
    #: RENEW of one record only: what is kept with it. The record stays with the application.
    checkpoint: bytes | None = None
    #: Bounds of the span, inclusive: they are looked at several times.
    first_offset: int = field(init=False)
    last_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.first_offset, self.last_offset = self.span.first_offset, self.span.last_offset

    def add_to(self, wire_ranges: Any) -> None:
        """Adds the range to those of a message; made in place, because there may be hundreds."""
        wire = wire_ranges.add(
            first_offset=self.first_offset,
            last_offset=self.last_offset,
            type=self.kind,
            lock_token=self.span.lock.token,
        )
        if self.details is not NO_DETAILS:
            wire.delay_ms, wire.reason = self.details
        if self.checkpoint is not None:
            # The offset of the record alone: gaps beside it may belong to its span.
            wire.first_offset = wire.last_offset = self.span.columns.offset_at(self.span.start)
            wire.checkpoint = self.checkpoint

    def goes_on(self, before: AckRange) -> bool:
        """Whether the range and the one before can be one on the wire."""
        return (
            self.first_offset == before.last_offset + 1
            and self.kind == before.kind == ACCEPT
            and self.span.lock.token == before.span.lock.token
        )

    @property
    def size_bytes(self) -> int:
        """About what it takes in a message, never too little."""
        if self.details is NO_DETAILS and self.checkpoint is None:
            return _RANGE_BYTES
        return _RANGE_BYTES + 4 * len(self.details.reason) + len(self.checkpoint or b"")


@dataclass(slots=True, eq=False)
class PartitionAck:
    """Acknowledgements of one partition from one call of the application."""

    key: PartitionKey
    ranges: list[AckRange]
    size_bytes: int
    ticket: CommitTicket | None
    queued_at: float
    not_before: float = 0.0
    attempts: int = 0
    #: Sent before on a stream that broke: it may have been applied already.
    resent: bool = False

    @property
    def is_checkpoint(self) -> bool:
        return self.ranges[0].checkpoint is not None

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for the outcome: a commit, or a lock that must not end."""
        return self.ticket is not None or any(item.kind == RENEW for item in self.ranges)

    @property
    def places(self) -> Iterable[tuple[str, int]]:
        """The records' topics and partitions, as the application knows them."""
        if not self.key.lane:
            return ((self.key.topic, self.key.partition),)
        return {place for item in self.ranges for place in item.span.sources()}


class CommitTicket:
    """Pending outcomes of one commit; `when_done` is called when the last one has come."""

    __slots__ = ("_open", "_when_done", "results")

    def __init__(self, when_done: Callable[[], None] = lambda: None) -> None:
        self._open: set[PartitionAck] = set()
        self._when_done = when_done
        #: (topic, partition) -> the first error, or None when all went well.
        self.results: dict[tuple[str, int], KafkaError | None] = {}

    @property
    def is_done(self) -> bool:
        return not self._open

    def expect(self, part: PartitionAck) -> None:
        self._open.add(part)

    def settle(self, part: PartitionAck, error: KafkaError | None) -> None:
        self.note(part.places, error)
        self._open.discard(part)
        if self.is_done:
            self._when_done()

    def note(self, places: Iterable[tuple[str, int]], error: KafkaError | None) -> None:
        """Notes an outcome; the first error of a partition stays."""
        for place in places:
            self.results[place] = self.results.get(place) or error

    def time_out(self) -> None:
        """Gives up waiting: the open partitions count as timed out; their acks stay on the way."""
        for part in self._open:
            self.note(part.places, KafkaError(KafkaError._TIMED_OUT, retriable=True))
        self._open.clear()


@dataclass(slots=True)
class AckOutcome:
    """The outcome of one partition's records: one call of the application's callback."""

    key: PartitionKey
    spans: list[Span]
    error: KafkaError | None


@dataclass(slots=True)
class AckDecisions:
    """The decisions of one answer."""

    outcomes: list[AckOutcome] = field(default_factory=list)
    #: Renewed records: they come back by the next poll.
    renewed: list[Span] = field(default_factory=list)
    #: Records whose renewal failed; they are gone.
    not_renewed: list[Span] = field(default_factory=list)
    #: The group allows no renewals; the locks go on until they end.
    renewals_off: bool = False
    #: Records that should have gone back, and did not: the coordinator has them locked still.
    failed_returns: list[AckRange] = field(default_factory=list)


class AckBook:
    """Acknowledgements that wait to be sent, and those that wait for their answer."""

    def __init__(self, api_timeout_s: float) -> None:
        self._api_timeout_s = api_timeout_s
        self._last_id = 0
        self._waiting: list[PartitionAck] = []
        self._sent: dict[int, list[PartitionAck]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._waiting and not self._sent

    def has_application_acks(self) -> bool:
        """Whether an acknowledgement by the application is under way; mere returns do not count."""
        return any(item.kind != RETURN for item in self.ranges())

    def ranges(self) -> Iterable[AckRange]:
        """All acknowledgements under way, for the lock book."""
        for part in (*(p for parts in self._sent.values() for p in parts), *self._waiting):
            yield from part.ranges

    def going_back(self) -> Iterable[Span]:
        """Records under way as RELEASE or RETURN: no answer has said yet that they are back."""
        yield from (item.span for item in self.ranges() if item.kind in (RELEASE, RETURN))

    def add(self, ranges: Sequence[AckRange], ticket: CommitTicket | None, now: float) -> None:
        by_key: dict[PartitionKey, list[AckRange]] = {}
        for item in ranges:
            by_key.setdefault(item.span.columns.key, []).append(item)
        for key, items in by_key.items():
            for layer in _layers(items):
                for piece, size_bytes in _in_pieces(layer):
                    part = PartitionAck(key, piece, size_bytes, ticket, now)
                    if ticket is not None:
                        ticket.expect(part)
                    self._waiting.append(part)

    def take(self, now: float) -> service_pb.ConsumeRequest | None:
        """The next message with acknowledgements, or None when nothing is due.

        Within a message the ranges of a partition ascend and do not overlap. A record that was
        delivered a second time while its first delivery was under way goes in the next message,
        and so does what would make this one larger than any coordinator takes.
        """
        if not self._waiting:
            return None
        chosen: dict[PartitionKey, list[AckRange]] = {}
        parts: list[PartitionAck] = []
        left: list[PartitionAck] = []
        room = _MESSAGE_BYTES
        for part in self._waiting:
            taken = chosen.setdefault(part.key, [])
            if room > 0 and part.not_before <= now and not _overlaps(taken, part.ranges):
                taken.extend(part.ranges)
                parts.append(part)
                room -= part.size_bytes
            else:
                left.append(part)
        if not parts:
            return None
        self._waiting = left
        self._last_id += 1
        self._sent[self._last_id] = parts
        request = service_pb.ConsumeRequest(
            acknowledge_id=self._last_id, may_wait=not any(part.is_awaited for part in parts)
        )
        # What was sent before may be settled already: it stays apart.
        joins = not any(part.resent for part in parts)
        for key, items in chosen.items():
            if items:
                _add(request.acknowledgements, key, items, joins=joins)
        return request

    def held_until(self, now: float) -> float:
        """The time until which what waits may be held; -inf = not at all, or nothing waits.

        What somebody waits for, or what was sent before, is not held.
        """
        records = size_bytes = 0
        for part in self._waiting:
            if part.is_awaited or part.attempts or part.resent:
                return -math.inf
            size_bytes += part.size_bytes
            records += sum(len(item.span) for item in part.ranges)
        is_full = records >= HOLD_RECORDS or size_bytes >= _MESSAGE_BYTES
        if is_full or not self._waiting:
            return -math.inf
        until = self._waiting[0].queued_at + HOLD_S
        return until if until > now else -math.inf

    def drop_checkpoints(self, span: Span) -> None:
        """Drops unsent checkpoints of a record, because a later one takes their place."""
        for part in [p for p in self._waiting if p.is_checkpoint]:
            old = part.ranges[0].span
            if old.columns is span.columns and old.start == span.start:
                self._waiting.remove(part)
                if part.ticket is not None:
                    text = "a later checkpoint of the record took its place"
                    part.ticket.settle(part, KafkaError(KafkaError._STATE, text))

    def stream_lost(self) -> None:
        """Queues everything sent again, in order: on a lost stream nothing will be answered."""
        again = [part for _, parts in sorted(self._sent.items()) for part in parts]
        for part in again:
            part.resent = True
        self._sent.clear()
        self._waiting = again + self._waiting

    def wake_at(self) -> float | None:
        return min((part.not_before for part in self._waiting), default=None)

    def answered(self, result: service_pb.AcknowledgeResult, now: float) -> AckDecisions:
        """Reads the answer to one message: partitions that it leaves out succeeded."""
        settlement = AckDecisions()
        answers = {PartitionKey.of(each.partition): each for each in result.outcomes}
        for part in self._sent.pop(result.acknowledge_id, ()):
            answer = answers.get(part.key)
            if answer is not None and answer.error_reason:
                self._partition_failed(part, answer, settlement, now)
            else:
                _settle(part, () if answer is None else answer.exceptions, settlement)
        return settlement

    def _partition_failed(
        self,
        part: PartitionAck,
        answer: types_pb.PartitionOutcome,
        settlement: AckDecisions,
        now: float,
    ) -> None:
        # A program that stores a checkpoint must learn that there is no room.
        full = part.is_checkpoint and answer.error_reason == "LIMIT_EXCEEDED"
        # A checkpoint that nobody waits for is not tried again: a later one may be stored already.
        given_up = full or (part.is_checkpoint and part.ticket is not None and part.ticket.is_done)
        if answer.error_retriable and not given_up and now - part.queued_at < self._api_timeout_s:
            part.attempts += 1
            part.not_before = now + min(
                _RETRY_LONGEST_S, _RETRY_FIRST_S * 2 ** min(part.attempts - 1, 10)
            )
            self._waiting.append(part)
            return
        error = KafkaError(
            code_of_reason(answer.error_reason),
            answer.error_message or answer.error_reason,
            retriable=answer.error_retriable,
        )
        settlement.failed_returns += [i for i in part.ranges if i.kind in (RELEASE, RETURN)]
        _finish(part, [(item, item.span, error) for item in part.ranges], settlement)


# What an acknowledgement makes of each state; a lost record stays lost, and fails later.
_MAY_BE_MARKED: Final = bytes((*range(RENEW + 1), LOST, LOST_ACKNOWLEDGED))
_MARKS: Final = {
    kind: bytes.maketrans(
        _MAY_BE_MARKED, bytes((kind,)) * (RENEW + 1) + bytes((LOST_ACKNOWLEDGED,)) * 2
    )
    for kind in (ACCEPT, RELEASE, REJECT, RENEW)
}


def unmarkable_row(columns: Columns, start: int, stop: int) -> int | None:
    """The first of rows [start, stop) that is not in flight, or None."""
    states = columns.states[start:stop]
    bad = states.translate(None, _MAY_BE_MARKED)
    return start + states.index(bad[0]) if bad else None


def mark_rows(columns: Columns, start: int, stop: int, kind: int, details: AckDetails) -> None:
    """Notes an acknowledgement of rows [start, stop), which are in flight."""
    states = columns.states[start:stop].translate(_MARKS[kind])
    columns.states[start:stop] = states
    if details != NO_DETAILS:
        columns.details = columns.details or {}
        columns.details |= {row: details for row, at in enumerate(states, start) if at == kind}
    elif columns.details:
        for row in range(start, stop):
            columns.details.pop(row, None)


def mark_row(columns: Columns, row: int, kind: int, details: AckDetails) -> bool:
    """Notes an acknowledgement; False when the record is not in flight."""
    if unmarkable_row(columns, row, row + 1) is not None:
        return False
    mark_rows(columns, row, row + 1, kind, details)
    return True


_first_of: Final = attrgetter("first_offset")


def _layers(items: list[AckRange]) -> list[list[AckRange]]:
    """Ranges in order of offset; more than one list when the same offsets occur twice."""
    items.sort(key=_first_of)
    layers: list[list[AckRange]] = []
    ends: list[int] = []
    for item in items:
        for at, end in enumerate(ends):
            if end < item.first_offset:
                layers[at].append(item)
                ends[at] = item.last_offset
                break
        else:
            layers.append([item])
            ends.append(item.last_offset)
    return layers


def _in_pieces(items: list[AckRange]) -> list[tuple[list[AckRange], int]]:
    """Ranges cut into lists of at most _MESSAGE_BYTES (one range at least), and their sizes."""
    pieces: list[tuple[list[AckRange], int]] = []
    piece: list[AckRange] = []
    filled = 0
    for item in items:
        size = item.size_bytes
        if piece and filled + size > _MESSAGE_BYTES:
            pieces.append((piece, filled))
            piece, filled = [], 0
        piece.append(item)
        filled += size
    pieces.append((piece, filled))
    return pieces


def _overlaps(taken: list[AckRange], more: list[AckRange]) -> bool:
    """Whether ranges overlap others; within one list they never do (`_layers`)."""
    if not taken:
        return False
    spans = sorted((r.first_offset, r.last_offset) for r in (*taken, *more))
    return any(spans[i][1] >= spans[i + 1][0] for i in range(len(spans) - 1))


def _add(wire_parts: Any, key: PartitionKey, items: list[AckRange], *, joins: bool) -> None:
    items.sort(key=_first_of)
    ranges = wire_parts.add(partition=key.to_wire()).ranges
    last: AckRange | None = None
    for item in items:
        if joins and last is not None and item.goes_on(last):
            # Polls of one delivery: the coordinator decides about them at a stroke.
            ranges[-1].last_offset = item.last_offset
        else:
            item.add_to(ranges)
        last = item


def _settle(
    part: PartitionAck, exceptions: Sequence[types_pb.RangeOutcome], settlement: AckDecisions
) -> None:
    if not exceptions:
        _finish(part, [(item, item.span, None) for item in part.ranges], settlement)
        return
    pieces: list[tuple[AckRange, Span, KafkaError | None]] = []
    ordered = sorted(exceptions, key=_first_of)
    for item in part.ranges:
        row = item.span.start
        for outcome in ordered:
            if outcome.last_offset < item.first_offset:
                continue
            if outcome.first_offset > item.last_offset:
                break
            rows = item.span.overlap(outcome.first_offset, outcome.last_offset)
            if outcome.outcome == types_pb.ACKNOWLEDGE_OUTCOME_RENEW_DISABLED:
                settlement.renewals_off = True
            error = _meaning(item, outcome, resent=part.resent)
            if rows is None or error is None:
                continue
            start, stop = max(rows[0], row), rows[1]
            if row < start:
                pieces.append((item, item.span.within(row, start), None))
            if start < stop:
                pieces.append((item, item.span.within(start, stop), error))
                row = stop
        if row < item.span.stop:
            pieces.append((item, item.span.within(row, item.span.stop), None))
    _finish(part, pieces, settlement)


def _finish(
    part: PartitionAck,
    pieces: list[tuple[AckRange, Span, KafkaError | None]],
    settlement: AckDecisions,
) -> None:
    by_error: dict[KafkaError | None, list[Span]] = {}
    first_error: KafkaError | None = None
    for item, span, error in pieces:
        first_error = first_error or error
        if item.kind == RETURN or item.checkpoint is not None:
            # Nobody saw the records: there is nobody to tell. Or the ticket alone is told.
            continue
        if item.kind == RENEW:
            (settlement.renewed if error is None else settlement.not_renewed).append(span)
        by_error.setdefault(error, []).append(span)
    settlement.outcomes.extend(
        AckOutcome(part.key, spans, error) for error, spans in by_error.items()
    )
    if part.ticket is not None:
        part.ticket.settle(part, first_error)


def _meaning(item: AckRange, outcome: types_pb.RangeOutcome, *, resent: bool) -> KafkaError | None:
    """Converts a range's outcome to the application's error; None = success.

    * ALREADY_FINISHED is success when the final state is what was asked. A RELEASE that was sent
      again and finds the record archived is too: its first sending was the last failed delivery.
    * UNKNOWN_OUTCOME (below the start offset) is success: Kafka skips such acknowledgements in
      silence (KIP-932). Not so for RENEW, whose record must not come back to the handler.
    """
    match outcome.outcome:
        case types_pb.ACKNOWLEDGE_OUTCOME_OK:
            return None
        case types_pb.ACKNOWLEDGE_OUTCOME_UNKNOWN_OUTCOME if item.kind != RENEW:
            return None
        case types_pb.ACKNOWLEDGE_OUTCOME_ALREADY_FINISHED if _is_asked(item, outcome, resent):
            return None
        case types_pb.ACKNOWLEDGE_OUTCOME_RENEW_DISABLED if item.checkpoint is not None:
            why = "the group allows no renewals (share.renew.acknowledge.enable)"
            return KafkaError(KafkaError.INVALID_RECORD_STATE, why)
        case types_pb.ACKNOWLEDGE_OUTCOME_INVALID_REQUEST:
            return KafkaError(KafkaError.INVALID_REQUEST)
        case _:
            return KafkaError(KafkaError.INVALID_RECORD_STATE)


def _is_asked(item: AckRange, outcome: types_pb.RangeOutcome, resent: bool) -> bool:  # noqa: FBT001
    if item.kind == ACCEPT:
        return outcome.final_state == types_pb.RECORD_STATE_ACKNOWLEDGED
    if item.kind == REJECT or (item.kind == RELEASE and resent):
        return outcome.final_state in _ARCHIVED
    return False
