"""Records as columns and as protobuf: C and its twin say the same, and what was written."""

from __future__ import annotations

import gc
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sharecoord_batches import opener, records
from sharecoord_batches.errors import BrokenBatchError
from sharecoord_batches.records import Columns, Cursor, Part

from sharecoord.core.records import header_text
from sharecoord.wire import share_types_pb2
from tests.batches.encoder import FIELDS, INT64, Record, body, part, varint
from tests.batches.opened import native, outcome, same

END = (1 << 63) - 1
KINDS: list[Callable[[bytes], Any]] = [
    bytes,
    bytearray,
    memoryview,
    lambda data: memoryview(b"before" + data + b"behind")[6 : 6 + len(data)],
    lambda data: memoryview(bytearray(data)).cast("b"),
]

contents = st.one_of(
    st.none(),
    st.binary(max_size=5),
    st.integers(60, 70).map(bytes),
    st.sampled_from([8180, 8191, 8192, 20_000, 70_000]).map(bytes),
)
names = st.one_of(st.sampled_from([b"", b"a", b"x\xffy", "ключ".encode()]), st.binary(max_size=6))
headers = st.lists(st.tuples(names, st.one_of(st.none(), st.binary(max_size=6))), max_size=3)
times = st.one_of(
    st.integers(0, 100), st.integers(-20_000, 3_000_000), st.integers(-(1 << 63), (1 << 63) - 1)
)


@st.composite
def written(draw: st.DrawFn) -> list[Record]:
    """The records of a batch; offsets may be missing between them."""
    steps = draw(st.lists(st.one_of(st.just(1), st.integers(1, 20_000)), min_size=1, max_size=12))
    found, delta = [], draw(st.sampled_from([-1, 0, 60, 8_190]))
    for step in steps:
        delta += step
        found.append(
            Record(delta, draw(times), draw(contents), draw(contents), tuple(draw(headers)))
        )
    return found


def expected(
    some: Sequence[Record], first_timestamp: int, append_timestamp: int, first: int, last: int
) -> Columns:
    """The columns of the records with deltas in [first, last]."""
    wanted = [record for record in some if first <= record.delta <= last]
    half = INT64 // 2
    times = [(first_timestamp + record.time + half) % INT64 - half for record in wanted]
    keys = [record.key for record in wanted]
    return (
        [record.delta for record in wanted],
        times if append_timestamp < 0 else [append_timestamp] * len(wanted),
        keys if any(key is not None for key in keys) else None,
        [record.value for record in wanted],
        {
            i: [(name.decode(errors="surrogateescape"), value) for name, value in record.headers]
            for i, record in enumerate(wanted)
            if record.headers
        },
    )


@given(
    written(), st.sampled_from(KINDS), st.integers(0, 1 << 40), st.integers(-5, 1 << 41),
    st.sampled_from([-1, 0, 1_700_000_000_000]), st.integers(0, 30_000), st.integers(0, 60_000),
)  # fmt: skip
def test_columns_are_what_was_written(
    some: list[Record],
    kind: Callable[[bytes], Any],
    base: int,
    first_timestamp: int,
    append_timestamp: int,
    first: int,
    span: int,
) -> None:
    whole = part(
        some,
        base_offset=base,
        first_timestamp=first_timestamp,
        append_timestamp=append_timestamp,
        first=base + first,
        last=base + first + span,
    )
    whole = whole._replace(data=kind(whole.data))  # type: ignore[arg-type]
    wanted = expected(some, first_timestamp, append_timestamp, first, first + span)
    assert same("columns", whole) == wanted
    assert all(type(value) in (bytes, type(None)) for value in records.columns(whole)[3])


@given(written(), st.sampled_from(KINDS), st.integers(0, 30_000), st.integers(0, 60_000), names)
def test_a_header_is_found_by_the_beginning_of_its_name(
    some: list[Record], kind: Callable[[bytes], Any], first: int, span: int, beginning: bytes
) -> None:
    whole = part(some, first=first, last=first + span)
    whole = whole._replace(data=kind(whole.data))  # type: ignore[arg-type]
    found = any(
        name.startswith(beginning)
        for record in some
        if first <= record.delta <= first + span
        for name, _ in record.headers
    )
    assert same("has_header", whole, beginning) is found


