"""Batches of records inside the SDK: columns, and the locks over them.

A record is a row number of a `Columns`; no object per record exists before somebody asks for one.
What became of each record is one byte in `Columns.states`, so that marking a whole batch is one
slice assignment and finding what is left is one search, both at the speed of C.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, NamedTuple
from weakref import ref

from sharecoord_sdk._proto import share_types_pb2 as types_pb

from . import whole
from .errors import KafkaError

# States of one record after it was handed out. 1 to 4 are the acknowledge types (KIP-932), set
# by the application and not sent yet.
IN_FLIGHT: Final = 0
LOST: Final = 250  # the lock is gone, and the application has not acknowledged it yet
LOST_ACKNOWLEDGED: Final = 251
RENEWING: Final = 252  # a RENEW is on its way
RENEWED: Final = 253  # renewed; comes back by the next poll
_RELEASE: Final = int(types_pb.ACKNOWLEDGE_TYPE_RELEASE)
SETTLED: Final = 255  # sent, or given up: no longer this poll's business

# A run of equal bytes. One regular expression finds runs several times faster than a loop.
_RUNS = re.compile(rb"(.)\1*", re.DOTALL)

HeadersList = list[tuple[str, bytes | None]]

# The longest reason of an acknowledgement, in bytes.
_REASON_BYTES: Final = 1024

# Headers that a coordinator puts on a dead letter: Kafka's own (KIP-1191), then its own.
_KAFKA_PREFIX: Final = "__dlq.errors."
_PREFIXES: Final = (_KAFKA_PREFIX, "sharecoord-dead-letter-")


class AckDetails(NamedTuple):
    """The details of an acknowledgement beside its type, by their names on the wire."""

    #: RELEASE only.
    delay_ms: int = 0
    #: REJECT and RELEASE only.
    reason: str = ""


NO_DETAILS: Final = AckDetails()


class PartitionKey(NamedTuple):
    """A partition of one incarnation of a topic (a re-created topic has another id)."""

    topic: str
    partition: int
    topic_id: bytes
    #: Set when `topic` is a dead-letter topic whose records are delivered again: the topic that
    #: they came from, as `TOPIC`, or `TOPIC/PARTITION` when all came from one partition.
    lane: str = ""

    @classmethod
    def of(cls, place: types_pb.TopicPartition) -> PartitionKey:
        return cls(place.topic, place.partition, place.topic_id, place.lane)

    def to_wire(self) -> types_pb.TopicPartition:
        return types_pb.TopicPartition(
            topic=self.topic, partition=self.partition, topic_id=self.topic_id, lane=self.lane
        )

    @property
    def served(self) -> str:
        """The topic to which one subscribes to get these records."""
        return self.home[0]

    @property
    def home(self) -> tuple[str, int]:
        """Topic and partition the records came from first; -1 = those of a lane from several."""
        if not self.lane:
            return self.topic, self.partition
        topic, _, partition = self.lane.partition("/")
        return topic, int(partition) if partition.isdecimal() else -1


class Lock(NamedTuple):
    """A run of offsets that one acquire gave to this consumer (KIP-932, acquired records)."""

    first_offset: int
    last_offset: int
    delivery_count: int
    token: int
    # On the caller's monotonic clock, counted from the receipt of the batch.
    deadline: float
    # Rows of the batch that it covers: [start, stop).
    start: int
    stop: int


class Payload:
    """Keys and values of a batch: protobuf's message until somebody needs them.

    Spans own it, messages do not: a message that the application keeps has its own key and value,
    and those of its neighbours go when the last span of the batch goes.
    """

    __slots__ = ("__weakref__", "_batch", "_whole", "keys", "unopened", "values")

    def __init__(self, batch: types_pb.RecordBatch, contents: Sequence[memoryview | bytes]) -> None:
        self._batch: types_pb.RecordBatch | None = batch
        self._whole: Sequence[memoryview | bytes] | None = contents
        self.keys: list[bytes | None] | None = None
        self.values: list[bytes | None] = []
        # Whole batches that nobody has asked for yet, in order.
        self.unopened: list[_WholeBatch] = []

    def unpack(self) -> types_pb.RecordBatch | None:
        """Turns keys and values into Python lists; returns the message, the first time only."""
        batch, self._batch = self._batch, None
        if batch is None:
            return None
        self.values = list(batch.values)
        if batch.null_values:
            _blank(self.values, batch.null_values)
        if batch.keys:
            self.keys = list(batch.keys)
            if batch.null_keys:
                _blank(self.keys, batch.null_keys)
        return batch

    def place(self, columns: Columns) -> None:
        """Finds out, once, which rows each whole batch has."""
        contents, self._whole = self._whole, None
        if contents is None:
            return
        self._batch = None
        self.values = [None] * columns.count
        position, why = 0, "no batch has them"
        for content in contents:
            try:
                header = whole.header_of(content)
            except ValueError as error:
                why = str(error)
                continue
            start = max(columns.row_from(header.base_offset), position)
            stop = columns.row_from(header.last_offset + 1)
            if start < stop:
                self._lack(position, start, why)
                self.unopened.append(_WholeBatch(start, stop, content, header))
                position = stop
        self._lack(position, columns.count, why)

    def _lack(self, start: int, stop: int, why: str) -> None:
        if start < stop:
            self.unopened.append(_WholeBatch(start, stop, b"", None, why))

    def take(self, start: int, stop: int) -> list[_WholeBatch]:
        """Takes the unopened batches that have rows of [start, stop)."""
        waiting = self.unopened
        first = next((at for at, each in enumerate(waiting) if each.stop > start), len(waiting))
        last = first
        while last < len(waiting) and waiting[last].start < stop:
            last += 1
        taken, waiting[first:last] = waiting[first:last], []
        return taken

    def fill(self, start: int, stop: int, opened: whole.Opened) -> None:
        """Takes the keys and values of rows [start, stop)."""
        self.values[start:stop] = opened.values
        if opened.keys is not None:
            if self.keys is None:
                self.keys = [None] * len(self.values)
            self.keys[start:stop] = opened.keys


class _WholeBatch(NamedTuple):
    """Rows [start, stop), and the batch that has them."""

    start: int
    stop: int
    content: memoryview | bytes
    header: whole.BatchHeader
    #: Why there is no batch.
    why: str = ""


_start_of = attrgetter("start")


class Columns:
    """The records of one batch, by column, and the state of each of them."""

    def __init__(
        self,
        batch: types_pb.RecordBatch,
        key: PartitionKey,
        received_at: float,
        contents: Sequence[memoryview | bytes] = (),
    ) -> None:
        """Takes a message of the wire, and the whole batches that came with it."""
        self.key = key
        self.topic: str = key.served
        self.partition: int = key.partition
        self.base_offset = batch.base_offset
        self.count = batch.record_count
        self.credit_bytes = batch.credit_bytes
        self.replay_epoch = batch.replay_epoch
        # Group and member that it was delivered to.
        self.holder = ("", "")
        self.received_at = received_at
        # The consumer that may acknowledge these records; set when they are handed out.
        self.owner: object | None = None
        self._deltas: list[int] | None = list(batch.offset_deltas) or None
        #: Whether some of the records are in whole batches that were not opened yet.
        self.unopened = bool(contents)
        if self.unopened and self._deltas is None:
            self._deltas = _deltas_of(batch)
        # What is only buffered costs no Python objects: see `unpack`. `_owned` until `spans` is
        # called, then the spans are its owners.
        self._owned: Payload | None = Payload(batch, contents)
        self._payload = ref(self._owned)
        # Columns that few programs read, as they came; Python objects are made at the first look.
        self._rest: types_pb.RecordBatch | None = None
        self._timestamps: list[int] | None = None
        self._timestamp_type = batch.timestamp_type
        self._headers: dict[int, HeadersList] | None = None
        self.states = bytearray(self.count)
        # Row -> what was stored with the record, in this delivery or before.
        self.checkpoints: dict[int, bytes] | None = None
        if self.unopened:
            self._keep_checkpoints(batch)
        #: Row -> why it can not be opened.
        self.errors: dict[int, KafkaError] | None = None
        # Row -> what became of its value, which a handler of batches of a Worker did not get.
        self.unread: dict[int, Exception] = {}
        # Row -> what its acknowledgement says beside its type, where it says something.
        self.details: dict[int, AckDetails] | None = None
        self.locks = [self._lock(bounds, received_at) for bounds in batch.ranges]
        # First rows of the locks with records, ascending, and the locks: made at the first look.
        self._by_row: tuple[list[int], list[Lock]] | None = None

    def _lock(self, bounds: types_pb.AcquiredRange, received_at: float) -> Lock:
        first, last = bounds.first_offset, bounds.last_offset
        deadline = received_at + bounds.lock_remaining_ms / 1000
        start, stop = first - self.base_offset, last + 1 - self.base_offset
        if self._deltas is not None or not 0 <= start <= stop <= self.count:
            start, stop = self.row_from(first), self.row_from(last + 1)
        return Lock(first, last, bounds.delivery_count, bounds.lock_token, deadline, start, stop)

    def spans(self) -> list[Span]:
        """A span for each lock with records. From here on the payload lives as long as spans do."""
        payload, self._owned = self.payload, None
        return [
            Span(self, lock, lock.start, lock.stop, payload)
            for lock in self.locks
            if lock.start < lock.stop
        ]

    @property
    def payload(self) -> Payload | None:
        """Keys and values; None when no span of the batch is left."""
        return self._payload()

    @property
    def keys(self) -> list[bytes | None] | None:
        """The keys; None when all are null, or when no span of the batch is left."""
        payload = self._payload()
        return None if payload is None else payload.keys

    @property
    def values(self) -> list[bytes | None]:
        """The values; none when no span of the batch is left."""
        payload = self._payload()
        return [] if payload is None else payload.values

    def unpack(self) -> None:
        """Turns keys and values of the wire into Python lists, once; whole batches stay closed."""
        if self.unopened:
            return
        payload = self._payload()
        batch = None if payload is None else payload.unpack()
        if batch is None:
            return
        if batch.timestamps_ms or batch.headers:
            # A copy at the speed of C, so that the message of the wire, with the values, can go.
            self._rest = types_pb.RecordBatch()
            self._rest.timestamps_ms.MergeFrom(batch.timestamps_ms)
            if batch.headers:
                self._rest.headers.MergeFrom(batch.headers)
        self._keep_checkpoints(batch)

    def _keep_checkpoints(self, batch: types_pb.RecordBatch) -> None:
        if batch.checkpoints:
            self.checkpoints = {each.index: each.data for each in batch.checkpoints}

    def open(self, start: int, stop: int) -> None:
        """Opens the whole batches that have rows of [start, stop).

        A batch that can not be opened leaves an error for each of its rows.
        """
        payload = self._payload()
        if payload is None or not self.unopened:
            return
        if self._headers is None:
            self._timestamps, self._headers = [0] * self.count, {}
            payload.place(self)
        for each in payload.take(start, stop):
            try:
                self._open(each, payload)
            except ValueError as error:
                self._fail(each, str(error))
        self.unopened = bool(payload.unopened)

    def _open(self, each: _WholeBatch, payload: Payload) -> None:
        if each.why:
            raise ValueError(each.why)
        start, stop = each.start, each.stop
        opened = whole.read(each.content, each.header, self._offsets(start, stop))
        payload.fill(start, stop, opened)
        assert self._timestamps is not None, "made at the first opening"
        assert self._headers is not None, "made at the first opening"
        self._timestamps[start:stop] = opened.timestamps
        self._headers |= {start + row: found for row, found in opened.headers.items()}

    def _fail(self, each: _WholeBatch, why: str) -> None:
        first, last = self.offset_at(each.start), self.offset_at(each.stop - 1)
        text = (
            f"offsets {first} to {last} of {self.topic} [{self.partition}] can not be opened:"
            f" {why}; they are released, and the coordinator opens them at their next delivery"
            " (sharecoord.record.batches=false: always)"
        )
        error = KafkaError(KafkaError._BAD_MSG, text)
        self.errors = (self.errors or {}) | dict.fromkeys(range(each.start, each.stop), error)

    def release_unopened(self, start: int, stop: int, error: KafkaError | None = None) -> None:
        """Marks records for release that nobody has acknowledged and that can not be opened.

        With an error all of the rows, for this cause.
        """
        for row in range(start, stop):
            found = error or (self.errors or {}).get(row)
            if found is not None and self.states[row] == IN_FLIGHT:
                reason = found.str().encode()[:_REASON_BYTES].decode(errors="ignore")
                self.states[row] = _RELEASE
                self.details = (self.details or {}) | {row: AckDetails(reason=reason)}

    def row_from(self, offset: int) -> int:
        """The first row whose offset is not below `offset`; `count` when there is none."""
        delta = offset - self.base_offset
        if delta <= 0:
            return 0
        if self._deltas is None:
            return min(delta, self.count)
        return bisect_left(self._deltas, delta)

    def row_of(self, offset: int) -> int | None:
        """The row of an offset, or None when the batch has no such record."""
        row = self.row_from(offset)
        return row if row < self.count and self.offset_at(row) == offset else None

    def offset_at(self, row: int) -> int:
        if self._deltas is None:
            return self.base_offset + row
        return self.base_offset + self._deltas[row]

    def offsets_of(self, start: int, stop: int) -> Iterable[int]:
        """The offsets of rows [start, stop) as the application knows them."""
        if self.key.lane:
            return [self.source_at(row)[1] for row in range(start, stop)]
        return self._offsets(start, stop)

    def _offsets(self, start: int, stop: int) -> Sequence[int]:
        if self._deltas is None:
            return range(self.base_offset + start, self.base_offset + stop)
        return [self.base_offset + delta for delta in self._deltas[start:stop]]

    def headers_at(self, row: int) -> HeadersList | None:
        headers = self._headers
        if headers is None:
            found = () if self._rest is None else self._rest.headers
            headers = self._headers = {
                each.index: [
                    (one.key, one.value if one.HasField("value") else None) for one in each.headers
                ]
                for each in found
            }
        return headers.get(row)

    def source_at(self, row: int) -> tuple[int, int]:
        """Partition and offset of a row as the application knows them.

        Of a redriven record where it came from first, or the letter's own if it does not say.
        """
        found = source_of(self.headers_at(row)) if self.key.lane else None
        return found or (self.partition, self.offset_at(row))

    def place_at(self, row: int) -> tuple[str, int, int]:
        """Topic, partition and offset of a row as the application knows them."""
        return (self.topic, *self.source_at(row))

    def checkpoint_at(self, row: int) -> bytes | None:
        return None if self.checkpoints is None else self.checkpoints.get(row)

    def keep_checkpoint(self, row: int, data: bytes) -> None:
        self.checkpoints = {**(self.checkpoints or {}), row: data}

    def timestamp_at(self, row: int) -> tuple[int, int]:
        """Kind and milliseconds of a row's time; (0, 0) when the record carries none."""
        times = self._timestamps
        if times is None:
            times = [] if self._rest is None else list(self._rest.timestamps_ms)
            self._timestamps = times
        if self._timestamp_type == 0 or not times:
            return (0, 0)
        return (self._timestamp_type, times[row])

    def span_at(self, row: int) -> Span | None:
        lock = self.lock_at(row)
        return None if lock is None else Span(self, lock, row, row + 1, self.payload)

    def lock_at(self, row: int) -> Lock | None:
        found = self._by_row
        if found is None:
            # In order of offset already, unless a coordinator broke its word.
            locks = sorted((lock for lock in self.locks if lock.start < lock.stop), key=_start_of)
            found = self._by_row = [lock.start for lock in locks], locks
        at = bisect_right(found[0], row) - 1
        return found[1][at] if at >= 0 and row < found[1][at].stop else None

    def delivery_count_at(self, row: int) -> int | None:
        lock = self.lock_at(row)
        return None if lock is None else lock.delivery_count


