"""Scans the dead letters of a group, in the outbox and in their topic."""

from __future__ import annotations

import enum
import re
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from sharecoord.config.group import GroupConfig
from sharecoord.core.changes import DeadLetter, PartitionKey, PartitionRow
from sharecoord.core.letters.dead_letters import letter_id
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.letters.lanes import Mark, MarkReader
from sharecoord.core.letters.letter import Letter, find_letter, place_in, waiting_letter
from sharecoord.core.records import RecordChunk
from sharecoord.core.states import RecordState
from sharecoord.errors import (
    InvalidConfigError,
    InvalidRequestError,
    KafkaUnavailableError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import Stretch, TopicInfo, end_queries
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.kernel.store_thread import StoreCaller
from sharecoord.runtime.letters.lanes import Lanes

KEY_SHOWN_BYTES: Final = 256
"""Most bytes of a key in a list."""

RANGES_PAGE: Final = 10_000
"""Rows of one read of what is in flight."""

OUTBOX_ROWS: Final = 20
"""Rows of one read of the outbox: each may hold a record of a megabyte."""


class LetterState(enum.Enum):
    """The place or the fate of a dead letter."""

    WAITING = "waiting"
    """The letter is in the outbox, not in its topic yet."""
    IN_TOPIC = "in topic"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"


class LetterPlace(NamedTuple):
    """A letter's place in a dead-letter topic."""

    topic: str
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class FoundLetter:
    """A letter, and its place."""

    letter: Letter
    state: LetterState
    place: LetterPlace | None = None
    """None while the letter waits in the outbox."""
    written_ms: int = 0
    """The time at which the letter came into its topic; 0 while it waits."""
    mark: Mark | None = None
    """The mark of the last redrive or discard."""

    @property
    def shown(self) -> FoundLetter:
        """The letter as lists show it, with the beginning of its key."""
        key = self.letter.key
        return replace(self, letter=self.letter._replace(key=key and key[:KEY_SHOWN_BYTES]))


class Cursor(NamedTuple):
    """A place among the letters of a group, those in the outbox first."""

    number: int = 0
    """The id of the share-partition, or the partition of the topic."""
    offset: int = 0
    in_topic: bool = False

    def __str__(self) -> str:
        """As `parse` reads it."""
        return f"{'topic' if self.in_topic else 'outbox'}:{self.number}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Reads the cursor of a former page; "" = the begin.

        Raises:
            InvalidRequestError: The text is no cursor.
        """
        if not text:
            return cls()
        kind, *numbers = text.split(":")
        good = [each for each in numbers if re.fullmatch("[0-9]{1,18}", each)]
        if kind not in ("outbox", "topic") or len(numbers) != 2 or good != numbers:
            raise InvalidRequestError(
                f"after is {text!r}; give the `next` of a former page, or nothing to begin"
            )
        return cls(int(numbers[0]), int(numbers[1]), in_topic=kind == "topic")


class TopicLetters(NamedTuple):
    """The matching letters in one chunk of a dead-letter topic."""

    chunk: RecordChunk
    found: list[tuple[int, FoundLetter]]
    """(index in the chunk, letter)"""
    behind: Cursor


@dataclass(frozen=True)
class LetterScan:
    """Reads the letters of a group that match a filter; `reads` runs the store's reads."""

    context: Context
    reads: StoreCaller
    lanes: Lanes
    group_id: str
    config: GroupConfig
    topic: str
    """The dead-letter topic; "" when the group has none."""
    wanted: LetterFilter

    async def rows(self) -> list[PartitionRow]:
        """The share-partitions of the group, with those of former topics."""
        return await self.reads.call(self.context.store.list_partitions, self.group_id)

    async def find_topic(self) -> TopicInfo | None:
        """The dead-letter topic, if it exists.

        Raises:
            KafkaUnavailableError: Kafka does not answer.
            UnauthorizedError: Kafka refuses the topic.
        """
        if not self.topic:
            return None
        info = (await self.context.catalog.describe([self.topic])).get(self.topic)
        if info is None and self.topic in self.context.catalog.refusals:
            raise self.context.catalog.refusals[self.topic]
        return info

    async def existing_topic(self) -> TopicInfo:
        """The dead-letter topic.

        Raises:
            InvalidConfigError: The group has no dead-letter topic.
            UnknownTopicOrPartitionError: The topic does not exist.
        """
        info = await self.find_topic()
        if info is not None:
            return info
        if self.topic:
            raise UnknownTopicOrPartitionError(
                f"dead-letter topic {self.topic!r} of group {self.group_id!r} does not exist"
            )
        raise InvalidConfigError(
            f"group {self.group_id!r} has no dead-letter topic: set "
            "errors.deadletterqueue.topic.name, or name the topic that it had",
            metadata={"key": "errors.deadletterqueue.topic.name"},
        )

    async def unfinished(self, info: TopicInfo) -> dict[tuple[int, str], list[tuple[int, int]]]:
        """Letters that an earlier redrive has not finished: ranges by partition and source."""
        found: dict[tuple[int, str], list[tuple[int, int]]] = {}
        for row in await self.rows():
            key, position = row.key, 0
            if not key.lane or (key.topic, key.topic_id) != (self.topic, info.topic_id):
                continue
            ranges = found.setdefault((key.partition, key.served), [])
            while page := await self.reads.call(
                self.context.store.read_in_flight,
                row.partition_id,
                from_offset=position,
                max_rows=RANGES_PAGE,
            ):
                ranges += [(r[0], r[1]) for r in page if r.state != RecordState.ARCHIVED]
                position = page[-1].last_offset + 1
        # Several lanes of a topic may share a partition.
        return {where: sorted(ranges) for where, ranges in found.items()}

    async def waiting(self, after: Cursor) -> AsyncGenerator[tuple[Cursor, FoundLetter], None]:
        """Letters in the outbox, each with the cursor behind it.

        Letters of which only the payload was kept are left out: they are in their topic.
        """
        copies = self.config.dlq_copy_record_enable
        for row in sorted(await self.rows(), key=lambda row: row.partition_id):
            id_ = row.partition_id
            if id_ < after.number:
                continue
            offset = after.offset if id_ == after.number else 0
            while page := await self.reads.call(
                self.context.store.read_dead_letters,
                id_,
                from_offset=offset,
                max_rows=OUTBOX_ROWS,
            ):
                offset = page[-1].offset + 1
                for each in page:
                    letter = waiting_letter(row.key, each, copies=copies)
                    if not each.kept and self.wanted.matches(letter):
                        found = FoundLetter(letter, LetterState.WAITING)
                        yield Cursor(id_, each.offset + 1), found

    async def stored(
        self, letter: Letter, rows: Iterable[PartitionRow]
    ) -> tuple[PartitionKey, DeadLetter] | None:
        """The stored row of a letter whose record its topic did not take, among these."""
        for row in rows:
            offset = place_in(row.key, letter.id)
            if offset is None:
                continue
            for found in await self.reads.call(
                self.context.store.read_dead_letters,
                row.partition_id,
                from_offset=offset,
                max_rows=1,
            ):
                if found.offset == offset and letter_id(row.key, found) == letter.id:
                    return row.key, found
        return None

    async def in_topic(self, info: TopicInfo, after: Cursor) -> AsyncGenerator[TopicLetters, None]:
        """Letters in the topic up to its present end, chunk by chunk, also where none matches.

        Raises:
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: Too many scans run.
        """
        stretches = await self._stretches(info.partitions, after)
        if not stretches:
            return
        marks: MarkReader | None = None
        at = -1
        try:
            async with aclosing(self.context.reader.scan(self.topic, stretches)) as scan:
                async for partition, chunk in scan:
                    if marks is None or partition != at:
                        at, place = partition, (self.topic, info.topic_id, partition)
                        marks = MarkReader(await self.lanes.marks(self.group_id, *place))
                    found = self._matching(LetterPlace(self.topic, partition, -1), chunk, marks)
                    behind = Cursor(partition, chunk.last + 1, in_topic=True)
                    yield TopicLetters(chunk, found, behind)
        except OffsetOutOfRangeError as error:
            # Retention moved the log start since it was asked for.
            raise KafkaUnavailableError(error.message, retry_after_ms=100) from error

    async def _stretches(self, partitions: Sequence[int], after: Cursor) -> list[Stretch]:
        topic = self.topic
        wanted = [p for p in sorted(partitions) if p >= after.number or not after.in_topic]
        places = {p: end_queries([(topic, p)]) for p in wanted}
        asked = [query for pair in places.values() for query in pair]
        known = await self.context.catalog.offsets(asked, committed=True)
        stretches = []
        for partition, (start, end) in places.items():
            if start not in known or end not in known:
                raise KafkaUnavailableError(f"no offsets for {topic}[{partition}] from Kafka")
            first = known[start]
            if after.in_topic and partition == after.number:
                first = max(first, after.offset)
            if first < known[end]:
                stretches.append(Stretch(partition, first, known[end]))
        return stretches

    def _matching(
        self, place: LetterPlace, chunk: RecordChunk, marks: MarkReader
    ) -> list[tuple[int, FoundLetter]]:
        found = []
        columns = chunk.columns(0, chunk.count)
        for index, headers in columns.headers.items():
            key = None if columns.keys is None else columns.keys[index]
            written_ms = columns.timestamps[index]
            letter = find_letter(key, columns.values[index], headers, written_ms)
            if letter is None or letter.group_id != self.group_id:
                continue
            if self.wanted.matches(letter):
                offset = chunk.offset(index)
                mark = marks.at(offset)
                state = LetterState.IN_TOPIC if mark is None else LetterState(mark.kind)
                at = place._replace(offset=offset)
                found.append((index, FoundLetter(letter, state, at, written_ms, mark)))
        return found