def test_a_header_is_not_looked_for_behind_a_record_that_can_not_be_read() -> None:
    before, behind = (Record(delta, headers=[(b"name", None)]) for delta in (0, 2))
    for some, found in ([before, Record(1), behind], True), ([Record(0), Record(1), behind], False):
        whole = part(some)
        at = len(body(some[:1]))
        data = bytearray(whole.data)
        data[at] = 1  # a negative length
        assert same("has_header", whole._replace(data=bytes(data)), b"na") is found


@given(st.lists(written(), min_size=1, max_size=3), st.integers(0, 1 << 40), st.data())
def test_encoded_columns_are_what_was_written(
    batches: list[list[Record]], base: int, data: st.DataObject
) -> None:
    parts, all_records = [], []
    for some in batches:
        kind = data.draw(st.sampled_from(KINDS))
        one = part(some, base_offset=base)
        parts.append(one._replace(data=kind(one.data)))  # type: ignore[arg-type]
        all_records += [(base + record.delta, record) for record in some]
        base += some[-1].delta + data.draw(st.integers(1, 3))
    encoded = same("encode", parts, FIELDS)
    assert isinstance(encoded, tuple)
    content, count, first, last, payload, cursors = encoded
    offsets = [offset for offset, _ in all_records]
    assert (count, first, last) == (len(offsets), offsets[0], offsets[-1])
    assert cursors == [(len(p.data), p.count, p.last_delta) for p in parts]
    some = [record for _, record in all_records]
    assert payload == sum(len(r.key or b"") + len(r.value or b"") for r in some)
    compare(share_types_pb2.RecordBatch.FromString(content), offsets, some)


def compare(message: share_types_pb2.RecordBatch, offsets: list[int], some: list[Record]) -> None:
    """Protobuf's own reader finds what was written."""
    deltas = [offset - offsets[0] for offset in offsets]
    assert list(message.offset_deltas) == ([] if deltas == list(range(len(deltas))) else deltas)
    assert list(message.timestamps_ms) == expected(some, 1_000, -1, 0, END)[1]
    has_keys = any(record.key is not None for record in some)
    assert list(message.keys) == ([record.key or b"" for record in some] if has_keys else [])
    assert list(message.values) == [record.value or b"" for record in some]
    null_keys = [record.key is None for record in some] if has_keys else []
    assert bits(message.null_keys, len(some)) == (null_keys if any(null_keys) else [])
    null_values = [record.value is None for record in some]
    assert bits(message.null_values, len(some)) == (null_values if any(null_values) else [])
    found = {
        each.index: [
            (entry.key, entry.value if entry.HasField("value") else None) for entry in each.headers
        ]
        for each in message.headers
    }
    assert found == {
        i: [(header_text(n.decode(errors="surrogateescape")), v) for n, v in record.headers]
        for i, record in enumerate(some)
        if record.headers
    }


def bits(content: bytes, count: int) -> list[bool]:
    """A bitmap, the least significant bit first."""
    return [bool(content[i >> 3] >> (i & 7) & 1) for i in range(count)] if content else []


@given(written(), st.lists(st.integers(0, 30_000), max_size=5), st.sampled_from(KINDS))
def test_cursors_continue_where_the_last_call_ended(
    some: list[Record], stops: list[int], kind: Callable[[bytes], Any]
) -> None:
    whole = part(some)
    whole = whole._replace(data=kind(whole.data))  # type: ignore[arg-type]
    cursor: Cursor = (0, 0, -1)
    found: list[int] = []
    first = 0
    for stop in [*sorted(stops), 1 << 31]:
        position, row, previous = cursor
        step = whole._replace(
            position=position, row=row, previous_delta=previous, first=first, last=max(stop, first)
        )
        encoded = same("encode", [step], FIELDS)
        wanted = [r.delta for r in some if first <= r.delta <= step.last]
        if wanted:
            assert isinstance(encoded, tuple)
            (cursor,) = encoded[5]
            assert encoded[1:4] == (len(wanted), wanted[0], wanted[-1])
        else:
            text = "the batches have none of the records that are wanted"
            assert encoded == (BrokenBatchError, text)
        found += wanted
        first = step.last + 1
    assert found == [record.delta for record in some]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [0, 7, 100, 5_000, 9_000])
