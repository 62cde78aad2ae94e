"""Sends dead letters of one share-partition to their topic, one by one or in transactions.

Letters that Kafka refuses for a while are tried again. A letter that is too large for the topic
goes back to its outbox, which sends its headers alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import structlog

from sharecoord.core.changes import DeadLetter, PartitionKey, PartitionRow
from sharecoord.core.letters.dead_letters import OutboxMark, headers_of, mark_of, outbox_name
from sharecoord.core.partition.share_partition import SharePartition
from sharecoord.core.settings import PartitionSettings
from sharecoord.errors import (
    LimitExceededError,
    NotOwnerError,
    SharecoordError,
    UnknownTopicOrPartitionError,
)
from sharecoord.ports import DeadLetterSink, LetterTransactions, OutgoingMessage
from sharecoord.runtime.kernel.budget import GroupBudget
from sharecoord.runtime.kernel.committer import Committable
from sharecoord.runtime.kernel.context import Context
from sharecoord.runtime.partition.record_cache import RecordCache

log = structlog.get_logger(__name__)

UNDER_WAY_RECORDS_MAX: Final = 1_000
"""Most letters of a share-partition under way: a full batch to each of some partitions."""

UNDER_WAY_BYTES_MAX: Final = 4 << 20
"""Most bytes of a share-partition under way; librdkafka has them a second time."""

AGAIN_S: Final = 1.0
"""First wait after a failure, as Kafka's own; doubles."""

AGAIN_MAX_S: Final = 30.0

SILENCE_S: Final = 5.0
"""Letters under way for this time without any answer raise the alert: Kafka's client tries on by
itself, and does not say why."""

ALONE_TRIES: Final = 3
"""A batch that is too large fails with all its messages: after this many tries without others of
its share-partition a letter counts as too large itself."""


@dataclass(eq=False, slots=True)
class WaitingLetter:
    """A letter that waits to be sent."""

    letter: DeadLetter
    size_bytes: int
    too_large: int = 0
    """How often Kafka refused the letter as too large."""

    @property
    def is_alone(self) -> bool:
        """Whether the letter goes without others of its share-partition."""
        return self.too_large > 0


class LetterSource(Committable, Protocol):
    """The share-partition of letters: a live one, or `OrphanedLetters`."""

    dead_letters: int
    """Letters sent since the process began."""

    @property
    def key(self) -> PartitionKey:
        """The share-partition."""

    @property
    def context(self) -> Context:
        """Ports and clock."""

    @property
    def state_epoch(self) -> int:
        """The state epoch of letters that are made now."""

    @property
    def partition(self) -> SharePartition | PartitionRow | None:
        """The loaded state; None once this incarnation is over."""

    @property
    def budget(self) -> GroupBudget:
        """The memory budget, which counts letters that wait."""

    @property
    def cache(self) -> RecordCache:
        """Payloads in memory."""

    async def confirmed(self) -> None:
        """Waits until records that were read are known to be of the partition's own topic."""

    def letters_arrived(self, first: int, last: int) -> None:
        """Kafka has the dead letters of [first, last]."""


