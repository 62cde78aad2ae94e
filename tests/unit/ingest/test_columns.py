"""From messages to columns."""

from __future__ import annotations

from typing import Any, cast

from confluent_kafka import Message

from sharecoord.ingest.columns import build_chunk, build_chunks


class FakeMessage:
    """What a message of confluent-kafka answers."""

    def __init__(self, offset: int, value: bytes | None, key: bytes | None, headers: Any) -> None:
        self._offset, self._value, self._key, self._headers = offset, value, key, headers

    def offset(self) -> int:
        return self._offset

    def value(self) -> bytes | None:
        return self._value

    def key(self) -> bytes | None:
        return self._key

    def timestamp(self) -> tuple[int, int]:
        return 1, 1_000 + self._offset

    def headers(self) -> Any:
        if isinstance(self._headers, Exception):
            raise self._headers
        return self._headers

    def leader_epoch(self) -> int | None:
        return None

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0


def chunk_of(*messages: FakeMessage) -> Any:
    return build_chunk(cast("list[Message]", list(messages)), 0)


def test_a_contiguous_run_has_no_offsets_and_no_keys_when_none_has_one() -> None:
    chunk = chunk_of(FakeMessage(3, b"a", None, None), FakeMessage(4, None, None, None))
    assert (chunk.first, chunk.last, chunk.offsets, chunk.keys) == (3, 4, None, None)
    assert chunk.values == [b"a", None]
    assert chunk.timestamps == [1_003, 1_004]


def test_holes_are_kept_as_offsets_and_an_empty_key_is_a_key() -> None:
    chunk = chunk_of(FakeMessage(0, b"a", b"", None), FakeMessage(5, b"b", None, [("h", b"x")]))
    assert chunk.offsets == [0, 5]
    assert chunk.keys == [b"", None]
    assert chunk.headers == {1: [("h", b"x")]}


def test_headers_that_can_not_be_read_do_not_stop_the_record() -> None:
    chunk = chunk_of(
        FakeMessage(0, b"a", None, SystemError("bad header")),
        FakeMessage(1, b"b", None, [("h", b"1")]),
    )
    assert chunk.values == [b"a", b"b"]
    assert chunk.headers == {1: [("h", b"1")]}


class Appended(FakeMessage):
    def timestamp(self) -> tuple[int, int]:
        return 2, 1_000


def test_a_changed_type_of_timestamps_starts_a_chunk() -> None:
    messages = [
        FakeMessage(2, b"a", None, None),
        Appended(5, b"b", None, None),
        Appended(6, b"c", None, None),
        FakeMessage(7, b"d", None, None),
        Appended(9, b"e", None, None),
    ]
    chunks = build_chunks(cast("list[Message]", messages), 0)
    assert [(c.covers_from, c.last, c.timestamp_type) for c in chunks] == [
        (0, 2, 1),
        (3, 6, 2),
        (7, 7, 1),
        (8, 9, 2),
    ]
    assert [c.values for c in chunks] == [[b"a"], [b"b", b"c"], [b"d"], [b"e"]]
    assert build_chunks([], 0) == []
