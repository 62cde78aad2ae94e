"""Admin calls about dead letters, as values; and the methods of both clients that send them."""

from __future__ import annotations

from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from sharecoord_sdk._proto import admin_service_pb2 as pb
from sharecoord_sdk._proto import share_types_pb2 as types_pb

from .calls import Call
from .filled import filled
from .letter_types import (
    DeadLetter,
    DeadLetterDetails,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLettersResult,
    DeadLetterState,
)

T = TypeVar("T")

_STATES: Final[dict[int, DeadLetterState]] = {
    pb.DEAD_LETTER_STATE_WAITING: DeadLetterState.WAITING,
    pb.DEAD_LETTER_STATE_IN_TOPIC: DeadLetterState.IN_TOPIC,
    pb.DEAD_LETTER_STATE_REDRIVEN: DeadLetterState.REDRIVEN,
    pb.DEAD_LETTER_STATE_DISCARDED: DeadLetterState.DISCARDED,
}


class SyncLetterCalls:
    """What `AdminClient` can do with dead letters."""

    def _run(self, call: Call[T]) -> T:
        raise NotImplementedError

    def list_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        max_letters: int = 100,
        after: str = "",
        dead_letter_topic: str = "",
    ) -> DeadLetterPage:
        """Dead letters of a group, those first that wait for their topic; go on with `next`.

        A page reads for some seconds at most: it may have fewer letters than asked for, even none,
        although there are more.

        Args:
            group_id: The group.
            wanted: Which ones; None = all.
            max_letters: 1 to 1000.
            after: `next` of the former page.
            dead_letter_topic: "" = the one of the group's settings.

        Raises:
            GroupNotFoundError: There is no such group.
            InvalidConfigError: It has no dead-letter topic, and none is named.
            InvalidRequestError: The filter is bad; the field is named.
        """
        return self._run(
            _list(group_id, wanted, max_letters=max_letters, after=after, topic=dead_letter_topic)
        )

    def show_dead_letter(
        self,
        group_id: str,
        letter_id: str = "",
        *,
        place: tuple[int, int] | None = None,
        dead_letter_topic: str = "",
    ) -> DeadLetterDetails:
        """One letter whole, by its id, or by partition and offset in the topic (which is quicker).

        Raises:
            UnknownDeadLetterError: The group has no such letter.
        """
        return self._run(_show(group_id, letter_id, place=place, topic=dead_letter_topic))

    def redrive_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
        rate_per_s: int = 0,
        again: bool = False,
        discarded: bool = False,
        max_letters: int = 0,
        dead_letter_topic: str = "",
    ) -> DeadLettersResult:
        """Delivers letters to their group again, each once, with a new count.

        They come to the members that subscribe to the topic they came from, and to nobody else. It
        is durable when this returns; the same call again takes those that are left.

        Args:
            group_id: The group whose letters they are.
            wanted: Which ones.
            all_letters: All are meant; needed without `wanted`.
            dry_run: Only say what would happen.
            rate_per_s: Records per second of all together; 0 = no limit.
            again: Also those that were redriven before.
            discarded: Also those that were discarded before.
            max_letters: 1 to 250000; 0 = as many as one call takes.
            dead_letter_topic: "" = the one of the group's settings.

        Raises:
            InvalidRequestError: The filter is empty or bad; the field is named.
        """
        call = _redrive(
            group_id,
            wanted,
            dry_run=dry_run,
            all=all_letters,
            rate_per_s=rate_per_s,
            again=again,
            discarded=discarded,
            max_letters=max_letters,
            dead_letter_topic=dead_letter_topic,
        )
        return self._run(call)

    def discard_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
        max_letters: int = 0,
        dead_letter_topic: str = "",
    ) -> DeadLettersResult:
        """Marks letters as done with: no redrive takes them unless asked to.

        Arguments and errors as `redrive_dead_letters`.
        """
        call = _discard(
            group_id,
            wanted,
            dry_run=dry_run,
            all=all_letters,
            max_letters=max_letters,
            dead_letter_topic=dead_letter_topic,
        )
        return self._run(call)

    def withdraw_redrive(self, group_id: str, *, dead_letter_topic: str = "") -> int:
        """Takes back what was redriven and never handed out; a later redrive takes it again.

        Returns:
            How many letters.
        """
        return self._run(_withdraw(group_id, topic=dead_letter_topic))


class AsyncLetterCalls:
    """What `AsyncAdminClient` can do with dead letters."""

    async def _run(self, call: Call[T]) -> T:
        raise NotImplementedError

    async def list_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        max_letters: int = 100,
        after: str = "",
        dead_letter_topic: str = "",
    ) -> DeadLetterPage:
        """As `AdminClient.list_dead_letters`."""
        return await self._run(
            _list(group_id, wanted, max_letters=max_letters, after=after, topic=dead_letter_topic)
        )

    async def show_dead_letter(
        self,
        group_id: str,
        letter_id: str = "",
        *,
        place: tuple[int, int] | None = None,
        dead_letter_topic: str = "",
    ) -> DeadLetterDetails:
        """As `AdminClient.show_dead_letter`."""
        return await self._run(_show(group_id, letter_id, place=place, topic=dead_letter_topic))

    async def redrive_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
        rate_per_s: int = 0,
        again: bool = False,
        discarded: bool = False,
        max_letters: int = 0,
        dead_letter_topic: str = "",
    ) -> DeadLettersResult:
        """As `AdminClient.redrive_dead_letters`."""
        call = _redrive(
            group_id,
            wanted,
            dry_run=dry_run,
            all=all_letters,
            rate_per_s=rate_per_s,
            again=again,
            discarded=discarded,
            max_letters=max_letters,
            dead_letter_topic=dead_letter_topic,
        )
        return await self._run(call)

    async def discard_dead_letters(
        self,
        group_id: str,
        wanted: DeadLetterFilter | None = None,
        *,
        all_letters: bool = False,
        dry_run: bool = False,
        max_letters: int = 0,
        dead_letter_topic: str = "",
    ) -> DeadLettersResult:
        """As `AdminClient.discard_dead_letters`."""
        call = _discard(
            group_id,
            wanted,
            dry_run=dry_run,
            all=all_letters,
            max_letters=max_letters,
            dead_letter_topic=dead_letter_topic,
        )
        return await self._run(call)

    async def withdraw_redrive(self, group_id: str, *, dead_letter_topic: str = "") -> int:
        """As `AdminClient.withdraw_redrive`."""
        return await self._run(_withdraw(group_id, topic=dead_letter_topic))


