"""Dead letters found again by their headers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sharecoord.core.changes import DeadLetter, PartitionKey
from sharecoord.core.letters.dead_letters import KAFKA_PREFIX, PREFIX, headers_of
from sharecoord.core.letters.lanes import Mark, MarkReader
from sharecoord.core.letters.letter import SeenIds, find_letter, place_in, waiting_letter

KEY = PartitionKey("billing", "orders", "ab" * 16, 3)
LETTER = DeadLetter(
    offset=17,
    reason="REJECTED",
    delivery_count=2,
    message="größe: nö",
    key=b"k",
    value=b"v",
    headers=(("trace", b"7"), ("trace", None), ("", b"\xff")),
    timestamp_ms=1_000,
    member_id="ann",
    failed_at_ms=2_000,
    state_epoch=4,
)


def message(letter: DeadLetter, payload: str = "whole") -> tuple[tuple[str, bytes | None], ...]:
    return headers_of(KEY, letter, payload=payload)


def test_what_was_sent_is_found_as_it_waited() -> None:
    found = find_letter(b"k", b"v", message(LETTER), 9_000)
    assert found == waiting_letter(KEY, LETTER, copies=True)
    assert found is not None
    assert found.id == f"billing:{'ab' * 16}:3:17:4"
    assert found.headers == LETTER.headers
    assert found.is_redrivable


@pytest.mark.parametrize("payload", ["off", "gone", "kept"])
def test_a_letter_without_its_record_can_not_be_redriven(payload: str) -> None:
    found = find_letter(None, None, message(LETTER, payload), 9_000)
    assert found is not None
    assert (found.payload, found.headers, found.is_redrivable) == (payload, (), False)
    waiting = waiting_letter(KEY, LETTER, copies=False)
    assert (waiting.payload, waiting.is_redrivable) == ("off", False)
    assert waiting_letter(KEY, replace(LETTER, kept=True), copies=True).payload == "kept"


def test_a_letter_of_a_letter_keeps_the_first_ones_headers_as_its_own() -> None:
    inner = message(LETTER)
    outer = replace(LETTER, headers=inner, offset=40)
    found = find_letter(b"k", b"v", message(outer), 9_000)
    assert found is not None
    assert (found.offset, tuple(found.headers)) == (40, inner)


def test_kafkas_own_letters_have_no_id_and_no_reason() -> None:
    names = {"topic": b"orders", "partition": b"0", "offset": b"5", "group": b"billing"}
    headers = [(KAFKA_PREFIX + name, value) for name, value in names.items()]
    found = find_letter(None, None, headers, 9_000)
    assert found is not None
    assert (found.id, found.reason, found.delivery_count) == ("", "", 0)
    assert (found.payload, found.failed_at_ms) == ("off", 9_000)
    copied = find_letter(None, b"v", headers, 9_000)
    assert copied is not None
    assert copied.is_redrivable


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("topic", b"orders")],
        [(KAFKA_PREFIX + "topic", b"orders")],
        [
            (KAFKA_PREFIX + "topic", b"orders"),
            (KAFKA_PREFIX + "group", b"g"),
            (KAFKA_PREFIX + "partition", b"zero"),
            (KAFKA_PREFIX + "offset", b"0"),
        ],
        [
            (KAFKA_PREFIX + "topic", b"\xff"),
            (KAFKA_PREFIX + "group", b"g"),
            (KAFKA_PREFIX + "partition", b"0"),
            (KAFKA_PREFIX + "offset", b"0"),
        ],
        [(KAFKA_PREFIX + "topic", None), (PREFIX + "id", b"x")],
        [
            (KAFKA_PREFIX + "topic", b"dead/orders"),
            (KAFKA_PREFIX + "group", b"g"),
            (KAFKA_PREFIX + "partition", b"0"),
            (KAFKA_PREFIX + "offset", b"0"),
        ],
    ],
)
def test_other_messages_are_no_letters(headers: list[tuple[str, bytes | None]]) -> None:
    assert find_letter(b"k", b"v", headers, 0) is None


@pytest.mark.parametrize(
    ("name", "number"),
    [
        (KAFKA_PREFIX + "partition", 2**31),
        (KAFKA_PREFIX + "offset", 2**63),
        (KAFKA_PREFIX + "offset", -1),
        (KAFKA_PREFIX + "delivery.count", 2**31),
        (PREFIX + "timestamp-ms", -2),
        (PREFIX + "failed-at-ms", 2**63),
    ],
)
def test_a_message_with_a_number_that_no_letter_has_is_none(name: str, number: int) -> None:
    headers = [each for each in message(LETTER) if each[0] != name]
    assert find_letter(b"k", b"v", [*headers, (name, b"%d" % (number - 1 if number > 0 else 0))], 0)
    assert find_letter(b"k", b"v", [*headers, (name, b"%d" % number)], 0) is None


def test_a_letter_that_says_nothing_gets_a_sentence() -> None:
    silent = replace(LETTER, message=None)
    found = find_letter(b"k", b"v", message(silent), 0)
    assert found is not None
    assert found.message == waiting_letter(KEY, silent, copies=True).message
    assert found.message == "The record was rejected by a member of the group."


ids = st.one_of(
    st.just(""),
    st.text(max_size=8),
    st.builds("g{}:t:{}:{}:{}".format, *(st.integers(0, 600) for _ in range(4))),
)


@given(st.lists(ids, max_size=60))
def test_ids_are_met_once(met: list[str]) -> None:
    seen, known = SeenIds(), set[str]()
    for each in met:
        assert seen.meet(each) == (each in known)
        known |= {each} - {""}
    assert len(seen) <= len(known)


def test_dense_offsets_take_little() -> None:
    seen = SeenIds()
    for offset in range(640):
        assert not seen.meet(f"g:t:0:{offset}:0")
    assert len(seen) == 10


def test_a_letter_of_a_redriven_record_comes_from_where_the_record_came_from() -> None:
    lane = PartitionKey("billing", "dead", "cd" * 16, 0, "orders")
    again = replace(LETTER, headers=message(LETTER), offset=40, state_epoch=9)
    waiting = waiting_letter(lane, again, copies=True)
    assert (waiting.topic, waiting.partition, waiting.offset) == ("orders", 3, 17)
    assert waiting.headers == LETTER.headers
    assert waiting.id == f"billing:{'cd' * 16}:0:40:9"
    assert find_letter(b"k", b"v", headers_of(lane, again, payload="whole"), 0) == waiting
    assert place_in(lane, waiting.id) == 40
    assert place_in(KEY, waiting.id) is None
    unknown = waiting_letter(lane, replace(again, headers=()), copies=True)
    assert (unknown.topic, unknown.partition, unknown.offset) == ("orders", -1, -1)


@pytest.mark.parametrize("id_", ["", "x", "billing:t", f"billing:{'ab' * 16}:3:٣:1", "a:b:c:d:e"])
def test_an_id_of_something_else_has_no_place(id_: str) -> None:
    assert place_in(KEY, id_) is None


runs = st.tuples(st.integers(0, 40), st.integers(0, 10)).map(lambda pair: (pair[0], sum(pair)))


@given(st.lists(st.tuples(runs, st.integers(0, 5))), st.sets(st.integers(0, 60)))
def test_the_last_mark_of_each_offset_is_found(
    made: list[tuple[tuple[int, int], int]], asked: set[int]
) -> None:
    marks = [Mark(*run, "redriven", str(n), at_ms) for n, (run, at_ms) in enumerate(made)]
    reader = MarkReader(marks)
    for offset in sorted(asked):
        covering = [m for m in marks if m.first_offset <= offset <= m.last_offset]
        found = reader.at(offset)
        if found is None:
            assert covering == []
        else:
            assert found in covering
            assert found.at_ms == max(mark.at_ms for mark in covering)
