"""The records of Kafka's record batches (format v2), without C: slower, and equal in all else.

See `Part` for what they take, and each function for what it does. Whoever calls one has checked the
batch's header and decompressed its records. Import the functions from `opener`, which takes C where
it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from sharecoord_batches.errors import BrokenBatchError

__all__ = [
    "Columns",
    "Cursor",
    "Encoded",
    "Fields",
    "Headers",
    "Part",
    "columns",
    "encode",
    "has_header",
    "varint",
]

RECORD_BYTES_MIN: Final = 7
"""A record without key, value and headers: seven varints and bytes of one byte each."""

DELTA_MAX: Final = (1 << 32) - 1
"""From the first offset of an encoding to its last: protobuf's uint32."""

WINDOW_BYTES: Final = 1 << 16
"""So much of a batch is copied at once where it is not `bytes`: slices of bytes are what a record's
key and value become. Some records in the middle of a batch of 1 MB then do not cost all of it."""

_INT64: Final = 1 << 64
_HALF: Final = 1 << 62


class Part(NamedTuple):
    """The records of one batch that are wanted, and where in it to begin.

    A cursor (`position`, `row`, `previous_delta`) is where the last call ended; (start of the
    records, 0, -1) is the beginning.
    """

    data: bytes | bytearray | memoryview
    """Decompressed. Nobody may write to it during a call."""
    position: int
    row: int
    previous_delta: int
    end: int
    """Of the records in `data`."""
    count: int  # type: ignore[assignment]  # tuple.count is of no use here
    """Records of the whole batch, as its header says."""
    base_offset: int
    last_delta: int
    first_timestamp: int
    append_timestamp: int
    """Of all records, where the topic has log append time; else -1."""
    first: int
    last: int
    """Wanted are offsets in [first, last]."""


class Fields(NamedTuple):
    """Numbers of the fields of `RecordBatch` in protobuf, and of the messages behind `headers`."""

    deltas: int
    timestamps: int
    keys: int
    values: int
    null_keys: int
    null_values: int
    headers: int
    index: int  # type: ignore[assignment]  # tuple.index is of no use here
    entries: int
    name: int
    value: int


Headers: TypeAlias = list[tuple[str, bytes | None]]
"""A byte of a name that is not UTF-8 is a lone surrogate (`surrogateescape`)."""

Columns: TypeAlias = tuple[
    list[int], list[int], list[bytes | None] | None, list[bytes | None], dict[int, Headers]
]
"""Offset deltas, timestamps, keys (None: all are null), values, headers by index."""

Cursor: TypeAlias = tuple[int, int, int]
"""Position, row and previous delta of the next part of the same batch."""

Encoded: TypeAlias = tuple[bytes, int, int, int, int, list[Cursor]]
"""Columns in protobuf's encoding, records, first and last offset, bytes of keys and values, and a
cursor for each part."""


def columns(part: Part) -> Columns:
    """The wanted records of a batch as columns.

    Raises:
        BrokenBatchError: A record is not what the batch says, and which one.
    """
    reader = _Reader(part)
    reader.read()
    return reader.columns()


def encode(parts: Sequence[Part], fields: Fields) -> Encoded:
    """The wanted records of batches, in order of offset, as one message's columns.

    Raises:
        BrokenBatchError: As of `columns`, or there are no records, or they are not in order.
    """
    offsets: list[int] = []
    timestamps: list[int] = []
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    headers: list[tuple[int, Headers]] = []
    readers = [_Reader(part) for part in parts]
    for reader in readers:
        reader.read()
        deltas, times, some_keys, some_values, some_headers = reader.columns()
        if not deltas:
            continue
        base = reader.base_offset
        _check_order(offsets, base + deltas[0], base + deltas[-1])
        offsets += [base + delta for delta in deltas]
        timestamps += times
        keys += [None] * len(deltas) if some_keys is None else some_keys
        headers += [(len(values) + index, each) for index, each in some_headers.items()]
        values += some_values
    if not offsets:
        raise BrokenBatchError("the batches have none of the records that are wanted")
    first, last = offsets[0], offsets[-1]
    out: list[bytes] = []
    if last - first != len(offsets) - 1:
        out += _field(fields.deltas, b"".join([varint(offset - first) for offset in offsets]))
    times_column = b"".join(map(_Varints().__getitem__, timestamps))
    out += _field(fields.timestamps, times_column)
    payload, null_bits = 0, list[bytes]()
    if keys.count(None) < len(keys):
        payload += _put_entries(out, fields.keys, keys)
        if None in keys:
            null_bits += _field(fields.null_keys, _null_bits(keys))
    payload += _put_entries(out, fields.values, values)
    if None in values:
        null_bits += _field(fields.null_values, _null_bits(values))
    out += null_bits
    _put_headers(out, fields, headers)
    cursors = [reader.cursor for reader in readers]
    return b"".join(out), len(offsets), first, last, payload, cursors


