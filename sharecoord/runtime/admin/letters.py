"""Lists, shows, redrives and discards dead letters, and withdraws a redrive.

Reading a dead-letter topic is bounded in time and bytes, slows no member, and ends when the caller
goes away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final, NamedTuple

from sharecoord.config.group import Ordering
from sharecoord.core.changes import InFlightRow, PartitionKey, lane_of
from sharecoord.core.letters.filter import LetterFilter
from sharecoord.core.letters.lanes import MarkKind
from sharecoord.core.letters.letter import waiting_letter
from sharecoord.core.records import header_text
from sharecoord.core.states import ArchiveReason, RecordState
from sharecoord.errors import (
    InvalidRequestError,
    LimitExceededError,
    UnknownDeadLetterError,
)
from sharecoord.ports import TopicInfo
from sharecoord.runtime.admin.group_access import GroupAccess, not_found
from sharecoord.runtime.letters.plan import LetterCommand, LetterRun, Plan, check_command
from sharecoord.runtime.letters.scan import (
    KEY_SHOWN_BYTES,
    Cursor,
    FoundLetter,
    LetterPlace,
    LetterScan,
    LetterState,
)

PAGE_DEFAULT: Final = 100
"""Letters of one page when the caller names no number."""
PAGE_MAX: Final = 1_000

PAGE_ANSWER_BYTES: Final = 1 << 20
"""Keys and error texts of one page: gRPC takes 4 MiB."""

PAGE_READ_BYTES: Final = 64 << 20
PAGE_READ_S: Final = 5.0
"""A page ends once it has read this many bytes, or for this long."""

RUN_READ_S: Final = 600.0
"""Longest search of a redrive or discard through its topic."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some letters, and the cursor to go on with; "" at the end."""

    letters: tuple[FoundLetter, ...]
    next: str = ""


class LetterStep(NamedTuple):
    """One event in the life of a letter."""

    time_ms: int
    """Since the epoch; 0 = not known."""
    text: str


@dataclass(frozen=True, slots=True)
class LetterView:
    """A letter with all of its record, and its life in order of time."""

    letter: FoundLetter
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    steps: tuple[LetterStep, ...]


