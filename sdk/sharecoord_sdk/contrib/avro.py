"""Avro values, by fastavro: `pip install sharecoord-sdk[avro]`.

    @avro(schema)
    @dataclass
    class Order:
        id: int

    @worker.handler("orders")
    async def handle(order: Order) -> None: ...

With a `resolver` values begin as schema registries write them: a zero byte, four bytes of id, then
Avro by the schema of that id. Without, values are Avro alone, by the schema that was given.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, TypeVar

from sharecoord_sdk._values.plain import BadValueError, converter, shown
from sharecoord_sdk.values import READER_ATTRIBUTE

__all__ = ["AvroReader", "avro"]

T = TypeVar("T")

Schema = str | Mapping[str, Any] | Sequence[Any]
#: Takes the id of a schema registry; returns that schema.
Resolver = Callable[[int], Schema]

SCHEMAS_MAX: Final = 1_000
"""Schemas of writers that are remembered; a topic has a few."""

_HEADER: Final = struct.Struct(">bI")


class AvroReader:
    """Reads Avro values, as `value=` of a handler or by `avro`.

    Args:
        schema: What the reader wants, as JSON text or as parsed; None = as it was written, which
            needs a resolver.
        resolver: Finds the schemas of writers by id; each is asked for once. What it raises
            releases the record: the registry may be back soon.
        into: A dataclass that is made of what was read; None = dicts and lists.

    Raises:
        ImportError: fastavro is not installed.
        ValueError: Neither schema nor resolver, or no schema of Avro.
        UnreadableTypeError: Nothing can be made into this type.
    """

    tells_bad_values: ClassVar = True

    def __init__(
        self, schema: Schema | None = None, *, resolver: Resolver | None = None, into: Any = None
    ) -> None:
        try:
            import fastavro
        except ImportError as error:
            text = "Avro values need fastavro: pip install 'sharecoord-sdk[avro]'"
            raise ImportError(text) from error
        self._fastavro = fastavro
        if schema is None and resolver is None:
            raise ValueError("give a schema, or a resolver of schema ids")
        self._schema = None if schema is None else self._parsed(schema)
        self._resolver = resolver
        self._convert = None if into is None else converter(into, native=True)
        self._known: dict[int, Any] = {}

    def _parsed(self, schema: Schema) -> Any:
        try:
            parsed: Any = json.loads(schema) if isinstance(schema, str) else schema
            return self._fastavro.parse_schema(parsed)
        except Exception as error:
            raise ValueError(f"no schema of Avro: {type(error).__name__}: {error}") from error

    def __call__(self, data: bytes) -> Any:
        """Reads one value.

        Raises:
            BadValueError: It is not what the schema says.
        """
        if data is None:
            raise BadValueError("the value is null")
        if not isinstance(data, bytes):
            raise BadValueError(f"must be bytes, not {shown(data)}")
        stream = io.BytesIO(data)
        written: Any = self._schema if self._resolver is None else self._written(data, stream)
        try:
            found = self._fastavro.schemaless_reader(stream, written, self._schema)
        except Exception as error:
            text = f"is not what its schema says: {type(error).__name__}: {error}"
            raise BadValueError(text) from error
        if stream.read(1):
            raise BadValueError("is longer than its schema says")
        return found if self._convert is None else self._convert(found, "")

    def _written(self, data: bytes, stream: io.BytesIO) -> Any:
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size or head[0] != 0:
            raise BadValueError(f"does not begin with a zero byte and a schema id: {data[:5]!r}")
        _, schema_id = _HEADER.unpack(head)
        if schema_id not in self._known:
            assert self._resolver is not None, "asked by it"
            if len(self._known) >= SCHEMAS_MAX:
                self._known.clear()
            self._known[schema_id] = self._parsed(self._resolver(schema_id))
        return self._known[schema_id]


def avro(schema: Schema | None = None, *, resolver: Resolver | None = None) -> Callable[[T], T]:
    """Says that values of the decorated dataclass are Avro; arguments as of `AvroReader`."""

    def mark(kind: T) -> T:
        reader = AvroReader(schema, resolver=resolver, into=kind)
        setattr(kind, READER_ATTRIBUTE, staticmethod(reader))
        return kind

    return mark