def _list(
    group_id: str, wanted: DeadLetterFilter | None, *, max_letters: int, after: str, topic: str
) -> Call[DeadLetterPage]:
    request = filled(
        pb.ListDeadLettersRequest,
        group_id=group_id,
        filter=_filter(wanted),
        max_letters=max_letters,
        after=after,
        dead_letter_topic=topic,
    )

    def read(answer: pb.ListDeadLettersResponse) -> DeadLetterPage:
        return DeadLetterPage(tuple(_letter(each) for each in answer.letters), answer.next)

    return Call("ListDeadLetters", request, read, is_safe=True)


def _show(
    group_id: str, letter_id: str, *, place: tuple[int, int] | None, topic: str
) -> Call[DeadLetterDetails]:
    which: dict[str, Any] = {"id": letter_id}
    if place is not None:
        which = {"place": filled(pb.DeadLetterPlace, partition=place[0], offset=place[1])}
    request = filled(pb.ShowDeadLetterRequest, group_id=group_id, dead_letter_topic=topic, **which)

    def read(answer: pb.ShowDeadLetterResponse) -> DeadLetterDetails:
        return DeadLetterDetails(
            _letter(answer.letter),
            _optional(answer, "value"),
            tuple((header.key, _optional(header, "value")) for header in answer.headers),
            tuple((step.time_ms, step.text) for step in answer.steps),
        )

    return Call("ShowDeadLetter", request, read, is_safe=True)


def _redrive(
    group_id: str, wanted: DeadLetterFilter | None, *, dry_run: bool, **fields: Any
) -> Call[DeadLettersResult]:
    request = filled(
        pb.RedriveDeadLettersRequest,
        group_id=group_id,
        filter=_filter(wanted),
        dry_run=dry_run,
        **fields,
    )
    return Call("RedriveDeadLetters", request, _result, is_safe=dry_run)


def _discard(
    group_id: str, wanted: DeadLetterFilter | None, *, dry_run: bool, **fields: Any
) -> Call[DeadLettersResult]:
    request = filled(
        pb.DiscardDeadLettersRequest,
        group_id=group_id,
        filter=_filter(wanted),
        dry_run=dry_run,
        **fields,
    )
    return Call("DiscardDeadLetters", request, _result, is_safe=dry_run)


def _withdraw(group_id: str, *, topic: str) -> Call[int]:
    request = filled(pb.WithdrawRedriveRequest, group_id=group_id, dead_letter_topic=topic)

    def read(answer: pb.WithdrawRedriveResponse) -> int:
        return answer.letters

    return Call("WithdrawRedrive", request, read)


def _result(said: pb.DeadLettersResult) -> DeadLettersResult:
    return DeadLettersResult(
        run_id=said.run_id,
        letters=said.letters,
        parts={(part.topic, part.partition): part.letters for part in said.parts},
        first=tuple(_letter(each) for each in said.first),
        redriven=said.redriven,
        discarded=said.discarded,
        under_way=said.under_way,
        copies=said.copies,
        waiting=said.waiting,
        not_redrivable=dict(said.not_redrivable),
        more=said.more,
    )


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _filter(wanted: DeadLetterFilter | None) -> pb.DeadLetterFilter:
    if wanted is None:
        return pb.DeadLetterFilter()
    for name in ("reasons", "ids"):
        if isinstance(getattr(wanted, name), str):
            raise TypeError(f"{name} is one str; give a list of them")
    return filled(
        pb.DeadLetterFilter,
        reasons=wanted.reasons,
        topic=wanted.topic,
        partitions=wanted.partitions,
        first_offset=wanted.first_offset,
        last_offset=wanted.last_offset,
        key=wanted.key,
        key_prefix=wanted.key_prefix,
        failed_from_ms=wanted.failed_from_ms,
        failed_to_ms=wanted.failed_to_ms,
        headers=[filled(types_pb.Header, key=name, value=value) for name, value in wanted.headers],
        ids=wanted.ids,
        text=wanted.text,
    )


def _letter(said: pb.DeadLetter) -> DeadLetter:
    place = said.place
    return DeadLetter(
        id=said.id,
        topic=said.topic,
        partition=said.partition,
        offset=said.offset,
        reason=said.reason,
        delivery_count=said.delivery_count,
        failed_at_ms=said.failed_at_ms,
        message=said.message,
        key=_optional(said, "key"),
        state=_STATES[said.state],
        place=(place.topic, place.partition, place.offset) if said.HasField("place") else None,
        payload=said.payload,
        member_id=said.member_id,
        timestamp_ms=said.timestamp_ms,
        run_id=said.run_id,
        marked_at_ms=said.marked_at_ms,
    )