@dataclass(slots=True, eq=False)
class HandOut:
    """Records that a call is about to return: the application has the first `given` of them.

    The call sets `given` in its last step before the return. What raises before (a signal's
    handler, a thread that can not be started) finds records that nobody was given; they wait again.
    """

    spans: list[Span]
    #: Whether they were renewed, and so do not come from the buffer.
    is_renewed: bool = False
    given: int = 0
    #: Whether more of them may be given: a later call has not looked yet.
    is_open: bool = True

    def split(self) -> tuple[list[Span], list[Span]]:
        """Splits the spans into what was given and the rest."""
        given, rest = [], []
        left = self.given
        for span in self.spans:
            size = span.stop - span.start
            if size <= left:
                given.append(span)
            elif left:
                middle = span.start + left
                given.append(span.within(span.start, middle))
                rest.append(span.within(middle, span.stop))
            else:
                rest.append(span)
            left -= min(left, size)
        return given, rest


def _deltas_of(batch: types_pb.RecordBatch) -> list[int] | None:
    """Offset deltas of whole batches that come without: ranges name each offset."""
    base, ranges = batch.base_offset, batch.ranges
    if ranges[-1].last_offset - base + 1 == batch.record_count:
        return None
    return [at - base for each in ranges for at in range(each.first_offset, each.last_offset + 1)]


