"""Acknowledgements on their way: batched, numbered, kept until answered, and what the answers mean.

Acknowledging is safe to repeat, because every range shows the token of its delivery. So what was
not answered when a stream broke is sent again on the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

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

_ARCHIVED: Final = (types_pb.RECORD_STATE_ARCHIVED, types_pb.RECORD_STATE_ARCHIVING)


@dataclass(slots=True)
class AckRange:
    """Records of one lock with one acknowledgement."""

    span: Span
    kind: int
    details: AckDetails = NO_DETAILS
    #: RENEW of one record only: what is kept with it. The record stays with the application.
    checkpoint: bytes | None = None

    def to_wire(self) -> types_pb.AcknowledgedRange:
        first, last = self.span.first_offset, self.span.last_offset
        if self.checkpoint is not None:
            # The offset of the record alone: gaps beside it may belong to its span.
            first = last = self.span.columns.offset_at(self.span.start)
        return types_pb.AcknowledgedRange(
            first_offset=first,
            last_offset=last,
            checkpoint=self.checkpoint,
            type=self.kind,  # type: ignore[arg-type]
            lock_token=self.span.lock.token,
            **self.details._asdict(),
        )


@dataclass(slots=True, eq=False)
class PartitionAck:
    """Acknowledgements of one partition from one call of the application."""

    key: PartitionKey
    ranges: list[AckRange]
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
                for piece in _in_pieces(layer):
                    part = PartitionAck(key, piece, ticket, now)
                    if ticket is not None:
                        ticket.expect(part)
                    self._waiting.append(part)

    def take(self, now: float) -> service_pb.ConsumeRequest | None:
        """The next message with acknowledgements, or None when nothing is due.

        Within a message the ranges of a partition ascend and do not overlap. A record that was
        delivered a second time while its first delivery was under way goes in the next message,
        and so does what would make this one larger than any coordinator takes.
        """
        chosen: dict[PartitionKey, list[AckRange]] = {}
        parts: list[PartitionAck] = []
        left: list[PartitionAck] = []
        room = _MESSAGE_BYTES
        for part in self._waiting:
            taken = chosen.setdefault(part.key, [])
            if room > 0 and part.not_before <= now and not _overlaps(taken, part.ranges):
                taken.extend(part.ranges)
                parts.append(part)
                room -= sum(map(_size_of, part.ranges))
            else:
                left.append(part)
        if not parts:
            return None
        self._waiting = left
        self._last_id += 1
        self._sent[self._last_id] = parts
        return service_pb.ConsumeRequest(
            acknowledge_id=self._last_id,
            acknowledgements=[_to_wire(key, items) for key, items in chosen.items() if items],
            may_wait=not any(part.is_awaited for part in parts),
        )

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


def mark_row(columns: Columns, row: int, kind: int, details: AckDetails) -> bool:
    """Notes an acknowledgement; False when the record is not in flight."""
    state = columns.states[row]
    if state in (LOST, LOST_ACKNOWLEDGED):
        columns.states[row] = LOST_ACKNOWLEDGED
        return True
    if state > RENEW:
        return False
    columns.states[row] = kind
    if details != NO_DETAILS:
        columns.details = columns.details or {}
        columns.details[row] = details
    elif columns.details:
        columns.details.pop(row, None)
    return True


def _layers(items: list[AckRange]) -> list[list[AckRange]]:
    """Ranges in order of offset; more than one list when the same offsets occur twice."""
    items.sort(key=lambda item: item.span.first_offset)
    layers: list[list[AckRange]] = []
    for item in items:
        for layer in layers:
            if layer[-1].span.last_offset < item.span.first_offset:
                layer.append(item)
                break
        else:
            layers.append([item])
    return layers


def _size_of(item: AckRange) -> int:
    return _RANGE_BYTES + 4 * len(item.details.reason) + len(item.checkpoint or b"")


def _in_pieces(items: list[AckRange]) -> list[list[AckRange]]:
    """Ranges cut into lists of at most _MESSAGE_BYTES (one range at least)."""
    pieces: list[list[AckRange]] = [[]]
    room = _MESSAGE_BYTES
    for item in items:
        size = _size_of(item)
        if size > room and pieces[-1]:
            pieces.append([])
            room = _MESSAGE_BYTES
        pieces[-1].append(item)
        room -= size
    return pieces


def _overlaps(taken: list[AckRange], more: list[AckRange]) -> bool:
    if not taken and len(more) == 1:
        return False
    spans = sorted((r.span.first_offset, r.span.last_offset) for r in (*taken, *more))
    return any(spans[i][1] >= spans[i + 1][0] for i in range(len(spans) - 1))


def _to_wire(key: PartitionKey, items: list[AckRange]) -> types_pb.PartitionAcknowledgements:
    items.sort(key=lambda item: item.span.first_offset)
    return types_pb.PartitionAcknowledgements(
        partition=key.to_wire(),
        ranges=[item.to_wire() for item in items],
    )


def _settle(
    part: PartitionAck, exceptions: Sequence[types_pb.RangeOutcome], settlement: AckDecisions
) -> None:
    pieces: list[tuple[AckRange, Span, KafkaError | None]] = []
    for item in part.ranges:
        row = item.span.start
        for outcome in sorted(exceptions, key=lambda o: o.first_offset):
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
