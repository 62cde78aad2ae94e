"""Dead letters of one share-partition: from ARCHIVING to their topic (design 10).

What is rejected, or fails for the last time, becomes ARCHIVING in one commit with a row in the
outbox that has its payload. Once that is durable it goes to the dead-letter topic; when Kafka has
it, the range becomes ARCHIVED and the row goes. So a letter is lost nowhere between the two: what a
coordinator leaves undone its successor finds in the store and sends, twice at worst, under one id.

A payload that is not in the cache is read again first; until then its row is without it, and who
loads the row reads on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from sharecoord.core.changes import DeadLetter, LoadedPartition, PartitionCommit
from sharecoord.core.dead_letters import OutboxMark, headers_of, mark_of, outbox_name, size_of
from sharecoord.core.records import RecordChunk
from sharecoord.core.settings import PartitionSettings
from sharecoord.core.window import Edit, Window
from sharecoord.errors import (
    LimitExceededError,
    NotOwnerError,
    OffsetOutOfRangeError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import (
    EARLIEST,
    DeadLetterSink,
    LetterTransactions,
    OffsetQuery,
    OutgoingMessage,
)
from sharecoord.runtime.effects import CallbackEffect
from sharecoord.runtime.kept_payloads import payload_in
from sharecoord.runtime.letter_owner import LetterOwner, confirmed
from sharecoord.runtime.new_letters import letters_of

if TYPE_CHECKING:
    from sharecoord.runtime.context import Context

log = structlog.get_logger(__name__)

UNDER_WAY_RECORDS_MAX: Final = 1_000
"""Of one share-partition: enough for a full batch to each of some partitions."""

UNDER_WAY_BYTES_MAX: Final = 4 << 20
"""Of one share-partition; librdkafka has them a second time."""

AGAIN_S: Final = 1.0
"""First wait after a failure, as Kafka's own; doubles."""

AGAIN_MAX_S: Final = 30.0

SILENCE_S: Final = 5.0
"""What is under way for so long without any answer raises the alert: Kafka's client tries on by
itself, and does not say why."""

ALONE_TRIES: Final = 3
"""A batch that is too large fails with all its messages: so often a letter goes without others of
its share-partition before it counts as too large itself."""

READ_RECORDS_MAX: Final = 500
"""Payloads that are read again together."""

READ_AGAIN_S: Final = 0.5
"""Wait after payloads could not be read."""


@dataclass(eq=False, slots=True)
class _Entry:
    """A letter that waits."""

    letter: DeadLetter
    size_bytes: int
    too_large: int = 0
    """How often Kafka said so."""

    @property
    def is_alone(self) -> bool:
        return self.too_large > 0


