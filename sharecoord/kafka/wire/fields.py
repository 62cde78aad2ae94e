"""Numbers and tagged fields of Kafka's protocol, read from answers (KIP-482)."""

from __future__ import annotations

from typing import Final

UVARINT_BYTES_MAX: Final = 5
"""Bytes of an unsigned number of 32 bits, seven bits in each."""


def read_uvarint(data: memoryview, at: int) -> tuple[int, int]:
    """The unsigned number at `at`, and where it ends.

    Raises:
        ValueError: It has no end.
    """
    try:
        found = data[at]
        at += 1
        if found < 0x80:
            return found, at
        found &= 0x7F
        for shift in range(7, 7 * UVARINT_BYTES_MAX, 7):
            byte = data[at]
            at += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                return found, at
    except IndexError as error:
        raise ValueError("a number has no end") from error
    raise ValueError(f"a number at {at} has more than {UVARINT_BYTES_MAX} bytes")


def read_tags(data: memoryview, at: int) -> tuple[dict[int, memoryview], int]:
    """The tagged fields at `at`, and where they end.

    Raises:
        ValueError: They do not end within the answer.
    """
    count, at = read_uvarint(data, at)
    found: dict[int, memoryview] = {}
    for _ in range(count):
        tag, at = read_uvarint(data, at)
        size, at = read_uvarint(data, at)
        if at + size > len(data):
            raise ValueError("a tagged field is longer than the answer")
        found[tag] = data[at : at + size]
        at += size
    return found, at