def test_batches_are_larger_than_a_window(kind: Callable[[bytes], Any], size: int) -> None:
    """Records begin, end and lie across the edges of what the twin copies at once."""
    count = 3 * records.WINDOW_BYTES // (size + 7) + 5
    some = [Record(i, i // 9, None, bytes(size + i % 7)) for i in range(count)]
    whole = part(some)
    whole = whole._replace(data=kind(whole.data))  # type: ignore[arg-type]
    assert same("columns", whole) == expected(some, 1_000, -1, 0, END)
    for first, last in ((0, 0), (count // 2, count // 2 + 3), (count - 2, END)):
        some_of_them = whole._replace(first=first, last=last)
        assert same("columns", some_of_them) == expected(some, 1_000, -1, first, last)


# -- bytes that somebody made up -------------------------------------------------------------------

RUIN = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 400), st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF])),
    st.tuples(st.just("cut"), st.integers(1, 40), st.just(0)),
    st.tuples(st.just("insert"), st.integers(0, 400), st.integers(0, 255)),
    st.tuples(st.just("remove"), st.integers(0, 400), st.just(0)),
)


def ruined(content: bytes, how: list[tuple[str, int, int]]) -> bytes:
    """The bytes with some of them changed."""
    out = bytearray(content)
    for what, where, byte in how:
        at = where % max(len(out), 1)
        if what == "cut":
            del out[-where:]
        elif what == "insert":
            out.insert(at, byte)
        elif out and what == "set":
            out[at] = byte
        elif out:
            del out[at]
    return bytes(out)


small = st.lists(
    st.builds(
        Record,
        st.just(0),
        st.integers(-70, 70),
        st.one_of(st.none(), st.binary(max_size=3)),
        st.one_of(st.none(), st.binary(max_size=3), st.just(bytes(70))),
        headers.map(tuple),
    ),
    min_size=1,
    max_size=4,
)


@given(
    small, st.lists(RUIN, max_size=3), st.integers(-1, 2), st.integers(-1, 1), st.integers(0, 4),
    st.integers(0, 4), st.sampled_from(KINDS),
)  # fmt: skip
def test_both_say_the_same_of_bytes_that_are_wrong(
    some: list[Record],
    how: list[tuple[str, int, int]],
    more: int,
    more_delta: int,
    first: int,
    span: int,
    kind: Callable[[bytes], Any],
) -> None:
    some = [Record(i, r.time, r.key, r.value, r.headers) for i, r in enumerate(some)]
    data = ruined(body(some), how)
    broken = Part(
        kind(data), 0, 0, -1, len(data), len(some) + more, 5, max(len(some) - 1 + more_delta, 0),
        1_000, -1, 5 + first, 5 + first + span,
    )  # fmt: skip
    same("columns", broken)
    same("encode", [broken], FIELDS)
    later = part([Record(0)], base_offset=7)
    same("encode", [broken, later], FIELDS)
    same("encode", [later, broken], FIELDS)


@given(st.binary(max_size=60), st.integers(0, 9), st.sampled_from(KINDS))
def test_both_say_the_same_of_any_bytes(
    data: bytes, count: int, kind: Callable[[bytes], Any]
) -> None:
    any_bytes = part([], data=kind(data), end=len(data), count=count, last_delta=1_000)
    same("columns", any_bytes)
    same("encode", [any_bytes], FIELDS)


