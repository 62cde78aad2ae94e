"""Requests of Kafka's protocol by kio, and messages of any content."""

from __future__ import annotations

import random
import struct
from dataclasses import fields, is_dataclass
from datetime import timedelta
from io import BytesIO
from types import NoneType
from typing import Any, get_args
from uuid import UUID

from kio.index import load_request_schema
from kio.serial import entity_writer


def frame_of(request: Any, *, client_id: str | None = "c", correlation_id: int = 7) -> bytes:
    """A request as it goes over the wire, without its length."""
    schema: Any = type(request)
    buffer = BytesIO()
    buffer.write(struct.pack(">hhi", schema.__api_key__, schema.__version__, correlation_id))
    text = None if client_id is None else client_id.encode()
    buffer.write(struct.pack(">h", -1) if text is None else struct.pack(">h", len(text)) + text)
    if schema.__header_schema__.__version__ >= 2:
        buffer.write(b"\0")
    entity_writer(schema)(buffer, request)
    return buffer.getvalue()


def any_request(api_key: int, version: int, seed: int) -> Any:
    """A request with all kinds of values in it."""
    return _any_of(load_request_schema(api_key, version), "", random.Random(seed))


def _any_of(kind: Any, kafka_type: str, chance: random.Random) -> Any:
    arguments = get_args(kind)
    if NoneType in arguments:
        (inner,) = (each for each in arguments if each is not NoneType)
        is_null = kafka_type == "uuid" or chance.random() < 0.3
        return None if is_null else _any_of(inner, kafka_type, chance)
    if len(arguments) == 2 and arguments[1] is ...:
        return tuple(_any_of(arguments[0], kafka_type, chance) for _ in range(chance.randrange(4)))
    if is_dataclass(kind):
        values = {each.name: _any_of(each.type, each.metadata.get("kafka_type", ""), chance)
                  for each in fields(kind)}  # fmt: skip
        made: Any = kind
        return made(**values)
    match kafka_type:
        case "string":
            return "grüße"[: chance.randrange(6)] * chance.choice([1, 40])
        case "bytes" | "records":
            return chance.randbytes(chance.randrange(300))
        case "bool":
            return chance.random() < 0.5
        case "uuid":
            return UUID(bytes=chance.randbytes(16))
        case "timedelta_i32":
            return timedelta(milliseconds=chance.randrange(2**20))
    bits = int(kafka_type.removeprefix("int"))
    return chance.randrange(-(2 ** (bits - 1)), 2 ** (bits - 1))
