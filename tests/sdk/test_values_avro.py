"""Avro values: by a decorator, of a schema registry, and what is told of bad ones."""

from __future__ import annotations

import io
import json
import struct
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import fastavro
import pytest
from sharecoord_sdk import AcknowledgeType
from sharecoord_sdk.contrib import avro as avro_module
from sharecoord_sdk.contrib.avro import SCHEMAS_MAX, AvroReader, avro
from sharecoord_sdk.testing import make_message, run_handler
from sharecoord_sdk.values import BadValueError, value_reader


def read(hint: Any, value: bytes | None) -> Any:
    return value_reader(hint)(make_message(value, topic="orders"))


SCHEMA = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "id", "type": "int"},
        {"name": "raw", "type": "bytes", "default": ""},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
WRITTEN = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "more", "type": "string"}]}
AT = datetime(2026, 1, 2, tzinfo=UTC)


@avro(SCHEMA)
@dataclass
class Payment:
    id: int
    raw: bytes
    at: datetime


def encoded(schema: Any, value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(schema_id: int, data: bytes) -> bytes:
    return struct.pack(">bI", 0, schema_id) + data


def test_avro_by_a_decorator() -> None:
    data = encoded(SCHEMA, {"id": 7, "raw": b"\xff", "at": AT})
    assert read(Payment, data) == Payment(7, b"\xff", AT)
    assert AvroReader(json.dumps(SCHEMA))(data) == {"id": 7, "raw": b"\xff", "at": AT}
    for bad, text in ((data[:-2], "not what its schema says"), (data + b"x", "is longer")):
        with pytest.raises(BadValueError, match=text):
            read(Payment, bad)
    for wrong, text in ((None, "null"), (5, "must be bytes, not int 5")):
        with pytest.raises(BadValueError, match=text):
            read(Payment, wrong)
        with pytest.raises(BadValueError, match=text):
            AvroReader(SCHEMA)(wrong)
    assert read(Payment, Payment(7, b"", AT)) == Payment(7, b"", AT)


def test_avro_of_a_schema_registry() -> None:
    asked: list[int] = []

    def resolver(schema_id: int) -> Any:
        asked.append(schema_id)
        return {1: SCHEMA, 2: json.dumps(WRITTEN)}[schema_id]

    reader = AvroReader(SCHEMA, resolver=resolver, into=Payment)
    as_written = AvroReader(resolver=resolver)
    value = {"id": 7, "raw": b"", "at": AT, "more": "x"}
    old, new = framed(1, encoded(SCHEMA, value)), framed(2, encoded(WRITTEN, value))
    for _ in range(3):
        assert [read(reader, data) for data in (old, new)] == [Payment(7, b"", AT)] * 2
    assert asked == [1, 2], "each id once"
    assert read(as_written, new) == value
    for bad in (b"", b"\0\0\0", b"\1" + new[1:]):
        with pytest.raises(BadValueError, match="zero byte and a schema id"):
            read(reader, bad)


def away(schema_id: int) -> Any:
    raise ConnectionError("registry is away")


@avro(resolver=away)
@dataclass
class Late:
    id: int


@pytest.mark.parametrize("value", [Late, AvroReader(resolver=away)])
def test_a_registry_that_is_away_does_not_make_a_value_bad(value: Any) -> None:
    def handle(late: Any) -> None:
        raise AssertionError

    outcome = run_handler(handle, make_message(framed(1, b"")), value=value)
    assert (outcome.type, outcome.reason) == (
        AcknowledgeType.RELEASE,
        "ConnectionError: registry is away",
    )


def test_bad_avro_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="give a schema, or a resolver"):
        AvroReader()
    for schema in ("{", {"type": "nonsense"}):
        with pytest.raises(ValueError, match="no schema of Avro"):
            AvroReader(schema)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    with pytest.raises(ImportError, match=r"pip install 'sharecoord-sdk\[avro\]'"):
        AvroReader(SCHEMA)


def test_schemas_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SCHEMAS_MAX == 1_000
    monkeypatch.setattr(avro_module, "SCHEMAS_MAX", 3)
    reader = AvroReader(resolver=lambda _: '"int"')
    for schema_id in range(10):
        assert read(reader, framed(schema_id, b"\x02")) == 1
        assert len(reader._known) <= 3
