"""A record as a line, as Kafka's console consumers print it (their `--property` keys)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from sharecoord.cli.options import parse_pair

if TYPE_CHECKING:
    from sharecoord_sdk import Message

Deserializer = Callable[[bytes], str]


class FormatError(Exception):
    """A record can not be printed as asked."""


def _whole_number(size_bytes: int) -> Deserializer:
    def read(content: bytes) -> str:
        if len(content) != size_bytes:
            raise ValueError(f"it has {len(content)} bytes, not {size_bytes}")
        return str(int.from_bytes(content, "big", signed=True))

    return read


def _text(content: bytes) -> str:
    return content.decode("utf-8")


_DESERIALIZERS: Final[dict[str, Deserializer | None]] = {
    "bytearray": None,
    "string": _text,
    "short": _whole_number(2),
    "integer": _whole_number(4),
    "long": _whole_number(8),
}
_JAVA_PREFIX: Final = "org.apache.kafka.common.serialization."
_JAVA_SUFFIX: Final = "Deserializer"

_TIMESTAMP_KINDS: Final = {1: "CreateTime", 2: "LogAppendTime"}
_FLAGS: Final = {
    "print.timestamp": False,
    "print.partition": False,
    "print.offset": False,
    "print.delivery": False,
    "print.headers": False,
    "print.key": False,
    "print.value": True,
}
_TEXTS: Final = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
_READERS: Final = ("key.deserializer", "value.deserializer", "headers.deserializer")


@dataclass(frozen=True)
class Formatter:
    """Formats by properties; made by `make_formatter`."""

    flags: dict[str, bool]
    texts: dict[str, bytes]
    readers: dict[str, Deserializer | None]

    def line(self, message: Message) -> bytes:
        """The record's line, its separator included.

        Raises:
            FormatError: A deserializer does not take key, value or a header.
        """
        flags, parts = self.flags, []
        if flags["print.timestamp"]:
            kind, timestamp_ms = message.timestamp()
            name = _TIMESTAMP_KINDS.get(kind)
            parts.append(b"NO_TIMESTAMP" if name is None else f"{name}:{timestamp_ms}".encode())
        if flags["print.partition"]:
            parts.append(b"Partition:%d" % (message.partition() or 0))
        if flags["print.offset"]:
            parts.append(b"Offset:%d" % (message.offset() or 0))
        if flags["print.delivery"]:
            count = message.delivery_count()
            parts.append(b"Delivery:NONE" if count is None else b"Delivery:%d" % count)
        if flags["print.headers"]:
            parts.append(self._headers(message))
        if flags["print.key"]:
            parts.append(self._field("key", message, message.key()))
        if flags["print.value"]:
            parts.append(self._field("value", message, message.value()))
        return self.texts["key.separator"].join(parts) + self.texts["line.separator"]

    def _headers(self, message: Message) -> bytes:
        headers = message.headers() or []
        texts = [
            name.encode() + b":" + self._field("headers", message, value) for name, value in headers
        ]
        return self.texts["headers.separator"].join(texts) or b"NO_HEADERS"

    def _field(self, what: str, message: Message, content: bytes | None) -> bytes:
        if content is None:
            return self.texts["null.literal"]
        reader = self.readers[f"{what}.deserializer"]
        if reader is None:
            return content
        try:
            return reader(content).encode()
        except ValueError as error:
            place = f"{message.topic()}[{message.partition()}] at offset {message.offset()}"
            raise FormatError(f"{what} of {place}: {error}") from None


def make_formatter(properties: Iterable[str]) -> Formatter:
    """The formatter of some `name=value` texts; refuses unknown names and wrong values."""
    flags = dict(_FLAGS)
    texts = {name: text.encode() for name, text in _TEXTS.items()}
    readers: dict[str, Deserializer | None] = dict.fromkeys(_READERS)
    for item in properties:
        name, value = parse_pair("--property", item)
        if name in flags:
            flags[name] = _flag(name, value)
        elif name in texts:
            texts[name] = value.encode()
        elif name in readers:
            readers[name] = _deserializer(name, value)
        else:
            known = ", ".join([*flags, *texts, *readers])
            raise click.UsageError(f"--property {name} is unknown; known are {known}.")
    return Formatter(flags, texts, readers)


def _flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise click.UsageError(f"--property {name}={value}: it must be true or false.")
    return value.strip().lower() == "true"


def _deserializer(name: str, value: str) -> Deserializer | None:
    short = value.strip().removeprefix(_JAVA_PREFIX).removesuffix(_JAVA_SUFFIX).lower()
    if short not in _DESERIALIZERS:
        raise click.UsageError(
            f"--property {name}={value}: it must be one of {', '.join(_DESERIALIZERS)}, or Kafka's "
            f"class of that name, such as {_JAVA_PREFIX}String{_JAVA_SUFFIX}."
        )
    return _DESERIALIZERS[short]
