"""The form of a dead letter in its topic (KIP-1191, design 10)."""

from __future__ import annotations

import hashlib
import json
from typing import Final, NamedTuple

from sharecoord.core.changes import DeadLetter, PartitionKey
from sharecoord.core.states import ArchiveReason

KAFKA_PREFIX: Final = "__dlq.errors."
"""Prefix of Kafka's headers; all of them are text."""

PREFIX: Final = "sharecoord-dead-letter-"
"""Prefix of our headers, behind Kafka's. The record's own come first, byte for byte."""

ID_HEADER: Final = PREFIX + "id"
PAYLOAD_HEADER: Final = PREFIX + "payload"

_MESSAGES: Final = {
    ArchiveReason.REJECTED: "The record was rejected by a member of the group.",
    ArchiveReason.DELIVERY_LIMIT: "The record was delivered as often as the group allows.",
}

TOKEN_CHARACTERS: Final = 32
"""Length of a mark's token."""

_OVERHEAD_BYTES: Final = 512
"""Approximate bytes of our headers and of the message around them."""


def is_ours(name: str) -> bool:
    """Whether a header is one that dead letters get, and not the record's own."""
    return name.startswith((KAFKA_PREFIX, PREFIX))


def letter_id(key: PartitionKey, letter: DeadLetter) -> str:
    """An id that all copies of a dead letter have, and no other letter has."""
    place = f"{key.topic_id or key.topic}:{key.partition}:{letter.offset}"
    return f"{key.group_id}:{place}:{letter.state_epoch}"


class OutboxMark(NamedTuple):
    """The last letter of an outbox that is in its dead-letter topic."""

    sequence: int
    token: str
    """Tells the letter from one of a lost or restored store with the same sequence."""


def mark_of(key: PartitionKey, letter: DeadLetter) -> OutboxMark:
    """The mark that a transaction commits whose last letter this is."""
    said = f"{letter_id(key, letter)}:{letter.failed_at_ms}"
    return OutboxMark(letter.sequence, hashlib.sha256(said.encode()).hexdigest()[:TOKEN_CHARACTERS])


def outbox_name(key: PartitionKey) -> str:
    """The transactional id of a share-partition's letters, and their consumer group."""
    place = f"{key.topic_id or key.topic}.{key.partition}"
    return f"sharecoord.dlq.{key.group_id}.{place}" + (f".{key.lane}" if key.lane else "")


def size_of(letter: DeadLetter) -> int:
    """About how many bytes a letter takes, in memory and on the wire."""
    named = sum(len(name) + len(value or b"") for name, value in letter.headers)
    parts = (letter.key, letter.value, letter.checkpoint)
    return sum(len(part or b"") for part in parts) + named + _OVERHEAD_BYTES


def headers_of(
    key: PartitionKey, letter: DeadLetter, *, payload: str
) -> tuple[tuple[str, bytes | None], ...]:
    """The headers of the message: the record's own, then Kafka's, then ours.

    `key` is the place of the record; of a lane the place of the former dead letter. `payload` is
    `whole`, or why key, value and headers are not in the message: `off` (the group copies none),
    `gone` (not in the log any more), `kept` (too large; the store has it).
    """
    own = letter.headers
    topic, partition, offset = key.topic, str(key.partition), str(letter.offset)
    if key.lane:
        # A letter of a letter keeps the origin of the first.
        former = {name: (value or b"").decode(errors="replace") for name, value in own}
        topic = key.served
        partition = former.get(KAFKA_PREFIX + "partition", "")
        offset = former.get(KAFKA_PREFIX + "offset", "")
        own = tuple(each for each in own if not is_ours(each[0]))
    ours: list[tuple[str, str]] = [
        (KAFKA_PREFIX + "topic", topic),
        (KAFKA_PREFIX + "partition", partition),
        (KAFKA_PREFIX + "offset", offset),
        (KAFKA_PREFIX + "group", key.group_id),
        (KAFKA_PREFIX + "delivery.count", str(letter.delivery_count)),
        (KAFKA_PREFIX + "message", letter.message or message_of(letter.reason)),
        (ID_HEADER, letter_id(key, letter)),
        (PREFIX + "reason", letter.reason),
        (PAYLOAD_HEADER, payload),
        (PREFIX + "timestamp-ms", str(letter.timestamp_ms)),
    ]
    if letter.member_id is not None:
        ours.append((PREFIX + "member", letter.member_id))
    if letter.members:
        named = json.dumps(letter.members, ensure_ascii=False)
        ours.append((PREFIX + "members", named))
    if letter.first_failed_at_ms:
        ours.append((PREFIX + "first-failed-at-ms", str(letter.first_failed_at_ms)))
    if letter.failed_at_ms:
        ours.append((PREFIX + "failed-at-ms", str(letter.failed_at_ms)))
    copied = own if payload == "whole" else ()
    last = () if letter.checkpoint is None else ((PREFIX + "checkpoint", letter.checkpoint),)
    return (*copied, *((name, text.encode()) for name, text in ours), *last)


def message_of(reason: str) -> str:
    """The message of a letter whose worker said nothing."""
    return _MESSAGES.get(ArchiveReason(reason), reason)
