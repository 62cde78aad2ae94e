"""What admin calls about dead letters take and give."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

Headers = tuple[tuple[str, bytes | None], ...]


class DeadLetterState(Enum):
    """Where a dead letter is."""

    #: In the outbox: it is not in its topic yet.
    WAITING = "waiting"
    IN_TOPIC = "in topic"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


@dataclass(frozen=True, slots=True)
class DeadLetterFilter:
    """Which dead letters are meant: everything that is given must hold, one of each list.

    Attributes:
        reasons: REJECTED, DELIVERY_LIMIT.
        topic: Where the records come from.
        partitions: Of that topic.
        first_offset: Of the one partition that is given.
        last_offset: Inclusive.
        key: The whole key.
        key_prefix: How the key begins; not empty.
        failed_from_ms: When the last delivery failed, milliseconds since the epoch, inclusive.
        failed_to_ms: Exclusive.
        headers: Of the record; each must be there, with the value unless that is None.
        ids: Of letters.
        text: Part of the error text, in upper or lower case.
    """

    reasons: Iterable[str] = ()
    topic: str = ""
    partitions: Iterable[int] = ()
    first_offset: int | None = None
    last_offset: int | None = None
    key: bytes | None = None
    key_prefix: bytes | None = None
    failed_from_ms: int | None = None
    failed_to_ms: int | None = None
    headers: Iterable[tuple[str, bytes | None]] = ()
    ids: Iterable[str] = ()
    text: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was rejected, or failed for the last time.

    Attributes:
        id: The same on each copy of it; "" = Kafka's own brokers wrote it.
        topic: Where the record comes from, as the next two.
        reason: REJECTED or DELIVERY_LIMIT; "" as `id`.
        failed_at_ms: Milliseconds since the epoch.
        message: What the worker said, else a sentence.
        key: Of the record; in lists its first 256 bytes.
        place: Dead-letter topic, partition and offset; None while it waits.
        payload: `whole`, or why the record is not in it: `off`, `gone`, `kept` (in the store).
        timestamp_ms: Of the record; -1 = not known.
        run_id: Of its last redrive or discard; "" = none.
        marked_at_ms: When that was.
    """

    id: str
    topic: str
    partition: int
    offset: int
    reason: str
    delivery_count: int
    failed_at_ms: int
    message: str
    key: bytes | None
    state: DeadLetterState
    place: tuple[str, int, int] | None = None
    payload: str = "whole"
    member_id: str = ""
    timestamp_ms: int = -1
    run_id: str = ""
    marked_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Some letters, and where to go on; "" = that was all."""

    letters: tuple[DeadLetter, ...]
    next: str = ""


@dataclass(frozen=True, slots=True)
class DeadLetterDetails:
    """One letter whole.

    Attributes:
        value: Of the record.
        headers: Of the record, in order, duplicates and nulls included.
        steps: What happened to it: milliseconds since the epoch (0 = not known) and words.
    """

    letter: DeadLetter
    value: bytes | None
    headers: Headers
    steps: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class DeadLettersResult:
    """What a redrive or a discard did, or (dry run) would do.

    Attributes:
        run_id: Names it in the letters' marks; "" = nothing was done.
        letters: How many were, or would be, redriven or discarded.
        parts: Letters that were found for it, by topic and partition they come from.
        first: The first few of them.
        redriven: Left out: redriven before.
        discarded: Left out: discarded before.
        under_way: Left out: an earlier redrive of them is not finished.
        copies: Left out: a second copy of a letter; it is marked with the first one.
        waiting: Left out: not in their topic yet.
        not_redrivable: Left out of a redrive, by payload: the record is not in the letter.
        more: Whether there may be more than one call takes: the same call goes on.
    """

    run_id: str
    letters: int
    parts: Mapping[tuple[str, int], int]
    first: tuple[DeadLetter, ...] = ()
    redriven: int = 0
    discarded: int = 0
    under_way: int = 0
    copies: int = 0
    waiting: int = 0
    not_redrivable: Mapping[str, int] = field(default_factory=dict)
    more: bool = False