HEAD = b"\0\0\0\1\1"
"""Attributes, timestamp, offset 0, a null key and a null value."""


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff" * 20, "its length can not be read"),
        (b"\x0a" + bytes(6), "its length is not that of a record"),
        (b"\x01" + bytes(6), "its length is not that of a record"),
        (b"\x0e" + bytes(6), "its length is not that of a record"),
        (varint(1 << 62) + bytes(6), "its length is not that of a record"),
        (b"\x0c\0" + b"\xff" * 5, "its timestamp can not be read"),
        (b"\x0c\0\0" + b"\xff" * 4, "its offset can not be read"),
        (b"\x0c\0\0\x02\1\1\0", "its offset is not between those of its neighbours"),
        (b"\x0c\0\0\x01\1\1\0", "its offset is not between those of its neighbours"),
        (b"\x0c\0\0\0\x20\1\0", "its key is longer than the record"),
        (b"\x0c\0\0\0\1\x20\0", "its value is longer than the record"),
        (b"\x0c\0\0\0\1\x02\0", "its number of headers is not possible"),
        (b"\x0c" + HEAD + b"\x20", "its number of headers is not possible"),
        (b"\x0c" + HEAD + b"\x01", "its number of headers is not possible"),
        (b"\x10" + HEAD + b"\x02\x20\0", "the name of a header is longer than the record"),
        (b"\x10" + HEAD + b"\x02\x01\0", "the name of a header is null"),
        (b"\x10" + HEAD + b"\x02\0\x20", "the value of a header is longer than the record"),
        (b"\x0e" + HEAD + b"\0\0", "it has bytes behind its headers"),
        (b"\x0d" + HEAD + b"\0", "its length is not that of a record"),
    ],
)
@pytest.mark.parametrize("kind", KINDS[:3])
def test_what_is_wrong_is_said(data: bytes, text: str, kind: Callable[[bytes], Any]) -> None:
    broken = part([Record(0)], data=kind(data), end=len(data), base_offset=40, first=40)
    wanted = (BrokenBatchError, f"record 0 of the batch at offset 40: {text}")
    assert same("columns", broken) == wanted
    assert same("encode", [broken], FIELDS) == wanted