class LetterCommands(GroupAccess):
    """The commands about dead letters."""

    # -- lists ----------------------------------------------------------------------------------

    async def list_dead_letters(
        self,
        group_id: str,
        wanted: LetterFilter,
        *,
        topic: str = "",
        max_letters: int = 0,
        after: str = "",
    ) -> LetterPage:
        """Letters that wait, then those in their topic; `topic` "" = the group's own.

        A letter that goes from the outbox to its topic meanwhile may be in two pages, never
        twice in one. `max_letters` 0 = 100, `after` = `next` of the former page.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidConfigError: It has no dead-letter topic, and none is named.
            InvalidRequestError: A number, the filter or `after` is bad.
            KafkaUnavailableError: Kafka does not answer.
            UnknownTopicOrPartitionError: There is no such topic, and nothing waits for it.
        """
        if not 0 <= max_letters <= PAGE_MAX:
            raise InvalidRequestError(
                f"max_letters is {max_letters}; 1 to {PAGE_MAX}, or 0 for {PAGE_DEFAULT}"
            )
        cursor = Cursor.parse(after)
        scan = await self._scan(group_id, wanted, topic)
        page = _Page(max_letters or PAGE_DEFAULT)
        if not cursor.in_topic:
            async with aclosing(scan.waiting(cursor)) as letters:
                async for behind, found in letters:
                    if not page.add(found):
                        return page.until(behind)
        info = await (scan.find_topic() if page.letters else scan.existing_topic())
        if info is None:
            return page.until(None)
        return await self._list_topic(scan, page, info, cursor)

    async def _list_topic(
        self, scan: LetterScan, page: _Page, info: TopicInfo, cursor: Cursor
    ) -> LetterPage:
        clock = self._context.clock
        end_ms = clock.now_ms() + int(PAGE_READ_S * 1000)
        read_bytes = 0
        async with aclosing(scan.in_topic(info, cursor)) as chunks:
            async for each in chunks:
                for _, found in each.found:
                    assert found.place is not None, "it is in the topic"
                    if not page.add(found):
                        return page.until(each.behind._replace(offset=found.place.offset + 1))
                read_bytes += each.chunk.size_bytes
                if read_bytes >= PAGE_READ_BYTES or clock.now_ms() >= end_ms:
                    return page.until(each.behind)
        return page.until(None)

    # -- one letter -----------------------------------------------------------------------------

    async def show_dead_letter(
        self,
        group_id: str,
        *,
        letter_id: str = "",
        place: LetterPlace | None = None,
        topic: str = "",
    ) -> LetterView:
        """Shows a letter with all of its record, by its id or by its place in the topic.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidConfigError: It has no dead-letter topic, and none is named.
            InvalidRequestError: Neither id nor place.
            KafkaUnavailableError: Kafka does not answer.
            UnknownDeadLetterError: There is no such letter of this group.
            UnknownTopicOrPartitionError: There is no such topic.
        """
        if not letter_id and place is None:
            raise InvalidRequestError("letter is not set; give its id, or its place in the topic")
        topic = place.topic or topic if place else topic
        wanted = LetterFilter(ids=(letter_id,)) if place is None else LetterFilter()
        scan = await self._scan(group_id, wanted, topic)
        found = await self._find_waiting(scan) if place is None else None
        if found is None:
            found = await self._find_in_topic(scan, await scan.existing_topic(), place)
        if found is None:
            what = letter_id
            if place is not None:
                what = f"in {scan.topic}[{place.partition}] at offset {place.offset}"
            raise UnknownDeadLetterError(
                f"group {group_id!r} has no dead letter {what}; "
                "`sharecoord dead-letters list` shows what it has"
            )
        found = await self._with_kept(scan, found)
        steps = [*_steps(found), *await self._redrives(scan, found)]
        headers = tuple((header_text(name), value) for name, value in found.letter.headers)
        return LetterView(found, found.letter.value, headers, tuple(steps))

    async def _find_waiting(self, scan: LetterScan) -> FoundLetter | None:
        async with aclosing(scan.waiting(Cursor())) as letters:
            async for _, found in letters:
                return found
        return None

    async def _find_in_topic(
        self, scan: LetterScan, info: TopicInfo, place: LetterPlace | None
    ) -> FoundLetter | None:
        cursor = Cursor()
        if place is not None:
            if place.partition not in info.partitions or place.offset < 0:
                return None
            info, cursor = (
                info._replace(partitions=(place.partition,)),
                Cursor(*place[1:], in_topic=True),
            )
        async with aclosing(scan.in_topic(info, cursor)) as chunks:
            async for each in chunks:
                for _, found in each.found:
                    if place is None or found.place == LetterPlace(scan.topic, *place[1:]):
                        return found
                if place is not None:
                    return None
        return None

    async def _with_kept(self, scan: LetterScan, found: FoundLetter) -> FoundLetter:
        """The letter with its stored payload, where the topic took its headers only."""
        if found.letter.payload != "kept":
            return found
        stored = await scan.stored(found.letter, await scan.rows())
        if stored is None:
            return found
        whole = waiting_letter(*stored, copies=True)
        both = found.letter._replace(key=whole.key, value=whole.value, headers=whole.headers)
        return replace(found, letter=both)

    async def _redrives(self, scan: LetterScan, found: FoundLetter) -> list[LetterStep]:
        """Redrives and discards of a letter in its topic, and the outcome of the last redrive."""
        place = found.place
        if place is None or found.mark is None:
            return []
        info = await scan.existing_topic()
        at = (place.topic, info.topic_id, place.partition)
        marks = await self._coordinator.lanes.marks(scan.group_id, *at)
        steps = [
            LetterStep(mark.at_ms, f"{mark.kind} by run {mark.run_id}")
            for mark in sorted(marks, key=lambda mark: mark.at_ms)
            if mark.first_offset <= place.offset <= mark.last_offset
        ]
        if found.state is not LetterState.REDRIVEN:
            return steps
        letter = found.letter
        lanes = [lane_of(letter.topic, partition) for partition in (None, letter.partition)]
        keys = [PartitionKey(scan.group_id, *at, lane) for lane in lanes]
        unfinished: list[InFlightRow] = []
        for row in await scan.rows():
            if row.key in keys:
                ranges = await self._reads.call(
                    self._context.store.read_in_flight,
                    row.partition_id,
                    from_offset=place.offset,
                    max_rows=1,
                )
                unfinished += [each for each in ranges if each.first_offset <= place.offset]
        return [*steps, LetterStep(0, _outcome(unfinished))]

    # -- redrive and discard --------------------------------------------------------------------

    async def redrive_dead_letters(self, command: LetterCommand) -> LetterRun:
        """Delivers letters again, as `_run`."""
        return await self._run(replace(command, kind=MarkKind.REDRIVEN))

    async def discard_dead_letters(self, command: LetterCommand) -> LetterRun:
        """Marks letters as done with, as `_run`."""
        return await self._run(replace(command, kind=MarkKind.DISCARDED))

    async def _run(self, command: LetterCommand) -> LetterRun:
        """Redrives or discards letters; when Kafka or the store fails, only some of them.

        The same call again takes the letters that are left.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidConfigError: It has no dead-letter topic, and none is named.
            InvalidRequestError: The filter is empty or bad, or a number is.
            KafkaUnavailableError: Kafka does not answer.
            LimitExceededError: There is too much to look through in one call.
            UnknownTopicOrPartitionError: There is no such topic.
        """
        check_command(command)
        scan = await self._scan(command.group_id, command.wanted, command.topic)
        info = await scan.existing_topic()
        plan = Plan(command, keys=scan.config.ordering is Ordering.KEY)
        try:
            async with asyncio.timeout(RUN_READ_S):
                await plan.fill(scan, info)
        except TimeoutError:
            raise LimitExceededError(
                f"looking through {scan.topic} took more than {RUN_READ_S:.0f} s; narrow it to a "
                "part of it with max_letters, and go on with the same call"
            ) from None
        plan.check_rate()
        if command.dry_run or plan.is_empty:
            return plan.result()
        return await self._to_the_end(self._carry_out(plan, scan.topic, info.topic_id))

    async def _carry_out(self, plan: Plan, topic: str, topic_id: str) -> LetterRun:
        command, context = plan.command, self._context
        at_s = self._context.clock.store_now_ms() // 1000
        when = datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y%m%dT%H%M%SZ")
        run_id = f"{when}-{context.new_incarnation() & 0xFFFFFF:06x}"
        chosen = plan.selections(topic, topic_id)
        if command.kind is MarkKind.REDRIVEN:
            taken = await self._coordinator.lanes.redrive(
                command.group_id,
                chosen,
                rate_per_s=command.rate_per_s,
                run_id=run_id,
                again=command.again or command.discarded,
            )
        else:
            taken = await self._coordinator.lanes.discard(command.group_id, chosen, run_id=run_id)
        copies = plan.copies(topic, topic_id)
        if copies:
            await self._coordinator.lanes.discard(command.group_id, copies, run_id=run_id)
        return plan.result(run_id, taken)

    async def withdraw_redrive(self, group_id: str, *, topic: str = "") -> int:
        """Takes back letters that were redriven from a topic and never handed out.

        Returns their number; they bear no mark of the redrive any more.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidConfigError: It has no dead-letter topic, and none is named.
        """
        scan = await self._scan(group_id, LetterFilter(), topic)
        if not scan.topic:
            await scan.existing_topic()
        return await self._to_the_end(self._coordinator.lanes.withdraw(group_id, scan.topic))

    # -- inside ---------------------------------------------------------------------------------

    async def _scan(self, group_id: str, wanted: LetterFilter, topic: str) -> LetterScan:
        wanted.check()
        for row in await self._reads.call(self._context.store.load_groups):
            if row.group_id == group_id:
                config = self._config(row)
                name = topic or config.dlq_topic_name
                return LetterScan(
                    self._context,
                    self._reads,
                    self._coordinator.lanes,
                    group_id,
                    config,
                    name,
                    wanted,
                )
        raise not_found(group_id)