def _blank(column: list[Any], null_bits: bytes) -> None:
    """Puts None where a bit is set, least significant bit first."""
    for base, byte in enumerate(null_bits):
        while byte:
            low = byte & -byte
            column[base * 8 + low.bit_length() - 1] = None
            byte ^= low


@dataclass(slots=True, eq=False)
class Span:
    """A run of rows under one lock: the unit of buffering, handing out and acknowledging.

    Several lists may have the same span; only a worker's lease changes one, its own.
    """

    columns: Columns
    lock: Lock
    start: int
    stop: int
    #: Kept so that it lives as long as the span.
    payload: Payload | None = None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def first_offset(self) -> int:
        """First offset that the span stands for, inclusive."""
        if self.start == self.lock.start:
            return self.lock.first_offset
        return self.columns.offset_at(self.start)

    @property
    def last_offset(self) -> int:
        """Last offset that the span stands for, inclusive.

        Offsets of the lock without a record (gaps) belong to the record before them, so that the
        spans of a lock cover it whole.
        """
        if self.stop == self.lock.stop:
            return self.lock.last_offset
        return self.columns.offset_at(self.stop) - 1

    @property
    def credit_bytes(self) -> int:
        """The span's part of the bytes of its batch, rounded down."""
        return self.columns.credit_bytes * len(self) // self.columns.count

    def sources(self) -> dict[tuple[str, int], set[int]]:
        """The span's records as the application knows them: offsets by topic and partition."""
        columns = self.columns
        if not columns.key.lane:
            return {(columns.topic, columns.partition): set(self.offsets())}
        found: dict[tuple[str, int], set[int]] = {}
        for row in range(self.start, self.stop):
            partition, offset = columns.source_at(row)
            found.setdefault((columns.topic, partition), set()).add(offset)
        return found

    def within(self, start: int, stop: int) -> Span:
        """The same lock over fewer rows."""
        return Span(self.columns, self.lock, start, stop, self.payload)

    def mark(self, state: int) -> None:
        self.columns.states[self.start : self.stop] = bytes((state,)) * len(self)

    def runs(self) -> list[tuple[int, Span]]:
        """The span cut into runs of one state each, in order of offset."""
        states = self.columns.states
        first = states[self.start]
        if states.count(first, self.start, self.stop) == len(self):
            return [(first, self)]
        base = self.start
        return [
            (run[0][0], self.within(base + run.start(), base + run.end()))
            for run in _RUNS.finditer(bytes(states[self.start : self.stop]))
        ]

    def offsets(self) -> range | list[int]:
        """The offsets of the span's records (gaps left out)."""
        columns = self.columns
        first, last = columns.offset_at(self.start), columns.offset_at(self.stop - 1)
        if last - first == len(self) - 1:
            return range(first, last + 1)
        return [columns.offset_at(row) for row in range(self.start, self.stop)]

    def overlap(self, first_offset: int, last_offset: int) -> tuple[int, int] | None:
        """Rows of the span whose offsets lie within the bounds (inclusive), or None."""
        start = max(self.start, self.columns.row_from(first_offset))
        stop = min(self.stop, self.columns.row_from(last_offset + 1))
        return (start, stop) if start < stop else None


