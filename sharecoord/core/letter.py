"""A dead letter as it is found again: in its topic, or still in the outbox."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sharecoord.core.changes import DeadLetter, PartitionKey
from sharecoord.core.dead_letters import (
    ID_HEADER,
    KAFKA_PREFIX,
    PAYLOAD_HEADER,
    PREFIX,
    letter_id,
    message_of,
)

Headers = Sequence[tuple[str, bytes | None]]

PAGE_OFFSETS = 64
"""What one entry of `SeenIds` knows of."""

_BEGIN = KAFKA_PREFIX + "topic"
_TOPIC = re.compile(rb"[A-Za-z0-9._-]{1,249}")


class Letter(NamedTuple):
    """One dead letter."""

    group_id: str
    topic: str
    """Where the record comes from, as the next two."""
    partition: int
    offset: int
    id: str
    """The same on each copy; "" = not written by a coordinator (Kafka's own writes none)."""
    reason: str
    """`core.states.ArchiveReason`; "" as `id`."""
    delivery_count: int
    message: str
    payload: str
    """`whole`, or why key, value and own headers are not there: `off`, `gone`, `kept`."""
    timestamp_ms: int
    """The record's; -1 = not known."""
    member_id: str
    failed_at_ms: int
    """By the store's clock; of letters that do not say it, when they were written."""
    key: bytes | None
    value: bytes | None
    headers: Headers
    """The record's own."""

    @property
    def is_redrivable(self) -> bool:
        """Whether the record is there as it was."""
        return self.payload == "whole"


def find_letter(
    key: bytes | None, value: bytes | None, headers: Headers, written_ms: int
) -> Letter | None:
    """A message of a dead-letter topic as a letter; None = it is none.

    Where a record was a letter itself, its own headers look like ours: what counts are the last.
    """
    begin = next((i for i in range(len(headers) - 1, -1, -1) if headers[i][0] == _BEGIN), None)
    if begin is None:
        return None
    said = {name: text for name, text in headers[begin:] if text is not None}
    if not _TOPIC.fullmatch(said.get(_BEGIN, b"")):
        return None
    try:
        payload = said[PAYLOAD_HEADER].decode() if PAYLOAD_HEADER in said else "whole"
        partition = int(said[KAFKA_PREFIX + "partition"])
        if not 0 <= partition < 2**31:
            return None
        return Letter(
            group_id=said[KAFKA_PREFIX + "group"].decode(),
            topic=said[_BEGIN].decode(),
            partition=partition,
            offset=int(said[KAFKA_PREFIX + "offset"]),
            id=said.get(ID_HEADER, b"").decode(),
            reason=said.get(PREFIX + "reason", b"").decode(),
            delivery_count=int(said.get(KAFKA_PREFIX + "delivery.count", b"0")),
            message=said.get(KAFKA_PREFIX + "message", b"").decode(errors="replace"),
            payload=payload if PAYLOAD_HEADER in said or value is not None else "off",
            timestamp_ms=int(said.get(PREFIX + "timestamp-ms", b"-1")),
            member_id=said.get(PREFIX + "member", b"").decode(),
            failed_at_ms=int(said.get(PREFIX + "failed-at-ms", b"0")) or written_ms,
            key=key,
            value=value,
            headers=headers[:begin],
        )
    except (KeyError, ValueError):
        return None


def waiting_letter(key: PartitionKey, letter: DeadLetter, *, copies: bool) -> Letter:
    """A row of the outbox as a letter.

    Args:
        key: Where the record comes from.
        letter: The row.
        copies: Whether the group's letters carry their records.
    """
    topic, partition, offset, own = key.topic, key.partition, letter.offset, letter.headers
    if key.lane:
        # It was a dead letter before: it still comes from where it came from then.
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
    """The offset of a letter in a share-partition's outbox, by its id; None = it is another's."""
    rest = id_.removeprefix(f"{key.group_id}:{key.topic_id or key.topic}:{key.partition}:")
    offset, _, epoch = rest.partition(":")
    if not (offset.isascii() and offset.isdecimal() and epoch.isdecimal()):
        return None
    return int(offset)


class SeenIds:
    """Ids that have been met: a letter may be in its topic twice.

    Dense offsets of one share-partition take one bit each.
    """

    def __init__(self) -> None:
        self._places: dict[tuple[str, str], dict[int, int]] = {}
        self._pages = 0

    def __len__(self) -> int:
        """How many entries it takes, of about 150 bytes each."""
        return self._pages

    def meet(self, letter_id: str) -> bool:
        """Whether this one was met before; from now on it was. One without an id never was."""
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
