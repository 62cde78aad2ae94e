"""The plan of a redrive or a discard: letters that it takes, and letters that it leaves out."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sharecoord.core.changes import KeptPayload, PartitionRow
from sharecoord.core.letters.dead_letters import headers_of
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.letters.lanes import RATE_MAX, MarkKind, divided
from sharecoord.core.letters.letter import SeenIds
from sharecoord.core.records import KEY_HASH_BYTES
from sharecoord.core.spans import Span, count
from sharecoord.errors import InvalidRequestError, LimitExceededError
from sharecoord.ports import TopicInfo
from sharecoord.runtime.letters.lanes import SPANS_MAX, LaneSelection, RedriveResult
from sharecoord.runtime.letters.scan import Cursor, FoundLetter, LetterScan, LetterState

LETTERS_MAX: Final = 250_000
"""Most letters of one redrive or discard: some ten megabytes with keys. The same call goes on."""

SEEN_MAX: Final = 500_000
"""Most entries of ids that were met, 75 MB: 32 million letters side by side, or this many of which
no two come from near offsets."""

KEPT_BYTES_MAX: Final = 64 << 20
"""Most bytes of one redrive of records that the topic did not take."""

FIRST_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class LetterCommand:
    """A redrive or a discard; fields as of `RedriveDeadLettersRequest` in admin_service.proto."""

    group_id: str
    wanted: LetterFilter
    all_letters: bool = False
    dry_run: bool = False
    rate_per_s: int = 0
    again: bool = False
    discarded: bool = False
    max_letters: int = 0
    topic: str = ""
    kind: MarkKind = MarkKind.REDRIVEN


@dataclass(frozen=True, slots=True)
class LetterRun:
    """The outcome of a redrive or a discard; with `dry_run` what it would be.

    admin_service.proto explains the fields, at `DeadLettersResult`.
    """

    run_id: str = ""
    letters: int = 0
    parts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    first: tuple[FoundLetter, ...] = ()
    redriven: int = 0
    discarded: int = 0
    under_way: int = 0
    copies: int = 0
    waiting: int = 0
    not_redrivable: Mapping[str, int] = field(default_factory=dict)
    more: bool = False


def check_command(command: LetterCommand) -> None:
    """Refuses a command that is not clear.

    Raises:
        InvalidRequestError: Names the field and the fix.
    """
    if command.wanted.is_empty and not command.all_letters:
        raise InvalidRequestError(
            "filter is empty: say which letters are meant, or set all (--all) to mean all of them"
        )
    if command.all_letters and not command.wanted.is_empty:
        raise InvalidRequestError("filter and all (--all) exclude each other; give one of them")
    if not 0 <= command.max_letters <= LETTERS_MAX:
        raise InvalidRequestError(
            f"max_letters is {command.max_letters}; 1 to {LETTERS_MAX}, or 0 for as many as may be"
        )
    if not 0 <= command.rate_per_s <= RATE_MAX:
        raise InvalidRequestError(
            f"rate_per_s is {command.rate_per_s}; 1 to {RATE_MAX}, or 0 for no limit"
        )


class _Where(NamedTuple):
    """The origin of the letters of one lane."""

    partition: int
    """Partition of the dead-letter topic."""
    topic: str
    """The topic that the records come from."""
    source_partition: int | None
    """Partition of `topic`; None where no order is kept: all of it."""


@dataclass(slots=True)
class _Part:
    """The letters of one lane."""

    spans: list[Span] = field(default_factory=list)
    keys: bytearray = field(default_factory=bytearray)
    kept: list[KeptPayload] = field(default_factory=list)

    def add(self, offset: int, key_hash: bytes) -> None:
        """Takes a letter behind the last one."""
        if self.spans and self.spans[-1][1] == offset - 1:
            self.spans[-1] = (self.spans[-1][0], offset)
        else:
            self.spans.append((offset, offset))
        self.keys += key_hash


class Plan:
    """The letters that one command takes; `keys` tells whether the group keeps order by key."""

    def __init__(self, command: LetterCommand, *, keys: bool) -> None:
        self.command = command
        self.letters = 0
        self._keys = keys
        self._taken: dict[_Where, _Part] = {}
        self._copied: dict[_Where, _Part] = {}
        self._seen = SeenIds()
        self._parts: Counter[tuple[str, int]] = Counter()
        self._left: Counter[LetterState] = Counter()
        self._not_redrivable: Counter[str] = Counter()
        self._first: list[FoundLetter] = []
        self._unfinished: dict[tuple[int, str], list[tuple[int, int]]] = {}
        self._copies = self._waiting = self._under_way = 0
        self._more = False
        self._kept_bytes = 0
        self._rows: list[PartitionRow] = []

    async def fill(self, scan: LetterScan, info: TopicInfo) -> None:
        """Looks through all letters, or until no more may be taken.

        Raises:
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: There are too many letters to remember each.
        """
        async with aclosing(scan.waiting(Cursor())) as waiting:
            async for _ in waiting:
                self._waiting += 1
        if self.command.again or self.command.discarded:
            self._unfinished = await scan.unfinished(info)
        async with aclosing(scan.in_topic(info, Cursor())) as chunks:
            async for each in chunks:
                hashes = each.chunk.key_hashes() if self._keys and each.found else b""
                for index, found in each.found:
                    if self._is_full:
                        self._more = True
                        return
                    key_hash = hashes[index * KEY_HASH_BYTES : (index + 1) * KEY_HASH_BYTES]
                    kept = await self._kept_of(scan, found, each.chunk.timestamp_type)
                    self._meet(found, key_hash, kept)
                if len(self._seen) > SEEN_MAX:
                    raise LimitExceededError(
                        f"more than {SEEN_MAX} letters, far apart, match: narrow the filter to one "
                        "topic, partition or time"
                    )

    def check_rate(self) -> None:
        """Refuses a rate that is too small to be divided, in a dry run, too.

        Raises:
            InvalidRequestError: Names the rate and the fix.
        """
        counts = [count(part.spans) for part in self._taken.values()]
        divided(self.command.rate_per_s, counts)

    @property
    def is_empty(self) -> bool:
        """Whether the command takes no letter."""
        return not (self._taken or self._copied)

    @property
    def _is_full(self) -> bool:
        if self.letters >= (self.command.max_letters or LETTERS_MAX):
            return True
        if self._kept_bytes >= KEPT_BYTES_MAX:
            return True
        parts = (*self._taken.values(), *self._copied.values())
        return any(len(part.spans) >= SPANS_MAX for part in parts)

    async def _kept_of(
        self, scan: LetterScan, found: FoundLetter, timestamp_type: int
    ) -> KeptPayload | None:
        """The stored record of a letter whose topic did not take it, as its message would be."""
        if self.command.kind is not MarkKind.REDRIVEN or found.letter.payload != "kept":
            return None
        assert found.place is not None, "it is in the topic"
        if not self._rows:
            self._rows = await scan.rows()
        stored = await scan.stored(found.letter, self._rows)
        if stored is None:
            return None
        headers = headers_of(*stored, payload="whole")
        timestamp = found.written_ms, timestamp_type
        record = stored[1]
        return KeptPayload.of(found.place.offset, record.key, record.value, headers, timestamp)

    def _meet(self, found: FoundLetter, key_hash: bytes, kept: KeptPayload | None) -> None:
        letter, place = found.letter, found.place
        assert place is not None, "it is in the topic"
        is_redrive = self.command.kind is MarkKind.REDRIVEN
        if is_redrive and not letter.is_redrivable and kept is None:
            self._not_redrivable[letter.payload] += 1
            return
        source = letter.partition if self._keys else None
        where = _Where(place.partition, letter.topic, source)
        if self._seen.meet(letter.id):
            # A copy is marked with the first one, which retention may take before.
            self._copies += 1
            if found.state is LetterState.IN_TOPIC:
                self._copied.setdefault(where, _Part()).add(place.offset, b"")
            return
        asked_for = {LetterState.IN_TOPIC}
        if is_redrive and self.command.again:
            asked_for.add(LetterState.REDRIVEN)
        if is_redrive and self.command.discarded:
            asked_for.add(LetterState.DISCARDED)
        if found.state not in asked_for:
            self._left[found.state] += 1
            return
        if self._is_under_way(where, place.offset):
            self._under_way += 1
            return
        part = self._taken.setdefault(where, _Part())
        part.add(place.offset, key_hash)
        if kept is not None:
            part.kept.append(kept)
            self._kept_bytes += kept.size_bytes
        self._parts[letter.topic, letter.partition] += 1
        self.letters += 1
        if len(self._first) < FIRST_SHOWN:
            self._first.append(found)

    def _is_under_way(self, where: _Where, offset: int) -> bool:
        ranges = self._unfinished.get((where.partition, where.topic), [])
        at = bisect_right(ranges, (offset, 2**63)) - 1
        return at >= 0 and ranges[at][1] >= offset

    def selections(self, topic: str, topic_id: str) -> list[LaneSelection]:
        """The letters to redrive or discard."""
        return self._selections(self._taken, topic, topic_id, keys=self._keys)

    def copies(self, topic: str, topic_id: str) -> list[LaneSelection]:
        """Letters that are in the topic a second time."""
        return self._selections(self._copied, topic, topic_id, keys=False)

    @staticmethod
    def _selections(
        parts: dict[_Where, _Part], topic: str, topic_id: str, *, keys: bool
    ) -> list[LaneSelection]:
        return [
            LaneSelection(
                topic,
                topic_id,
                where.partition,
                where.topic,
                part.spans,
                bytes(part.keys) if keys else None,
                where.source_partition,
                part.kept,
            )
            for where, part in sorted(parts.items())
        ]

    def result(self, run_id: str = "", done: RedriveResult | None = None) -> LetterRun:
        """The result for the operator; `done` is the outcome of a command that was carried out."""
        return LetterRun(
            run_id=run_id,
            letters=self.letters if done is None else done.records,
            parts=dict(sorted(self._parts.items())),
            first=tuple(each.shown for each in self._first),
            redriven=self._left[LetterState.REDRIVEN] + (0 if done is None else done.marked),
            discarded=self._left[LetterState.DISCARDED],
            under_way=self._under_way + (0 if done is None else done.under_way),
            copies=self._copies,
            waiting=self._waiting,
            not_redrivable=dict(sorted(self._not_redrivable.items())),
            more=self._more,
        )