def source_of(headers: HeadersList | None) -> tuple[int, int] | None:
    """Partition and offset of the record that became a letter; None when it does not say so."""
    # The coordinator's come behind the record's own, which may have such names as well.
    found = {name: value for name, value in headers or () if name.startswith(_KAFKA_PREFIX)}
    try:
        partition = int(found[_KAFKA_PREFIX + "partition"] or b"")
        offset = int(found[_KAFKA_PREFIX + "offset"] or b"")
    except (KeyError, ValueError):
        return None
    return (partition, offset) if partition >= 0 and offset >= 0 else None


def own_headers(headers: HeadersList | None) -> HeadersList | None:
    """The headers that the record had before it became a letter; None without any."""
    own = [each for each in headers or () if not each[0].startswith(_PREFIXES)]
    return own or None


def joined(spans: Iterable[Span]) -> Iterator[tuple[Columns, int, int, list[Span]]]:
    """Runs of spans that follow one another in a batch: its rows [start, stop), and the spans."""
    run: list[Span] = []
    for span in spans:
        if run and not (span.columns is run[0].columns and span.start == run[-1].stop):
            yield run[0].columns, run[0].start, run[-1].stop, run
            run = []
        run.append(span)
    if run:
        yield run[0].columns, run[0].start, run[-1].stop, run