class _Page:
    """The letters of one page, until it is full."""

    def __init__(self, letters_max: int) -> None:
        self.letters: list[FoundLetter] = []
        self._letters_max = letters_max
        self._bytes = 0

    def add(self, found: FoundLetter) -> bool:
        """Takes a letter; returns whether there is room for another one."""
        self.letters.append(found)
        letter = found.letter
        self._bytes += min(len(letter.key or b""), KEY_SHOWN_BYTES) + len(letter.message)
        return len(self.letters) < self._letters_max and self._bytes < PAGE_ANSWER_BYTES

    def until(self, cursor: Cursor | None) -> LetterPage:
        """The page; its cursor is None at the end of all letters.

        A letter reaches its topic a moment before it leaves the outbox: its copy there counts.
        """
        arrived = {each.letter.id for each in self.letters if each.place is not None}
        letters = (e for e in self.letters if e.place is not None or e.letter.id not in arrived)
        return LetterPage(
            tuple(each.shown for each in letters), "" if cursor is None else str(cursor)
        )


def _steps(found: FoundLetter) -> list[LetterStep]:
    """The life of a letter, in order of time."""
    letter, place = found.letter, found.place
    who = f" by {letter.member_id}" if letter.member_id else ""
    how = "rejected" if letter.reason == ArchiveReason.REJECTED else "failed"
    steps = [
        LetterStep(
            max(letter.timestamp_ms, 0),
            f"written to {letter.topic}[{letter.partition}] at offset {letter.offset}",
        ),
        LetterStep(
            letter.failed_at_ms,
            f"{how}{who}, delivery {letter.delivery_count}: {letter.message}",
        ),
    ]
    if place is None:
        steps.append(LetterStep(0, "waits in the outbox for its topic"))
    else:
        where = f"{place.topic}[{place.partition}] at offset {place.offset}"
        steps.append(LetterStep(found.written_ms, f"dead letter in {where}"))
    return steps


def _outcome(unfinished: Sequence[InFlightRow]) -> str:
    """The state of a redriven letter in words, by the range of its lane that has it."""
    if not unfinished:
        return "finished"
    row = unfinished[0]
    if row.state == RecordState.ACQUIRED:
        return f"{row.member_id} holds it, delivery {row.delivery_count}"
    if row.state == RecordState.AVAILABLE:
        return f"waits for its next delivery, after {row.delivery_count}"
    if row.state == RecordState.ARCHIVING:
        return f"on its way to the dead-letter topic again, after {row.delivery_count} deliveries"
    return f"archived after {row.delivery_count} deliveries ({row.reason})"
