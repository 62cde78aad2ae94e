"""Pauses groups, topics, partitions and members, and resumes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from sharecoord.core.changes import MemberRow, PausesChanged
from sharecoord.core.dispatch.pauses import OPERATOR, WHOLE_GROUP, Pause, Pauses, PauseScope
from sharecoord.errors import InvalidRequestError, UnknownMemberError
from sharecoord.eventlog.schema import GroupEvent
from sharecoord.ports import TopicCatalog
from sharecoord.runtime.admin.group_access import GroupAccess, no_partition, not_found
from sharecoord.runtime.group.events import tell
from sharecoord.runtime.group.refused_topics import no_topic

log = structlog.get_logger(__name__)

Targets = Sequence[tuple[str, tuple[int, ...]]]
"""Topics with their partitions; no partition means all."""


@dataclass(frozen=True, slots=True)
class PauseResult:
    """The outcome of a pause or a resume for one scope.

    admin_service.proto explains the fields, at `PauseResult`.
    """

    pause: Pause
    changed: bool
    note: str = ""


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """The outcome of a pause or a resume, and all pauses of the group now."""

    results: tuple[PauseResult, ...]
    pauses: tuple[Pause, ...]


class PauseCommands(GroupAccess):
    """The commands that pause and resume."""

    async def pause_group(
        self,
        group_id: str,
        topics: Targets = (),
        member_ids: Sequence[str] = (),
        *,
        reason: str = "",
        by: str = OPERATOR,
    ) -> PauseAnswer:
        """Pauses a group, or the parts of it that are named: all or nothing.

        Pauses that exist already stay as they are. From the answer on this coordinator hands out
        nothing new of the scope; the others of a fleet within moments, or a second where there is
        no link to them.

        Raises:
            GroupNotFoundError: There is no such group.
            UnknownTopicOrPartitionError: Neither the group nor the cluster has it.
            UnknownMemberError: The group has no such member.
            LimitExceededError: Too many pauses in one group.
        """
        scopes = _scopes(topics, member_ids)
        _, members = await self._existing(group_id)
        await self._check_scopes(group_id, scopes, members)
        pauses = [Pause(scope, self._context.clock.store_now_ms(), by, reason) for scope in scopes]
        change = await self._to_the_end(self._change_pauses(group_id, pauses, (), by))
        return _answer(change, scopes, pausing=True)

    async def resume_group(
        self,
        group_id: str,
        topics: Targets = (),
        member_ids: Sequence[str] = (),
        *,
        by: str = OPERATOR,
    ) -> PauseAnswer:
        """Ends exactly these pauses; a topic of a group may stay paused when the group goes on.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        scopes = _scopes(topics, member_ids)
        change = await self._to_the_end(self._change_pauses(group_id, (), scopes, by))
        return _answer(change, scopes, pausing=False)

    async def _change_pauses(
        self, group_id: str, pause: Sequence[Pause], resume: Sequence[PauseScope], by: str
    ) -> PausesChanged:
        store, caller = self._context.store, self._context.caller
        try:
            change = await caller.call(store.change_pauses, group_id, pause=pause, resume=resume)
        except BaseException:
            # Also after an error: the stored pauses are those in force.
            await self._refresh(group_id)
            raise
        if change is None:
            raise not_found(group_id)
        await self._refresh(group_id)
        # What was acquired before has left by then, so that nothing comes after the answer.
        await self._context.committed()
        self._tell_pauses(group_id, change, by)
        return change

    def _tell_pauses(self, group_id: str, change: PausesChanged, by: str) -> None:
        before, after = set(change.before), set(change.row.pauses)
        for pause in (*(after - before), *(before - after)):
            scope, is_new = pause.scope, pause in after
            tell(
                self._context,
                group_id,
                GroupEvent.PAUSED if is_new else GroupEvent.RESUMED,
                place=(scope.topic or None, scope.partition),
                member_id=scope.member_id or None,
                reason=str(pause) if is_new else by,
            )
            said = "paused" if is_new else "resumed"
            log.info(said, group=group_id, what=str(scope), by=by, why=pause.reason)

    async def _check_scopes(
        self, group_id: str, scopes: Sequence[PauseScope], members: Sequence[MemberRow]
    ) -> None:
        """Refuses scopes that do not exist."""
        known = {member.member_id for member in members}
        for scope in scopes:
            if scope.member_id and scope.member_id not in known:
                raise UnknownMemberError(
                    f"group {group_id!r} has no member {scope.member_id!r}; "
                    "`sharecoord groups --describe --members` lists them"
                )
        topics = {scope.topic for scope in scopes if scope.topic}
        if topics:
            partitions = await self._partitions_of(group_id, topics)
            _check_topics(self._context.catalog, scopes, partitions)

    async def _partitions_of(self, group_id: str, topics: set[str]) -> dict[str, set[int]]:
        """The partitions of topics: the group's; Kafka's where the group has none."""
        found: dict[str, set[int]] = {}
        for row in await self._rows(group_id):
            if row.key.topic in topics:
                found.setdefault(row.key.topic, set()).add(row.key.partition)
        if missing := sorted(topics - found.keys()):
            for topic, info in (await self._context.catalog.describe(missing)).items():
                found[topic] = set(info.partitions)
        return found


def _scopes(topics: Targets, member_ids: Iterable[str]) -> list[PauseScope]:
    """The scopes that a command names; the whole group when it names none."""
    found: list[PauseScope] = []
    for topic, partitions in topics:
        numbers: Sequence[int | None] = partitions or (None,)
        found += [PauseScope(topic, number) for number in numbers]
    found += [PauseScope(member_id=each) for each in member_ids]
    if len(set(found)) < len(found):
        twice = next(scope for scope in found if found.count(scope) > 1)
        raise InvalidRequestError(f"{twice} stands there twice; name it once")
    return found or [WHOLE_GROUP]


def _check_topics(
    catalog: TopicCatalog, scopes: Sequence[PauseScope], partitions: Mapping[str, set[int]]
) -> None:
    for topic, partition, _ in scopes:
        if topic and topic not in partitions:
            raise no_topic(catalog, topic)
        if partition is not None and partition not in partitions[topic]:
            raise no_partition(topic, partition, len(partitions[topic]))


def _answer(change: PausesChanged, scopes: Sequence[PauseScope], *, pausing: bool) -> PauseAnswer:
    before = {pause.scope: pause for pause in change.before}
    after = {pause.scope: pause for pause in change.row.pauses}
    results: list[PauseResult] = []
    for scope in dict.fromkeys(scopes):
        was, pause = scope in before, after.get(scope) or before.get(scope)
        note = ""
        if pausing and was:
            note = f"{scope} was paused already"
        elif not pausing and not was:
            note = f"{scope} was not paused"
        if not pausing and (wider := _wider(scope, after)):
            note = f"{note}; {wider}" if note else wider
        results.append(PauseResult(pause or Pause(scope, 0, ""), pausing != was, note))
    return PauseAnswer(tuple(results), change.row.pauses)


def _wider(scope: PauseScope, after: Mapping[PauseScope, Pause]) -> str:
    """Says which wider pause still holds for a resumed scope; "" when there is none."""
    pauses = Pauses(after.values())
    covers = None
    if scope.topic:
        covers = pauses.of_place(scope.topic, -1 if scope.partition is None else scope.partition)
    if scope.topic or scope.member_id:
        covers = covers or pauses.group
    return "" if covers is None else f"{covers.scope} is still paused"