def has_header(part: Part, beginning: bytes) -> bool:
    """Whether a wanted record has a header whose name begins so; no value is copied for it.

    A record that can not be read ends the look: `columns` says what is wrong with it.

    Raises:
        BrokenBatchError: The batch can not have so many records.
    """
    reader = _Reader(part)
    # Most batches have the bytes nowhere, and a search is quicker than all that comes after it.
    if beginning not in bytes(memoryview(part.data)[part.position : part.end]):
        return False
    try:
        reader.read()
    except BrokenBatchError:
        pass
    return any(
        name.encode(errors="surrogateescape").startswith(beginning)
        for named in reader.columns()[4].values()
        for name, _ in named
    )


def _check_order(offsets: list[int], first: int, last: int) -> None:
    """Records of [first, last] are to follow those of `offsets`."""
    if offsets and (first <= offsets[-1] or last - offsets[0] > DELTA_MAX):
        text = f"records {offsets[0]} and {first} are not in order of offset, or too far apart"
        raise BrokenBatchError(text)


class _Reader:
    """Reads the wanted records of a part into columns.

    `_usual` reads what nearly all records look like, without a call and without a look at what can
    not be: it takes a record only if its fields end exactly where the record does. A field that
    reaches beyond the record makes the ends differ; so does a size of three bytes that is taken for
    two, as no record there has 8 kB. All others are for `_unusual`, which has every check and text.
    """

    __slots__ = (
        "_append_timestamp", "_at", "_count", "_data", "_deltas", "_end", "_first",
        "_first_timestamp", "_headers", "_keys", "_last", "_last_delta", "_previous", "_row",
        "_times", "_values", "_window", "_window_at", "_window_end", "base_offset",
    )  # fmt: skip

    def __init__(self, part: Part) -> None:
        (
            data, self._at, self._row, previous, self._end, self._count, base, self._last_delta,
            self._first_timestamp, self._append_timestamp, first, last,
        ) = part  # fmt: skip
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        if (
            not 0 <= self._at <= self._end <= size
            or not 0 <= self._row <= self._count
            or previous < -1
            or self._count - self._row > (self._end - self._at) // RECORD_BYTES_MIN
            or base < 0
            or not 0 <= self._last_delta < 1 << 31
            or base >= (1 << 63) - self._last_delta
            or not 0 <= first <= last
        ):
            raise BrokenBatchError(
                f"the batch at offset {base} can not have {self._count} records"
                f" in {self._end - self._at} bytes"
            )
        self.base_offset = base
        # Deltas as varints have them (zigzag): twice what they are, as they are not negative.
        self._first, self._last = 2 * (first - base), 2 * (last - base)
        self._previous = 2 * previous
        self._data = data if isinstance(data, bytes) else memoryview(data).cast("B")
        self._window: bytes = data if isinstance(data, bytes) else b""
        self._window_at = 0
        self._window_end = self._end if isinstance(data, bytes) else 0
        self._deltas: list[int] = []
        self._times: list[int] = []
        """As varints have them."""
        self._keys: list[bytes | None] | None = None
        self._values: list[bytes | None] = []
        self._headers: dict[int, Headers] = {}

    @property
    def cursor(self) -> Cursor:
        """Where the next part of the same batch begins."""
        return self._at, self._row, self._previous // 2

    def columns(self) -> Columns:
        """What was read."""
        deltas = [delta >> 1 for delta in self._deltas]
        first, appended = self._first_timestamp, self._append_timestamp
        if appended >= 0:
            times = [appended] * len(deltas)
        else:
            times = [first + (delta >> 1 ^ -(delta & 1)) for delta in self._times]
            if not -_HALF <= first < _HALF or max(self._times, default=0) >= _HALF:
                times = [(time + _INT64 // 2) % _INT64 - _INT64 // 2 for time in times]
        return deltas, times, self._keys, self._values, self._headers

    def read(self) -> None:
        """Reads the wanted records, or as many as are left."""
        if isinstance(self._data, memoryview):
            self._move_window()
        while self._row < self._count and self._previous < self._last:
            before = self._at
            is_whole = self._usual()
            if self._at > before:
                continue
            if not is_whole and before > self._window_at and isinstance(self._data, memoryview):
                self._move_window()
            elif not self._unusual():
                return
        if self._row == self._count and self._at != self._end:
            text = f"the batch at offset {self.base_offset} has bytes behind its last record"
            raise BrokenBatchError(text)

    def _move_window(self) -> None:
        self._window_at = self._at
        self._window = bytes(self._data[self._at : min(self._at + WINDOW_BYTES, self._end)])
        self._window_end = len(self._window)

    def _usual(self) -> bool:  # noqa: C901 - a call per field would cost more than the field
        """Reads records while they are whole in the window (else False), and look usual."""
        window, end, count = self._window, self._window_end, self._count
        first, top = self._first, min(self._last, 2 * self._last_delta)
        at, row, previous = self._at - self._window_at, self._row, self._previous
        values, keys = self._values, self._keys
        add_delta, add_time, add_value = self._deltas.append, self._times.append, values.append
        try:
            while row < count:
                size = window[at]
                p = at + 2  # behind the length and the attributes, of which none is defined
                if size > 0x7F:
                    if (high := window[at + 1]) > 0x7F:
                        return True
                    size, p = size & 0x7F | high << 7, at + 3
                stop = p - 1 + size // 2
                if stop > end:
                    return False
                time, p = window[p], p + 1
                if time > 0x7F:
                    if (high := window[p]) > 0x7F:
                        time, p = _read_unsigned(window, p - 1, stop, "")
                    else:
                        time, p = time & 0x7F | high << 7, p + 1
                delta, p = window[p], p + 1
                if delta > 0x7F:
                    if (high := window[p]) > 0x7F:
                        delta, p = _read_unsigned(window, p - 1, stop, "")
                    else:
                        delta, p = delta & 0x7F | high << 7, p + 1
                if not previous < delta <= top or (delta | size) & 1:
                    return True
                if delta >= first:
                    key = value = None
                    size, p = window[p], p + 1
                    if not size & 1:
                        if size > 0x7F:
                            size, p = size & 0x7F | window[p] << 7, p + 1
                        key = window[p : (p := p + size // 2)]
                        if keys is None:
                            keys = self._keys = [None] * len(values)
                    elif size != 1:
                        return True
                    size, p = window[p], p + 1
                    if not size & 1:
                        if size > 0x7F:
                            size, p = size & 0x7F | window[p] << 7, p + 1
                        value = window[p : (p := p + size // 2)]
                    elif size != 1:
                        return True
                    if p + 1 != stop or window[p]:
                        self._add_headers(window, p, stop)
                    if keys is not None:
                        keys.append(key)
                    add_delta(delta)
                    add_time(time)
                    add_value(value)
                elif p + 3 > stop:  # no room for the fields that are passed over
                    return True
                at, previous, row = stop, delta, row + 1
            return True
        except IndexError:
            return False
        except _WrongError:
            return True
        finally:
            self._at, self._row, self._previous = at + self._window_at, row, previous

    def _unusual(self) -> bool:
        """Reads the next record, or says what is wrong with it. False = it is not wanted."""
        try:
            return self._read_record()
        except _WrongError as wrong:
            raise BrokenBatchError(
                f"record {self._row} of the batch at offset {self.base_offset}: {wrong}"
            ) from None

    def _read_record(self) -> bool:
        data = self._data
        length, at = _read(data, self._at, self._end, "its length can not be read")
        if not RECORD_BYTES_MIN - 1 <= length <= self._end - at:
            raise _WrongError("its length is not that of a record")
        end = at + length
        time, at = _read_unsigned(data, at + 1, end, "its timestamp can not be read")
        delta, at = _read_unsigned(data, at, end, "its offset can not be read")
        if delta & 1 or not self._previous < delta <= 2 * self._last_delta:
            raise _WrongError("its offset is not between those of its neighbours")
        if delta > self._last:
            return False
        if delta >= self._first:
            key, at = _sized(data, at, end, "its key is longer than the record")
            value, at = _sized(data, at, end, "its value is longer than the record")
            self._add_headers(data, at, end)
            if key is not None and self._keys is None:
                self._keys = [None] * len(self._values)
            if self._keys is not None:
                self._keys.append(key)
            self._deltas.append(delta)
            self._times.append(time)
            self._values.append(value)
        self._at, self._row, self._previous = end, self._row + 1, delta
        return True

    def _add_headers(self, data: bytes | memoryview, at: int, end: int) -> None:
        """Reads the headers of the record that comes next in the columns."""
        count, at = _read(data, at, end, "its number of headers is not possible")
        if not 0 <= count <= end - at:
            raise _WrongError("its number of headers is not possible")
        found: Headers = []
        for _ in range(count):
            # As in `_usual`: a short name and a short value need no call.
            if at < end and not (size := data[at]) & 0x81 and (stop := at + 1 + size // 2) < end:
                name = str(data[at + 1 : stop], "utf-8", "surrogateescape")
                at = stop
            else:
                long, at = _sized(data, at, end, "the name of a header is longer than the record")
                if long is None:
                    raise _WrongError("the name of a header is null")
                name = long.decode(errors="surrogateescape")
            if at < end and not (size := data[at]) & 0x81 and (stop := at + 1 + size // 2) <= end:
                value: bytes | None = bytes(data[at + 1 : stop])
                at = stop
            else:
                value, at = _sized(data, at, end, "the value of a header is longer than the record")
            found.append((name, value))
        if at != end:
            raise _WrongError("it has bytes behind its headers")
        if found:
            self._headers[len(self._values)] = found


class _WrongError(Exception):
    """What is wrong with a record."""


def _read_unsigned(data: bytes | memoryview, at: int, end: int, wrong: str) -> tuple[int, int]:
    """A varint of at most 64 bits, and where it ends."""
    found = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            if found < _INT64:
                return found, at
            break
        shift += 7
    raise _WrongError(wrong)


def _read(data: bytes | memoryview, at: int, end: int, wrong: str) -> tuple[int, int]:
    """The same of a number that may be negative (zigzag)."""
    found, at = _read_unsigned(data, at, end, wrong)
    return found >> 1 ^ -(found & 1), at


def _sized(data: bytes | memoryview, at: int, end: int, wrong: str) -> tuple[bytes | None, int]:
    """So many bytes as a varint says, and where they end; a negative length is a null."""
    size, at = _read(data, at, end, wrong)
    if size < 0:
        return None, at
    if size > end - at:
        raise _WrongError(wrong)
    return bytes(data[at : at + size]), at + size


# -- columns in protobuf's encoding ----------------------------------------------------------------


class _Varints(dict[int, bytes]):
    """The encodings of numbers, each made once: timestamps of neighbours are often equal."""

    def __missing__(self, number: int) -> bytes:
        made = self[number] = varint(number % _INT64)
        return made


class _Heads(dict[int, bytes]):
    """What stands before an entry of a field, by the entry's length."""

    def __init__(self, field: int) -> None:
        super().__init__()
        self._tag = varint(field << 3 | 2)

    def __missing__(self, length: int) -> bytes:
        made = self[length] = self._tag + varint(length)
        return made


def varint(number: int) -> bytes:
    """A number that is not negative as protobuf and Kafka write it, seven bits in each byte."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, content: bytes) -> tuple[bytes, bytes, bytes]:
    return varint(number << 3 | 2), varint(len(content)), content


def _put_entries(out: list[bytes], field: int, column: Sequence[bytes | None]) -> int:
    """Appends a column's entries, and returns their bytes."""
    entries = [entry or b"" for entry in column]
    lengths = list(map(len, entries))
    pieces = [b""] * (2 * len(entries))
    pieces[::2] = map(_Heads(field).__getitem__, lengths)
    pieces[1::2] = entries
    out += pieces
    return sum(lengths)


def _null_bits(column: Sequence[bytes | None]) -> bytes:
    bits = bytearray((len(column) + 7) // 8)
    for i, entry in enumerate(column):
        if entry is None:
            bits[i >> 3] |= 1 << (i & 7)
    return bytes(bits)


class _Names(dict[str, bytes]):
    """The names of headers as fields: a topic has few of them."""

    def __init__(self, field: int) -> None:
        super().__init__()
        self._field = field

    def __missing__(self, name: str) -> bytes:
        text = name.encode(errors="surrogateescape").decode(errors="backslashreplace")
        made = self[name] = b"".join(_field(self._field, text.encode()))
        return made


def _put_headers(out: list[bytes], fields: Fields, headers: list[tuple[int, Headers]]) -> None:
    records, entries, values = map(_Heads, (fields.headers, fields.entries, fields.value))
    names = _Names(fields.name)
    for index, each in headers:
        pieces = [varint(fields.index << 3), varint(index)] if index else []
        for name, value in each:
            entry = names[name] if value is None else names[name] + values[len(value)] + value
            pieces += entries[len(entry)], entry
        content = b"".join(pieces)
        out += records[len(content)], content
