"""Messages as record batches."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sharecoord.analytics.errors import EventsCorruptError
from sharecoord.analytics.kafka_source import decode
from sharecoord.eventlog.schema import COLUMN_NAMES


def message(columns: dict[str, Any], schema: pa.Schema | None = None) -> bytes:
    table = pa.table(columns, schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def full(rows: int, **values: Any) -> bytes:
    columns = {name: values.get(name, [None] * rows) for name in COLUMN_NAMES}
    return message(columns, decode.SCHEMA.with_metadata({b"sharecoord.schema.version": b"1"}))


def rows(*values: bytes | None, skipped: list[str] | None = None) -> list[pa.RecordBatch]:
    placed = [(("t", 3, offset), value) for offset, value in enumerate(values)]
    return list(decode.batches(placed, None if skipped is None else skipped.append))


def test_messages_become_one_batch_with_the_columns_in_order() -> None:
    (batch,) = rows(full(2, kind=["range", "lost"], records=[1, 2]), full(1, kind=["member"]))
    assert batch.schema.equals(decode.SCHEMA, check_metadata=True)
    assert batch.column("kind").to_pylist() == ["range", "lost", "member"]
    assert batch.column("records").to_pylist() == [1, 2, None]
    (single,) = rows(full(1, kind=["range"]))
    assert single.schema.equals(decode.SCHEMA, check_metadata=True)


def test_other_versions_missing_columns_are_null_unknown_ones_left_out() -> None:
    value = message(
        {
            "colour": ["red"],
            "records": pa.array([7], pa.int32()),
            "kind": pa.array(["range"]).dictionary_encode(),
            "time": pa.array([1_000], pa.timestamp("ms", tz="UTC")),
        }
    )
    (batch,) = rows(value)
    assert batch.schema.names == list(COLUMN_NAMES)
    (row,) = batch.to_pylist()
    assert (row["kind"], row["records"], row["lag"]) == ("range", 7, None)
    assert row["time"].timestamp() == 1


def test_batches_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "BATCH_ROWS", 4)
    found = rows(*(full(3, kind=["range"] * 3) for _ in range(5)))
    assert [batch.num_rows for batch in found] == [6, 6, 3]


WHOLE = full(3, kind=["range"] * 3)
BAD: dict[str, bytes | None] = {
    "nothing": None,
    "empty": b"",
    "text": b"no arrow at all",
    "half": WHOLE[: len(WHOLE) // 2],
    "no batch": message({"kind": pa.array([], pa.string())}),
    "other": message({"colour": ["red"]}),
    "types": message({"kind": ["range"], "records": ["many"]}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_stream_of_events_is_named_or_noted(name: str) -> None:
    with pytest.raises(EventsCorruptError) as caught:
        rows(WHOLE, BAD[name])
    assert caught.value.path == "t-3@1"
    assert caught.value.message.startswith("t-3@1: the message is no Arrow stream of events (")
    assert "skip.corrupt=true" in caught.value.message
    skipped: list[str] = []
    (batch,) = rows(WHOLE, BAD[name], WHOLE, skipped=skipped)
    assert (batch.num_rows, skipped) == (6, ["t-3@1"])


def test_every_cut_of_a_message_is_seen() -> None:
    """A message that lacks its end is not taken for a shorter one."""
    for end in range(0, len(WHOLE) - 8, 64):
        skipped: list[str] = []
        rows(WHOLE[:end], skipped=skipped)
        assert skipped == ["t-3@0"], end
