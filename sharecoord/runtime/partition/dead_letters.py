"""Dead letters of one share-partition: from ARCHIVING to their topic (design 10).

A record that is rejected, or fails for the last time, becomes ARCHIVING in one commit with a row in
the outbox that has its payload. Once that is durable the letter goes to the dead-letter topic; when
Kafka has it, the range becomes ARCHIVED and the row is deleted. So no letter is lost in between: a
successor finds the rows that a coordinator left, and sends them, twice at worst, under one id.

A payload that is not in the cache is read again first; until then its row is without it, and a
coordinator that loads the row reads on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import structlog

from sharecoord.core.changes import DeadLetter, LoadedPartition, PartitionCommit
from sharecoord.core.letters.dead_letters import size_of
from sharecoord.core.partition.decisions import Decision
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.records import RecordChunk
from sharecoord.core.settings import PartitionSettings
from sharecoord.errors import OffsetOutOfRangeError, SharecoordError
from sharecoord.ports import EARLIEST, OffsetQuery
from sharecoord.runtime.kernel.committer import CallbackEffect
from sharecoord.runtime.partition.checkpoints import Checkpoints
from sharecoord.runtime.partition.claimed import Book
from sharecoord.runtime.partition.kept_payloads import KeptPayloads, payload_in
from sharecoord.runtime.partition.letter_sender import LetterSender, LetterSource, WaitingLetter
from sharecoord.runtime.partition.new_letters import letters_of, storable

log = structlog.get_logger(__name__)

READ_RECORDS_MAX: Final = 500
"""Most payloads of one re-read."""

READ_AGAIN_S: Final = 0.5
"""Wait after payloads could not be read."""


class DeadLetters(Book):
    """The outbox of one share-partition, in one incarnation of it."""

    def __init__(
        self,
        source: LetterSource,
        kept: KeptPayloads | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        """Sends nothing yet; letters take kept payloads and checkpoints along."""
        self._context = source.context
        self._source = source
        self._kept = kept
        self._checkpoint_of = checkpoints.for_letter if checkpoints is not None else lambda _: None
        self._settings = PartitionSettings()
        self._owner_epoch = self._number = 0
        """Both halves of the last letter's sequence."""
        self._entries: dict[int, WaitingLetter] = {}
        """Letters that wait, stored or about to be, by offset."""
        self._new: list[DeadLetter] = []
        """Rows for the next commit."""
        self._gone: list[int] = []
        """Offsets whose rows go with the next commit."""
        self._safe: list[int] = []
        """Offsets that Kafka has, in this turn of the loop."""
        self._lacking: dict[int, DeadLetter] = {}
        """Letters without their payload, which is being read."""
        self._reading: asyncio.Task[None] | None = None
        self.made = self.done_at_load = 0
        """Letters made in this incarnation, and `Window.done` at its begin."""
        self._sender = LetterSender(
            source,
            is_waiting=self._waits,
            on_arrived=self._has_arrived,
            on_too_large=self._without_payload,
        )

    # -- life -----------------------------------------------------------------------------------

    def begin(self, loaded: LoadedPartition, settings: PartitionSettings) -> None:
        """Goes on with the letters that the former incarnation left; called once."""
        self._settings, self._owner_epoch = settings, loaded.row.owner_epoch
        self._sender.apply_settings(settings)
        for letter in sorted(loaded.dead_letters, key=lambda each: each.sequence):
            if letter.sequence:
                self._sender.add([self._enter(letter)])
            elif not letter.kept:
                self._lacking[letter.offset] = replace(letter, payload_known=True)
        if self._entries or self._lacking:
            asyncio.get_running_loop().call_soon(self._go)

    def end(self) -> None:
        """See `Book`. Letters under way may still arrive, and be sent again."""
        reading, self._reading = self._reading, None
        if reading is not None and reading is not asyncio.current_task():
            reading.cancel()
        self._sender.end()
        for entry in self._entries.values():
            self._leave(entry)
        for kept in (self._entries, self._lacking, self._safe):
            kept.clear()

    def apply_settings(self, settings: PartitionSettings) -> None:
        """Tries another topic, or the first one, at once."""
        before, self._settings = self._settings, settings
        self._sender.apply_settings(settings)
        if before != settings and (self._entries or self._lacking):
            self._read_lacking()
            self._sender.try_again()

    @property
    def problem(self) -> str:
        """Why letters do not reach their topic; "" = they do."""
        return self._sender.problem

    @property
    def is_full(self) -> bool:
        """Whether the group's letters take all of their limit: nothing more is acquired."""
        return self._source.budget.outbox_bytes >= self._settings.outbox_max_bytes

    @property
    def waiting(self) -> int:
        """Number of letters that are not in their topic yet."""
        return len(self._entries) + len(self._lacking)

    # -- into the outbox ------------------------------------------------------------------------

    def note(self, decision: Decision) -> None:
        """Makes letters of the records that a decision makes ARCHIVING."""
        source, settings = self._source, self._settings
        if not settings.dead_letter_topic:
            return
        assert isinstance(source.partition, SharePartition), "it decided"
        made: list[DeadLetter] = []
        letters = letters_of(
            decision.edits,
            source.partition.window,
            self._context.clock,
            settings=settings,
            state_epoch=source.state_epoch,
            checkpoint_of=self._checkpoint_of,
        )
        for letter in letters:
            self.made += 1
            whole = self._with_payload(letter, source.cache.find(letter.offset))
            if whole is None:
                self._lacking[letter.offset] = letter
                self._new.append(replace(letter, payload_known=False))
            else:
                made.append(whole)
        self._store(made)
        if self._lacking:
            asyncio.get_running_loop().call_soon(self._go)

    def _with_payload(self, letter: DeadLetter, chunk: RecordChunk | None) -> DeadLetter | None:
        """A letter with the payload of its record; None = the payload is not at hand."""
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

    def _enter(self, letter: DeadLetter) -> WaitingLetter:
        former = self._entries.pop(letter.offset, None)
        if former is not None:
            # A reset delivered the record anew; the row is replaced.
            self._leave(former)
        entry = self._entries[letter.offset] = WaitingLetter(letter, size_of(letter))
        self._source.budget.outbox_grew(entry.size_bytes)
        return entry

    def _leave(self, entry: WaitingLetter) -> None:
        self._source.budget.outbox_shrank(entry.size_bytes, self._settings.outbox_max_bytes)

    def _store(self, letters: Sequence[DeadLetter]) -> None:
        """Stores letters in the next commit; then they are sent."""
        if not letters:
            return
        ready = [replace(letter, sequence=self._next_sequence()) for letter in letters]
        entries = [self._enter(letter) for letter in ready]
        # Memory sends them whole; only rows that this coordinator leaves behind are without.
        self._new += [storable(self._context.store, self._source.key, letter) for letter in ready]
        effect = CallbackEffect(partial(self._stored, entries))
        self._context.committer.add(self._source, effect)

    def _next_sequence(self) -> int:
        self._number += 1
        return (self._owner_epoch << 32) | self._number

    def _stored(self, entries: Sequence[WaitingLetter], error: SharecoordError | None) -> None:
        if error is None:
            self._sender.add(entries)
            self._go()

    def _waits(self, entry: WaitingLetter) -> bool:
        return self._entries.get(entry.letter.offset) is entry

    def into(self, commit: PartitionCommit) -> None:
        """See `Book`."""
        if self._new or self._gone:
            commit.dead_letters, self._new = self._new, []
            commit.dead_letters_done, self._gone = self._gone, []

    # -- payloads that are not in memory --------------------------------------------------------

    async def _read(self) -> None:
        """Reads until every letter has its payload, or the payload is known to be gone."""
        try:
            while self._lacking:
                first = last = next(iter(self._lacking))
                kept = self._kept if self._is_kept(first) else None
                while (
                    last + 1 in self._lacking
                    and last - first < READ_RECORDS_MAX - 1
                    and self._is_kept(last + 1) == (kept is not None)
                ):
                    last += 1
                if kept is None:
                    await self._read_range(first, last)
                else:
                    await self._read_kept(kept, first, last)
        except SharecoordError as error:
            key = self._source.key
            log.warning("dead letters wait for payloads", partition=key, why=str(error))
            asyncio.get_running_loop().call_later(READ_AGAIN_S, self._go)
        finally:
            if self._reading is asyncio.current_task():
                self._reading = None

    def _is_kept(self, offset: int) -> bool:
        return self._kept is not None and self._kept.offsets.covers(offset, offset)

    @property
    def lacking(self) -> Collection[int]:
        """The records whose payloads are still to be read."""
        return self._lacking

    def give_up_reading(self) -> None:
        """Sends headers alone of letters whose payload nobody can read."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
        lacking, self._lacking = list(self._lacking.values()), {}
        self._store([replace(letter, payload_known=False) for letter in lacking])

    def cut(self, offset: int) -> None:
        """The log lost what it had from `offset` on: letters go on, without what is still unread.

        They are about records that members had; the log's new records have letters of their own,
        with another state epoch in their ids.
        """
        gone = [each for each in self._lacking if each >= offset]
        letters = [self._lacking.pop(each) for each in gone]
        self._store([replace(letter, payload_known=False) for letter in letters])

    async def _read_range(self, first: int, last: int) -> None:
        context, key = self._context, self._source.key
        try:
            # Uncommitted as well: these offsets were delivered before.
            chunks = await context.reader.reread(
                key.topic, key.partition, first, last, committed=False
            )
        except OffsetOutOfRangeError:
            start = await context.calls.offset(OffsetQuery(key.topic, key.partition, EARLIEST))
            last = min(last, start - 1) if start > first else last
            chunks = []
        await self._source.confirmed()
        partition = self._source.partition
        if isinstance(partition, SharePartition):
            # Where the log was cut other records stand at these offsets.
            chunks = [each for each in chunks if partition.may_have(each.leader_epoch)]
        self._found(first, last, chunks)

    async def _read_kept(self, kept: KeptPayloads, first: int, last: int) -> None:
        """Reads kept payloads, which are deleted in the commit of the letters."""
        chunks = await kept.read(range(first, last + 1))
        last = chunks[-1].last if chunks else first
        self._found(first, last, chunks)
        kept.drop(first, last)

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
        """Sends letters, and starts to read missing payloads."""
        self._read_lacking()
        self._sender.go()

    def _read_lacking(self) -> None:
        if self._source.partition is not None and self._lacking and self._reading is None:
            name = f"dead-letters-{self._source.key.topic}"
            self._reading = self._context.tasks.spawn(self._read(), name)

    def _has_arrived(self, entry: WaitingLetter) -> None:
        if not self._safe:
            asyncio.get_running_loop().call_soon(self._settle)
        self._safe.append(entry.letter.offset)

    def _without_payload(self, entry: WaitingLetter) -> None:
        """Stores that a letter goes with headers alone, before it goes: nobody could tell later."""
        letter = storable(self._context.store, self._source.key, entry.letter)
        # A payload that the store does not take either is in its own topic only.
        self._store([replace(letter, kept=letter.payload_known)])

    def _settle(self) -> None:
        """Archives records whose letters Kafka has, and deletes their rows, in one commit."""
        safe, self._safe = sorted(self._safe), []
        partition = self._source.partition
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
                self._source.letters_arrived(first, offset)
                first = after or 0
        self._context.committer.add(self._source)
