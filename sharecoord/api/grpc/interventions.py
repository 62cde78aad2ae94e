"""The part of AdminService that intervenes in a group at work. No rules here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sharecoord.api.grpc.validation import (
    check_group_id,
    check_member_id,
    check_partition,
    check_reason,
    check_topics,
)
from sharecoord.core.pauses import WHOLE_GROUP, Pause, PauseScope
from sharecoord.core.states import ForceAction
from sharecoord.errors import InvalidRequestError
from sharecoord.runtime.admin_types import PauseAnswer
from sharecoord.runtime.interventions import Interventions
from sharecoord.wire import admin_service_pb2 as pb


class InterventionCalls:
    """A part of `AdminService`: method names are those of the proto in snake case."""

    _admin: Interventions

    async def pause_group(self, request: pb.PauseGroupRequest) -> pb.PauseGroupResponse:
        """Pauses a group, or parts of it."""
        answer = await self._admin.pause_group(
            check_group_id(request.group_id),
            _scopes(request.topics, request.member_ids),
            reason=check_reason(request.reason),
        )
        return pb.PauseGroupResponse(results=_results(answer), pauses=map(pause_of, answer.pauses))

    async def resume_group(self, request: pb.ResumeGroupRequest) -> pb.ResumeGroupResponse:
        """Ends pauses."""
        answer = await self._admin.resume_group(
            check_group_id(request.group_id), _scopes(request.topics, request.member_ids)
        )
        return pb.ResumeGroupResponse(results=_results(answer), pauses=map(pause_of, answer.pauses))

    async def force_records(self, request: pb.ForceRecordsRequest) -> pb.ForceRecordsResponse:
        """Skips, finishes or releases records."""
        if request.action not in _ACTIONS:
            raise InvalidRequestError("action is not set; give one of SKIP, FINISH, RELEASE")
        check_topics([request.partition.topic])
        found = await self._admin.force_records(
            check_group_id(request.group_id),
            (request.partition.topic, check_partition(request.partition.partition)),
            (request.first_offset, request.last_offset),
            _ACTIONS[request.action],
            dry_run=request.dry_run,
        )
        return pb.ForceRecordsResponse(
            ranges=[
                pb.ForcedRange(
                    first_offset=each.first,
                    last_offset=each.last,
                    before=each.before,
                    after=each.after,
                    member_id=each.member_id,
                    delivery_count=each.delivery_count,
                )
                for each in found
            ]
        )


_ACTIONS: Mapping[int, ForceAction] = {
    pb.FORCE_ACTION_SKIP: ForceAction.ARCHIVE,
    pb.FORCE_ACTION_FINISH: ForceAction.FINISH,
    pb.FORCE_ACTION_RELEASE: ForceAction.RELEASE,
}


def _scopes(topics: Iterable[pb.OffsetTarget], member_ids: Iterable[str]) -> list[PauseScope]:
    """What a request names; nothing = the group."""
    found: list[PauseScope] = []
    for target in topics:
        check_topics([target.topic])
        numbers: Sequence[int | None] = [check_partition(n) for n in target.partitions] or [None]
        found += [PauseScope(target.topic, number) for number in numbers]
    found += [PauseScope(member_id=check_member_id(each)) for each in member_ids]
    if len(set(found)) < len(found):
        twice = next(scope for scope in found if found.count(scope) > 1)
        raise InvalidRequestError(f"{twice} stands there twice; name it once")
    return found or [WHOLE_GROUP]


def pause_of(pause: Pause) -> pb.Pause:
    """A pause on the wire."""
    scope = pause.scope
    return pb.Pause(
        topic=scope.topic,
        partition=scope.partition,
        member_id=scope.member_id,
        since_ms=pause.since_ms,
        paused_by=pause.by,
        reason=pause.reason,
    )


def _results(answer: PauseAnswer) -> list[pb.PauseResult]:
    return [
        pb.PauseResult(
            pause=pause_of(each.pause or Pause(each.scope, 0, "")),
            changed=each.changed,
            note=each.note,
        )
        for each in answer.results
    ]
