"""The calls of AdminService that are about dead letters. No rules here."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf.message import Message

from sharecoord.api.grpc.validation import check_group_id, check_topics
from sharecoord.core.lanes import MarkKind
from sharecoord.core.letter_filter import LetterFilter
from sharecoord.runtime.admin_letters import KEY_SHOWN_BYTES, LetterAdmin
from sharecoord.runtime.letter_types import FoundLetter, LetterCommand, LetterRun, LetterState
from sharecoord.wire import admin_service_pb2 as pb
from sharecoord.wire import share_types_pb2 as types

_STATES: Final = {
    LetterState.WAITING: pb.DEAD_LETTER_STATE_WAITING,
    LetterState.IN_TOPIC: pb.DEAD_LETTER_STATE_IN_TOPIC,
    LetterState.REDRIVEN: pb.DEAD_LETTER_STATE_REDRIVEN,
    LetterState.DISCARDED: pb.DEAD_LETTER_STATE_DISCARDED,
}


class DeadLetterCalls:
    """Method names are those of the proto in snake case."""

    def __init__(self, letters: LetterAdmin) -> None:
        self._letters = letters

    async def list_dead_letters(
        self, request: pb.ListDeadLettersRequest
    ) -> pb.ListDeadLettersResponse:
        """A page of letters."""
        page = await self._letters.list_letters(
            check_group_id(request.group_id),
            _filter(request.filter),
            topic=_topic(request.dead_letter_topic),
            max_letters=request.max_letters,
            after=request.after,
        )
        shown = [_letter(found, key_bytes_max=KEY_SHOWN_BYTES) for found in page.letters]
        return pb.ListDeadLettersResponse(letters=shown, next=page.next)

    async def show_dead_letter(
        self, request: pb.ShowDeadLetterRequest
    ) -> pb.ShowDeadLetterResponse:
        """One letter whole."""
        has_place = request.HasField("place")
        place = (request.place.partition, request.place.offset) if has_place else None
        view = await self._letters.show_letter(
            check_group_id(request.group_id),
            letter_id=request.id,
            place=place,
            topic=_topic(request.place.topic or request.dead_letter_topic),
        )
        letter = view.found.letter
        return pb.ShowDeadLetterResponse(
            letter=_letter(view.found),
            value=letter.value,
            headers=[types.Header(key=name, value=value) for name, value in letter.headers],
            steps=[pb.DeadLetterStep(time_ms=step.time_ms, text=step.text) for step in view.steps],
        )

    async def redrive_dead_letters(
        self, request: pb.RedriveDeadLettersRequest
    ) -> pb.DeadLettersResult:
        """Delivers letters again."""
        command = LetterCommand(
            kind=MarkKind.REDRIVEN,
            group_id=check_group_id(request.group_id),
            wanted=_filter(request.filter),
            all_letters=request.all,
            dry_run=request.dry_run,
            rate_per_s=request.rate_per_s,
            again=request.again,
            discarded=request.discarded,
            max_letters=request.max_letters,
            topic=_topic(request.dead_letter_topic),
        )
        return _result(await self._letters.run(command))

    async def discard_dead_letters(
        self, request: pb.DiscardDeadLettersRequest
    ) -> pb.DeadLettersResult:
        """Marks letters as done with."""
        command = LetterCommand(
            kind=MarkKind.DISCARDED,
            group_id=check_group_id(request.group_id),
            wanted=_filter(request.filter),
            all_letters=request.all,
            dry_run=request.dry_run,
            max_letters=request.max_letters,
            topic=_topic(request.dead_letter_topic),
        )
        return _result(await self._letters.run(command))

    async def withdraw_redrive(
        self, request: pb.WithdrawRedriveRequest
    ) -> pb.WithdrawRedriveResponse:
        """Takes back what was not handed out."""
        letters = await self._letters.withdraw(
            check_group_id(request.group_id), topic=_topic(request.dead_letter_topic)
        )
        return pb.WithdrawRedriveResponse(letters=letters)


def _result(run: LetterRun) -> pb.DeadLettersResult:
    return pb.DeadLettersResult(
        run_id=run.run_id,
        letters=run.letters,
        parts=[
            pb.DeadLetterCount(topic=topic, partition=partition, letters=count)
            for (topic, partition), count in run.parts.items()
        ],
        first=[_letter(found, key_bytes_max=KEY_SHOWN_BYTES) for found in run.first],
        redriven=run.redriven,
        discarded=run.discarded,
        under_way=run.under_way,
        copies=run.copies,
        waiting=run.waiting,
        not_redrivable=run.not_redrivable,
        more=run.more,
    )


def _topic(name: str) -> str:
    if name:
        check_topics([name])
    return name


def _optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


def _filter(said: pb.DeadLetterFilter) -> LetterFilter:
    optional = ("first_offset", "last_offset", "key", "key_prefix")
    times = ("failed_from_ms", "failed_to_ms")
    return LetterFilter(
        reasons=tuple(said.reasons),
        topic=said.topic,
        partitions=tuple(said.partitions),
        headers=tuple((header.key, _optional(header, "value")) for header in said.headers),
        ids=tuple(said.ids),
        text=said.text,
        **{name: _optional(said, name) for name in (*optional, *times)},
    )


def _letter(found: FoundLetter, *, key_bytes_max: int | None = None) -> pb.DeadLetter:
    letter = found.letter
    made = pb.DeadLetter(
        id=letter.id,
        topic=letter.topic,
        partition=letter.partition,
        offset=letter.offset,
        reason=letter.reason,
        delivery_count=letter.delivery_count,
        failed_at_ms=letter.failed_at_ms,
        message=letter.message,
        key=None if letter.key is None else letter.key[:key_bytes_max],
        state=_STATES[found.state],
        payload=letter.payload,
        member_id=letter.member_id,
        timestamp_ms=letter.timestamp_ms,
        run_id="" if found.mark is None else found.mark.run_id,
        marked_at_ms=0 if found.mark is None else found.mark.at_ms,
    )
    if found.place is not None:
        topic, partition, offset = found.place
        made.place.CopyFrom(pb.DeadLetterPlace(topic=topic, partition=partition, offset=offset))
    return made
