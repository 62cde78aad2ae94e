"""A dead letter that was found again, in its topic or still in the outbox."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sharecoord.core.changes import DeadLetter, PartitionKey
from sharecoord.core.letters.dead_letters import (
    ID_HEADER,
    KAFKA_PREFIX,
    PAYLOAD_HEADER,
    PREFIX,
    letter_id,
    message_of,
)

Headers = Sequence[tuple[str, bytes | None]]

PAGE_OFFSETS = 64
"""Offsets that one entry of `SeenIds` covers."""

_BEGIN = KAFKA_PREFIX + "topic"
_TOPIC = re.compile(rb"[A-Za-z0-9._-]{1,249}")


class Letter(NamedTuple):
    """A dead letter, by its message or by its row in the outbox."""

    group_id: str
    topic: str
    """Topic of the record, as are partition and offset."""
    partition: int
    offset: int
    id: str
    """The same on each copy; "" = Kafka itself wrote the letter."""
    reason: str
    """`core.states.ArchiveReason`; "" = Kafka itself wrote the letter."""
    delivery_count: int
    message: str
    payload: str
    """`whole`, or why key, value and own headers are missing: `off`, `gone`, `kept`."""
    timestamp_ms: int
    """Timestamp of the record; -1 = not known."""
    member_id: str
    failed_at_ms: int
    """By the store's clock; the time of writing where the letter does not say."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The record's own headers."""

    @property
    def is_redrivable(self) -> bool:
        """Whether the letter has the whole record."""
        return self.payload == "whole"


def find_letter(
    key: bytes | None, value: bytes | None, headers: Headers, written_ms: int
) -> Letter | None:
    """A message of a dead-letter topic as a letter; None = the message is no letter.

    The own headers of a record that was a letter before look like ours, so the last ones count.
    """
    begin = next((i for i in range(len(headers) - 1, -1, -1) if headers[i][0] == _BEGIN), None)
    if begin is None:
        return None
    said = {name: text for name, text in headers[begin:] if text is not None}
    if not _TOPIC.fullmatch(said.get(_BEGIN, b"")):
        return None
    try:
        payload = said[PAYLOAD_HEADER].decode() if PAYLOAD_HEADER in said else "whole"
        return Letter(
            group_id=said[KAFKA_PREFIX + "group"].decode(),
            topic=said[_BEGIN].decode(),
            partition=_number(said[KAFKA_PREFIX + "partition"], bits=31),
            offset=_number(said[KAFKA_PREFIX + "offset"]),
            id=said.get(ID_HEADER, b"").decode(),
            reason=said.get(PREFIX + "reason", b"").decode(),
            delivery_count=_number(said.get(KAFKA_PREFIX + "delivery.count", b"0"), bits=31),
            message=said.get(KAFKA_PREFIX + "message", b"").decode(errors="replace"),
            payload=payload if PAYLOAD_HEADER in said or value is not None else "off",
            timestamp_ms=_number(said.get(PREFIX + "timestamp-ms", b"-1"), least=-1),
            member_id=said.get(PREFIX + "member", b"").decode(),
            failed_at_ms=_number(said.get(PREFIX + "failed-at-ms", b"0")) or written_ms,
            key=key,
            value=value,
            headers=headers[:begin],
        )
    except (KeyError, ValueError):
        return None


def _number(text: bytes, *, bits: int = 63, least: int = 0) -> int:
    """A whole number of at least `least`, in this many bits; raises ValueError for others."""
    number = int(text)
    if not least <= number < 1 << bits:
        raise ValueError(f"{number} is out of range")
    return number


def waiting_letter(key: PartitionKey, letter: DeadLetter, *, copies: bool) -> Letter:
    """A row of the outbox as a letter; `copies` = the group's letters carry their records."""
    topic, partition, offset, own = key.topic, key.partition, letter.offset, letter.headers
    if key.lane:
        # A letter of a letter keeps the origin of the first.
        former = find_letter(letter.key, letter.value, letter.headers, 0)
        topic, partition, offset = key.served, -1, -1
        if former is not None:
            partition, offset, own = former.partition, former.offset, tuple(former.headers)
    payload = "whole"
    if not copies:
        payload = "off"
    elif letter.kept:
        payload = "kept"
    return Letter(
        group_id=key.group_id,
        topic=topic,
        partition=partition,
        offset=offset,
        id=letter_id(key, letter),
        reason=letter.reason,
        delivery_count=letter.delivery_count,
        message=letter.message or message_of(letter.reason),
        payload=payload,
        timestamp_ms=letter.timestamp_ms,
        member_id=letter.member_id or "",
        failed_at_ms=letter.failed_at_ms,
        key=letter.key,
        value=letter.value,
        headers=own,
    )


def place_in(key: PartitionKey, id_: str) -> int | None:
    """The offset of a letter in a share-partition's outbox, by its id; None = another outbox."""
    rest = id_.removeprefix(f"{key.group_id}:{key.topic_id or key.topic}:{key.partition}:")
    offset, _, epoch = rest.partition(":")
    if not (offset.isascii() and offset.isdecimal() and epoch.isdecimal()):
        return None
    return int(offset)


class SeenIds:
    """The ids of letters that were met: a letter may be in its topic twice.

    Dense offsets of one share-partition take one bit each.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], dict[int, int]] = {}
        self._pages = 0

    def __len__(self) -> int:
        """Number of entries, of about 150 bytes each."""
        return self._pages

    def meet(self, letter_id: str) -> bool:
        """Whether a letter was met before, and notes it; a letter without an id never was."""
        if not letter_id:
            return False
        rest, _, epoch = letter_id.rpartition(":")
        place, _, offset = rest.rpartition(":")
        if not (offset.isascii() and offset.isdecimal()):
            place, offset, epoch = letter_id, "0", ""
        page, bit = divmod(int(offset), PAGE_OFFSETS)
        pages = self._places.setdefault((place, epoch), {})
        mask = pages.get(page)
        if mask is None:
            mask, self._pages = 0, self._pages + 1
        pages[page] = mask | 1 << bit
        return mask >> bit & 1 == 1