class LetterSender:
    """Sends the letters of one outbox that are stored."""

    def __init__(
        self,
        source: LetterSource,
        *,
        is_waiting: Callable[[WaitingLetter], bool],
        on_arrived: Callable[[WaitingLetter], None],
        on_too_large: Callable[[WaitingLetter], None],
    ) -> None:
        """Sends nothing yet.

        `is_waiting` tells whether a letter is still to be sent: a reset may have replaced it.
        `on_arrived` is called for letters that Kafka has, `on_too_large` for those it never takes.
        """
        self._context = source.context
        self._source = source
        self._is_waiting = is_waiting
        self._on_arrived = on_arrived
        self._on_too_large = on_too_large
        self._settings = PartitionSettings()
        self._queue: deque[WaitingLetter] = deque()
        """Letters that are stored, and not under way."""
        self._under_way: dict[WaitingLetter, None] = {}
        self._under_way_bytes = 0
        self._transaction: asyncio.Task[None] | None = None
        """The transaction under way; no other letters are under way meanwhile."""
        self._outbox: LetterTransactions | None = None
        """The transactional producer; while it is open no other one can send these letters."""
        self._singly = 0
        """Letters that go in transactions of their own, because one of them is too large."""
        self._again: asyncio.TimerHandle | None = None
        self._delay_s = AGAIN_S
        self._heard_s = 0.0
        """Loop time at which Kafka answered last, or had nothing to answer."""
        self._listening: asyncio.TimerHandle | None = None
        """The timer that notices silence while letters are under way."""
        self.problem = ""
        """Why letters do not reach their topic; "" = they do."""

    def apply_settings(self, settings: PartitionSettings) -> None:
        """Letters go by these settings from now on."""
        self._settings = settings

    def add(self, letters: Iterable[WaitingLetter]) -> None:
        """Queues stored letters for the next `go`."""
        self._queue += [each for each in letters if self._is_waiting(each)]

    def end(self) -> None:
        """Ends with the incarnation; letters under way may still arrive, and be sent again."""
        task, self._transaction = self._transaction, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        for timer in (self._again, self._listening):
            if timer is not None:
                timer.cancel()
        self._queue.clear()
        self._under_way.clear()

    def try_again(self) -> None:
        """Tries at once: the problem may be over."""
        if self._again is not None:
            self._again.cancel()
            self._again = None
        self.go()

    def go(self) -> None:
        """Sends the queued letters, as far as there is room."""
        if self._source.partition is None:
            return
        sink, topic = self._context.dead_letters, self._settings.dead_letter_topic
        if self._queue and not topic:
            self.problem = "errors.deadletterqueue.topic.name is empty"
        if not topic or self._again is not None or self._transaction is not None:
            return
        if self._settings.dead_letter_exactly_once:
            # Letters under way without a transaction come first: a mark stands for all before it.
            if self._queue and not self._under_way:
                work = self._transact(sink, topic)
                self._transaction = self._context.tasks.spawn(work, f"dead-letters-{topic}")
            return
        while self._queue and self._has_room(self._queue[0]):
            entry = self._queue.popleft()
            if not self._is_waiting(entry):
                continue
            self._takes(entry)
            sink.send(topic, self._message(entry), partial(self._heard, entry))
            if entry.is_alone:
                return

    def _arrived(self, entry: WaitingLetter) -> None:
        self.problem, self._delay_s = "", AGAIN_S
        self._source.dead_letters += 1
        self._on_arrived(entry)

    def _takes(self, entry: WaitingLetter) -> None:
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
        # After a transaction that failed the problem is known already.
        if is_silent and not self.problem:
            self._say(
                f"dead-letter topic {self._settings.dead_letter_topic!r}: no answer from Kafka, "
                "which is tried on; look whether its brokers are up, and whether the topic has "
                "enough in-sync replicas (min.insync.replicas) and room on its disks"
            )
        self._listen()

    def _has_room(self, entry: WaitingLetter) -> bool:
        if not self._under_way:
            return True
        if entry.is_alone or any(each.is_alone for each in self._under_way):
            return False
        room = self._under_way_bytes + entry.size_bytes <= UNDER_WAY_BYTES_MAX
        return room and len(self._under_way) < UNDER_WAY_RECORDS_MAX

    def _message(self, entry: WaitingLetter) -> OutgoingMessage:
        letter, key = entry.letter, self._source.key
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

    def _heard(self, entry: WaitingLetter, error: SharecoordError | None) -> None:
        """Kafka has a letter, or says why not."""
        if entry not in self._under_way:
            # The letter is of an incarnation that is over.
            return
        del self._under_way[entry]
        self._under_way_bytes -= entry.size_bytes
        self._heard_s = asyncio.get_running_loop().time()
        if not self._is_waiting(entry):
            pass
        elif error is None:
            self._arrived(entry)
        else:
            self._failed(entry, error)
        if self._again is None:
            self.go()

    def _failed(self, entry: WaitingLetter, error: SharecoordError) -> None:
        if isinstance(error, LimitExceededError):
            entry.too_large += 1
            if entry.too_large < ALONE_TRIES:
                self._put_back(entry)
            else:
                self._on_too_large(entry)
        else:
            self._put_back(entry)
            self._wait(error)

    def _put_back(self, *entries: WaitingLetter) -> None:
        left = sorted([*entries, *self._queue], key=lambda each: each.letter.sequence)
        self._queue = deque(left)

    def _say(self, why: str) -> None:
        """Raises the alert; logs each problem once."""
        if why != self.problem:
            log.warning("dead letters wait", partition=self._source.key, why=why)
            self.problem = why

    def _wait(self, error: SharecoordError) -> None:
        """Raises the alert, and tries again later."""
        self._say(error.message)
        if (
            isinstance(error, UnknownTopicOrPartitionError)
            and self._settings.dead_letter_auto_create
        ):
            self._context.tasks.spawn(self._make_topic(), "dead-letter-topic")
        if self._again is None:
            loop = asyncio.get_running_loop()
            self._again = loop.call_later(self._delay_s, self.try_again)
            self._delay_s = min(2 * self._delay_s, AGAIN_MAX_S)

    # -- exactly once ---------------------------------------------------------------------------

    async def _transact(self, sink: DeadLetterSink, topic: str) -> None:
        """Sends queued letters in one transaction, or reads the mark of the former owner."""
        batch: list[WaitingLetter] = []
        failure: SharecoordError | None = None
        try:
            if self._outbox is None or not self._outbox.is_open:
                opened = await sink.open(outbox_name(self._source.key), topic)
                # Confirms the ownership, after every other sender was fenced. A former owner that
                # stood still would fence its successor, and send letters again that this one has
                # sent: it does not know the letter of the successor's mark.
                if error := await self._context.committed(self._source):
                    raise error
                self._outbox = opened
                self._take_arrived(opened.mark)
            batch = self._next_batch()
            if batch:
                messages = [self._message(entry) for entry in batch]
                mark = mark_of(self._source.key, batch[-1].letter)
                await self._outbox.send(topic, messages, mark)
        except SharecoordError as problem:
            failure = problem
        if self._transaction is not asyncio.current_task():
            # The incarnation is over.
            return
        self._transaction = None
        if isinstance(failure, NotOwnerError):
            self._source.drop(failure)
            return
        if failure is not None:
            self._transaction_failed(batch, failure)
        for entry in batch if failure is None else ():
            self._heard(entry, None)
        self.go()

    def _transaction_failed(self, batch: Sequence[WaitingLetter], failure: SharecoordError) -> None:
        self._under_way.clear()
        self._under_way_bytes = 0
        waiting = [entry for entry in batch if self._is_waiting(entry)]
        if isinstance(failure, LimitExceededError):
            self._singly = len(batch) if len(batch) > 1 else 0
            if len(batch) == 1 and waiting:
                self._on_too_large(waiting.pop())
        else:
            self._wait(failure)
        self._put_back(*waiting)

    def _next_batch(self) -> list[WaitingLetter]:
        """The letters of the next transaction, taken from the queue."""
        batch: list[WaitingLetter] = []
        while self._queue and self._has_room(self._queue[0]):
            entry = self._queue.popleft()
            if not self._is_waiting(entry):
                continue
            self._takes(entry)
            batch.append(entry)
            if self._singly:
                self._singly -= 1
                break
        return batch

    def _take_arrived(self, mark: OutboxMark | None) -> None:
        """Takes letters up to the mark as arrived: a former owner has sent them."""
        waiting, key = [entry for entry in self._queue if self._is_waiting(entry)], self._source.key
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
                self._arrived(entry)

    async def _make_topic(self) -> None:
        try:
            await self._context.dead_letters.ensure(self._settings.dead_letter_topic, create=True)
        except SharecoordError as error:
            self.problem = error.message
        else:
            self.try_again()