def test_a_varint_has_64_bits() -> None:
    longest = b"\xff" * 9 + b"\x01"
    inner = b"\0" + longest + b"\0\1\1\0"
    data = varint(len(inner)) + inner
    found = same("columns", part([Record(0)], data=data, end=len(data), first_timestamp=0))
    assert isinstance(found, tuple)
    assert found[1] == [-(1 << 63)]
    for wrong in (b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\0"):
        inner = b"\0" + wrong + b"\0\1\1\0"
        data = varint(len(inner)) + inner
        refused = same("columns", part([Record(0)], data=data, end=len(data)))
        text = "record 0 of the batch at offset 0: its timestamp can not be read"
        assert refused == (BrokenBatchError, text)


def test_a_record_below_is_passed_over_without_a_look_at_its_fields() -> None:
    """What nobody wants may be wrong: only its length and its offset must be right."""
    data = b"\x0c\0\0\0\x20\x20\x20" + Record(1).encoded()
    found = same("columns", part([Record(0), Record(1)], data=data, end=len(data), first=1))
    assert found == ([1], [1_000], None, [b"v"], {})


@pytest.mark.parametrize("kind", KINDS[:3])
@pytest.mark.parametrize("record", [b"\x0a\0\0\0\1\1", b"\x02\0" + bytes(6), b"\x0b" + bytes(6)])
def test_a_record_below_has_a_length_that_can_be(
    record: bytes, kind: Callable[[bytes], Any]
) -> None:
    data = record + Record(1, value=bytes(9)).encoded()
    short = part([Record(0), Record(1)], data=kind(data), end=len(data), first=1)
    text = "record 0 of the batch at offset 0: its length is not that of a record"
    assert same("columns", short) == (BrokenBatchError, text)


def test_a_record_above_is_not_read() -> None:
    data = Record(0).encoded() + b"\x0c\0\0\x02\x20\x20\x20"
    found = same("columns", part([Record(0), Record(1)], data=data, end=len(data), last=0))
    assert found == ([0], [1_000], None, [b"v"], {})


@pytest.mark.parametrize(
    "changes",
    [
        {"position": -1},
        {"position": 9},
        {"end": 9},
        {"row": -1},
        {"row": 2},
        {"count": 2},
        {"count": 1 << 62},
        {"previous_delta": -2},
        {"base_offset": -1},
        {"last_delta": -1},
        {"last_delta": 1 << 31},
        {"base_offset": (1 << 63) - 1, "last_delta": 1},
        {"first": -1},
        {"first": 6, "last": 5},
    ],
)
def test_a_part_that_can_not_be_is_refused(changes: dict[str, int]) -> None:
    whole = part([Record(0)])._replace(**changes)  # type: ignore[arg-type]
    refused = same("columns", whole)
    assert isinstance(refused, tuple)
    assert refused[0] is BrokenBatchError
    assert "can not have" in refused[1]
    assert same("encode", [whole], FIELDS) == refused


@pytest.mark.parametrize("offsets", [(5, 5), (5, 4), (0, 1 << 32)])
def test_batches_come_in_order_of_offset(offsets: tuple[int, int]) -> None:
    parts = [part([Record(0)], base_offset=offset) for offset in offsets]
    refused = same("encode", parts, FIELDS)
    assert isinstance(refused, tuple)
    assert refused[0] is BrokenBatchError
    assert "not in order of offset" in refused[1]


def test_the_widest_distance_is_encoded() -> None:
    parts = [part([Record(0)], base_offset=offset) for offset in (0, (1 << 32) - 1)]
    encoded = same("encode", parts, FIELDS)
    assert isinstance(encoded, tuple)
    message = share_types_pb2.RecordBatch.FromString(encoded[0])
    assert list(message.offset_deltas) == [0, (1 << 32) - 1]


# -- memory ----------------------------------------------------------------------------------------


def test_a_lying_count_takes_no_memory() -> None:
    """100 MB could hold 14 million records; one is there."""
    data = Record(0).encoded() + bytes(100_000_000)
    lying = part(
        [Record(0)], data=data, end=len(data), count=len(data) // 7, last_delta=(1 << 31) - 1
    )
    for module in (native(), records):
        tracemalloc.start()
        try:
            assert outcome(module.columns, lying) == outcome(module.encode, [lying], FIELDS)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 1_000_000, "bytes, reserved ones included"


def test_the_extension_keeps_nothing() -> None:
    some = [Record(i, i, b"key", b"value", ((b"a", None), (b"\xff", b"x"))) for i in range(50)]
    good = part(some, data=memoryview(bytearray(body(some))))
    content = body(some)[:-1] + b"\7"
    wrong = part(some, data=content, end=len(content))
    calls: list[Callable[[], object]] = [
        lambda: native().columns(good),
        lambda: native().encode([good, part(some, base_offset=50)], FIELDS),
        lambda: outcome(native().columns, wrong),
        lambda: outcome(native().encode, [good, wrong], FIELDS),
        lambda: outcome(native().encode, [good, good], FIELDS),
        lambda: outcome(native().encode, [], FIELDS),
    ]

    def blocks(rounds: int) -> int:
        for _ in range(rounds):
            for call in calls:
                call()
        gc.collect()
        return sys.getallocatedblocks()

    blocks(5)
    before = blocks(5)
    assert blocks(100) - before < 50
    # No buffer is held any more: a bytearray that is exported can not grow.
    assert isinstance(good.data, memoryview)
    owner = good.data.obj
    good.data.release()
    owner.append(0)


def test_what_is_no_part_is_refused() -> None:
    module: Any = native()
    for wrong in (
        None,
        [1],
        (1,),
        (*part([Record(0)])[:-1], "x"),
        ("text", *part([Record(0)])[1:]),
    ):
        with pytest.raises(TypeError):
            module.columns(wrong)
        with pytest.raises(TypeError):
            module.encode([wrong], FIELDS)
        with pytest.raises(TypeError):
            module.encode([part([Record(0)]), wrong], FIELDS)
    with pytest.raises(TypeError):
        module.encode(None, FIELDS)


def test_without_the_extension_the_opener_is_the_twin() -> None:
    script = """
import sys
sys.modules["sharecoord_batches._native"] = None
from sharecoord_batches import opener, records
assert not opener.HAS_NATIVE
assert (opener.columns, opener.encode) == (records.columns, records.encode)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_opener_takes_c_where_it_is_there() -> None:
    wanted: ModuleType = native() if opener.HAS_NATIVE else records
    assert opener.columns is wanted.columns
    assert opener.encode is wanted.encode