class DeadLetters:
    """The outbox of one share-partition, in one incarnation of it."""

    def __init__(self, context: Context, actor: LetterOwner) -> None:
        self._context = context
        self._actor = actor
        self._settings = PartitionSettings()
        self._owner_epoch = self._number = 0
        """Of the last letter."""
        self._transaction: asyncio.Task[None] | None = None
        """Under way; never beside letters that are not in one."""
        self._outbox: LetterTransactions | None = None
        """Once it is open, nobody else can send what is in it."""
        self._singly = 0
        """So many letters go in transactions of their own: one of them is too large."""
        self._entries: dict[int, _Entry] = {}
        """By offset: what waits, stored or about to be."""
        self._queue: deque[_Entry] = deque()
        """Stored, and not under way."""
        self._under_way: dict[_Entry, None] = {}
        self._under_way_bytes = 0
        self._new: list[DeadLetter] = []
        """Rows for the next commit."""
        self._gone: list[int] = []
        """Offsets whose rows go with the next commit."""
        self._safe: list[int] = []
        """Offsets that Kafka has, in this turn of the loop."""
        self._lacking: dict[int, DeadLetter] = {}
        """Without their payload, which is being read."""
        self._reading: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self._delay_s = AGAIN_S
        self._heard_s = 0.0
        """When Kafka answered last, or had nothing to answer."""
        self._listening: asyncio.TimerHandle | None = None
        """Notices silence while letters are under way."""
        self.made = self.done_at_load = 0
        """Letters made in this incarnation, and `Window.done` at its begin."""
        self.problem = ""
        """What keeps letters from their topic; "" = nothing does."""

    # -- life -----------------------------------------------------------------------------------

    def begin(self, loaded: LoadedPartition, settings: PartitionSettings) -> None:
        """Goes on with what the former incarnation left; once."""
        self._settings, self._owner_epoch = settings, loaded.row.owner_epoch
        for letter in sorted(loaded.dead_letters, key=lambda each: each.sequence):
            if letter.sequence:
                self._queue.append(self._enter(letter))
            elif not letter.kept:
                self._lacking[letter.offset] = replace(letter, payload_known=True)
        if self._entries or self._lacking:
            asyncio.get_running_loop().call_soon(self._go)

    def end(self) -> None:
        """The incarnation is over; what is under way may still arrive, and be sent again."""
        for task in (self._reading, self._transaction):
            if task is not None and task is not asyncio.current_task():
                task.cancel()
        self._reading = self._transaction = None
        for timer in (self._again, self._listening):
            if timer is not None:
                timer.cancel()
        for entry in self._entries.values():
            self._leave(entry)
        for kept in (self._entries, self._queue, self._under_way, self._lacking, self._safe):
            kept.clear()

    def apply_settings(self, settings: PartitionSettings) -> None:
        """Another topic, or the first one, is tried at once."""
        before, self._settings = self._settings, settings
        if before != settings and (self._entries or self._lacking):
            self._try_again()

    @property
    def is_full(self) -> bool:
        """Whether the group's letters take as much as they may: nothing more is acquired."""
        return self._actor.budget.outbox_bytes >= self._settings.outbox_max_bytes

    @property
    def waiting(self) -> int:
        """Letters that are not in their topic yet."""
        return len(self._entries) + len(self._lacking)

    # -- into the outbox ------------------------------------------------------------------------

    def note(self, edits: Iterable[Edit], window: Window, now_ms: int) -> None:
        """Takes in what becomes ARCHIVING by a decision that is about to be applied."""
        made: list[DeadLetter] = []
        actor = self._actor
        letters = letters_of(
            edits,
            window,
            self._context.clock,
            now_ms,
            settings=self._settings,
            state_epoch=actor.state_epoch,
            checkpoint_of=actor.checkpoints.for_letter,
        )
        for letter in letters:
            self.made += 1
            whole = self._with_payload(letter, actor.cache.find(letter.offset))
            if whole is None:
                self._lacking[letter.offset] = letter
                self._new.append(replace(letter, payload_known=False))
            else:
                made.append(whole)
        self._store(made)
        if self._lacking:
            asyncio.get_running_loop().call_soon(self._go)

    def _with_payload(self, letter: DeadLetter, chunk: RecordChunk | None) -> DeadLetter | None:
        """A letter with what its record holds; None = that is not known."""
        if not self._settings.dead_letter_copies:
            return letter
        found = payload_in(chunk, letter.offset)
        if found is None:
            return None
        return replace(
            letter,
            key=found.key,
            value=found.value,
            headers=found.headers,
            timestamp_ms=found.timestamp_ms,
        )

    def _enter(self, letter: DeadLetter) -> _Entry:
        former = self._entries.pop(letter.offset, None)
        if former is not None:
            # A reset delivered it anew; its row is replaced.
            self._leave(former)
        entry = self._entries[letter.offset] = _Entry(letter, size_of(letter))
        self._actor.budget.outbox_grew(entry.size_bytes)
        return entry

    def _leave(self, entry: _Entry) -> None:
        self._actor.budget.outbox_shrank(entry.size_bytes, self._settings.outbox_max_bytes)

    def _store(self, letters: Sequence[DeadLetter]) -> None:
        """The next commit stores them; then they go."""
        if not letters:
            return
        ready = [replace(letter, sequence=self._next_sequence()) for letter in letters]
        entries = [self._enter(letter) for letter in ready]
        self._new += ready
        effect = CallbackEffect(partial(self._stored, entries))
        self._context.committer.add(self._actor, effect)

    def _next_sequence(self) -> int:
        self._number += 1
        return (self._owner_epoch << 32) | self._number

    def _stored(self, entries: Sequence[_Entry], error: SharecoordError | None) -> None:
        if error is None:
            self._queue += [each for each in entries if self._waits(each)]
            self._go()

    def _waits(self, entry: _Entry) -> bool:
        return self._entries.get(entry.letter.offset) is entry

    def into(self, commit: PartitionCommit) -> None:
        """What the next commit stores."""
        if self._new or self._gone:
            commit.dead_letters, self._new = self._new, []
            commit.dead_letters_done, self._gone = self._gone, []

    # -- payloads that are not in memory --------------------------------------------------------

    async def _read(self) -> None:
        """Reads until every letter has its payload, or it is known that there is none."""
        try:
            while self._lacking:
                first = last = next(iter(self._lacking))
                kept = self._actor.kept.offsets.covers(first, first)
                while (
                    last + 1 in self._lacking
                    and last - first < READ_RECORDS_MAX - 1
                    and self._actor.kept.offsets.covers(last + 1, last + 1) == kept
                ):
                    last += 1
                await (self._read_kept if kept else self._read_range)(first, last)
        except SharecoordError as error:
            log.warning("dead letters wait for payloads", partition=self._actor.key, why=str(error))
            asyncio.get_running_loop().call_later(READ_AGAIN_S, self._go)
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None

    @property
    def lacking(self) -> Collection[int]:
        """The records whose payloads are still to be read."""
        return self._lacking

    def give_up_reading(self) -> None:
        """Nobody can read what is lacking: headers alone go."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        lacking, self._lacking = list(self._lacking.values()), {}
        self._store([replace(letter, payload_known=False) for letter in lacking])

    async def _read_range(self, first: int, last: int) -> None:
        context, key = self._context, self._actor.key
        try:
            # Uncommitted as well: whoever looks for these offsets has had them before.
            chunks = await context.reader.reread(
                key.topic, key.partition, first, last, committed=False
            )
        except OffsetOutOfRangeError:
            start = await context.offset(OffsetQuery(key.topic, key.partition, EARLIEST))
            last = min(last, start - 1) if start > first else last
            chunks = []
        await confirmed(self._actor.life)
        self._found(first, last, chunks)

    async def _read_kept(self, first: int, last: int) -> None:
        """From where records that waited have their payloads, which go with the letters' commit."""
        chunks = await self._actor.kept.read(range(first, last + 1))
        last = chunks[-1].last if chunks else first
        self._found(first, last, chunks)
        self._actor.kept.drop(first, last)

    def _found(self, first: int, last: int, chunks: Sequence[RecordChunk]) -> None:
        made: list[DeadLetter] = []
        for offset in range(first, last + 1):
            letter = self._lacking.pop(offset, None)
            if letter is None:
                continue
            chunk = next((each for each in chunks if each.first <= offset <= each.last), None)
            whole = self._with_payload(letter, chunk)
            made.append(replace(letter, payload_known=False) if whole is None else whole)
        self._store(made)

    # -- out of the outbox ----------------------------------------------------------------------

    def _go(self) -> None:
        """Sends what may be sent, and has read what is to be read."""
        if self._actor.partition is None:
            return
        if self._lacking and self._reading is None:
            name = f"dead-letters-{self._actor.key.topic}"
            self._reading = self._context.spawn(self._read(), name)
        sink, topic = self._context.dead_letters, self._settings.dead_letter_topic
        if self._queue and not topic:
            self.problem = "errors.deadletterqueue.topic.name is empty"
        if sink is None or not topic or self._again is not None or self._transaction is not None:
            return
        if self._settings.dead_letter_exactly_once:
            # What is under way without a transaction is waited for: a mark stands for all before.
            if self._queue and not self._under_way:
                work = self._transact(sink, topic)
                self._transaction = self._context.spawn(work, f"dead-letters-{topic}")
            return
        while self._queue and self._has_room(self._queue[0]):
            entry = self._queue.popleft()
            if not self._waits(entry):
                continue
            self._takes(entry)
            sink.send(topic, self._message(entry), partial(self._heard, entry))
            if entry.is_alone:
                return

    def _takes(self, entry: _Entry) -> None:
        if not self._under_way:
            self._heard_s = asyncio.get_running_loop().time()
            self._listen()
        self._under_way[entry] = None
        self._under_way_bytes += entry.size_bytes

    def _listen(self) -> None:
        if self._listening is None:
            loop = asyncio.get_running_loop()
            self._listening = loop.call_later(SILENCE_S, self._notice_silence)

    def _notice_silence(self) -> None:
        self._listening = None
        if not self._under_way:
            return
        is_silent = asyncio.get_running_loop().time() >= self._heard_s + SILENCE_S
        # Of a transaction that failed before there is Kafka's own word.
        if is_silent and not self.problem:
            self._say(
                f"dead-letter topic {self._settings.dead_letter_topic!r}: no answer from Kafka, "
                "which is tried on; look whether its brokers are up, and whether the topic has "
                "enough in-sync replicas (min.insync.replicas) and room on its disks"
            )
        self._listen()

    def _has_room(self, entry: _Entry) -> bool:
        if not self._under_way:
            return True
        if entry.is_alone or any(each.is_alone for each in self._under_way):
            return False
        room = self._under_way_bytes + entry.size_bytes <= UNDER_WAY_BYTES_MAX
        return room and len(self._under_way) < UNDER_WAY_RECORDS_MAX

    def _message(self, entry: _Entry) -> OutgoingMessage:
        letter, key = entry.letter, self._actor.key
        payload = "whole"
        if not self._settings.dead_letter_copies or letter.is_bare:
            payload = "off"
        elif not letter.payload_known:
            payload = "gone"
        elif letter.kept:
            payload = "kept"
        headers = headers_of(key, letter, payload=payload)
        if payload != "whole":
            return OutgoingMessage(None, None, headers)
        return OutgoingMessage(letter.key, letter.value, headers)

    def _heard(self, entry: _Entry, error: SharecoordError | None) -> None:
        """Kafka has a letter, or says why not."""
        if entry not in self._under_way:
            # Of an incarnation that is over.
            return
        del self._under_way[entry]
        self._under_way_bytes -= entry.size_bytes
        self._heard_s = asyncio.get_running_loop().time()
        if not self._waits(entry):
            pass
        elif error is None:
            self._has_arrived(entry)
        else:
            self._failed(entry, error)
        if self._again is None:
            self._go()

    def _has_arrived(self, entry: _Entry) -> None:
        self.problem, self._delay_s = "", AGAIN_S
        self._actor.dead_letters += 1
        if not self._safe:
            asyncio.get_running_loop().call_soon(self._settle)
        self._safe.append(entry.letter.offset)

    def _failed(self, entry: _Entry, error: SharecoordError) -> None:
        if isinstance(error, LimitExceededError):
            entry.too_large += 1
            if entry.too_large < ALONE_TRIES:
                self._put_back(entry)
            else:
                self._keep(entry)
        else:
            self._put_back(entry)
            self._wait(error)

    def _put_back(self, *entries: _Entry) -> None:
        left = sorted([*entries, *self._queue], key=lambda each: each.letter.sequence)
        self._queue = deque(left)

    def _keep(self, entry: _Entry) -> None:
        """Its topic takes its headers alone; stored before they go, for nobody could tell later."""
        self._store([replace(entry.letter, kept=True)])

    def _say(self, why: str) -> None:
        """Raises the alert; the log has it once."""
        if why != self.problem:
            log.warning("dead letters wait", partition=self._actor.key, why=why)
            self.problem = why

    def _wait(self, error: SharecoordError) -> None:
        """Says why letters wait, and has them tried again."""
        self._say(error.message)
        if (
            isinstance(error, UnknownTopicOrPartitionError)
            and self._settings.dead_letter_auto_create
        ):
            self._context.spawn(self._make_topic(), "dead-letter-topic")
        if self._again is None:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(self._delay_s, self._try_again)
            self._delay_s = min(2 * self._delay_s, AGAIN_MAX_S)

    # -- exactly once ---------------------------------------------------------------------------

    async def _transact(self, sink: DeadLetterSink, topic: str) -> None:
        """Sends what waits in one transaction, or hears what the former owner has sent."""
        batch: list[_Entry] = []
        failure: SharecoordError | None = None
        try:
            if self._outbox is None or not self._outbox.is_open:
                opened = await sink.open(outbox_name(self._actor.key), topic)
                await self._still_owns()
                self._outbox = opened
                self._take_arrived(opened.mark)
            batch = self._next_batch()
            if batch:
                messages = [self._message(entry) for entry in batch]
                mark = mark_of(self._actor.key, batch[-1].letter)
                await self._outbox.send(topic, messages, mark)
        except SharecoordError as error:
            failure = error
        if self._transaction is not asyncio.current_task():
            # The incarnation is over.
            return
        self._transaction = None
        if isinstance(failure, NotOwnerError):
            self._actor.drop(failure)
            return
        if failure is not None:
            self._transaction_failed(batch, failure)
        for entry in batch if failure is None else ():
            self._heard(entry, None)
        self._go()

    async def _still_owns(self) -> None:
        """Has the store confirm it, after every other sender was fenced.

        Who stood still since before a successor came would fence that one, and send again what it
        has sent: the successor's mark is of a letter that its predecessor never had.
        """
        error = await self._context.committed(self._actor)
        if error is not None:
            raise error

    def _transaction_failed(self, batch: Sequence[_Entry], failure: SharecoordError) -> None:
        self._under_way.clear()
        self._under_way_bytes = 0
        waiting = [entry for entry in batch if self._waits(entry)]
        if isinstance(failure, LimitExceededError):
            self._singly = len(batch) if len(batch) > 1 else 0
            if len(batch) == 1 and waiting:
                self._keep(waiting.pop())
        else:
            self._wait(failure)
        self._put_back(*waiting)

    def _next_batch(self) -> list[_Entry]:
        """The letters of the next transaction, taken from the queue."""
        batch: list[_Entry] = []
        while self._queue and self._has_room(self._queue[0]):
            entry = self._queue.popleft()
            if not self._waits(entry):
                continue
            self._takes(entry)
            batch.append(entry)
            if self._singly:
                self._singly -= 1
                break
        return batch

    def _take_arrived(self, mark: OutboxMark | None) -> None:
        """What a former owner has sent, or a transaction whose end nobody heard of."""
        waiting, key = [entry for entry in self._queue if self._waits(entry)], self._actor.key
        at = next(
            (
                at
                for at, entry in enumerate(waiting)
                if mark is not None
                and entry.letter.sequence == mark.sequence
                and mark_of(key, entry.letter) == mark
            ),
            None,
        )
        if at is not None:
            self._queue = deque(waiting[at + 1 :])
            for entry in waiting[: at + 1]:
                self._has_arrived(entry)

    async def _make_topic(self) -> None:
        sink = self._context.dead_letters
        assert sink is not None, "it refused a letter"
        try:
            await sink.ensure(self._settings.dead_letter_topic, create=True)
        except SharecoordError as error:
            self.problem = error.message
        else:
            self._try_again()

    def _try_again(self) -> None:
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self._go()

    def _settle(self) -> None:
        """What Kafka has is ARCHIVED, and its rows go, in one commit."""
        safe, self._safe = sorted(self._safe), []
        partition = self._actor.partition
        if partition is None or not safe:
            return
        first = safe[0]
        for offset, after in zip(safe, [*safe[1:], None], strict=True):
            entry = self._entries.pop(offset)
            self._leave(entry)
            if entry.letter.kept:
                self._new.append(replace(entry.letter, sequence=0))
            else:
                self._gone.append(offset)
            if after != offset + 1:
                self._actor.dead_letters_safe(first, offset)
                first = after or 0
        self._context.committer.add(self._actor)
